"""The machine's own figures, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.hostload import FRESH_S, HostLoad, cpu_share

MEMINFO = "MemTotal:       65536000 kB\nMemFree:         1000000 kB\nMemAvailable:   16384000 kB\n"


def proc(folder: Path, *, user: int, idle: int, iowait: int = 0, meminfo: str = MEMINFO) -> Path:
    (folder / "stat").write_text(f"cpu  {user} 0 0 {idle} {iowait} 0 0 0 0 0\ncpu0 1 2 3 4\n")
    (folder / "meminfo").write_text(meminfo)
    return folder


def test_a_share_is_of_the_time_between_two_readings(tmp_path):
    host = HostLoad(tmp_path, proc=proc(tmp_path, user=1000, idle=1000))
    assert host.read(now=100).cpu_pct is None  # one reading tells no share
    proc(tmp_path, user=1030, idle=1060, iowait=10)  # 30 busy of 100; waiting for a disk is idle
    assert host.read(now=105).cpu_pct == 30


def test_memory_in_use_is_what_a_program_could_not_have(tmp_path):
    status = HostLoad(tmp_path, proc=proc(tmp_path, user=1, idle=1)).read(now=0)
    assert status.memory_mib == 48_000  # (65,536,000 − 16,384,000) kB
    assert status.disk_total_mib > status.disk_free_mib > 0


def test_readings_in_quick_succession_are_one(tmp_path):
    host = HostLoad(tmp_path, proc=proc(tmp_path, user=0, idle=100))
    host.read(now=0)
    proc(tmp_path, user=50, idle=150)
    second = host.read(now=FRESH_S)
    proc(tmp_path, user=99, idle=151)
    assert host.read(now=FRESH_S + 0.02) is second
    assert second.cpu_pct == 50


def test_what_can_not_be_read_is_none_and_no_error(tmp_path):
    status = HostLoad(tmp_path / "none", proc=tmp_path / "none").read(now=0)
    assert (status.cpu_pct, status.memory_mib, status.disk_free_mib, status.disk_total_mib) == (None, None, None, None)
    (tmp_path / "stat").write_text("cpu x\n")
    (tmp_path / "meminfo").write_text("odd\n")
    assert HostLoad(tmp_path, proc=tmp_path).read(now=0).memory_mib is None


@pytest.mark.parametrize(
    ("before", "after", "pct"),
    [((0, 0), (50, 200), 25), ((0, 0), (0, 0), None), ((5, 100), (3, 50), None), (None, (1, 2), None), ((0, 0), (300, 200), 100)],
)
def test_a_share_that_no_clock_could_give_is_none(before, after, pct):
    assert cpu_share(before, after) == pct
