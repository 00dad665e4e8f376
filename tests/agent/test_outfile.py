"""A program that prints without end: its node keeps the beginning and the end, and the program never notices."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import outfile, rankdir
from agent.outfile import MIB, OutputFile
from tests.agent.rank_lab import PYTHON, Lab

PRINTS = """
import os, sys
line = b"%07d " + b"x" * 991 + b"\\n"
for number in range(int(sys.argv[1])):
    os.write(1, line % number)
print("Traceback: the last line", flush=True)
raise SystemExit(3)
"""


def used(path: Path) -> int:
    return path.stat().st_blocks * 512


def holes_are_possible(folder: Path) -> bool:
    path = folder / "hole"
    path.write_bytes(b"x" * 4 * MIB)
    file = OutputFile.open(str(path), 0)
    assert file is not None
    file.trim(is_end=True)
    return used(path) <= 1.1 * MIB


def test_forty_times_the_cap_leave_the_cap_and_the_end_on_the_disk(new_lab: Callable[..., Lab], tmp_path: Path) -> None:
    if not holes_are_possible(tmp_path):
        pytest.skip("no holes in files on this disk")
    lab = new_lab()
    rank = lab.start(*PYTHON, PRINTS, "40000", log_cap_mib=1)
    exit = lab.end(rank).exit
    assert exit is not None
    assert (exit.cause, exit.code) == ("exited", 3)  # it neither waited nor failed
    path = lab.ranks.rank_dir(rank) / rankdir.OUTPUT
    size = path.stat().st_size
    assert size == 40_000 * 1000 + len("Traceback: the last line\n")
    assert used(path) <= 2 * MIB + 8192
    with path.open("rb") as file:
        assert file.read(MIB).startswith(b"0000000 xxx")  # offsets stay what they are
        file.seek(1000 * 1000)
        assert file.read(8) == b"0001000 "
        file.seek(size - MIB + 4096)
        assert file.read().endswith(b"x\nTraceback: the last line\n")


def test_an_adopted_rank_is_kept_short_too(new_lab: Callable[..., Lab], tmp_path: Path) -> None:
    if not holes_are_possible(tmp_path):
        pytest.skip("no holes in files on this disk")
    lab = new_lab()
    go = tmp_path / "go"
    code = f"import os, time\nprint('ready', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    agent = lab.agent_start(*PYTHON, code + PRINTS.replace("int(sys.argv[1])", "20000"), log_cap_mib=1)
    lab.said("1.1.0", "ready")
    shim = lab.shim("1.1.0")
    os.kill(shim[0], 9)
    lab.agent_kill(agent, zygote=True)
    lab.recover()
    go.touch()
    lab.end("1.1.0")
    assert used(lab.ranks.rank_dir("1.1.0") / rankdir.OUTPUT) <= 2 * MIB + 8192


@pytest.mark.parametrize("put", ["link", "name", "folder"])
def test_what_lies_in_its_place_is_left_alone(put: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 4 * MIB)
    place = tmp_path / "output.log"
    {"link": lambda: place.symlink_to(other), "name": lambda: os.link(other, place), "folder": place.mkdir}[put]()
    assert OutputFile.open(str(place), 0) is None
    assert other.read_bytes() == b"x" * 4 * MIB


def test_a_file_that_its_job_cut_loses_nothing_that_is_new(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"a" * 10 * MIB)
    file = OutputFile.open(str(path), 1)
    assert file is not None
    file.trim(is_end=True)
    os.truncate(path, 0)
    path.write_bytes(b"b" * 2 * MIB)
    file.trim(is_end=True)
    assert path.read_bytes() == b"b" * 2 * MIB


def test_without_a_cap_all_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"a" * 10 * MIB)
    file = OutputFile.open(str(path), None)
    assert file is not None
    assert not file.trim(is_end=True)
    assert path.read_bytes() == b"a" * 10 * MIB


def test_a_flood_is_looked_at_more_often(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.touch()
    file = OutputFile.open(str(path), 1)
    assert file is not None
    assert not file.trim()
    os.truncate(path, outfile.HURRY + 1)
    assert file.trim()
    assert not file.trim()
