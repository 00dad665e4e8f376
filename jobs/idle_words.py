"""What the owner of a job that does nothing is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from nodes.formats import duration
from quotas.notify import Kind


def _text(p: Mapping[str, Any]) -> str:
    values = {"window": duration(p["window_s"]), "grace": duration(p["grace_s"])}
    return _("Its cards have done nothing for %(window)s. It is stopped unless they work within %(grace)s.") % values


KINDS: Final = {
    "job_idle": Kind(event="fail", title=gettext_lazy("Job #{job} {name} does nothing"), text=_text, tone="warn", icon="hourglass"),
}
