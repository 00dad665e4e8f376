from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class QuotasConfig(AppConfig):
    name = "quotas"
    verbose_name = _("People and quotas")

    def ready(self) -> None:
        from quotas import audit_hooks, notify, quota_notices, requests

        audit_hooks.connect()
        notify.kinds_add(quota_notices.KINDS)
        requests.configure(tell=quota_notices.request_tell)
