"""The list of lifecycle.md, checked against the database and the log files. Read-only; safe on a live system.

A figure that moves while it is read (a slice released between two queries) is looked at twice: only what is wrong
both times is reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta

from django.db.models import Case, Count, F, Max, Q, Sum, Value, When

from jobs import logs
from jobs.alive import alive_until
from jobs.lifecycle import FINAL, LIVE, MOVES, RANK_FINAL, JobState, RankState, SliceState
from jobs.machines import hosts_read
from jobs.models import Attempt, Job, JobEvent, Rank, Slice
from nodes.models import Gpu, Node
from quotas.models import LedgerEntry, Quota

Check = Callable[[datetime], list[str]]
#: So far a charge may go beyond the last proof of life: two clocks are never quite one.
PROOF_SLACK = timedelta(seconds=1)


def cards_are_not_oversold(now: datetime) -> list[str]:
    """Σ live slice MiB ≤ the card's size, at most max_slices, an exclusive slice is alone, the counters tell the truth."""
    found: list[str] = []
    live = (
        Slice.objects.exclude(state=SliceState.RELEASED)
        .values("gpu_id")
        .annotate(mib_sum=Sum("mib"), parts=Count("pk"), whole=Max(Case(When(is_exclusive=True, then=Value(1)), default=Value(0))))
    )
    sums = {row["gpu_id"]: row for row in live}
    for gpu in Gpu.objects.order_by("pk"):
        row = sums.get(gpu.pk) or {"mib_sum": 0, "parts": 0, "whole": 0}
        if row["mib_sum"] > (gpu.total_mib or 0) and row["parts"]:
            found.append(f"GPU {gpu.uuid}: {row['mib_sum']} MiB sold of {gpu.total_mib}")
        if row["parts"] > gpu.max_slices:
            found.append(f"GPU {gpu.uuid}: {row['parts']} live slices, at most {gpu.max_slices}")
        if row["whole"] and row["parts"] != 1:
            found.append(f"GPU {gpu.uuid}: an exclusive slice among {row['parts']}")
        if (gpu.held_mib, gpu.live_slices, gpu.is_exclusive) != (row["mib_sum"], row["parts"], bool(row["whole"])):
            found.append(
                f"GPU {gpu.uuid}: counters say {gpu.held_mib} MiB in {gpu.live_slices}, the slices {row['mib_sum']} MiB in {row['parts']}"
            )
    return found


def hosts_are_not_oversold(now: datetime) -> list[str]:
    """Σ cores and host memory that live ranks asked for ≤ what their node has."""
    found: list[str] = []
    held = hosts_read()
    for node in Node.objects.filter(pk__in=held).order_by("pk"):
        host = held[node.pk]
        if node.cpu_cores is not None and host.cpu_milli > node.cpu_cores * 1000:
            found.append(f"node {node.name}: {host.cpu_milli} thousandths of a core given of {node.cpu_cores * 1000}")
        if node.memory_mib is not None and host.memory_mib > node.memory_mib:
            found.append(f"node {node.name}: {host.memory_mib} MiB of host memory given of {node.memory_mib}")
    return found


def jobs_have_one_live_attempt(now: datetime) -> list[str]:
    """A live job has exactly one open attempt, with the job's epoch; any other job has none."""
    found: list[str] = []
    open_attempts: dict[int, list[int]] = defaultdict(list)
    for job_id, epoch in Attempt.objects.filter(ended_at__isnull=True).values_list("job_id", "epoch"):
        open_attempts[job_id].append(epoch)
    states = dict(Job.objects.filter(Q(state__in=LIVE) | Q(pk__in=open_attempts)).values_list("pk", "state"))
    epochs = dict(Job.objects.filter(pk__in=states).values_list("pk", "epoch"))
    for pk, state in sorted(states.items()):
        mine = open_attempts.get(pk, [])
        if state in LIVE and mine != [epochs[pk]]:
            found.append(f"job {pk}: {state} at epoch {epochs[pk]} with open attempts {mine}")
        if state not in LIVE and mine:
            found.append(f"job {pk}: {state} with open attempts {mine}")
    return found


def events_replay(now: datetime) -> list[str]:
    """Every move has exactly one event, is in the table, and replaying them gives the job's state; epochs only grow."""
    found: list[str] = []
    replayed: dict[int, str] = {}
    epochs: dict[int, int] = {}
    moves = JobEvent.objects.exclude(to_state="").order_by("job_id", "pk").values_list("job_id", "from_state", "to_state", "epoch", "pk")
    for job_id, old, new, epoch, pk in moves.iterator(chunk_size=5000):
        before = replayed.get(job_id, "")
        if old != before:
            found.append(f"job {job_id}: event {pk} leaves {old or 'nothing'}, the events before it end in {before or 'nothing'}")
        if old and JobState(new) not in MOVES[JobState(old)]:
            found.append(f"job {job_id}: event {pk} moves {old} to {new}, which no move allows")
        if epoch < epochs.get(job_id, 0):
            found.append(f"job {job_id}: event {pk} has epoch {epoch} after {epochs[job_id]}")
        replayed[job_id], epochs[job_id] = new, epoch
    for pk, state in Job.objects.order_by("pk").values_list("pk", "state").iterator(chunk_size=5000):
        if replayed.get(pk) != state:
            found.append(f"job {pk}: is {state}, its events end in {replayed.get(pk) or 'nothing'}")
    return found


def waiting_jobs_have_reasons(now: datetime) -> list[str]:
    """WAITING without a reason for 10 s: none; no reason is older than two minutes."""
    found = [
        f"job {pk}: waits for more than 10 s with no reason but {code or 'none'}"
        for pk, code in Job.objects.filter(state=JobState.WAITING, held=False, queued_at__lt=now - timedelta(seconds=10))
        .filter(wait_code__in=("", "submitted", "requeued"), wait_at__lt=now - timedelta(seconds=10))
        .values_list("pk", "wait_code")
    ]
    old = Job.objects.filter(state=JobState.WAITING).filter(Q(wait_at__isnull=True) | Q(wait_at__lt=now - timedelta(minutes=2)))
    return found + [f"job {pk}: its reason is of {at}" for pk, at in old.values_list("pk", "wait_at")]


def running_jobs_hold_active_slices(now: datetime) -> list[str]:
    """RUNNING ⇒ the slices of its running ranks are ACTIVE, on the rank's own node."""
    wrong = Slice.objects.filter(rank__attempt__ended_at__isnull=True, rank__attempt__job__state=JobState.RUNNING).filter(
        Q(rank__observed=RankState.RUNNING) & ~Q(state=SliceState.ACTIVE) | ~Q(gpu__node_id=F("rank__node_id"))
    )
    return [f"slice {pk} of {key}: {state}" for pk, key, state in wrong.values_list("pk", "rank__key", "state")]


def ended_attempts_hold_nothing(now: datetime) -> list[str]:
    """No slice is held by an attempt that ended 5 minutes ago, unless it is in quarantine."""
    wrong = Slice.objects.filter(rank__attempt__ended_at__lt=now - timedelta(minutes=5)).exclude(
        state__in=(SliceState.RELEASED, SliceState.QUARANTINED)
    )
    return [f"slice {pk} of {key}: still {state}" for pk, key, state in wrong.values_list("pk", "rank__key", "state")]


def charges_match_slices(now: datetime) -> list[str]:
    """Each slice that was ACTIVE and no longer is has one charge of share × time; no other slice has one."""
    found: list[str] = []
    charged = {row[0]: row[1:] for row in LedgerEntry.objects.values_list("slice_id", "gpu_seconds", "seconds")}
    ended = Slice.objects.filter(active_at__isnull=False, releasing_at__isnull=False).values_list(
        "pk", "share", "active_at", "releasing_at"
    )
    for pk, share, active, releasing in ended.iterator(chunk_size=5000):
        seconds = max(0.0, (releasing - active).total_seconds())
        entry = charged.pop(pk, None)
        if entry is None:
            found.append(f"slice {pk}: ran {seconds:.1f} s and was never charged")
        elif abs(entry[0] - share * seconds) > 0.001:
            found.append(f"slice {pk}: charged {entry[0]:.3f} GPU-s, owed {share * seconds:.3f}")
    return found + [f"slice {pk}: charged without having been active" for pk in sorted(charged)]


def charges_end_with_life(now: datetime) -> list[str]:
    """No charge goes beyond its rank's last proof of life (the node's own word, else the last sync that saw it) by more than a second.
    Of a rank that was written off that lies before the moment in which its node was missed."""
    found: list[str] = []
    missed: dict[tuple[int, int], datetime] = {
        row[:2]: row[2] for row in JobEvent.objects.filter(code="node_silent").order_by().values_list("job_id", "epoch").annotate(Max("at"))
    }
    charged = Slice.objects.filter(active_at__isnull=False, releasing_at__isnull=False, rank__observed__in=RANK_FINAL).values_list(
        "pk",
        "active_at",
        "releasing_at",
        "rank__started_at",
        "rank__ran_s",
        "rank__observed",
        "rank__attempt__job_id",
        "rank__attempt__epoch",
    )  # fmt: skip
    for pk, active, releasing, started, ran_s, observed, job, epoch in charged.iterator(chunk_size=5000):
        end = alive_until(started, ran_s, now=active)
        if releasing > max(end, active) + PROOF_SLACK:
            found.append(f"slice {pk}: charged until {releasing}, known to live until {end}")
        silent = missed.get((job, epoch))
        if observed == RankState.LOST and silent is not None and releasing > silent + PROOF_SLACK:
            found.append(f"slice {pk}: charged until {releasing}, its node was silent from {silent}")
    return found


def counters_match(now: datetime) -> list[str]:
    """A quota's active jobs and held cards are what its owner's jobs come to."""
    found: list[str] = []
    active = dict(Job.objects.exclude(state__in=FINAL).values_list("owner_id").annotate(Count("pk")).order_by())
    cards = dict(
        Slice.objects.exclude(state=SliceState.RELEASED).values_list("rank__attempt__job__owner_id").annotate(Count("pk")).order_by()
    )
    for quota in Quota.objects.filter(user__isnull=False).order_by("pk"):
        jobs, held = active.get(quota.user_id, 0), cards.get(quota.user_id, 0)
        if quota.active_jobs != jobs:
            found.append(f"quota of user {quota.user_id}: counts {quota.active_jobs} active jobs, there are {jobs}")
        if quota.held_cards != held:
            found.append(f"quota of user {quota.user_id}: counts {quota.held_cards} held cards, there are {held}")
    return found


def logs_are_whole(now: datetime) -> list[str]:
    """An ended attempt's output has all bytes that its node counted, or says that it hasn't."""
    found: list[str] = []
    ended = Rank.objects.filter(attempt__ended_at__isnull=False, final_log_offset__isnull=False, observed__in=RANK_FINAL)
    ended = ended.exclude(attempt__job__kept__logs_removed_at__isnull=False)
    for key, wanted in ended.order_by("pk").values_list("key", "final_log_offset").iterator(chunk_size=5000):
        if not logs.log_is_closed(key) and logs.log_length(key) != wanted:
            found.append(f"rank {key}: {logs.log_length(key)} bytes of output of {wanted}")
    return found


CHECKS: tuple[Check, ...] = (
    cards_are_not_oversold,
    hosts_are_not_oversold,
    jobs_have_one_live_attempt,
    events_replay,
    waiting_jobs_have_reasons,
    running_jobs_hold_active_slices,
    ended_attempts_hold_nothing,
    charges_match_slices,
    charges_end_with_life,
    counters_match,
    logs_are_whole,
)


def violations(*, clock: Callable[[], datetime], pause: Callable[[float], None]) -> dict[str, list[str]]:
    """Check name → what is wrong, for the checks that found something. ``pause`` is slept between two looks (seconds)."""
    found: dict[str, list[str]] = {}
    for check in CHECKS:
        wrong = check(clock())
        for _ in range(3):
            if not wrong:
                break
            pause(0.5)
            again = set(check(clock()))
            wrong = [line for line in wrong if line in again]
        if wrong:
            found[check.__name__] = wrong
    return found
