"""What a request takes from a card of one kind: nominal sizes, the slicing rules (D1, D2, D14), and who is of the right kind."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from jobs.scheduler import reasons
from jobs.scheduler.access import access_denied
from jobs.scheduler.types import Gpu, Node, Policy, Reason, Request, Slice

GIB = 1024
NOMINAL_SIZES_MIB = tuple(gib * GIB for gib in (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141, 192))
NOMINAL_SHARE_PCT = 92  # a card that reports at least this share of a nominal size is sold as that size
UNLIMITED_SLICES = 1 << 30
DEFAULT_POLICY = Policy()


@lru_cache(maxsize=1024)
def nominal_mib(total_mib: int) -> int:
    """The size a card is sold as, MiB (D1): the smallest known size of which ``total_mib`` is 92–100 %, else whole GiB rounded up."""
    for size in NOMINAL_SIZES_MIB:
        if total_mib <= size and total_mib * 100 >= size * NOMINAL_SHARE_PCT:
            return size
    return -(-total_mib // GIB) * GIB


@dataclass(frozen=True, slots=True)
class Need:
    """What a request takes from a card of one kind. It fits where fewer than ``max_live`` slices live and ``least_mib`` is free."""

    mib: int  # taken when there is room: the card's total if exclusive
    least_mib: int  # must really be free; below ``mib`` by what the last slice may shrink (D2)
    max_live: int
    exclusive: bool

    def take(self, *, free_mib: int, live: int) -> int | None:
        """MiB taken from a card with ``free_mib`` really free and ``live`` slices; None = does not fit."""
        if live >= self.max_live or free_mib < self.least_mib:
            return None
        # Shrinking leaves nothing free, so the slice that shrinks is the last one on its card.
        return self.mib if self.exclusive else min(self.mib, free_mib)


def arch_normalise(text: str) -> str:
    """``sm_120``, ``SM120``, ``compute_89`` and ``12.0`` as ``major.minor``; anything else in lower case."""
    found = re.fullmatch(r"(?:sm|compute)_?(\d+)(\d)[a-z]?", text.strip().lower())
    return f"{found[1]}.{found[2]}" if found else text.strip().lower()


@lru_cache(maxsize=4096)
def model_matches(asked: str, have: str) -> bool:
    """Whole words of the card's name, in order, case ignored: ``a100`` matches ``NVIDIA A100-SXM4-80GB``, ``A10`` does not.

    Alternatives are parted by ``|``: ``A100|H100``.
    """
    if "|" in asked:
        return any(model_matches(part, have) for part in asked.split("|") if part.strip())
    want, words = (re.findall(r"[^\W_]+", text.lower()) for text in (asked, have))
    if not want:
        return asked.strip().lower() == have.strip().lower()
    return any(words[at : at + len(want)] == want for at in range(len(words) - len(want) + 1))


def kind_mismatch(request: Request, gpu: Gpu) -> Reason | None:
    """Why a card of this vendor, model and compute capability is not what was asked for; None = it is."""
    if request.vendor is not None and request.vendor.lower() != gpu.vendor.lower():
        return Reason(code=reasons.VENDOR, params={"asked": request.vendor, "have": gpu.vendor})
    if request.model is not None and not model_matches(request.model, gpu.model):
        return Reason(code=reasons.MODEL, params={"asked": request.model, "have": gpu.model})
    if request.arch is not None:
        have = gpu.compute_capability
        if have is None or arch_normalise(request.arch) != arch_normalise(have):
            return Reason(code=reasons.ARCH, params={"asked": request.arch, "have": have})
    return None


@lru_cache(maxsize=4096)
def version_key(text: str) -> tuple[int, ...]:
    """``12.4`` as (12, 4), so that 12.10 is above 12.9; whatever is no number is left out, and trailing zeros are."""
    numbers = [int(part) for part in re.findall(r"\d+", text)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def node_mismatch(request: Request, node: Node) -> Reason | None:
    """Why no card of this node can ever serve the request, whatever ends: versions, labels and size of the host, and who may
    run there; None = it can."""
    for code, least, have in (
        (reasons.CUDA, request.cuda_min, node.cuda_version),
        (reasons.DRIVER, request.driver_min, node.driver_version),
    ):
        if least is not None and (have is None or version_key(have) < version_key(least)):
            return Reason(code=code, params={"asked": least, "have": have})
    for key, value in request.labels:
        if node.labels.get(key) != value:
            return Reason(code=reasons.LABEL, params={"asked": f"{key}={value}", "have": node.labels.get(key)})
    cores, memory = host_total(node)
    if request.cpu_milli is not None and (cores is None or request.cpu_milli > cores):
        return Reason(code=reasons.NODE_CPU, params={"needed_milli": request.cpu_milli, "have_milli": cores})
    if request.host_mem_mib is not None and (memory is None or request.host_mem_mib > memory):
        return Reason(code=reasons.NODE_MEMORY, params={"needed_mib": request.host_mem_mib, "have_mib": memory})
    denied = access_denied(request.lacks, node.demands)
    return None if denied is None else Reason(code=denied, params={"node": node.name})


def host_total(node: Node) -> tuple[int | None, int | None]:
    """(thousandths of a core, MiB of host memory) of the node; None = unknown."""
    return (None if node.cpu_cores is None else node.cpu_cores * 1000), node.memory_mib


def host_free(node: Node) -> tuple[int | None, int | None]:
    """What live ranks leave of ``host_total``."""
    cores, memory = host_total(node)
    if cores is not None:
        cores = cores - node.cpu_milli_held if cores > node.cpu_milli_held else 0
    if memory is not None:
        memory = memory - node.memory_mib_held if memory > node.memory_mib_held else 0
    return cores, memory


def host_short(request: Request, cpu_milli: int | None, memory_mib: int | None) -> str | None:
    """The code of what the host lacks now, given what is free; None = nothing. Unknown is not enough for a request that names a number."""
    if request.cpu_milli is not None and (cpu_milli is None or cpu_milli < request.cpu_milli):
        return reasons.HOST_CPU
    if request.host_mem_mib is not None and (memory_mib is None or memory_mib < request.host_mem_mib):
        return reasons.HOST_MEMORY
    return None


def need_on(request: Request, gpu: Gpu, policy: Policy = DEFAULT_POLICY) -> Need | Reason:
    """What the request takes from a card of this kind, whatever is on it now; a Reason if no card of this kind can ever hold it."""
    mismatch = kind_mismatch(request, gpu)
    if mismatch is not None:
        return mismatch
    total = gpu.total_mib
    if total is None or total <= 0:
        return Reason(code=reasons.MEMORY_UNKNOWN, params={"node": None, "gpu": gpu.index, "cards": 1})
    nominal = max(gpu.nominal_mib or nominal_mib(total), total)
    asked = request.gpu_mem_mib
    if asked is None:
        return Need(mib=total, least_mib=total, max_live=1, exclusive=True)
    if asked > nominal:
        return Reason(code=reasons.GPU_TOO_SMALL, params={"needed_mib": asked, "nominal_mib": nominal})
    if request.is_exclusive:
        return Need(mib=total, least_mib=min(asked, total), max_live=1, exclusive=True)
    if not policy.slicing_rules:
        if asked > total:
            return Need(mib=total, least_mib=total, max_live=1, exclusive=True)
        # Two of half the nominal size fill a card here as well.
        return Need(mib=asked, least_mib=max(1, asked - (nominal - total)), max_live=UNLIMITED_SLICES, exclusive=False)
    if asked > total or asked > policy.whole_above * nominal:
        # The job is alone on the card, but foreign use may leave less than all of it: it needs what it asked for.
        return Need(mib=total, least_mib=min(asked, total), max_live=1, exclusive=True)
    # A card smaller than the least slice is one slice.
    size = min(max(asked, policy.min_slice_mib), nominal)
    return Need(
        mib=size,
        least_mib=max(1, size - (nominal - total)),
        max_live=min(gpu.max_slices, policy.max_slices),
        exclusive=False,
    )


def foreign_counted_mib(gpu: Gpu, policy: Policy = DEFAULT_POLICY) -> int:
    """Foreign use that counts: all of it once it is above the floor (D1), below that it is the driver's own."""
    return gpu.foreign_mib if gpu.foreign_mib > policy.foreign_floor_mib else 0


def free_mib(gpu: Gpu, taken: Iterable[Slice]) -> int:
    """What live slices leave of the card, foreign use not considered; 0 where the size is unknown or an exclusive slice lives."""
    left = gpu.total_mib or 0
    for part in taken:
        if part.exclusive:
            return 0
        left -= part.mib
    return max(left, 0)


def cards_per_node(request: Request) -> int:
    """Cards on each node of the job. Call only for a request that ``request_error`` accepts."""
    return request.gpu_count // request.nodes


def request_error(request: Request) -> Reason | None:
    """A request that no cluster can serve: the API refuses it, and so does the plan."""
    for field, value, least in (
        ("nodes", request.nodes, 1),
        ("gpu_count", request.gpu_count, 0),
        ("gpu_mem_mib", request.gpu_mem_mib, 1),
        ("cpu_milli", request.cpu_milli, 0),
        ("host_mem_mib", request.host_mem_mib, 0),
    ):
        if value is not None and value < least:
            return Reason(code=reasons.INVALID_REQUEST, params={"field": field, "value": value, "least": least})
    if request.gpu_count % request.nodes:
        return Reason(code=reasons.UNEVEN_NODES, params={"gpu_count": request.gpu_count, "nodes": request.nodes})
    return None


def cpu_ranks_max(node: Node) -> int:
    """How many ranks without a card one node runs at once: one a core, at least 4 (unknown cores count as few).

    A loop that submits ten thousand of them must not take the machine from the jobs that use its cards.
    """
    return max(4, node.cpu_cores or 0)
