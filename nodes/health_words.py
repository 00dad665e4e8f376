"""What happened to a card and what is done about it, in words. Codes and numbers in, the reader's language out; an unknown code is
shown as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

#: NVIDIA's meanings; the rules that ship have the same titles.
XIDS = {
    13: gettext_lazy("Graphics engine exception"),
    31: gettext_lazy("GPU memory page fault"),
    43: gettext_lazy("GPU stopped processing"),
    45: gettext_lazy("Preemptive cleanup after an earlier error"),
    46: gettext_lazy("GPU stopped processing"),
    48: gettext_lazy("Double-bit ECC error"),
    62: gettext_lazy("Internal micro-controller halt"),
    63: gettext_lazy("A memory row or page is to be taken out of use"),
    64: gettext_lazy("A memory row or page could not be taken out of use"),
    68: gettext_lazy("Video processor exception"),
    74: gettext_lazy("NVLink error"),
    79: gettext_lazy("GPU has fallen off the bus"),
    94: gettext_lazy("Contained memory error"),
    95: gettext_lazy("Uncontained memory error"),
    109: gettext_lazy("Context switch time-out"),
    119: gettext_lazy("GSP firmware does not answer"),
    120: gettext_lazy("GSP firmware error"),
    140: gettext_lazy("Unrecovered ECC error"),
    143: gettext_lazy("GPU initialization failure"),
}

#: Why a card is in its state, and what an incident is about. ``%(xid)s`` where the code carries a number.
CAUSES = {
    "xid": gettext_lazy("The driver reported XID %(xid)s."),
    "xid_again": gettext_lazy("The driver reported XID %(xid)s again within a short time."),
    "xid_owners": gettext_lazy("Programs of several people met XID %(xid)s within an hour."),
    "lost": gettext_lazy("The card has fallen off the bus."),
    "missing": gettext_lazy("The agent no longer sees the card."),
    "not_seen": gettext_lazy("The agent no longer sees it."),
    "appeared": gettext_lazy("The card was gone and is seen again."),
    "unconfirmed": gettext_lazy("Its node tells of it anew: staff confirm it on the node's page first."),
    "test_failed": gettext_lazy("It failed its self-test."),
    "remap_failed": gettext_lazy("Its spare memory rows are used up: have it replaced."),
    "ecc_uncorrected": gettext_lazy("Its memory had errors that were not corrected."),
    "replaced": gettext_lazy("Another card is in its slot."),
    "new_card": gettext_lazy("New in its slot: not verified before it has passed a self-test."),
    "hot": gettext_lazy("It stayed too hot."),
    "cooled": gettext_lazy("It has cooled; a self-test brings it back."),
    "testing": gettext_lazy("A self-test runs; it is back in a moment."),
    "resetting": gettext_lazy("It is being reset; a self-test follows."),
    "by_hand": gettext_lazy("Taken out by hand."),
}

#: The lines of an incident's timeline: sentence, tone, icon.
LINES: dict[str, tuple[Any, str, str]] = {
    **{code: (text, "bad", "warn") for code, text in CAUSES.items()},
    "suspect": (gettext_lazy("Suspect: no new work comes to it."), "warn", "warn"),
    "isolated": (gettext_lazy("Isolated: its jobs are stopped politely and go back to the queue."), "bad", "octagon"),
    "maintenance": (gettext_lazy("In maintenance."), "", "wrench"),
    "healthy": (gettext_lazy("Back in service."), "ok", "check"),
    "out": (gettext_lazy("Out of the pool until it is seen again."), "bad", "help"),
    "job_stopped": (gettext_lazy("Job %(job)s was stopped to go on elsewhere."), "warn", "rotate"),
    "test_asked": (gettext_lazy("Self-test of %(mib)s MiB."), "info", "loader"),
    "test_passed": (gettext_lazy("Passed its self-test."), "ok", "okc"),
    "test_impossible": (gettext_lazy("No self-test is possible here; a person has to look."), "warn", "help"),
    "test_error": (gettext_lazy("The self-test gave no answer, several times; a person has to look."), "warn", "help"),
    "reset_asked": (gettext_lazy("Reset of the idle card."), "info", "rotate"),
    "reset_done": (gettext_lazy("The card was reset."), "ok", "okc"),
    "reset_failed": (gettext_lazy("The card could not be reset: %(text)s"), "warn", "badc"),
    "test_wanted": (gettext_lazy("A self-test was asked for: %(text)s"), "info", "user"),
    "reset_wanted": (gettext_lazy("A reset was asked for: %(text)s"), "info", "user"),
    "return_wanted": (gettext_lazy("Its return was asked for: %(text)s"), "info", "user"),
    "returned": (gettext_lazy("Returned to service without a test: %(text)s"), "ok", "check"),
    "note": ("%(text)s", "", "pencil"),
    "closed": (gettext_lazy("Closed: %(text)s"), "ok", "okc"),
}


def xid_title(xid: int) -> str:
    """What NVIDIA calls it; empty where nobody knows."""
    return str(XIDS.get(xid, ""))


def cause_text(code: str, params: Mapping[str, Any] | None = None) -> str:
    """One sentence; of a known XID with its meaning."""
    known = dict(params or {})
    text = CAUSES.get(code)
    if text is None:
        return code
    said = str(text) % known if "%(" not in str(text) or "xid" in known else code
    title = xid_title(int(known["xid"])) if isinstance(known.get("xid"), int) else ""
    return f"{said} ({title})" if title else said


def reason_text(reason: str) -> str:
    """A card's ``state_reason``: a code, with an XID after a colon; a person's own words stay as they are."""
    code, _colon, number = reason.partition(":")
    if code not in CAUSES or (number and not number.isdigit() and code != "not_seen"):
        return reason
    return cause_text(code, {"xid": int(number)} if number.isdigit() else {})


def line_text(code: str, params: Mapping[str, Any]) -> str:
    if code in CAUSES:
        return cause_text(code, params)
    if code not in LINES:
        return code
    text = str(LINES[code][0])
    if code in ("isolated", "maintenance") and params.get("text"):
        return f"{text} {params['text']}"
    try:
        return text % params
    except (KeyError, TypeError, ValueError):
        return code


def line_look(code: str) -> tuple[str, str]:
    """(tone, icon)"""
    return LINES[code][1:] if code in LINES else ("", "help")


def selftest_text(report: Mapping[str, Any]) -> str:
    """What the last self-test came to, in a sentence."""
    result = report.get("result")
    if result == "passed":
        text = _("Passed its self-test (%(mib)s MiB in %(took)s s).") % {"mib": report.get("mib", "?"), "took": report.get("took_s", "?")}
    elif result == "failed":
        text = _("Failed its self-test: %(text)s") % {"text": report.get("text", "?")}
    elif result == "impossible":
        text = _("No self-test is possible here: %(text)s") % {"text": report.get("text", "?")}
    else:
        text = _("The self-test gave no answer: %(text)s") % {"text": report.get("text", "?")}
    if report.get("max_temp_c") is not None:
        text += " " + _("At most %(temp)s °C.") % {"temp": report["max_temp_c"]}
    return text
