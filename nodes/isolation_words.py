"""Who jobs run as on a node and what they could reach there, in words: for its page, the list and the banner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from nodes.isolation import Told, is_ready, isolates_people

REACH = {
    "control_files": gettext_lazy("the control plane's files: its keys, its database, the administrator's token"),
    "agent_files": gettext_lazy("the agent's files: this node's credential, the specs of other jobs"),
    "other_jobs_files": gettext_lazy("the files of other people's jobs"),
    "processes": gettext_lazy("the memory and environment of other processes"),
    "signals": gettext_lazy("other processes, to end them"),
    "paths": gettext_lazy("names and modes of files in closed folders"),
    "home": gettext_lazy("the home folder of the account that jobs share"),
}
PROBLEMS = {
    "root_same": gettext_lazy("The agent runs as root and would run jobs as root. Set identity to shared or mapped in its agent.toml."),
    "not_root": gettext_lazy("Its identity needs an agent that runs as root, and this one does not."),
    "job_account_missing": gettext_lazy("identity is shared, but no job_account is named in its agent.toml."),
    "job_account_unknown": gettext_lazy("The account that job_account names does not exist there."),
    "job_account_system": gettext_lazy("The account that job_account names has a number below 1000; jobs never run as such."),
}
LIMITS = {
    "memory": gettext_lazy("memory"),
    "cpu": gettext_lazy("CPU"),
    "pids": gettext_lazy("number of processes"),
    "devices": gettext_lazy("only its own cards"),
}


def isolation_view(told: Told) -> dict[str, Any]:
    """For a template: ``tone``, ``icon``, ``word`` (short), ``text`` (a sentence), ``runs_as``, ``reach`` and ``limits``."""
    if told is None:
        return _look("", "help", _("not told yet"), _("The agent has not told yet who jobs run as."))
    if not told:
        text = _("The agent is of an older version and does not tell what jobs can reach; it counts as one that keeps nobody apart.")
        return _look("warn", "help", _("not told"), text)
    if not is_ready(told):
        problem = PROBLEMS.get(str(told.get("problem")))
        return _look("bad", "octagon", _("starts no job"), str(problem) if problem is not None else str(told.get("problem") or ""))
    if isolates_people(told):
        look = _look("ok", "okc", _("jobs kept apart"), _("People's jobs are kept apart on this node."))
    else:
        look = _look("warn", "warn", _("jobs not kept apart"), _("A job on this node could reach what is not its own."))
    limits = {str(LIMITS.get(name, name)): is_kept for name, is_kept in (told.get("limits") or {}).items()}
    return {
        **look,
        "reach": [str(REACH.get(str(word), word)) for word in told.get("open") or ()],
        "runs_as": runs_as(told),
        "limits": [name for name, is_kept in limits.items() if is_kept],
        "limits_open": [name for name, is_kept in limits.items() if not is_kept],
    }


def _look(tone: str, icon: str, word: str, text: str) -> dict[str, Any]:
    return {"tone": tone, "icon": icon, "word": word, "text": text, "reach": []}


def runs_as(told: Told) -> str:
    if not told:
        return ""
    if told.get("identity") == "mapped":
        return _("their owner's own Unix account")
    return str(told.get("account") or told.get("uid"))


def unisolated_text(names: Iterable[str]) -> str:
    """The banner about nodes that don't keep people's jobs apart; "" without any."""
    found = sorted(names)
    if not found:
        return ""
    shown = ", ".join(found[:5]) + (" …" if len(found) > 5 else "")
    return _(
        "On %(nodes)s people's jobs are not kept apart: a job there could read what is not its own. The page of each node says what. "
        "Only the first administrator's jobs run there unless NEBULA_ALLOW_UNISOLATED=1."
    ) % {"nodes": shown}
