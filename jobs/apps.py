from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "jobs"
    verbose_name = _("Jobs")

    def ready(self) -> None:
        from jobs import idle_words, job_news
        from jobs.services import ownerless
        from quotas import notify

        notify.kinds_add(job_news.KINDS | idle_words.KINDS | ownerless.KINDS)
