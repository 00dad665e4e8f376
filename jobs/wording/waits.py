"""Why a job waits, and why it can never run."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs.wording.numbers import Params, Sentence, at_place, cores, gib, gibs, listed, place
from jobs.wording.resets import reset_text_of


def _foreign_use(p: Params) -> str:
    size, free = gibs(p["needed_mib"], p["largest_free_mib"])
    needed = _("a whole GPU") if p["needed_mib"] is None else _("%(size)s on one GPU") % {"size": size}
    values = {"needed": needed, "foreign": gib(p["foreign_mib"]), "free": free, "place": at_place(p)}
    return _("Needs %(needed)s; ghost use of %(foreign)s leaves %(free)s%(place)s.") % values


def _gpu_memory(p: Params) -> str:
    needed, free = gibs(p["needed_mib"], p["largest_free_mib"])
    values = {"needed": needed, "free": free, "place": at_place(p), "count": p.get("count") or 1}
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
    needed, free = gibs(p["needed_mib"], p["largest_free_mib"])
    values = {"needed": needed, "free": free, "place": at_place(p)}
    if not p["largest_free_mib"]:
        return _("Needs %(needed)s, which takes a whole GPU; all that are large enough are in use.") % values
    return _("Needs %(needed)s, which takes a whole GPU; all are in use, the largest free slice is %(free)s%(place)s.") % values


def _slice_limit(p: Params) -> str:
    needed, free = gibs(p["needed_mib"], p["free_mib"])
    values = {"place": place(p), "free": free, "limit": p["limit"], "needed": needed}
    return _("Needs %(needed)s; %(place)s has %(free)s free but already carries %(limit)d jobs, the most for one GPU.") % values


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


def _node_unsafe(p: Params) -> str:
    values = {"node": p["node"], "nodes": p["nodes"]}
    return (
        ngettext(
            "%(node)s could run it, but can't start a job safely; its page says why.",
            "%(nodes)d nodes could run it, but can't start a job safely; the page of %(node)s says why.",
            p["nodes"],
        )
        % values
    )


def _access(text: Any) -> Sentence:
    return lambda p: str(text) % {"node": p["node"]}


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
    values = {"used": _amount(p.get("used")), "limit": _amount(p.get("limit")), "resets": reset_text_of(p.get("resets_at"))}
    what = p.get("what") or p.get("kind") or ("gpu_hours" if p.get("resets_at") else "")
    if what == "gpu_hours":
        return _("%(used)s of %(limit)s GPU-hours are used; the counter resets at %(resets)s. Ask for more under Quota.") % values
    if what in {"active_jobs", "max_active_jobs"}:
        return (
            _("%(used)s of %(limit)s jobs that may be active at once are in use. Another can be submitted when fewer are active.") % values
        )
    if what in {"cards", "held_cards", "max_cards"}:
        return _("%(used)s of %(limit)s GPUs that may be held at once are in use.") % values
    if what == "model_cards":
        return _(
            "At most %(limit)s cards of %(model)s may be held at once; this asks for %(needed)s. "
            "Ask for fewer, for another model, or for a higher limit."
        ) % {**values, "model": p.get("model"), "needed": p.get("needed")}
    return _("The quota is reached: %(used)s of %(limit)s. Ask for more under Quota.") % values


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
        "never_model": gettext_lazy("No GPU here is of the model %(asked)s; the models here are: %(have)s."),
        "never_arch": gettext_lazy("No GPU here has architecture %(asked)s; here are: %(have)s."),
    }
    unknown = {
        "arch": gettext_lazy("Asks for architecture %(asked)s; this GPU does not tell its own."),
        "cuda": gettext_lazy("Asks for CUDA %(asked)s or newer; this node does not tell what it runs."),
        "driver": gettext_lazy("Asks for driver %(asked)s or newer; this node does not tell which it has."),
        "label": gettext_lazy("Asks for the label %(asked)s; this node does not carry it."),
    }

    def sentence(p: Params) -> str:
        if p["have"] is None and kind in unknown:
            return str(unknown[kind]) % {"asked": p["asked"]}
        return str(texts[kind]) % {"asked": p["asked"], "have": '""' if p["have"] == "" else listed(p["have"])}

    return sentence


def _cores(one: int | None, other: int | None) -> tuple[str, str]:
    return cores(one), cores(other)


def _host(kind: str) -> Sentence:
    texts = {
        "host_cpu": (
            gettext_lazy("Needs %(needed)s CPU cores on each node; the most that a suitable node has free is %(most)s%(place)s."),
            "needed_milli",
            "largest_free_milli",
            _cores,
        ),
        "host_memory": (
            gettext_lazy("Needs %(needed)s of host memory on each node; the most that a suitable node has free is %(most)s%(place)s."),
            "needed_mib",
            "largest_free_mib",
            gibs,
        ),
        "node_cpu": (
            gettext_lazy("Needs %(needed)s CPU cores; this node has %(most)s%(place)s."),
            "needed_milli",
            "have_milli",
            _cores,
        ),
        "node_memory": (
            gettext_lazy("Needs %(needed)s of host memory; this node has %(most)s%(place)s."),
            "needed_mib",
            "have_mib",
            gibs,
        ),
        "never_node_cpu": (
            gettext_lazy("No node can ever hold this: %(needed)s CPU cores are asked on each node, the largest has %(most)s%(place)s."),
            "needed_milli",
            "largest_milli",
            _cores,
        ),
        "never_node_memory": (
            gettext_lazy(
                "No node can ever hold this: %(needed)s of host memory are asked on each node, the largest has %(most)s%(place)s."
            ),
            "needed_mib",
            "largest_mib",
            gibs,
        ),
    }
    text, needed, most, shown = texts[kind]

    def how(p: Params) -> str:
        asked, had = shown(p[needed], p[most])
        return str(text) % {"needed": asked, "most": had, "place": at_place(p)}

    return how


def _never_gpu_memory(p: Params) -> str:
    needed, largest = gibs(p["needed_mib"], p["largest_nominal_mib"])
    values = {"needed": needed, "largest": largest, "place": at_place(p)}
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
    "node_unsafe": _node_unsafe,
    "gpu_unhealthy": _gpu_unhealthy,
    "memory_unknown": _memory_unknown,
    "held": _held,
    "quota_exceeded": quota_sentence,
    "cards_exceeded": lambda p: (
        _("Needs 1 GPU; the quota has room for no more now.")
        if (p["needed"], p["room"]) == (1, 0)
        else _("Needs %(needed)d GPUs; the quota has room for %(room)d more now.") % {"needed": p["needed"], "room": p["room"]}
    ),
    "model_cards_exceeded": lambda p: (
        _("Needs %(needed)d cards of %(model)s; of %(limit)d that the quota allows at once, %(room)d are free.")
        % {"needed": p["needed"], "model": p["model"], "limit": p["limit"], "room": p["room"]}
    ),
    "restored": lambda p: _("The control plane came back from a backup; the job waits until all nodes have said what ran since."),
    "backing_off": lambda p: (
        ngettext(
            "%(times)d launch failed by no fault of the job; it is tried again %(pause)d s later, on another node if one is free.",
            "%(times)d launches failed by no fault of the job; it is tried again %(pause)d s later, on another node if one is free.",
            p["times"],
        )
        % {"times": p["times"], "pause": p["pause_s"]}
    ),
    "vendor": _asked("vendor"),
    "model": _asked("model"),
    "arch": _asked("arch"),
    "gpu_too_small": lambda p: (
        _("Needs %(needed)s on one GPU; this one has %(size)s.")
        % dict(zip(("needed", "size"), gibs(p["needed_mib"], p["nominal_mib"]), strict=True))
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
    "account": _access(gettext_lazy("On %(node)s jobs run as their owner's own Unix account, and this owner has none.")),
    "isolation": _access(
        gettext_lazy("%(node)s does not keep people's jobs apart: only the installation's first administrator may run jobs there.")
    ),
    "secret_isolation": _access(gettext_lazy("This job gets secrets, and %(node)s does not keep people's jobs apart.")),
    "shared_address": _access(
        gettext_lazy("Other nodes can't call %(node)s at the address that it tells, so it takes no part of a job on several nodes.")
    ),
    "never_shared_address": _access(
        gettext_lazy(
            "The parts of a job on several nodes must reach each other, and the nodes that could run this (%(node)s is one) tell an "
            "address that only they themselves can call. Set address in their agent.toml."
        )
    ),
    "never_account": _access(
        gettext_lazy(
            "On the nodes that could run this (%(node)s is one), jobs run as their owner's own Unix account, and this owner has none. "
            "An administrator can name one: Administration → Users, or manage.py users_map."
        )
    ),
    "never_isolation": _access(
        gettext_lazy(
            "The nodes that could run this (%(node)s is one) do not keep people's jobs apart: jobs there could read each other's files. "
            "So only the installation's first administrator may run jobs on them. An administrator can set up an account for jobs "
            "there (identity in agent.toml), or allow it with NEBULA_ALLOW_UNISOLATED=1."
        )
    ),
    "never_secret_isolation": _access(
        gettext_lazy(
            "This job gets secrets, and the nodes that could run it (%(node)s is one) do not keep people's jobs apart. Leave the secrets "
            "out, or ask an administrator to set up an account for jobs there (identity in agent.toml) or to set "
            "NEBULA_SECRETS_ON_SHARED_NODES=1."
        )
    ),
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
    "not_checked": lambda p: _("The next pass looks for a place."),
    "released": lambda p: _("Just released; the next pass looks for a place."),
    "starting": lambda p: _("A place was found; the node is starting it."),
    "running": lambda p: _("It is running."),
    "stopping": lambda p: _("It is being stopped."),
}
