"""Codes and numbers into sentences, in the reader's language. Prose is never stored; this is the only place that makes it.

Every function answers with the bare code when it does not know it or when a number is missing: a sentence never fails
a request. Memory is shown as GiB, MiB stays in the API's numbers (D36).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from jobs.lifecycle import EndReason
from nodes.formats import gib_number
from nodes.wording import advice_text

if TYPE_CHECKING:
    from jobs.models import Job, JobEvent

__all__ = ["advice_text", "end_text", "event_text", "reason_text", "why_text"]

Params = Mapping[str, Any]
Sentence = Callable[[Params], str]


# --- numbers --------------------------------------------------------------------------------------------------


def gib(mib: int | float | None) -> str:
    """MiB as the pages say it, but with a plain blank: these sentences are for terminals and programs, too."""
    return _("unknown") if mib is None else f"{gib_number(mib)} GiB"


def duration(seconds: int | float | None) -> str:
    """Two units: ``1 h 39 min``, ``42 s``."""
    if seconds is None:
        return _("unknown")
    whole = int(seconds)
    days, hours, minutes, rest = whole // 86_400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    parts = [
        (days, pgettext("days", "d")),
        (hours, pgettext("hours", "h")),
        (minutes, pgettext("minutes", "min")),
        (rest, pgettext("seconds", "s")),
    ]
    shown = [f"{number} {unit}" for number, unit in parts if number][:2]
    return " ".join(shown) or f"0 {parts[3][1]}"


def moment(text: str | None) -> str:
    """An ISO time with its zone, cut to minutes: ``2026-08-01 00:00 +08:00``."""
    at = parse_datetime(text) if text else None
    return at.strftime("%Y-%m-%d %H:%M %:z") if at is not None and at.tzinfo else (text or _("never"))


def place(p: Params) -> str:
    """``node03 gpu5``, ``node03`` or ``gpu5``: whatever is known."""
    parts = [str(p["node"])] if p.get("node") is not None else []
    if p.get("gpu") is not None:
        parts.append(f"gpu{p['gpu']}")
    return " ".join(parts)


def at_place(p: Params) -> str:
    where = place(p)
    return f" ({where})" if where else ""


def listed(values: Any) -> str:
    if isinstance(values, list | tuple | set | frozenset):
        return ", ".join(str(value) for value in values) or _("none")
    return _("none") if values is None else str(values)


def _whole_or_gib(p: Params) -> str:
    return _("a whole GPU") if p.get("needed_mib") is None else _("%(size)s on one GPU") % {"size": gib(p["needed_mib"])}


# --- why a job waits ------------------------------------------------------------------------------------------


def _gpu_memory(p: Params) -> str:
    values = {"needed": gib(p["needed_mib"]), "free": gib(p["largest_free_mib"]), "place": at_place(p), "count": p.get("count") or 1}
    if not p["largest_free_mib"]:
        if values["count"] > 1:
            return _("Needs %(needed)s on each of %(count)d GPUs of one node; too many of those that are large enough are in use.") % values
        return _("Needs %(needed)s on one GPU; all that are large enough are in use.") % values
    if values["count"] > 1:
        return _("Needs %(needed)s on each of %(count)d GPUs of one node; the most free on so many is %(free)s%(place)s.") % values
    return _("Needs %(needed)s on one GPU; the largest free slice is %(free)s%(place)s.") % values


def _gpu_count(p: Params) -> str:
    values = {"needed": p["needed"], "free": p["free"], "node": p.get("node"), "nodes": p["nodes"], "nodes_free": p["nodes_free"]}
    if (p["nodes"] or 1) > 1:
        return _("Needs %(nodes)d nodes with %(needed)d free GPUs each; %(nodes_free)d have them now.") % values
    if p.get("node") is None or not p["free"]:
        return _("Needs %(needed)d free GPUs on one node; none has a suitable one free now.") % values
    return _("Needs %(needed)d free GPUs on one node; the most is %(free)d (%(node)s).") % values


def _whole_card_busy(p: Params) -> str:
    if p.get("needed_mib") is None:
        return ngettext(
            "Needs a whole GPU; the one that could serve it is in use.",
            "Needs a whole GPU; all %(cards)d that could serve it are in use.",
            p["cards"],
        ) % {"cards": p["cards"]}
    values = {"needed": gib(p["needed_mib"]), "free": gib(p["largest_free_mib"]), "place": at_place(p)}
    if not p["largest_free_mib"]:
        return _("Needs %(needed)s, which takes a whole GPU; all that are large enough are in use.") % values
    return _("Needs %(needed)s, which takes a whole GPU; all are in use, the largest free slice is %(free)s%(place)s.") % values


def _slice_limit(p: Params) -> str:
    values = {"place": place(p), "free": gib(p["free_mib"]), "limit": p["limit"], "needed": gib(p["needed_mib"])}
    return _("Needs %(needed)s; %(place)s has %(free)s free but already carries %(limit)d jobs, the most for one GPU.") % values


def _foreign_use(p: Params) -> str:
    values = {"needed": _whole_or_gib(p), "foreign": gib(p["foreign_mib"]), "free": gib(p["largest_free_mib"]), "place": at_place(p)}
    return _("Needs %(needed)s; ghost use of %(foreign)s leaves %(free)s%(place)s.") % values


def _nodes_short(p: Params) -> str:
    return _("Needs %(needed)d nodes; %(free)d take work now.") % {"needed": p["needed"], "free": p["free"]}


def _cpu_busy(p: Params) -> str:
    values = {"needed": p["needed"], "free": p["free"], "limit": p["limit"], "node": p["node"]}
    if (p["needed"] or 1) > 1:
        return (
            _("Needs %(needed)d nodes with room for a job without GPU; %(free)d have it (%(node)s runs at most %(limit)d at once).")
            % values
        )
    return _("No node has room for one more job without GPU; %(node)s runs at most %(limit)d at once.") % values


def _no_gpu(p: Params) -> str:
    return ngettext(
        "No GPU is known: %(nodes)d node has joined, without one.",
        "No GPU is known: %(nodes)d nodes have joined, none with one.",
        p["nodes"],
    ) % {"nodes": p["nodes"]}


def _node_cordoned(p: Params) -> str:
    return ngettext(
        "%(node)s could run it but is cordoned.", "%(nodes)d nodes could run it but are cordoned, %(node)s among them.", p["nodes"]
    ) % {
        "node": p["node"],
        "nodes": p["nodes"],
    }


def _node_not_ready(p: Params) -> str:
    values = {"node": p["node"], "nodes": p["nodes"], "state": p["state"]}
    return (
        ngettext(
            "%(node)s could run it but is not ready (%(state)s).",
            "%(nodes)d nodes could run it but are not ready, %(node)s (%(state)s) among them.",
            p["nodes"],
        )
        % values
    )


def _gpu_unhealthy(p: Params) -> str:
    values = {"place": place(p), "cards": p["cards"], "state": p["state"]}
    return (
        ngettext(
            "%(place)s could run it but is out of service (%(state)s).",
            "%(cards)d GPUs could run it but are out of service, %(place)s (%(state)s) among them.",
            p["cards"],
        )
        % values
    )


def _memory_unknown(p: Params) -> str:
    return _("The memory size of %(place)s can't be read, so nothing is placed there.") % {"place": place(p) or _("the GPU")}


def _held(p: Params) -> str:
    values = {"by": p.get("by"), "why": p.get("why")}
    if not p.get("by"):
        return _("Held: %(why)s") % values if p.get("why") else _("Held until it is released.")
    if p.get("why"):
        return _("Held by %(by)s: %(why)s") % values
    return _("Held by %(by)s until it is released.") % values


def quota_sentence(p: Params) -> str:
    values = {"used": _amount(p.get("used")), "limit": _amount(p.get("limit")), "resets": moment(p.get("resets_at"))}
    what = p.get("what") or p.get("kind") or ("gpu_hours" if p.get("resets_at") else "")
    if what == "gpu_hours":
        return _("%(used)s of %(limit)s GPU-hours are used; the counter resets at %(resets)s. An admin can raise the limit.") % values
    if what in {"active_jobs", "max_active_jobs"}:
        return _("%(used)s of %(limit)s jobs that may be active at once are in use; one more can be submitted when one ends.") % values
    if what in {"cards", "held_cards", "max_cards"}:
        return _("%(used)s of %(limit)s GPUs that may be held at once are in use.") % values
    return _("The quota is reached: %(used)s of %(limit)s. An admin can raise the limit.") % values


def _amount(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else listed(value)


def _asked(kind: str) -> Sentence:
    texts = {
        "vendor": gettext_lazy("Asks for a GPU by %(asked)s; this one is by %(have)s."),
        "model": gettext_lazy("Asks for the GPU model %(asked)s; this one is %(have)s."),
        "arch": gettext_lazy("Asks for architecture %(asked)s; this GPU has %(have)s."),
        "cuda": gettext_lazy("Asks for CUDA %(asked)s or newer; this node runs %(have)s."),
        "driver": gettext_lazy("Asks for driver %(asked)s or newer; this node has %(have)s."),
        "label": gettext_lazy("Asks for the label %(asked)s; this node has %(have)s."),
        "never_cuda": gettext_lazy("No suitable node here runs CUDA %(asked)s or newer; here are: %(have)s."),
        "never_driver": gettext_lazy("No suitable node here has driver %(asked)s or newer; here are: %(have)s."),
        "never_label": gettext_lazy("No suitable node here has the label %(asked)s; its values here are: %(have)s."),
        "never_vendor": gettext_lazy("No GPU here is by %(asked)s; the vendors here are: %(have)s."),
        "never_model": gettext_lazy("No GPU here is a %(asked)s; the models here are: %(have)s."),
        "never_arch": gettext_lazy("No GPU here has architecture %(asked)s; here are: %(have)s."),
    }
    return lambda p: str(texts[kind]) % {"asked": p["asked"], "have": listed(p["have"])}


def cores(milli: int | None) -> str:
    """Thousandths of a core as cores: ``8``, ``1.5``."""
    return _("unknown") if milli is None else f"{milli / 1000:,.3f}".rstrip("0").rstrip(".")


def _host(kind: str) -> Sentence:
    texts = {
        "host_cpu": (
            gettext_lazy("Needs %(needed)s CPU cores on each node; the most that a suitable node has free is %(most)s%(place)s."),
            "needed_milli",
            "largest_free_milli",
            cores,
        ),
        "host_memory": (
            gettext_lazy("Needs %(needed)s of host memory on each node; the most that a suitable node has free is %(most)s%(place)s."),
            "needed_mib",
            "largest_free_mib",
            gib,
        ),
        "node_cpu": (
            gettext_lazy("Needs %(needed)s CPU cores; this node has %(most)s%(place)s."),
            "needed_milli",
            "have_milli",
            cores,
        ),
        "node_memory": (
            gettext_lazy("Needs %(needed)s of host memory; this node has %(most)s%(place)s."),
            "needed_mib",
            "have_mib",
            gib,
        ),
        "never_node_cpu": (
            gettext_lazy("No node can ever hold this: %(needed)s CPU cores are asked on each node, the largest has %(most)s%(place)s."),
            "needed_milli",
            "largest_milli",
            cores,
        ),
        "never_node_memory": (
            gettext_lazy(
                "No node can ever hold this: %(needed)s of host memory are asked on each node, the largest has %(most)s%(place)s."
            ),
            "needed_mib",
            "largest_mib",
            gib,
        ),
    }
    text, needed, most, shown = texts[kind]
    return lambda p: str(text) % {"needed": shown(p[needed]), "most": shown(p[most]), "place": at_place(p)}


def _never_gpu_memory(p: Params) -> str:
    values = {"needed": gib(p["needed_mib"]), "largest": gib(p["largest_nominal_mib"]), "place": at_place(p)}
    return _("No GPU can ever hold this: %(needed)s are asked on one GPU, the largest has %(largest)s%(place)s.") % values


def _never_gpu_count(p: Params) -> str:
    values = {"needed": p["needed"], "largest": p["largest"], "node": p.get("node"), "hint": p.get("hint_nodes")}
    text = _("No node can ever hold this: %(needed)d suitable GPUs are asked on one node, the most are %(largest)d (%(node)s).") % values
    return text + " " + _("It could run with --nodes %(hint)d.") % values if p.get("hint_nodes") else text


def _never_nodes(p: Params) -> str:
    values = {"needed": p["needed"], "have": p["have"], "per_node": p["per_node"]}
    return _("%(needed)d nodes with %(per_node)d suitable GPUs each are asked; %(have)d have so many.") % values


def _invalid_request(p: Params) -> str:
    return _("%(field)s is %(value)s; the least is %(least)s.") % {key: p.get(key) for key in ("field", "value", "least")}


def _requeued(p: Params) -> str:
    text = _("Back in the queue; the next pass looks for a place.")
    if p.get("reason"):
        text += " " + _("The last time: %(how)s") % {
            "how": end_reason_text(str(p["reason"]), {k: v for k, v in p.items() if k != "reason"})
        }
    return text


#: code of jobs.scheduler.reasons (and of the waits that services set) -> sentence.
REASONS: dict[str, Sentence] = {
    "gpu_memory": _gpu_memory,
    "gpu_count": _gpu_count,
    "whole_card_busy": _whole_card_busy,
    "slice_limit": _slice_limit,
    "foreign_use": _foreign_use,
    "blocked_by": lambda p: (
        _("The free GPUs%(place)s are kept for job %(job)s, which is ahead in the queue.") % {"place": at_place(p), "job": p["job"]}
    ),
    "above_share": lambda p: (
        _("Its owner holds %(held)s GPUs, the fair share now is %(share)s; others below theirs wait for such GPUs.")
        % {"held": p["held"], "share": p["share"]}
    ),
    "queue_full": lambda p: (
        _("Queue %(queue)s holds %(held)s GPUs; it may hold %(most)s.") % {"queue": p["queue"], "held": p["held"], "most": p["most"]}
    ),
    "nodes_short": _nodes_short,
    "cpu_busy": _cpu_busy,
    "no_node": lambda p: _("No node has joined yet."),
    "no_gpu": _no_gpu,
    "node_cordoned": _node_cordoned,
    "node_not_ready": _node_not_ready,
    "gpu_unhealthy": _gpu_unhealthy,
    "memory_unknown": _memory_unknown,
    "held": _held,
    "quota_exceeded": quota_sentence,
    "cards_exceeded": lambda p: (
        _("Needs %(needed)d GPUs; the quota has room for %(room)d more now.") % {"needed": p["needed"], "room": p["room"]}
    ),
    "restored": lambda p: _("The control plane came back from a backup; the job waits until all nodes have said what ran since."),
    "vendor": _asked("vendor"),
    "model": _asked("model"),
    "arch": _asked("arch"),
    "gpu_too_small": lambda p: (
        _("Needs %(needed)s on one GPU; this one has %(size)s.") % {"needed": gib(p["needed_mib"]), "size": gib(p["nominal_mib"])}
    ),
    "cuda": _asked("cuda"),
    "driver": _asked("driver"),
    "label": _asked("label"),
    "never_cuda": _asked("never_cuda"),
    "never_driver": _asked("never_driver"),
    "never_label": _asked("never_label"),
    "host_cpu": _host("host_cpu"),
    "host_memory": _host("host_memory"),
    "node_cpu": _host("node_cpu"),
    "node_memory": _host("node_memory"),
    "never_node_cpu": _host("never_node_cpu"),
    "never_node_memory": _host("never_node_memory"),
    "never_vendor": _asked("never_vendor"),
    "never_model": _asked("never_model"),
    "never_arch": _asked("never_arch"),
    "never_gpu_memory": _never_gpu_memory,
    "never_gpu_count": _never_gpu_count,
    "never_nodes": _never_nodes,
    "too_many_nodes": lambda p: _("%(needed)d nodes are asked; the pool has %(have)d.") % {"needed": p["needed"], "have": p["have"]},
    "uneven_nodes": lambda p: (
        _("%(gpu_count)d GPUs can't be spread evenly over %(nodes)d nodes; ask for a multiple.")
        % {"gpu_count": p["gpu_count"], "nodes": p["nodes"]}
    ),
    "invalid_request": _invalid_request,
    "grant_gone": lambda p: _("The place found on %(node)s was taken meanwhile; the next pass looks again.") % {"node": p["node"]},
    # set by services, not by the core
    "submitted": lambda p: _("Just submitted; the next pass looks for a place."),
    "requeued": _requeued,
    "not_checked": lambda p: _("The next pass looks for a place."),
    "released": lambda p: _("Just released; the next pass looks for a place."),
    "starting": lambda p: _("A place was found; the node is starting it."),
    "running": lambda p: _("It is running."),
    "stopping": lambda p: _("It is being stopped."),
}


def said(table: Mapping[str, Sentence], code: str, params: Params | None) -> str:
    try:
        return table[code](params or {})
    except (KeyError, TypeError, ValueError, AttributeError):
        # A code from a newer version, or params that an older one stored: the code is still better than a failed page.
        return code


def reason_text(code: str, params: Params | None = None) -> str:
    """Why a job waits, or why it can never run."""
    return said(REASONS, code, params)


# --- how it ended ---------------------------------------------------------------------------------------------


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
    EndReason.GPU_FAULT: _with(gettext_lazy("A GPU failed; the program is not to blame."), "node", _ON_NODE),
    EndReason.GPU_MEMORY: _with(
        gettext_lazy("Out of GPU memory: the program's need, not the GPU's fault. Ask for more memory or use a smaller batch."),
        "node",
        _ON_NODE,
    ),
    EndReason.SLICE_EXCEEDED: _with(
        gettext_lazy("Stopped: it used more GPU memory than it asked for."), "used_mib", gettext_lazy("It used %(used_mib)s."), gib
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
        reason_text(str(p["code"]), p.get("params") or p) if p.get("code") else _("No node of the pool can ever hold it.")
    ),
}


def end_reason_text(code: str, params: Params | None = None, *, exit_code: int | None = None) -> str:
    known = dict(params or {})
    if exit_code is not None:
        known.setdefault("exit_code", exit_code)
    return said(ENDS, code, known)


def end_text(job: Job) -> str:
    """How a job ended; empty while it hasn't."""
    return end_reason_text(job.end_reason, job.end_params, exit_code=job.exit_code) if job.end_reason else ""


def why_text(job: Job) -> tuple[str, Params, str]:
    """(code, params, sentence) of why a job is where it is: waiting for, doing, or ended by what."""
    if job.end_reason and job.is_final:
        return job.end_reason, job.end_params, end_text(job)
    code, params = (job.wait_code, job.wait_params) if job.state == "WAITING" else (job.state.lower(), {})
    return code, params, reason_text(code, params)


# --- what happened --------------------------------------------------------------------------------------------


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


EVENTS: dict[str, Sentence] = {
    "submitted": lambda p: _("Submitted."),
    "placed": _with(gettext_lazy("A place was found."), "nodes", gettext_lazy("On: %(nodes)s."), listed),
    "running": _with(gettext_lazy("The program started."), "node", _ON_NODE),
    "cancel_wanted": lambda p: _("A cancel was asked for."),
    "cancelled": lambda p: _("Cancelled."),
    "held": _with(gettext_lazy("Held."), "why", gettext_lazy("Because: %(why)s")),
    "released": lambda p: _("Released."),
    "stopping": _because(gettext_lazy("Being stopped.")),
    "requeued": _because(gettext_lazy("Put back into the queue.")),
    "succeeded": _because(gettext_lazy("Ended.")),
    "failed": _because(gettext_lazy("Failed.")),
    "recovered": _with(gettext_lazy("Taken in from a node after a restore; the backup did not know it."), "node", _ON_NODE),
    "adopted": _with(gettext_lazy("A node runs it since after the backup."), "node", _ON_NODE),
    "node_silent": _with(gettext_lazy("Its node is silent; the program may still run."), "node", _ON_NODE),
}


def event_text(event: JobEvent) -> str:
    """One line of a job's history."""
    return event_code_text(event.code, event.params)


def event_code_text(code: str, params: Params | None = None) -> str:
    if code in EVENTS:
        return said(EVENTS, code, params)
    # A move's event may carry the end reason itself as its code.
    return end_reason_text(code, params) if code in ENDS else reason_text(code, params)
