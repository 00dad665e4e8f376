"""A job's way through the database: submit → pass → launch → run → finish, and every turn it can take."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, transaction

from agent.protocol import ExitInfo, Observed
from jobs import snapshot
from jobs.errors import IdempotencyConflict, InvalidState, NeverFits, QuotaExceeded
from jobs.lifecycle import InvalidTransition, JobState
from jobs.models import Attempt, Job, JobEvent, Rank
from jobs.services import job_cancel, job_hold, job_move, job_release, job_submit, jobs_move, upkeep_run
from jobs.services.observe import ForeignRank, observed_apply
from jobs.services.upkeep import node_confirm_lost
from nodes.models import Gpu, Node, NodeState
from quotas.models import LedgerEntry, Quota
from tests.jobs.lab import Lab, state

pytestmark = pytest.mark.django_db


@pytest.fixture
def lab() -> Lab:
    return Lab()


def moves(job: Job) -> list[str]:
    return list(JobEvent.objects.filter(job=job).exclude(to_state="").order_by("pk").values_list("to_state", flat=True))


def test_a_node_is_told_what_the_job_asked_for_of_the_host(lab: Lab) -> None:
    node = lab.node("n1", 24564, 24564)
    node.cpu_cores, node.memory_mib = 8, 64_000
    node.save()
    lab.submit(constraints={"cpu_milli": 1500, "host_mem_mib": 512})
    lab.submit()
    lab.schedule()
    asked = [(order.spec.memory_mib, order.spec.cpu_milli) for order in lab.sync(node) if order.spec is not None]
    assert sorted(asked, key=str) == [(512, 1500), (None, None)]


def test_a_job_goes_the_whole_way(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit(gpu_mem_mib=4096, argv=("python", "train.py"), env={"A": "b"}, checkpoint="/tmp/c")
    assert (job.state, job.wait_code) == ("WAITING", "submitted")

    assert lab.schedule().started == [job.pk]
    assert state(job) == "STARTING"
    assert job.epoch == 1
    (order,) = lab.sync(node)
    assert order.want == "RUN"
    assert order.spec is not None
    assert order.spec.argv == ("python", "train.py")
    assert order.spec.env["A"] == "b"
    assert order.spec.env["NEBULA_CHECKPOINT"] == "/tmp/c"
    assert "NEBULA_RESUME_FROM" not in order.spec.env
    assert [(grant.uuid, grant.mib, grant.exclusive) for grant in order.spec.gpus] == [("GPU-n1-0", 4096, False)]

    lab.report(job, "RUNNING")
    assert state(job) == "RUNNING"
    assert [part.state for part in lab.slices(job)] == ["ACTIVE"]
    (order,) = lab.sync(node)
    assert order.spec is None, "a spec travels only until the agent has it"

    lab.later(100)
    lab.exit(job)
    assert state(job) == "SUCCEEDED"
    assert (job.end_reason, job.exit_code) == ("completed", 0)
    assert [part.state for part in lab.slices(job)] == ["RELEASED"]
    assert moves(job) == ["WAITING", "STARTING", "RUNNING", "SUCCEEDED"]
    gpu = Gpu.objects.get()
    assert (gpu.held_mib, gpu.live_slices, gpu.is_exclusive) == (0, 0, False)
    charge = LedgerEntry.objects.get()
    assert charge.gpu_seconds == pytest.approx(100 * 4096 / 24564)  # share of the card × time
    assert lab.sync(node) == []  # FORGET was obeyed with the answer before
    lab.sync(node)
    assert Rank.objects.get().is_forgotten
    lab.check()


def test_a_job_that_came_and_went_between_two_reports_is_charged_and_has_all_its_moves(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    started = lab.now.timestamp() + 2
    lab.later(5)
    lab.exit(job, 0, started_at=started)
    assert moves(job) == ["WAITING", "STARTING", "RUNNING", "SUCCEEDED"]
    assert LedgerEntry.objects.get().gpu_seconds == pytest.approx(3.0, abs=0.01)  # a whole card from 2 s to 5 s
    lab.check()


@pytest.mark.parametrize(("ran_s", "paid_s"), [(10.0, 10.0), (None, 5.0), (1e300, 5.0), (float("nan"), 5.0), (-5.0, 5.0)])
def test_nobody_pays_for_a_control_plane_that_was_away(lab: Lab, ran_s: float | None, paid_s: float) -> None:
    node = lab.node("n1", 24_564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING", started_at=lab.later(2).timestamp())
    lab.later(5)
    lab.sync(node)
    lab.later(3600)
    lab.report(job, "EXITED", exit=ExitInfo(cause="exited", code=0, ran_s=ran_s), released=True, final_log_offset=0)
    assert state(job) == "SUCCEEDED"
    assert LedgerEntry.objects.get().gpu_seconds == pytest.approx(paid_s, abs=0.1)
    lab.check()


def test_a_node_clock_that_is_wrong_charges_nothing_absurd(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.later(5)
    lab.exit(job, 0, started_at=12.5)  # 1970
    assert LedgerEntry.objects.get().gpu_seconds <= 5.5
    lab.check()


def test_a_failing_program_ends_the_job_with_its_code(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.exit(job, 3)
    assert state(job) == "FAILED"
    assert (job.end_reason, job.exit_code, job.end_params["exit_code"]) == ("nonzero_exit", 3, 3)
    lab.check()


def test_a_program_that_can_not_start_fails_at_once_and_is_not_tried_again(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit(argv=("pyhton",))
    lab.schedule()
    lab.report(job, "LAUNCH_FAILED", launch_error="exec", launch_detail="No such file: pyhton", released=True)
    assert state(job) == "FAILED"
    assert job.end_reason == "launch_failed"
    assert job.end_params["detail"] == "No such file: pyhton"
    assert LedgerEntry.objects.count() == 0
    assert Gpu.objects.get().live_slices == 0
    lab.check()


def test_a_launch_that_the_machine_spoilt_is_tried_elsewhere(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.node("n2", 24564)
    lab.report(job, "LAUNCH_FAILED", launch_error="cgroup", launch_detail="read-only", released=True)
    assert state(job) == "WAITING"
    assert job.requeues == 1
    lab.schedule(lab.later(60))
    assert state(job) == "STARTING"
    assert lab.rank(job).node.name == "n2"
    assert lab.rank(job).key == f"{job.pk}.2.0"
    lab.check()


def test_a_cancel_of_a_waiting_job_is_at_once_and_idempotent(lab: Lab) -> None:
    job = lab.submit()
    for _ in range(2):
        assert job_cancel(job=job, by=job.owner).state == "CANCELLED"
    assert moves(job) == ["WAITING", "CANCELLED"]
    assert Quota.objects.get(user=job.owner).active_jobs == 0
    lab.check()


def test_a_cancel_of_a_running_job_stops_it_politely(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    job_cancel(job=job, by=job.owner)
    assert state(job) == "STOPPING"
    (order,) = lab.sync(node)
    assert (order.want, order.stop_reason, order.grace_s) == ("STOP", "cancelled", 30)
    lab.exit(job, None, cause="stopped", signal=15)
    assert state(job) == "CANCELLED"
    assert job.end_reason == "cancelled"
    lab.check()


def test_a_job_that_finishes_before_its_stop_has_succeeded(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    job_cancel(job=job, by=job.owner)
    lab.exit(job, 0)
    assert state(job) == "SUCCEEDED"
    with pytest.raises(InvalidState):
        job_cancel(job=job, by=job.owner)
    lab.check()


def test_a_cancel_before_the_launch_ends_when_the_agent_confirms_that_nothing_ran(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    job_cancel(job=job, by=job.owner)
    assert state(job) == "STOPPING"
    assert lab.sync(node)[0].want == "STOP"
    lab.exit(job, None, cause="never_started")
    assert state(job) == "CANCELLED"
    assert LedgerEntry.objects.count() == 0
    lab.check()


def test_hold_keeps_a_job_out_and_release_lets_it_in(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    job_hold(job=job, by=job.owner, why="data is not there yet")
    assert lab.schedule().started == []
    job.refresh_from_db()
    assert (job.wait_code, job.wait_params["why"]) == ("held", "data is not there yet")
    job_release(job=job, by=job.owner)
    assert lab.schedule().started == [job.pk]
    with pytest.raises(InvalidState):
        job_hold(job=job, by=job.owner)
    lab.check()


def test_what_no_card_can_ever_hold_is_refused_with_the_numbers(lab: Lab) -> None:
    lab.node("n1", 24564)
    with pytest.raises(NeverFits) as caught:
        lab.submit(gpu_mem_mib=40960)
    assert 40960 in caught.value.params.values()
    assert Job.objects.count() == 0
    assert lab.submit(gpu_mem_mib=24576).pk  # 24G on a card of 24 nominal GiB (D1)


def test_a_waiting_job_says_what_is_short(lab: Lab) -> None:
    lab.node("n1", 24564)
    first, second = lab.submit(gpu_mem_mib=20480), lab.submit(gpu_mem_mib=20480)
    assert lab.schedule().started == [first.pk]
    second.refresh_from_db()
    assert second.state == "WAITING"
    assert second.wait_code not in ("", "submitted")
    lab.check()


def test_acceptance_placements(lab: Lab) -> None:
    lab.node("big", 24564)
    whole = lab.submit(gpu_mem_mib=24 * 1024)
    lab.schedule()
    assert [(part.mib, part.is_exclusive) for part in lab.slices(whole)] == [(24564, True)]
    lab.report(whole, "RUNNING")
    lab.exit(whole)
    halves = [lab.submit(gpu_mem_mib=12 * 1024) for _ in range(2)]
    lab.schedule()
    assert [lab.slices(job)[0].mib for job in halves] == [12288, 24564 - 12288]  # the last may shrink (D2)
    lab.node("small", 16376)
    Node.objects.filter(name="big").update(cordoned=True)
    quarters = [lab.submit(gpu_mem_mib=4096) for _ in range(5)]
    assert len(lab.schedule().started) == 4
    assert sorted(lab.slices(job)[0].mib for job in quarters[:4]) == [16376 - 3 * 4096, 4096, 4096, 4096]
    assert state(quarters[4]) == "WAITING"
    lab.check()


def test_a_rebooted_node_fails_the_attempt_and_requeues_the_job_with_its_checkpoint(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit(checkpoint="/tmp/c")
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.reports[node.pk].clear()
    lab.sync(node, boot_changed=True)
    assert state(job) == "WAITING"
    assert (job.wait_code, job.wait_params["reason"]) == ("requeued", "node_rebooted")
    assert Attempt.objects.get().fence == "BOOT_ID_CHANGED"
    lab.schedule()
    (order,) = (order for order in lab.sync(node) if order.want == "RUN")
    assert order.epoch == 2
    assert order.spec is not None
    assert order.spec.env["NEBULA_RESUME_FROM"] == "/tmp/c"
    lab.check()


def test_after_three_requeues_it_is_enough(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit()
    for _ in range(4):
        lab.schedule()
        lab.report(job, "RUNNING")
        lab.reports[node.pk].clear()
        lab.sync(node, boot_changed=True)
        lab.sync(node)
    assert state(job) == "FAILED"
    assert (job.end_reason, job.end_params["reason"], job.end_params["times"]) == ("crash_limit", "node_rebooted", 4)
    lab.check()


def test_without_requeue_a_reboot_ends_the_job(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit(requeue=False)
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.reports[node.pk].clear()
    lab.sync(node, boot_changed=True)
    assert (state(job), job.end_reason) == ("FAILED", "node_rebooted")
    lab.check()


def test_silence_is_no_permission_to_start_elsewhere(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    lab.node("n2", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    Node.objects.filter(pk=node.pk).update(state=NodeState.UNKNOWN)
    lab.later(3600)
    upkeep_run(now=lab.now)
    lab.schedule()
    assert lab.rank(job).observed == "UNKNOWN"
    assert state(job) == "RUNNING"
    assert Attempt.objects.count() == 1
    Node.objects.filter(pk=node.pk).update(state=NodeState.READY)
    lab.report(job, "RUNNING")
    assert lab.rank(job).observed == "RUNNING"
    lab.exit(job)
    assert state(job) == "SUCCEEDED"
    lab.check()


def test_an_admin_who_confirms_a_loss_lets_the_job_go_on_elsewhere_and_the_old_rank_is_fenced(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    lab.node("n2", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    admin = lab.user("admin", is_staff=True)
    with pytest.raises(ValueError, match="still reports"):
        node_confirm_lost(node=Node.objects.get(pk=node.pk), by=admin, reason="power cut", now=lab.now)
    Node.objects.filter(pk=node.pk).update(state=NodeState.UNKNOWN)
    assert node_confirm_lost(node=Node.objects.get(pk=node.pk), by=admin, reason="power cut", now=lab.now) == 1
    assert state(job) == "WAITING"
    first = Attempt.objects.get()
    assert (first.fence, first.fence_params["reason"]) == ("ADMIN_CONFIRMED", "power cut")
    assert [part.state for part in lab.slices(job)] == ["QUARANTINED"]
    lab.schedule()
    assert lab.rank(job).node.name == "n2"
    # The machine was alive after all: it is told to stop, and its late report changes nothing but the quarantine.
    Node.objects.filter(pk=node.pk).update(state=NodeState.READY)
    assert {order.want for order in lab.sync(node)} == {"STOP"}
    old = first.ranks.get()
    lab.reports[node.pk][old.key] = Observed(rank=old.key, epoch=1, state="EXITED", exit=ExitInfo(cause="stopped", signal=9), released=True)
    lab.sync(node)
    assert lab.slices(job)[0].state == "RELEASED"
    old.refresh_from_db()
    assert old.observed == "LOST"
    lab.check()


def test_a_lost_store_is_asked_to_stop_and_never_starts_again(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.reports[node.pk].clear()
    assert [order.want for order in lab.sync(node)] == ["STOP"]
    lab.exit(job, None, cause="never_started")
    assert (state(job), job.end_reason) == ("FAILED", "exit_unknown")
    lab.check()


def test_stale_and_foreign_reports_change_nothing(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    other = lab.node("n2", 24564)
    job = lab.submit()
    lab.schedule()
    key = lab.rank(job).key
    owner = lab.rank(job).node_id
    stranger = other if owner == node.pk else node
    with pytest.raises(ForeignRank):
        observed_apply(node=stranger, observed=[Observed(rank=key, epoch=1, state="RUNNING")], now=lab.now, boot_changed=False)
    lab.report(job, "RUNNING")
    lab.exit(job, 0)
    lab.reports[owner][key] = Observed(rank=key, epoch=1, state="RUNNING")
    lab.sync(Node.objects.get(pk=owner))
    assert state(job) == "SUCCEEDED"
    lab.check()


def test_memory_that_does_not_come_back_is_quarantined_and_charged_to_nobody(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.later(10)
    lab.exit(job, 0, released=None)
    assert state(job) == "SUCCEEDED"
    assert [part.state for part in lab.slices(job)] == ["RELEASING"]
    charged = LedgerEntry.objects.get().gpu_seconds
    lab.later(60)
    lab.exit(job, 0, released=False)
    assert [part.state for part in lab.slices(job)] == ["QUARANTINED"]
    waiting = lab.submit()
    lab.schedule()
    assert state(waiting) == "WAITING"
    lab.later(60)
    lab.exit(job, 0, released=True)
    assert [part.state for part in lab.slices(job)] == ["RELEASED"]
    assert LedgerEntry.objects.get().gpu_seconds == charged
    assert lab.schedule().started == [waiting.pk]
    lab.sync(node)
    lab.check()


def test_a_gang_starts_and_stops_together(lab: Lab) -> None:
    nodes = [lab.node("n1", 24564), lab.node("n2", 24564)]
    job = lab.submit(gpu_count=2, nodes=2)
    lab.schedule()
    specs = [lab.sync(node)[0].spec for node in nodes]
    assert [spec.env["NODE_RANK"] for spec in specs if spec] == ["0", "1"]
    assert {spec.env["NNODES"] for spec in specs if spec} == {"2"}
    assert {(spec.env["MASTER_ADDR"], spec.env["MASTER_PORT"]) for spec in specs if spec} == {("10.0.0.1", "20000")} or len(
        {spec.env["MASTER_PORT"] for spec in specs if spec}
    ) == 1
    lab.report(job, "RUNNING", index=0)
    assert state(job) == "STARTING"
    lab.report(job, "RUNNING", index=1)
    assert state(job) == "RUNNING"
    lab.exit(job, 1, index=1)
    assert state(job) == "STOPPING"
    assert lab.sync(nodes[0])[0].want == "STOP"
    lab.exit(job, None, index=0, cause="stopped", signal=15)
    assert (state(job), job.end_reason, job.end_params["rank"]) == ("FAILED", "nonzero_exit", 1)
    lab.check()


def test_a_gang_whose_ranks_all_end_well_succeeds(lab: Lab) -> None:
    lab.node("n1", 24564)
    lab.node("n2", 24564)
    job = lab.submit(gpu_count=2, nodes=2)
    lab.schedule()
    for index in (0, 1):
        lab.report(job, "RUNNING", index=index)
    lab.exit(job, 0, index=0)
    assert state(job) == "RUNNING"
    lab.exit(job, 0, index=1)
    assert state(job) == "SUCCEEDED"
    lab.check()


def test_the_end_waits_for_the_last_byte_of_output_but_not_for_ever(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.exit(job, 0, final_log_offset=1000)
    assert state(job) == "RUNNING"
    lab.later(30)
    upkeep_run(now=lab.now)
    assert state(job) == "RUNNING"
    lab.later(31)
    upkeep_run(now=lab.now)
    assert state(job) == "SUCCEEDED"
    lab.check()


def test_an_offer_that_nobody_takes_cordons_the_node_and_waits_for_the_agents_word(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.later(61)
    upkeep_run(now=lab.now)
    node.refresh_from_db()
    assert node.cordoned
    assert state(job) == "STOPPING"
    assert Attempt.objects.get().ended_at is None
    lab.exit(job, None, cause="never_started")
    assert state(job) == "WAITING"
    lab.check()


def test_a_time_limit_that_the_shim_missed_is_enforced(lab: Lab) -> None:
    lab.node("n1", 24564)
    job = lab.submit(time_limit_s=60)
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.later(61)
    upkeep_run(now=lab.now)
    assert state(job) == "RUNNING"
    lab.later(60)
    upkeep_run(now=lab.now)
    assert state(job) == "STOPPING"
    lab.exit(job, None, cause="stopped", signal=15)
    assert (state(job), job.end_reason) == ("FAILED", "time_limit")
    lab.check()


def test_an_unchanged_sync_writes_nothing(lab: Lab, django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    node = lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    with django_assert_num_queries(1):
        lab.sync(node)


def test_moves_are_compare_and_swap(lab: Lab) -> None:
    job = lab.submit()
    with pytest.raises(InvalidTransition):
        job_move(job.pk, to=JobState.SUCCEEDED, code="succeeded")
    assert jobs_move([job.pk], to=JobState.CANCELLED, code="cancelled") == [job.pk]
    assert jobs_move([job.pk], to=JobState.STARTING, code="placed") == []
    assert moves(job) == ["WAITING", "CANCELLED"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"state": "WAITING", "wait_code": "x"}, "final"), ({"epoch": 0}, "epoch")],
)
def test_the_database_itself_guards_final_states_and_epochs(lab: Lab, change: dict[str, object], message: str) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    lab.schedule()
    lab.report(job, "RUNNING")
    lab.exit(job, 0)
    with pytest.raises(DatabaseError, match=message), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(**change)


def test_events_are_append_only(lab: Lab) -> None:
    job = lab.submit()
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        JobEvent.objects.filter(job=job).update(code="x")


def test_one_key_makes_one_job(lab: Lab) -> None:
    from jobs.requests import JobRequest
    from quotas.services import project_personal

    owner = lab.user()
    wanted = JobRequest(name="x", argv=("true",), project=project_personal(owner))
    first, made = job_submit(owner=owner, request=wanted, idempotency_key="k", body_sha256="a")
    again, made_again = job_submit(owner=owner, request=wanted, idempotency_key="k", body_sha256="a")
    assert (made, made_again, first.pk) == (True, False, again.pk)
    with pytest.raises(IdempotencyConflict):
        job_submit(owner=owner, request=wanted, idempotency_key="k", body_sha256="b")
    assert Job.objects.count() == 1


def test_a_limit_of_cards_is_never_passed(lab: Lab) -> None:
    lab.node("n1", 24564, 24564, 24564)
    owner = lab.user()
    lab.submit(owner=owner)
    Quota.objects.filter(user=owner).update(max_cards=2)
    jobs = [lab.submit(owner=owner) for _ in range(3)]
    lab.schedule()
    lab.schedule()
    assert Quota.objects.get(user=owner).held_cards == 2
    waiting = [job for job in jobs if state(job) == "WAITING"]
    assert [(job.wait_code, job.wait_params) for job in waiting] == [("cards_exceeded", {"needed": 1, "room": 0})] * 2
    lab.check()


def test_a_limit_of_active_jobs_refuses_the_next_submit(lab: Lab) -> None:
    owner = lab.user()
    lab.submit(owner=owner)
    Quota.objects.filter(user=owner).update(max_active_jobs=1)
    with pytest.raises(QuotaExceeded):
        lab.submit(owner=owner)
    assert Job.objects.count() == 1


def test_cpu_jobs_hold_no_card(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit(gpu_count=0)
    lab.schedule()
    spec = lab.sync(node)[0].spec
    assert spec is not None
    assert spec.gpus == ()
    lab.report(job, "RUNNING")
    lab.exit(job)
    assert state(job) == "SUCCEEDED"
    assert LedgerEntry.objects.count() == 0
    lab.check()


def test_a_snapshot_costs_the_same_for_any_number_of_jobs(lab: Lab, django_assert_max_num_queries) -> None:  # type: ignore[no-untyped-def]
    lab.node("n1", *[24564] * 4)
    for _ in range(30):
        lab.submit()
    snapshot.build(lab.now)  # the first one reads the past, too
    with django_assert_max_num_queries(12):
        snapshot.build(lab.now)


@pytest.mark.parametrize("cards", [2, 12])
def test_a_pass_costs_the_same_for_any_number_of_starts(lab: Lab, cards: int, django_assert_max_num_queries) -> None:  # type: ignore[no-untyped-def]
    for number in range(cards // 2):
        lab.node(f"n{number}", 24564, 24564)
    for number in range(cards + 5):
        lab.submit(owner=lab.user(f"user{number % 4}"))
    snapshot.build(lab.now)  # the first one reads the past, too
    with django_assert_max_num_queries(30):  # a dozen of the snapshot, a dozen of the apply, savepoints
        assert len(lab.schedule().started) == cards
