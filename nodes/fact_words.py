"""The slow facts of a card and the host's ports in words. What is not told is left out: never 0, never a dash for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from nodes.formats import NBSP, gib, number
from nodes.models import Gpu

COMPUTE_MODES = {"default": "Default", "exclusive_process": "Exclusive_Process", "prohibited": "Prohibited"}  # nvidia-smi's words


def health_facts(gpu: Gpu, told: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """(what, value) of what the card tells; ``told``: the fields of ``GpuHealth``."""
    if not told:
        return []
    known = {name: value for name, value in told.items() if value is not None}
    rows: list[tuple[str, str | None]] = [
        (_("ECC"), _switch(known.get("ecc"))),
        (_("Errors corrected"), _count(known.get("ecc_corrected"))),
        (_("Errors not corrected"), _count(known.get("ecc_uncorrected"))),
        (_("Not corrected, in its life"), _count(known.get("ecc_uncorrected_total"))),
        (_("Rows remapped"), _rows(known)),
        (_("Pages retired"), _count(known.get("retired_pages"))),
        (_("PCIe now"), _link(gpu, known)),
        (_("PCIe replays"), _count(known.get("pcie_replays"))),
        (_("NVLinks up"), _of(known.get("nvlinks_up"), known.get("nvlinks"))),
        (_("NVLink errors"), _count(known.get("nvlink_errors"))),
        (_("Persistence mode"), _switch(known.get("persistence"))),
        (_("Compute mode"), COMPUTE_MODES.get(str(known.get("compute_mode")))),
        (_("Driver model"), str(known["driver_model"]).upper() if "driver_model" in known else None),
        (_("Power limit"), _of(known.get("power_limit_w"), known.get("power_default_w"), "W")),
        (_("Highest clocks"), _clocks(known)),
        (_("Slows down at"), f"{known['slow_c']}{NBSP}°C" if "slow_c" in known else None),
        (_("Reached by the host at once"), gib(known["bar1_mib"]) if "bar1_mib" in known else None),
        (_("Energy used"), f"{number(known['energy_j'] / 3.6e6)}{NBSP}kWh" if "energy_j" in known else None),
        (_("Values dropped"), _count(known.get("anomalies") or None)),
    ]
    return [(what, value) for what, value in rows if value is not None]


def ports_text(ports: list[Mapping[str, Any]]) -> list[str]:
    """``mlx5_0:1 ACTIVE, 200 Gbit/s InfiniBand`` for each port."""
    found = []
    for port in ports:
        rate = f"{port['rate_gbps']}{NBSP}Gbit/s" if port.get("rate_gbps") else ""
        speed = " ".join(part for part in (rate, port.get("layer") or "") if part)
        found.append(", ".join(part for part in (f"{port.get('name', '?')} {port.get('state') or ''}".strip(), speed) if part))
    return found


def _count(value: Any) -> str | None:
    return None if value is None else number(value, 0)


def _switch(value: Any) -> str | None:
    return None if value is None else _("on") if value else _("off")


def _of(value: Any, most: Any, unit: str = "") -> str | None:
    """``3 of 4``; the whole alone where both are equal."""
    if value is None:
        return None
    tail = f"{NBSP}{unit}" if unit else ""
    if most is None or most == value:
        return f"{value}{tail}"
    return _("%(used)s of %(total)s") % {"used": value, "total": f"{most}{tail}"}


def _rows(known: Mapping[str, Any]) -> str | None:
    parts = [number(known["remapped_rows"], 0)] if "remapped_rows" in known else []
    parts += [_("a reset is due")] if known.get("remap_pending") else []
    parts += [_("spare rows used up")] if known.get("remap_failed") else []
    return ", ".join(parts) or None


def _link(gpu: Gpu, known: Mapping[str, Any]) -> str | None:
    """An idle card lowers its generation, not its width: fewer lanes than it could have are told."""
    gen, width = known.get("pcie_gen"), known.get("pcie_width")
    if gen is None and width is None:
        return None
    text = f"{gen or '?'}.0 ×{width or '?'}"
    return (
        _("%(now)s of ×%(most)s") % {"now": text, "most": gpu.pcie_width} if width and gpu.pcie_width and width < gpu.pcie_width else text
    )


def _clocks(known: Mapping[str, Any]) -> str | None:
    parts = [str(known[name]) for name in ("core_max_mhz", "mem_max_mhz") if name in known]
    return f"{' / '.join(parts)}{NBSP}MHz" if parts else None
