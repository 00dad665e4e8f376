"""A database that went back in time, and nodes that did not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from agent.protocol import ExitInfo, GpuGrant, Observed, RankSpec, RestoreAnswer
from jobs.models import Attempt, Job, JobEvent, Rank, Restore, Slice
from jobs.services import job_cancel
from jobs.services.observe import Applied
from jobs.services.restore import restore_begin, restore_give_up, restore_sync, restore_waits_for
from nodes.models import AgentCommand, EnrolToken, Gpu, Node, NodeState
from nodes.services import enrol_token_create
from quotas.models import User
from quotas.services import quota_for
from tests.jobs.lab import Lab, state

pytestmark = pytest.mark.django_db

MIB = 24564


@dataclass
class Agent:
    """What a node really holds and remembers, whatever the database says."""

    node: Node
    ran: dict[str, int] = field(default_factory=dict)
    held: dict[str, tuple[Observed, RankSpec]] = field(default_factory=dict)

    def runs(self, job: int, epoch: int, *, state: str = "RUNNING", index: int = 0, cards: int = 1, **more: Any) -> None:
        key = f"{job}.{epoch}.{index}"
        env = more.pop("env", {})
        grants = tuple(GpuGrant(uuid=f"GPU-{self.node.name}-{i}", mib=MIB, exclusive=True) for i in range(cards))
        spec = RankSpec(job=job, index=index, argv=("train",), name="lost", env=env, gpus=grants)
        self.held[key] = (Observed(rank=key, epoch=epoch, state=state, **more), spec)  # type: ignore[arg-type]
        self.ran[str(job)] = max(epoch, self.ran.get(str(job), 0))

    def sync(self, *, last_job: int = 0) -> Applied:
        """Asked, and then answering: what two syncs come to."""
        observed = [seen for seen, _ in self.held.values()]
        node = Node.objects.get(pk=self.node.pk)
        asked = restore_sync(node=node, observed=observed, answer=None, now=timezone.now())
        assert asked.ask is not None
        assert asked.ranks == []
        told = RestoreAnswer(
            id=asked.ask.id,
            ran={job: epoch for job, epoch in self.ran.items() if int(job) in asked.ask.jobs},
            specs={key: self.held[key][1] for key in asked.ask.ranks},
            last_job=last_job,
        )
        return restore_sync(node=node, observed=observed, answer=told, now=timezone.now())


@pytest.fixture
def lab() -> Lab:
    lab = Lab()
    User.objects.create(email="admin@localhost", is_staff=True, is_superuser=True)
    lab.node("a", MIB, MIB)
    lab.node("b", MIB, MIB)
    return lab


def restored() -> Restore:
    return restore_begin(backup_at=timezone.now(), now=timezone.now())


def agent(lab: Lab, name: str) -> Agent:
    """With all that this node has reported so far."""
    node = Node.objects.get(name=name)
    found = Agent(node)
    for key, seen in lab.reports[node.pk].items():
        rank = Rank.objects.get(key=key)
        found.held[key] = (seen, RankSpec.from_json(rank.spec))
        found.ran[key.split(".")[0]] = rank.attempt.epoch
    return found


def place(lab: Lab, name: str, **request: Any) -> Job:
    """A job that runs on this node."""
    other = Node.objects.exclude(name=name)
    other.update(cordoned=True)
    job = lab.submit(**request)
    lab.schedule()
    other.update(cordoned=False)
    lab.report(job, "RUNNING")
    assert lab.rank(job).node.name == name
    return job


def free(lab: Lab) -> int:
    return sum(gpu.live_slices == 0 for gpu in Gpu.objects.all())


def test_a_job_that_still_runs_goes_on(lab: Lab) -> None:
    job = place(lab, "a")
    a, b = agent(lab, "a"), agent(lab, "b")
    restore = restored()
    assert restore_waits_for(restore) == ["a", "b"]
    a.sync()
    assert restore_waits_for(restore) == ["b"]
    b.sync()
    assert (state(job), job.epoch, job.is_restored) == ("RUNNING", 1, False)
    restore.refresh_from_db()
    assert restore.settled_at is not None
    lab.exit(job)
    assert state(job) == "SUCCEEDED"
    lab.check()


def test_nothing_of_the_backup_starts_before_all_nodes_have_spoken(lab: Lab) -> None:
    job = lab.submit()
    a, b = agent(lab, "a"), agent(lab, "b")
    restored()
    Node.objects.update(state=NodeState.READY)  # as if they were
    assert lab.schedule().started == []
    job.refresh_from_db()
    assert job.wait_code == "restored"
    a.sync()
    assert lab.schedule().started == []
    b.sync()
    Node.objects.update(state=NodeState.READY)
    assert lab.schedule().started == [job.pk]
    job.refresh_from_db()
    assert job.epoch == 1001, "above every epoch that a node may have seen"
    assert JobEvent.objects.filter(job=job, code="placed").get().epoch == 1001
    lab.check()


def test_a_job_that_was_started_since_and_runs_is_taken_in(lab: Lab) -> None:
    job = lab.submit()
    a, b = agent(lab, "a"), agent(lab, "b")
    restored()
    b.runs(job.pk, 1)
    b.sync()
    assert (state(job), job.epoch) == ("RUNNING", 1)
    assert free(lab) == 3
    a.sync()
    assert lab.schedule().started == []
    assert Attempt.objects.filter(job=job).count() == 1
    assert Slice.objects.get(rank__attempt__job=job).state == "ACTIVE"
    lab.check()


def test_a_job_that_ended_since_and_is_not_forgotten_gets_its_true_end(lab: Lab) -> None:
    job = lab.submit()
    a, b = agent(lab, "a"), agent(lab, "b")
    restored()
    b.runs(
        job.pk, 1, state="EXITED", exit=ExitInfo(cause="exited", code=3), final_log_offset=0, released=True, started_at=lab.now.timestamp()
    )
    b.sync()
    a.sync()
    assert (state(job), job.end_reason, job.exit_code) == ("FAILED", "nonzero_exit", 3)
    assert free(lab) == 4
    lab.check()


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_job_that_came_and_went_since_does_not_run_again(lab: Lab, order: str) -> None:
    job, never = lab.submit(), lab.submit()
    agents = {name: agent(lab, name) for name in "ab"}
    agents["b"].ran[str(job.pk)] = 1
    restored()
    for name in order:
        agents[name].sync()
    assert (state(job), job.end_reason, job.end_params) == ("FAILED", "exit_unknown", {"after_backup": True, "node": "b"})
    assert state(never) == "WAITING"
    Node.objects.update(state=NodeState.READY)
    assert lab.schedule().started == [never.pk]
    lab.check()


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_job_that_moved_to_another_node_since_is_followed_there(lab: Lab, order: str) -> None:
    job = place(lab, "a")
    agents = {name: agent(lab, name) for name in "ab"}
    agents["a"].held.clear()
    agents["b"].runs(job.pk, 2)
    restored()
    for name in order:
        agents[name].sync()
    assert (state(job), job.epoch) == ("RUNNING", 2)
    assert lab.rank(job).node.name == "b"
    assert free(lab) == 3, "its card on the first node is free again"
    assert Attempt.objects.filter(job=job, ended_at=None).count() == 1
    lab.check()


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_job_that_moved_and_ended_since_does_not_run_again(lab: Lab, order: str) -> None:
    job = place(lab, "a")
    agents = {name: agent(lab, name) for name in "ab"}
    agents["a"].held.clear()
    agents["b"].ran[str(job.pk)] = 2
    restored()
    for name in order:
        agents[name].sync()
    assert (state(job), job.end_reason) == ("FAILED", "exit_unknown")
    assert free(lab) == 4
    lab.check()


def test_a_job_whose_end_nobody_remembers_ends_unknown_and_is_not_requeued(lab: Lab) -> None:
    job = place(lab, "a")
    a, b = agent(lab, "a"), agent(lab, "b")
    a.held.clear()
    restored()
    a.sync()
    assert state(job) == "RUNNING", "another node may hold a later attempt"
    assert free(lab) == 4, "but its card is free: the agent forgot it after the proof"
    b.sync()
    assert (state(job), job.end_reason) == ("FAILED", "exit_unknown")
    lab.check()


def test_an_order_that_never_arrived_goes_back_to_the_queue(lab: Lab) -> None:
    job = lab.submit()
    lab.schedule()
    a, b = agent(lab, "a"), agent(lab, "b")
    restored()
    a.sync()
    b.sync()
    assert state(job) == "WAITING"
    Node.objects.update(state=NodeState.READY)
    assert lab.schedule().started == [job.pk]
    job.refresh_from_db()
    assert job.epoch == 1002
    lab.check()


def test_a_reboot_since_the_backup_proves_nothing(lab: Lab) -> None:
    place(lab, "a")
    restored()
    assert set(Node.objects.values_list("boot_id", "state", "inventory_sha256")) == {("", "UNKNOWN", "")}


def test_a_job_of_after_the_backup_is_made_anew_for_its_owner(lab: Lab) -> None:
    ann = lab.user("ann")
    a, b = agent(lab, "a"), agent(lab, "b")
    restore = restored()
    env = {"NEBULA_JOB_OWNER": "ann@lab.example", "NEBULA_NNODES": "1", "NEBULA_GPU_COUNT": "2", "SEED": "7", "MASTER_PORT": "20001"}
    a.runs(57, 1, cards=2, env=env)
    a.sync()
    job = Job.objects.get(pk=57)
    assert (job.state, job.owner, job.epoch, job.gpu_count, job.gpu_mem_mib, job.env) == ("RUNNING", ann, 1, 2, None, {"SEED": "7"})
    assert (quota_for(ann).active_jobs, quota_for(ann).held_cards) == (1, 2)
    assert free(lab) == 2
    b.sync()
    lab.check()
    job_cancel(job=job, by=ann)
    assert [order.want for order in lab.sync(a.node)] == ["STOP"]
    assert lab.submit(owner=ann).pk >= restore.next_job


def test_a_job_of_nobody_we_know_is_the_administrator_s(lab: Lab) -> None:
    a = agent(lab, "a")
    restored()
    a.runs(57, 1, env={"NEBULA_JOB_OWNER": "gone@lab.example"})
    a.sync()
    assert Job.objects.get(pk=57).owner.email == "admin@localhost"


def test_both_parts_of_a_gang_are_taken_in_and_it_ends_when_both_do(lab: Lab) -> None:
    job = lab.submit(gpu_count=2, nodes=2)
    a, b = agent(lab, "a"), agent(lab, "b")
    restored()
    a.runs(
        job.pk, 1, state="EXITED", exit=ExitInfo(cause="exited", code=0), final_log_offset=0, released=True, started_at=lab.now.timestamp()
    )
    b.runs(job.pk, 1, index=1)
    a.sync()
    assert state(job) != "SUCCEEDED", "one of two parts has ended"
    b.sync()
    assert Rank.objects.filter(attempt__job=job).count() == 2
    assert not job.is_final
    lab.reports[b.node.pk] = {key: seen for key, (seen, _) in b.held.items()}
    lab.exit(job, index=1)
    assert state(job) == "SUCCEEDED"
    lab.check()


def test_a_card_that_changed_hands_since_is_not_sold_twice(lab: Lab) -> None:
    one, two = place(lab, "a", gpu_count=2), lab.submit(gpu_count=2)
    a, b = agent(lab, "a"), agent(lab, "b")
    a.held.clear()
    a.runs(two.pk, 1, cards=2)
    restored()
    a.sync()
    b.sync()
    assert (state(one), state(two)) == ("FAILED", "RUNNING")
    assert free(lab) == 2
    lab.check()


def test_a_job_that_was_cancelled_meanwhile_is_stopped_where_it_runs(lab: Lab) -> None:
    job = lab.submit()
    a, b = agent(lab, "a"), agent(lab, "b")
    restored()
    b.runs(job.pk, 1)
    job_cancel(job=job, by=job.owner)
    applied = b.sync()
    assert [(order.want, order.stop_reason) for order in applied.extra] == [("STOP", "fenced")]
    b.runs(job.pk, 1, state="EXITED", exit=ExitInfo(cause="stopped"), released=True)
    lab.reports[b.node.pk] = {key: seen for key, (seen, _) in b.held.items()}
    assert [order.want for order in lab.sync(b.node)] == ["FORGET"]
    a.sync()
    lab.check()


def test_a_rank_on_a_card_that_we_do_not_know_keeps_its_node_out(lab: Lab) -> None:
    job = lab.submit()
    b = agent(lab, "b")
    restore = restored()
    b.runs(job.pk, 1, cards=3)
    assert b.sync().ask is not None, "asked again"
    assert restore_waits_for(restore) == ["a", "b"]
    assert state(job) == "WAITING", "nothing half taken in"
    Gpu.objects.create(node=b.node, uuid="GPU-b-2", index=2, model="RTX 4090", vendor="nvidia", total_mib=MIB)
    b.sync()
    assert state(job) == "RUNNING"
    lab.check()


def test_a_dead_node_can_be_given_up(lab: Lab) -> None:
    job = lab.submit()
    a = agent(lab, "a")
    restored()
    a.sync()
    restore_give_up(node=Node.objects.get(name="b"), now=timezone.now())
    job.refresh_from_db()
    assert not job.is_restored
    Node.objects.filter(name="a").update(state=NodeState.READY)
    assert lab.schedule().started == [job.pk]


def test_a_node_that_joined_after_the_backup_is_asked_too(lab: Lab) -> None:
    job = lab.submit()
    a, b = agent(lab, "a"), agent(lab, "b")
    restored()
    a.sync()
    b.sync()
    late = Agent(lab.node("late", MIB))
    late.runs(job.pk, 1)
    lab.reports[late.node.pk] = {key: seen for key, (seen, _) in late.held.items()}
    assert lab.sync(late.node) == []
    late.node.refresh_from_db()
    assert (late.node.state, bool(late.node.restore)) == ("RECOVERING", True)
    late.sync()
    assert (state(job), lab.rank(job).node.name) == ("RUNNING", "late")
    lab.check()


def test_the_end_that_a_late_node_tells_of_is_taken_in_too(lab: Lab) -> None:
    job = lab.submit()
    a, b = agent(lab, "a"), agent(lab, "b")
    restored()
    a.sync()
    b.sync()
    late = Agent(lab.node("late", MIB))
    late.runs(
        job.pk, 1, state="EXITED", exit=ExitInfo(cause="exited", code=0), final_log_offset=0, released=True, started_at=lab.now.timestamp()
    )
    lab.reports[late.node.pk] = {key: seen for key, (seen, _) in late.held.items()}
    lab.sync(late.node)
    late.sync()
    assert state(job) == "SUCCEEDED"
    lab.check()


def test_an_order_that_was_refused_before_the_restore_is_forgotten(lab: Lab) -> None:
    b = agent(lab, "b")
    restored()
    exit_info = ExitInfo(cause="never_started")
    refusal = Observed(rank="90.1.0", epoch=1, state="EXITED", exit=exit_info, released=True)
    node = Node.objects.get(name="a")
    asked = restore_sync(node=node, observed=[refusal], answer=None, now=timezone.now()).ask
    assert asked is not None
    assert asked.ranks == ("90.1.0",)
    applied = restore_sync(node=node, observed=[refusal], answer=RestoreAnswer(id=asked.id), now=timezone.now())
    assert [(order.rank, order.want) for order in applied.extra] == [("90.1.0", "FORGET")]
    assert not Job.objects.filter(pk=90).exists()
    node.refresh_from_db()
    assert node.restore == ""
    b.sync()
    lab.check()


def test_numbers_go_on_above_what_the_nodes_remember(lab: Lab) -> None:
    job = lab.submit()
    command = AgentCommand.objects.create(node=Node.objects.get(name="a"), verb="ping", expires_at=timezone.now())
    a, b = agent(lab, "a"), agent(lab, "b")
    restore = restored()
    assert restore.next_job > job.pk + 1000
    assert AgentCommand.objects.create(node=a.node, verb="ping", expires_at=timezone.now()).pk > command.pk + 100_000
    a.sync(last_job=5_000_000)
    b.sync()
    assert lab.submit().pk > 5_000_000


def test_a_second_restore_counts_on_from_the_first(lab: Lab) -> None:
    job = lab.submit()
    first = restored()
    second = restored()
    job.refresh_from_db()
    assert second.epoch_floor > first.epoch_floor == 1000
    assert job.epoch_floor == second.epoch_floor
    assert set(Node.objects.values_list("restore", flat=True)) == {second.pk}
    assert list(Restore.objects.filter(settled_at=None)) == [second]


def test_what_was_given_out_once_is_not_good_again(lab: Lab) -> None:
    enrol_token_create(by=None)
    command = AgentCommand.objects.create(node=Node.objects.get(name="a"), verb="ping", expires_at=timezone.now())
    restored()
    assert not EnrolToken.objects.filter(expires_at__gt=timezone.now()).exists()
    command.refresh_from_db()
    assert command.state == "EXPIRED"


def test_the_guards_of_final_states_outlive_the_migration() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL keeps its triggers")
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'jobs_job' ORDER BY name")
        assert [name for (name,) in cursor.fetchall()] == ["job_epoch_grows", "job_final_is_final"]
