from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Jobs")

    def ready(self) -> None:
        from jobs import holders, idle_words, job_news, kept_words
        from jobs.services import ownerless
        from nodes.slices import slices_configure
        from quotas import notify

        slices_configure(holders.slices_json)
        notify.kinds_add(job_news.KINDS | idle_words.KINDS | ownerless.KINDS | kept_words.KINDS)
