"""Requests in words, in the reader's language."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from quotas.models import Quota, QuotaRequest, QuotaRequestEvent

_STEPS = {
    "asked": gettext_lazy("Asked by %(by)s"),
    "passed": gettext_lazy("Passed on by %(by)s"),
    "approved": gettext_lazy("Approved by %(by)s"),
    "declined": gettext_lazy("Declined by %(by)s"),
    "withdrawn": gettext_lazy("Withdrawn by %(by)s"),
    "ended_early": gettext_lazy("Ended early by %(by)s"),
}
#: state → tone and icon of the one table of states (the nebula tags draw them)
TONES = {"lead": "", "admin": "", "approved": "ok", "declined": "bad", "withdrawn": "", "ended": ""}
ICONS = {"lead": "hourglass", "admin": "hourglass", "approved": "okc", "declined": "badc", "withdrawn": "ban", "ended": "clock"}


def amount_text(what: str, amount: int, model: str = "") -> str:
    """``+200 GPU-hours a month``, ``+2 A100 at once``."""
    values = {"n": amount, "amount": f"{amount:,}", "model": model}
    if what == QuotaRequest.What.GPU_HOURS:
        return ngettext("+%(amount)s GPU-hour a month", "+%(amount)s GPU-hours a month", amount) % values
    if what == QuotaRequest.What.CARDS:
        return ngettext("+%(amount)s card at once", "+%(amount)s cards at once", amount) % values
    if what == QuotaRequest.What.ACTIVE_JOBS:
        return ngettext("+%(amount)s active job at once", "+%(amount)s active jobs at once", amount) % values
    return ngettext("+%(amount)s card of %(model)s at once", "+%(amount)s cards of %(model)s at once", amount) % values


def ask_text(request: QuotaRequest) -> str:
    return amount_text(request.what, request.amount, request.model)


def granted_text(request: QuotaRequest) -> str:
    return amount_text(request.what, request.granted_amount or request.amount, request.model)


def step_text(event: QuotaRequestEvent) -> str:
    by = event.by.email if event.by is not None else _("the system")
    return str(_STEPS[event.code]) % {"by": by}


def owner_text(quota: Quota) -> str:
    """Whose limit it is. ``quota.user`` and ``quota.project`` loaded."""
    return quota.user.email if quota.user is not None else str(quota.project)
