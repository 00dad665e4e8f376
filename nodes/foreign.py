"""Processes on pooled cards that no job owns: since when, told of once in the card's history, and once politely to whoever runs them.

Looked at every 30 s with the runs of figures (nodes/trends.py); the memory between two looks is in Redis, and an emptied one begins
anew. Nobody is charged and nothing is stopped: the scheduler counts the memory as taken.

  nebula:foreign        hash  "<node>/<card UUID>/<pid>" → since when it is seen there, Unix time, and "told" once it was
  nebula:foreign:people hash  "<node>/<Unix user>" → "<since> <last seen>", Unix times: an episode of a person on a machine
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from nodes import telemetry
from nodes.formats import gib
from nodes.models import Gpu
from nodes.pool import FOREIGN_FLOOR_MIB
from quotas.notify import Kind, notify, staff

FOREIGN_KEY, PEOPLE_KEY = "nebula:foreign", "nebula:foreign:people"
#: A person who is back on a machine's cards within so long is in the same episode: a notebook is restarted, a sweep goes on.
OVER_S = 600
CARDS_NAMED = 8

#: An event for a card's history: node id, card id, kind, data.
Event = tuple[int, int, str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One on one card, with more memory than a driver takes for itself."""

    key: str
    node: int
    gpu: int
    user: str
    command: str
    pid: int
    used_mib: int


def foreign_look(nodes: Mapping[int, str], cards: Mapping[str, int], *, now: float) -> list[Event]:
    """One look at all nodes (id → name) and cards (UUID → id): tells people, and returns what belongs into the cards' histories."""
    before = telemetry.ask(lambda c: c.hgetall(FOREIGN_KEY), None)
    people = telemetry.ask(lambda c: c.hgetall(PEOPLE_KEY), None)
    if before is None or people is None:
        return []
    kept: dict[str, str] = {}
    events: list[Event] = []
    above: dict[str, list[Process]] = defaultdict(list)
    listed = telemetry.nodes_processes(nodes)
    for node, (_at, processes) in listed.items():
        for found in processes:
            uuid, pid, mib = str(found.get("uuid")), found.get("pid"), found.get("used_mib")
            if found.get("rank") is not None or uuid not in cards:
                continue
            key = f"{node}/{uuid}/{pid}"
            since, _space, told = before.get(key, f"{now:.0f}").partition(" ")
            if isinstance(mib, int) and mib > FOREIGN_FLOOR_MIB and isinstance(pid, int):
                user, command = str(found.get("user") or "")[:60], str(found.get("command") or "")[:60]
                one = Process(key=key, node=node, gpu=cards[uuid], user=user, command=command, pid=pid, used_mib=mib)
                above[f"{node}/{user}"].append(one)
                if not told:
                    events.append((node, one.gpu, "foreign", {"user": user, "command": command, "used_mib": mib}))
                told = "told"
            kept[key] = f"{since} {told}".strip()
    # A node that is silent keeps what it had: its processes did not end for that.
    kept |= {key: since for key, since in before.items() if _node_of(key) in nodes and _node_of(key) not in listed}
    telemetry.hash_replace(FOREIGN_KEY, before, kept)
    telemetry.hash_replace(PEOPLE_KEY, people, _episodes(people, above, nodes, listed, now=now))
    return events


def _node_of(key: str) -> int:
    head = key.partition("/")[0]
    return int(head) if head.isdigit() else 0


def _episodes(
    people: Mapping[str, str], above: Mapping[str, Sequence[Process]], nodes: Mapping[int, str], listed: Iterable[int], *, now: float
) -> dict[str, str]:
    """Who is in an episode now. Each that begins is told."""
    found: dict[str, str] = {}
    heard = set(listed)
    for key, value in people.items():
        since, _space, last = value.partition(" ")
        if _node_of(key) in nodes and (_node_of(key) not in heard or now - float(last or since) < OVER_S):
            found[key] = value if _node_of(key) in heard else f"{since} {now:.0f}"
    for key, processes in above.items():
        if key in found:
            found[key] = f"{found[key].partition(' ')[0]} {now:.0f}"
        else:
            found[key] = f"{now:.0f} {now:.0f}"
            _tell(nodes[processes[0].node], processes, now=now)
    return found


def _tell(node: str, processes: Sequence[Process], *, now: float) -> None:
    """Whoever has this Unix name, or the people who run the lab where nobody has. A few queries, once an episode."""
    largest = max(processes, key=lambda p: p.used_mib)
    indexes = dict(Gpu.objects.filter(pk__in={p.gpu for p in processes}).values_list("pk", "index"))
    params = {
        "node": node,
        "user": largest.user,
        "command": largest.command,
        "pid": largest.pid,
        "cards": sorted(set(indexes.values()))[:CARDS_NAMED],
        "used_mib": sum(p.used_mib for p in processes),
    }
    key = f"foreign:{largest.node}:{largest.user}:{now:.0f}"
    people = get_user_model().objects.filter(is_active=True)
    owners = list(people.filter(unix_name=largest.user).order_by("pk").values_list("pk", flat=True)) if largest.user else []
    kind = "foreign_yours" if owners else "foreign_unknown"
    notify(kind, owners or staff(), params, key=key, path=reverse("node-detail", args=(node,)), at=datetime.fromtimestamp(now, UTC))


# --- in words -------------------------------------------------------------------------------------------------------


def _words(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "node": params.get("node", "?"),
        "user": params.get("user") or "?",
        "command": params.get("command") or "?",
        "pid": params.get("pid", "?"),
        "memory": gib(params.get("used_mib")),
        "cards": ", ".join(f"gpu{index}" for index in params.get("cards", ())) or "?",
    }


def _yours(params: Mapping[str, Any]) -> str:
    return _(
        "%(command)s (PID %(pid)s) holds %(memory)s on %(cards)s of %(node)s without a job. Nothing is charged and nothing is stopped, "
        "but jobs of others can't have that memory. When you can, end it there and submit it as a job."
    ) % _words(params)


def _unknown(params: Mapping[str, Any]) -> str:
    return _(
        "%(command)s (PID %(pid)s) of the Unix user %(user)s holds %(memory)s on %(cards)s of %(node)s without a job. Nobody here has that "
        "Unix name: set it for the person in the administration, and they are told themselves the next time."
    ) % _words(params)


KINDS = {
    "foreign_yours": Kind(
        event="node",
        title=gettext_lazy("Your program uses GPUs of {node} beside the scheduler"),
        text=_yours,
        tone="warn",
        icon="ghost",
    ),
    "foreign_unknown": Kind(
        event="node", title=gettext_lazy("Ghost use on {node}: {user} is nobody here"), text=_unknown, tone="warn", icon="ghost"
    ),
}


# --- to look at -----------------------------------------------------------------------------------------------------


def foreign_rows(gpus: Iterable[Gpu]) -> list[dict[str, Any]]:
    """The processes on these cards (of one node) that no job owns, largest first: who, what, how much, since when. No query."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    if not by_uuid:
        return []
    node = next(iter(by_uuid.values())).node_id
    found = telemetry.nodes_processes([node]).get(node)
    if found is None:
        return []
    since = telemetry.ask(lambda c: c.hgetall(FOREIGN_KEY), {}) or {}
    rows = []
    for process in found[1]:
        gpu = by_uuid.get(str(process.get("uuid")))
        if gpu is None or process.get("rank") is not None:
            continue
        seen = since.get(f"{node}/{gpu.uuid}/{process.get('pid')}", "").partition(" ")[0]
        rows.append(
            {
                "gpu": gpu,
                "pid": process.get("pid"),
                "user": process.get("user"),
                "command": str(process.get("command") or "")[:60],
                "mib": process.get("used_mib"),
                "since": datetime.fromtimestamp(float(seen), UTC) if seen else None,
            }
        )
    return sorted(rows, key=lambda row: (-(row["mib"] or 0), row["pid"] or 0))
