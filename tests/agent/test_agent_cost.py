"""What a running agent costs a node: processor, memory, processes, bytes. `make soak`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.testing import FakeControlPlane
from tests.agent.nvml_lab import HEALTHY, Machine
from tests.agent.rank_lab import ROOT

SECONDS = 75


def children(pid: int) -> set[int]:
    """The process and all below it."""
    found = {pid}
    parents = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names are enough
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def cpu_s(pids: set[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mib(pids: set[int], kind: str) -> float:
    """``Pss``: what they take of the machine; ``Private_Dirty``: what is theirs alone, whoever else runs or ends."""
    lines = [text for pid in pids for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if text.startswith(f"{kind}:")]
    return sum(int(text.split()[1]) for text in lines) / 1024


@pytest.mark.soak
def test_an_agent_with_eight_cards_at_5_s_is_nearly_free(tmp_path: Path, nvml_library: Path) -> None:
    """Under 1 % of a core and 60 MB, flat; no process is started, NVML stays open, a steady sync is under 2 kB."""
    machine = Machine(tmp_path / "state")
    for _ in range(8):
        machine.card(**HEALTHY)
    machine.say(*(f"nvlink {card} {link} 0000:c0:00" for card in range(8) for link in range(12)))
    machine.say(*(f"proc {card} {os.getpid()} 1000000000" for card in range(8)))
    with FakeControlPlane(next_in_s=5.0) as plane:
        config = tmp_path / "agent.toml"
        config.write_text(f'endpoint = "{plane.url}"\nnode_id = {plane.node_id}\ndata_dir = "{tmp_path / "data"}"\nbackend = "nvml"\n')
        credential = tmp_path / "agent.credential"
        credential.write_text(plane.credential)
        credential.chmod(0o600)
        env = {**os.environ, "NEBULA_NVML_STATE": str(machine.path), "NEBULA_NVML_LOOK_MS": "500"}
        env["LD_LIBRARY_PATH"] = str(nvml_library.parent)
        agent = subprocess.Popen([sys.executable, "-m", "agent.main", "run", "--config", str(config)], env=env, cwd=ROOT)
        try:
            time.sleep(15)  # the start is over
            before = children(agent.pid)
            used, own, syncs = cpu_s(before), memory_mib(before, "Private_Dirty"), len(plane.syncs)
            began = time.monotonic()
            time.sleep(SECONDS)
            after = children(agent.pid)
            share = (cpu_s(after) - used) / (time.monotonic() - began)
            now, grown = memory_mib(after, "Pss"), memory_mib(after, "Private_Dirty") - own
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)
    told = [size for size, sync in list(zip(plane.sync_sizes, plane.syncs, strict=True))[syncs:] if sync.processes is None]
    print(f"{100 * share:.2f} % of a core, {now:.1f} MiB ({grown:+.1f} in {SECONDS} s), {max(told)} bytes a sync")
    assert after == before
    assert share < 0.01
    assert now < 60
    assert grown < 1.0
    assert max(told) < 2000
    assert SECONDS / 5 - 3 <= len(plane.syncs) - syncs <= SECONDS / 5 * 1.2
