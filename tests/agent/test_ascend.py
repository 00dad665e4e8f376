"""Ascend cards from recorded outputs of npu-smi, from whole ones and from broken ones."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.backends.ascend import AscendBackend, Reading, Tool, output_parse, serial_parse
from agent.backends.base import BackendError
from tests.waiting import wait_until

RECORDED = Path(__file__).parent / "ascend"


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


class Npu:
    """npu-smi: ``info`` is its table; a board without an answer is an error. Counts its runs."""

    def __init__(self, info: str, *, serials: bool = True) -> None:
        self.info, self.serials, self.runs = info, serials, 0

    def __call__(self, *args: str) -> str:
        if args == ("info",):
            self.runs += 1
            return self.info
        if not self.serials:
            raise BackendError("npu-smi failed (1): not supported.", "driver_not_loaded")
        return recorded("board").replace("102311900123", f"SN{args[-1]}")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_910b_of_version_23() -> None:
    output = output_parse(recorded("v23_910b"))
    assert (output.version, output.broken) == ("23.0.6", ())
    first = Reading(npu=0, chip=0, name="910B3", health="OK", power_w=93.6, temp_c=40, bus="0000:C1:00.0")
    second = Reading(npu=1, chip=0, name="910B3", health="OK", power_w=301.4, temp_c=58, bus="0000:01:00.0")
    assert output.readings == (
        replace(first, aicore_pct=0, used_mib=3162, total_mib=65536),
        replace(second, aicore_pct=87, used_mib=41877, total_mib=65536),
    )
    assert output.processes == ((1, 0, 1234, 38742),)


def test_a_310p_of_version_22_has_two_chips_ddr_and_no_power() -> None:
    output = output_parse(recorded("v22_310p"))
    assert (output.version, output.broken) == ("22.0.4", ())
    assert [(r.npu, r.chip, r.health, r.power_w, r.used_mib, r.total_mib) for r in output.readings] == [
        (8, 0, "OK", None, 1699, 21527),
        (8, 1, "Warning", None, 1543, 21527),
    ]
    assert output.processes == ((8, 0, 4321, None),)  # "NA" MB


def test_a_910c_of_version_25_tells_power_for_the_first_of_its_chips() -> None:
    output = output_parse(recorded("v25_910c"))
    assert output.broken == ()
    assert [(r.npu, r.chip, r.power_w, r.health) for r in output.readings] == [
        (0, 0, 178.5, "OK"),
        (0, 1, None, "OK"),
        (1, 0, 186.3, "Critical"),
        (1, 1, None, "OK"),
    ]
    assert output.processes == ((1, 1, 881, 60104), (1, 1, 882, 512))


def test_version_26_has_wider_columns() -> None:
    output = output_parse(recorded("v26_wide"))
    assert (output.version, output.broken) == ("26.0.rc2", ())
    assert [(r.npu, r.chip, r.temp_c, r.used_mib) for r in output.readings] == [(0, 0, 34, 3419), (7, 0, 33, 2874)]


@pytest.mark.parametrize("line", range(6, 12))
@pytest.mark.parametrize("damage", ["| garbage |", "", "| 0 | 1 | 2 | 3 | 4 |", "\N{REPLACEMENT CHARACTER}" * 40])
def test_a_broken_line_costs_its_own_chip_only(line: int, damage: str) -> None:
    lines = recorded("v25_910c").splitlines()
    whole = output_parse("\n".join(lines)).readings
    lines[line] = damage
    found = output_parse("\n".join(lines)).readings
    if lines[line - 1].startswith(("+", "|")) and whole == found:
        return  # a ruler: nothing is lost with it
    assert set(found) < set(whole)
    assert len(found) == len(whole) - 1


@pytest.mark.parametrize("cut", range(0, 2200, 97))
def test_half_an_output_gives_what_it_has(cut: int) -> None:
    text = recorded("v25_910c")
    found = output_parse(text[:cut])
    assert set(found.readings) <= set(output_parse(text).readings)


@pytest.mark.parametrize(
    ("text", "serial"),
    [(recorded("board"), "102311900123"), ("Serial Number : NA\n", None), ("", None), ("\tSerial Number                  : -\n", None)],
)
def test_the_serial_number_of_a_board(text: str, serial: str | None) -> None:
    assert serial_parse(text) == serial


def test_cards_are_named_by_serial_number_and_chip_in_the_order_of_ascends_own_counting() -> None:
    backend = AscendBackend(Npu(recorded("v25_910c")))
    backend.initialize()
    gpus = backend.inventory().gpus
    assert [(g.index, g.uuid) for g in gpus] == [(0, "NPU-SN0-0"), (1, "NPU-SN0-1"), (2, "NPU-SN1-0"), (3, "NPU-SN1-1")]
    assert {(g.model, g.vendor, g.total_mib) for g in gpus} == {("Ascend910", "ascend", 65536)}
    assert backend.inventory().driver_version == "25.2.0"


def test_without_serial_numbers_the_place_in_the_machine_is_the_name(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    names = []
    for machine in ("one", "one", "two"):
        (tmp_path / "etc" / "machine-id").write_text(machine)
        backend = AscendBackend(Npu(recorded("v23_910b"), serials=False), root=str(tmp_path))
        backend.initialize()
        names.append([g.uuid for g in backend.inventory().gpus])
    assert names[0] == names[1] != names[2]
    assert len(set(names[0])) == 2


def test_a_critical_chip_is_an_error_and_a_change_of_health_an_event() -> None:
    npu = Npu(recorded("v25_910c"))
    clock = Clock()
    backend = AscendBackend(npu, clock=clock)
    backend.initialize()
    assert [s.error for s in backend.get_status()] == [None, None, "unhealthy", None]
    assert [(e.kind, e.gpu, e.data) for e in backend.events()] == [("card_health", "NPU-SN1-0", {"health": "Critical"})]
    npu.info = npu.info.replace("Critical", "OK      ")
    clock.now += 60
    assert [s.error for s in backend.get_status()] == [None] * 4
    assert [e.data for e in backend.events()] == [{"health": "OK"}]


def test_a_card_whose_line_breaks_stays_listed_as_unreadable() -> None:
    npu = Npu(recorded("v23_910b"))
    clock = Clock()
    backend = AscendBackend(npu, clock=clock)
    backend.initialize()
    npu.info = npu.info.replace("| 0000:C1:00.0  |", "| ??            |")
    clock.now += 60
    first, second = backend.get_status()
    assert (first.error, first.used_mib) == ("unreadable", None)
    assert (second.error, second.used_mib, second.util_pct, second.temp_c, second.power_w) == (None, 41877, 87, 58, 301)
    assert len(backend.inventory().gpus) == 2


def test_the_tool_runs_every_15_s_and_once_more_for_the_process_list() -> None:
    npu = Npu(recorded("v23_910b"))
    clock = Clock()
    backend = AscendBackend(npu, clock=clock)
    backend.initialize()
    for _ in range(4):
        backend.get_status()
        clock.now += 3
    assert npu.runs == 1
    clock.now += 3
    backend.get_status()
    assert npu.runs == 2
    assert [p.pid for p in backend.get_process_list() or ()] == [1234]
    assert npu.runs == 2  # this sample's status had just been read
    backend.get_status()
    backend.get_process_list()
    assert npu.runs == 3  # a list that is asked for at a rank's end must not be an old one


def test_an_output_without_a_table_is_one_clear_error() -> None:
    with pytest.raises(BackendError, match="no table"):
        AscendBackend(Npu("DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n")).initialize()


# --- the tool itself, as a program on PATH ---------------------------------------------------------------------------


def program(folder: Path, text: str) -> Path:
    path = folder / "npu-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_it_finds_the_program_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, f'[ "$*" = info ] && exec /bin/cat {RECORDED / "v23_910b.txt"}; exec /bin/cat {RECORDED / "board.txt"}')
    monkeypatch.setenv("PATH", str(tmp_path))
    backend = AscendBackend()
    backend.initialize()
    assert [s.used_mib for s in backend.get_status()] == [3162, 41877]


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"failed \(3\): dcmi module initialize failed") as caught:
        Tool(str(program(tmp_path, 'echo "dcmi module initialize failed. ret is -8005"; exit 3')))("info")
    assert caught.value.kind == "driver_not_loaded"


def test_a_program_that_hangs_is_ended_and_no_second_one_starts_beside_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    tool = Tool(str(program(tmp_path, f"echo $$ >> {pids}; exec /bin/sleep 600")), timeout_s=0.3)
    began = time.monotonic()
    with pytest.raises(BackendError) as caught:
        tool("info")
    assert time.monotonic() - began < 300  # not the 600 s of the program
    assert caught.value.kind == "unresponsive"
    assert tool._stuck is not None
    wait_until(lambda: tool._stuck is None or tool._stuck.poll() is not None, "its end")  # killed and reaped

    class Immortal:
        """Stuck in the driver, a process survives its kill."""

        def poll(self) -> None:
            return None

    tool._stuck = Immortal()  # type: ignore[assignment]
    with pytest.raises(BackendError, match="no other one is started"):
        tool("info")
    assert len(pids.read_text().split()) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


def test_a_program_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="install the Ascend driver"):
        Tool()("info")
