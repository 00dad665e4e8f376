"""A module that answers as ROCm's amdsmi does, in the spellings of two of its versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

MIB = 1024 * 1024


class AmdSmiLibraryException(Exception):
    """Raised by the real one for everything that does not work, with a code of its own."""


def card(index: int, **changes: Any) -> dict[str, Any]:
    """What an MI300X tells through amdsmi of ROCm 6.4, call by call."""
    return {
        "amdsmi_get_gpu_device_uuid": f"{index:02x}ff74a1-0000-1000-806a-5bbc3d10d7a3",
        "amdsmi_get_gpu_device_bdf": f"0000:{index + 0x0C:02x}:00.0",
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002", "target_graphics_version": "gfx942"},
        "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.12.12"},
        "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 283},
        "amdsmi_get_gpu_activity": {"gfx_activity": 37, "umc_activity": 12, "mm_activity": "N/A"},
        "temperature": {"EDGE": "N/A", "HOTSPOT": 46},
        "amdsmi_get_power_info": {"current_socket_power": 144, "average_socket_power": "N/A", "power_limit": 750000000},
        "amdsmi_get_power_cap_info": {"power_cap": 750000000, "default_power_cap": 750000000},
        "amdsmi_get_gpu_fan_speed": AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED"),
        "amdsmi_get_gpu_fan_speed_max": AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED"),
        "clock": {"GFX": {"clk": 132, "min_clk": 132, "max_clk": 2100}, "MEM": {"clk": 900, "min_clk": 900, "max_clk": 1300}},
        "amdsmi_get_pcie_info": {
            "pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32000, "slot_type": "CEM"},
            "pcie_metric": {"pcie_width": 16, "pcie_speed": 32000, "pcie_replay_count": 0},
        },
        "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 1, "uncorrectable_count": 0, "deferred_count": 0},
        "amdsmi_topo_get_numa_node_number": index // 2,
        "amdsmi_get_gpu_process_list": [],
        **changes,
    }


def old_card(index: int) -> dict[str, Any]:
    """A Radeon through amdsmi of ROCm 5.7: other names, and processes as handles."""
    return card(
        index,
        amdsmi_get_gpu_asic_info={"market_name": "Radeon RX 7900 XTX"},
        amdsmi_get_gpu_vram_usage={"vram_total": 24560, "vram_used": 512},
        temperature={"EDGE": 41, "HOTSPOT": 50},
        amdsmi_get_power_info={"average_socket_power": 35, "current_socket_power": 0xFFFF},
        amdsmi_get_gpu_fan_speed=64,
        amdsmi_get_gpu_fan_speed_max=255,
        clock={"GFX": {"cur_clk": 500, "max_clk": 2500}, "MEM": {"cur_clk": 96, "max_clk": 1249}},
        amdsmi_get_pcie_info={
            "pcie_static": {"max_pcie_lanes": 16, "max_pcie_speed": 16},
            "pcie_metric": {"pcie_lanes": 8, "pcie_speed": 16},
        },
        amdsmi_get_gpu_process_list=["handle"],
        amdsmi_get_gpu_process_info={"name": "python", "pid": 4242, "mem": 300 * MIB},
    )


class FakeAmdsmi:
    """``cards``: for each what the calls give; a value that is an exception is raised, a missing one is an old library."""

    AmdSmiTemperatureType = SimpleNamespace(EDGE="EDGE", HOTSPOT="HOTSPOT")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="CURRENT")
    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiIoLinkType = SimpleNamespace(XGMI=SimpleNamespace(value=2))

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = list(cards)
        self.broken: Exception | None = None
        self.links: dict[tuple[int, int], dict[str, Any]] = {}

    def amdsmi_init(self) -> None:
        if self.broken is not None:
            raise self.broken

    def amdsmi_shut_down(self) -> None:
        return

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(len(self.cards)))

    def amdsmi_get_temp_metric(self, handle: int, sensor: str, metric: str) -> Any:
        return self._value(handle, "temperature")[sensor]

    def amdsmi_get_clock_info(self, handle: int, kind: str) -> Any:
        return self._value(handle, "clock")[kind]

    def amdsmi_topo_get_link_type(self, a: int, b: int) -> Any:
        return self.links[a, b]

    def _value(self, handle: int, name: str) -> Any:
        value = self.cards[handle][name]
        if isinstance(value, Exception):
            raise value
        return value

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_") or not any(name in card for card in self.cards):
            raise AttributeError(name)
        return lambda handle, *rest: self._value(handle, name)
