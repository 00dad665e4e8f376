"""When a card may be given to the next job: pure rules over what was read (docs/lifecycle.md, rule 6), and foreign use.

A rank's cards are free when its process tree is gone AND none of its processes is left in the cards' process lists AND,
on a card that was wholly its own, the memory came back. Where the hardware lists no processes, the tree must do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.protocol import GpuGrant, GpuProcess, GpuStatus, RankId

#: Drivers and contexts keep a little; less than this is nobody's (D1, D19).
SLACK_MIB = 512
#: Without proof for so long the slices are quarantined.
GIVE_UP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was read after the rank's exit. ``processes`` None = this hardware lists none."""

    tree_gone: bool
    status: Mapping[str, GpuStatus]  # by uuid
    processes: Sequence[GpuProcess] | None
    own_pids: Collection[int]  # pids that were the rank's and have not been taken over by another process
    baseline_mib: Mapping[str, int]  # foreign use of each card before the rank started


def gate_open(grants: Iterable[GpuGrant], evidence: Evidence) -> str | None:
    """None when the cards may be released, else what is still missing (English, for the log)."""
    if not evidence.tree_gone:
        return "processes of the rank are still there"
    for grant in grants:
        card = evidence.status.get(grant.uuid)
        if card is None or card.error is not None:
            return f"card {grant.uuid} does not answer ({'missing' if card is None else card.error})"
        if evidence.processes is None:
            continue
        here = [p for p in evidence.processes if p.uuid == grant.uuid]
        left = sorted(p.pid for p in here if p.pid in evidence.own_pids)
        if left:
            return f"process {left[0]} is still on card {grant.uuid}"
        if not grant.exclusive or card.used_mib is None or any(p.used_mib is None for p in here):
            continue  # shared memory cannot be told apart; what is unknown proves nothing either way
        foreign = max(sum(p.used_mib or 0 for p in here), evidence.baseline_mib.get(grant.uuid, 0))
        if card.used_mib > foreign + SLACK_MIB:
            return (
                f"card {grant.uuid} still has {card.used_mib} MiB in use; {foreign} MiB foreign use and {SLACK_MIB} MiB slack are allowed"
            )
    return None


def processes_attribute(processes: Iterable[GpuProcess], pids: Mapping[int, RankId]) -> tuple[GpuProcess, ...]:
    """The processes with the rank that each belongs to; None = foreign."""
    return tuple(replace(p, rank=pids.get(p.pid)) for p in processes)


def foreign_mib(card: GpuStatus, processes: Sequence[GpuProcess] | None, *, has_ranks: bool) -> int | None:
    """Memory on the card that no rank of ours owns; None when it cannot be told now.

    ``processes`` are those of all cards, attributed, read together with ``card``. Memory that no listed process explains
    (another container's, a leak) counts as foreign once it is above SLACK_MIB.
    """
    if card.error is not None or card.used_mib is None:
        return None
    if not has_ranks:
        listed = sum(p.used_mib or 0 for p in processes or () if p.uuid == card.uuid and p.rank is None)
        return card.used_mib if card.used_mib > max(SLACK_MIB, listed) else listed
    if processes is None:
        return None
    here = [p for p in processes if p.uuid == card.uuid]
    listed = sum(p.used_mib or 0 for p in here if p.rank is None)
    if any(p.used_mib is None for p in here):
        return listed
    rest = card.used_mib - sum(p.used_mib or 0 for p in here)
    return listed + (rest if rest > SLACK_MIB else 0)
