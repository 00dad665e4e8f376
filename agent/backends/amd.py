"""AMD cards through amdsmi, the Python package that ROCm brings. It is not on PyPI in a form that fits every driver, so
it is taken from where ROCm put it.

Versions differ in names of fields, and what is not told is the text "N/A" or an exception: both are None here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.backends.base import BackendError, Cards, Complaints, HardwareEvent, Placed, Sanity, describe
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, GpuStatus, LinkInfo

log = logging.getLogger("nebula-agent")

PLACES = ("/opt/rocm/share/amd_smi", "/opt/rocm/libexec/amdsmi_cli/..")
MIB = 1024 * 1024
#: GT/s of a PCIe lane ×1000 → generation.
_GENERATION = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
#: What a register full of ones reads as.
_ONES = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def amdsmi_find() -> str | None:
    """The folder to import amdsmi from, "" when it is on the path already, None where it is not installed."""
    if importlib.util.find_spec("amdsmi") is not None:
        return ""
    return next((p for p in PLACES if Path(p, "amdsmi", "__init__.py").exists()), None)


def amdsmi_load() -> Any:
    """Raises BackendError."""
    place = amdsmi_find()
    if place is None:
        raise BackendError("amdsmi was not found: install ROCm's amd-smi-lib.", "no_library")
    if place:
        sys.path.append(place)
    try:
        return importlib.import_module("amdsmi")
    except Exception as error:  # it loads a C library when it is imported, and raises what it likes
        raise BackendError(f"amdsmi cannot be loaded: {error}.", "no_library") from error
    finally:
        if place:
            sys.path.remove(place)


@dataclass(slots=True)
class _Card:
    handle: Any
    info: GpuInfo


class AmdBackend:
    name = "amd"

    def __init__(self, amdsmi: Any | None = None) -> None:
        """``amdsmi``: the module; None = look for it when the backend is opened."""
        self.sanity, self._complaints = Sanity(), Complaints(log)
        self._given = amdsmi
        self._smi: Any = None
        self._cards: list[_Card] = []
        self._links: tuple[LinkInfo, ...] = ()
        self._driver: str | None = None

    # --- opening ----------------------------------------------------------------------------------------------

    def initialize(self) -> None:
        self.cleanup()
        smi = self._given if self._given is not None else amdsmi_load()
        try:
            smi.amdsmi_init()
        except Exception as error:
            raise BackendError(f"The AMD driver cannot be opened: {error}. Is amdgpu loaded?", "driver_not_loaded") from error
        self._smi = smi
        for handle in self._ask("amdsmi_get_processor_handles") or ():
            info = self._info(handle, len(self._cards))
            if info is not None:
                self._cards.append(_Card(handle, info))
        first = self._cards[0].handle if self._cards else None
        self._driver = _text(self._field("amdsmi_get_gpu_driver_info", "driver_version", first)) if first is not None else None
        self._links = tuple(self._find_links())

    def _ask(self, call: str, *args: Any) -> Any:
        """The call's value; None where it is missing, refused or "N/A"."""
        try:
            value = getattr(self._smi, call)(*args)
        except Exception as error:  # amdsmi raises exceptions of its own for everything
            log.debug("%s: %s", call, error)
            return None
        return None if value == "N/A" else value

    def _field(self, call: str, names: str | tuple[str, ...], *args: Any) -> Any:
        """The first of these fields of the dictionary that a call gives; None where there is none of them."""
        found = self._ask(call, *args)
        return _pick(found, (names,) if isinstance(names, str) else names)

    def _info(self, handle: Any, index: int) -> GpuInfo | None:
        uuid = _text(self._ask("amdsmi_get_gpu_device_uuid", handle))
        if uuid is None:
            return None
        asic = self._ask("amdsmi_get_gpu_asic_info", handle)
        static = _pick(self._ask("amdsmi_get_pcie_info", handle), ("pcie_static",))
        version = _text(_pick(asic, ("target_graphics_version",)))
        return self.sanity.info(
            GpuInfo(
                uuid=uuid if uuid.startswith("GPU-") else f"GPU-{uuid}",
                index=index,
                model=_text(_pick(asic, ("market_name",))) or "AMD GPU",
                vendor="amd",
                total_mib=_int(self._field("amdsmi_get_gpu_vram_usage", "vram_total", handle)),
                compute_capability=version,  # "gfx942"
                pci_bus_id=_text(self._ask("amdsmi_get_gpu_device_bdf", handle)),
                pcie_gen=_generation(_pick(static, ("max_pcie_speed",))),
                pcie_width=_int(_pick(static, ("max_pcie_width", "max_pcie_lanes"))),
                numa=_numa(self._ask("amdsmi_topo_get_numa_node_number", handle)),
            )
        )

    def _find_links(self) -> list[LinkInfo]:
        """XGMI is a direct link, as NVLink is; the rest is told by the distance on the bus."""
        kinds = getattr(self._smi, "AmdSmiIoLinkType", None)
        xgmi = getattr(getattr(kinds, "XGMI", None), "value", 2)
        found: list[LinkInfo] = []
        for i, a in enumerate(self._cards):
            for b in self._cards[i + 1 :]:
                kind = self._field("amdsmi_topo_get_link_type", "type", a.handle, b.handle)
                kind = getattr(kind, "value", kind)
                if kind == xgmi:
                    found.append(LinkInfo(a=a.info.uuid, b=b.info.uuid, kind="nvlink", via="xgmi"))
                elif kind is not None and None not in (a.info.numa, b.info.numa):
                    found.append(LinkInfo(a=a.info.uuid, b=b.info.uuid, kind="numa" if a.info.numa == b.info.numa else "system"))
        return found

    # --- reading ----------------------------------------------------------------------------------------------

    def inventory(self) -> Cards:
        return Cards(gpus=tuple(c.info for c in self._cards), links=self._links, driver_version=self._driver, backends=(self.name,))

    def get_status(self) -> list[GpuStatus]:
        if self._smi is None:
            raise BackendError("amdsmi is not open.", "driver_not_loaded")
        return [self._status(card) for card in self._cards]

    def _status(self, card: _Card) -> GpuStatus:
        smi, handle, uuid = self._smi, card.handle, card.info.uuid
        try:
            activity = self._ask("amdsmi_get_gpu_activity", handle)
            sensors, metrics, clocks = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric, smi.AmdSmiClkType
            temperature = None
            for sensor in ("EDGE", "HOTSPOT", "JUNCTION"):  # data-centre cards have no edge sensor
                if temperature is None and hasattr(sensors, sensor):
                    temperature = _int(self._ask("amdsmi_get_temp_metric", handle, getattr(sensors, sensor), metrics.CURRENT))
            power = self._ask("amdsmi_get_power_info", handle)
            status = GpuStatus(
                uuid=uuid,
                used_mib=_int(self._field("amdsmi_get_gpu_vram_usage", "vram_used", handle)),
                util_pct=_int(_pick(activity, ("gfx_activity",))),
                mem_util_pct=_int(_pick(activity, ("umc_activity",))),
                temp_c=temperature,
                power_w=next(
                    (w for name in ("current_socket_power", "average_socket_power") if (w := _int(_pick(power, (name,)))) is not None), None
                ),
                fan_pct=self._fan(handle),
                core_mhz=self._clock(handle, clocks.GFX),
                mem_mhz=self._clock(handle, clocks.MEM),
                throttle=None,
            )
            if status == GpuStatus(uuid=uuid, throttle=None):
                return GpuStatus(uuid=uuid, error="unreadable")  # a card that tells nothing at all is not a healthy one
            return self.sanity.sane(status)
        except Exception as error:  # whatever one card makes of a call, the others are told
            self._complaints.make(f"Card {uuid} cannot be read.", error)
            return GpuStatus(uuid=uuid, error="unreadable")

    def _clock(self, handle: Any, kind: Any) -> int | None:
        return _int(self._field("amdsmi_get_clock_info", ("clk", "cur_clk"), handle, kind))

    def _fan(self, handle: Any) -> int | None:
        speed = _int(self._ask("amdsmi_get_gpu_fan_speed", handle, 0))
        most = _int(self._ask("amdsmi_get_gpu_fan_speed_max", handle, 0))
        return None if speed is None or not most else round(100 * speed / most)

    def get_health(self) -> list[GpuHealth]:
        found: list[GpuHealth] = []
        for card in self._cards:
            handle = card.handle
            metric = _pick(self._ask("amdsmi_get_pcie_info", handle), ("pcie_metric",))
            ecc = self._ask("amdsmi_get_gpu_total_ecc_count", handle)
            cap = self._ask("amdsmi_get_power_cap_info", handle)
            clocks = getattr(self._smi, "AmdSmiClkType", None)
            top = [
                _int(self._field("amdsmi_get_clock_info", "max_clk", handle, getattr(clocks, name, None))) if clocks else None
                for name in ("GFX", "MEM")
            ]
            found.append(
                self.sanity.healthy(
                    GpuHealth(
                        uuid=card.info.uuid,
                        ecc_corrected=_int(_pick(ecc, ("correctable_count",))),
                        ecc_uncorrected=_int(_pick(ecc, ("uncorrectable_count",))),
                        pcie_gen=_generation(_pick(metric, ("pcie_speed",))),
                        pcie_width=_int(_pick(metric, ("pcie_width", "pcie_lanes"))),
                        pcie_replays=_int(_pick(metric, ("pcie_replay_count",))),
                        power_limit_w=_microwatt(_pick(cap, ("power_cap",))),
                        power_default_w=_microwatt(_pick(cap, ("default_power_cap",))),
                        core_max_mhz=top[0],
                        mem_max_mhz=top[1],
                    )
                )
            )
        return found

    def get_process_list(self) -> list[GpuProcess] | None:
        found: list[GpuProcess] = []
        tells = not self._cards
        for card in self._cards:
            listed = self._ask("amdsmi_get_gpu_process_list", card.handle)
            if listed is None:
                continue
            tells = True
            for item in listed:
                # Before ROCm 6.0 the list is of handles, to be asked one by one.
                process = item if isinstance(item, dict) else self._ask("amdsmi_get_gpu_process_info", card.handle, item)
                pid = _int(_pick(process, ("pid",)))
                if pid is None or pid <= 0:
                    continue
                used = _int(_pick(_pick(process, ("memory_usage",)), ("vram_mem",)))
                if used is None:
                    used = _int(_pick(process, ("mem",)))
                found.append(describe(GpuProcess(uuid=card.info.uuid, pid=pid, used_mib=None if used is None else used // MIB)))
        return found if tells else None

    def events(self) -> list[HardwareEvent]:
        return self.sanity.events()

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    def cleanup(self) -> None:
        smi, self._smi = self._smi, None
        self._cards, self._links = [], ()
        if smi is not None:
            with contextlib.suppress(Exception):
                smi.amdsmi_shut_down()


def _pick(found: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(found, dict):
        return None
    return next((found[name] for name in names if found.get(name) not in (None, "N/A")), None)


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value in _ONES:
        return None
    return int(value)


def _text(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) and value != "N/A" else None


def _generation(speed: Any) -> int | None:
    """MT/s, or GT/s in some versions → PCIe generation."""
    number = _int(speed)
    if number is None:
        return None
    return _GENERATION.get(number) or _GENERATION.get(number * 1000) or {2: 1}.get(number)


def _numa(value: Any) -> int | None:
    number = _int(value)
    return number if number is not None and number >= 0 else None


def _microwatt(value: Any) -> int | None:
    """Newer versions tell W, older µW."""
    number = _int(value)
    return None if number is None else number // 1_000_000 if number > 100_000 else number
