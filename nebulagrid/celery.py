"""The Celery application. Tasks are short, idempotent nudges; the 3 s sweep alone would be enough."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nebulagrid.settings")

app = Celery("nebulagrid")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
