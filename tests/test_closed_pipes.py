"""Commands whose output nobody reads any more (``… | head``): the exit code of a closed pipe, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PIPE_CLOSED = 141


def run(*argv: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """The command with a standard output that is closed already."""
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, cwd=cwd, env={**os.environ, **env}, timeout=300)
    finally:
        os.close(write)


@pytest.mark.parametrize("argv", [["--help"], ["submit", "--help"], ["--version"], ["quota", "--help"]], ids=" ".join)
def test_nebula_ctl(argv: list[str]) -> None:
    ended = run(sys.executable, "-m", "client", *argv)
    assert (ended.returncode, ended.stderr) == (PIPE_CLOSED, "")


@pytest.mark.parametrize("argv", [["status"], ["status", "--json"], ["doctor"]], ids=" ".join)
def test_nebula_agent(tmp_path: Path, argv: list[str]) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f'node_id = 1\nname = "n1"\nendpoint = "http://127.0.0.1:9"\ndata_dir = "{tmp_path}"\nbackend = "none"\n')
    config.chmod(0o600)
    ended = run(sys.executable, "-m", "agent.main", *argv, "--config", str(config))
    assert (ended.returncode, ended.stderr) == (PIPE_CLOSED, "")


@pytest.mark.parametrize("argv", [["--version"], ["check", "--list-tags"]], ids=" ".join)
def test_manage_py(tmp_path: Path, argv: list[str]) -> None:
    ended = run(sys.executable, "manage.py", *argv, NEBULA_DATA=str(tmp_path))
    assert "Traceback" not in ended.stderr
    assert ended.returncode == PIPE_CLOSED
