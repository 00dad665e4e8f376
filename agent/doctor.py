"""`nebula-agent doctor`: look at this machine as the agent does, and say what is to be put right.

It changes nothing, works with and without an agent that runs, and ends within WAIT_S even if a driver hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent import host
from agent.config import Config
from agent.doctor_checks import VENDORS, Check, Facts, Layer, judge
from agent.doctor_words import line, said, speaks_chinese

if TYPE_CHECKING:
    from agent.isolation import Isolation

WAIT_S = 15.0
MIB = 1024 * 1024


def facts_collect(config: Config | None, *, config_error: str | None = None, wait_s: float = WAIT_S, root: str = "/") -> Facts:
    """Look at everything. ``root``: where /sys, /proc and /dev are."""
    plane_error, skew_s = (None, None) if config is None else plane_ask(config)
    path = _existing(config.data_dir if config is not None else Path(root))
    kind, note, limits = _cgroup()
    isolation = None if config is None or config.mode == "metrics" else isolation_look(config)
    free, total, inodes = _disk(path)
    return Facts(
        config=str(config.path) if config is not None else None,
        config_error=config_error,
        node=config.name if config is not None else None,
        endpoint=config.endpoint.url if config is not None else None,
        running=None if config is None else _is_running(config),
        isolation=isolation.info if isolation is not None else None,
        exposed=(*isolation.places.control_exposed, *isolation.places.agent_exposed) if isolation is not None else (),
        sandbox_refused=isolation.finding.refused if isolation is not None else (),
        runs_jobs_as_root=config is not None and runs_jobs_as_root(config),
        plane_error=plane_error,
        skew_s=skew_s,
        layers=layers_read(config, wait_s=wait_s, root=root),
        pci=pci_accelerators(root),
        nouveau=Path(root, "sys/module/nouveau").exists(),
        kernel_log=_readable(os.path.join(root, "dev/kmsg")),
        wsl="microsoft" in os.uname().release.lower(),
        disk_path=str(path),
        disk_free_mib=free,
        disk_total_mib=total,
        inodes_free_share=inodes,
        shm_mib=_disk(Path(root, "dev/shm"))[1],
        cgroup=kind,
        cgroup_note=note,
        limits=limits,
        container=_container_tool(),
        container_gpu=_container_gpu(root),
        rdma=host.rdma_ports(root),
        memlock_mib=_memlock(),
    )


# --- cards --------------------------------------------------------------------------------------------------------------


def layers_read(config: Config | None, *, wait_s: float, root: str = "/") -> tuple[Layer, ...]:
    """One reading of every backend that the agent would use, all at once."""
    from agent.backends.choose import backends_present
    from agent.probe import ChildProbe, InlineProbe, Probe

    backend = config.backend if config is not None else "auto"
    names = backends_present(root) if backend == "auto" else [] if backend == "none" else [backend]
    probes: dict[str, Probe] = {}
    for name in names:
        if name == "simulated" and config is not None:
            from agent.backends.simulated import SimulatedBackend

            probes[name] = InlineProbe(SimulatedBackend(config.scenario, salt=f"node/{config.node_id}"))
        else:
            probes[name] = ChildProbe(name, deadline_s=wait_s)
    found: dict[str, Layer] = {}
    began = time.monotonic()
    try:
        for probe in probes.values():
            probe.request(processes=False)
        while len(found) < len(probes) and time.monotonic() - began < wait_s:
            waiting = [p for name, p in probes.items() if name not in found]
            select.select([fd for p in waiting if (fd := p.fileno()) is not None], [], [], 0.2)
            for name, probe in probes.items():
                samples, _ = probe.poll()
                for sample in samples:
                    found[name] = Layer(
                        name=name,
                        cards=sample.cards,
                        status=sample.status,
                        health=sample.health or (),
                        error=sample.error,
                        error_kind=sample.error_kind,
                    )
                if name not in found:
                    probe.request(processes=False)  # starts a child that died anew; one that works is left alone
    finally:
        for probe in probes.values():
            probe.close()
    return tuple(found.get(name) or Layer(name=name, silent=True, waited_s=time.monotonic() - began) for name in names)


def pci_accelerators(root: str = "/") -> dict[int, int]:
    """PCI vendor → how many display controllers and processing accelerators of it are on the bus."""
    found: dict[int, int] = {}
    for device in sorted(Path(root, "sys/bus/pci/devices").glob("*")):
        try:
            vendor = int((device / "vendor").read_text(encoding="ascii"), 16)
            kind = int((device / "class").read_text(encoding="ascii"), 16) >> 16
        except (OSError, ValueError):
            continue
        if vendor in VENDORS and kind in (0x03, 0x12):
            found[vendor] = found.get(vendor, 0) + 1
    return found


# --- the control plane and its clock ------------------------------------------------------------------------------------


def plane_ask(config: Config, *, clock: Callable[[], float] = time.time) -> tuple[str | None, float | None]:
    """(why it can't be reached, how far this machine's clock is ahead of its in seconds)."""
    from agent.http import EndpointError, HttpClient, Unreachable

    try:
        client = HttpClient(
            config.endpoint, ca_file=str(config.ca_file) if config.ca_file else None, pin_sha256=config.pin_sha256, timeout_s=5.0
        )
    except (EndpointError, OSError) as error:
        return str(error).rstrip("."), None
    try:
        began = clock()
        answer = client.request("GET", "/healthz", timeout_s=5.0)
        middle = (began + clock()) / 2
    except Unreachable as error:
        return str(error).rstrip("."), None
    finally:
        client.close()
    if answer.date is None:
        return None, None
    try:
        # The header has whole seconds: its second began up to a second ago.
        return None, middle - parsedate_to_datetime(answer.date).timestamp() - 0.5
    except (ValueError, TypeError):
        return None, None


# --- what a job can reach -----------------------------------------------------------------------------------------------


def isolation_look(config: Config) -> Isolation | None:
    """What the agent that runs reported of itself, else what one that this user starts would find. None: nobody can tell."""
    from agent.isolation import NOTHING, Isolation, isolation_try
    from agent.protocol import IsolationInfo, ProtocolError

    if _is_running(config):
        with contextlib.suppress(OSError, ValueError, ProtocolError, KeyError):
            status = json.loads((config.data_dir / "status.json").read_text(encoding="utf-8"))
            if status["isolation"] is not None:
                return Isolation(info=IsolationInfo.from_json(status["isolation"]), finding=NOTHING)
        return None
    with contextlib.suppress(OSError, ValueError):
        return isolation_try(config)
    return None


def runs_jobs_as_root(config: Config) -> bool:
    """Whether an agent runs here that launches jobs as root: an older one, which says nothing of what jobs can reach."""
    if not _is_running(config) or config.identity != "same":
        return False
    with contextlib.suppress(OSError, ValueError):
        status = json.loads((config.data_dir / "status.json").read_text(encoding="utf-8"))
        return "isolation" not in status and os.stat(f"/proc/{int(status['pid'])}").st_uid == 0
    return False


# --- the system ---------------------------------------------------------------------------------------------------------


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next((p for p in (path, *path.parents) if p.exists()), Path("/"))


def _disk(path: Path) -> tuple[int | None, int | None, float | None]:
    """(free MiB for this user, MiB in all, share of inodes that are free; None where the file system counts none)."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None, None
    inodes = found.f_favail / found.f_files if found.f_files else None
    return found.f_bavail * found.f_frsize // MIB, found.f_blocks * found.f_frsize // MIB, inodes


def _cgroup() -> tuple[str | None, str, dict[str, bool]]:
    from agent.cgroups import layout_find

    try:
        name = f"doctor-{os.getpid()}"  # a name of its own: an agent's groups are not touched
        layout = layout_find(name)
    except (OSError, ValueError):
        return None, "", {}
    limits = layout.limits()
    layout.remove()
    return layout.kind, layout.note.replace(f"/{name}", ""), limits


def _is_running(config: Config) -> bool:
    import fcntl

    with contextlib.suppress(OSError), open(config.data_dir / "agent.lock", "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _readable(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _container_tool() -> str | None:
    return next((tool for tool in ("podman", "docker", "nerdctl", "apptainer", "enroot") if shutil.which(tool)), None)


def _container_gpu(root: str) -> bool:
    """NVIDIA's toolkit, or a description of the cards that a container runtime understands (CDI)."""
    described = any(Path(root, place, "nvidia.yaml").exists() for place in ("etc/cdi", "var/run/cdi"))
    return described or any(shutil.which(tool) for tool in ("nvidia-ctk", "nvidia-container-cli"))


def _memlock() -> int | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft // MIB


# --- the command --------------------------------------------------------------------------------------------------------


def report(checks: Sequence[Check], *, chinese: bool) -> list[str]:
    """The lines, and a last one that counts them."""
    counts = {level: sum(1 for c in checks if c.level == level) for level in ("pass", "warn", "fail")}
    last = "{pass} 项通过，{warn} 项警告，{fail} 项失败。" if chinese else "{pass} passed, {warn} to look at, {fail} failed."
    return [*(line(check, chinese=chinese) for check in checks), last.format(**counts)]


def report_json(checks: Sequence[Check], *, chinese: bool) -> str:
    rows: list[dict[str, Any]] = []
    for check in checks:
        what, todo = said(check, chinese=chinese)
        in_chinese = said(check, chinese=True)
        rows.append(
            {
                "level": check.level,
                "area": check.area,
                "code": check.code,
                "gpu": check.gpu,
                "text": what,
                "advice": todo or None,
                "params": check.params,
                "zh": {"text": in_chinese[0], "advice": in_chinese[1] or None},
            }
        )
    return json.dumps({"ok": not any(c.level == "fail" for c in checks), "checks": rows}, indent=2, ensure_ascii=False)


def examine(config: Config | None, *, config_error: str | None = None, as_json: bool = False, wait_s: float = WAIT_S) -> tuple[str, int]:
    """(what to print, exit status: 1 when a check failed)."""
    checks = judge(facts_collect(config, config_error=config_error, wait_s=wait_s))
    chinese = speaks_chinese()
    text = report_json(checks, chinese=chinese) if as_json else "\n".join(report(checks, chinese=chinese))
    return text, int(any(check.level == "fail" for check in checks))
