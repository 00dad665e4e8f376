"""What the control plane answers, as typed dictionaries: exactly the API's JSON, so that ``--json`` and the SDK agree.

Memory in MiB, durations in seconds, times as ISO 8601 in UTC. None = not known or not supported, never 0. A newer
control plane may add keys; none changes its meaning.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

State = Literal["WAITING", "STARTING", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "CANCELLED"]
FINAL: frozenset[str] = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})


class Token(TypedDict):
    token: str
    prefix: str
    expires_at: str | None


class Difference(TypedDict):
    field: str
    before: Any
    after: Any


class Applied(TypedDict):
    """``action``: created | unchanged | replaced (``replaces`` waited and gave way) | renewed (the one before had ended)."""

    action: str
    dry_run: bool
    replaces: int | None
    diff: list[Difference]
    job: Any  # a Job; None with dry_run where there is none


class Secret(TypedDict):
    name: str
    project: str | None
    set_at: str
    set_by: str | None
    used_at: str | None


class QuotaUse(TypedDict):
    gpu_hours: float | None
    used_gpu_hours: float
    resets_at: str | None
    max_active_jobs: int | None
    active_jobs: int
    max_cards: int | None
    held_cards: int


class Me(TypedDict):
    id: int
    email: str
    is_staff: bool
    language: str
    zone: str
    projects: list[Any]
    quota: QuotaUse


class Estimate(TypedDict):
    """When a waiting job will start, as told at ``made_at``. ``later_than``: what is None is later than that."""

    p50: str | None
    p90: str | None
    later_than: str | None
    text: str
    place: str
    made_at: str
    age_s: float
    is_stale: bool


class Wait(TypedDict):
    code: str
    params: dict[str, Any]
    text: str
    position: int | None
    checked_at: str | None
    estimate: NotRequired[Estimate | None]


class End(TypedDict):
    reason: str
    params: dict[str, Any]
    text: str
    exit_code: int | None


class RankGpu(TypedDict):
    uuid: str
    short: str
    index: int
    model: str
    mib: int
    exclusive: bool
    simulated: bool


class Rank(TypedDict):
    index: int
    node: str
    desired: str
    observed: str
    exit_code: int | None
    exit_signal: int | None
    log_bytes: int | None
    gpus: list[RankGpu]


class Attempt(TypedDict):
    epoch: int
    started_at: str | None
    ended_at: str | None
    nodes: NotRequired[list[str]]
    ranks: NotRequired[list[Rank]]


class Constraints(TypedDict, total=False):
    """Only what was asked for is there."""

    arch: str
    model: str
    vendor: str
    cuda_min: str
    driver_min: str
    labels: dict[str, str]


class JobRow(TypedDict):
    """A job as lists have it."""

    id: int
    name: str
    state: State
    owner: str
    project: str
    workdir: str
    secrets: list[str]
    gpu_count: int
    gpu_mem_mib: int | None
    nodes: int
    constraints: Constraints
    cpu_milli: int | None  # thousandths of a core, on each node
    host_mem_mib: int | None  # on each node
    exclusive: bool
    time_limit_s: int | None
    grace_s: int | None
    idle_after_s: NotRequired[int | None]
    priority: int
    queue: str
    qos: str
    requeue: bool
    requeues: int
    on_node_loss: str
    checkpoint: str
    held: bool
    held_why: str
    want_cancel: bool
    kind: str
    wait: Wait | None
    end: End | None
    attempt: Attempt | None
    submitted_at: str
    queued_at: str
    started_at: str | None
    ended_at: str | None


class Job(JobRow):
    argv: list[str]
    env: dict[str, str | None]


class LogChunk(TypedDict):
    """``offset`` and ``next_offset`` count bytes of the log; ``text`` is its UTF-8 reading between them."""

    job: int
    attempt: int | None
    rank: int
    offset: int
    next_offset: int
    length: int
    is_complete: bool
    text: str


class Event(TypedDict):
    id: int
    at: str
    code: str
    params: dict[str, Any]
    text: str
    from_state: str
    to_state: str
    epoch: int
    by: str | None


class Why(TypedDict):
    state: State
    code: str
    params: dict[str, Any]
    text: str
    position: int | None
    checked_at: str | None
    ahead: int | None
    estimate: NotRequired[Estimate | None]


class Alternative(TypedDict):
    """What would start sooner: ``set`` these fields of the submit (None = leave it out; constraints are merged)."""

    text: str
    set: dict[str, Any]
    p50: str
    p90: str | None
    start: str
    place: str
    command: str


class Forecast(TypedDict):
    """What would become of a job that is not submitted yet."""

    verdict: Literal["starts", "waits", "held", "refused", "never"]
    code: str
    params: dict[str, Any]
    text: str
    position: int | None
    p50: str | None
    p90: str | None
    later_than: str | None
    start: str
    place: str
    age_s: float
    alternatives: list[Alternative]


class Artifact(TypedDict):
    attempt: int
    rank: int
    name: str
    size: int
    sha256: NotRequired[str]
    created_at: NotRequired[str]


class Slice(TypedDict):
    """A part of a card. ``job``, ``name`` and ``user`` are None where the reader may not know whose it is, and of what is free."""

    id: str
    memory_mib: int
    state: str
    job: int | None
    name: str | None
    user: str | None


class Gpu(TypedDict):
    uuid: str
    short: str
    node: str
    index: int
    model: str
    vendor: str
    state: str
    state_reason: str
    total_mib: int | None
    nominal_mib: int | None
    held_mib: int
    free_mib: int | None
    live_slices: int
    exclusive: bool
    simulated: bool
    compute_capability: str
    pci_bus_id: str
    used_mib: int | None
    util_pct: int | None
    mem_util_pct: int | None
    temp_c: int | None
    power_w: float | None
    foreign_mib: int | None
    use: str
    nvlink: bool
    slices: list[Slice]
    sampled_at: str | None
    stale: bool
    is_idle: bool


class Node(TypedDict):
    name: str
    state: str
    state_at: str
    cordoned: bool
    cordon_reason: str
    simulated: bool
    hostname: str
    address: str
    os: str
    agent_version: str
    driver_version: str
    cuda_version: str
    cpu_cores: int | None
    memory_mib: int | None
    labels: dict[str, str]
    last_seen_at: str | None
    advice: list[dict[str, Any]]
    isolation: dict[str, Any] | None  # who jobs run as there and what they can reach; None = its agent does not tell
    claim: dict[str, Any] | None  # another agent that asks to speak for it
    load_pct: float | None
    gpus: list[Gpu]


class EnrollToken(TypedDict):
    token: str
    expires_at: str
    name: str


class JoinFacts(TypedDict):
    endpoint: str
    ca_sha256: str | None  # None = a public authority verifies the control plane
    install_sha256: str


class Usage(TypedDict):
    """``gpus``: idle + busy + maintenance = total."""

    nodes: dict[str, int]
    gpus: dict[str, int]
    vram: dict[str, int | None]
    jobs: dict[str, int]
    mine: dict[str, Any]
    simulated: bool
    notices: list[Any]


class Page(TypedDict):
    count: int
    next: str | None
    previous: str | None
    results: list[Any]
