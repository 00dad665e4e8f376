from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class QuotasConfig(AppConfig):
    name = "quotas"
    verbose_name = _("People and quotas")

    def ready(self) -> None:
        from quotas import audit_hooks

        audit_hooks.connect()
