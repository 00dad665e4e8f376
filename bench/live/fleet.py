"""A fleet of synthetic agents against a real control plane: real enrolments, real syncs over HTTP, from one process.

python -m bench.live.fleet [--nodes 200] [--gpus 8] [--seconds 60] [--interval 5] [--database postgres|sqlite] [--json]

Starts a control plane of its own (`manage.py up` with its embedded Redis; PostgreSQL that NEBULA_DATABASE_URL names, else an
embedded one), or drives the running one of ``--url`` with an administrator's ``--token-file``: that one needs
NEBULA_THROTTLE_ANONYMOUS wide enough for the enrolments, and keeps the nodes (drained; they fall silent at the end).

Each agent keeps one connection, as the real one does, and reports on all its cards every interval, with figures that change;
the agents are spread evenly over the interval. A sync's time is from its first byte sent to its last byte received. How late the
sends were is told apart: that is this process's own doing, or a neighbour's.

false_alarms: reporting nodes that were called silent at some time of the run. Afterwards a few nodes fall silent while the others go
on: silent_least_s and silent_most_s tell after how long they were called UNKNOWN, by the server's own clock.

cpu_ms_per_sync is of the web process, all of it; nodes_per_core what one core of such a web process would serve at that interval.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.protocol import EnrolRequest, GpuInfo, GpuStatus, HostStatus, Inventory, SyncRequest
from bench.live.control import ISOLATION, percentile
from bench.live.grid import Grid
from bench.live.proc import cpu_s, pss_mib, tree
from client.sdk import NebulaClient
from nebulagrid.embedded import postgres_temporary

WARM_S = 10.0
PROCESSES = ("web", "worker", "beat", "redis")
JOINING = 8  # enrolments at once
SILENT = 10  # nodes that fall silent at the end, at most half of them
LISTEN_S = 25.0  # how long that is watched; a node is UNKNOWN after 15 s


class FleetError(RuntimeError):
    """The control plane answered what no agent can go on with."""


class Link:
    """One HTTP/1.1 connection that is kept. No client library: its own work would be a good part of what is measured."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, authorization: str = "") -> tuple[int, bytes]:
        """(status, body). A connection that the server closed meanwhile is opened anew, once."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        )
        if authorization:
            head += f"Authorization: {authorization}\r\n"
        message = head.encode() + b"\r\n" + body
        was_open = self._streams is not None
        try:
            return await self._exchange(message)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            if not was_open:
                raise
            return await self._exchange(message)

    async def _exchange(self, message: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(message)
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head[1:] if b": " in line)
        return int(head[0].split()[1]), await reader.readexactly(int(fields.get(b"content-length", b"0")))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


@dataclass(slots=True)
class Seen:
    """What came of the syncs. ``sent``: (time of the send, ms until it was answered, ms that the send was late)."""

    sent: list[tuple[float, float, float]] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    body_bytes: int = 0


class Agent:
    """A node with ``gpus`` cards that runs nothing."""

    def __init__(self, number: int, *, gpus: int, link: Link, seen: Seen) -> None:
        self._link, self._seen = link, seen
        self.name = f"fleet-{number:04}"
        self._uuids = [f"GPU-{number:08x}-fleet-{card}" for card in range(gpus)]
        self._rng = random.Random(number)
        self._who, self._seq, self._is_inventory_due = "", 0, True

    async def join(self, token: str) -> None:
        """Enrol; ``name`` is the node's from then on."""
        status, body = await self._link.post("/api/agent/v1/enroll", _json(EnrolRequest(token=token, hostname=self.name).to_json()))
        if status != 201:
            raise FleetError(f"enrolment of {self.name}: {status} {body[:200]!r}")
        joined = json.loads(body)
        self._who = f"Node {joined['node_id']}:{joined['credential']}"
        self.name = str(joined["name"])

    def _body(self) -> bytes:
        self._seq += 1
        used = self._rng.randrange(0, 24_000)
        gpus = tuple(
            GpuStatus(
                uuid=uuid, used_mib=used, reserved_mib=480, util_pct=self._rng.randrange(101), mem_util_pct=30, temp_c=60 + card,
                power_w=300 + card, fan_pct=40, core_mhz=2520, mem_mhz=10_501,
            )
            for card, uuid in enumerate(self._uuids)
        )  # fmt: skip
        inventory = None
        if self._is_inventory_due:
            cards = (
                GpuInfo(uuid=uuid, index=at, model="Fleet RTX 4090", vendor="nvidia", total_mib=24_564, simulated=True)
                for at, uuid in enumerate(self._uuids)
            )
            inventory = Inventory(
                hostname=self.name, gpus=tuple(cards), cpu_cores=32, memory_mib=128 * 1024, simulated=True, isolation=ISOLATION
            )
        host = HostStatus(cpu_pct=self._rng.randrange(101), memory_mib=40_000, disk_free_mib=500_000, disk_total_mib=900_000)
        sync = SyncRequest(session=self.name, boot_id=self.name, seq=self._seq, inventory=inventory, gpus=gpus, host=host)
        return _json(sync.to_json(columns=True))

    async def sync(self, *, late_s: float = 0.0) -> None:
        body = self._body()
        began = time.perf_counter()
        status, answer = await self._link.post("/api/agent/v1/sync", body, self._who)
        spent = time.perf_counter() - began
        if status != 200:
            self._seen.refused[status] = self._seen.refused.get(status, 0) + 1
            return
        self._is_inventory_due = bool(json.loads(answer).get("want_inventory"))
        self._seen.sent.append((began, 1000 * spent, 1000 * late_s))
        self._seen.body_bytes = len(body)

    async def run(self, *, begin: float, until: float, interval: float) -> None:
        """Syncs at begin, begin + interval, … by the clock of ``time.perf_counter``."""
        due = begin
        while due < until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            late = time.perf_counter() - due
            await self.sync(late_s=max(0.0, late))
            due = max(due + interval, time.perf_counter())  # one that took longer than the interval leaves none to make up for

    def close(self) -> None:
        self._link.close()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Processor seconds of each process of the control plane so far, and memory of web in MiB."""

    cpu: dict[str, float]
    web_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the control plane says of a node: its state since when, and when it was last heard of."""

    state: str
    since: datetime
    heard: datetime | None

    @property
    def silent_s(self) -> float | None:
        """After how many seconds of silence it was called UNKNOWN; None = it was not."""
        return (self.since - self.heard).total_seconds() if self.state == "UNKNOWN" and self.heard else None


class Plane:
    """The control plane that is driven; ``grid`` None = somebody else's, of which no process is watched."""

    def __init__(self, url: str, client: NebulaClient, grid: Grid | None = None, database_pid: int | None = None) -> None:
        self.url, self.client, self._grid, self._database_pid = url, client, grid, database_pid

    def watched(self) -> Watched:
        if self._grid is None:
            return Watched(cpu={}, web_mib=0.0)
        pids = {name: [self._grid.pid(name)] for name in PROCESSES}
        if self._database_pid is not None:
            pids["database"] = tree(self._database_pid)
        return Watched(cpu={name: cpu_s(of) for name, of in pids.items()}, web_mib=pss_mib(pids["web"]))

    def standing(self) -> dict[str, Standing]:
        """Of each node of the fleet."""
        nodes = (node for node in self.client.node_list() if node["name"].startswith("fleet-"))
        return {
            node["name"]: Standing(
                state=node["state"],
                since=datetime.fromisoformat(node["state_at"]),
                heard=datetime.fromisoformat(node["last_seen_at"]) if node["last_seen_at"] else None,
            )
            for node in nodes
        }


async def drive(plane: Plane, *, nodes: int, gpus: int, seconds: float, interval: float) -> dict[str, Any]:
    parts = urlsplit(plane.url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    seen = Seen()
    agents = [Agent(number, gpus=gpus, link=Link(host, port), seen=seen) for number in range(nodes)]
    # 1. Join, a few at a time. Nothing is scheduled onto them: they are drained before their first report.
    gate = asyncio.Semaphore(JOINING)

    async def join(agent: Agent) -> None:
        async with gate:
            token = await asyncio.to_thread(lambda: plane.client.node_enroll_token()["token"])
            await agent.join(token)
            await asyncio.to_thread(plane.client.node_drain, agent.name, reason="bench")
            await agent.sync()
            await agent.sync()

    began = time.perf_counter()
    await asyncio.gather(*(join(agent) for agent in agents))
    joined_s = time.perf_counter() - began
    # 2. Run: warm first, then what counts.
    begin = time.perf_counter() + 0.5
    counts_from, until = begin + WARM_S, begin + WARM_S + seconds
    quiet = range(0, nodes, max(2, nodes // SILENT)) if nodes > 1 else range(0)
    runs = [
        asyncio.create_task(
            agent.run(begin=begin + interval * place / nodes, until=until if place in quiet else until + LISTEN_S, interval=interval)
        )
        for place, agent in enumerate(agents)
    ]
    try:
        await asyncio.sleep(max(0.0, counts_from - time.perf_counter()))
        # Not before: who joined first was silent, and rightly called so, while hundreds of others joined.
        known = await asyncio.to_thread(plane.standing)
        before, seen.refused = plane.watched(), {}
        await asyncio.sleep(max(0.0, until - time.perf_counter()))
        after, spent = plane.watched(), time.perf_counter() - counts_from
        at_the_end = await asyncio.to_thread(plane.standing)
        # 3. A few fall silent.
        await asyncio.gather(*runs)
        at_last = await asyncio.to_thread(plane.standing)
    finally:
        for agent in agents:
            agent.close()
    found = result([row for row in seen.sent if counts_from <= row[0] < until], before, after, spent_s=spent, interval=interval)
    size = {"nodes": nodes, "gpus": gpus, "interval_s": interval, "seconds": seconds, "joined_s": round(joined_s, 1)}
    alarms = {"not_ready": sum(one.state != "READY" for one in at_the_end.values())} | silences(
        known, at_last, {agents[place].name for place in quiet}
    )
    return {**size, "body_bytes": seen.body_bytes, **found, "refused": sum(seen.refused.values()), **alarms}


def silences(before: dict[str, Standing], after: dict[str, Standing], quiet: set[str]) -> dict[str, Any]:
    """Pure. What was said of those that went on, and of the ``quiet``."""
    spoke = [name for name in after if name not in quiet]
    told = [seconds for name in quiet if (seconds := after[name].silent_s) is not None]
    return {
        "false_alarms": sum(after[name].state != "READY" or after[name].since != before[name].since for name in spoke),
        "silent": len(quiet),
        "silent_untold": len(quiet) - len(told),
        "silent_least_s": round(min(told), 2) if told else None,
        "silent_most_s": round(max(told), 2) if told else None,
    }


def result(sent: list[tuple[float, float, float]], before: Watched, after: Watched, *, spent_s: float, interval: float) -> dict[str, Any]:
    """Pure. ``flat``: the p99 of the second half against the first; near 1 = nothing piles up."""
    if not sent:
        raise FleetError("no sync was answered")
    times = [row[1] for row in sorted(sent)]
    halves = times[: len(times) // 2] or times, times[len(times) // 2 :]
    found: dict[str, Any] = {
        "syncs": len(times),
        "syncs_per_s": round(len(times) / spent_s, 1),
        "p50_ms": round(statistics.median(times), 2),
        "p99_ms": round(percentile(times, 0.99), 2),
        "most_ms": round(max(times), 1),
        "late_p99_ms": round(percentile([row[2] for row in sent], 0.99), 1),
        "flat": round(percentile(halves[1], 0.99) / max(percentile(halves[0], 0.99), 0.001), 2),
    }
    used = {name: after.cpu[name] - before.cpu[name] for name in before.cpu}
    if used:
        each = used["web"] / len(times)
        found |= {
            "cpu_ms_per_sync": round(1000 * each, 2),
            **{f"{name}_core": round(cpu / spent_s, 3) for name, cpu in used.items()},
            "nodes_per_core": round(interval / each) if each else None,
            "web_mib": round(after.web_mib, 1),
            "web_grew_mib": round(after.web_mib - before.web_mib, 1),
        }
    return found


@contextlib.contextmanager
def own_plane(database: str) -> Iterator[Plane]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nebula-fleet-")))
        # The bench joins more machines in a minute than strangers may, and one core serves them all from one address.
        env = {"NEBULA_THROTTLE_ANONYMOUS": "100000/1", "NEBULA_LOG_LEVEL": "WARNING"}
        pid: int | None = None
        if database == "postgres":
            given = os.environ.get("NEBULA_DATABASE_URL", "")
            url = given if given.startswith("postgres") else stack.enter_context(postgres_temporary())
            env["NEBULA_DATABASE_URL"] = url
            pid = _postmaster() if not given.startswith("postgres") else None
        grid = Grid(folder, agents=0, up=["--no-agent"], env=env)
        stack.enter_context(grid.running())
        yield Plane(grid.url, stack.enter_context(grid.client()), grid, pid)


def _postmaster() -> int | None:
    """The embedded server that this process started."""
    for pid in tree(os.getpid())[1:]:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "postgres":
                return pid
    return None


@contextlib.contextmanager
def running_plane(url: str, token: str) -> Iterator[Plane]:
    with NebulaClient(url, token) as client:
        yield Plane(url, client)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.live.fleet", description="A fleet of synthetic agents.")
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--gpus", type=int, default=8, help="cards a node")
    parser.add_argument("--seconds", type=float, default=60.0, help="what counts, after a warm-up")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two syncs of a node")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--url", help="drive this running control plane (plain HTTP) instead of one of our own")
    parser.add_argument("--token-file", type=Path, help="an administrator's token, with --url")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    for name, least in (("nodes", 1), ("gpus", 0), ("seconds", 1), ("interval", 0.1)):
        if getattr(args, name) < least:
            parser.error(f"--{name} is {getattr(args, name):g}; expected {least:g} or more")
    if bool(args.url) != bool(args.token_file):
        parser.error("--url and --token-file go together")
    if args.url and not args.url.startswith("http://"):
        parser.error("--url must begin with http://: agents of the fleet speak no TLS, run it on the machine itself")
    chosen = running_plane(args.url, args.token_file.read_text().strip()) if args.url else own_plane(args.database)
    with chosen as plane:
        found = asyncio.run(drive(plane, nodes=args.nodes, gpus=args.gpus, seconds=args.seconds, interval=args.interval))
    found = {"database": args.database if not args.url else "", **found}
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<16} {value!s:>10}")


if __name__ == "__main__":
    main()
