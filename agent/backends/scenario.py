"""The JSON scenario of a simulation (format: docs/agent.md), checked and as dataclasses. Pure."""

from __future__ import annotations

import hashlib
import math
import uuid as uuids
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from agent.backends.base import LIMITS
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, LinkInfo, ProtocolError, from_json

DEFAULT_SCENARIO: dict[str, Any] = {
    "cuda": "12.8",
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
    ],
}

_INFO_FIELDS = {f.name for f in fields(GpuInfo)} - {"index", "simulated"}
FAULTS = ("vanish", "lost", "hang", "wild", "xid", "leak", "throttle", "mismatch")
#: What a metric's object must hold, and what it may hold besides.
_SHAPES = (
    (frozenset({"base"}), frozenset({"noise", "lag_s", "wave", "period_s"})),
    (frozenset({"from", "to", "over_s"}), frozenset({"noise", "lag_s"})),
)
_SHAPE_TEXT = (
    '{"base", "noise"?, "wave"? with "period_s", "lag_s"?} or {"from", "to", "over_s", "noise"?, "lag_s"?} with numbers, times above 0'
)
_TIMES = ("over_s", "period_s", "lag_s")


class ScenarioError(ValueError):
    """The scenario does not describe cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    info: GpuInfo
    metrics: dict[str, Any]
    busy: dict[str, Any]
    rank_use: float  # share of its grant that a rank uses
    fill_s: float = 0.0  # in which a rank's memory grows to that
    by_share: bool = False  # `busy` is for a card that is taken as a whole
    health: GpuHealth | None = None  # the slow facts; None = no card of this kind tells


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
            fits = any(must <= set(shape) <= must | may for must, may in _SHAPES) and all(_is_number(v) for v in shape.values())
            fits = fits and all(shape.get(key, 1) > 0 for key in _TIMES) and ("wave" in shape) == ("period_s" in shape)
            _need(fits, f"{where}.{name} must be {_SHAPE_TEXT}")
            # Memory that lags behind the rank that gave it back would look like a leak.
            _need(name != "used_mib" or "lag_s" not in shape, f"{where}.used_mib can't have lag_s; use fill_s")
        else:
            _need(shape is None or _is_number(shape), f"{where}.{name} must be a number, null or an object")
    return dict(value)


def _device(value: Any, where: str, index: int, part: int, count: int, salt: str) -> Device:
    known = _INFO_FIELDS | {"count", "metrics", "busy", "rank_use", "fill_s", "by_share", "health"}
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
        told = value.get("health")
        health = None if told is None else from_json(GpuHealth, {**told, "uuid": gpu.uuid}, f"{where}.health")
    except (ProtocolError, TypeError) as error:
        raise ScenarioError(str(error)) from error
    strange = set(told or {}) - {f.name for f in fields(GpuHealth)}
    _need(not strange, f"{where}.health has unknown keys {', '.join(sorted(strange))}")
    use = value.get("rank_use", 1.0)
    _need(_is_number(use) and 0 <= use <= 4, f"{where}.rank_use must be a number from 0 to 4")
    fill = value.get("fill_s", 0)
    _need(_is_number(fill) and 0 <= fill <= 86_400, f"{where}.fill_s must be a number of seconds from 0 to 86400")
    by_share = value.get("by_share", False)
    _need(isinstance(by_share, bool), f"{where}.by_share must be true or false")
    return Device(
        info=gpu,
        metrics=_metrics(value.get("metrics", {}), f"{where}.metrics"),
        busy=_metrics(value.get("busy", {}), f"{where}.busy"),
        rank_use=float(use),
        fill_s=float(fill),
        by_share=by_share,
        health=health,
    )


def _kinds(value: Any) -> dict[str, dict[str, Any]]:
    _need(isinstance(value, dict) and all(isinstance(kind, dict) for kind in value.values()), "kinds must be an object of objects")
    return dict(value)


def _of_kind(item: dict[str, Any], kinds: dict[str, dict[str, Any]], where: str) -> dict[str, Any]:
    """A device with what its kind says; of `metrics` and `busy` each value by itself."""
    if "kind" not in item:
        return item
    _need(item["kind"] in kinds, f"{where}.kind is {item['kind']!r}; kinds has {', '.join(kinds) or 'none'}")
    kind = kinds[item["kind"]]
    merged = {**kind, **{key: value for key, value in item.items() if key != "kind"}}
    for part in ("metrics", "busy"):
        if isinstance(kind.get(part), dict) and isinstance(item.get(part), dict):
            merged[part] = {**kind[part], **item[part]}
    return merged


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
    known = {"devices", "kinds", "links", "processes", "faults", "driver", "cuda", "seed", "process_list"}
    _need(set(value) <= known, f"unknown keys {', '.join(sorted(set(value) - known))}; known are {', '.join(sorted(known))}")
    _need(isinstance(value.get("devices"), list), "devices must be a list")
    devices: list[Device] = []
    kinds = _kinds(value.get("kinds", {}))
    for i, item in enumerate(value["devices"]):
        _need(isinstance(item, dict), f"devices[{i}] must be an object")
        item = _of_kind(item, kinds, f"devices[{i}]")
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
            _need(fault.kind in FAULTS, f"faults[{i}].kind is {fault.kind!r}; known are {', '.join(FAULTS)}")
            _need(_is_number(fault.at_s) and (fault.for_s is None or _is_number(fault.for_s)), f"faults[{i}]: at_s and for_s are seconds")
            _need(fault.kind != "wild" or fault.field in LIMITS, f"faults[{i}].field must be one of {', '.join(LIMITS)}")
            _need(fault.kind != "throttle" or isinstance(fault.value, str), f"faults[{i}].value must say what holds the clocks down")
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


def shape_value(shape: Any, at_s: float, index: int) -> float:
    """A shape's value at scenario time ``at_s`` without noise: constant, base ± wave, or a ramp that holds its end."""
    if not isinstance(shape, dict):
        return float(shape)
    if "base" in shape:
        swing = 0.0
        if "wave" in shape:
            # Cards of one node are out of step, as programs are.
            swing = shape["wave"] * math.sin(2 * math.pi * (at_s / shape["period_s"] + 0.37 * index))
        return float(shape["base"] + swing)
    return float(shape["from"] + (shape["to"] - shape["from"]) * min(1.0, max(0.0, at_s / shape["over_s"])))
