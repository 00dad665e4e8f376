"""The Celery application. Tasks are short, idempotent nudges; the 3 s sweep alone would be enough."""

import os
import warnings
from logging.config import dictConfig

from celery import Celery
from celery.exceptions import SecurityWarning

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nebulagrid.settings")

# `manage.py up` says in its own words what running as root means here.
warnings.filterwarnings("ignore", category=SecurityWarning)

if os.environ.get("NEBULA_ROLE") == "beat":
    # It sends names at times, both from the settings. Without the applications it starts in a third of the time, in half the memory.
    from django.conf import settings

    app = Celery("nebulagrid", fixups=[])
    dictConfig(settings.LOGGING)  # else done with the applications
else:
    app = Celery("nebulagrid")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
