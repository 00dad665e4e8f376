"""`nebula-agent doctor`, the judging half: facts in, checks out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.advice import card_findings
from agent.backends.base import Cards
from agent.protocol import REACH, GpuHealth, GpuInfo, GpuStatus, IsolationInfo, RdmaInfo

Level = Literal["pass", "warn", "fail"]

SKEW_WARN_S, SKEW_FAIL_S = 5.0, 300.0
DISK_WARN_MIB, DISK_FAIL_MIB = 10 * 1024, 1024
DISK_WARN_SHARE = 0.05
INODES_WARN_SHARE = 0.02
SHM_WARN_MIB = 1024
#: At so much use clocks must be up; below it a card may rest.
LOADED_PCT = 50
MEM_CLOCK_SHARE, CORE_CLOCK_SHARE = 0.6, 0.5
HOT_MARGIN_C = 5
#: What holds the clocks down because something is wrong; a power cap is how a card is meant to work.
BAD_THROTTLE = frozenset({"hw_thermal", "sw_thermal", "hw_slowdown", "power_brake"})
VENDORS = {0x10DE: "NVIDIA", 0x8086: "Intel", 0x1002: "AMD", 0x19E5: "Huawei"}
_BACKENDS = {0x10DE: "nvml", 0x8086: "level_zero", 0x1002: "amd", 0x19E5: "ascend"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line. ``code`` names the sentence (doctor_words.py), ``params`` are its numbers."""

    level: Level
    area: str
    code: str
    params: dict[str, Any] = field(default_factory=dict)
    gpu: int | None = None  # index of the card that it is about


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one backend answered. ``silent``: nothing within ``waited_s``."""

    name: str
    cards: Cards = field(default_factory=Cards)
    status: tuple[GpuStatus, ...] = ()
    health: tuple[GpuHealth, ...] = ()
    error: str | None = None
    error_kind: str | None = None
    silent: bool = False
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that was looked at; None = could not be found out."""

    config: str | None = None  # where it lies; None = there is none
    config_error: str | None = None
    node: str | None = None
    endpoint: str | None = None
    running: bool | None = None
    isolation: IsolationInfo | None = None
    exposed: tuple[str, ...] = ()  # folders that ought to be hidden from jobs and can't be
    sandbox_refused: tuple[str, ...] = ()  # why better sandboxes don't work here
    runs_jobs_as_root: bool = False
    plane_error: str | None = None
    skew_s: float | None = None  # node − control plane
    layers: tuple[Layer, ...] = ()
    pci: Mapping[int, int] = field(default_factory=dict)  # vendor → accelerators on the bus
    nouveau: bool = False
    kernel_log: bool = False
    wsl: bool = False
    disk_path: str = "/"
    disk_free_mib: int | None = None
    disk_total_mib: int | None = None
    inodes_free_share: float | None = None
    shm_mib: int | None = None
    cgroup: str | None = None  # v2 | v1 | none
    cgroup_note: str = ""
    limits: Mapping[str, bool] = field(default_factory=dict)  # of a job: memory, cpu, pids, devices; enforced or not
    container: str | None = None
    container_gpu: bool = False
    rdma: tuple[RdmaInfo, ...] = ()
    memlock_mib: int | None = None  # None = no limit


def judge(facts: Facts) -> list[Check]:
    """All checks, in the order in which one would put things right."""
    return [*_joined(facts), *_reach(facts), *_layers(facts), *_cards(facts), *_system(facts)]


def _joined(facts: Facts) -> Iterator[Check]:
    if facts.config_error is not None:
        yield Check(level="fail", area="config", code="config_bad", params={"error": facts.config_error})
    elif facts.config is None:
        yield Check(level="warn", area="config", code="config_none")
    else:
        yield Check(level="pass", area="config", code="config_ok", params={"node": facts.node, "endpoint": facts.endpoint})
        yield (
            Check(level="pass", area="agent", code="agent_running")
            if facts.running
            else Check(level="warn", area="agent", code="agent_stopped")
        )
        if facts.runs_jobs_as_root:
            yield Check(level="fail", area="agent", code="running_as_root")
    if facts.endpoint is None:
        return
    if facts.plane_error is not None:
        yield Check(level="fail", area="plane", code="plane_unreachable", params={"error": facts.plane_error})
        return
    yield Check(level="pass", area="plane", code="plane_ok", params={"endpoint": facts.endpoint})
    if facts.skew_s is None:
        yield Check(level="warn", area="clock", code="clock_unknown")
        return
    skew = abs(facts.skew_s)
    level: Level = "fail" if skew > SKEW_FAIL_S else "warn" if skew > SKEW_WARN_S else "pass"
    code = "clock_ok" if level == "pass" else "clock_skew"
    yield Check(level=level, area="clock", code=code, params={"skew_s": round(facts.skew_s, 1), "most_s": SKEW_WARN_S})


def _reach(facts: Facts) -> Iterator[Check]:
    """What a job can reach here, a line for each thing."""
    info = facts.isolation
    if info is None:
        return
    if not info.ready:
        problem = f"isolation_{info.problem}"
        yield Check(
            level="fail", area="isolation", code=problem if problem in PROBLEMS else "isolation_problem", params={"problem": info.problem}
        )
        return
    # Whatever else is said: a job of uid 0 can be kept from nothing.
    if info.uid == 0 and info.identity != "mapped":
        yield Check(level="fail", area="isolation", code="running_as_root")
    who = info.account or f"uid {info.uid}"
    code = "account_each" if info.identity == "mapped" else "account_one"
    yield Check(level="pass", area="isolation", code=code, params={"account": who, "sandbox": info.sandbox})
    for word in info.open:
        level: Level = "pass" if word == "home" else "warn"
        known = word in REACH
        yield Check(level=level, area="isolation", code=f"open_{word}" if known else "open_other", params={"word": word, "account": who})
    if set(info.open) <= {"home"}:
        yield Check(level="pass", area="isolation", code="open_nothing")
    for path in facts.exposed:
        yield Check(level="warn", area="isolation", code="exposed", params={"path": path})
    for text in facts.sandbox_refused:
        yield Check(level="warn", area="isolation", code="sandbox_refused", params={"text": text})


#: Why no job can be launched, as IsolationInfo.problem has it.
PROBLEMS = frozenset(
    f"isolation_{problem}" for problem in ("root_same", "not_root", "job_account_missing", "job_account_unknown", "job_account_system")
)


def _layers(facts: Facts) -> Iterator[Check]:
    read = {layer.name for layer in facts.layers}
    for vendor, count in facts.pci.items():
        if _BACKENDS[vendor] in read or "simulated" in read:
            continue
        # Intel and AMD put graphics into processors: without their library that is no mistake.
        level: Level = "fail" if vendor in (0x10DE, 0x19E5) else "warn"
        code = "nouveau" if vendor == 0x10DE and facts.nouveau else "no_driver"
        yield Check(level=level, area="driver", code=code, params={"vendor": VENDORS[vendor], "count": count})
    if not facts.layers:
        yield Check(level="pass", area="driver", code="no_cards")
    for layer in facts.layers:
        about = {"backend": layer.name, "count": len(layer.cards.gpus), "version": layer.cards.driver_version or "?"}
        if layer.silent:
            yield Check(level="fail", area="driver", code="layer_silent", params={**about, "waited_s": round(layer.waited_s)})
        elif layer.error is not None:
            code = "driver_mismatch" if layer.error_kind == "driver_mismatch" else "layer_error"
            yield Check(level="fail", area="driver", code=code, params={**about, "error": layer.error})
        else:
            yield Check(level="pass" if layer.cards.gpus else "warn", area="driver", code="layer_ok", params=about)
            if "driver_mismatch" in layer.cards.advice:
                yield Check(level="fail", area="driver", code="driver_mismatch", params=about)
    if any(layer.name == "nvml" and layer.error is None and not layer.silent for layer in facts.layers):
        yield (
            Check(level="pass", area="xid", code="kernel_log_ok")
            if facts.kernel_log
            else Check(level="warn", area="xid", code="kernel_log_hidden")
        )
    if facts.wsl:
        yield Check(level="warn", area="driver", code="wsl")


def _cards(facts: Facts) -> Iterator[Check]:
    for layer in facts.layers:
        health = {h.uuid: h for h in layer.health}
        status = {s.uuid: s for s in layer.status}
        parts = Counter(g.parent for g in layer.cards.gpus if g.parent is not None)
        for gpu in layer.cards.gpus:
            yield from _card(gpu, status.get(gpu.uuid), health.get(gpu.uuid), parts[gpu.uuid])
        yield from _all_well(layer, health)
        whole = [g for g in layer.cards.gpus if g.vendor == "nvidia" and g.parent is None and not g.simulated]
        if len(whole) > 1 and not layer.cards.links:
            yield Check(level="warn", area="topology", code="topology_unknown", params={"count": len(whole)})


def _card(gpu: GpuInfo, status: GpuStatus | None, health: GpuHealth | None, parts: int) -> Iterator[Check]:
    """``parts``: how many MIG parts it is cut into."""
    about = {"model": gpu.model, "total_mib": gpu.total_mib}
    if status is None or status.error is not None:
        error = "missing" if status is None else status.error
        yield Check(level="fail", area="card", code="card_error", gpu=gpu.index, params={**about, "error": error})
        return
    if gpu.total_mib is None and gpu.unified:
        yield Check(level="pass", area="card", code="card_shared", gpu=gpu.index, params=about)
    elif parts:
        yield Check(level="pass", area="card", code="card_cut", gpu=gpu.index, params={**about, "parts": parts})
    elif gpu.total_mib is None:
        yield Check(level="warn", area="card", code="memory_unknown", gpu=gpu.index, params=about)
    else:
        yield Check(level="pass", area="card", code="card_ok", gpu=gpu.index, params=about)
    if health is not None:
        for finding in card_findings(gpu, health):
            level: Level = "fail" if finding.grave else "warn"
            yield Check(level=level, area="card", code=finding.code, gpu=gpu.index, params={**about, **finding.params})
        if health.slow_c is not None and status.temp_c is not None and status.temp_c >= health.slow_c - HOT_MARGIN_C:
            hot = {"temp_c": status.temp_c, "slow_c": health.slow_c}
            yield Check(level="warn", area="card", code="card_hot", gpu=gpu.index, params=hot)
        yield from _clocks(gpu, status, health)
    brakes = [word for word in status.throttle or () if word in BAD_THROTTLE]
    if brakes:
        yield Check(level="warn", area="card", code="card_throttled", gpu=gpu.index, params={"reasons": ", ".join(brakes)})


def _clocks(gpu: GpuInfo, status: GpuStatus, health: GpuHealth) -> Iterator[Check]:
    """Clocks that are low while the card works; an idle card rests, and that is right."""
    if status.util_pct is None or status.util_pct < LOADED_PCT:
        return
    for code, now, most, share in (
        ("mem_clock_low", status.mem_mhz, health.mem_max_mhz, MEM_CLOCK_SHARE),
        ("core_clock_low", status.core_mhz, health.core_max_mhz, CORE_CLOCK_SHARE),
    ):
        if now is not None and most is not None and now < most * share:
            params = {"now_mhz": now, "most_mhz": most, "util_pct": status.util_pct}
            yield Check(level="warn", area="card", code=code, gpu=gpu.index, params=params)


def _all_well(layer: Layer, health: Mapping[str, GpuHealth]) -> Iterator[Check]:
    """What was looked at and is right on every card that tells it."""
    pairs = [(g, health[g.uuid]) for g in layer.cards.gpus if g.uuid in health]
    found = {g.uuid: {f.code for f in card_findings(g, h)} for g, h in pairs}
    for code, told in (
        ("persistence_off", [g for g, h in pairs if h.persistence is not None]),
        ("pcie_narrow", [g for g, h in pairs if h.pcie_width is not None and g.pcie_width is not None]),
        ("bar1_small", [g for g, h in pairs if h.bar1_mib is not None and g.total_mib]),
        ("ecc_uncorrected", [g for g, h in pairs if h.ecc_uncorrected is not None]),
    ):
        if told and not any(code in found[g.uuid] for g in told):
            yield Check(level="pass", area="card", code=f"{code}_not", params={"count": len(told)})


def _system(facts: Facts) -> Iterator[Check]:
    free, total = facts.disk_free_mib, facts.disk_total_mib
    if free is not None and total:
        disk = {"path": facts.disk_path, "free_mib": free, "total_mib": total}
        if free < DISK_FAIL_MIB:
            yield Check(level="fail", area="disk", code="disk_full", params=disk)
        elif free < DISK_WARN_MIB or free < total * DISK_WARN_SHARE:
            yield Check(level="warn", area="disk", code="disk_low", params=disk)
        else:
            yield Check(level="pass", area="disk", code="disk_ok", params=disk)
    if facts.inodes_free_share is not None and facts.inodes_free_share < INODES_WARN_SHARE:
        share = {"path": facts.disk_path, "free_pct": round(100 * facts.inodes_free_share, 1)}
        yield Check(level="warn", area="disk", code="inodes_low", params=share)
    if facts.shm_mib is not None:
        small = facts.shm_mib < SHM_WARN_MIB
        yield Check(
            level="warn" if small else "pass", area="memory", code="shm_small" if small else "shm_ok", params={"shm_mib": facts.shm_mib}
        )
    if facts.cgroup is not None:
        none = facts.cgroup == "none"
        yield Check(
            level="warn" if none else "pass", area="cgroups", code="no_cgroup" if none else "cgroup_ok", params={"note": facts.cgroup_note}
        )
        if not none:
            yield from _limits(facts.limits)
    if facts.container is None:
        yield Check(level="warn", area="container", code="container_none")
    elif any(layer.name == "nvml" and layer.cards.gpus for layer in facts.layers) and not facts.container_gpu:
        yield Check(level="warn", area="container", code="container_no_gpu", params={"tool": facts.container})
    else:
        yield Check(level="pass", area="container", code="container_ok", params={"tool": facts.container})
    if facts.rdma:
        active = [port.name for port in facts.rdma if port.state == "ACTIVE"]
        names = {"active": len(active), "count": len(facts.rdma), "ports": ", ".join(active) or "–"}
        yield Check(level="pass" if active else "warn", area="rdma", code="rdma_ok" if active else "rdma_down", params=names)
        if facts.memlock_mib is not None:
            yield Check(level="warn", area="rdma", code="memlock_low", params={"memlock_mib": facts.memlock_mib})


def _limits(limits: Mapping[str, bool]) -> Iterator[Check]:
    """Where there are cgroups. What a job may use of the host; where none are there, none of it holds, which is said already."""
    if not limits:
        return
    off = [name for name, holds in limits.items() if not holds]
    if off in ([], ["devices"]):
        yield Check(level="pass", area="cgroups", code="limits_ok")
    if "memory" in off:
        yield Check(level="warn", area="cgroups", code="limit_memory_off")
    if "cpu" in off:
        yield Check(level="warn", area="cgroups", code="limit_cpu_off")
    if "pids" in off:
        yield Check(level="warn", area="cgroups", code="limit_pids_off")
    if "devices" in off:
        # Nothing can be done about it where the system has cgroup v2 alone.
        yield Check(level="pass", area="cgroups", code="limit_devices_off")
