"""Coded advice about a node, in words. A node's agent sends codes; an unknown one is shown as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext_lazy

from nodes.telemetry import Latest

ADVICE = {
    "running_as_root": gettext_lazy(
        "The agent runs as root without accounts for jobs, and no job runs as root: set identity=mapped or identity=shared."
    ),
    "no_cgroup": gettext_lazy(
        "No cgroup can be used here: jobs are held together by their session instead, and memory limits are not enforced."
    ),
    "no_gpu": gettext_lazy("No GPU was found; the node takes CPU-only jobs."),
    "simulated": gettext_lazy("The cards of this node are simulated: jobs run for real, but on no GPU."),
    "driver_mismatch": gettext_lazy("The NVIDIA driver and its library differ in version, usually after an upgrade; reboot the node."),
    "driver_missing": gettext_lazy("The NVIDIA driver does not answer; check it with nvidia-smi on the node."),
    "no_hardware_layer": gettext_lazy("No GPU library of any vendor was found; the node takes CPU-only jobs."),
    "nvml_missing": gettext_lazy("libnvidia-ml.so.1 was not found; install the NVIDIA driver to use this node's cards."),
    "unresponsive": gettext_lazy("The GPU driver does not answer in time; a card may hang."),
    "persistence_off": gettext_lazy(
        "Persistence mode is off: each start initialises the driver anew; an admin can set it with nvidia-smi -pm 1."
    ),
    "driver_no_permission": gettext_lazy(
        "The agent may not open the GPU devices; check who may (NVIDIA: the mode of /dev/nvidia*, Intel: the groups render and video)."
    ),
    "remap_failed": gettext_lazy("A card has used up its spare memory rows: have it replaced."),
    "remap_pending": gettext_lazy("A card waits for a reset to take bad memory out of use: reset it or reboot the node when it is idle."),
    "ecc_uncorrected": gettext_lazy(
        "A card had memory errors that it could not correct since the driver was loaded: reset it when it is idle and watch it."
    ),
    "compute_mode": gettext_lazy(
        "A card's compute mode lets only one process or none use it, so jobs can't share it: set it with nvidia-smi -c DEFAULT."
    ),
    "pcie_narrow": gettext_lazy("A card's PCIe link has fewer lanes than it could have: check its seat, riser and slot."),
    "bar1_small": gettext_lazy(
        "Resizable BAR is off for a card; switch it on in the firmware setup (with Above 4G Decoding) for faster transfers."
    ),
    "nvlink_down": gettext_lazy("Some of a card's NVLinks are down: check the bridge or reseat the card."),
    "power_limited": gettext_lazy("A card's power limit is set well below its default, so it is slower than others of its kind."),
    "wddm": gettext_lazy(
        "Windows drives a card as a display (WDDM): programs' memory is not told, and long kernels are interrupted. Use a card for "
        "compute alone, without a display on it; data-centre and workstation cards can be switched to TCC: nvidia-smi -dm 1."
    ),
    "device_code_43": gettext_lazy(
        "Windows has stopped a card (code 43): look at the event log (source nvlddmkm), take displays off the card, then remove the driver "
        "with DDU and install the Studio driver. If it stays, try the card in another machine."
    ),
    "topology_unknown": gettext_lazy("The card topology can't be read: cards that are close to each other are not preferred."),
    "unified_memory": gettext_lazy("The cards share memory with the host."),
    "clock_skew": gettext_lazy("The node's clock differs from the control plane's; set up NTP."),
    "disk_full": gettext_lazy(
        "The agent's disk is full: no job can be started or written down here. Make room on the disk of its data folder; the node takes "
        "work again by itself then."
    ),
    "store_unwritable": gettext_lazy(
        "The agent can't write down what it does (its file is read-only, locked, or its disk fails), so no job can be started here. Its "
        "log on the node says what is wrong; the node takes work again by itself then."
    ),
    "launches_failed": gettext_lazy(
        "Several launches in a row failed here by the node's own fault. The jobs' pages say how; put it right, then resume the node."
    ),
    "plain_http": gettext_lazy("The agent talks plain HTTP; that is right on this machine only."),
}


def advice_text(code: str) -> str:
    """The advice in the reader's language; an unknown code is returned as it is."""
    text = ADVICE.get(code)
    return str(text) if text is not None else code


def node_advice(told: Iterable[Any], latest: Latest | None) -> list[str]:
    """The codes of a node's advice: what its agent ``told`` of it, and what is seen from here."""
    found = [str(code) for code in told]
    return [*found, "clock_skew"] if latest is not None and latest.is_skewed and "clock_skew" not in found else found


def cordon_text(reason: str) -> str:
    """Why a node takes no new work: an admin's own words as they are, our codes in the reader's language."""
    return advice_text(reason)


NOTICES = {
    "fencing_frozen": gettext_lazy(
        "%(unknown)s of %(watched)s nodes are silent. Nothing is called lost until they are back; jobs that run there are kept."
    ),
    "simulated_cards": gettext_lazy("%(cards)s simulated GPUs are in this pool: jobs on them run for real, but on no GPU."),
    "redis_away": gettext_lazy(
        "Redis does not answer: figures of load and temperature are missing, and live updates are slower. Jobs go on."
    ),
}


def notice_text(code: str, params: Mapping[str, Any]) -> str:
    """What everybody should know about the pool; an unknown code is returned as it is."""
    try:
        return str(NOTICES[code]) % params
    except (KeyError, TypeError, ValueError):
        return code
