"""Curves of cards, nodes and jobs: what the pages fetch and what the API tells, and who may have it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.curves import job_notes, job_panels, range_first, ranges_of_run
from jobs.lifecycle import JobState
from jobs.models import Job, Slice
from jobs.samples import job_curves
from nodes import telemetry
from nodes.models import GpuSample, HealthEvent, Incident, IncidentEntry, Level, NodeSample, PoolSample, RankSample
from nodes.series import span_make
from tests.factories import attempt_make, job_make, node_make, user_make
from tests.rest import Api

pytestmark = pytest.mark.django_db
NOON = 1_773_576_000


@pytest.fixture(autouse=True)
def no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "client", lambda: None)


@pytest.fixture
def now() -> int:
    return int(timezone.now().timestamp())


def taken(gpu: Any, at: int, **figures: Any) -> None:
    GpuSample.objects.create(gpu=gpu, at=at // 30 * 30, **figures)


def minute(now: int, ago: int) -> int:
    return (now - ago) // 60 * 60


def get(client: Client, user: Any, path: str, status: int = 200, **headers: str) -> Any:
    client.force_login(user)
    answer = client.get(path, headers=headers)
    assert answer.status_code == status, answer.content[:300]
    return answer.json() if status == 200 else answer


# --- pages --------------------------------------------------------------------------------------------------------


def test_a_card_has_panels_for_what_it_told_and_marks_for_what_happened(client: Client, now: int) -> None:
    node = node_make("node01", cards=1)
    gpu = node.gpus.get()
    for ago in (600, 570, 300):
        taken(gpu, now - ago, util_pct=40, used_mib=2048, temp_c=60)
    HealthEvent.objects.create(
        node=node, gpu=gpu, session="s", eid=1, kind="xid", data={"xid": 79}, at=timezone.now() - timedelta(minutes=7)
    )
    attempt = attempt_make(job_make(name="<b>secret</b>", state=JobState.RUNNING), gpus=(gpu,), at=timezone.now() - timedelta(minutes=9))
    told = get(client, user_make(), "/nodes/node01/gpu0/curves/?range=1h")
    by_name = {trace["name"]: trace["y"] for trace in told["figure"]["data"]}
    assert by_name["use"] == [40, 40, None, 40]  # a gap of 4 minutes
    assert by_name["used"][0] == 2
    assert by_name["power"] == [None, None, None, None]
    marks = next(trace for trace in told["figure"]["data"] if trace["mode"] == "markers")["text"]
    assert marks[0] == f"#{attempt.job_id} came"
    assert marks[1].startswith("gpu0: The driver reported XID 79.")
    assert "secret" not in str(told)
    assert "Use: 40 % on average, 40 % at most" in told["summary"]
    assert "Power: n/a" in told["summary"]


def test_changes_of_state_and_throttling_are_marked(client: Client, now: int) -> None:
    node = node_make("node01", cards=1)
    gpu = node.gpus.get()
    for ago, throttled in ((300, 0), (270, 100), (240, None), (210, 100), (180, 0)):
        taken(gpu, now - ago, temp_c=80, throttled_pct=throttled)
    incident = Incident.objects.create(node=node, gpu=gpu, code="xid")
    for ago, code in ((260, "suspect"), (250, "test_asked"), (230, "healthy")):
        IncidentEntry.objects.create(incident=incident, code=code, params={"mib": 1}, at=timezone.now() - timedelta(seconds=ago))
    told = get(client, user_make(), "/nodes/node01/gpu0/curves/?range=1h")
    marks = next(trace for trace in told["figure"]["data"] if trace["mode"] == "markers")["text"]
    assert [text.split(":")[0] if ":" not in text else text.split(": ")[1] for text in marks] == [
        "slows itself down",
        "Suspect",
        "Back in service.",
        "at full clocks again",
    ]
    of_node = NodeSample.objects.create(node=node, at=(now - 60) // 30 * 30, cpu_pct=1)
    told = get(client, user_make(), "/nodes/node01/curves/?range=1h")
    assert of_node.pk
    assert [trace["text"] for trace in told["figure"]["data"] if trace["mode"] == "markers"] == [
        ["gpu0: Suspect: no new work comes to it.", "gpu0: Back in service."]
    ]


def test_without_samples_there_is_nothing_to_draw(client: Client) -> None:
    node_make("node01", cards=1)
    for path in ("/nodes/node01/gpu0/curves/", "/nodes/node01/curves/"):
        assert get(client, user_make(), path)["figure"] is None


@pytest.mark.parametrize(
    ("ago", "opens"), [(None, "24h"), (20 * 60, "1h"), (3400, "1h"), (3800, "24h"), (86_000, "24h"), (20 * 86_400, "24h")]
)
def test_curves_open_with_the_range_that_has_figures(client: Client, now: int, ago: int | None, opens: str) -> None:
    assert range_first(None if ago is None else now - ago, now=now) == opens
    node = node_make("node01", cards=1)
    if ago is not None:
        at = minute(now, ago) + 60
        GpuSample.objects.create(gpu=node.gpus.get(), at=at, level=Level.RAW, util_pct=1)
        NodeSample.objects.create(node=node, at=at, level=Level.RAW, util_pct=1)
    client.force_login(user_make())
    for path in ("/nodes/node01/", "/nodes/node01/gpu0/"):
        pressed = re.findall(r'data-range="(\w+)" aria-pressed="true"', client.get(path).content.decode())
        assert pressed == [opens], path


def axis(told: Any) -> tuple[int, int]:
    """What the time axis shows, as Unix time."""
    begin, end = told["figure"]["layout"]["xaxis"]["range"]
    return tuple(int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) for text in (begin, end))  # type: ignore[return-value]


def test_the_axis_does_not_begin_long_before_the_first_figure(client: Client, now: int, settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    gpu = node_make("node01", cards=1).gpus.get()
    for ago in (1200, 600, 60):
        taken(gpu, now - ago, util_pct=40)
    begin, end = axis(get(client, user_make(), "/nodes/node01/gpu0/curves/?range=24h"))
    assert now - 1260 <= begin <= now - 1170
    assert abs(end - now) <= 60


def test_a_jobs_curves_show_its_run_and_nothing_before_it(client: Client, now: int, settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    owner = user_make()
    gpu = node_make("node01", cards=1).gpus.get()
    began = datetime.fromtimestamp(now - 95, UTC)
    job = job_make(owner, state=JobState.RUNNING, submitted_at=began - timedelta(hours=3), started_at=began)
    attempt_make(job, gpus=(gpu,), at=began)
    for ago in (3600, 95, 60, 30):
        taken(gpu, now - ago, util_pct=40)
    told = get(client, owner, f"/jobs/{job.pk}/curves/data/")
    begin, end = axis(told)
    assert begin == now - 95
    assert abs(end - now) <= 5
    points = [int(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()) for at in told["figure"]["data"][0]["x"]]
    assert min(points) >= begin
    page = client.get(f"/jobs/{job.pk}/curves/").content.decode()
    assert re.findall(r'data-range="(\w+)" aria-pressed="(\w+)"', page) == [("run", "true")]  # nothing of it is longer


def test_of_a_long_run_shorter_ranges_can_be_chosen(now: int) -> None:
    job = Job(started_at=datetime.fromtimestamp(now - 2 * 86_400, UTC), submitted_at=timezone.now())
    assert [key for key, _words in ranges_of_run(job, now=now)] == ["run", "1h", "24h"]


def test_a_node_has_its_own_figures(client: Client, now: int) -> None:
    node = node_make("node01", cards=1, memory_mib=65_536)
    NodeSample.objects.create(node=node, level=Level.MINUTE, at=minute(now, 7200), n=2, cpu_pct=12, cpu_max_pct=90, memory_mib=4096)
    told = get(client, user_make(), "/nodes/node01/curves/?range=24h")
    by_name = {trace["name"]: trace["y"] for trace in told["figure"]["data"]}
    assert by_name["all cores"] == [12]
    assert by_name["at most"] == [90]


@pytest.mark.parametrize("path", ["/nodes/node01/gpu0/curves/", "/nodes/node01/curves/", "/jobs/{job}/curves/data/", "/jobs/{job}/curves/"])
def test_strangers_sign_in_and_bad_ranges_are_told(client: Client, path: str) -> None:
    gpu = node_make("node01", cards=1).gpus.get()
    job = attempt_make(gpus=(gpu,)).job
    path = path.format(job=job.pk)
    assert client.get(path).status_code == 302
    client.force_login(job.owner)
    assert client.post(path).status_code == 405
    if not path.endswith(f"/{job.pk}/curves/"):
        answer = client.get(path + "?range=2y")
        assert answer.status_code == 400
        assert answer.json()["message"] == "There is no such range; there are: 1h, 24h, 7d, 30d."


@pytest.mark.parametrize("path", ["/nodes/none/curves/", "/nodes/node01/gpu7/curves/", "/jobs/999/curves/", "/jobs/999/curves/data/"])
def test_what_is_not_there_is_a_404(client: Client, path: str) -> None:
    node_make("node01", cards=1)
    get(client, user_make(is_staff=True), path, status=404)


def test_each_page_has_a_place_for_its_curves(client: Client) -> None:
    gpu = node_make("node01", cards=1).gpus.get()
    job = attempt_make(gpus=(gpu,)).job
    client.force_login(job.owner)
    for page, data in (
        ("/nodes/node01/", "/nodes/node01/curves/"),
        ("/nodes/node01/gpu0/", "/nodes/node01/gpu0/curves/"),
        (f"/jobs/{job.pk}/curves/", f"/jobs/{job.pk}/curves/data/"),
    ):
        html = client.get(page).content.decode()
        assert f'data-curves="{data}"' in html
        assert "js/curves.js" in html
    assert "js/curves.js" not in client.get(f"/jobs/{job.pk}/").content.decode()  # the log's page stays as quick as it was


def test_curves_speak_chinese(client: Client, now: int) -> None:
    gpu = node_make("node01", cards=1).gpus.get()
    taken(gpu, now - 600, util_pct=40)
    told = get(client, user_make(language="zh-hans"), "/nodes/node01/gpu0/curves/?range=1h")
    assert told["summary"].startswith("利用率：平均 40 %")


# --- jobs ---------------------------------------------------------------------------------------------------------


def ran(*, cards: int = 1, shared: bool = False) -> tuple[Any, list[Any]]:
    """A job that ran from 12:00 to 12:10 on ``cards`` cards."""
    gpus = list(node_make(cards=cards).gpus.order_by("index"))
    attempt = attempt_make(gpus=tuple(gpus), exclusive=not shared, at=datetime.fromtimestamp(NOON, UTC))
    Slice.objects.update(released_at=datetime.fromtimestamp(NOON + 600, UTC))
    return attempt, gpus


def curves_of(job: Any) -> Any:
    span = span_make(since=NOON - 3600, until=NOON + 3600, now=NOON + 3600)
    return job_curves(job, span=span, now=NOON + 3600)


def test_a_jobs_curve_is_its_cards_while_it_held_them() -> None:
    attempt, (gpu,) = ran()
    for at, util in ((-60, 1), (0, 50), (570, 60), (660, 2)):  # before and after, others used the card
        taken(gpu, NOON + at, util_pct=util)
    found = curves_of(attempt.job)
    assert (found.curve.at, found.curve.figures["util_pct"]) == ([NOON, NOON + 570], [50, 60])
    assert (found.cards, found.granted_mib, found.is_shared, found.has_own) == (1, 24_564, False, False)


def test_of_several_cards_the_mean_the_extremes_and_sums() -> None:
    attempt, (a, b) = ran(cards=2)
    taken(a, NOON, util_pct=90, used_mib=1000, temp_c=70, power_w=300)
    taken(b, NOON, util_pct=11, used_mib=3000, temp_c=50, power_w=None)
    taken(a, NOON + 30, util_pct=80, used_mib=1000)
    figures = curves_of(attempt.job).curve.figures
    assert (figures["util_pct"], figures["util_least_pct"], figures["util_most_pct"]) == ([50, 80], [11, 80], [90, 80])
    assert figures["used_mib"] == [4000, None]  # one of two did not tell: 1000 would look like a dip
    assert figures["power_w"] == [None, None]
    assert figures["temp_most_c"] == [70, None]


def test_the_memory_of_its_own_processes_is_told_apart() -> None:
    attempt, (gpu,) = ran(shared=True)
    taken(gpu, NOON + 30, used_mib=20_000)
    RankSample.objects.create(rank=attempt.ranks.get().key, gpu=gpu, at=NOON + 30, used_mib=3500)
    RankSample.objects.create(rank="999.1.0", gpu=gpu, at=NOON + 30, used_mib=16_000)
    found = curves_of(attempt.job)
    assert (found.curve.figures["own_mib"], found.has_own, found.is_shared) == ([3500], True, True)


def test_the_use_of_its_own_processes_is_told_apart_where_the_driver_tells_it() -> None:
    attempt, (gpu,) = ran(shared=True)
    taken(gpu, NOON + 30, util_pct=95)
    RankSample.objects.create(rank=attempt.ranks.get().key, gpu=gpu, at=NOON + 30, used_mib=3500, util_pct=31)
    found = curves_of(attempt.job)
    assert (found.curve.figures["own_util_pct"], found.curve.figures["util_pct"], found.has_own_use) == ([31], [95], True)
    assert [line.name for line in job_panels(found)[0].lines] == ["use", "its processes"]
    assert job_notes(found) == ["Temperature and power are those of whole GPUs; other jobs may have been on them."]
    RankSample.objects.update(util_pct=None)
    found = curves_of(attempt.job)
    assert (found.curve.figures["own_util_pct"], found.has_own_use) == ([None], False)


def test_a_job_that_did_not_run_meanwhile_has_no_curve(client: Client) -> None:
    attempt, _gpus = ran()
    span = span_make(since=NOON + 7200, until=NOON + 9000, now=NOON + 9000)
    assert job_curves(attempt.job, span=span, now=NOON + 9000) is None
    waiting = job_make()
    told = get(client, waiting.owner, f"/jobs/{waiting.pk}/curves/data/")
    assert (told["figure"], told["notes"]) == (None, ["It has not run in this time."])


def test_curves_of_a_job_are_its_owners_and_the_staffs(client: Client, now: int) -> None:
    gpu = node_make(cards=1).gpus.get()
    job = attempt_make(gpus=(gpu,), at=timezone.now() - timedelta(minutes=5)).job
    taken(gpu, now - 120, util_pct=33, used_mib=5000)
    path = f"/jobs/{job.pk}/curves/data/?range=1h"
    for user in (job.owner, user_make(is_staff=True)):
        told = get(client, user, path)
        assert "Use: 33 % on average" in told["summary"]
        assert [note[:14] for note in told["notes"]] == ["Its processes'", "Use, temperatu"]
    get(client, user_make(), path, status=404)
    get(client, user_make(), f"/jobs/{job.pk}/curves/", status=404)


def test_the_number_of_queries_does_not_grow_with_the_cards(django_assert_max_num_queries: Any) -> None:
    attempt, gpus = ran(cards=8)
    for gpu in gpus:
        taken(gpu, NOON, util_pct=1)
    with django_assert_max_num_queries(14):
        curves_of(attempt.job)


# --- API ----------------------------------------------------------------------------------------------------------


def test_the_api_tells_120_points_an_hour_and_none_as_null() -> None:
    node = node_make("node01", cards=1)
    gpu = node.gpus.get()
    begin = int(timezone.now().timestamp()) // 3600 * 3600 - 7200
    GpuSample.objects.bulk_create(GpuSample(gpu=gpu, at=begin + 30 * step, util_pct=step) for step in range(120))
    status, told = Api(user_make()).get(f"/gpus/{gpu.uuid}/samples", **{"from": str(begin), "to": str(begin + 3600), "step": "30"})
    assert status == 200
    assert (told["uuid"], told["node"], told["index"], told["step"]) == (gpu.uuid, "node01", 0, 30)
    assert told["series"]["util_pct"] == list(range(120))
    assert told["series"]["fan_pct"] == [None] * 120
    assert len(told["series"]["at"]) == 120
    assert told["to"] == datetime.fromtimestamp(begin + 3600, UTC).isoformat().replace("+00:00", "Z")


def test_the_api_refuses_too_many_points_with_the_step_that_would_do() -> None:
    node_make("node01", cards=1)
    api = Api(user_make())
    begin = int(timezone.now().timestamp()) - 86_000
    status, told = api.get("/gpus/GPU-node01-0/samples", **{"from": str(begin), "step": "30"})
    assert status == 400
    assert told["fields"]["step"][0].startswith("This range has 286")
    assert "ask for a step of 60 or more" in told["fields"]["step"][0]
    assert api.get("/gpus/GPU-node01-0/samples", **{"from": str(begin), "step": "60"})[0] == 200
    assert api.get("/nodes/node01/samples", **{"from": "soon"})[1]["fields"] == {
        "from": ["soon is no time; write 2026-07-14T18:00:00Z or seconds since 1970."]
    }


def test_a_short_uuid_will_do_where_it_names_one_card() -> None:
    node_make("node01", cards=2)
    api = Api(user_make())
    assert api.get("/gpus/GPU-node01-1/samples")[1]["index"] == 1
    assert api.get("/gpus/GPU-node01/samples")[0] == 404  # two begin so
    assert api.get("/gpus/GPU-/samples")[0] == 404


def test_the_pool_has_a_curve_too(now: int) -> None:
    PoolSample.objects.create(at=(now - 60) // 30 * 30, cards=19, told=18, busy=7)
    told = Api(user_make()).get("/pool/samples")[1]
    assert (told["series"]["cards"], told["series"]["busy"], told["series"]["power_w"]) == ([19], [7], [None])


def test_a_jobs_samples_over_the_api(now: int) -> None:
    gpu = node_make(cards=1).gpus.get()
    job = attempt_make(gpus=(gpu,), at=timezone.now() - timedelta(minutes=5)).job
    taken(gpu, now - 120, util_pct=33)
    told = Api(job.owner).get(f"/jobs/{job.pk}/samples")[1]
    assert (told["id"], told["cards"], told["shared"], told["series"]["util_pct"]) == (job.pk, 1, True, [33])
    waiting = job_make(job.owner)
    assert Api(job.owner).get(f"/jobs/{waiting.pk}/samples")[1]["series"]["at"] == []
