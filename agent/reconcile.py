"""What to do so that this node becomes what the control plane wants: pure, no clock, no I/O.

The rules, in lifecycle.md's words: RUN with an epoch at or below the tombstone and not already ours is refused; RUN twice
changes nothing; STOP and FORGET are idempotent; what is observed but not desired keeps running. One more follows from
"a stale attempt is fenced": a RUN for a newer epoch of a job whose older epoch still lives here stops the older one and
waits for its end, so that one node never runs two laps of one job at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from agent.protocol import Desired, ExitCause, ObservedState, ProtocolError, RankId, RankSpec, rank_parts
from agent.store import Tombstone

DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the store knows of one rank. ``stop_grace_s`` None = no stop was asked yet."""

    rank: RankId
    epoch: int
    state: ObservedState
    spec_sha256: str | None = None
    stop_grace_s: float | None = None
    lease_s: int | None = None

    @property
    def is_final(self) -> bool:
        return self.state in ("EXITED", "LAUNCH_FAILED")


@dataclass(frozen=True, slots=True)
class Start:
    rank: RankId
    epoch: int
    spec: RankSpec
    spec_sha256: str | None = None
    lease_s: int | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Stop:
    rank: RankId
    grace_s: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop a final rank, or only raise the fence when nothing of it is held."""

    rank: RankId
    epoch: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Report the rank as ended without having run (or, where it may have run and was forgotten, as unknown)."""

    rank: RankId
    epoch: int
    cause: ExitCause
    detail: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of a rank that we keep has changed."""

    rank: RankId
    lease_s: int | None


@dataclass(frozen=True, slots=True)
class Warn:
    rank: RankId
    text: str


Action: TypeAlias = Start | Stop | Forget | Refuse | Lease | Warn


def diff(
    desired: Mapping[RankId, Desired], observed: Mapping[RankId, Held], *, tombstones: Mapping[int, Tombstone] | None = None
) -> list[Action]:
    """Desired and held → actions, in the order of rank ids within each kind: stops first, then forgets, then starts."""
    fences = tombstones or {}
    newest: dict[int, int] = {}  # job → highest epoch that shall run
    for want in desired.values():
        if want.want == "RUN" and _well_formed(want):
            job = rank_parts(want.rank)[0]
            newest[job] = max(newest.get(job, 0), want.epoch)

    found: list[Action] = []
    superseded: set[int] = set()
    for held in observed.values():
        job = rank_parts(held.rank)[0]
        if not held.is_final and held.epoch < newest.get(job, 0):
            superseded.add(job)
            wish = desired.get(held.rank)
            if held.stop_grace_s is None and (wish is None or wish.want != "STOP"):
                found.append(Stop(held.rank, DEFAULT_GRACE_S, "fenced"))

    for want in desired.values():
        if not _well_formed(want):
            found.append(Warn(want.rank, f"The order for {want.rank!r} (epoch {want.epoch}) does not name a rank of that epoch; ignored."))
            continue
        held_here = observed.get(want.rank)
        fence = fences.get(rank_parts(want.rank)[0], Tombstone(-1))
        if want.want == "RUN":
            found.extend(_run(want, held_here, fence, newest, superseded))
        elif want.want == "STOP":
            found.extend(_stop(want, held_here, fence))
        else:
            found.extend(_forget(want, held_here, fence))
    order = (Stop, Forget, Refuse, Lease, Warn, Start)
    return sorted(found, key=lambda a: (order.index(type(a)), rank_parts(a.rank) if _is_rank(a.rank) else (0, 0, 0)))


def _is_rank(rank: RankId) -> bool:
    try:
        rank_parts(rank)
    except ProtocolError:
        return False
    return True


def _well_formed(want: Desired) -> bool:
    return _is_rank(want.rank) and rank_parts(want.rank)[1] == want.epoch


def _run(want: Desired, held: Held | None, fence: Tombstone, newest: Mapping[int, int], superseded: set[int]) -> list[Action]:
    if held is not None:
        found: list[Action] = []
        if held.is_final:
            return found  # reported with every sync until FORGET
        if want.spec_sha256 and held.spec_sha256 and want.spec_sha256 != held.spec_sha256:
            found.append(Warn(want.rank, "The control plane's spec differs from the one that runs here; the running one is kept."))
        if want.lease_s != held.lease_s:
            found.append(Lease(want.rank, want.lease_s))
        return found
    if want.epoch <= fence.epoch:
        return [_gone(want, fence, f"RUN refused: epoch {want.epoch} is not above this node's fence {fence.epoch}.")]
    job = rank_parts(want.rank)[0]
    if want.epoch < newest[job]:
        return [_gone(want, fence, f"RUN refused: epoch {newest[job]} of the same job is wanted too.")]
    if job in superseded:
        return []  # the older lap is being stopped; its end brings us here again
    if want.spec is None:
        return [Warn(want.rank, "RUN came without a spec; nothing can be started.")]
    return [Start(want.rank, want.epoch, want.spec, want.spec_sha256, want.lease_s, want.secrets or {})]


def _stop(want: Desired, held: Held | None, fence: Tombstone) -> list[Action]:
    if held is None:
        return [_gone(want, fence, "STOP for a rank that is not here.")]
    if held.is_final:
        return []
    grace_s = DEFAULT_GRACE_S if want.grace_s is None else max(0, want.grace_s)
    if held.stop_grace_s is not None and held.stop_grace_s <= grace_s:
        return []
    return [Stop(want.rank, grace_s, want.stop_reason)]


def _forget(want: Desired, held: Held | None, fence: Tombstone) -> list[Action]:
    if held is not None and not held.is_final:
        return [Warn(want.rank, "FORGET came for a rank that still runs; it is kept until a STOP.")]
    if held is None and want.epoch <= fence.epoch:
        return []
    return [Forget(want.rank, want.epoch)]


def _gone(want: Desired, fence: Tombstone, detail: str) -> Refuse:
    # At or below the highest epoch that ran here, this rank may have run and been forgotten: "never started" would be
    # a claim that nobody can prove.
    return Refuse(want.rank, want.epoch, "exit_unknown" if want.epoch <= fence.ran_epoch else "never_started", detail)
