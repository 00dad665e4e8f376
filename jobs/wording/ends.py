"""How an attempt ended, and what happened to a job on the way."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.lifecycle import EndReason
from jobs.wording.numbers import Params, Sentence, duration, gib, gibs, listed, moment, said
from jobs.wording.waits import REASONS


def _signal_name(number: Any) -> str:
    try:
        return f"{number} ({signal.Signals(int(number)).name})"
    except (TypeError, ValueError):
        return str(number)


def _nonzero(p: Params) -> str:
    if p.get("exit_code") is not None:
        return _("The program ended with exit code %(code)s.") % {"code": p["exit_code"]}
    if p.get("signal") is not None:
        return _("The program was ended by signal %(signal)s.") % {"signal": _signal_name(p["signal"])}
    return _("The program failed.")


def _with(text: Any, key: str, extra: Any, show: Callable[[Any], Any] = str) -> Sentence:
    """``text``, and ``extra`` after it when the params have ``key``."""
    return lambda p: str(text) + (" " + str(extra) % {key: show(p[key])} if p.get(key) not in (None, "") else "")


_ON_NODE = gettext_lazy("Node: %(node)s.")
_DETAIL = gettext_lazy("The node says: %(detail)s")
_LAUNCH_ERRORS = {
    "exec": gettext_lazy("The program could not be started: is it there and executable on the node?"),
    "workdir": gettext_lazy("The working folder is not there on the node, or can't be entered."),
    "user": gettext_lazy("The job's owner has no Unix user on the node."),
    "cgroup": gettext_lazy("The node could not set up the job's cgroup."),
    "spec": gettext_lazy("The node does not understand the job."),
    "gpu": gettext_lazy("A GPU of the job was not there."),
    "port": gettext_lazy("The port that the parts of the job meet at was taken on its first node; it is started again with another one."),
    "fenced": gettext_lazy("The node had already given up this attempt."),
    "internal": gettext_lazy("The node's agent failed to start it."),
    "no_answer": gettext_lazy("The node did not say in time whether it started it."),
}


def _launch_failed(p: Params) -> str:
    text = str(_LAUNCH_ERRORS.get(str(p.get("kind", "")), gettext_lazy("The program could not be started.")))
    if p.get("node"):
        text = f"{text} {str(_ON_NODE) % {'node': p['node']}}"
    return f"{text} {str(_DETAIL) % {'detail': p['detail']}}" if p.get("detail") else text


def _exit_unknown(p: Params) -> str:
    if p.get("after_backup"):
        text = _("It was started after the backup that the control plane came back from; how it ended is lost with those days.")
    else:
        text = _("The program is gone and nobody saw how it ended.")
    return f"{text} {str(_ON_NODE) % {'node': p['node']}}" if p.get("node") else text


def _gpu_fault(p: Params) -> str:
    if p.get("cause") == "program":
        text = _("Stopped: the driver reported XID %(xid)s, an access of the program to memory that it may not use. The GPU is well.") % {
            "xid": p.get("xid")
        }
    else:
        text = _("A GPU failed; the program is not to blame.")
    if not p.get("node"):
        return text
    place = f"{p['node']}:{p['gpu']}" if p.get("gpu") is not None else p["node"]
    return f"{text} {str(_ON_NODE) % {'node': place}}"


def _crash_limit(p: Params) -> str:
    text = _("It was put back into the queue too often and is given up.")
    if p.get("times"):
        text = _("It failed %(times)s times through no fault of its own and is given up.") % {"times": p["times"]}
    last = p.get("reason")
    if last and last != EndReason.CRASH_LIMIT:
        text += " " + _("The last time: %(how)s") % {"how": end_reason_text(str(last), {k: v for k, v in p.items() if k != "reason"})}
    return text


#: Why an attempt is stopped where that is not how it ends.
STOPS = {"gang": gettext_lazy("Another part of the job has ended.")}

ENDS: dict[str, Sentence] = {
    EndReason.COMPLETED: lambda p: _("The program ended with exit code 0."),
    EndReason.NONZERO_EXIT: _nonzero,
    EndReason.EXIT_UNKNOWN: _exit_unknown,
    EndReason.TIME_LIMIT: _with(
        gettext_lazy("Stopped at its time limit."), "limit_s", gettext_lazy("The limit was %(limit_s)s."), duration
    ),
    EndReason.CANCELLED: _with(gettext_lazy("Cancelled."), "by", gettext_lazy("By %(by)s.")),
    EndReason.PREEMPTED: _with(
        gettext_lazy("Stopped to make room for a job that goes first."), "job", gettext_lazy("That is job %(job)s.")
    ),
    EndReason.GPU_FAULT: _gpu_fault,
    EndReason.GPU_MEMORY: _with(
        gettext_lazy("Out of GPU memory: the program's need, not the GPU's fault. Ask for more memory or use a smaller batch."),
        "node",
        _ON_NODE,
    ),
    EndReason.SLICE_EXCEEDED: _with(
        gettext_lazy("Stopped: it used more GPU memory than it asked for."), "used_mib", gettext_lazy("It used %(used_mib)s."), gib
    ),
    EndReason.IDLE: _with(
        gettext_lazy("Stopped: its cards did nothing."),
        "window_s",
        gettext_lazy("For %(window_s)s neither cards nor processors worked."),
        duration,
    ),
    EndReason.HOST_MEMORY: _with(gettext_lazy("Killed by the kernel: the node's memory was used up."), "node", _ON_NODE),
    EndReason.PIDS_LIMIT: _with(
        gettext_lazy("Stopped: it made more processes than it may."), "limit", gettext_lazy("The limit is %(limit)s.")
    ),
    EndReason.NODE_LOST: _with(gettext_lazy("The node was lost; it is certain that the program does not run any more."), "node", _ON_NODE),
    EndReason.NODE_REBOOTED: _with(gettext_lazy("The node was rebooted while it ran."), "node", _ON_NODE),
    EndReason.LAUNCH_FAILED: _launch_failed,
    EndReason.HOOK_FAILED: _with(gettext_lazy("A hook of the node failed."), "detail", _DETAIL),
    EndReason.CRASH_LIMIT: _crash_limit,
    EndReason.DEPENDENCY_FAILED: _with(gettext_lazy("A job that it waits for has failed."), "job", gettext_lazy("That is job %(job)s.")),
    EndReason.NEVER_FITS: lambda p: (
        said(REASONS, str(p["code"]), p.get("params") or p) if p.get("code") else _("No node of the pool can ever hold it.")
    ),
}


def end_reason_text(code: str, params: Params | None = None, *, exit_code: int | None = None) -> str:
    known = dict(params or {})
    if exit_code is not None:
        known.setdefault("exit_code", exit_code)
    return said(ENDS, code, known)


def requeued(p: Params) -> str:
    """Why a job waits that has run before; here because it says how that ended."""
    text = _("Back in the queue; the next pass looks for a place.")
    if p.get("reason"):
        text += " " + _("The last time: %(how)s") % {
            "how": end_reason_text(str(p["reason"]), {k: v for k, v in p.items() if k != "reason"})
        }
    return text


def _because(text: Any) -> Sentence:
    """``text`` plus how, where the event carries an end reason."""

    def how(p: Params) -> str:
        reason = p.get("reason") or p.get("end_reason")
        if not reason:
            return str(text)
        if reason in STOPS:
            return f"{text} {STOPS[reason]}"
        return f"{text} {end_reason_text(str(reason), {k: v for k, v in p.items() if k != 'reason'})}"

    return how


def _slice_over(text: Any) -> Sentence:
    def how(p: Params) -> str:
        card = f"{p['node']} gpu{p['gpu']}"
        used, asked = gibs(p["used_mib"], p["asked_mib"])
        return str(text) % {"used": used, "asked": asked, "card": card, "grace": duration(p.get("grace_s"))}

    return how


EVENTS: dict[str, Sentence] = {
    "submitted": lambda p: _("Submitted."),
    "placed": _with(gettext_lazy("A place was found."), "nodes", gettext_lazy("On: %(nodes)s."), listed),
    "running": _with(gettext_lazy("The program started."), "node", _ON_NODE),
    "cancel_wanted": lambda p: _("A cancel was asked for."),
    "cancelled": lambda p: _("Cancelled."),
    "held": _with(gettext_lazy("Held."), "why", gettext_lazy("Because: %(why)s")),
    "released": lambda p: _("Released."),
    "lease_opened": lambda p: (
        (
            _("Its owner is switched off: it is stopped at %(until)s unless it is renewed.")
            if p.get("why") == "owner"
            else _("It has run for weeks: it is stopped at %(until)s unless it is renewed.")
        )
        % {"until": moment(p.get("until"))}
    ),
    "lease_renewed": lambda p: _("Renewed until %(until)s.") % {"until": moment(p.get("until"))},
    "lease_over": lambda p: _("Nobody renewed it."),
    "stopping": _because(gettext_lazy("Being stopped.")),
    "requeued": _because(gettext_lazy("Put back into the queue.")),
    "succeeded": _because(gettext_lazy("Ended.")),
    "failed": _because(gettext_lazy("Failed.")),
    "recovered": _with(gettext_lazy("Taken in from a node after a restore; the backup did not know it."), "node", _ON_NODE),
    "adopted": _with(gettext_lazy("A node runs it since after the backup."), "node", _ON_NODE),
    "slice_over": _slice_over(gettext_lazy("Its programs hold %(used)s on %(card)s and asked for %(asked)s.")),
    "slice_over_stop": _slice_over(
        gettext_lazy("Its programs hold %(used)s on %(card)s and asked for %(asked)s. It is stopped unless that ends within %(grace)s.")
    ),
    "idle": lambda p: (
        _("Its cards have done nothing for %(window)s. It is stopped unless they work within %(grace)s.")
        % {"window": duration(p.get("window_s")), "grace": duration(p.get("grace_s"))}
    ),
    "files_refused": lambda p: (
        _("%(name)s is not kept: there is no room for it. The files of the job say why.") % {"name": p.get("name", "")}
    ),
    "files_removed": lambda p: (
        _("Its files were removed, %(days)s days after its end.") % {"days": p["days"]} if p.get("days") else _("Its files were removed.")
    ),
    "logs_removed": lambda p: (
        _("Its output was removed, %(days)s days after its end.") % {"days": p["days"]} if p.get("days") else _("Its output was removed.")
    ),
    "idle_over": lambda p: _("It works again."),
    "node_silent": _with(gettext_lazy("Its node is silent; the program may still run."), "node", _ON_NODE),
}
