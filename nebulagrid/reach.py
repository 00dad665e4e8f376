"""What jobs on this machine could reach, said when the control plane is ready. Standard library only."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WAIT_S = 60.0
#: Words of `IsolationInfo.open`, as the end of "A job can …".
CAN = {
    "control_files": "read and change this control plane's keys, database and tokens",
    "agent_files": "read the agent's credential and act as this machine",
    "other_jobs_files": "read and change other jobs' files and secrets",
    "processes": "read the memory of other processes of its account",
    "signals": "stop other processes of its account",
    "paths": "see names in folders that are closed otherwise",
    "home": "read and change the home folder of the account that it shares with others",
}
#: What makes other people's jobs be refused here.
GRAVE = ("control_files", "agent_files", "other_jobs_files", "processes")


def reach_find(python: Path, config: Path, cwd: Path) -> dict[str, Any] | None:
    """Try the sandbox of the agent with this configuration; None when that says nothing."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("NEBULA_", "DJANGO_"))}
    argv = [str(python), "-m", "agent.isolation_told", str(config)]
    try:
        done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S, check=False)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def reach_lines(found: Mapping[str, Any] | None, *, allowed: bool) -> list[str]:
    """``allowed``: NEBULA_ALLOW_UNISOLATED is set."""
    if found is None:
        return ["  *** What jobs on this machine can reach could not be found out; see the agent's log. ***"]
    if not found["ready"]:
        return [f"  *** No job can be launched on this machine. {found['problem']} ***"]
    who = f"Jobs on this machine run as {found['account'] or 'uid {}'.format(found['uid'])}"
    if found["identity"] == "mapped":
        who = "Each job on this machine runs as its owner's account"
    by = {
        "mounts": "in a mount namespace of their own",
        "landlock": "behind rules of the kernel (Landlock)",
        "none": "with nothing around them",
    }
    lines = [f"  {who}, {by.get(found['sandbox'], found['sandbox'])}."]
    is_open = set(found["open"])
    mild = [CAN[word] for word in CAN if word in is_open and word not in GRAVE]
    grave = [CAN[word] for word in GRAVE if word in is_open]
    if grave:
        who_may = (
            "all the same (NEBULA_ALLOW_UNISOLATED)"
            if allowed
            else "only for the first administrator (NEBULA_ALLOW_UNISOLATED=1 lifts that)"
        )
        lines.append(f"  *** A job can {'; '.join(grave)}. ***")
        lines.append(f"  *** So this machine runs jobs {who_may}. ***")
        lines += [f"      A better sandbox does not work here: {why}." for why in found.get("refused", ())]
    if mild:
        lines.append(f"  A job can {'; '.join(mild)}.")
    return lines
