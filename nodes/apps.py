from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class NodesConfig(AppConfig):
    name = "nodes"
    verbose_name = _("Nodes")

    def ready(self) -> None:
        from nodes import alert_words, foreign, live
        from quotas import notify

        notify.configure(tell=live.users_tell)
        notify.kinds_add({**foreign.KINDS, **alert_words.NOTICES})
