"""A card's fault over the wire: judged once, tested, healed or isolated, and what becomes of the jobs on it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from agent.protocol import AgentEvent, CommandResult, ExitInfo, Observed
from jobs.models import Attempt, Job, Rank
from jobs.services.faults import faults_apply
from jobs.services.schedule import pass_run
from nodes.care import card_isolate, card_maintain, card_reset, card_return, card_test, care_run
from nodes.errors import NodeRefused
from nodes.incidents import incident_close
from nodes.models import AgentCommand, CardCare, Gpu, HealthEvent, Incident
from quotas.models import User
from tests.factories import attempt_make, gpu_info, inventory, job_make, node_make, user_make, xid_rules_ship
from tests.jobs.test_agent_api import AgentClient

pytestmark = pytest.mark.django_db


class Wire(AgentClient):
    """An agent that tells of faults and answers commands as told."""

    eid = 0

    def throw(self, gpu: Gpu, kind: str = "xid", *, at: float | None = None, times: int = 1, **data):
        events = []
        for _ in range(times):
            Wire.eid += 1
            events.append(AgentEvent(eid=Wire.eid, kind=kind, gpu=gpu.uuid, at=at, data=data))
        status, orders = self.sync(*self.observed(), events=tuple(events), sent_at=timezone.now().timestamp())
        assert status == 200
        assert sorted(orders["ack_eids"]) == sorted(event.eid for event in events)
        gpu.refresh_from_db()
        return orders

    def answer(self, cid: int, *, ok: bool = True, **report):
        status, orders = self.sync(*self.observed(), results=(CommandResult(cid=cid, ok=ok, text=json.dumps(report)),))
        assert status == 200
        return orders

    def observed(self):
        ranks = Rank.objects.filter(node=self.node, observed="RUNNING").select_related("attempt")
        return [Observed(rank=rank.key, epoch=rank.attempt.epoch, state="RUNNING") for rank in ranks]


@pytest.fixture
def wire() -> Wire:
    xid_rules_ship()
    return Wire(node_make("n1", cards=2))


@pytest.fixture
def gpu(wire: Wire) -> Gpu:
    return wire.node.gpus.get(index=0)


def run_on(gpu: Gpu, *, owner: User | None = None, mib: int = 4096, **job) -> Attempt:
    return attempt_make(job_make(owner, state="RUNNING", epoch=1, started_at=timezone.now(), **job), gpus=(gpu,), mib=mib)


def wants_of(attempt: Attempt) -> str:
    return Rank.objects.get(attempt=attempt).desired


def heal(wire: Wire, gpu: Gpu, result: str = "passed") -> None:
    command = AgentCommand.objects.get(verb="selftest", state="QUEUED")
    wire.answer(command.pk, ok=result == "passed", result=result, mib=20_000, errors=0)
    gpu.refresh_from_db()


# --- 79 -------------------------------------------------------------------------------------------------------------


def test_a_79_takes_the_card_out_and_the_self_test_goes_out_with_the_same_answer(wire, gpu):
    orders = wire.throw(gpu, xid=79)
    assert (gpu.state, gpu.state_reason) == ("SUSPECT", "xid:79")
    (command,) = orders["commands"]
    assert (command["kind"], command["args"]["gpu"]) == ("selftest", gpu.uuid)
    assert command["args"]["mib"] > 20_000
    assert command["args"]["heat_s"] > 0
    assert Incident.objects.get().phase == "DIAGNOSING"


def test_a_79_once_and_a_passed_self_test_bring_the_card_back_and_its_job_never_notices(wire, gpu):
    attempt = run_on(gpu)
    wire.throw(gpu, xid=79)
    command = AgentCommand.objects.get()
    assert command.args == {"gpu": gpu.uuid, "mib": 24_564 - 4096 - 512, "heat_s": 0}  # beside a program: its memory is left alone
    heal(wire, gpu)
    assert (gpu.state, gpu.state_reason) == ("HEALTHY", "")
    assert wants_of(attempt) == "RUN"
    incident = Incident.objects.get()
    assert (incident.phase, incident.kind, incident.recovered_at is not None) == ("REVIEW", "loss", True)
    assert list(incident.entries.values_list("code", flat=True)) == ["xid", "suspect", "test_asked", "test_passed", "healthy"]


def test_a_second_79_isolates_the_card_and_its_job_is_stopped_politely_to_run_elsewhere(wire, gpu):
    attempt = run_on(gpu)
    now = timezone.now().timestamp()
    wire.throw(gpu, xid=79, at=now - 300)
    heal(wire, gpu)
    orders = wire.throw(gpu, xid=79, at=now - 10)
    assert (gpu.state, gpu.state_reason) == ("ISOLATED", "xid_again:79")
    (order,) = orders["desired"]
    assert (order["want"], order["stop_reason"], order["grace_s"]) == ("STOP", "gpu_fault", 15)
    rank = Rank.objects.get()
    wire.sync(
        Observed(
            rank=rank.key, epoch=1, state="EXITED", exit=ExitInfo(cause="stopped", signal=15), released=True, final_log_offset=0
        )
    )  # fmt: skip
    attempt.job.refresh_from_db()
    assert (attempt.job.state, attempt.job.wait_code, attempt.job.requeues) == ("WAITING", "requeued", 1)
    pass_run()
    again = Rank.objects.exclude(pk=rank.pk).get()
    assert list(again.slices.values_list("gpu__index", flat=True)) == [1]
    assert "job_stopped" in Incident.objects.get().entries.values_list("code", flat=True)


def test_a_program_that_dies_of_its_cards_fault_goes_back_to_the_queue(wire, gpu):
    attempt = run_on(gpu)
    wire.throw(gpu, xid=79)
    rank = Rank.objects.get()
    crash = ExitInfo(cause="exited", code=1)
    wire.sync(Observed(rank=rank.key, epoch=1, state="EXITED", exit=crash, released=True, final_log_offset=0))
    attempt.job.refresh_from_db()
    attempt.refresh_from_db()
    assert (attempt.job.state, attempt.end_reason, attempt.exit_code) == ("WAITING", "gpu_fault", 1)


def test_a_program_that_fails_on_a_healthy_card_fails(wire, gpu):
    attempt = run_on(gpu)
    rank = Rank.objects.get()
    crash = ExitInfo(cause="exited", code=1)
    wire.sync(Observed(rank=rank.key, epoch=1, state="EXITED", exit=crash, released=True, final_log_offset=0))
    attempt.job.refresh_from_db()
    assert (attempt.job.state, attempt.job.end_reason) == ("FAILED", "nonzero_exit")


def test_a_failed_self_test_isolates_and_an_impossible_one_waits_for_a_person(wire, gpu):
    other = wire.node.gpus.get(index=1)
    wire.throw(gpu, xid=79)
    heal(wire, gpu, "failed")
    assert (gpu.state, gpu.state_reason) == ("ISOLATED", "test_failed")
    wire.throw(other, xid=79)
    heal(wire, other, "impossible")
    assert (other.state, other.care.needs_human) == ("SUSPECT", True)
    assert care_run(now=timezone.now()) == 0  # not asked again and again


def test_a_self_test_that_nobody_answers_is_asked_again_and_given_up_at_last(wire, gpu):
    now = timezone.now()
    wire.throw(gpu, xid=79)
    for turn in range(1, 4):
        assert AgentCommand.objects.count() == turn
        AgentCommand.objects.filter(state="QUEUED").update(state="EXPIRED", finished_at=now)
        care_run(now=now)
    assert AgentCommand.objects.count() == 3
    gpu.refresh_from_db()
    assert (gpu.state, CardCare.objects.get().needs_human) == ("SUSPECT", True)


def test_a_suspect_card_that_a_job_has_whole_is_tested_when_it_is_free(wire, gpu):
    attempt_make(gpus=(gpu,), exclusive=True)
    wire.throw(gpu, xid=79)
    assert gpu.state == "SUSPECT"
    assert not AgentCommand.objects.exists()
    Gpu.objects.filter(pk=gpu.pk).update(held_mib=0, live_slices=0, is_exclusive=False)
    assert care_run(now=timezone.now()) == 1


# --- once, and bursts -----------------------------------------------------------------------------------------------


def test_ten_thousand_of_one_xid_are_one_event(wire, gpu):
    now = timezone.now().timestamp()
    for turn in range(5):
        wire.throw(gpu, xid=79, at=now - 1 + turn / 5, times=200)
    wire.throw(gpu, xid=79, at=now, unsent_before=8999)
    event = HealthEvent.objects.get()
    assert event.data["count"] == 10_000
    assert gpu.state == "SUSPECT"  # a burst is no second time


@pytest.mark.parametrize(("xid", "rows"), [(79, 2), (13, 1)])
def test_a_storm_of_a_cards_own_fault_is_a_second_time_at_last_and_one_of_a_program_never(wire, gpu, xid, rows):
    now = timezone.now().timestamp()
    for second in range(-8, 0, 2):
        wire.throw(gpu, xid=xid, at=now + second)
    assert HealthEvent.objects.count() == rows
    assert sum(event.data["count"] for event in HealthEvent.objects.all()) == 4


def test_an_event_sent_again_is_judged_once(wire, gpu):
    event = AgentEvent(eid=900_001, kind="xid", gpu=gpu.uuid, at=timezone.now().timestamp() - 60, data={"xid": 79})
    for _ in range(3):
        wire.sync(events=(event,))
        Gpu.objects.update(state="HEALTHY")
    assert HealthEvent.objects.count() == 1
    assert Incident.objects.get().entries.filter(code="suspect").count() == 1


# --- what programs cause ----------------------------------------------------------------------------------------------


def test_a_31_fails_the_only_job_there_and_keeps_the_card(wire, gpu):
    attempt = run_on(gpu)
    wire.throw(gpu, xid=31)
    assert gpu.state == "HEALTHY"
    rank = Rank.objects.get()
    assert (rank.desired, rank.stop_reason) == ("STOP", "gpu_fault")
    stopped = ExitInfo(cause="stopped", signal=15)
    wire.sync(Observed(rank=rank.key, epoch=1, state="EXITED", exit=stopped, released=True, final_log_offset=0))
    job = Job.objects.get(pk=attempt.job_id)
    assert (job.state, job.end_reason, job.end_params["cause"]) == ("FAILED", "gpu_fault", "program")
    assert faults_apply(now=timezone.now()) == []
    assert not Incident.objects.exists()


def test_a_31_whose_process_is_known_fails_its_job_alone(wire, gpu):
    mine, neighbour = run_on(gpu), run_on(gpu)
    wire.throw(gpu, xid=31, rank=f"{mine.job_id}.1.0")
    assert (wants_of(mine), wants_of(neighbour)) == ("STOP", "RUN")


def test_a_31_of_nobody_knows_whom_fails_nobody(wire, gpu):
    attempts = [run_on(gpu), run_on(gpu)]
    wire.throw(gpu, xid=31)
    wire.throw(gpu, xid=31, at=timezone.now().timestamp() - 30, rank="999.1.0")  # not a rank of this card
    assert [wants_of(attempt) for attempt in attempts] == ["RUN", "RUN"]


@pytest.mark.parametrize("xid", [13, 43, 45, 68])
def test_what_one_program_causes_never_touches_anybody(wire, gpu, xid):
    attempts = [run_on(gpu), run_on(gpu)]
    wire.throw(gpu, xid=xid, rank=f"{attempts[0].job_id}.1.0")
    care_run(now=timezone.now())
    gpu.refresh_from_db()
    assert gpu.state == "HEALTHY"
    assert [wants_of(attempt) for attempt in attempts] == ["RUN", "RUN"]
    assert not AgentCommand.objects.exists()


def test_after_a_43_the_card_is_reset_once_when_it_is_idle_and_tested(wire, gpu):
    attempt_make(gpus=(gpu,))
    wire.throw(gpu, xid=43)
    assert not AgentCommand.objects.exists()
    Gpu.objects.filter(pk=gpu.pk).update(held_mib=0, live_slices=0)
    care_run(now=timezone.now())
    gpu.refresh_from_db()
    assert (gpu.state, gpu.state_reason) == ("SUSPECT", "resetting")  # nobody is placed there meanwhile
    command = AgentCommand.objects.get()
    assert command.verb == "reset"
    wire.answer(command.pk, text="done")
    heal(wire, gpu)
    assert gpu.state == "HEALTHY"
    wire.throw(gpu, xid=43, at=timezone.now().timestamp() - 20)
    care_run(now=timezone.now())
    assert AgentCommand.objects.filter(verb="reset").count() == 1


def test_a_13_tests_the_idle_card_and_where_no_test_is_possible_the_card_stays_in_service(wire, gpu):
    orders = wire.throw(gpu, xid=13)
    assert [command["kind"] for command in orders["commands"]] == ["selftest"]
    assert (gpu.state, gpu.state_reason) == ("SUSPECT", "testing")
    heal(wire, gpu, "impossible")
    assert gpu.state == "HEALTHY"
    assert not Incident.objects.exists()


def test_three_peoples_13_within_an_hour_make_the_card_suspect(wire, gpu):
    now = timezone.now().timestamp()
    for minute in (30, 20, 10):
        attempt = run_on(gpu, owner=user_make())
        wire.throw(gpu, xid=13, at=now - 60 * minute, rank=f"{attempt.job_id}.1.0")
    assert (gpu.state, gpu.state_reason) == ("SUSPECT", "xid_owners:13")
    assert Rank.objects.filter(desired="RUN").count() == 3  # nobody is stopped for it


# --- cards that leave -------------------------------------------------------------------------------------------------


def test_a_card_that_vanishes_stops_its_job_alone_and_is_tested_when_it_is_back(wire, gpu):
    other = wire.node.gpus.get(index=1)
    gone, stays = run_on(gpu), run_on(other)
    wire.sync(*wire.observed(), inventory=inventory(other.uuid))
    wire.throw(gpu, kind="missing")
    assert gpu.state == "MISSING"
    assert faults_apply(now=timezone.now()) == []  # a driver that starts anew is back in a moment
    assert faults_apply(now=timezone.now() + timedelta(seconds=16)) == [gone.job_id]
    assert (wants_of(gone), wants_of(stays)) == ("STOP", "RUN")
    back = (gpu_info(gpu.uuid, 0), gpu_info(other.uuid, 1))
    wire.sync(*wire.observed(), inventory=inventory(gpus=back))
    wire.throw(gpu, kind="appeared")
    assert (gpu.state, gpu.state_reason) == ("SUSPECT", "appeared")


def test_a_card_that_is_new_is_not_suspect(wire, gpu):
    wire.throw(gpu, kind="appeared")
    assert gpu.state == "HEALTHY"


def test_a_card_that_has_fallen_off_the_bus_without_a_number_is_isolated(wire, gpu):
    attempt = run_on(gpu)
    wire.throw(gpu, kind="lost")
    assert gpu.state == "ISOLATED"
    assert wants_of(attempt) == "STOP"


# --- what staff do ----------------------------------------------------------------------------------------------------


def test_isolating_by_hand_requeues_its_jobs_and_returning_goes_through_a_self_test(wire, gpu):
    staff = user_make(is_staff=True)
    attempt = run_on(gpu)
    card_isolate(gpu=gpu, by=staff, reason="smells")
    assert faults_apply(now=timezone.now()) == [attempt.job_id]
    gpu.refresh_from_db()
    with pytest.raises(NodeRefused, match="card_busy"):
        card_return(gpu=gpu, by=staff, reason="repaired")
    Gpu.objects.filter(pk=gpu.pk).update(held_mib=0, live_slices=0)
    card_return(gpu=gpu, by=staff, reason="repaired")
    gpu.refresh_from_db()
    assert gpu.state == "MAINTENANCE"
    heal(wire, gpu)
    assert gpu.state == "HEALTHY"


def test_isolating_is_undone_at_once_by_who_checked_the_card(wire, gpu):
    staff = user_make(is_staff=True)
    card_isolate(gpu=gpu, by=staff, reason="wrong one")
    card_return(gpu=gpu, by=staff, reason="a mistake", is_checked=True)
    gpu.refresh_from_db()
    assert gpu.state == "HEALTHY"
    assert not AgentCommand.objects.exists()


@pytest.mark.parametrize("act", [card_maintain, card_reset])
def test_a_busy_card_is_neither_reset_nor_taken_into_maintenance(wire, gpu, act):
    run_on(gpu)
    with pytest.raises(NodeRefused, match="4096"):
        act(gpu=gpu, by=user_make(is_staff=True), reason="now")


@pytest.mark.parametrize("act", [card_isolate, card_maintain, card_reset, card_test, card_return])
@pytest.mark.parametrize("reason", ["   ", "x" * 201])
def test_whoever_acts_on_a_card_says_why(wire, gpu, act, reason):
    with pytest.raises(NodeRefused, match="card_reason"):
        act(gpu=gpu, by=user_make(is_staff=True), reason=reason)


def test_an_incident_is_closed_with_a_note_and_only_when_its_card_is_back(wire, gpu):
    staff = user_make(is_staff=True)
    wire.throw(gpu, xid=79)
    incident = Incident.objects.get()
    with pytest.raises(NodeRefused, match="incident_not_over"):
        incident_close(incident=incident, text="a loose riser", by=staff)
    heal(wire, gpu)
    incident.refresh_from_db()
    with pytest.raises(NodeRefused, match="incident_note"):
        incident_close(incident=incident, text="  ", by=staff)
    closed = incident_close(incident=incident, text="a loose riser", by=staff)
    assert (closed.phase, closed.review, closed.closed_by) == ("CLOSED", "a loose riser", staff)
    wire.throw(gpu, xid=62)
    assert Incident.objects.count() == 2


def test_a_quiet_pool_costs_the_health_task_three_queries(wire, gpu, django_assert_num_queries):
    with django_assert_num_queries(3):
        care_run(now=timezone.now())
        faults_apply(now=timezone.now())


def test_what_the_kernel_wrote_around_a_fault_is_evidence_and_no_event(wire, gpu):
    lines = ["pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error", "NVRM: Xid (PCI:0000:3b:00): 79, fell\0"]
    wire.throw(gpu, "kernel_log", lines=lines)  # nothing is looked into: nothing is kept
    assert not Incident.objects.exists()
    wire.throw(gpu, xid=79)
    wire.throw(gpu, "kernel_log", lines=[*lines, 7, None])
    wire.throw(gpu, "kernel_log", lines="no list")
    assert Incident.objects.get().evidence["kernel"] == [lines[0], "NVRM: Xid (PCI:0000:3b:00): 79, fell\N{REPLACEMENT CHARACTER}"]
    assert list(HealthEvent.objects.values_list("kind", flat=True)) == ["xid"]


# --- clocks that are wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [-600.0, 600.0, 9e9])
@pytest.mark.parametrize("is_told", [True, False], ids=["sent_at", "an older agent"])
def test_a_31_stops_its_job_whatever_the_nodes_clock_says(wire, gpu, skew_s, is_told):
    attempt = run_on(gpu)
    clock = timezone.now().timestamp() + skew_s
    event = AgentEvent(eid=1, kind="xid", gpu=gpu.uuid, at=clock, data={"xid": 31, "rank": f"{attempt.job_id}.1.0"})
    wire.sync(*wire.observed(), events=(event,), sent_at=clock + 1 if is_told else None)
    assert wants_of(attempt) == "STOP"


def test_a_31_of_an_earlier_attempt_stops_no_later_one(wire, gpu):
    attempt = run_on(gpu)
    clock = timezone.now().timestamp()
    named = AgentEvent(eid=1, kind="xid", gpu=gpu.uuid, at=clock - 60, data={"xid": 31, "rank": f"{attempt.job_id}.0.0"})
    of_nobody = AgentEvent(eid=2, kind="xid", gpu=gpu.uuid, at=clock - 600, data={"xid": 31})
    wire.sync(*wire.observed(), events=(named, of_nobody), sent_at=clock)
    assert wants_of(attempt) == "RUN"


# --- the card's doing, its program's end ---------------------------------------------------------------------------------


def test_a_94_stops_its_program_to_run_again_and_the_card_is_reset_when_it_is_idle(wire, gpu):
    mine, neighbour = run_on(gpu), run_on(gpu)
    wire.throw(gpu, xid=94, rank=f"{mine.job_id}.1.0")
    assert (wants_of(mine), wants_of(neighbour), gpu.state) == ("STOP", "RUN", "HEALTHY")
    rank = Rank.objects.get(attempt=mine)
    stopped = ExitInfo(cause="stopped", signal=15)
    wire.sync(Observed(rank=rank.key, epoch=1, state="EXITED", exit=stopped, released=True, final_log_offset=0), *wire.observed())
    mine.job.refresh_from_db()
    mine.refresh_from_db()
    assert (mine.job.state, mine.end_reason) == ("WAITING", "gpu_fault")
    assert CardCare.objects.get(gpu=gpu).wants == "reset"


def test_a_program_that_dies_of_a_94_before_it_is_stopped_goes_back_to_the_queue_too(wire, gpu):
    attempt = run_on(gpu)
    Wire.eid += 1
    rank, crash = Rank.objects.get(), ExitInfo(cause="exited", code=134)
    wire.sync(
        Observed(rank=rank.key, epoch=1, state="EXITED", exit=crash, released=True, final_log_offset=0),
        events=(AgentEvent(eid=Wire.eid, kind="xid", gpu=gpu.uuid, data={"xid": 94, "rank": rank.key}),),
    )
    attempt.job.refresh_from_db()
    attempt.refresh_from_db()
    assert (attempt.job.state, attempt.end_reason, attempt.exit_code) == ("WAITING", "gpu_fault", 134)


@pytest.mark.parametrize("xid", [46, 109, 143])
def test_a_fault_that_wants_a_reset_keeps_new_work_away_until_then(wire, gpu, xid):
    wire.throw(gpu, xid=xid)
    assert gpu.state == "SUSPECT"
    command = AgentCommand.objects.get()
    assert command.verb == "reset"
    wire.answer(command.pk, text="done")
    heal(wire, gpu)
    assert gpu.state == "HEALTHY"
