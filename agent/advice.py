"""What the facts of a card give reason to advise. Pure; the codes are put into words by the control plane and by `doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.protocol import GpuHealth, GpuInfo

#: How a hardware layer fails (BackendError.kind) → the advice for its node.
ADVICE_OF_ERROR = {
    "driver_mismatch": "driver_mismatch",
    "no_library": "nvml_missing",
    "driver_not_loaded": "driver_missing",
    "no_permission": "driver_no_permission",
    "nvml_error": "driver_missing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something to put right on a card. ``grave``: work on the card may go wrong, not only slowly."""

    code: str
    params: dict[str, Any]
    grave: bool = False


def card_findings(gpu: GpuInfo, health: GpuHealth) -> list[Finding]:
    """What is not told is no finding."""
    found: list[Finding] = []

    def add(code: str, *, grave: bool = False, **params: Any) -> None:
        found.append(Finding(code=code, params=params, grave=grave))

    if health.remap_failed:
        add("remap_failed", grave=True)
    if health.remap_pending:
        add("remap_pending")
    if health.ecc_uncorrected:
        add("ecc_uncorrected", count=health.ecc_uncorrected)
    if health.compute_mode in ("exclusive_process", "prohibited"):
        add("compute_mode", grave=health.compute_mode == "prohibited", mode=health.compute_mode)
    if health.persistence is False:
        add("persistence_off")
    if health.pcie_width is not None and gpu.pcie_width is not None and health.pcie_width < gpu.pcie_width:
        add("pcie_narrow", width=health.pcie_width, most=gpu.pcie_width)
    if health.bar1_mib is not None and gpu.total_mib and health.bar1_mib < gpu.total_mib // 2 and not gpu.unified:
        add("bar1_small", bar1_mib=health.bar1_mib, total_mib=gpu.total_mib)
    if health.driver_model == "wddm":
        add("wddm")
    if health.nvlinks and health.nvlinks_up is not None and 0 < health.nvlinks_up < health.nvlinks:
        add("nvlink_down", up=health.nvlinks_up, of=health.nvlinks)
    if health.power_limit_w is not None and health.power_default_w is not None and health.power_limit_w < health.power_default_w * 0.9:
        add("power_limited", limit_w=health.power_limit_w, default_w=health.power_default_w)
    return found


def cards_advice(gpus: Sequence[GpuInfo], health: Mapping[str, GpuHealth]) -> tuple[str, ...]:
    """The codes for a node's page: each once, the grave ones first."""
    findings: Iterable[Finding] = (f for g in gpus if g.uuid in health for f in card_findings(g, health[g.uuid]))
    return tuple(dict.fromkeys(f.code for f in sorted(findings, key=lambda f: not f.grave)))
