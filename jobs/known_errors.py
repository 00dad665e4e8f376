"""Errors that the end of an output shows and that have a known way out. Pure but for ``output_tail``.

What matches nearest to the end counts: that is what a program died of. Links go to the makers' own pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from agent.protocol import RankId
from jobs import logs

TAIL_BYTES = 64 * 1024
LINE_MOST = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    code: str
    pattern: re.Pattern[str]
    title: str | Promise
    advice: str | Promise
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``line``: the line of the output that shows it, the user's own text."""

    error: KnownError
    line: str


def _known(code: str, pattern: str, title: Any, advice: Any, link: str = "") -> KnownError:
    return KnownError(code=code, pattern=re.compile(pattern), title=title, advice=advice, link=link)


KNOWN = (
    _known(
        "cuda_oom",
        r"(?:CUDA|HIP|NPU|XPU) out of memory|torch(?:\.cuda)?\.OutOfMemoryError|CUDA error: out of memory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED: (?:Out of memory|OOM)|hipErrorOutOfMemory"
        r"|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        gettext_lazy("Out of GPU memory"),
        gettext_lazy(
            "Ask for more memory on the card, or use less: a smaller batch, gradient checkpointing, lower precision. "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against fragments."
        ),
        "https://pytorch.org/docs/stable/notes/cuda.html#memory-management",
    ),
    _known(
        "driver_old",
        r"CUDA driver version is insufficient for CUDA runtime version|NVIDIA driver on your system is too old|cudaErrorInsufficientDriver",
        gettext_lazy("The node's driver is too old for the program's CUDA"),
        gettext_lazy("Ask for a node with a newer driver (--cuda or --driver), or use a build for an older CUDA."),
        "https://docs.nvidia.com/deploy/cuda-compatibility/",
    ),
    _known(
        "arch_missing",
        r"no kernel image is available for execution on the device|is not compatible with the current PyTorch installation",
        gettext_lazy("The program has no code for this kind of card"),
        gettext_lazy("Ask for another architecture (--arch), or use a build that has this one."),
        "https://developer.nvidia.com/cuda-gpus",
    ),
    _known(
        "driver_silent",
        r"couldn't communicate with the NVIDIA driver|Failed to initialize NVML|libcuda\.so\.1: cannot open|No CUDA GPUs are available",
        gettext_lazy("The program found no driver"),
        gettext_lazy("Tell the people who run the pool, with the node's name. In a container, the runtime has to pass the cards on."),
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
    ),
    _known(
        "device_fault",
        r"an illegal memory access was encountered|device-side assert triggered"
        r"|CUDA error: (?:misaligned address|unspecified launch failure)",
        gettext_lazy("A kernel of the program went wrong on the card"),
        gettext_lazy(
            "Run it once more with CUDA_LAUNCH_BLOCKING=1: the trace then ends at the call that did it. The card is not at fault."
        ),
        "https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html",
    ),
    _known(
        "nccl",
        r"NCCL (?:error|WARN)|nccl(?:System|Unhandled|Internal|Remote)Error"
        r"|Watchdog caught collective operation timeout",
        gettext_lazy("The processes could not talk to each other (NCCL)"),
        gettext_lazy("Look at the output of every rank: one of them often died first. NCCL_DEBUG=INFO tells which way it took."),
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    _known(
        "shared_memory",
        r"unable to (?:open|mmap|write to) .*(?:shared memory|/dev/shm|torch_)|insufficient shared memory|Bus error.*shared memory",
        gettext_lazy("Shared memory was used up"),
        gettext_lazy("Use fewer workers that load data, or torch.multiprocessing.set_sharing_strategy('file_system')."),
        "https://pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
    ),
    _known(
        "disk_full",
        r"No space left on device|OSError: \[Errno 28\]|Disk quota exceeded",
        gettext_lazy("The disk was full"),
        gettext_lazy("Write to a place with room, or make some there."),
    ),
    _known(
        "module_missing",
        r"ModuleNotFoundError: No module named|ImportError: lib\S+: cannot open shared object file",
        gettext_lazy("A package is missing where it ran"),
        gettext_lazy("Name the interpreter of the environment that has it, such as /home/me/envs/x/bin/python, or install it on the node."),
    ),
)
#: What the output of a failed program may turn its end into (lifecycle: gpu_memory).
OUT_OF_MEMORY = KNOWN[0]


def error_in(text: str) -> Found | None:
    """The known error nearest to the end of the text."""
    last: tuple[int, Found] | None = None
    for error in KNOWN:
        place = -1
        for match in error.pattern.finditer(text):
            place = match.start()
        if place >= 0 and (last is None or place > last[0]):
            begin, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
            last = (place, Found(error=error, line=text[begin : end if end >= 0 else len(text)].strip()[:LINE_MOST]))
    return last[1] if last is not None else None


def output_tail(rank: RankId) -> str:
    """The last 64 KiB of a rank's output."""
    length = logs.log_length(rank)
    return logs.log_read(rank, offset=max(0, length - TAIL_BYTES), limit=TAIL_BYTES).decode("utf-8", "replace")


def error_of(ranks: Iterable[RankId]) -> Found | None:
    """Of the first rank whose output shows one; ranks in the order in which they are to blame."""
    return next((found for rank in ranks if (found := error_in(output_tail(rank))) is not None), None)
