"""A driver that does not come back from a call, for as long as it takes. `make soak`."""

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
from tests.agent.test_agent_cost import children, cpu_s

SECONDS = int(os.environ.get("NEBULA_HANG_S", "600"))


@pytest.mark.soak
def test_ten_minutes_in_one_call_of_the_driver_leave_every_heartbeat_on_time(tmp_path: Path, nvml_library: Path) -> None:
    """Syncs every 5 s as before, the cards unresponsive meanwhile, one child and no pile of threads, and well again afterwards."""
    machine = Machine(tmp_path / "state")
    uuids = [machine.card(**HEALTHY) for _ in range(8)]
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
            plane.wait(lambda: plane.syncs and len(plane.syncs[-1].gpus) == 8, what="eight cards")
            count = len(plane.syncs)
            used, began = cpu_s(children(agent.pid)), time.monotonic()
            machine.say("hang nvmlDeviceGetUtilizationRates 600000")
            time.sleep(SECONDS)
            pids = children(agent.pid)
            gaps = [after - before for before, after in zip(plane.sync_times[count:], plane.sync_times[count + 1 :], strict=False)]
            errors = {status.error for status in plane.syncs[-1].gpus}
            share = (cpu_s(pids) - used) / (time.monotonic() - began)
            threads = max(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)  # noqa: PTH208
            told = f"{len(gaps)} syncs, at most {max(gaps):.2f} s apart; {100 * share:.2f} % of a core"
            print(f"{told}; {len(pids)} processes, {threads} threads")
            machine.unsay("hang")
            # The call that hangs is ended by the next kill, and the one after it begins a minute later at most.
            plane.wait(lambda: plane.syncs[-1].gpus and all(s.util_pct == 37 for s in plane.syncs[-1].gpus), timeout_s=240, what="figures")
        finally:
            machine.unsay("hang")
            agent.send_signal(signal.SIGTERM)
            agent.wait(20)
    assert len(gaps) >= SECONDS / 5.3 - 2
    assert max(gaps) < 6.0  # 5 s with 5 % of jitter
    assert errors == {"unresponsive"}
    assert share < 0.01
    assert len(pids) <= 4
    assert threads <= 8
    assert [status.uuid for status in plane.syncs[-1].gpus] == uuids
