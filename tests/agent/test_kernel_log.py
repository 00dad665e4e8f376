"""XIDs in the kernel's log: every spelling of a card's place, and cards that fall off the bus without a number."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agent.backends.base import bus_slot
from agent.backends.kernel_log import AFTER_S, LINES_MOST, KernelLog, Surroundings, XidLine, XidParser
from tests.waiting import wait_until

HERE = (0, 0x3B, 0)


@pytest.mark.parametrize(
    ("line", "slot", "xid"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", HERE, 79),
        ("NVRM: Xid (PCI:0000:3B:00.0): 31, pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault", HERE, 31),
        ("NVRM: Xid (0000:3b:00): 13, Graphics Exception: ESR 0x405840=0xa2040a0e", HERE, 13),
        ("NVRM: Xid (PCI:00000000:3B:00): 48, pid=1, DBE at 0x12", HERE, 48),
        ("NVRM: Xid (PCI:0002:c1:00): 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!", (2, 0xC1, 0), 119),
        ("[ 1843.3] NVRM: GPU0 Xid (PCI:3b:00.0): 43, Ch 00000020, engmask 00000101", HERE, 43),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", HERE, 79),
        ("NVRM: GPU at PCI:0000:3b:00: GPU-8d2f…, GPU has fallen off the bus.", HERE, 79),
    ],
)
def test_one_line_names_card_and_number(line: str, slot: tuple[int, int, int], xid: int) -> None:
    assert [(found.slot, found.xid) for found in XidParser().feed(line)] == [(slot, xid)]


FALLEN = [
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]


@pytest.mark.parametrize("messages", [["\\x0a".join(FALLEN)], ["\n               ".join(FALLEN)], FALLEN])
def test_a_card_that_fell_off_without_a_number_is_xid_79(messages: list[str]) -> None:
    parser = XidParser()
    found = [line for message in messages for line in parser.feed(message)]
    assert [(line.slot, line.xid) for line in found] == [(HERE, 79)]


def test_a_sentence_without_a_card_does_not_borrow_one_from_long_ago() -> None:
    parser = XidParser()
    assert parser.feed("NVRM: GPU at PCI:0000:3b:00: GPU-8d2f") == []
    for _ in range(6):
        parser.feed("usb 1-1: new device")
    assert [(line.slot, line.xid) for line in parser.feed("NVRM: fallen off the bus and is not responding")] == [(None, 79)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "eth0: link up",
        "Xid (PCI:0000:3b:00): 79 said somebody",
        "NVRM: loading NVIDIA UNIX Kernel Module 570.86",
        "NVRM: Xid (): , ",
    ],
)
def test_other_lines_are_nothing(line: str) -> None:
    assert XidParser().feed(line) == []


@pytest.mark.parametrize("text", ["0000:3b:00", "00000000:3B:00.0", "3b:00", "3b:00.0", "PCI:0000:3b:00", "pci:3b:00.0", " 0000:3B:00.0 "])
def test_every_spelling_is_the_same_place(text: str) -> None:
    assert bus_slot(text) == HERE


@pytest.mark.parametrize("text", [None, "", "3b", "gg:00.0", "0:0:0:0:0"])
def test_what_is_no_place_is_none(text: str | None) -> None:
    assert bus_slot(text) is None


def test_it_reads_what_is_written_from_now_on_and_sleeps_between(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    found: list[XidLine] = []
    said = threading.Event()
    log = KernelLog(lambda line: found.append(line) or said.set(), str(path))
    try:
        if not log.readable:  # a FIFO cannot be sought; the kernel's file can
            pytest.fail("the log is not read")
        os.write(writer, b"3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n")
        wait_until(said.is_set, "the line")
        assert [(line.slot, line.xid) for line in found] == [(HERE, 79)]
    finally:
        log.stop()
        log.stop()
        os.close(writer)


def test_a_log_that_may_not_be_read_is_no_error(tmp_path: Path) -> None:
    log = KernelLog(lambda line: None, str(tmp_path / "none"))
    assert not log.readable
    log.stop()


# --- the lines around a fault -------------------------------------------------------------------------------------------


def test_the_lines_around_a_fault_are_told_once_it_is_quiet() -> None:
    around = Surroundings()
    around.line("NVRM: long ago", now=80.0)
    around.line("pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received", now=99.0)
    around.line("eth0: link up", now=99.5)
    around.line("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\\x0a DRIVER=nvidia", now=100.0)
    around.fault(HERE, now=100.0)
    assert around.wait_s(now=100.5) == pytest.approx(AFTER_S - 0.5)
    around.line("NVRM: A GPU crash dump has been created.", now=101.0)
    assert around.take(now=101.9) == []
    assert around.take(now=102.0) == [
        (
            HERE,
            (
                "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received",
                "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
                "NVRM: A GPU crash dump has been created.",
            ),
        )
    ]
    assert (around.take(now=110.0), around.wait_s(now=110.0)) == ([], None)


def test_a_storm_of_faults_is_one_excerpt_of_bounded_length() -> None:
    around = Surroundings()
    told = []
    for n in range(40):
        now = 100.0 + n * 0.5
        around.line(f"NVRM: Xid (PCI:0000:3b:00): 31, number {n} " + "x" * 1000, now=now)
        around.fault(HERE, now=now)
        told += around.take(now=now)
    # 20 s of faults: told after ten seconds each, not after the last one.
    assert len(told) == 1
    (_slot, lines) = told[0]
    assert len(lines) <= LINES_MOST + 1
    assert max(map(len, lines)) <= 300
    assert "number 0" in lines[0]
    assert around.wait_s(now=120.0) is not None


def test_a_fault_of_no_known_card_has_no_surroundings() -> None:
    around = Surroundings()
    around.fault(None, now=1.0)
    assert around.wait_s(now=1.0) is None


def test_the_thread_tells_them_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.backends.kernel_log.AFTER_S", 0.05)
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    found: list[tuple[object, tuple[str, ...]]] = []
    log = KernelLog(lambda line: None, str(path), around=lambda slot, lines: found.append((slot, lines)))
    try:
        os.write(writer, b"3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n DRIVER=nvidia\n")
        wait_until(lambda: found, "the lines around it")
        assert found == [(HERE, ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",))]
    finally:
        log.stop()
        os.close(writer)
