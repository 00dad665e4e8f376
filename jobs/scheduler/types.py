"""What a scheduling pass reads and what it answers. Immutable, no clock, no I/O; sizes in whole MiB, times in seconds.

Units: memory MiB, temperature °C, load per cent, times seconds since the epoch (only differences matter).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import count
from typing import Any

_serials = count()
#: Makes an object without its __init__, to be filled in: for what a pass makes thousands of, where that call costs more than the rest.
new = object.__new__


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why something does not fit: a code of jobs.scheduler.reasons plus the numbers. Put into words at the edge."""

    code: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A live part of a card: HELD, ACTIVE, RELEASING or QUARANTINED. A slice whose job is not in ``Snapshot.running`` is being released."""

    gpu: int
    mib: int
    exclusive: bool = False
    job: int | None = None
    is_quarantined: bool = False  # the end of no job frees it; nobody is made to wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A card as the pass sees it. ``total_mib`` None = unknown: never schedulable."""

    id: int
    uuid: str
    index: int
    model: str
    vendor: str = "nvidia"
    total_mib: int | None = None
    nominal_mib: int | None = None  # D1; None = derive from total
    is_schedulable: bool = True  # HEALTHY, seen, on a node that takes work
    state: str = "HEALTHY"
    foreign_mib: int = 0  # memory that no job of ours owns; counts above 512 MiB (D1)
    max_slices: int = 4
    compute_capability: str | None = None
    temp_c: int | None = None
    util_pct: int | None = None
    health: int = 100  # 0–100
    pcie_gen: int | None = None
    pcie_width: int | None = None
    is_integrated: bool = False  # a part of the processor, with the host's memory
    pcie_hops: int | None = None  # switches between the card and its host bridge; 0 = attached to the processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How near two cards of one node are: nvlink < pcie_switch < pcie_host < numa < system."""

    a: int
    b: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine. ``takes_work`` = READY and not cordoned; ``refusal`` says why not."""

    id: int
    name: str
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    takes_work: bool = True
    refusal: str | None = None  # "cordoned" | "unsafe" | "UNKNOWN" | "RECOVERING" | "DOWN" | …
    cpu_cores: int | None = None
    memory_mib: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    live_cpu_ranks: int = 0  # CPU-only ranks running here: spreads CPU jobs
    cpu_milli_held: int = 0  # thousandths of a core that live ranks asked for, of cpu_cores × 1000
    memory_mib_held: int = 0  # host memory that live ranks asked for
    cuda_version: str | None = None  # the newest CUDA that the node's driver runs, "12.4"
    driver_version: str | None = None
    network_group: str | None = None  # nodes of one group talk without leaving their switch or fabric
    network_mbps: int | None = None  # of the link that ranks would use
    power_headroom_pct: int | None = None  # share of the power feed's limit that nobody draws now
    demands: frozenset[str] = frozenset()  # of a job's owner: words of access.ORDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a job asks for. ``gpu_count`` is for the whole job and is spread evenly over ``nodes`` (D30);
    ``gpu_mem_mib`` None = whole cards; ``gpu_count`` 0 = CPU only. Host cores and memory are for each node of the job.
    ``model`` may name alternatives: ``A100|H100``."""

    gpu_count: int = 1
    gpu_mem_mib: int | None = None
    nodes: int = 1
    arch: str | None = None
    model: str | None = None
    vendor: str | None = None
    cuda_min: str | None = None  # the node's driver must run at least this CUDA
    driver_min: str | None = None
    labels: tuple[tuple[str, str], ...] = ()  # (key, value) pairs that the node must carry
    cpu_milli: int | None = None  # thousandths of a core
    host_mem_mib: int | None = None
    is_exclusive: bool = False  # the whole card, however little memory is asked for
    lacks: frozenset[str] = frozenset()  # what its owner can't meet of what nodes of this pool demand (access.py)
    #: Of this object alone: equal requests are mostly one object, and telling objects apart saves hashing each.
    serial: int = field(default_factory=_serials.__next__, init=False, repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[[], Request], tuple[()]]:
        """In another process the serial may be another's: a copy gets its own."""
        return partial(Request, **{item.name: getattr(self, item.name) for item in fields(self) if item.init}), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A waiting job. ``held`` and ``quota`` jobs are given so that they get a reason; they are never placed."""

    id: int
    request: Request
    submitted: float = 0.0
    priority: int = 0
    user: int = 0
    project: int = 0
    time_limit_s: int | None = None
    hold: str | None = None  # None, or the reason code: "held" | "quota_exceeded" | …
    hold_params: Mapping[str, Any] = field(default_factory=dict)
    avoid_nodes: frozenset[int] = frozenset()  # nodes on which an attempt of this job just failed to launch
    predicted_s: float | None = None  # how long jobs like this one ran (predict.History); None = nothing is known
    queue: str = ""  # one of Policy.queues; "" = the first
    qos: str = ""  # one of Policy.qos; "" = none


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A live job: when it may end. Used for forecasts, backfill, and what its owner holds."""

    job: int
    user: int
    slices: tuple[Slice, ...]
    started: float
    time_limit_s: int | None = None
    project: int = 0
    queue: str = ""
    predicted_s: float | None = None  # as Job.predicted_s
    request: Request | None = None  # for DRF over host cores and memory; None = cards only
    nodes: tuple[int, ...] = ()  # where it runs, for a job without cards; else its slices say so


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """A job that was submitted lately, whatever became of it: ``job.submitted`` is when. ``seconds``: how long it ran; of one that
    has not ended, how long it will by its prediction."""

    job: Job
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a pass leaves to the next one of a job that it kept cards for. ``gpus``: the cards, if any of them stood free for it;
    ``users``: whose jobs they drained of. ``since``: from when on these don't come before it; None = its place may be lost to them,
    once. ``jobs``: how many lived then, and the newest of them: while that is so nothing has happened, and nobody comes before it."""

    gpus: tuple[int, ...] = ()
    users: tuple[int, ...] = ()
    since: float | None = None
    jobs: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a pass may know. INVARIANT: nodes by id, jobs by queue order (priority, submitted, id) are not
    assumed: ``plan`` sorts by stated keys itself."""

    now: float
    nodes: tuple[Node, ...]
    jobs: Sequence[Job]
    slices: tuple[Slice, ...] = ()
    running: tuple[Running, ...] = ()
    usage: Mapping[int, float] = field(default_factory=dict)  # user -> weight (D4): 1 + decayed usage; unknown = 1
    project_usage: Mapping[int, float] = field(default_factory=dict)  # project -> weight, likewise
    recent: tuple[Came, ...] = ()  # all that was submitted in the last ``recent_s``: forecasts expect more of it; plans do not look
    recent_s: float = 0.0
    mix: tuple[tuple[Request, float], ...] = ()  # what comes, by how often: packing keeps room for it; () = what waits now
    places: Mapping[int, Place] = field(default_factory=dict)  # by waiting job, as the pass before left them (``Plan.places``)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A part of the pool. ``guaranteed`` and ``most`` are shares of its cards in [0, 1]: below the first a queue comes before
    those above theirs; what others leave idle may be borrowed up to the second. Running work is never taken back."""

    name: str
    guaranteed: float
    most: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What an admin may tune. Defaults are decisions D1, D2, D4, D14, D24; docs/scheduling.md says what each one does."""

    whole_above: float = 0.5  # share of nominal above which a request takes the whole card
    min_slice_mib: int = 4096
    max_slices: int = 4
    foreign_floor_mib: int = 512
    strategy: str = "default"  # score.STRATEGIES; "default" = fragmentation-aware
    slicing_rules: bool = True  # False: byte-accurate slices, for comparison only
    keeps_for_head: bool = True  # False: a job that can't start now keeps nothing from later ones (place or pass over)

    # Order
    order: str = "fair"  # order.ORDERS
    qos: tuple[tuple[str, int], ...] = (("high", 100), ("low", -100))  # added to a job's priority
    queues: tuple[Queue, ...] = (
        Queue(name="batch", guaranteed=0.5),
        Queue(name="interactive", guaranteed=0.2),
        Queue(name="service", guaranteed=0.3, most=0.5),
    )
    half_life_s: float = 7 * 86_400.0  # of past usage; 0 = it never fades (D4)
    weight_per_job: float = 0.1
    weight_per_card_hour: float = 0.02
    weight_power: float = 0.25  # how much past usage counts: effective weight ~ weight ** this
    load_power: float = 2.0  # how much present use counts: effective weight ~ exp(this × held ÷ fair share)
    age_fold_s: float = 5 * 86_400.0  # waiting so long counts like being shorter by a factor e
    short_floor_s: float = 60.0  # all jobs shorter than this are equally short
    borrow_s: float = 2 * 3600.0  # above its fair share an owner starts only jobs predicted to end within this

    # Backfill and the bound on passing over
    limit_max_s: float = 7 * 86_400.0  # the end of a job without a limit (D24)
    trust: float = 3.0  # a job counts as ended after so many times its predicted runtime …
    trust_floor_s: float = 600.0  # … and never sooner than this; 0 for ``trust`` = only limits count
    patience_s: float = 7 * 86_400.0  # waiting so long, and as long again as it may run, puts a job first


# What a pass makes by the thousand. Nobody changes these either, but a frozen dataclass takes seven times as long to make.


@dataclass(slots=True, unsafe_hash=True)
class Grant:
    """One card, or part of it, for one rank. ``mib`` is what is taken from the card."""

    gpu: int
    mib: int
    exclusive: bool


@dataclass(slots=True, unsafe_hash=True)
class RankPlacement:
    """The part of a job on one node; ``index`` is torchrun's node_rank. Grants are in placement order."""

    index: int
    node: int
    grants: tuple[Grant, ...]


@dataclass(slots=True, unsafe_hash=True)
class Placement:
    job: int
    ranks: tuple[RankPlacement, ...]


@dataclass(slots=True, unsafe_hash=True)
class Refusal:
    """``never`` = no card or node of this cluster could ever hold it, whatever ends."""

    job: int
    reason: Reason
    position: int  # 1 = head of the queue
    never: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept for a job that waits: its cards will be free at ``at``, seconds since the epoch, by this pass's estimates.
    -inf = free already (the host is short, or memory is being given back); inf = nobody knows."""

    job: int
    gpus: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """INVARIANT: each job of the snapshot is in exactly one of placements and refusals, if the plan was asked to explain."""

    placements: tuple[Placement, ...]
    refusals: tuple[Refusal, ...]
    kept: tuple[Kept, ...] = ()
    places: Mapping[int, Place] = field(default_factory=dict)
