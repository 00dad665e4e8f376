"""A charge ends at the last proof of life (the node's own word, else the last sync that saw the program), not when its end was heard of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent.protocol import ExitInfo, GpuGrant, Observed, RankSpec, RestoreAnswer
from jobs import snapshot
from jobs.alive import begin_of, seen_s, told_s
from jobs.ledger_replay import replay
from jobs.lifecycle import Fence
from jobs.live_use import live_use_refresh
from jobs.models import Job, Rank, Slice
from jobs.services.restore import restore_begin, restore_sync
from jobs.services.upkeep import leases_expire, node_confirm_lost, rank_lose, ranks_silence
from nodes.models import Node, NodeState
from nodes.telemetry import Seen
from quotas.models import LedgerEntry, Quota
from quotas.services import quota_for
from quotas.statements import statement
from tests.jobs.lab import Lab, state

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
UPTIME_S = 5000.0
in_database = pytest.mark.django_db


# --- pure ---------------------------------------------------------------------------------------------------------------


def test_without_the_nodes_word_it_ran_until_the_last_sync_by_the_nodes_own_clock_where_it_tells() -> None:
    last = Seen(NOW.timestamp() + 6)
    assert seen_s(started_at=NOW, began_s=None, last=last) == 6
    # The control plane's clock was set forth by an hour; the node counted 6 s.
    ahead = Seen(NOW.timestamp() + 3606, uptime_s=UPTIME_S + 6)
    assert seen_s(started_at=NOW, began_s=UPTIME_S, last=ahead) == 6
    assert seen_s(started_at=NOW, began_s=UPTIME_S, last=Seen(NOW.timestamp() + 6)) == 6  # an older agent's sync
    assert seen_s(started_at=NOW, began_s=None, last=None) == 0
    assert seen_s(started_at=None, began_s=None, last=last) == 0
    assert seen_s(started_at=NOW, began_s=None, last=Seen(NOW.timestamp() - 5)) == 0  # heard of before it began, not since


@pytest.mark.parametrize(("ran_s", "told"), [(10.0, 10.0), (None, None), (-1.0, None), (float("nan"), None), (1e300, None), (9e4, None)])
def test_a_node_is_believed_unless_it_says_what_no_step_of_a_clock_explains(ran_s: float | None, told: float | None) -> None:
    assert told_s(ExitInfo(cause="exited", ran_s=ran_s), started_at=NOW, now=NOW + timedelta(seconds=60)) == told


@pytest.mark.parametrize(("ran_s", "told"), [(60.5, 60.5), (61.0, 61.0), (62.0, 61.0), (3600.0, 61.0), (7000.0, 61.0)])
def test_no_word_of_a_node_charges_time_that_has_not_passed(ran_s: float, told: float) -> None:
    assert told_s(ExitInfo(cause="exited", ran_s=ran_s), started_at=NOW, now=NOW + timedelta(seconds=60)) == told
    # Nor does the uptime that its syncs tell.
    last = Seen(NOW.timestamp() + 60, uptime_s=UPTIME_S + ran_s)
    assert seen_s(started_at=NOW, began_s=UPTIME_S, last=last) == told


def test_after_a_step_back_of_our_clock_a_charge_ends_now_at_the_latest() -> None:
    assert told_s(ExitInfo(cause="exited", ran_s=600.0), started_at=NOW, now=NOW - timedelta(seconds=3000)) == 0


def test_it_began_when_the_nodes_uptime_says_so_whatever_its_wall_clock_says() -> None:
    seen = Observed(rank="1.1.0", epoch=1, state="RUNNING", started_at=12.5, began_s=UPTIME_S)
    placed = NOW - timedelta(seconds=60)
    assert begin_of(seen, placed_at=placed, uptime_s=UPTIME_S + 20, now=NOW) == NOW - timedelta(seconds=20)
    assert begin_of(seen, placed_at=placed, uptime_s=UPTIME_S + 500, now=NOW) == placed  # not before it was placed
    assert begin_of(seen, placed_at=placed, uptime_s=None, now=NOW) == placed


# --- in the database ----------------------------------------------------------------------------------------------------


@pytest.fixture
def lab() -> Lab:
    """Agents that tell their uptime; a job that has run for 6 s, seen by a sync a second ago."""
    return Lab(now=NOW, booted_at=NOW - timedelta(seconds=UPTIME_S))


def submit(lab: Lab, **wanted: object) -> Job:
    owner = lab.user()
    Quota.objects.update(period_start=NOW.date().replace(day=1))
    return lab.submit(owner=owner, now=lab.now, **wanted)


def run(lab: Lab, *, seconds: float = 6, **wanted: object) -> Job:
    """A whole card's job that its node's syncs saw for so long; then the node falls silent."""
    node, job = lab.node("n1", 24564), submit(lab, **wanted)
    lab.schedule(lab.now)
    lab.report(job, "RUNNING", began_s=lab.uptime_s())
    lab.later(seconds)
    lab.hear(node)
    return job


def paid(job: Job) -> float:
    entry = LedgerEntry.objects.get(job_id=job.pk)
    assert (entry.ended_at - entry.started_at).total_seconds() == pytest.approx(entry.seconds)
    return entry.gpu_seconds


def settled(lab: Lab, job: Job, owed_s: float) -> None:
    """Ledger, counter and statement all say ``owed_s``, and every check agrees."""
    assert paid(job) == pytest.approx(owed_s, abs=0.01)
    assert quota_for(job.owner, now=lab.now).used_gpu_s == pytest.approx(owed_s, abs=0.01)
    assert float(statement(NOW.date().replace(day=1)).used.gpu_s) == pytest.approx(owed_s, abs=0.01)
    assert replay(now=lab.now).differences == []
    lab.check()


def silence(lab: Lab, seconds: float) -> Node:
    """The node is not heard of for so long; its ranks are UNKNOWN."""
    lab.later(seconds)
    Node.objects.update(state=NodeState.UNKNOWN)
    ranks_silence(now=lab.now - timedelta(seconds=max(0, seconds - 15)))
    return Node.objects.get()


@in_database
def test_a_program_that_ended_is_charged_what_its_shim_counted(lab: Lab) -> None:
    job = run(lab, seconds=4)
    lab.later(2)
    lab.exit(job, ran_s=6.0)
    settled(lab, job, 6)


@in_database
def test_a_node_that_says_it_ran_for_longer_than_it_was_placed_is_paid_until_now(lab: Lab) -> None:
    job = run(lab, seconds=4)
    lab.later(2)
    lab.exit(job, ran_s=6.0 + 7000)
    settled(lab, job, 7)


@in_database
def test_what_was_first_seen_late_is_charged_from_its_begin(lab: Lab) -> None:
    node, job = lab.node("n1", 24564), submit(lab)
    lab.schedule(lab.now)
    began = lab.uptime_s() + 1
    lab.later(301)  # the order arrived, the answer did not
    lab.report(job, "RUNNING", began_s=began)
    lab.later(10)
    lab.sync(node)
    lab.exit(job, ran_s=310.0)
    settled(lab, job, 310)


@in_database
def test_a_node_that_was_off_and_rebooted_costs_what_was_seen_to_run(lab: Lab) -> None:
    job = run(lab)
    node = silence(lab, 75)
    lab.booted_at = lab.now - timedelta(seconds=20)
    lab.reports[node.pk] = {}
    lab.sync(node, boot_changed=True)
    assert (state(job), job.wait_params["reason"]) == ("WAITING", "node_rebooted")
    settled(lab, job, 6)


@in_database
def test_a_reboot_that_the_agent_reports_itself_costs_the_same(lab: Lab) -> None:
    job = run(lab)
    silence(lab, 75)
    lab.booted_at = lab.now - timedelta(seconds=20)
    lab.exit(job, None, cause="node_rebooted")
    settled(lab, job, 6)


@in_database
def test_what_staff_write_off_costs_what_was_seen_to_run(lab: Lab) -> None:
    job = run(lab)
    node = silence(lab, 76)
    assert node_confirm_lost(node=node, by=lab.user("admin", is_staff=True), reason="its plug is pulled", now=lab.now) == 1
    settled(lab, job, 6)


@in_database
def test_a_lease_that_ran_out_costs_what_was_seen_to_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    job = run(lab, on_node_loss="requeue")
    silence(lab, 715)
    Node.objects.create(name="n2", state=NodeState.READY)
    Node.objects.create(name="n3", state=NodeState.READY)
    monkeypatch.setattr("jobs.services.upkeep.node_silent_s", lambda node_id: 715.0)
    assert leases_expire(now=lab.now) == 1
    settled(lab, job, 6)


@in_database
def test_a_node_that_comes_back_after_it_was_written_off_adds_nothing(lab: Lab) -> None:
    job = run(lab)
    silence(lab, 300)
    assert rank_lose(rank=lab.rank(job), fence=Fence.ADMIN_CONFIRMED, params={}, now=lab.now)
    Node.objects.update(state=NodeState.READY)
    lab.schedule(lab.later(60))
    lab.exit(job, 0, ran_s=366.0)
    assert Slice.objects.get().state == "RELEASED"
    settled(lab, job, 6)


@in_database
def test_a_partition_that_heals_costs_all_that_ran(lab: Lab) -> None:
    job = run(lab)
    node = silence(lab, 300)
    Node.objects.update(state=NodeState.READY)
    lab.sync(node)
    assert Rank.objects.get().ran_s is None
    lab.later(10)
    lab.exit(job, ran_s=316.0)
    settled(lab, job, 316)


@in_database
def test_an_end_within_a_partition_costs_until_that_end(lab: Lab) -> None:
    job = run(lab)
    silence(lab, 300)
    Node.objects.update(state=NodeState.READY)
    lab.exit(job, ran_s=40.0)
    settled(lab, job, 40)


@in_database
@pytest.mark.parametrize("told", ["PREPARING", "RUNNING"])
def test_agent_and_shim_killed_together_cost_until_the_last_sync_of_the_agent_before(lab: Lab, told: str) -> None:
    job = run(lab)
    lab.later(60)
    # The new agent's first syncs come before its report of the end is complete.
    gone = ExitInfo(cause="exit_unknown", detail="The program ended while nobody could see how.")
    lab.report(job, told, exit=gone)
    lab.later(3)
    lab.sync(lab.rank(job).node)
    lab.exit(job, None, cause="exit_unknown")
    settled(lab, job, 6)


@in_database
def test_a_rank_that_its_agent_no_longer_knows_is_not_proven_alive_by_the_syncs_that_lack_it(lab: Lab) -> None:
    job = run(lab)
    key, kept = next(iter(lab.reports[lab.rank(job).node_id].items()))
    for _ in range(3):
        lab.later(5)
        lab.reports[lab.rank(job).node_id].clear()
        lab.hear(lab.rank(job).node)
    assert Rank.objects.get().ran_s == 6
    # It is found again after all: it lives.
    lab.reports[lab.rank(job).node_id][key] = kept
    lab.hear(lab.rank(job).node)
    assert Rank.objects.get().ran_s is None
    lab.reports[lab.rank(job).node_id].clear()
    lab.later(40)
    lab.hear(lab.rank(job).node)
    lab.exit(job, None, cause="exit_unknown")
    settled(lab, job, 21)


@in_database
def test_an_end_that_waits_for_its_last_output_costs_until_the_end_though_its_node_dies_then(lab: Lab) -> None:
    job = run(lab)
    lab.later(3)
    lab.report(job, "RUNNING", exit=ExitInfo(cause="exited", code=0, ran_s=6.5))
    lab.flush()
    node = silence(lab, 76)
    node_confirm_lost(node=node, by=lab.user("admin", is_staff=True), reason="its plug is pulled", now=lab.now)
    settled(lab, job, 6.5)


@in_database
def test_a_step_of_our_clock_costs_nothing(lab: Lab) -> None:
    job = run(lab)
    lab.booted_at += timedelta(hours=1)  # type: ignore[operator]
    lab.later(3600 + 5)
    lab.hear(lab.rank(job).node)
    node = silence(lab, 30)
    node_confirm_lost(node=node, by=lab.user("admin", is_staff=True), reason="its plug is pulled", now=lab.now)
    assert paid(job) == pytest.approx(11, abs=0.01)


@in_database
def test_a_stop_that_takes_long_costs_until_the_tree_is_gone(lab: Lab) -> None:
    job = run(lab)
    lab.later(55)
    lab.exit(job, None, cause="stopped", signal=9, ran_s=60.0)
    settled(lab, job, 60)


@in_database
def test_memory_that_does_not_come_back_costs_nobody(lab: Lab) -> None:
    job = run(lab)
    lab.exit(job, 0, ran_s=6.0, released=None)
    lab.later(70)
    lab.exit(job, 0, ran_s=6.0, released=False)
    assert Slice.objects.get().state == "QUARANTINED"
    settled(lab, job, 6)


# --- after a return from a backup ---------------------------------------------------------------------------------------


@in_database
def test_what_ended_after_the_backup_costs_until_the_backup_whatever_redis_has_heard_since(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run(lab)
    lab.later(38)
    newer = {lab.rank(job).node_id: Seen(lab.now.timestamp(), uptime_s=lab.uptime_s())}
    monkeypatch.setattr("nodes.telemetry.nodes_last_seen", lambda: newer)
    restore = restore_begin(backup_at=NOW + timedelta(seconds=7), now=lab.now)
    lab.later(6)
    node = Node.objects.get()
    restore_sync(node=node, observed=[], answer=RestoreAnswer(id=restore.pk, ran={str(job.pk): 1}), now=lab.now, uptime_s=lab.uptime_s())
    assert (state(job), job.end_reason) == ("FAILED", "exit_unknown")
    settled(lab, job, 6)


@in_database
def test_what_outlived_the_restore_costs_all_that_it_ran(lab: Lab) -> None:
    job = run(lab)
    lab.later(38)
    restore = restore_begin(backup_at=NOW + timedelta(seconds=7), now=lab.now)
    assert Rank.objects.get().ran_s == 6
    node, rank = Node.objects.get(), lab.rank(job)
    seen = lab.reports[node.pk][rank.key]
    restore_sync(node=node, observed=[seen], answer=RestoreAnswer(id=restore.pk), now=lab.now, uptime_s=lab.uptime_s())
    assert Rank.objects.get().ran_s is None
    lab.later(6)
    lab.exit(job, ran_s=50.0)
    settled(lab, job, 50)


@in_database
def test_what_began_after_the_backup_costs_from_its_begin(lab: Lab) -> None:
    node, job = lab.node("n1", 24564), submit(lab)
    restore = restore_begin(backup_at=lab.now, now=lab.later(40))
    key = f"{job.pk}.1.0"
    spec = RankSpec(job=job.pk, index=0, argv=("train",), name="lost", gpus=(GpuGrant(uuid="GPU-n1-0", mib=24564, exclusive=True),))
    seen = Observed(rank=key, epoch=1, state="RUNNING", began_s=lab.uptime_s() - 30)
    answer = RestoreAnswer(id=restore.pk, ran={str(job.pk): 1}, specs={key: spec})
    restore_sync(node=Node.objects.get(), observed=[seen], answer=answer, now=lab.now, uptime_s=lab.uptime_s())
    lab.reports[node.pk][key] = seen
    assert state(job) == "RUNNING"
    lab.later(20)
    lab.exit(job, ran_s=50.0)
    settled(lab, job, 50)


# --- before it is charged -------------------------------------------------------------------------------------------------


@in_database
def test_live_use_and_fair_share_count_until_the_last_sync_too(lab: Lab) -> None:
    job = run(lab, seconds=3600)
    silence(lab, 36_000)
    live_use_refresh(now=lab.now)
    assert Quota.objects.get(user=job.owner).live_gpu_s == 3600
    # 1 + 0.02 for one card-hour, faded for ten hours: not 0.22 for eleven
    assert snapshot.build(lab.now).usage[job.owner_id] == pytest.approx(1.0192, abs=0.0005)


@in_database
def test_the_checks_find_a_charge_that_goes_on_until_the_end_was_heard_of(lab: Lab) -> None:
    from jobs.invariants import charges_end_with_life

    job = run(lab)
    lab.exit(job, ran_s=6.0)
    assert charges_end_with_life(lab.now) == []
    Slice.objects.update(releasing_at=NOW + timedelta(seconds=6.9))
    assert charges_end_with_life(lab.now) == []
    Slice.objects.update(releasing_at=NOW + timedelta(seconds=81))
    assert "charged until 2026-03-15 12:01:21+00:00, known to live until 2026-03-15 12:00:06+00:00" in charges_end_with_life(lab.now)[0]
    assert any("its program is known to have run until" in line for line in replay(now=lab.now).differences)
