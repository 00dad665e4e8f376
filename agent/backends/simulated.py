"""Cards that do not exist, described by a JSON scenario (agent/backends/scenario.py). Everything it reports says *simulated*.

The file is read again when it changes, so that a fault can be thrown while jobs run; scenario time starts anew with each
load. Nothing here sleeps: a `hang` raises BackendHang, and the agent treats it as a probe that does not answer.
"""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.backends.base import LIMITS, BackendError, BackendHang, Cards, HardwareEvent, Placed, Sanity, describe
from agent.backends.scenario import DEFAULT_SCENARIO, Device, Fault, Scenario, scenario_parse, shape_value
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, GpuStatus, RankId

log = logging.getLogger("nebula-agent")

SELFTEST_RESULTS = ("passed", "failed", "impossible")


@dataclass(slots=True)
class _Loaded:
    scenario: Scenario
    at: float
    stamp: tuple[int, int, int] | None
    fired: set[int] = field(default_factory=set)


class SimulatedBackend:
    name = "simulated"

    def __init__(self, path: Path | None = None, *, salt: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        """``path`` None = two simulated RTX 4090."""
        self.path, self._salt, self._clock = path, salt, clock
        self.sanity = Sanity()
        self._now: _Loaded | None = None
        self._bad: tuple[int, int, int] | None = None
        self._placed: tuple[Placed, ...] = ()
        self._since: dict[RankId, float] = {}  # when we were told of each rank
        self._drills: list[HardwareEvent] = []  # told with the next `events`
        self._gone: dict[str, float] = {}  # card → until when a drill hides it
        self._tests: dict[str, str] = {}  # card → how its next self-test ends
        self._felt: dict[tuple[str, str], tuple[float, float]] = {}  # (card, metric) → when it was read last, what it was

    # --- the scenario -----------------------------------------------------------------------------------------

    def _stamp(self) -> tuple[int, int, int] | None:
        if self.path is None:
            return None
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _load(self) -> Scenario:
        if self.path is None:
            return scenario_parse(DEFAULT_SCENARIO, salt=self._salt)
        return scenario_parse(json.loads(self.path.read_text(encoding="utf-8")), salt=self._salt)

    def _current(self) -> _Loaded:
        """The scenario as the file has it now; while the file is unreadable or wrong, the last good one."""
        loaded = self._now
        try:
            stamp = self._stamp()
            if loaded is None or stamp not in (loaded.stamp, self._bad):
                loaded = self._now = _Loaded(self._load(), self._clock(), stamp)
                self._bad = None
        except (OSError, ValueError) as error:
            if loaded is None:
                raise BackendError(f"The scenario {self.path} cannot be used: {error}.", "scenario") from error
            try:
                stamp = self._stamp()
            except OSError:
                stamp = (0, 0, 0)
            if stamp != self._bad:
                self._bad = stamp
                log.warning("The scenario %s cannot be used (%s); the last good one stays.", self.path, error)
        return loaded

    def _at_s(self, loaded: _Loaded) -> float:
        return self._clock() - loaded.at

    def _faults(self, loaded: _Loaded, kind: str, info: GpuInfo) -> list[Fault]:
        at_s = self._at_s(loaded)
        return [f for f in loaded.scenario.faults if f.kind == kind and f.is_on(at_s) and f.acts_on(info)]

    def _seen(self, loaded: _Loaded) -> list[Device]:
        at_s = self._at_s(loaded)
        if any(f.kind == "hang" and f.is_on(at_s) for f in loaded.scenario.faults):
            raise BackendHang("the scenario says hang")
        if any(f.kind == "mismatch" and f.is_on(at_s) for f in loaded.scenario.faults):
            raise BackendError("The scenario says that driver and library differ (driver mismatch): reboot the node.", "driver_mismatch")
        now = self._clock()
        hidden = {uuid for uuid, until in self._gone.items() if now < until}
        return [d for d in loaded.scenario.devices if d.info.uuid not in hidden and not self._faults(loaded, "vanish", d.info)]

    # --- HardwareBackend --------------------------------------------------------------------------------------

    def initialize(self) -> None:
        self._current()

    def inventory(self) -> Cards:
        loaded = self._current()
        seen = [d.info for d in self._seen(loaded)]
        names = {info.uuid for info in seen}
        return Cards(
            gpus=tuple(seen),
            links=tuple(link for link in loaded.scenario.links if link.a in names and link.b in names),
            driver_version=loaded.scenario.driver,
            cuda_version=loaded.scenario.cuda,
            simulated=True,
            backends=(self.name,),
        )

    def get_status(self) -> list[GpuStatus]:
        loaded = self._current()
        return [self._status(loaded, device) for device in self._seen(loaded)]

    def _status(self, loaded: _Loaded, device: Device) -> GpuStatus:
        info = device.info
        if self._faults(loaded, "lost", info):
            return GpuStatus(uuid=info.uuid, error="lost")
        at_s = self._at_s(loaded)
        way = self._way(loaded, device)
        # One stream of random numbers a card and a 5 s step: the same seed gives the same picture.
        rng = random.Random(f"{loaded.scenario.seed}/{info.index}/{int(at_s / 5)}")
        names = sorted({*device.metrics, *(device.busy if way else ())})
        values: dict[str, Any] = {name: self.sanity.value(name, self._metric(device, name, way, at_s, rng)) for name in names}
        if "used_mib" not in values or values["used_mib"] is not None:
            used = values.get("used_mib") or 0
            used += sum(p.used_mib or 0 for p in loaded.scenario.processes if p.uuid == info.uuid)
            used += sum(self._rank_mib(device, p.rank, g.mib) for p in self._placed for g in p.gpus if g.uuid == info.uuid)
            used += sum(f.mib for f in self._faults(loaded, "leak", info))
            values["used_mib"] = used if info.total_mib is None else min(used, info.total_mib)
        throttle = tuple(str(f.value) for f in self._faults(loaded, "throttle", info))
        status = GpuStatus(uuid=info.uuid, **values, throttle=throttle)
        for fault in self._faults(loaded, "wild", info):
            wild: dict[str, Any] = {fault.field: self.sanity.value(fault.field, fault.value, uuid=info.uuid)}
            status = replace(status, **wild)
        return status

    def _way(self, loaded: _Loaded, device: Device) -> float:
        """How far a card is from idle (0) to busy (1).

        With ``by_share`` the square root of the memory taken, foreign use included: who has a quarter of the memory keeps
        half of the card at work, as programs share the processors and not only the memory.
        """
        grants = [g for p in self._placed for g in p.gpus if g.uuid == device.info.uuid]
        if not device.by_share or any(g.exclusive for g in grants):
            return 1.0 if grants else 0.0
        taken = sum(g.mib for g in grants) + sum(p.used_mib or 0 for p in loaded.scenario.processes if p.uuid == device.info.uuid)
        return math.sqrt(min(1.0, taken / (device.info.total_mib or 1)))

    def _metric(self, device: Device, name: str, way: float, at_s: float, rng: random.Random) -> float | None:
        """A metric now: its shape between idle and busy, slowed by its lag, with its noise on top."""
        idle = device.metrics.get(name)
        shape = device.busy.get(name, idle) if way else idle
        if shape is None:
            self._felt.pop((device.info.uuid, name), None)
            return None
        value = shape_value(shape, at_s, device.info.index)
        if 0 < way < 1 and idle is not None:
            rest = shape_value(idle, at_s, device.info.index)
            value = rest + (value - rest) * way
        if not isinstance(shape, dict):
            shape = {}
        now = self._clock()
        before = self._felt.get((device.info.uuid, name))
        if before is not None and "lag_s" in shape:
            value += (before[1] - value) * math.exp((before[0] - now) / shape["lag_s"])
        self._felt[device.info.uuid, name] = (now, value)
        noise = rng.uniform(-1, 1) * shape.get("noise", 0)
        if not noise and "wave" not in shape:
            return value
        low, high = LIMITS[name]
        return float(min(high, max(low, value + noise)))  # noise alone must not look like a broken sensor

    def _rank_mib(self, device: Device, rank: RankId, granted_mib: int) -> int:
        age_s = self._clock() - self._since.get(rank, self._clock())
        filled = 1.0 if device.fill_s == 0 else min(1.0, age_s / device.fill_s)
        return round(granted_mib * device.rank_use * filled)

    def get_health(self) -> list[GpuHealth]:
        loaded = self._current()
        seen = [d for d in self._seen(loaded) if d.health is not None and not self._faults(loaded, "lost", d.info)]
        return [self.sanity.healthy(d.health) for d in seen if d.health is not None]

    def get_process_list(self) -> list[GpuProcess] | None:
        loaded = self._current()
        seen = {d.info.uuid: d for d in self._seen(loaded)}
        if not loaded.scenario.process_list:
            return None
        found = [p for p in loaded.scenario.processes if p.uuid in seen]
        for rank in self._placed:
            for grant in rank.gpus:
                if rank.pids and grant.uuid in seen:
                    # Real CUDA programs hold memory in few processes; the first of the tree stands for all.
                    used = self._rank_mib(seen[grant.uuid], rank.rank, grant.mib)
                    found.append(describe(GpuProcess(uuid=grant.uuid, pid=min(rank.pids), used_mib=used)))
        return found

    def events(self) -> list[HardwareEvent]:
        loaded = self._current()
        at_s = self._at_s(loaded)
        found, self._drills = [*self.sanity.events(), *self._drills], []
        for number, fault in enumerate(loaded.scenario.faults):
            if fault.kind == "xid" and number not in loaded.fired and at_s >= fault.at_s:
                loaded.fired.add(number)
                for device in loaded.scenario.devices:
                    if fault.acts_on(device.info):
                        found.append(HardwareEvent(kind="xid", gpu=device.info.uuid, data={"xid": fault.xid}, at=time.time()))
        return found

    # --- what only a simulation can do ---------------------------------------------------------------------------

    def drill(self, order: Mapping[str, Any]) -> str:
        """Throw a fault now: {"gpu": uuid, "xid": N, "count"?, "rank"?, "test"?} or {"gpu": uuid, "gone_s": seconds}; what was
        done, in words. ``test``: how the card's next self-test ends. Raises ValueError naming what is wrong."""
        uuid, xid, count = order.get("gpu"), order.get("xid"), order.get("count", 1)
        if uuid not in {d.info.uuid for d in self._current().scenario.devices}:
            raise ValueError(f"There is no simulated card {str(uuid)[:80]!r} here.")
        if order.get("test") is not None:
            if order["test"] not in SELFTEST_RESULTS:
                raise ValueError(f"test is one of {', '.join(SELFTEST_RESULTS)}.")
            self._tests[str(uuid)] = str(order["test"])
        if "gone_s" in order:
            if not isinstance(order["gone_s"], int | float) or not 0 < order["gone_s"] <= 3600:
                raise ValueError("gone_s is a number of seconds from 1 to 3600.")
            self._gone[str(uuid)] = self._clock() + order["gone_s"]
            return f"The card is not seen for {order['gone_s']:g} s."
        if not isinstance(xid, int) or isinstance(xid, bool) or not 1 <= xid <= 1000:
            raise ValueError("xid is a whole number from 1 to 1000.")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 100_000:
            raise ValueError("count is a whole number from 1 to 100000.")
        whose = {"rank": str(order["rank"])[:60]} if order.get("rank") else {}
        text = f"NVRM: Xid (PCI:drill): {xid}, a drill, {'once' if count == 1 else f'{count} times'}"
        event = HardwareEvent(kind="xid", gpu=str(uuid), data={"xid": xid, "drill": True, "text": text, **whose}, at=time.time())
        self._drills += [event] * count
        around = [
            f"NVRM: GPU at PCI:drill: {uuid}",
            text,
            f"NVRM: Xid (PCI:drill): {xid}, this is a drill on a simulated card: nothing is broken",
        ]
        self._drills.append(HardwareEvent(kind="kernel_log", gpu=str(uuid), data={"lines": around, "drill": True}, at=time.time()))
        return f"XID {xid} was thrown {'once' if count == 1 else f'{count} times'}."

    def selftest(self, uuid: str, *, mib: int, heat_s: float) -> dict[str, Any]:
        """The report of agent/selftest.py, without the waiting: passed, unless a drill says otherwise or the card does not answer."""
        loaded = self._current()
        try:
            device = next((d for d in self._seen(loaded) if d.info.uuid == uuid and not self._faults(loaded, "lost", d.info)), None)
        except (BackendError, BackendHang):
            device = None
        result = self._tests.pop(uuid, "passed") if device is not None else "failed"
        report: dict[str, Any] = {
            "result": result,
            "simulated": True,
            "mib": mib,
            "errors": 1024 if result == "failed" else 0,
            "took_s": 0.0,
        }
        if result == "failed":
            report["text"] = "The simulated card does not hold what is written." if device is not None else "The card does not answer."
        elif result == "impossible":
            report = {"result": result, "simulated": True, "text": "The drill says so."}
        elif device is not None and heat_s and (temp := self._status(loaded, device).temp_c) is not None:
            report["max_temp_c"] = temp
        return report

    def placed(self, ranks: Sequence[Placed]) -> None:
        self._placed = tuple(ranks)
        self._since = {p.rank: self._since.get(p.rank, self._clock()) for p in ranks}

    def cleanup(self) -> None:
        return
