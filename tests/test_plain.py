"""Root's tests run as a plain account: its own files, none of its power."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.live.grid import ROOT

PLAIN = [sys.executable, "-m", "bench.live.plain", "--"]
LOOK = "import os, sys; print(os.getuid(), os.access(sys.argv[1], os.W_OK)); os.setgroups([])"


@pytest.mark.root
def test_the_account_keeps_its_files_and_loses_every_privilege(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.touch(mode=0o600)
    done = subprocess.run([*PLAIN, sys.executable, "-c", LOOK, str(own)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "1000 True\n"
    assert "PermissionError" in done.stderr


def test_whoever_is_no_root_runs_the_command_as_it_is() -> None:
    if os.geteuid() == 0:
        pytest.skip("only a plain account can tell")
    done = subprocess.run([*PLAIN, "id", "-u"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{os.geteuid()}\n"


def test_a_command_that_is_not_there_says_so() -> None:
    done = subprocess.run([*PLAIN, "/no/such/program"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "/no/such/program: No such file or directory\n")
