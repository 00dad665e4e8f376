"""The rooms of docs/architecture.md: what runs on a compute node, or decides, pulls in no control plane."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
FORBIDDEN = {"django", "rest_framework", "celery", "channels", "redis", "nebulagrid", "nodes", "quotas"}
PROGRAM = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def modules_after(module: str) -> set[str]:
    run = subprocess.run([sys.executable, "-c", PROGRAM, module], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", ["jobs.scheduler", "jobs.lifecycle", "agent", "client", "agent.protocol", "bench.passes", "bench.waits"])
def test_importing_a_lower_room_pulls_in_no_upper_one(module: str) -> None:
    assert not modules_after(module) & FORBIDDEN


def test_the_core_needs_the_standard_library_only() -> None:
    known = set(sys.stdlib_module_names) | {"jobs", "__main__"}
    here = modules_after("json")  # what every interpreter of this environment loads (.pth files)
    assert modules_after("jobs.scheduler") - known - here == set()


def test_the_jobs_package_stays_empty() -> None:
    assert (ROOT / "jobs" / "__init__.py").read_text(encoding="utf-8").strip() == ""
