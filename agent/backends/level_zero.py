"""Intel cards through Level Zero's sysman (libze_loader.so.1), by ctypes.

Use and power come as counters: each is the difference of two readings, so the first sample has neither. What a card
does not tell is None; a card that is lost has `error="lost"`, and the others stay complete.
"""

from __future__ import annotations

import ctypes
import logging
import os
import uuid as uuids
from collections.abc import Sequence
from ctypes import byref, c_double, c_int32, c_uint32, c_void_p
from dataclasses import dataclass, field
from typing import Any

from agent.backends import level_zero_abi as abi
from agent.backends.base import BackendError, Cards, Complaints, HardwareEvent, Placed, Sanity, describe
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, GpuStatus

log = logging.getLogger("nebula-agent")

LOADER = "libze_loader.so.1"
LOADER_DIRS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
MIB = 1024 * 1024


def loader_present() -> bool:
    """Whether Level Zero's loader lies where the linker looks; loads nothing."""
    dirs = [d for d in os.environ.get("LD_LIBRARY_PATH", "").split(":") if d]
    return any(os.path.exists(os.path.join(d, LOADER)) for d in (*dirs, *LOADER_DIRS))


class _Lost(Exception):
    """The card does not answer any more, or wants a reset."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.error = error


@dataclass(slots=True)
class _Card:
    device: c_void_p
    info: GpuInfo
    memories: list[c_void_p]
    engines: list[c_void_p]
    temperature: c_void_p | None
    power: c_void_p | None
    core: c_void_p | None
    memory_clock: c_void_p | None
    fan: c_void_p | None
    ras: dict[int, list[c_void_p]]
    slow_c: int | None
    core_max_mhz: int | None
    before: dict[str, tuple[int, int]] = field(default_factory=dict)  # counter → (value, timestamp) of the last reading


class LevelZeroBackend:
    name = "level_zero"

    def __init__(self, path: str = LOADER) -> None:
        """``path``: the loader library, a name for the linker or a file."""
        self.sanity, self._complaints = Sanity(), Complaints(log)
        self._path = path
        self._zes: abi.Sysman | None = None
        self._cards: list[_Card] = []
        self._driver: str | None = None

    # --- opening ----------------------------------------------------------------------------------------------

    def initialize(self) -> None:
        self.cleanup()
        os.environ.setdefault("ZES_ENABLE_SYSMAN", "1")  # loaders before 1.5 have no zesInit and read this
        try:
            zes = abi.Sysman(self._path)
        except OSError as error:
            raise BackendError(f"{LOADER} cannot be loaded: {error}. Install level-zero and intel-level-zero-gpu.", "no_library") from error
        is_new = zes.function("zesInit") is not None
        code = zes.call("zesInit", c_uint32(0)) if is_new else zes.call("zeInit", c_uint32(0))
        if code == abi.INSUFFICIENT_PERMISSIONS:
            raise BackendError("This user may not open the Intel devices: add it to the groups render and video.", "no_permission")
        if code not in (abi.SUCCESS, abi.UNINITIALIZED):  # the latter is what a loader without any driver says
            raise BackendError(f"Level Zero cannot be opened (0x{code:x}): is the Intel GPU driver installed?", "driver_not_loaded")
        self._zes = zes
        drivers = zes.handles("zesDriverGet" if is_new else "zeDriverGet") if code == abi.SUCCESS else []
        devices = [d for driver in drivers for d in zes.handles("zesDeviceGet" if is_new else "zeDeviceGet", driver)]
        for device in devices:
            try:
                card = self._open_card(zes, device, len(self._cards))
            except Exception as error:
                self._complaints.make("An Intel device cannot be opened.", error)
                continue
            if card is not None:
                self._cards.append(card)

    def _open_card(self, zes: abi.Sysman, device: c_void_p, index: int) -> _Card | None:
        properties = abi.DeviceProperties.new()
        properties.core.stype = abi.CoreProperties.TYPE
        if zes.call("zesDeviceGetProperties", device, byref(properties)) != abi.SUCCESS:
            return None
        core = properties.core
        if core.type != abi.DEVICE_TYPE_GPU:
            return None  # NPUs and FPGAs answer here, too
        self._driver = self._driver or _text(properties.driver)
        pci = self._get(zes, "zesDevicePciGetProperties", device, abi.PciProperties)
        memories = zes.handles("zesDeviceEnumMemoryModules", device)
        temperature, slow_c = self._temperature_sensor(zes, device)
        clocks = {
            p.type: (handle, p)
            for handle in zes.handles("zesDeviceEnumFrequencyDomains", device)
            if (p := self._get(zes, "zesFrequencyGetProperties", handle, abi.FreqProperties)) is not None
        }
        ras: dict[int, list[c_void_p]] = {}
        for handle in zes.handles("zesDeviceEnumRasErrorSets", device):
            found = self._get(zes, "zesRasGetProperties", handle, abi.RasProperties)
            if found is not None:
                ras.setdefault(found.type, []).append(handle)
        fans = zes.handles("zesDeviceEnumFans", device)
        powers = zes.handles("zesDeviceEnumPowerDomains", device)
        address = pci.address if pci is not None else None
        info = GpuInfo(
            uuid=f"GPU-{uuids.UUID(bytes=bytes(core.uuid))}",
            index=index,
            model=_text(core.name) or _text(properties.model) or "Intel GPU",
            vendor="intel",
            # A GPU inside the processor has no memory of its own, and takes no work: its total stays unknown.
            total_mib=self._total(zes, memories),
            pci_bus_id=f"{address.domain:08X}:{address.bus:02X}:{address.device:02X}.{address.function:X}" if address else None,
            pcie_gen=_known(pci.speed.gen) if pci is not None else None,
            pcie_width=_known(pci.speed.width) if pci is not None else None,
            unified=bool(core.flags & abi.INTEGRATED),
        )
        top = clocks[abi.FREQ_GPU][1].max if abi.FREQ_GPU in clocks else -1
        return _Card(
            device=device,
            info=self.sanity.info(info),
            memories=memories,
            engines=self._engines(zes, device),
            temperature=temperature,
            power=powers[0] if powers else None,
            core=clocks[abi.FREQ_GPU][0] if abi.FREQ_GPU in clocks else None,
            memory_clock=clocks[abi.FREQ_MEMORY][0] if abi.FREQ_MEMORY in clocks else None,
            fan=fans[0] if fans else None,
            ras=ras,
            slow_c=slow_c,
            core_max_mhz=round(top) if top > 0 else None,
        )

    def _temperature_sensor(self, zes: abi.Sysman, device: c_void_p) -> tuple[c_void_p | None, int | None]:
        """The sensor of the chip, else that of the whole board; and its maximum."""
        found: dict[int, tuple[c_void_p, Any]] = {}
        for handle in zes.handles("zesDeviceEnumTemperatureSensors", device):
            properties = self._get(zes, "zesTemperatureGetProperties", handle, abi.TempProperties)
            if properties is not None:
                found.setdefault(properties.type, (handle, properties))
        for kind in (abi.TEMP_GPU, abi.TEMP_GLOBAL):
            if kind in found:
                handle, properties = found[kind]
                return handle, round(properties.max) if 20 <= properties.max <= 150 else None
        return None, None

    def _engines(self, zes: abi.Sysman, device: c_void_p) -> list[c_void_p]:
        """The engine groups of which the busiest is the card's use: all engines where there is such a group."""
        groups: dict[int, list[c_void_p]] = {}
        for handle in zes.handles("zesDeviceEnumEngineGroups", device):
            properties = self._get(zes, "zesEngineGetProperties", handle, abi.EngineProperties)
            if properties is not None:
                groups.setdefault(properties.type, []).append(handle)
        for kinds in (
            (abi.ENGINE_ALL,),
            (abi.ENGINE_3D_RENDER_COMPUTE_ALL,),
            (abi.ENGINE_COMPUTE_ALL, abi.ENGINE_RENDER_ALL),
        ):
            found = [handle for kind in kinds for handle in groups.get(kind, ())]
            if found:
                return found
        return []

    def _get(self, zes: abi.Sysman, call: str, handle: c_void_p, kind: type[abi.Struct]) -> Any | None:
        """A filled structure; None where it is not told. Raises _Lost."""
        found = kind.new()
        return found if self._ok(zes.call(call, handle, byref(found))) else None

    @staticmethod
    def _ok(code: int) -> bool:
        if code == abi.DEVICE_LOST:
            raise _Lost("lost")
        if code == abi.DEVICE_REQUIRES_RESET:
            raise _Lost("reset_required")
        return code == abi.SUCCESS

    def _total(self, zes: abi.Sysman, memories: Sequence[c_void_p]) -> int | None:
        total = 0
        for handle in memories:
            # Physical size is 0 on some boards; then what can be allocated is the answer.
            properties = self._get(zes, "zesMemoryGetProperties", handle, abi.MemProperties)
            size = properties.physical if properties is not None else 0
            if not size:
                state = self._get(zes, "zesMemoryGetState", handle, abi.MemState)
                size = state.size if state is not None else 0
            total += size
        return total // MIB or None

    # --- reading ----------------------------------------------------------------------------------------------

    def inventory(self) -> Cards:
        return Cards(gpus=tuple(c.info for c in self._cards), driver_version=self._driver, backends=(self.name,))

    def _open(self) -> abi.Sysman:
        if self._zes is None:
            raise BackendError("Level Zero is not open.", "driver_not_loaded")
        return self._zes

    def get_status(self) -> list[GpuStatus]:
        zes = self._open()
        return [self._status(zes, card) for card in self._cards]

    def _status(self, zes: abi.Sysman, card: _Card) -> GpuStatus:
        uuid = card.info.uuid
        try:
            state = self._get(zes, "zesDeviceGetState", card.device, abi.DeviceState)
            if state is not None and state.reset & 1:
                raise _Lost("reset_required")  # the driver calls the card wedged
            core = self._get(zes, "zesFrequencyGetState", card.core, abi.FreqState) if card.core else None
            memory = self._get(zes, "zesFrequencyGetState", card.memory_clock, abi.FreqState) if card.memory_clock else None
            throttle = None
            if core is not None:
                throttle = tuple(dict.fromkeys(word for bit, word in abi.THROTTLE if core.throttle & bit))
            return self.sanity.sane(
                GpuStatus(
                    uuid=uuid,
                    used_mib=self._used(zes, card),
                    util_pct=self._use(zes, card),
                    temp_c=self._temperature(zes, card),
                    power_w=self._power(zes, card),
                    fan_pct=self._fan(zes, card),
                    core_mhz=_clock(core),
                    mem_mhz=_clock(memory),
                    throttle=throttle,
                )
            )
        except _Lost as error:
            card.before.clear()
            return GpuStatus(uuid=uuid, error=error.error)
        except Exception as error:  # whatever one card makes of a call, the others are told
            self._complaints.make(f"Card {uuid} cannot be read.", error)
            return GpuStatus(uuid=uuid, error="unreadable")

    def _used(self, zes: abi.Sysman, card: _Card) -> int | None:
        if card.info.total_mib is None:
            return None
        used = 0
        for handle in card.memories:
            state = self._get(zes, "zesMemoryGetState", handle, abi.MemState)
            if state is None or not state.size or state.free > state.size:
                return None  # a part of the truth is none
            used += state.size - state.free
        return used // MIB if card.memories else None

    def _use(self, zes: abi.Sysman, card: _Card) -> int | None:
        """Share of the time since the last reading in which the busiest engine group ran, per cent."""
        most: float | None = None
        for number, handle in enumerate(card.engines):
            stats = abi.EngineStats()
            if not self._ok(zes.call("zesEngineGetActivity", handle, byref(stats))):
                continue
            rate = self._rate(card, f"engine{number}", stats.active, stats.timestamp)
            if rate is not None:
                most = rate if most is None else max(most, rate)
        # The two counters are not read in one moment: a little over 100 is 100; more is nonsense and goes to the filter.
        return None if most is None else min(100, round(most * 100)) if most <= 1.05 else round(most * 100)

    def _power(self, zes: abi.Sysman, card: _Card) -> int | None:
        """Watt, the mean since the last reading."""
        if card.power is None:
            return None
        counter = abi.EnergyCounter()
        if not self._ok(zes.call("zesPowerGetEnergyCounter", card.power, byref(counter))):
            return None
        rate = self._rate(card, "power", counter.energy, counter.timestamp)  # µJ a µs = W
        return None if rate is None else round(rate)

    @staticmethod
    def _rate(card: _Card, name: str, value: int, timestamp: int) -> float | None:
        """(value − value before) ÷ (time − time before); None at the first reading and after a counter began anew."""
        before = card.before.get(name)
        card.before[name] = (value, timestamp)
        if before is None or timestamp <= before[1] or value < before[0]:
            return None
        return (value - before[0]) / (timestamp - before[1])

    def _temperature(self, zes: abi.Sysman, card: _Card) -> int | None:
        value = c_double()
        if card.temperature is None or not self._ok(zes.call("zesTemperatureGetState", card.temperature, byref(value))):
            return None
        return round(value.value)

    def _fan(self, zes: abi.Sysman, card: _Card) -> int | None:
        value = c_int32(-1)
        if card.fan is None or not self._ok(zes.call("zesFanGetState", card.fan, c_uint32(abi.FAN_PERCENT), byref(value))):
            return None
        return None if value.value == -1 else value.value  # -1: this fan does not tell

    def get_health(self) -> list[GpuHealth]:
        zes = self._open()
        found: list[GpuHealth] = []
        for card in self._cards:
            try:
                pci = self._get(zes, "zesDevicePciGetState", card.device, abi.PciState)
                energy = abi.EnergyCounter()
                has_energy = card.power is not None and self._ok(zes.call("zesPowerGetEnergyCounter", card.power, byref(energy)))
                found.append(
                    self.sanity.healthy(
                        GpuHealth(
                            uuid=card.info.uuid,
                            ecc_corrected=self._errors(zes, card, abi.RAS_CORRECTABLE),
                            ecc_uncorrected=self._errors(zes, card, abi.RAS_UNCORRECTABLE),
                            pcie_gen=_known(pci.speed.gen) if pci is not None else None,
                            pcie_width=_known(pci.speed.width) if pci is not None else None,
                            core_max_mhz=card.core_max_mhz,
                            slow_c=card.slow_c,
                            energy_j=energy.energy // 1_000_000 if has_energy else None,
                        )
                    )
                )
            except _Lost:
                continue  # its status says so
            except Exception as error:
                self._complaints.make(f"The slow facts of card {card.info.uuid} cannot be read.", error)
        return found

    def _errors(self, zes: abi.Sysman, card: _Card, kind: int) -> int | None:
        """Errors of compute, fixed-function and cache parts since the driver was loaded; resets are not memory errors."""
        total: int | None = None
        for handle in card.ras.get(kind, ()):
            state = abi.RasState.new()
            if self._ok(zes.call("zesRasGetState", handle, ctypes.c_uint8(0), byref(state))):
                total = (total or 0) + sum(state.category[i] for i in (3, 4, 5))
        return total

    def get_process_list(self) -> list[GpuProcess] | None:
        """None where no card tells: without root only the own processes are shown on most systems."""
        zes = self._open()
        found: dict[tuple[str, int], int] = {}  # a process may be listed once for each part of the card
        tells = not self._cards
        for card in self._cards:
            count = c_uint32(0)
            try:
                if not self._ok(zes.call("zesDeviceProcessesGetState", card.device, byref(count), None)):
                    continue
                tells = True
                room = (abi.ProcessState * max(1, count.value + 8))()
                for item in room:
                    item.stype = abi.ProcessState.TYPE
                count.value = len(room)
                if not count.value or not self._ok(zes.call("zesDeviceProcessesGetState", card.device, byref(count), room)):
                    continue
            except _Lost:
                continue
            for state in room[: count.value]:
                if state.pid:
                    key = (card.info.uuid, int(state.pid))
                    found[key] = found.get(key, 0) + int(state.mem)
        if not tells:
            return None
        return [describe(GpuProcess(uuid=uuid, pid=pid, used_mib=used // MIB)) for (uuid, pid), used in found.items()]

    def events(self) -> list[HardwareEvent]:
        return self.sanity.events()

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    def cleanup(self) -> None:
        """Sysman has nothing to close; the library stays loaded with the process."""
        self._zes, self._cards = None, []


def _text(value: Any) -> str | None:
    text = bytes(value).split(b"\0")[0].decode("utf-8", "replace").strip()
    return None if text.lower() in ("", "unknown", "unkown") else text


def _known(value: int) -> int | None:
    return value if value > 0 else None  # -1: not known


def _clock(state: Any | None) -> int | None:
    return None if state is None or state.actual < 0 else round(state.actual)
