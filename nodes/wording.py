"""Coded advice about a node, in words. A node's agent sends codes; an unknown one is shown as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy

ADVICE = {
    "running_as_root": gettext_lazy(
        "The agent runs as root and so do the jobs; install it with identity=mapped to run them as their users."
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
    "topology_unknown": gettext_lazy("The card topology can't be read: cards that are close to each other are not preferred."),
    "unified_memory": gettext_lazy("The cards share memory with the host."),
    "clock_skew": gettext_lazy("The node's clock differs from the control plane's; set up NTP."),
    "disk_full": gettext_lazy("The agent's disk is almost full: logs can't be kept."),
    "plain_http": gettext_lazy("The agent talks plain HTTP; that is right on this machine only."),
}


def advice_text(code: str) -> str:
    """The advice in the reader's language; an unknown code is returned as it is."""
    text = ADVICE.get(code)
    return str(text) if text is not None else code


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
