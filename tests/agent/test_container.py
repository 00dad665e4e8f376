"""Where /sys/fs/cgroup can't be written, as in most containers: jobs run and end as ever, and what is not limited is said."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.protocol import ExitInfo
from tests.agent.rank_lab import ROOT, Lab

LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from agent.cgroups import layout_find
from agent.doctor import _cgroup
layout = layout_find("test-container")
print(json.dumps([layout.kind, layout.limits(), layout.names(), _cgroup()[2]]))
layout.remove()
"""


#: In a mount namespace of its own: no cgroups at all, or each hierarchy read-only.
NONE = "mount -t tmpfs -o ro tmpfs /sys/fs/cgroup"
READ_ONLY = """
awk '$5 ~ "^/sys/fs/cgroup" {print $5}' /proc/self/mountinfo > /dev/shm/nebula-mounts-$$
while read -r place; do mount -o remount,bind,ro "$place" || exit 1; done < /dev/shm/nebula-mounts-$$
rm /dev/shm/nebula-mounts-$$
"""


@pytest.mark.root
@pytest.mark.parametrize("how", [NONE, READ_ONLY], ids=["none-is-there", "read-only"])
def test_nothing_is_said_to_hold_where_no_group_can_be_made(how: str) -> None:
    script = f'mount --make-rprivate / || exit 1\n{how}\nexec "$@"'
    argv = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", LOOK, str(ROOT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(done.stderr.strip()[:200])
    assert done.returncode == 0, done.stderr
    kind, limits, names, seen_by_doctor = json.loads(done.stdout)
    assert (kind, names) == ("none", [])
    assert set(limits.values()) == set(seen_by_doctor.values()) == {False}
    assert set(limits) == {"memory", "cpu", "pids", "devices"}


def test_a_job_with_every_limit_runs_and_ends_as_ever_without_a_group(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(cgroup="none", pids_max=200, memory_mib=64)
    rank = lab.start("sh", "-c", "setsid sleep 600 & echo fine; exit 4", memory_mib=32, cpu_milli=100, log_cap_mib=1)
    assert lab.end(rank).exit == ExitInfo(cause="exited", code=4)
    assert lab.text(rank) == "fine\n"
    assert lab.ranks.tree_gone(rank)
    assert not Path(f"/sys/fs/cgroup/nebulagrid/{lab.agent_id}").exists()
