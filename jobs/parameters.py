"""What a request names in its address: a job that the user may see, and whole numbers of the query."""

from __future__ import annotations

import re

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request

from jobs.models import Job
from jobs.selectors import jobs_visible_to
from quotas.models import User


def bad_parameter(name: str, message: str) -> ValidationError:
    return ValidationError({name: [message]})


def whole_parameter(request: Request, name: str, default: int | None, *, least: int = 0, most: int = 2**53) -> int | None:
    """A whole number from the query. Raises ValidationError."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,16}", text) or not least <= int(text) <= most:
        raise bad_parameter(name, _("Must be a whole number from %(least)d to %(most)d.") % {"least": least, "most": most})
    return int(text)


def job_find(user: User, id: int, jobs: QuerySet[Job] | None = None) -> Job:
    """One query. Raises NotFound for what the user may not see, just as for what isn't there."""
    job = (jobs_visible_to(user) if jobs is None else jobs).filter(pk=id).first()
    if job is None:
        raise NotFound(_("There is no job %(id)s.") % {"id": id})
    return job
