"""What an inspection found, in the reader's language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from nodes.formats import gib, is_chinese
from nodes.health_words import reason_text, xid_title
from nodes.states import GPU
from nodes.wording import cordon_text

#: Code → sentence with the names of its numbers.
SAYS = {
    "silent": gettext_lazy("Its agent has been silent for %(hours)s hours."),
    "cordoned": gettext_lazy("It takes no new work: %(why)s"),
    "disk_low": gettext_lazy("At times only %(free)s were left on the agent's disk."),
    "samples_missing": gettext_lazy("Only %(told_pct)s%% of the day's figures came in."),
    "card_state": gettext_lazy("%(state)s for %(hours)s hours. %(why)s"),
    "incident_open": gettext_lazy("Incident %(incident)s has been open for %(days)s days."),
    "score_low": gettext_lazy("Its health score is %(score)s of 100."),
    "hot": gettext_lazy("It was up to %(temp_c)s °C warm."),
    "throttled": gettext_lazy("It was slowed down for %(pct)s%% of the time."),
    "xids": gettext_lazy("The driver reported XID %(xid)s, %(times)s ×. %(title)s"),
    "cards_well": gettext_lazy("%(count)s cards without findings."),
    "doctor_silent": gettext_lazy("The agent's own look at the machine gave no report: %(text)s"),
}
TONES = {"fail": ("bad", "badc"), "warn": ("warn", "warn"), "pass": ("ok", "okc")}
WORST = {"fail": gettext_lazy("wrong"), "warn": gettext_lazy("to look at"), "pass": gettext_lazy("right")}


def finding_said(finding: Mapping[str, Any]) -> tuple[str, str]:
    """(what is, what to do or ""). An unknown code is said as it is."""
    params = dict(finding.get("params") or {})
    if finding.get("code") == "doctor":
        tail = "_zh" if is_chinese() and params.get("text_zh") else ""
        return str(params.get(f"text{tail}", "")), str(params.get(f"advice{tail}", ""))
    text = SAYS.get(str(finding.get("code")))
    if text is None:
        return str(finding.get("code")), ""
    if params.get("hours") == 0:
        params["hours"] = "<1"
    if "free_mib" in params:
        params["free"] = gib(params["free_mib"])
    if finding["code"] == "card_state":
        params |= {
            "state": str(GPU[state].word) if (state := str(params.get("state"))) in GPU else state,
            "why": reason_text(str(params.get("why") or "")),
        }
    elif finding["code"] == "cordoned":
        params["why"] = cordon_text(str(params.get("why") or ""))
    elif finding["code"] == "xids":
        params["title"] = f"({xid_title(int(params.get('xid', 0)))})" if xid_title(int(params.get("xid", 0))) else ""
    try:
        return (str(text) % params).strip(), ""
    except (KeyError, TypeError, ValueError):
        return str(finding.get("code")), ""


def finding_row(finding: Mapping[str, Any]) -> dict[str, Any]:
    """For pages."""
    text, advice = finding_said(finding)
    level = str(finding.get("level"))
    tone, icon = TONES.get(level, ("", "help"))
    gpu = finding.get("gpu")
    return {"level": level, "tone": tone, "icon": icon, "text": text, "advice": advice, "gpu": gpu if isinstance(gpu, int) else None}


def summary(findings: list[dict[str, Any]]) -> str:
    """``2 wrong, 1 to look at, 14 right``."""
    counts = {level: sum(finding.get("level") == level for finding in findings) for level in WORST}
    return ", ".join(f"{count} {WORST[level]}" for level, count in counts.items() if count) or _("nothing was looked at")
