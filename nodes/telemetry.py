"""The latest word from each node, in Redis. Hints only: every function works with Redis away (None) or empty.

Keys, all of ``settings.LIVE_REDIS_URL``:
  nebula:seen          hash  node id → "<unix time> <session> <seq> <uptime>": the last sync that was accepted
  nebula:watch         hash  checked_at, epoch: when liveness was checked last, and since when it has been watching
  nebula:health:<node> hash  card UUID → JSON of its slow facts with told_at, gone after 15 min
  nebula:gpus:<node>   JSON  {"at": unix time, "gpus": {uuid: status}, "host": {…}, "skew_s": …; both may be absent}, gone after 60 s
  nebula:procs:<node>  JSON  {"at": unix time, "processes": [{uuid, pid, …}]}: the last list of processes on its cards, gone after 120 s

The card statuses of a node are one value under the node's own key: a node can't overwrite another's, whatever UUIDs it
names, and a page of 1,000 cards reads one value a node in one round trip.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from agent.protocol import GpuHealth, GpuProcess, GpuStatus, HostStatus
from nodes.models import Gpu

log = logging.getLogger(__name__)

T = TypeVar("T")

SEEN_KEY = "nebula:seen"
WATCH_KEY = "nebula:watch"
STATUS_TTL_S = 60
CARDS_MAX = 1024  # of a sync
HEALTH_TTL_S = 900  # they come every five minutes at least
PROCESSES_TTL_S = 120
#: More processes on the cards of one node are not kept: it is no list that anybody reads.
PROCESSES_MAX = 512
#: A node whose clock differs by so much from ours is told of: times in its own logs would mislead.
SKEW_S = 30.0
#: A status older than this is shown as stale: three missed syncs.
STALE_AFTER_S = 15
#: After a failure Redis is left alone for so long, so that an absent Redis costs a request nothing.
REST_S = 1.0
#: So long a connection and an answer may take.
CONNECT_S = 0.2
ANSWER_S = 0.3

_STATUS_FIELDS = tuple(field.name for field in fields(GpuStatus) if field.name != "uuid")
_lock = threading.Lock()
_client: redis.Redis | None = None
_client_of: tuple[str, int] | None = None  # URL and process: a fork must not share its parent's sockets
_rest_until = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The last accepted sync of a node: Unix time by the server's clock, where the agent's session was, and how long the node had
    been up by then (None: its agent did not tell)."""

    at: float
    session: str = ""
    seq: int = 0
    uptime_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the liveness check left for the next one; both None when Redis is empty."""

    checked_at: float | None = None
    epoch: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """What a node's last sync told: Unix time by the server's clock, card UUID → status, and the machine's own figures."""

    at: float
    gpus: Mapping[str, Mapping[str, Any]]
    host: Mapping[str, Any] | None = None
    skew_s: float | None = None  # how far the node's clock is behind ours; negative: ahead

    @property
    def is_skewed(self) -> bool:
        return self.skew_s is not None and abs(self.skew_s) >= SKEW_S


def client() -> redis.Redis | None:
    """The shared client with short time-outs; None while the breaker rests. Commands may raise ``redis.RedisError``."""
    global _client, _client_of
    if time.monotonic() < _rest_until:
        return None
    key = (settings.LIVE_REDIS_URL, os.getpid())
    if _client_of != key:
        with _lock:
            if _client_of != key:
                _client = redis.Redis.from_url(
                    settings.LIVE_REDIS_URL,
                    decode_responses=True,
                    socket_connect_timeout=CONNECT_S,
                    socket_timeout=ANSWER_S,
                    # Once more and at once: a pooled connection to a Redis that was restarted is dead at its first use.
                    retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
                )
                _client_of = key
    return _client


def ask(command: Callable[[redis.Redis], T], default: T) -> T:
    """What ``command`` answers; ``default`` when Redis is away. Never raises for Redis's sake; ≤ 0.6 s, then rests 1 s."""
    global _rest_until
    connection = client()
    if connection is None:
        return default
    try:
        return command(connection)
    except (redis.RedisError, OSError) as error:
        _rest_until = time.monotonic() + REST_S
        log.warning("Redis does not answer (%s); going on without it", error)
        return default


def hash_replace(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Make a hash from what it was into what it is now, by the fields that differ."""
    changed = {name: value for name, value in now.items() if before.get(name) != value}
    gone = [name for name in before if name not in now]

    def write(c: redis.Redis) -> None:
        pipe = c.pipeline(transaction=False)
        if changed:
            pipe.hset(key, mapping=changed)
        if gone:
            pipe.hdel(key, *gone)
        pipe.execute()

    if changed or gone:
        ask(write, None)


def is_away() -> bool:
    """True if Redis does not answer a PING now."""
    return not ask(lambda c: bool(c.ping()), False)


# --- who was heard of, and when ----------------------------------------------------------------------------------------


def node_last_seen(node_id: int) -> Seen | None:
    """The last accepted sync of this node; None if Redis is away or has none."""
    return _seen_parse(ask(lambda c: c.hget(SEEN_KEY, str(node_id)), None))


def nodes_last_seen() -> dict[int, Seen] | None:
    """The same of all nodes, in one round trip. None = Redis is away (an empty one gives an empty dict)."""
    return _all_parse(ask(lambda c: c.hgetall(SEEN_KEY), None))


def sync_store(
    *,
    node_id: int,
    session: str,
    seq: int,
    at: float,
    statuses: Iterable[GpuStatus],
    host: HostStatus | None = None,
    processes: Sequence[GpuProcess] | None = None,
    health: Sequence[GpuHealth] = (),
    skew_s: float | None = None,
    uptime_s: float | None = None,
) -> bool:
    """Keep that the node was heard of at ``at`` (Unix time) and what it is like; ``processes`` None = not listed this time,
    ``health``: the slow facts of the cards where they are told this time, ``skew_s``: how far the node's clock is behind ours.

    One round trip, no SQL. False if Redis is away.
    """
    document: dict[str, Any] = {"at": at, "gpus": {status.uuid: _status_json(status) for status in statuses}}
    if host is not None:
        document["host"] = host.to_json()
    if skew_s is not None and math.isfinite(skew_s):
        document["skew_s"] = round(skew_s, 1)

    seen = f"{at:.3f} {session} {seq}" + ("" if uptime_s is None else f" {uptime_s:.3f}")

    def write(c: redis.Redis) -> bool:
        pipe = c.pipeline(transaction=False)
        pipe.hset(SEEN_KEY, str(node_id), seen)
        pipe.set(_gpus_key(node_id), json.dumps(document, separators=(",", ":")), ex=STATUS_TTL_S)
        if processes is not None:
            listed = {"at": at, "processes": [process.to_json() for process in processes[:PROCESSES_MAX]]}
            pipe.set(_processes_key(node_id), json.dumps(listed, separators=(",", ":")), ex=PROCESSES_TTL_S)
        if health:
            # Field by field: a sync tells of the cards where something changed, and all of them every five minutes.
            pipe.hset(_health_key(node_id), mapping={facts.uuid: json.dumps(_health_json(facts, at)) for facts in health[:CARDS_MAX]})
            pipe.expire(_health_key(node_id), HEALTH_TTL_S)
        pipe.execute()
        return True

    return ask(write, False)


def events_counted(node_id: int, events: int) -> int:
    """How many events this node has told in this hour, these included; these alone while Redis is away. One round trip."""
    key = f"nebula:events:{node_id}:{int(time.time()) // 3600}"

    def count(c: redis.Redis) -> int:
        pipe = c.pipeline(transaction=False)
        pipe.incrby(key, events)
        pipe.expire(key, 3600)
        return int(pipe.execute()[0])

    return ask(count, events)


def node_forget(node_id: int) -> None:
    """Drop what is kept of a node that left."""
    keys = (_gpus_key(node_id), _processes_key(node_id), _health_key(node_id))
    ask(lambda c: c.pipeline(transaction=False).hdel(SEEN_KEY, str(node_id)).delete(*keys).execute(), [])


def watch_read() -> tuple[dict[int, Seen], Watch] | None:
    """All last syncs and the liveness check's own memory, in one round trip; None if Redis is away."""

    def read(c: redis.Redis) -> list[Any] | None:
        pipe = c.pipeline(transaction=False)
        pipe.hgetall(SEEN_KEY)
        pipe.hmget(WATCH_KEY, ["checked_at", "epoch"])
        return pipe.execute()

    answer = ask(read, None)
    if answer is None:
        return None
    checked_at, epoch = (_float(value) for value in answer[1])
    return _all_parse(answer[0]) or {}, Watch(checked_at=checked_at, epoch=epoch)


def watch_store(watch: Watch) -> bool:
    """False if Redis is away."""
    mapping = {"checked_at": f"{watch.checked_at or 0:.3f}", "epoch": f"{watch.epoch or 0:.3f}"}
    return ask(lambda c: c.hset(WATCH_KEY, mapping=mapping) is not None, False)


# --- cards ----------------------------------------------------------------------------------------------------------------


def nodes_statuses(node_ids: Iterable[int], *, now: float | None = None) -> dict[int, dict[str, dict[str, Any]]]:
    """Node id → card UUID → latest status, in one round trip; nodes without one are left out.

    A status has all fields of ``GpuStatus`` but the UUID (None = the hardware does not tell), plus ``sampled_at``
    (Unix time) and ``stale`` (older than 15 s).
    """
    return statuses_of(nodes_latest(node_ids), now=now)


def statuses_of(latest: Mapping[int, Latest], *, now: float | None = None) -> dict[int, dict[str, dict[str, Any]]]:
    """The same from what was read already."""
    now = time.time() if now is None else now
    unsaid = {**dict.fromkeys(_STATUS_FIELDS), "foreign_mib": 0, "throttle": []}  # what a status leaves out
    found: dict[int, dict[str, dict[str, Any]]] = {}
    for pk, told in latest.items():
        extra = {"sampled_at": told.at, "stale": now - told.at >= STALE_AFTER_S}
        found[pk] = {uuid: {**unsaid, **status, **extra} for uuid, status in told.gpus.items()}
    return found


def nodes_latest(node_ids: Iterable[int]) -> dict[int, Latest]:
    """What the last sync of each node told, in one round trip; nodes without one in the last minute are left out."""
    found: dict[int, Latest] = {}
    for pk, document in _documents(node_ids, _gpus_key).items():
        try:
            skew = document.get("skew_s")
            found[pk] = Latest(
                at=float(document["at"]),
                gpus=dict(document["gpus"]),
                host=document.get("host"),
                skew_s=None if skew is None else float(skew),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # another version wrote it; the next sync replaces it
    return found


def gpus_health(gpus: Iterable[Gpu]) -> dict[int, dict[str, Any]]:
    """Gpu id → its slow facts (the fields of ``GpuHealth`` that it tells) and ``told_at`` (Unix time), in one round trip;
    cards that told none in the last 15 minutes are left out."""
    return cards_health([(gpu.pk, gpu.node_id, gpu.uuid) for gpu in gpus])


def cards_health(rows: Sequence[tuple[int, int, str]]) -> dict[int, dict[str, Any]]:
    """The same for (card id, node id, UUID), where rows as objects would cost more than all the rest."""
    nodes = list(dict.fromkeys(node_id for _, node_id, _ in rows))

    def read(c: redis.Redis) -> list[Any]:
        pipe = c.pipeline(transaction=False)
        for node_id in nodes:
            pipe.hgetall(_health_key(node_id))
        return pipe.execute()

    told = dict(zip(nodes, ask(read, []), strict=False)) if nodes else {}
    found: dict[int, dict[str, Any]] = {}
    for pk, node_id, uuid in rows:
        with contextlib.suppress(ValueError, TypeError):
            facts = json.loads((told.get(node_id) or {}).get(uuid, ""))
            if time.time() - facts["told_at"] < HEALTH_TTL_S:
                found[pk] = facts
    return found


def nodes_processes(node_ids: Iterable[int]) -> dict[int, tuple[float, list[dict[str, Any]]]]:
    """Node id → when its processes on cards were listed last (Unix time) and the list, each with the fields of ``GpuProcess``
    that were told. One round trip; nodes without a list in the last two minutes are left out."""
    found: dict[int, tuple[float, list[dict[str, Any]]]] = {}
    for pk, document in _documents(node_ids, _processes_key).items():
        try:
            found[pk] = float(document["at"]), [dict(process) for process in document["processes"]]
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _documents(node_ids: Iterable[int], key_of: Callable[[int], str]) -> dict[int, Any]:
    wanted = list(dict.fromkeys(node_ids))
    if not wanted:
        return {}
    found = {}
    for pk, text in zip(wanted, ask(lambda c: c.mget([key_of(pk) for pk in wanted]), []), strict=False):
        with contextlib.suppress(ValueError):
            if text:
                found[pk] = json.loads(text)
    return found


def gpus_latest(gpus: Iterable[int | Gpu], *, now: float | None = None) -> dict[int, dict[str, Any]]:
    """Gpu id → latest status; cards without one are left out. Given ids it causes one SQL query, given rows none."""
    wanted = list(gpus)
    rows = [(gpu.pk, gpu.node_id, gpu.uuid) for gpu in wanted if isinstance(gpu, Gpu)]
    ids = [gpu for gpu in wanted if isinstance(gpu, int)]
    if ids and client() is not None:
        rows += _gpu_names(ids)
    statuses = nodes_statuses((node_id for _, node_id, _ in rows), now=now)
    return {pk: status for pk, node_id, uuid in rows if (status := statuses.get(node_id, {}).get(uuid)) is not None}


def _gpu_names(ids: list[int]) -> list[tuple[int, int, str]]:
    # A pass asks for all cards there are: past a few hundred ids, reading the whole small table beats a long IN list.
    query = Gpu.objects.order_by()
    if len(ids) <= 500:
        query = query.filter(pk__in=ids)
    wanted = set(ids)
    return [row for row in query.values_list("pk", "node_id", "uuid") if row[0] in wanted]


def _health_key(node_id: int) -> str:
    return f"nebula:health:{node_id}"


def _health_json(health: GpuHealth, at: float) -> dict[str, Any]:
    found = health.to_json()
    found.pop("uuid", None)
    return {**found, "told_at": round(at, 3)}


def _gpus_key(node_id: int) -> str:
    return f"nebula:gpus:{node_id}"


def _processes_key(node_id: int) -> str:
    return f"nebula:procs:{node_id}"


def _status_json(status: GpuStatus) -> dict[str, Any]:
    found = status.to_json()
    found.pop("uuid", None)
    return found


def _float(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _seen_parse(text: str | None) -> Seen | None:
    parts = (text or "").split(" ")
    try:
        return Seen(at=float(parts[0]), session=parts[1], seq=int(parts[2]), uptime_s=float(parts[3]) if len(parts) > 3 else None)
    except (ValueError, IndexError):
        return None


def _all_parse(answer: Mapping[str, str] | None) -> dict[int, Seen] | None:
    if answer is None:
        return None
    pairs = ((key, _seen_parse(text)) for key, text in answer.items())
    return {int(key): seen for key, seen in pairs if seen is not None and key.isdigit()}
