"""Errors that the end of an output shows and that have a known way out. Pure but for ``output_tail``.

What matches nearest to the end counts: that is what a program died of. Links go to the makers' own pages.

An output is its job's own text and may be made to be slow to search. So there are no regular expressions here: a mark is a few words that
stand in one line in this order, and each is looked for from where the one before it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from agent.protocol import RankId
from jobs import logs

TAIL_BYTES = 64 * 1024
LINE_MOST = 240
#: Of a longer line, so much before what was found is shown.
LINE_BEFORE = 40

#: Words that stand in one line in this order.
Mark = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    code: str
    marks: tuple[Mark, ...]
    title: str | Promise
    advice: str | Promise
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``line``: the line of the output that shows it, the user's own text."""

    error: KnownError
    line: str


def _known(code: str, marks: Iterable[str | Mark], title: Any, advice: Any, link: str = "") -> KnownError:
    words = tuple((mark,) if isinstance(mark, str) else mark for mark in marks)
    return KnownError(code=code, marks=words, title=title, advice=advice, link=link)


KNOWN = (
    _known(
        "cuda_oom",
        (
            *(f"{kind} out of memory" for kind in ("CUDA", "HIP", "NPU", "XPU")),
            *("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
            *("cudaErrorMemoryAllocation", "RESOURCE_EXHAUSTED: Out of memory", "RESOURCE_EXHAUSTED: OOM", "hipErrorOutOfMemory"),
            "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        ),
        gettext_lazy("Out of GPU memory"),
        gettext_lazy(
            "Ask for more memory on the card, or use less: a smaller batch, gradient checkpointing, lower precision. "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against fragments."
        ),
        "https://pytorch.org/docs/stable/notes/cuda.html#memory-management",
    ),
    _known(
        "driver_old",
        (
            "CUDA driver version is insufficient for CUDA runtime version",
            "NVIDIA driver on your system is too old",
            "cudaErrorInsufficientDriver",
        ),
        gettext_lazy("The node's driver is too old for the program's CUDA"),
        gettext_lazy("Ask for a node with a newer driver (--cuda or --driver), or use a build for an older CUDA."),
        "https://docs.nvidia.com/deploy/cuda-compatibility/",
    ),
    _known(
        "arch_missing",
        ("no kernel image is available for execution on the device", "is not compatible with the current PyTorch installation"),
        gettext_lazy("The program has no code for this kind of card"),
        gettext_lazy("Ask for another architecture (--arch), or use a build that has this one."),
        "https://developer.nvidia.com/cuda-gpus",
    ),
    _known(
        "driver_silent",
        (
            "couldn't communicate with the NVIDIA driver",
            "Failed to initialize NVML",
            "libcuda.so.1: cannot open",
            "No CUDA GPUs are available",
        ),
        gettext_lazy("The program found no driver"),
        gettext_lazy("Tell the people who run the pool, with the node's name. In a container, the runtime has to pass the cards on."),
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html",
    ),
    _known(
        "device_fault",
        (
            "an illegal memory access was encountered",
            "device-side assert triggered",
            "CUDA error: misaligned address",
            "CUDA error: unspecified launch failure",
        ),
        gettext_lazy("A kernel of the program went wrong on the card"),
        gettext_lazy(
            "Run it once more with CUDA_LAUNCH_BLOCKING=1: the trace then ends at the call that did it. The card is not at fault."
        ),
        "https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html",
    ),
    _known(
        "nccl",
        (
            *("NCCL error", "NCCL WARN", "Watchdog caught collective operation timeout"),
            *(f"nccl{kind}Error" for kind in ("System", "Unhandled", "Internal", "Remote")),
        ),
        gettext_lazy("The processes could not talk to each other (NCCL)"),
        gettext_lazy("Look at the output of every rank: one of them often died first. NCCL_DEBUG=INFO tells which way it took."),
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    _known(
        "shared_memory",
        (
            *((f"unable to {act} ", what) for act in ("open", "mmap", "write to") for what in ("shared memory", "/dev/shm", "torch_")),  # noqa: S108
            *("insufficient shared memory", ("Bus error", "shared memory")),
        ),
        gettext_lazy("Shared memory was used up"),
        gettext_lazy("Use fewer workers that load data, or torch.multiprocessing.set_sharing_strategy('file_system')."),
        "https://pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
    ),
    _known(
        "disk_full",
        ("No space left on device", "OSError: [Errno 28]", "Disk quota exceeded"),
        gettext_lazy("The disk was full"),
        gettext_lazy("Write to a place with room, or make some there."),
    ),
    _known(
        "module_missing",
        ("ModuleNotFoundError: No module named", ("ImportError: lib", ": cannot open shared object file")),
        gettext_lazy("A package is missing where it ran"),
        gettext_lazy("Name the interpreter of the environment that has it, such as /home/me/envs/x/bin/python, or install it on the node."),
    ),
)
#: What the output of a failed program may turn its end into (lifecycle: gpu_memory).
OUT_OF_MEMORY = KNOWN[0]


BY_CODE = {error.code: error for error in KNOWN}


def error_in(text: str) -> Found | None:
    """The known error nearest to the end of the text."""
    place, error = max(((_last(text, mark), error) for error in KNOWN for mark in error.marks), key=lambda pair: pair[0])
    if place < 0:
        return None
    begin, end = text.rfind("\n", 0, place) + 1, _line_end(text, place)
    if end - begin > LINE_MOST:
        begin = max(begin, place - LINE_BEFORE)
    return Found(error=error, line=text[begin:end].strip()[:LINE_MOST])


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return end if end >= 0 else len(text)


def _last(text: str, mark: Mark) -> int:
    """Where the last line that has the mark has its first word; -1 where none has. Each character is looked at once for each word."""
    first, *others = mark
    last, at = -1, text.find(first)
    while at >= 0:
        end = _line_end(text, at)
        if _follow(text, others, at + len(first), end):
            last = at
        # A later place in this line has no more behind it than this one had.
        at = text.find(first, end)
    return last


def _follow(text: str, words: Sequence[str], at: int, end: int) -> bool:
    for word in words:
        at = text.find(word, at, end)
        if at < 0:
            return False
        at += len(word)
    return True


def output_tail(rank: RankId) -> str:
    """The last 64 KiB of a rank's output."""
    length = logs.log_length(rank)
    return logs.log_read(rank, offset=max(0, length - TAIL_BYTES), limit=TAIL_BYTES).decode("utf-8", "replace")


def error_of(ranks: Iterable[RankId]) -> Found | None:
    """Of the first rank whose output shows one; ranks in the order in which they are to blame."""
    return next((found for rank in ranks if (found := error_in(output_tail(rank))) is not None), None)
