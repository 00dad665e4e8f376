"""The Celery application. Tasks are short, idempotent nudges; the 3 s sweep alone would be enough."""

import os
import warnings

from celery import Celery
from celery.exceptions import SecurityWarning

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nebulagrid.settings")

# `manage.py up` says in its own words what running as root means here.
warnings.filterwarnings("ignore", category=SecurityWarning)

app = Celery("nebulagrid")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
