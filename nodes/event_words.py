"""What an agent reported of a card, and how near two cards are, in words. An unknown code is shown as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from nodes.health_words import reason_text, xid_title

EVENTS = {
    "missing": gettext_lazy("The card is no longer seen."),
    "appeared": gettext_lazy("The card is seen again."),
    "unresponsive": gettext_lazy("The GPU driver did not answer in time."),
    "responsive": gettext_lazy("The GPU driver answers again."),
    "card_unreadable": gettext_lazy("The card can't be read."),
    "backend_error": gettext_lazy("The hardware layer failed."),
    "throttle": gettext_lazy("The card slows itself down."),
    "anomaly": gettext_lazy("The card reported a value that no card can have; it was dropped."),
    "card_health": gettext_lazy("The card's own health report changed."),
    "cooling": gettext_lazy("Hot and slow though little used: look at its cooling."),
    "memory_clock": gettext_lazy("Its memory clock stays low under load: switch persistence mode on (nvidia-smi -pm 1)."),
    "memory_fault": gettext_lazy("Its memory is failing: errors that were not corrected, or no spare rows left."),
    "leak": gettext_lazy("Its memory use grows though no job asked for more."),
    "driver_mismatch": gettext_lazy("The NVIDIA driver and its library differ in version."),
    "lost": gettext_lazy("The card has fallen off the bus."),
    "disk_full": gettext_lazy("The disk of the agent's data folder is full; no job is started."),
    "disk_full_over": gettext_lazy("The disk of the agent's data folder has room again."),
    "store_unwritable": gettext_lazy("The agent can't write down what it does; no job is started."),
    "store_unwritable_over": gettext_lazy("The agent can write down what it does again."),
    "bad_event": gettext_lazy("The agent sent an event that can't be read; it was dropped."),
    "event_flood": gettext_lazy("The agent sent far more events than a machine has; they were counted and dropped."),
    "implausible": gettext_lazy("The agent told of hardware that can't be; that part was not believed."),
    "foreign_rank": gettext_lazy("This node's credential was used for a job of another node; that was refused."),
    "session_unproven": gettext_lazy("An agent that can't show it is the one of before speaks for this node now."),
    "session_unconfirmed": gettext_lazy(
        "An agent that can't show it is the one of before wants to speak for this node, where jobs may still run. Look whether the old "
        "one is gone, then confirm it on this page."
    ),
    "second_session": gettext_lazy("A second agent tried to speak for this node while the first one was at work; it was refused."),
    "old_credential": gettext_lazy("Somebody used a credential of this node that was replaced long ago; it was refused."),
}
#: Of an event: tone and icon.
LOOKS = {
    "missing": ("bad", "help"),
    "disk_full": ("bad", "octagon"),
    "disk_full_over": ("ok", "check"),
    "store_unwritable": ("bad", "octagon"),
    "store_unwritable_over": ("ok", "check"),
    "lost": ("bad", "octagon"),
    "xid": ("warn", "warn"),
    "appeared": ("ok", "check"),
    "trend_over": ("ok", "check"),
    "foreign": ("warn", "ghost"),
    "cooling": ("warn", "flame"),
    "responsive": ("ok", "check"),
    "throttle": ("warn", "flame"),
    "foreign_rank": ("bad", "octagon"),
    "second_session": ("bad", "octagon"),
    "old_credential": ("bad", "octagon"),
}
LINKS = {
    "nvlink": gettext_lazy("NVLink"),
    "pcie_switch": gettext_lazy("one PCIe switch"),
    "pcie_host": gettext_lazy("one PCIe host bridge"),
    "numa": gettext_lazy("one CPU socket"),
    "system": gettext_lazy("across CPU sockets"),
}
#: Where more than the kind is known.
LINKS_VIA = {
    "nvswitch": gettext_lazy("NVLink through an NVSwitch"),
    "xgmi": gettext_lazy("XGMI (Infinity Fabric)"),
    "pxb": gettext_lazy("several PCIe switches"),
}


def event_kind_text(kind: str, data: Mapping[str, Any]) -> str:
    if kind == "xid" and data.get("xid") is not None:
        text = _("The driver reported XID %(xid)s.") % {"xid": data["xid"]}
        title = xid_title(data["xid"]) if isinstance(data["xid"], int) else ""
        times = data.get("count")
        many = " " + _("%(n)s times.") % {"n": times} if isinstance(times, int) and times > 1 else ""
        return (f"{text} ({title})" if title else text) + many
    if kind == "trend_over":
        return _("That is over: %(what)s") % {"what": EVENTS.get(str(data.get("what")), str(data.get("what")))}
    if kind == "foreign":
        values = {"user": data.get("user") or "?", "command": data.get("command") or "?", "mib": data.get("used_mib", "?")}
        return _("%(command)s of %(user)s uses %(mib)s MiB of it and belongs to no job.") % values
    text = EVENTS.get(kind)
    more = data.get("problem") if kind == "bad_event" else None
    if kind == "implausible" and "value" in data:
        more = f"{data.get('what')}: {data['value']} > {data.get('limit')}"
    elif kind in ("second_session", "session_unconfirmed", "session_unproven", "old_credential") and data.get("peer"):
        more = " ".join(str(data[name]) for name in ("hostname", "peer") if data.get(name))
    return (str(text) if text is not None else kind) + (f" ({more})" if isinstance(more, str) else "")


def event_look(kind: str) -> tuple[str, str]:
    """(tone, icon)"""
    return LOOKS.get(kind, ("warn", "warn"))


def link_text(kind: str, via: str = "") -> str:
    text = LINKS_VIA.get(via) or LINKS.get(kind)
    return str(text) if text is not None else kind


def state_reason_text(reason: str) -> str:
    """Why a card is in its state: a code of this room in words; an admin's own words stay as they are."""
    return reason_text(reason)
