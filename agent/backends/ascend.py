"""Ascend cards (Huawei NPUs) through `npu-smi info`.

The tool takes a second or two and is a program of its own, so it runs every 15 s at most and once more where the process
list is asked for; never two at a time. One that does not end is killed, and while it survives that no other is started.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import time
import uuid as uuids
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.backends.base import BackendError, Cards, HardwareEvent, Placed, Sanity, describe
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, GpuStatus

log = logging.getLogger("nebula-agent")

PLACES = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi", "/usr/local/Ascend/driver/tools/npu-smi")
EVERY_S = 15.0
TIMEOUT_S = 8.0  # below the probe's deadline


def npu_smi_find() -> str | None:
    return shutil.which("npu-smi") or next((p for p in PLACES if os.access(p, os.X_OK)), None)


# --- the text ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One chip as the tool shows it; "NA" and "-" are None. The tool writes MB and means MiB: 65536 for 64 GiB."""

    npu: int
    chip: int
    name: str
    health: str | None = None
    power_w: float | None = None
    temp_c: int | None = None
    bus: str | None = None
    aicore_pct: int | None = None
    used_mib: int | None = None
    total_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """All that one run told. ``broken``: lines of the tables that could not be read."""

    version: str | None = None
    readings: tuple[Reading, ...] = ()
    processes: tuple[tuple[int, int, int, int | None], ...] = ()  # (npu, chip, pid, MiB)
    broken: tuple[str, ...] = field(default=())


_FIRST = re.compile(r"(\d+)\s+(\S*[A-Za-z]\S*)")  # "0     910B3"
_SECOND = re.compile(r"(\d+)(?:\s+(?:\d+|NA|-))?")  # "0" or "0     2": chip, and its physical id
_BUS = re.compile(r"(?:[0-9A-Fa-f]{4}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]|NA|-")
_PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")


def output_parse(text: str) -> Output:
    """The tables of `npu-smi info`, from version 21 to 26: a chip is two rows, its processes are in a second table.

    A row that can't be read costs its own chip only.
    """
    version: str | None = None
    readings: list[Reading] = []
    processes: list[tuple[int, int, int, int | None]] = []
    broken: list[str] = []
    first: tuple[int, str, list[str]] | None = None
    in_processes = False
    for line in text.splitlines():
        line = line.strip()
        if not line.startswith("|"):
            continue
        if not line.endswith("|") or len(line) < 2:
            broken.append(line)  # cut off: what is left of a number is another number
            first = None
            continue
        found = re.search(r"Version:\s*(\S+)", line)
        if found is not None and version is None:
            version = found[1]
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if "Process id" in line:
            in_processes = True
        if any(word in line for word in ("NPU ", "Chip ", "Process id")) and not cells[0][:1].isdigit():
            continue  # a heading, or "No running processes found in NPU 0"
        if in_processes:
            process = _process(cells)
            if process is not None:
                processes.append(process)
            elif cells[0]:
                broken.append(line)
            continue
        if len(cells) == 3 and (start := _FIRST.fullmatch(cells[0])):
            if first is not None:
                broken.append(f"no second row for NPU {first[0]}")
            first = int(start[1]), start[2], cells
        elif len(cells) == 3 and first is not None and (second := _SECOND.fullmatch(cells[0])) and _BUS.fullmatch(cells[1]):
            readings.append(_reading(first[0], int(second[1]), first[1], first[2], cells))
            first = None
        else:
            broken.append(line)
            first = None
    return Output(version=version, readings=tuple(readings), processes=tuple(processes), broken=tuple(broken))


def _process(cells: Sequence[str]) -> tuple[int, int, int, int | None] | None:
    if len(cells) != 4 or not cells[1].isdigit():
        return None
    place = cells[0].split()
    if not place or not all(word.isdigit() for word in place):
        return None
    return int(place[0]), int(place[1]) if len(place) > 1 else 0, int(cells[1]), int(cells[3]) if cells[3].isdigit() else None


def _reading(npu: int, chip: int, name: str, above: Sequence[str], below: Sequence[str]) -> Reading:
    power, temp = [*above[2].split(), "", ""][:2]
    pairs = [(int(a), int(b)) for a, b in _PAIR.findall(below[2])]
    # DDR first, HBM last; a card has one or the other, and 0 / 0 for what it does not have.
    used, total = next((pair for pair in reversed(pairs) if pair[1]), (None, None))
    aicore = (below[2].split() or [""])[0]
    return Reading(
        npu=npu,
        chip=chip,
        name=name,
        health=None if above[1] in ("", "NA", "-") else above[1],
        power_w=_float(power),
        temp_c=int(temp) if re.fullmatch(r"-?\d+", temp) else None,
        bus=None if below[1] in ("NA", "-") else below[1],
        aicore_pct=int(aicore) if aicore.isdigit() else None,
        used_mib=used,
        total_mib=total,
    )


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def serial_parse(text: str) -> str | None:
    """The serial number from `npu-smi info -t board -i N`."""
    found = re.search(r"^\s*Serial Number\s*:\s*([!-~]+)\s*$", text, re.MULTILINE)
    return found[1] if found is not None and found[1].upper() not in ("NA", "N/A", "-") else None


# --- the backend ------------------------------------------------------------------------------------------------


class Tool:
    """Runs npu-smi, one at a time."""

    def __init__(self, path: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._path, self._timeout_s = path, timeout_s
        self._stuck: subprocess.Popen[bytes] | None = None

    def __call__(self, *args: str) -> str:
        """Its output. Raises BackendError."""
        if self._stuck is not None and self._stuck.poll() is None:
            raise BackendError("npu-smi does not end (the Ascend driver hangs); no other one is started beside it.", "unresponsive")
        self._stuck = None
        path = self._path or npu_smi_find()
        if path is None:
            raise BackendError("npu-smi was not found: install the Ascend driver.", "no_library")
        try:
            child = subprocess.Popen(
                [path, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise BackendError(f"npu-smi cannot be started: {error}.", "no_library") from error
        try:
            output, _ = child.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            self._stuck = child
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            if child.stdout is not None:
                child.stdout.close()
            raise BackendError(f"npu-smi did not answer within {self._timeout_s:g} s.", "unresponsive") from None
        text = output.decode("utf-8", "replace")
        if child.returncode != 0:
            raise BackendError(f"npu-smi failed ({child.returncode}): {text.strip()[:200] or 'no text'}.", "driver_not_loaded")
        return text


class AscendBackend:
    name = "ascend"

    def __init__(self, run: Callable[..., str] | None = None, *, clock: Callable[[], float] = time.monotonic, root: str = "/") -> None:
        """``run(*args)`` → what npu-smi writes."""
        self.sanity = Sanity()
        self._run, self._clock, self._root = run or Tool(), clock, root
        self._output = Output()
        self._ran_at = float("-inf")
        self._is_fresh = False
        self._infos: dict[tuple[int, int], GpuInfo] = {}
        self._health: dict[str, str] = {}
        self._events: list[HardwareEvent] = []

    def initialize(self) -> None:
        self.cleanup()
        self._read()

    def _read(self) -> None:
        text = self._run("info")
        self._output, self._ran_at = output_parse(text), self._clock()
        if not self._output.readings and self._output.version is None:
            raise BackendError("npu-smi wrote no table that can be read; is the Ascend driver loaded?", "driver_not_loaded")
        for line in self._output.broken:
            log.debug("npu-smi wrote a line that can't be read: %s", line[:200])
        serials: dict[int, str | None] = {}
        for reading in self._output.readings:
            place = (reading.npu, reading.chip)
            if place not in self._infos:
                if reading.npu not in serials:
                    serials[reading.npu] = self._serial(reading.npu)
                self._infos[place] = self._info(reading, serials[reading.npu])
            elif self._infos[place].total_mib is None:
                self._infos[place] = replace(self._infos[place], total_mib=reading.total_mib)
            self._health_take(self._infos[place].uuid, reading.health)
        self._number()

    def _number(self) -> None:
        """Indexes in the order of NPU and chip, which is the order of ASCEND_RT_VISIBLE_DEVICES."""
        for index, place in enumerate(sorted(self._infos)):
            if self._infos[place].index != index:
                self._infos[place] = replace(self._infos[place], index=index)

    def _serial(self, npu: int) -> str | None:
        try:
            return serial_parse(self._run("info", "-t", "board", "-i", str(npu)))
        except BackendError:
            return None

    def _info(self, reading: Reading, serial: str | None) -> GpuInfo:
        if serial is not None:
            uuid = f"NPU-{serial[:60]}-{reading.chip}"
        else:  # the place in this machine is the next best name
            uuid = f"NPU-{uuids.uuid5(uuids.NAMESPACE_OID, f'{self._machine()}/{reading.bus or reading.npu}/{reading.chip}')}"
        name = reading.name if reading.name.lower().startswith("ascend") else f"Ascend {reading.name}"
        return self.sanity.info(
            GpuInfo(uuid=uuid, index=-1, model=name, vendor="ascend", total_mib=reading.total_mib, pci_bus_id=reading.bus)
        )

    def _machine(self) -> str:
        try:
            return Path(self._root, "etc/machine-id").read_text(encoding="ascii").strip()
        except OSError:
            return os.uname().nodename

    def _health_take(self, uuid: str, health: str | None) -> None:
        before = self._health.get(uuid)
        if health is not None and health != before:
            self._health[uuid] = health
            if before is not None or health != "OK":
                self._events.append(HardwareEvent(kind="card_health", gpu=uuid, data={"health": health[:40]}, at=time.time()))

    def inventory(self) -> Cards:
        gpus = sorted(self._infos.values(), key=lambda g: g.index)
        return Cards(gpus=tuple(gpus), driver_version=self._output.version, backends=(self.name,))

    def get_status(self) -> list[GpuStatus]:
        self._is_fresh = self._clock() - self._ran_at >= EVERY_S
        if self._is_fresh:
            self._read()
        seen = {(r.npu, r.chip): r for r in self._output.readings}
        found: list[GpuStatus] = []
        for place, info in sorted(self._infos.items(), key=lambda item: item[1].index):
            reading = seen.get(place)
            if reading is None:
                found.append(GpuStatus(uuid=info.uuid, error="unreadable"))  # its rows were missing or broken
            elif (reading.health or "").lower() in ("critical", "offline"):
                found.append(GpuStatus(uuid=info.uuid, error="unhealthy"))
            else:
                found.append(
                    self.sanity.sane(
                        GpuStatus(
                            uuid=info.uuid,
                            used_mib=reading.used_mib,
                            util_pct=reading.aicore_pct,
                            temp_c=reading.temp_c,
                            power_w=None if reading.power_w is None else round(reading.power_w),
                            throttle=None,
                        )
                    )
                )
        return found

    def get_health(self) -> list[GpuHealth]:
        return [self.sanity.healthy(GpuHealth(uuid=g.uuid)) for g in self.inventory().gpus]

    def get_process_list(self) -> list[GpuProcess] | None:
        if not self._is_fresh:
            self._read()
        self._is_fresh = False
        found: list[GpuProcess] = []
        for npu, chip, pid, used in self._output.processes:
            info = self._infos.get((npu, chip))
            if info is not None:
                found.append(describe(GpuProcess(uuid=info.uuid, pid=pid, used_mib=used)))
        return found

    def events(self) -> list[HardwareEvent]:
        found, self._events = self._events, []
        return self.sanity.events() + found

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    def cleanup(self) -> None:
        self._output, self._ran_at, self._infos, self._is_fresh = Output(), float("-inf"), {}, False
