"""The states of a job, a rank and a slice, and every move between them. Pure: one table each, no Django.

Source: lifecycle.md, "States". A state is stored as its value; FINAL is for ever and held by database triggers too.
"""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    WAITING = "WAITING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
#: An attempt is live in these states.
LIVE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})

#: from -> to. A move to WAITING is a requeue: it always ends the attempt, and the next one has epoch + 1.
MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.WAITING: frozenset({JobState.STARTING, JobState.CANCELLED, JobState.FAILED}),
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.STOPPING, JobState.FAILED, JobState.WAITING}),
    JobState.RUNNING: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPING, JobState.WAITING}),
    JobState.STOPPING: frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.WAITING}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class InvalidTransition(Exception):
    """The job is not in a state from which this move is allowed."""


def sources(to: JobState) -> tuple[JobState, ...]:
    """The states that ``to`` may be reached from, in the table's order."""
    return tuple(old for old, targets in MOVES.items() if to in targets)


class Want(StrEnum):
    """What a rank shall be; written by the control plane only."""

    RUN = "RUN"
    STOP = "STOP"
    FORGET = "FORGET"


class RankState(StrEnum):
    """What a rank is; moved by reports only."""

    NONE = "NONE"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    UNKNOWN = "UNKNOWN"  # the node is silent
    LOST = "LOST"  # only with a fence record


RANK_FINAL = frozenset({RankState.EXITED, RankState.LAUNCH_FAILED, RankState.LOST})

RANK_MOVES: dict[RankState, frozenset[RankState]] = {
    RankState.NONE: frozenset(
        {RankState.PREPARING, RankState.RUNNING, RankState.EXITED, RankState.LAUNCH_FAILED, RankState.UNKNOWN, RankState.LOST}
    ),
    RankState.PREPARING: frozenset({RankState.RUNNING, RankState.EXITED, RankState.LAUNCH_FAILED, RankState.UNKNOWN, RankState.LOST}),
    RankState.RUNNING: frozenset({RankState.EXITED, RankState.UNKNOWN, RankState.LOST}),
    RankState.UNKNOWN: frozenset(
        {RankState.NONE, RankState.PREPARING, RankState.RUNNING, RankState.EXITED, RankState.LAUNCH_FAILED, RankState.LOST}
    ),
    RankState.EXITED: frozenset(),
    RankState.LAUNCH_FAILED: frozenset(),
    RankState.LOST: frozenset(),
}


class SliceState(StrEnum):
    HELD = "HELD"
    ACTIVE = "ACTIVE"
    RELEASING = "RELEASING"
    RELEASED = "RELEASED"
    QUARANTINED = "QUARANTINED"


SLICE_MOVES: dict[SliceState, frozenset[SliceState]] = {
    SliceState.HELD: frozenset({SliceState.ACTIVE, SliceState.RELEASING, SliceState.RELEASED, SliceState.QUARANTINED}),
    SliceState.ACTIVE: frozenset({SliceState.RELEASING, SliceState.RELEASED, SliceState.QUARANTINED}),
    SliceState.RELEASING: frozenset({SliceState.RELEASED, SliceState.QUARANTINED}),
    SliceState.QUARANTINED: frozenset({SliceState.RELEASED}),
    SliceState.RELEASED: frozenset(),
}
#: These take room on the card.
SLICE_LIVE = frozenset({SliceState.HELD, SliceState.ACTIVE, SliceState.RELEASING, SliceState.QUARANTINED})


class EndReason(StrEnum):
    """Why an attempt ended, and a job at its end."""

    COMPLETED = "completed"
    NONZERO_EXIT = "nonzero_exit"
    EXIT_UNKNOWN = "exit_unknown"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    GPU_FAULT = "gpu_fault"
    GPU_MEMORY = "gpu_memory"
    SLICE_EXCEEDED = "slice_exceeded"
    IDLE = "idle"
    HOST_MEMORY = "host_memory"
    PIDS_LIMIT = "pids_limit"
    NODE_LOST = "node_lost"
    NODE_REBOOTED = "node_rebooted"
    LAUNCH_FAILED = "launch_failed"
    HOOK_FAILED = "hook_failed"
    CRASH_LIMIT = "crash_limit"
    DEPENDENCY_FAILED = "dependency_failed"
    NEVER_FITS = "never_fits"


#: Ends that the infrastructure caused: the job goes back to the queue if its ``requeue`` allows it.
#: ``launch_failed`` counts only when the machine was at fault (not a missing program or folder).
INFRASTRUCTURE = frozenset(
    {EndReason.GPU_FAULT, EndReason.NODE_LOST, EndReason.NODE_REBOOTED, EndReason.PREEMPTED, EndReason.HOOK_FAILED, EndReason.LAUNCH_FAILED}
)


#: What is noted of a rank that its node does not hold after a restore: its order never arrived, which is no fault of the node's.
NOT_HELD = "Not held by the node after a restore."


class Fence(StrEnum):
    """The proof that a rank can't run any more. Without one, nothing is started elsewhere."""

    AGENT_ACK_STOPPED = "AGENT_ACK_STOPPED"
    BOOT_ID_CHANGED = "BOOT_ID_CHANGED"
    SELF_FENCE_EXPIRED = "SELF_FENCE_EXPIRED"
    ADMIN_CONFIRMED = "ADMIN_CONFIRMED"


class OnNodeLoss(StrEnum):
    HOLD = "hold"
    REQUEUE = "requeue"
