"""The wire protocol between a node agent and the control plane: the only copy of it.

Every message is a frozen dataclass with ``to_json()`` (a plain dict, ready for ``json.dumps``) and
``from_json()`` (raises ``ProtocolError`` with one clear sentence). Rules of growth: add a field with a default,
never change what a field means, ignore what you don't know. Memory is whole MiB, power whole W, temperature °C,
clocks MHz, utilisation per cent; ``None`` means "the hardware does not tell", never 0.

What each order does: docs/agent.md, "How it talks".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from agent.codec import INT_MOST, Message, ProtocolError, columns_of, columns_read, from_json, json_read

__all__ = ["PROTO", "Message", "ProtocolError", "from_json", "json_read"]

PROTO = 1
#: So many events are read of one sync; the rest is not acknowledged, and comes again with the next.
EVENTS_MOST = 500
#: So much of a sync's other lists is read: no machine has more, and what a sync costs must not be the node's to say.
LISTS_MOST = {"gpus": 1024, "health": 1024, "processes": 2048, "results": 500}
#: ``observed`` is a complete list: with a part of it left out it would say something else. So a longer one is refused.
OBSERVED_MOST = 4096
#: Of an inventory.
CARDS_MOST, LINKS_MOST = 256, 4096
#: The kind that an event has which can't be read: it is acknowledged, counted and otherwise dropped (see ``events_read``).
BAD_EVENT = "bad_event"
#: A rank is named by job, epoch and index in its gang: ``"42.1.0"``. The name is never used twice, because a
#: restored control plane raises its epochs above every epoch that an agent has seen.
RankId = str

Want = Literal["RUN", "STOP", "FORGET"]
#: What an agent may say of a rank. The server adds UNKNOWN (node silent) and LOST (fenced) on its own side.
ObservedState = Literal["PREPARING", "RUNNING", "EXITED", "LAUNCH_FAILED"]
#: Why an agent stopped a rank or what it found. The control plane turns these into a job's end reason.
ExitCause = Literal[
    "exited",  # the program ended by itself; code or signal is its own
    "stopped",  # ended after we sent a stop signal (StopOrder.reason says why)
    "time_limit",  # the shim's own clock ran out
    "lease_expired",  # self-fence: the control plane was silent for longer than the lease
    "exit_unknown",  # the program is gone and nobody saw how
    "node_rebooted",  # the boot id differs from the one the rank was started under
    "never_started",  # a STOP (or a refused RUN) for a rank that never ran here
    "host_memory",  # the kernel killed it for memory
    "pids_limit",
]
LaunchError = Literal["exec", "workdir", "user", "cgroup", "spec", "gpu", "port", "fenced", "internal"]


def rank_id(job: int, epoch: int, index: int) -> RankId:
    return f"{job}.{epoch}.{index}"


def rank_parts(rank: RankId) -> tuple[int, int, int]:
    """``"42.1.0"`` → ``(42, 1, 0)`` = job, epoch, index.

    Raises ProtocolError if it is not three whole numbers joined by dots.
    """
    parts = rank.split(".")
    if len(parts) != 3 or not all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts):
        raise ProtocolError(f"{rank[:60]!r} is not a rank; expected job.epoch.index such as 42.1.0")
    return int(parts[0]), int(parts[1]), int(parts[2])


# --- what a node is -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo(Message):
    """A card's constant facts. ``total_mib`` None = the driver does not tell: the card is shown, never scheduled."""

    uuid: str
    index: int
    model: str
    vendor: str  # nvidia | intel | ascend | amd
    total_mib: int | None = None
    compute_capability: str | None = None  # "8.9"
    pci_bus_id: str | None = None  # "00000000:3B:00.0"
    pcie_gen: int | None = None
    pcie_width: int | None = None
    numa: int | None = None
    unified: bool = False  # memory shared with the host
    simulated: bool = False
    parent: str | None = None  # uuid of the card that this is a MIG part of; such a card itself has no total_mib
    profile: str | None = None  # of a MIG part: "1g.10gb"
    pcie_hops: int | None = None  # PCIe switches between the card and the processor


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkInfo(Message):
    """How two cards of one node reach each other; kinds from near to far as ``nvidia-smi topo -m`` has them."""

    a: str
    b: str
    kind: Literal["nvlink", "pcie_switch", "pcie_host", "numa", "system"]
    count: int = 1  # NVLink lanes
    via: str | None = None  # what it is exactly, where more is known: nvswitch, xgmi, pix (one switch), pxb (several)


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaInfo(Message):
    """A port of an InfiniBand or RoCE device."""

    name: str  # "mlx5_0:1" = device:port
    state: str | None = None  # ACTIVE | DOWN | INIT | ARMED
    rate_gbps: int | None = None
    layer: str | None = None  # InfiniBand | Ethernet


#: What a job may be able to reach on its node, from grave to slight: files and keys of the control plane; files and credential of
#: the agent; files of other people's jobs; memory and environment of other processes; signals to them; names, modes and sockets in
#: folders whose contents are closed; the home of the account that it shares with others.
REACH = ("control_files", "agent_files", "other_jobs_files", "processes", "signals", "paths", "home")
#: What does not stand between people. Anything else does, a word of a newer agent included.
REACH_HARMLESS = frozenset({"signals", "paths", "home"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationInfo(Message):
    """Who jobs run as on this node, and what they can reach there. What each word means: docs/agent.md, "What a job can reach"."""

    identity: str  # same | shared | mapped
    uid: int  # of the account that jobs run as; with mapped, where each person has one, the agent's own
    account: str | None = None  # its name, with same and shared
    sandbox: str = "none"  # mounts | landlock | none: what closes our folders to jobs
    open: tuple[str, ...] = ()  # words of REACH
    limits: dict[str, bool] = field(default_factory=dict)  # memory, cpu, pids, devices: enforced or not
    ready: bool = True  # False: no job can be launched here, for the reason that `problem` names
    problem: str | None = None  # root_same | not_root | job_account_missing | job_account_unknown | job_account_system

    @property
    def isolates_people(self) -> bool:
        return self.ready and REACH_HARMLESS.issuperset(self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory(Message):
    """Sent with the first sync of a session and whenever it changes."""

    hostname: str
    gpus: tuple[GpuInfo, ...] = ()
    links: tuple[LinkInfo, ...] = ()
    address: str | None = None  # the address that other nodes reach this node at
    os: str | None = None
    agent_version: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    cpu_cores: int | None = None
    memory_mib: int | None = None
    rdma: bool = False
    simulated: bool = False
    advice: tuple[str, ...] = ()  # coded hints such as "running_as_root", "no_cgroup"; all of them: docs/hardware.md
    backends: tuple[str, ...] = ()  # what the cards are read with: nvml, level_zero, ascend, amd, simulated
    rdma_ports: tuple[RdmaInfo, ...] = ()
    numa_nodes: int | None = None  # of the host
    metrics_only: bool = False  # this agent launches nothing: the node is shown, and no job comes to it
    isolation: IsolationInfo | None = None  # None: an agent that does not tell, or that launches nothing


# --- what a node sees now -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus(Message):
    """The light status of a card, every 5 s."""

    uuid: str
    used_mib: int | None = None
    reserved_mib: int | None = None
    util_pct: int | None = None  # share of time in which a kernel ran
    mem_util_pct: int | None = None  # share of time in which memory was read or written
    tensor_pct: int | None = None  # share of time in which tensor units worked, since the last reading
    temp_c: int | None = None
    power_w: int | None = None
    fan_pct: int | None = None
    core_mhz: int | None = None
    mem_mhz: int | None = None
    # What holds the clocks down now: power_cap, hw_thermal, sw_thermal, power_brake, … (docs/hardware.md). Empty is the usual
    # case and not sent; None = the hardware does not tell.
    throttle: tuple[str, ...] | None = ()
    foreign_mib: int = 0  # memory of processes that no rank of ours owns
    error: str | None = None  # "lost", "unresponsive", … ; the other fields are then None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHealth(Message):
    """The slow facts of a card, read every 30 s; sent when one of them changed and every few minutes.

    What moves all the time (``compare=False``) does not count as a change.
    """

    uuid: str
    ecc: bool | None = None  # error correction is on
    ecc_corrected: int | None = None  # errors since the driver was loaded
    ecc_uncorrected: int | None = None
    ecc_uncorrected_total: int | None = None  # in the life of the card
    retired_pages: int | None = None  # before Ampere
    remapped_rows: int | None = None  # for uncorrectable errors; Ampere and later
    remap_pending: bool | None = None  # a row or page is taken out of use at the next reset
    remap_failed: bool | None = None  # the spare rows are used up
    pcie_gen: int | None = field(default=None, compare=False)  # now; an idle card slows its link down
    pcie_width: int | None = None  # now
    pcie_replays: int | None = field(default=None, compare=False)
    nvlinks: int | None = None  # that the card has
    nvlinks_up: int | None = None
    nvlink_errors: int | None = None  # replays, recoveries and CRC errors of all links
    persistence: bool | None = None
    compute_mode: str | None = None  # default | exclusive_process | prohibited
    power_limit_w: int | None = None  # in force
    power_default_w: int | None = None
    core_max_mhz: int | None = None
    mem_max_mhz: int | None = None
    slow_c: int | None = None  # from this temperature on the card slows itself down
    bar1_mib: int | None = None  # of the card's memory that the host can reach at once
    energy_j: int | None = field(default=None, compare=False)  # used since the driver was loaded
    driver_model: str | None = None  # wddm | tcc | mcdm; Windows only, and only where the agent is told to ask
    anomalies: int = 0  # values that no card can have, dropped since the agent's start


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess(Message):
    """A process on a card. ``rank`` None = foreign use."""

    uuid: str
    pid: int
    used_mib: int | None = None
    util_pct: int | None = None  # mean share of time, since the last list, in which a kernel of it ran
    rank: RankId | None = None
    user: str | None = None
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus(Message):
    """The machine itself, every 5 s. ``cpu_pct`` is of all its processors since the last reading; the disk is the agent's own."""

    cpu_pct: int | None = None
    memory_mib: int | None = None  # in use: what a new program could not have
    disk_free_mib: int | None = None
    disk_total_mib: int | None = None
    power_headroom_pct: int | None = None  # of the power that the cards may draw together, what they don't draw now


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitInfo(Message):
    """How a rank ended. ``code`` is None where nobody saw it; ``signal`` is set when a signal ended the program."""

    cause: ExitCause
    code: int | None = None
    signal: int | None = None
    detail: str | None = None  # English, for the log; never shown as the reason
    ran_s: float | None = field(default=None, compare=False)  # from its start to its end, by a clock of the node that nobody sets


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Message):
    """What the agent knows of one rank. ``released`` None = not proven yet, True = process tree gone and card
    memory back, False = 60 s without that proof (the server quarantines the slices). ``exit`` of a rank that is RUNNING:
    its program has ended, and the report of its end waits for the last output or for the proof."""

    rank: RankId
    epoch: int
    state: ObservedState
    exit: ExitInfo | None = None
    launch_error: LaunchError | None = None
    launch_detail: str | None = None
    final_log_offset: int | None = None  # bytes of output in all; set once the rank ended
    released: bool | None = None
    started_at: float | None = None  # Unix time on the node, for display only
    checkpoint_seen: bool = False  # a file appeared or changed at the job's checkpoint path during the stop
    began_s: float | None = None  # while it runs: when it began, on the clock of SyncRequest.uptime_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent(Message):
    """Something that happened once. (session, eid) is unique; the server drops repeats. An agent that restarted
    sends what was not acknowledged under the session that first numbered it (``session``; None = the request's).

    ``at`` is by the node's own clock; only its distance from ``SyncRequest.sent_at`` counts."""

    eid: int
    kind: str  # xid | throttle | missing | appeared | driver_mismatch | unresponsive | …
    gpu: str | None = None
    at: float | None = None
    data: dict[str, Any] = field(default_factory=dict)
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult(Message):
    cid: int
    ok: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreAnswer(Message):
    """What a restored control plane needs to know of this node (see RestoreAsk). Goes with the complete ``observed`` list."""

    id: str  # of the question
    ran: dict[str, int] = field(default_factory=dict)  # job → highest epoch that was ever started here; only jobs asked for
    specs: dict[str, RankSpec] = field(default_factory=dict)  # rank → spec; only ranks asked for, as far as they are here
    last_job: int = 0  # the highest job number that this node has ever heard of


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest(Message):
    """``POST /api/agent/v1/sync``. ``observed`` is the complete list, every time.

    To a control plane that reads them (``Orders.columns``) the statuses of the cards go as columns, ``cards`` instead of ``gpus``:
    ``{"uuid": [...], "temp_c": [...], ...}``, which is half as long.
    """

    session: str  # uuid per agent start
    boot_id: str
    seq: int  # grows by one with each request of the session
    proto: int = PROTO
    inventory: Inventory | None = None
    gpus: tuple[GpuStatus, ...] = ()
    health: tuple[GpuHealth, ...] = ()  # of the cards where it is due
    host: HostStatus | None = None
    processes: tuple[GpuProcess, ...] | None = None  # None = not read this time
    observed: tuple[Observed, ...] = ()
    events: tuple[AgentEvent, ...] = ()
    results: tuple[CommandResult, ...] = ()
    answer: RestoreAnswer | None = None
    sent_at: float | None = None  # Unix time by the node's clock when this was sent; None = an agent that does not tell
    # Until the first answer of a session: the secrets of the agent's earlier ones, which show that it is the same agent, and the hash
    # of this one's.
    proofs: tuple[str, ...] = field(default=(), repr=False)
    proof_sha256: str | None = None
    uptime_s: float | None = None  # since the node's boot, when the request was made, by a clock that nobody sets

    def to_json(self, *, columns: bool = False) -> dict[str, Any]:
        found = Message.to_json(self)
        if columns and self.gpus:
            del found["gpus"]
            found["cards"] = columns_of(self.gpus)
        return found

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Raises ProtocolError. An event that can't be read is none of its reasons: see ``events_read``."""
        if not isinstance(value, dict):
            raise ProtocolError(f"{cls.__name__} must be an object")
        plain = {name: _cut(inner, LISTS_MOST.get(name)) for name, inner in value.items() if name not in ("events", "cards")}
        if isinstance(observed := value.get("observed"), list) and len(observed) > OBSERVED_MOST:
            raise ProtocolError(f"{cls.__name__}.observed has {len(observed)} ranks; at most {OBSERVED_MOST} are read")
        if isinstance(inventory := value.get("inventory"), dict):
            plain["inventory"] = {
                **inventory,
                "gpus": _cut(inventory.get("gpus", ()), CARDS_MOST + 1),  # one above the limit: "too many" shows
                "links": _cut(inventory.get("links", ()), LINKS_MOST),
            }
        if "cards" in value:
            plain["gpus"] = ()
        found = from_json(cls, plain, cls.__name__)
        if "cards" in value:
            columns = value["cards"]
            if isinstance(columns, dict):
                columns = {name: _cut(column, LISTS_MOST["gpus"]) for name, column in columns.items()}
            found = replace(found, gpus=columns_read(GpuStatus, columns, f"{cls.__name__}.cards"))
        if "events" in value:
            found = replace(found, events=events_read(value["events"], f"{cls.__name__}.events"))
        return found


def _cut(value: Any, most: int | None) -> Any:
    return value[:most] if isinstance(value, list | tuple) else value


def events_read(values: Any, where: str) -> tuple[AgentEvent, ...]:
    """The first EVENTS_MOST events of a sync. One that can't be read stands as a ``bad_event`` under its number, so that it is
    acknowledged: an agent repeats what is not, and one bad event would else keep the node out for ever.

    Raises ProtocolError if they are no list.
    """
    if not isinstance(values, list | tuple):
        raise ProtocolError(f"{where} must be a list")
    found = []
    for place, value in enumerate(values[:EVENTS_MOST]):
        try:
            found.append(from_json(AgentEvent, value, f"{where}[{place}]"))
        except ProtocolError as error:
            eid = value.get("eid") if isinstance(value, dict) else None
            if not isinstance(eid, int) or isinstance(eid, bool) or not 0 <= eid <= INT_MOST:
                eid = -1  # without a number it can't be acknowledged; it is counted all the same
            found.append(AgentEvent(eid=eid, kind=BAD_EVENT, data={"problem": str(error)[:200]}))
    return tuple(found)


# --- what the control plane wants -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGrant(Message):
    """A part of a card given to a rank. ``exclusive`` = the whole card."""

    uuid: str
    mib: int
    exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef(Message):
    """A secret that a rank gets. Its value is not part of the spec, which is stored: see Desired.secrets."""

    name: str
    env: str | None = None  # the variable that carries it; None = a file of this name in $NEBULA_SECRETS
    id: int = 0  # the control plane's, of this very value


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec(Message):
    """All that a rank needs to start. Users' text (argv, env, workdir, name) is data: it reaches execve as it is."""

    job: int
    index: int
    argv: tuple[str, ...]
    name: str = ""
    env: dict[str, str] = field(default_factory=dict)  # the job's and the control plane's; the agent adds D12's card variables
    workdir: str | None = None
    gpus: tuple[GpuGrant, ...] = ()  # in placement order
    time_limit_s: int | None = None
    grace_s: int = 30  # for the time limit, which the shim watches by itself
    checkpoint: str | None = None
    unix_user: str | None = None  # identity=mapped: who the job runs as; None elsewhere
    unix_uid: int | None = None  # of an account that the control plane made up: the agent makes it where it is missing
    log_cap_mib: int | None = None
    memory_mib: int | None = None  # of the host, that this rank may use; None = the node's default share
    cpu_milli: int | None = None  # thousandths of a processor; None = as much as there is, with a weight by its cards
    secrets: tuple[SecretRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired(Message):
    """What one rank shall be. ``spec`` comes with RUN only."""

    rank: RankId
    epoch: int
    want: Want
    spec: RankSpec | None = None
    spec_sha256: str | None = None
    grace_s: int | None = None  # with STOP
    stop_reason: str | None = None  # with STOP: cancelled | preempted | gpu_fault | time_limit | gang | …
    lease_s: int | None = None  # on_node_loss=requeue: self-fence after so long without an answered sync
    # With the spec: name → value. Kept in memory until the start and in files that end with the rank, never in the store.
    secrets: dict[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Message):
    """An AgentCommand to run at most once; its result comes back with a later sync, by ``cid``."""

    cid: int
    kind: str  # diagnose | reset | selftest | tail | ping | …
    args: dict[str, Any] = field(default_factory=dict)
    expires_in_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreAsk(Message):
    """Asked by a control plane that came back from a backup and no longer knows what ran since, until it is answered.
    The agent also sends again what it still has of logs and artefacts: the restored side may lack their ends."""

    id: str  # one for each restore
    jobs: tuple[int, ...] = ()  # jobs of the backup that had not ended
    ranks: tuple[RankId, ...] = ()  # ranks that the agent reports and the backup does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders(Message):
    """The answer to a sync: the complete desired list of this node."""

    server_time: float
    ack_seq: int
    ack_eids: tuple[int, ...] = ()
    next_in_s: float = 5.0
    desired: tuple[Desired, ...] = ()
    commands: tuple[Command, ...] = ()
    want_inventory: bool = False  # the server has none of this session: send it with the next sync
    ask: RestoreAsk | None = None
    credential_due: bool = False  # the node's credential is old: exchange it (CredentialRequest)
    columns: bool = False  # this control plane reads the statuses of cards as columns


# --- joining --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolRequest(Message):
    """``POST /api/agent/v1/enroll``. The token has one use and at most an hour to live."""

    token: str
    hostname: str
    name: str | None = None  # wanted node name; the token may fix it
    agent_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRequest(Message):
    """``POST /api/agent/v1/credential``, shown with the present credential: the hash of the one that follows. The present one is good until
    the new one was used. ``session`` is the node's: a stolen credential alone exchanges nothing."""

    session: str
    credential_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolAnswer(Message):
    node_id: int
    name: str
    credential: str  # 256 bits, hex; the server keeps only its SHA-256
    installation: str | None = None  # the control plane's own random name, part of what the agent calls its cgroups


# --- logs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAnswer(Message):
    """The answer to ``PUT /api/agent/v1/logs/{rank}?offset=N`` (200, or 409 when N is not the server's length)."""

    length: int
    # The server keeps no more of this log: stop sending. Once the rank is over its end is taken all the same, with ?tail_of=N.
    capped: bool = False
    inserted: int = 0  # bytes of the server's own lines in the log, behind which the output went on (see ?inserted=N)


def spec_sha256(spec: RankSpec | Mapping[str, Any]) -> str:
    """A stable fingerprint of a spec or of its JSON: an agent that already runs this rank compares it, never the text."""
    body = spec.to_json() if isinstance(spec, RankSpec) else spec
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
