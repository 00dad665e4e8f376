"""The slow facts of an NVIDIA card. About 30 cheap calls a card, every 30 s."""

from __future__ import annotations

from typing import Any

from agent.backends.nvml_lib import Nvml
from agent.backends.nvml_topology import NVLINKS_MAX
from agent.protocol import GpuHealth

MIB = 1024 * 1024
#: NVML's bits of the clock event reasons → our words. Bit 0, idle, is no reason to worry and is left out.
THROTTLE = (
    (0x2, "app_clocks"),
    (0x4, "power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "power_brake"),
    (0x100, "display_clock"),
)


def throttle_read(nvml: Nvml, handle: Any) -> tuple[str, ...] | None:
    """What holds the clocks down now; None where the card does not tell. Raises NVMLError for a lost card."""
    bits = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if bits is None:  # the name before R535
        bits = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return None if bits is None else tuple(word for bit, word in THROTTLE if bits & bit)


#: NVML's driver models of Windows.
DRIVER_MODELS = {0: "wddm", 1: "tcc", 2: "mcdm"}


def health_read(nvml: Nvml, handle: Any, uuid: str, *, driver_model: bool = False) -> GpuHealth:
    """All that the card tells, unfiltered; ``driver_model``: that of Windows, too. Raises NVMLError for a lost card."""
    raw = nvml.raw
    modes = {
        raw.NVML_COMPUTEMODE_DEFAULT: "default",
        raw.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
        raw.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive_process",
    }
    ecc = nvml.ask("nvmlDeviceGetEccMode", handle)
    counts: dict[str, Any] = {}
    if ecc is not None and ecc[0]:
        corrected, uncorrected = raw.NVML_MEMORY_ERROR_TYPE_CORRECTED, raw.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        counts = {
            "ecc_corrected": nvml.ask("nvmlDeviceGetTotalEccErrors", handle, corrected, raw.NVML_VOLATILE_ECC),
            "ecc_uncorrected": nvml.ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, raw.NVML_VOLATILE_ECC),
            "ecc_uncorrected_total": nvml.ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, raw.NVML_AGGREGATE_ECC),
        }
    links, up, errors = _nvlinks(nvml, handle)
    bar1 = nvml.ask("nvmlDeviceGetBAR1MemoryInfo", handle)
    return GpuHealth(
        uuid=uuid,
        ecc=None if ecc is None else bool(ecc[0]),
        **counts,
        **_rows(nvml, handle),
        pcie_gen=nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_replays=nvml.ask("nvmlDeviceGetPcieReplayCounter", handle),
        nvlinks=links,
        nvlinks_up=up,
        nvlink_errors=errors,
        persistence=_bool(nvml.ask("nvmlDeviceGetPersistenceMode", handle)),
        compute_mode=modes.get(nvml.ask("nvmlDeviceGetComputeMode", handle)),
        power_limit_w=_watt(nvml.ask("nvmlDeviceGetEnforcedPowerLimit", handle)),
        power_default_w=_watt(nvml.ask("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        core_max_mhz=nvml.ask("nvmlDeviceGetMaxClockInfo", handle, raw.NVML_CLOCK_SM),
        mem_max_mhz=nvml.ask("nvmlDeviceGetMaxClockInfo", handle, raw.NVML_CLOCK_MEM),
        slow_c=nvml.ask("nvmlDeviceGetTemperatureThreshold", handle, raw.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        bar1_mib=None if bar1 is None else bar1.bar1Total // MIB,
        driver_model=_driver_model(nvml, handle) if driver_model else None,
        energy_j=_thousandth(nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle)),
    )


def _driver_model(nvml: Nvml, handle: Any) -> str | None:
    """The one in force (not the one that a restart would bring)."""
    found = nvml.ask("nvmlDeviceGetDriverModel", handle)
    return None if found is None else DRIVER_MODELS.get(found[0])


def _rows(nvml: Nvml, handle: Any) -> dict[str, Any]:
    """Ampere and later remap rows, older cards retire pages; consumer cards do neither."""
    raw = nvml.raw
    rows = nvml.ask("nvmlDeviceGetRemappedRows", handle)
    if rows is not None:
        _corrected, uncorrected, pending, failed = rows
        return {"remapped_rows": uncorrected, "remap_pending": bool(pending), "remap_failed": bool(failed)}
    causes = (raw.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS, raw.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
    pages = [nvml.ask("nvmlDeviceGetRetiredPages", handle, cause) for cause in causes]
    known = [len(found) for found in pages if found is not None]
    pending = nvml.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    return {"retired_pages": sum(known) if known else None, "remap_pending": _bool(pending)}


def _nvlinks(nvml: Nvml, handle: Any) -> tuple[int | None, int | None, int | None]:
    """(links that the card has, of them up, their errors so far); all None on a card without NVLink."""
    raw = nvml.raw
    counters = (
        raw.NVML_NVLINK_ERROR_DL_REPLAY,
        raw.NVML_NVLINK_ERROR_DL_RECOVERY,
        raw.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        raw.NVML_NVLINK_ERROR_DL_CRC_DATA,
    )
    states = [nvml.ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(NVLINKS_MAX)]
    known = [link for link, state in enumerate(states) if state is not None]
    if not known:
        return None, None, None
    up = [link for link in known if states[link]]
    counts = [nvml.ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter) for link in up for counter in counters]
    told = [count for count in counts if count is not None]
    return len(known), len(up), sum(told) if told else None


def _bool(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _watt(milliwatt: Any) -> Any:
    return None if milliwatt is None else milliwatt // 1000


def _thousandth(value: Any) -> Any:
    return None if value is None else value // 1000
