"""`manage.py simulate`: the installation's own past as a scenario, and what the command prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from jobs.lifecycle import EndReason, JobState, RankState, SliceState
from jobs.models import Attempt, Job, JobEvent, Rank, Slice
from jobs.page_data import facts
from jobs.replays import Replay, replay_read
from jobs.scheduler import Policy, Request
from jobs.scheduler.runs import weights_at
from jobs.scheduler.scenario import scenario_run
from nodes.models import Gpu, GpuState
from quotas.models import User
from tests.factories import gpu_make, job_make, node_make, user_make

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
END = BEGIN + timedelta(days=30)
SMALL = Path(__file__).parents[1] / "scheduler" / "data"
TRACE = ("--trace", str(SMALL / "small.csv"), "--cluster", str(SMALL / "small.cluster.json"))

MADE = ("--generate", "50", "--cluster", str(SMALL / "small.cluster.json"))

pytestmark = pytest.mark.django_db


def at(minutes: float) -> datetime:
    return BEGIN + timedelta(minutes=minutes)


def past_job(
    owner: User, *, came: float, ran: Sequence[tuple[float, float | None]] = (), gpu: Gpu | None = None, state: str = "", **more: Any
) -> Job:
    """A job that came, and ran (from, to), in minutes of the period; the end None = it runs. One slice of 4096 MiB."""
    over = bool(ran) and ran[-1][1] is not None
    state = state or (JobState.SUCCEEDED if over else JobState.RUNNING if ran else JobState.WAITING)
    if state in (JobState.SUCCEEDED, JobState.CANCELLED):
        more.setdefault("ended_at", at(ran[-1][1] or 0) if over else at(came + 5))
    job = job_make(owner, state=state, submitted_at=at(came), epoch=len(ran), **more)
    for epoch, (start, end) in enumerate(ran, start=1):
        stopped = None if end is None else at(end)
        reason = EndReason.COMPLETED if epoch == len(ran) and end is not None else EndReason.NODE_LOST if end is not None else ""
        attempt = Attempt.objects.create(
            job=job, epoch=epoch, created_at=at(start), started_at=at(start), ended_at=stopped, end_reason=reason
        )
        assert gpu is not None
        rank = Rank.objects.create(
            attempt=attempt,
            node=gpu.node,
            index=0,
            key=f"{job.pk}.{epoch}.0",
            observed=RankState.EXITED if end is not None else RankState.RUNNING,
        )
        Slice.objects.create(
            rank=rank, gpu=gpu, mib=4_096, share=4_096 / 24_564, state=SliceState.RELEASED if end is not None else SliceState.ACTIVE
        )
    return job


def event(job: Job, code: str, minutes: float) -> None:
    JobEvent.objects.create(job=job, at=at(minutes), code=code)


@pytest.fixture
def card() -> Gpu:
    return gpu_make(node_make("n1", cpu_cores=8, memory_mib=64_000))


@pytest.fixture
def anna() -> User:
    return user_make("anna@lab.example")


def read() -> Replay:
    return replay_read(since=BEGIN, until=END)


# The past as a scenario


def test_a_job_comes_as_it_came_and_runs_as_long_as_it_ran(card: Gpu, anna: User) -> None:
    job = past_job(anna, came=10, ran=[(40, 100)], gpu=card, name="train-1", time_limit_s=7_200, priority=3)
    found = read()
    (arrival,) = found.scenario.arrivals
    assert (arrival.job.submitted, arrival.seconds, arrival.name) == (at(10).timestamp(), 3_600.0, "train-1")
    assert (arrival.job.user, arrival.job.project, arrival.job.time_limit_s, arrival.job.priority) == (anna.pk, job.project_id, 7_200, 3)
    assert arrival.job.request.gpu_mem_mib == 4_096
    (recorded,) = found.recorded
    assert (recorded.start, recorded.end, recorded.nodes) == (at(40).timestamp(), at(100).timestamp(), (card.node_id,))
    assert recorded.cards == pytest.approx(4_096 / 24_564)
    assert found.users[anna.pk] == "anna@lab.example"
    assert found.notes == {}


def test_a_run_ends_when_its_node_says_so_and_not_when_the_control_plane_hears_of_it(card: Gpu, anna: User) -> None:
    job = past_job(anna, came=10, ran=[(40, 400)], gpu=card)
    Slice.objects.filter(rank__attempt__job=job).update(releasing_at=at(100))  # it was away for five hours
    found = read()
    assert (found.scenario.arrivals[0].seconds, found.recorded[0].end) == (3_600.0, at(100).timestamp())
    told = facts(job, attempt := job.attempts.get(), list(attempt.ranks.all()))
    assert (told["run_from"], told["run_to"]) == (at(40), at(100))


def test_what_never_ran_is_left_out_and_said(card: Gpu, anna: User) -> None:
    past_job(anna, came=10, state=JobState.CANCELLED)
    past_job(anna, came=20, held=True)
    found = read()
    assert found.scenario.arrivals == ()
    assert found.notes == {"held": 1, "never_ran": 1}


def test_a_hold_is_no_wait(card: Gpu, anna: User) -> None:
    job = past_job(anna, came=10, ran=[(80, 90)], gpu=card)
    event(job, "held", 20)
    event(job, "released", 70)
    found = read()
    assert (found.scenario.arrivals[0].job.submitted, found.notes) == (at(70).timestamp(), {"was_held": 1})
    assert found.recorded[0].start == at(80).timestamp()


def test_a_requeued_job_is_one_run_as_long_as_its_last(card: Gpu, anna: User) -> None:
    past_job(anna, came=10, ran=[(20, 30), (50, 110)], gpu=card)
    found = read()
    assert (found.scenario.arrivals[0].seconds, found.notes) == (3_600.0, {"requeued": 1})
    assert (found.recorded[0].start, found.recorded[0].end) == (at(20).timestamp(), at(80).timestamp())


def test_what_still_runs_or_waits_takes_part_as_long_as_predicted(card: Gpu, anna: User) -> None:
    past_job(anna, came=43_000, ran=[(43_080, None)], gpu=card)  # for two hours at the end of the period
    past_job(anna, came=43_100)
    found = read()
    # Nothing is known of such jobs: an hour. The first has outlived that, so it gets as long again as it has run.
    assert [item.seconds for item in found.scenario.arrivals] == pytest.approx([4 * 3_600, 3_600])
    assert (found.recorded[1].start, found.notes) == (None, {"still_runs": 1, "waits": 1})


def test_what_ran_when_the_period_began_takes_its_card_until_it_ended(card: Gpu, anna: User) -> None:
    job = past_job(anna, came=-100, ran=[(-60, 30)], gpu=card)
    found = read()
    assert found.scenario.arrivals == ()
    assert found.scenario.ends == {job.pk: at(30).timestamp()}
    assert [(part.gpu, part.mib) for part in found.scenario.cluster.slices] == [(card.pk, 4_096)]


def test_what_ran_when_the_period_began_holds_its_part_of_the_host(card: Gpu, anna: User) -> None:
    past_job(anna, came=-100, ran=[(-60, 30)], gpu=card, constraints={"cpu_milli": 5_000, "host_mem_mib": 1_000})
    past_job(anna, came=5, ran=[(30, 40)], gpu=card, constraints={"cpu_milli": 5_000})
    scenario = read().scenario
    (node,) = scenario.cluster.nodes
    assert (node.cpu_milli_held, node.memory_mib_held) == (5_000, 1_000)
    # 2 × 5 cores > 8: the second job waits for the first to end, as it did.
    waits = scenario_run(scenario, Policy(order="fifo")).judged.users[anna.pk].wait_avg_s
    assert waits == pytest.approx(25 * 60)


def test_what_ran_without_a_card_when_the_period_began_holds_its_turn(card: Gpu, anna: User) -> None:
    job = past_job(anna, came=-100, ran=[(-60, 30)], gpu=card, gpu_count=0, gpu_mem_mib=None, constraints={"cpu_milli": 5_000})
    Slice.objects.all().delete()
    past_job(anna, came=5, ran=[(30, 40)], gpu=card, constraints={"cpu_milli": 5_000})
    scenario = read().scenario
    assert [(run.job, run.nodes) for run in scenario.cluster.running] == [(job.pk, (card.node_id,))]
    assert [(node.cpu_milli_held, node.live_cpu_ranks) for node in scenario.cluster.nodes] == [(5_000, 1)]
    assert scenario_run(scenario, Policy()).judged.users[anna.pk].wait_avg_s == pytest.approx(25 * 60)


def test_a_requeue_before_the_period_is_no_second_finish(card: Gpu, anna: User) -> None:
    past_job(anna, came=-300, ran=[(-200, -140), (-130, -70)], gpu=card)
    scenario = read().scenario
    users, _projects = weights_at(scenario.earlier, Policy(half_life_s=0.0), BEGIN.timestamp())
    assert users[anna.pk] == pytest.approx(1 + 0.1 + 2 * 0.02 * 4_096 / 24_564)  # two hours of a slice, one job


def test_what_ended_before_teaches_runtimes_and_past_use(card: Gpu, anna: User) -> None:
    past_job(anna, came=-300, ran=[(-200, -140)], gpu=card)
    past_job(anna, came=-45 * 1_440, ran=[(-45 * 1_440, -44 * 1_440)], gpu=card)  # too long ago
    found = read()
    assert [item.seconds for item in found.scenario.finished] == [3_600.0]
    assert [(run.user, run.start) for run in found.scenario.earlier] == [(anna.pk, at(-200).timestamp())]
    assert found.scenario.cluster.mix == ((Request(gpu_mem_mib=4_096), 1.0),)


def test_a_job_that_waited_when_the_period_began_waits_on(card: Gpu, anna: User) -> None:
    past_job(anna, came=-100, ran=[(50, 60)], gpu=card)
    assert read().scenario.arrivals[0].job.submitted == at(-100).timestamp()


def test_nodes_and_cards_count_as_in_service_and_missing_ones_are_left_out(card: Gpu, anna: User) -> None:
    gpu_make(card.node, state=GpuState.ISOLATED)
    gpu_make(card.node, state=GpuState.MISSING)
    gpu_make(node_make("n2", cordoned=True))
    found = read()
    assert [len(node.gpus) for node in found.scenario.cluster.nodes] == [2, 1]
    assert all(node.takes_work and all(gpu.is_schedulable for gpu in node.gpus) for node in found.scenario.cluster.nodes)
    assert found.notes == {"cards_left_out": 1, "cards_out_of_service": 2}


def test_the_number_of_queries_does_not_grow_with_the_jobs(card: Gpu, anna: User) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as found:
            read()
        return len(found)

    past_job(anna, came=1, ran=[(2, 3)], gpu=card)
    first = queries()
    for minutes in range(10, 20):
        past_job(anna, came=minutes, ran=[(minutes, minutes + 5)], gpu=card)
    assert queries() == first <= 10


# The command


def simulate(*args: str, **more: Any) -> str:
    out = StringIO()
    call_command("simulate", *args, stdout=out, stderr=StringIO(), language="en", **more)
    return out.getvalue()


def lab_past(card: Gpu) -> None:
    """Two people, one card: anna's long jobs, and bo's short ones that had to wait for them."""
    anna, bo = user_make("anna@lab.example"), user_make("bo@lab.example")
    for number in range(4):
        past_job(anna, came=number, ran=[(number * 600 + 1, number * 600 + 601)], gpu=card, gpu_mem_mib=None, name=f"long-{number}")
        past_job(bo, came=number * 600 + 5, ran=[(2_410 + number, 2_411 + number)], gpu=card, gpu_mem_mib=None, name="quick")


PERIOD = ("--last", "30d", "--until", END.isoformat())


def test_the_own_past_under_another_policy_says_who_gains_and_who_loses(card: Gpu) -> None:
    lab_past(card)
    text = simulate(*PERIOD, "--policy", "fifo", "--against", "fair")
    assert "8 jobs of 2 users within 30.1 h on 1 cards of 1 nodes." in text
    heads = next(line for line in text.splitlines() if "as it was" in line)
    assert heads.split() == ["as", "it", "was", "fair", "fifo"]
    assert "anna@lab.example" in text
    assert "Under fifo instead of fair the average job waits" in text
    found = json.loads(simulate(*PERIOD, "--policy", "fifo", "--against", "fair", "--json"))
    assert [column["name"] for column in found["loads"][0]["columns"]] == ["recorded", "fair", "fifo"]
    (change,) = found["loads"][0]["comparisons"]
    assert (change["policy"], change["against"]) == ("fifo", "fair")
    by_name = {user["name"]: user for user in change["users"]}
    # First come, first served: bo's first job waits for all of anna's; a fair order lets it start after the first one.
    assert by_name["bo@lab.example"]["verdict"] == "loses"
    assert by_name["anna@lab.example"]["jobs"] == 4


def test_the_same_seed_gives_the_same_bytes() -> None:
    first = simulate(*MADE, "--replicas", "2", "--seed", "5", "--json")
    assert first == simulate(*MADE, "--replicas", "2", "--seed", "5", "--json")
    assert first != simulate(*MADE, "--replicas", "2", "--seed", "6", "--json")


def test_loads_are_compared_by_the_four_objectives() -> None:
    text = simulate(*TRACE, "--load", "0.5,1", "--policy", "fifo", "--watts", "300,50", "--against", "fair")
    assert text.count("Load ×") == 2
    last = text.split("\n\n")[-1].splitlines()
    assert last[0].split("  ")[0] == "load"
    assert [line.split()[:2] for line in last[1:]] == [["0.5", "fair"], ["0.5", "fifo"], ["1", "fair"], ["1", "fifo"]]
    assert "kWh" in last[0]


def test_made_jobs_run_on_a_preset_and_in_chinese() -> None:
    out = StringIO()
    call_command("simulate", "--generate", "40", "--preset", "abc:3", stdout=out, language="zh-hans")
    assert "3 个节点共 20 张卡" in out.getvalue()
    assert "平均等待" in out.getvalue()


def test_an_export_hides_people_and_is_a_trace_again(card: Gpu, tmp_path: Path) -> None:
    lab_past(card)
    jobs, cluster = tmp_path / "jobs.csv", tmp_path / "cluster.json"
    simulate(*PERIOD, "--export", str(jobs), "--export-cluster", str(cluster))
    assert stat.S_IMODE(jobs.stat().st_mode) == 0o600
    assert "@" not in jobs.read_text()
    rows = list(csv.DictReader(StringIO(jobs.read_text())))
    assert {row["user"] for row in rows} == {"user-1", "user-2"}
    assert {row["name"] for row in rows} == {"kind-a", "kind-b"}
    own = json.loads(simulate(*PERIOD, "--json"))
    again = json.loads(simulate("--trace", str(jobs), "--cluster", str(cluster), "--json"))
    mine, its = own["loads"][0]["columns"][1]["measures"], again["loads"][0]["columns"][0]["measures"]
    assert (mine["wait_avg_s"], mine["wait_max_s"]) == (its["wait_avg_s"], its["wait_max_s"])


def test_names_are_exported_only_when_asked_for(card: Gpu, tmp_path: Path) -> None:
    lab_past(card)
    jobs = tmp_path / "jobs.csv"
    simulate(*PERIOD, "--export", str(jobs), "--names")
    assert "anna@lab.example" in jobs.read_text()


def test_another_cluster_can_be_tried_for_the_own_past(card: Gpu) -> None:
    lab_past(card)
    text = simulate(*PERIOD, "--cluster", str(SMALL / "small.cluster.json"))
    assert "on 8 cards of 2 nodes" in text
    assert "as it was" not in text


def test_peoples_text_cannot_move_the_cursor(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("id,tenant,submit,duration,num_gpu,milli\n1,\x1b[2Jbo,0,10,1,1000\n2,anna,0,10,1,1000\n")
    text = simulate("--trace", str(trace), "--cluster", str(SMALL / "small.cluster.json"), "--policy", "fifo")
    assert "\x1b" not in text
    assert "�[2Jbo" in text


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--last", "30x"), "--last is “30x”; expected a span such as 30d, 12h or 2d 6h."),
        (("--last", "30d", "--until", "yesterday"), "--until is “yesterday”; expected a time with its zone"),
        (("--last", "30d", "--until", "2026-03-01T00:00"), "expected a time with its zone"),
        (("--last", "30d"), "The cluster has no card; name one with --cluster FILE or --preset abc."),
        (("--generate", "0", "--preset", "abc"), "--generate is “0”; expected a number from 1 to 1000000."),
        (("--generate", "5", "--preset", "xyz"), "There is no preset xyz; there are: abc."),
        (("--generate", "5", "--preset", "abc:2"), "A preset of 2 nodes can't be made; expected 3 to 100000."),
        (("--trace", "/nowhere.csv", "--preset", "abc"), "/nowhere.csv can't be read: No such file or directory."),
        ((*TRACE, "--preset", "abc"), "Give --cluster or --preset, not both."),
        ((*TRACE, "--until", "2026-03-01T00:00Z"), "--until goes with --last only."),
        ((*TRACE, "--policy", "nice"), "There is no policy nice; there are: fair, fifo, priority, drf, capacity."),
        ((*TRACE, "--strategy", "nice"), "There is no strategy nice; there are: default, fragmentation-aware"),
        ((*TRACE, "--set", "borrow_s"), "--set borrow_s: expected FIELD=NUMBER, for instance borrow_s=7200."),
        ((*TRACE, "--set", "borrow_s=-5"), "borrow_s is “-5”; expected a number from 0 to inf."),
        ((*TRACE, "--load", "0"), "--load is “0”; expected a number from 0.01 to 100."),
        ((*TRACE, "--replicas", "x"), "--replicas is “x”; expected a number from 1 to 1000."),
        ((*TRACE, "--watts", "300"), "--watts is “300”; expected 2 numbers, parted by a comma."),
        ((*TRACE, "--export", str(SMALL / "small.csv")), "small.csv exists; name a file that does not."),
        (("--trace", str(SMALL / "small.scores.json"), "--preset", "abc"), "The first line must name the columns id,tenant,"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(args: Sequence[str], sentence: str) -> None:
    with pytest.raises(CommandError) as caught:
        simulate(*args)
    assert caught.value.returncode == 2
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_that_cannot_be_read_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_more: Any) -> None:
        raise OperationalError("no such table: jobs_job\nLINE 1")

    monkeypatch.setattr("jobs.simulations.replay_read", broken)
    with pytest.raises(CommandError, match=r"can't be read \(no such table: jobs_job\); .* NEBULA_DATA") as caught:
        simulate("--last", "1h")
    assert caught.value.returncode == 2


def test_ctrl_c_ends_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jobs.simulations.scenario_run", interrupted)
    with pytest.raises(CommandError, match="Interrupted") as caught:
        simulate(*TRACE)
    assert caught.value.returncode == 130
