"""Cards that do not exist, described by a JSON scenario (format: docs/agent.md). Everything it reports says *simulated*.

The file is read again when it changes, so that a fault can be thrown while jobs run; scenario time starts anew with each
load. Nothing here sleeps: a `hang` raises BackendHang, and the agent treats it as a probe that does not answer.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
import uuid as uuids
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from agent.backends.base import LIMITS, BackendError, BackendHang, Cards, HardwareEvent, Placed, Sanity
from agent.backends.nvml import describe
from agent.protocol import GpuInfo, GpuProcess, GpuStatus, LinkInfo, ProtocolError, from_json

log = logging.getLogger("nebula-agent")

DEFAULT_SCENARIO: dict[str, Any] = {
    "devices": [
        {
            "count": 2,
            "model": "Simulated RTX 4090",
            "total_mib": 24564,
            "compute_capability": "8.9",
            "pcie_gen": 4,
            "pcie_width": 16,
            "metrics": {
                "temp_c": {"base": 38, "noise": 1},
                "util_pct": 0,
                "mem_util_pct": 0,
                "power_w": {"base": 22, "noise": 3},
                "fan_pct": 0,
                "core_mhz": 210,
                "mem_mhz": 405,
            },
            "busy": {
                "temp_c": {"base": 63, "noise": 3},
                "util_pct": {"base": 86, "noise": 9},
                "mem_util_pct": {"base": 42, "noise": 8},
                "power_w": {"base": 310, "noise": 30},
                "fan_pct": {"base": 48, "noise": 4},
                "core_mhz": 2520,
                "mem_mhz": 10501,
            },
        }
    ]
}

_INFO_FIELDS = {f.name for f in fields(GpuInfo)} - {"index", "simulated"}
_FAULTS = ("vanish", "lost", "hang", "wild", "xid", "leak")
_SHAPES = ({"base"}, {"base", "noise"}, {"from", "to", "over_s"}, {"from", "to", "over_s", "noise"})


class ScenarioError(ValueError):
    """The scenario does not describe cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    info: GpuInfo
    metrics: dict[str, Any]
    busy: dict[str, Any]
    rank_use: float  # share of its grant that a rank uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    kind: str
    gpu: int | str | None = None  # index or uuid; None = every card
    at_s: float = 0.0
    for_s: float | None = None  # None = until the scenario changes
    xid: int = 0
    field: str = ""
    value: Any = None
    mib: int = 0

    def acts_on(self, info: GpuInfo) -> bool:
        return self.gpu is None or self.gpu in (info.index, info.uuid)

    def is_on(self, at_s: float) -> bool:
        return at_s >= self.at_s and (self.for_s is None or at_s < self.at_s + self.for_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    devices: tuple[Device, ...]
    links: tuple[LinkInfo, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    faults: tuple[Fault, ...] = ()
    driver: str | None = "simulated"
    cuda: str | None = None
    seed: int = 0
    process_list: bool = True


def _need(ok: bool, text: str) -> None:
    if not ok:
        raise ScenarioError(text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _metrics(value: Any, where: str) -> dict[str, Any]:
    _need(isinstance(value, dict), f"{where} must be an object")
    for name, shape in value.items():
        _need(name in LIMITS, f"{where}.{name} is not a metric; known are {', '.join(LIMITS)}")
        if isinstance(shape, dict):
            fits = set(shape) in _SHAPES and all(_is_number(v) for v in shape.values()) and shape.get("over_s", 1) > 0
            _need(fits, f'{where}.{name} must be {{"base", "noise"?}} or {{"from", "to", "over_s", "noise"?}} with numbers, over_s above 0')
        else:
            _need(shape is None or _is_number(shape), f"{where}.{name} must be a number, null or an object")
    return dict(value)


def _device(value: Any, where: str, index: int, part: int, count: int, salt: str) -> Device:
    known = _INFO_FIELDS | {"count", "metrics", "busy", "rank_use"}
    _need(set(value) <= known, f"{where} has unknown keys {', '.join(sorted(set(value) - known))}; known are {', '.join(sorted(known))}")
    info = {k: v for k, v in value.items() if k in _INFO_FIELDS}
    if "uuid" not in info:
        digest = hashlib.sha256(f"{salt}/{index}".encode()).digest()
        info["uuid"] = f"GPU-{uuids.UUID(bytes=digest[:16], version=4)}"
    elif count > 1:
        info["uuid"] = f"{info['uuid']}-{part}"
    info.setdefault("model", "Simulated GPU")
    info.setdefault("vendor", "nvidia")
    if count > 1 or "pci_bus_id" not in info:
        info["pci_bus_id"] = f"{index // 224:08X}:{index % 224 + 1:02X}:00.0"
    try:
        gpu = from_json(GpuInfo, {**info, "index": index, "simulated": True}, where)
    except ProtocolError as error:
        raise ScenarioError(str(error)) from error
    use = value.get("rank_use", 1.0)
    _need(_is_number(use) and 0 <= use <= 4, f"{where}.rank_use must be a number from 0 to 4")
    metrics = _metrics(value.get("metrics", {}), f"{where}.metrics")
    return Device(info=gpu, metrics=metrics, busy=_metrics(value.get("busy", {}), f"{where}.busy"), rank_use=float(use))


def _uuid_of(ref: Any, devices: Sequence[Device], where: str) -> str:
    for device in devices:
        if ref == device.info.uuid or (ref == device.info.index and not isinstance(ref, bool)):
            return device.info.uuid
    raise ScenarioError(f"{where} is {ref!r}: no device has this index or uuid")


def scenario_parse(value: Any, *, salt: str = "") -> Scenario:
    """A decoded JSON scenario → Scenario. ``salt`` keeps the made-up UUIDs of two nodes apart.

    Raises ScenarioError naming what is wrong.
    """
    _need(isinstance(value, dict), "a scenario must be an object")
    known = {"devices", "links", "processes", "faults", "driver", "cuda", "seed", "process_list"}
    _need(set(value) <= known, f"unknown keys {', '.join(sorted(set(value) - known))}; known are {', '.join(sorted(known))}")
    _need(isinstance(value.get("devices"), list), "devices must be a list")
    devices: list[Device] = []
    for i, item in enumerate(value["devices"]):
        _need(isinstance(item, dict), f"devices[{i}] must be an object")
        count = item.get("count", 1)
        _need(isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 1024, f"devices[{i}].count must be 0 to 1024")
        for part in range(count):
            devices.append(_device(item, f"devices[{i}]", len(devices), part, count, salt))
    _need(len({d.info.uuid for d in devices}) == len(devices), "two devices have the same uuid")
    try:
        links = []
        for i, link in enumerate(value.get("links", [])):
            ends = {end: _uuid_of(link.get(end), devices, f"links[{i}].{end}") for end in ("a", "b")}
            links.append(from_json(LinkInfo, {**link, **ends}, f"links[{i}]"))
        processes = []
        for i, item in enumerate(value.get("processes", [])):
            card = _uuid_of(item.get("gpu"), devices, f"processes[{i}].gpu")
            kept = {k: v for k, v in item.items() if k != "gpu"}
            processes.append(from_json(GpuProcess, {**kept, "uuid": card}, f"processes[{i}]"))
        faults = []
        for i, item in enumerate(value.get("faults", [])):
            unknown = set(item) - {f.name for f in fields(Fault)}
            _need(not unknown, f"faults[{i}] has unknown keys {', '.join(sorted(unknown))}")
            fault = Fault(**item)
            _need(fault.kind in _FAULTS, f"faults[{i}].kind is {fault.kind!r}; known are {', '.join(_FAULTS)}")
            _need(_is_number(fault.at_s) and (fault.for_s is None or _is_number(fault.for_s)), f"faults[{i}]: at_s and for_s are seconds")
            _need(fault.kind != "wild" or fault.field in LIMITS, f"faults[{i}].field must be one of {', '.join(LIMITS)}")
            _need(isinstance(fault.xid, int) and isinstance(fault.mib, int), f"faults[{i}]: xid and mib are whole numbers")
            if fault.gpu is not None:
                _uuid_of(fault.gpu, devices, f"faults[{i}].gpu")
            faults.append(fault)
    except (ProtocolError, TypeError, AttributeError) as error:
        raise ScenarioError(str(error)) from error
    return Scenario(
        devices=tuple(devices),
        links=tuple(links),
        processes=tuple(processes),
        faults=tuple(faults),
        driver=value.get("driver", "simulated"),
        cuda=value.get("cuda"),
        seed=value.get("seed", 0),
        process_list=bool(value.get("process_list", True)),
    )


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
        return [d for d in loaded.scenario.devices if not self._faults(loaded, "vanish", d.info)]

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
        )

    def get_status(self) -> list[GpuStatus]:
        loaded = self._current()
        return [self._status(loaded, device) for device in self._seen(loaded)]

    def _status(self, loaded: _Loaded, device: Device) -> GpuStatus:
        info = device.info
        if self._faults(loaded, "lost", info):
            return GpuStatus(uuid=info.uuid, error="lost")
        at_s = self._at_s(loaded)
        grants = [g.mib for p in self._placed for g in p.gpus if g.uuid == info.uuid]
        shapes = {**device.metrics, **device.busy} if grants else device.metrics
        # One stream of random numbers a card and a 5 s step: the same seed gives the same picture.
        rng = random.Random(f"{loaded.scenario.seed}/{info.index}/{int(at_s / 5)}")
        values: dict[str, Any] = {name: self.sanity.value(name, _shape(shapes[name], at_s, rng, LIMITS[name])) for name in sorted(shapes)}
        if "used_mib" not in shapes or values["used_mib"] is not None:
            used = values.get("used_mib") or 0
            used += sum(p.used_mib or 0 for p in loaded.scenario.processes if p.uuid == info.uuid)
            used += sum(round(mib * device.rank_use) for mib in grants)
            used += sum(f.mib for f in self._faults(loaded, "leak", info))
            values["used_mib"] = used if info.total_mib is None else min(used, info.total_mib)
        status = GpuStatus(uuid=info.uuid, **values)
        for fault in self._faults(loaded, "wild", info):
            wild: dict[str, Any] = {fault.field: self.sanity.value(fault.field, fault.value)}
            status = replace(status, **wild)
        return status

    def get_process_list(self) -> list[GpuProcess] | None:
        loaded = self._current()
        use = {d.info.uuid: d.rank_use for d in self._seen(loaded)}
        if not loaded.scenario.process_list:
            return None
        found = [p for p in loaded.scenario.processes if p.uuid in use]
        for rank in self._placed:
            for grant in rank.gpus:
                if rank.pids and grant.uuid in use:
                    # Real CUDA programs hold memory in few processes; the first of the tree stands for all.
                    used = round(grant.mib * use[grant.uuid])
                    found.append(describe(GpuProcess(uuid=grant.uuid, pid=min(rank.pids), used_mib=used)))
        return found

    def events(self) -> list[HardwareEvent]:
        loaded = self._current()
        at_s = self._at_s(loaded)
        found: list[HardwareEvent] = []
        for number, fault in enumerate(loaded.scenario.faults):
            if fault.kind == "xid" and number not in loaded.fired and at_s >= fault.at_s:
                loaded.fired.add(number)
                for device in loaded.scenario.devices:
                    if fault.acts_on(device.info):
                        found.append(HardwareEvent(kind="xid", gpu=device.info.uuid, data={"xid": fault.xid}, at=time.time()))
        return found

    def placed(self, ranks: Sequence[Placed]) -> None:
        self._placed = tuple(ranks)

    def cleanup(self) -> None:
        return


def _shape(shape: Any, at_s: float, rng: random.Random, limits: tuple[int, int]) -> float | None:
    """A metric's value at scenario time ``at_s``: constant, base ± noise, or a ramp that holds its end."""
    if not isinstance(shape, dict):
        return None if shape is None else float(shape)
    noise = rng.uniform(-1, 1) * shape.get("noise", 0)
    if "base" in shape:
        plain = float(shape["base"])
    else:
        plain = shape["from"] + (shape["to"] - shape["from"]) * min(1.0, max(0.0, at_s / shape["over_s"]))
    if not noise:
        return float(plain)
    return float(min(limits[1], max(limits[0], plain + noise)))  # noise alone must not look like a broken sensor
