"""Jobs over REST: lists, one job, cancel, hold, release, why, events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django.fixtures import Settings
from rest_framework import serializers

from jobs.lifecycle import JobState
from jobs.models import Attempt, Job, JobEvent
from jobs.schemas import EventSchema, JobRowSchema, JobSchema, LogSchema, UsageSchema, WhySchema
from quotas.models import User
from tests.factories import attempt_make, gpu_make, job_make, node_make, project_make, user_make
from tests.rest import Api, is_error, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example")


@pytest.fixture
def api(lin: User) -> Api:
    return Api(lin)


def ids(answer: tuple[int, Any]) -> list[int]:
    assert answer[0] == 200, answer
    return [row["id"] for row in answer[1]["results"]]


def live_job(owner: User, *, cards: int = 1) -> Job:
    node = node_make(cards=cards)
    job = job_make(owner, state=JobState.RUNNING, epoch=1, started_at=timezone.now())
    attempt_make(job, gpus=tuple(node.gpus.all()))
    return job


# --- lists ----------------------------------------------------------------------------------------------------------


def test_a_list_is_filtered_and_ordered(api: Api, lin: User) -> None:
    waiting = job_make(lin, name="train digits")
    running = job_make(lin, state=JobState.RUNNING, name="serve")
    project = project_make("nlp", members=(lin,))
    failed = job_make(lin, state=JobState.FAILED, name="Train words", project=project)
    job_make(name="train of somebody else")
    assert ids(api.get("/jobs/")) == [failed.pk, running.pk, waiting.pk]
    assert ids(api.get("/jobs/", ordering="id")) == [waiting.pk, running.pk, failed.pk]
    assert ids(api.get("/jobs/", state="WAITING,running")) == [running.pk, waiting.pk]
    assert ids(api.get("/jobs/", q="train", ordering="name")) == [failed.pk, waiting.pk]
    assert ids(api.get("/jobs/", q=f"#{running.pk}")) == [running.pk]
    assert ids(api.get("/jobs/", project="nlp")) == [failed.pk]
    assert ids(api.get("/jobs/", owner="me")) == ids(api.get("/jobs/", owner="all"))


def test_staff_see_all_and_may_ask_for_one_owner(lin: User) -> None:
    staff = user_make("staff@lab.example", is_staff=True)
    theirs, own = job_make(lin), job_make(staff)
    api = Api(staff)
    assert ids(api.get("/jobs/")) == [own.pk, theirs.pk]
    assert ids(api.get("/jobs/", owner="me")) == [own.pk]
    assert ids(api.get("/jobs/", owner="Lin@lab.example")) == [theirs.pk]


@pytest.mark.parametrize(
    "query",
    [
        {"state": "DONE"},
        {"state": "x" * 10_000},
        {"ordering": "owner__password"},
        {"ordering": "-"},
        {"ordering": "?"},
        {"owner": "lin"},
        {"page": "0"},
        {"page": "-1"},
        {"page": "x"},
        {"page": "9" * 30},
        {"page": "1.0"},
        {"page_size": "0"},
        {"page_size": "x"},
        {"page_size": "9" * 5000},
    ],
    ids=lambda query: json.dumps(query)[:40],
)
def test_a_bad_query_is_a_400_that_names_the_parameter(api: Api, lin: User, query: dict[str, str]) -> None:
    job_make(lin)
    status, error = api.get("/jobs/", **query)
    assert (status, is_error(error)) == (400, True)
    assert set(query) == set(error["fields"])
    assert len(error["message"]) < 300


def test_odd_but_harmless_queries_find_nothing(api: Api, lin: User) -> None:
    job_make(lin)
    for query in (
        {"q": "9" * 30},
        {"q": "%"},
        {"q": "x" * 9000},
        {"project": "x" * 9000},
        {"q": "'; DROP TABLE jobs_job"},
        {"owner": "a@b" + "c" * 500},
    ):
        assert ids(api.get("/jobs/", **query)) == []
    assert api.get("/jobs/", page="99")[0] == 404


def test_pages(api: Api, lin: User) -> None:
    jobs = [job_make(lin) for _ in range(5)]
    status, first = api.get("/jobs/", page_size=2)
    assert (status, first["count"], len(first["results"]), first["previous"]) == (200, 5, 2, None)
    assert "page=2" in first["next"]
    assert ids(api.get("/jobs/", page_size=2, page=3)) == [jobs[0].pk]
    assert len(ids(api.get("/jobs/", page_size=10_000))) == 5


def queries(api: Api, path: str, **query: Any) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert api.get(path, **query)[0] == 200
    return len(captured)


def test_a_list_costs_the_same_for_3_and_for_30(api: Api, lin: User) -> None:
    def grow(count: int) -> None:
        node = node_make(cards=0)
        for _ in range(count):
            job_make(lin)
            job = job_make(lin, state=JobState.RUNNING, epoch=1)
            attempt_make(job, gpus=(gpu_make(node),))

    grow(3)
    api.get("/jobs/")  # the token's last use is written once a minute
    few = queries(api, "/jobs/")
    grow(30)
    assert queries(api, "/jobs/", page_size=200) == few
    assert few <= 5  # token, count, jobs, attempts, queue


def test_lists_read_and_show_neither_command_nor_environment(lin: User) -> None:
    big = job_make(lin, argv=["python", "x" * 100_000], env={"BIG": "y" * 30_000})
    with CaptureQueriesContext(connection) as caught:
        answer = Api(lin).call("GET", "/jobs/")
    assert len(answer.content) < 5_000
    assert not any('"argv"' in query["sql"] or '"env"' in query["sql"] for query in caught.captured_queries)
    row = json.loads(answer.content)["results"][0]
    assert row["id"] == big.pk
    assert not {"argv", "env"} & row.keys()
    one = Api(lin).get(f"/jobs/{big.pk}")[1]
    assert (one["argv"], one["env"]) == (big.argv, big.env)
    with CaptureQueriesContext(connection) as caught:
        browser = Client()
        browser.force_login(lin)
        assert browser.get("/jobs/").status_code == 200
    assert not any('"argv"' in query["sql"] for query in caught.captured_queries)


def test_one_job_costs_the_same_whatever_its_size(api: Api, lin: User) -> None:
    small, large = live_job(lin), live_job(lin, cards=8)
    api.get(f"/jobs/{small.pk}")
    assert queries(api, f"/jobs/{small.pk}") == queries(api, f"/jobs/{large.pk}") <= 7  # the last: bytes that are kept


def test_a_waiting_job_knows_its_place(api: Api, lin: User, settings: Settings) -> None:
    """First come, first served: the rows tell it. Under another order only a forecast does."""
    settings.POLICY_ORDER = "fifo"
    now = timezone.now()
    first = job_make(submitted_at=now - timedelta(minutes=2))
    second = job_make(lin, submitted_at=now - timedelta(minutes=1))
    held = job_make(lin, held=True, submitted_at=now - timedelta(hours=1))
    urgent = job_make(lin, priority=5, submitted_at=now)
    places = {row["id"]: row["wait"]["position"] for row in api.get("/jobs/")[1]["results"]}
    assert places == {second.pk: 3, held.pk: None, urgent.pk: 1}  # the stranger's job is second
    assert api.get(f"/jobs/{second.pk}")[1]["wait"]["position"] == 3
    why = api.get(f"/jobs/{second.pk}/why")[1]
    assert (why["position"], why["ahead"], why["state"]) == (3, 2, "WAITING")
    assert Job.objects.filter(pk=first.pk).exists()
    settings.POLICY_ORDER = "fair"
    assert {row["wait"]["position"] for row in api.get("/jobs/")[1]["results"]} == {None}
    assert api.get(f"/jobs/{second.pk}/why")[1]["position"] is None


# --- one job --------------------------------------------------------------------------------------------------------


def test_a_running_job_shows_where_it_runs(api: Api, lin: User) -> None:
    job = live_job(lin, cards=2)
    answer = api.get(f"/jobs/{job.pk}")[1]
    attempt = answer["attempt"]
    assert (answer["state"], answer["wait"], answer["end"], attempt["epoch"]) == ("RUNNING", None, None, 1)
    (rank,) = attempt["ranks"]
    assert (rank["index"], rank["observed"], rank["log_bytes"]) == (0, "RUNNING", 0)
    assert [gpu["index"] for gpu in rank["gpus"]] == [0, 1]
    assert rank["gpus"][0]["mib"] == 4096
    assert "ranks" not in api.get("/jobs/")[1]["results"][0]["attempt"]


def test_only_the_attempt_of_the_present_epoch_is_shown(api: Api, lin: User) -> None:
    job = live_job(lin)
    Attempt.objects.filter(job=job).update(ended_at=timezone.now())
    Job.objects.filter(pk=job.pk).update(epoch=2)
    Attempt.objects.create(job=job, epoch=2)
    assert api.get(f"/jobs/{job.pk}")[1]["attempt"]["epoch"] == 2


def test_an_ended_job_says_how(api: Api, lin: User) -> None:
    job = job_make(lin, state=JobState.FAILED, end_reason="nonzero_exit", end_params={"node": "n1", "exit_code": 3}, exit_code=3)
    assert api.get(f"/jobs/{job.pk}")[1]["end"] == {
        "reason": "nonzero_exit",
        "params": {"node": "n1", "exit_code": 3},
        "text": "The program ended with exit code 3.",
        "exit_code": 3,
    }
    why = api.get(f"/jobs/{job.pk}/why")[1]
    assert (why["code"], why["ahead"], why["text"]) == ("nonzero_exit", None, "The program ended with exit code 3.")


@pytest.mark.parametrize("state", list(JobState))
def test_why_answers_in_every_state(api: Api, lin: User, state: JobState) -> None:
    why = api.get(f"/jobs/{job_make(lin, state=state).pk}/why")[1]
    assert why["state"] == state
    assert why["text"]


# --- cancel, hold, release --------------------------------------------------------------------------------------------


def test_cancel_is_idempotent_and_refused_once_it_ended_otherwise(api: Api, lin: User) -> None:
    job = job_make(lin)
    for _ in range(2):
        status, answer = api.post(f"/jobs/{job.pk}/cancel")
        assert (status, answer["state"], answer["end"]["reason"]) == (200, "CANCELLED", "cancelled")
    done = job_make(lin, state=JobState.SUCCEEDED)
    status, error = api.post(f"/jobs/{done.pk}/cancel")
    assert (status, error["code"], error["fields"]["state"]) == (409, "invalid_state", "SUCCEEDED")
    assert str(done.pk) in error["message"]


def test_cancelling_a_running_job_stops_it_politely(api: Api, lin: User) -> None:
    job = live_job(lin)
    status, answer = api.post(f"/jobs/{job.pk}/cancel")
    assert (status, answer["state"], answer["want_cancel"]) == (200, "STOPPING", True)


def test_hold_and_release(api: Api, lin: User) -> None:
    job = job_make(lin)
    for _ in range(2):
        status, answer = api.post(f"/jobs/{job.pk}/hold", {"why": "exam week"})
        assert (status, answer["held"], answer["held_why"], answer["wait"]["code"]) == (200, True, "exam week", "held")
        assert answer["wait"]["text"] == "Held by lin@lab.example: exam week"
    for _ in range(2):
        status, answer = api.post(f"/jobs/{job.pk}/release")
        assert (status, answer["held"]) == (200, False)
    running = live_job(lin)
    assert api.post(f"/jobs/{running.pk}/hold")[1]["code"] == "invalid_state"
    assert api.post(f"/jobs/{running.pk}/release")[0] == 409


def test_a_job_that_was_cancelled_while_it_was_held_is_over(api: Api, lin: User) -> None:
    job = job_make(lin)
    api.post(f"/jobs/{job.pk}/hold")
    api.post(f"/jobs/{job.pk}/cancel")
    before = JobEvent.objects.count()
    for action in ("hold", "release"):
        status, error = api.post(f"/jobs/{job.pk}/{action}")
        assert (status, error["code"], error["fields"]["state"]) == (409, "invalid_state", "CANCELLED")
    assert JobEvent.objects.count() == before


@pytest.mark.parametrize("action", ["cancel", "hold", "release"])
@pytest.mark.parametrize("body", [{"force": True}, {"why": 7}, {"why": "x" * 201}])
def test_an_action_refuses_what_it_does_not_know(api: Api, lin: User, action: str, body: dict[str, Any]) -> None:
    job = job_make(lin)
    status, error = api.post(f"/jobs/{job.pk}/{action}", body)
    assert (status, is_error(error)) == (400, True)
    job.refresh_from_db()
    assert (job.state, job.held) == ("WAITING", False)


def test_a_session_needs_the_csrf_token_to_write() -> None:
    lin = user_make(password="correct horse")
    job = job_make(lin)
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(lin, backend="allauth.account.auth_backends.AuthenticationBackend")
    assert browser.get(f"/api/v1/jobs/{job.pk}").status_code == 200
    # A form of another site can send these without asking the browser first; none gets through.
    for kind in ("application/json", "application/x-www-form-urlencoded", "text/plain", ""):
        answer = browser.post(f"/api/v1/jobs/{job.pk}/cancel", b"{}", content_type=kind)
        assert (answer.status_code, is_error(answer.json())) == (403, True)
    browser.get("/accounts/password/change/")  # a page with a form hands the token out
    token = browser.cookies["csrftoken"].value
    answer = browser.post(f"/api/v1/jobs/{job.pk}/cancel", b"{}", content_type="application/json", headers={"X-CSRFToken": token})
    assert answer.status_code == 200


# --- events -----------------------------------------------------------------------------------------------------------


def test_events_tell_the_story_in_order(api: Api, lin: User) -> None:
    job = job_make(lin)
    api.post(f"/jobs/{job.pk}/hold", {"why": "exam week"})
    api.post(f"/jobs/{job.pk}/cancel")
    status, page = api.get(f"/jobs/{job.pk}/events")
    assert status == 200
    assert [event["code"] for event in page["results"]] == ["submitted", "held", "cancel_wanted", "cancelled"]
    assert page["results"][1]["text"] == "Held. Because: exam week"
    assert (page["results"][3]["from_state"], page["results"][3]["to_state"]) == ("WAITING", "CANCELLED")
    assert {event["by"] for event in page["results"]} <= {"lin@lab.example", None}


def test_events_cost_the_same_for_3_and_for_30(api: Api, lin: User) -> None:
    job = job_make(lin)
    for _ in range(3):
        JobEvent.objects.create(job=job, code="held", by=lin)
    api.get(f"/jobs/{job.pk}/events")
    few = queries(api, f"/jobs/{job.pk}/events")
    for _ in range(30):
        JobEvent.objects.create(job=job, code="held", by=user_make())
    assert queries(api, f"/jobs/{job.pk}/events") == few


# --- the pool ---------------------------------------------------------------------------------------------------------


def test_usage_adds_up_and_names_no_node(api: Api, lin: User) -> None:
    busy = live_job(lin)
    job_make(lin)
    node_make("drained-one", cards=2, cordoned=True)
    node_make("silent-one", cards=1, state="UNKNOWN")
    node_make("free-one", cards=3)
    status, usage = api.get("/resources/usage")
    assert status == 200
    assert usage["gpus"] == {"total": 7, "idle": 3, "busy": 1, "maintenance": 3, "ghost": 0}
    assert usage["nodes"] == {"total": 4, "ready": 3, "unknown": 1, "recovering": 0, "enrolling": 0, "down": 0, "cordoned": 1}
    assert usage["vram"] == {"total_mib": 7 * 24_564, "free_mib": 4 * 24_564 - 4096}
    assert usage["jobs"] == {"waiting": 1, "running": 1}
    assert usage["mine"]["gpu_hours"] == lin.quota.gpu_hours
    assert {notice["code"] for notice in usage["notices"]} == {"redis_away"}
    assert "-one" not in json.dumps(usage)
    assert busy.name not in json.dumps(usage)


def test_a_simulated_pool_says_so(api: Api) -> None:
    gpu_make(is_simulated=True)
    usage = api.get("/resources/usage")[1]
    assert usage["simulated"] is True
    assert "simulated_cards" in {notice["code"] for notice in usage["notices"]}


# --- what is described is what is sent --------------------------------------------------------------------------------


def keys_of(schema: serializers.BaseSerializer[Any], value: Any, where: str = "") -> Iterator[str]:
    """Differences between a schema and a value."""
    if isinstance(schema, serializers.ListSerializer):
        for item in value:
            yield from keys_of(schema.child, item, where + "[]")
    elif isinstance(schema, serializers.Serializer):
        known = schema.fields
        yield from (f"{where}.{key} is not described" for key in set(value) - set(known))
        yield from (f"{where}.{key} is not sent" for key, field in known.items() if key not in value and field.required)
        for key, field in known.items():
            if value.get(key) is not None:
                yield from keys_of(field, value[key], f"{where}.{key}")


def test_the_description_is_what_is_sent(api: Api, lin: User) -> None:
    job, ended = live_job(lin), job_make(lin, state=JobState.FAILED, end_reason="completed")
    waiting = job_make(lin)
    for one in (job, ended, waiting):
        assert list(keys_of(JobSchema(), api.get(f"/jobs/{one.pk}")[1])) == []
        assert list(keys_of(WhySchema(), api.get(f"/jobs/{one.pk}/why")[1])) == []
        assert list(keys_of(LogSchema(), api.get(f"/jobs/{one.pk}/logs")[1])) == []
        assert list(keys_of(EventSchema(many=True), api.get(f"/jobs/{one.pk}/events")[1]["results"])) == []
    assert list(keys_of(JobRowSchema(many=True), api.get("/jobs/")[1]["results"])) == []
    assert list(keys_of(UsageSchema(), api.get("/resources/usage")[1])) == []


def test_the_schema_is_valid_and_describes_errors() -> None:
    from drf_spectacular.generators import SchemaGenerator
    from drf_spectacular.validation import validate_schema

    schema = SchemaGenerator().get_schema(request=None, public=True)
    validate_schema(schema)
    submit = schema["paths"]["/api/v1/jobs/submit"]["post"]
    assert submit["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith("/Error")
    assert set(schema["components"]["schemas"]["Error"]["required"]) == {"code", "message", "fields"}
    assert submit["requestBody"]["content"]["application/json"]["examples"]
    assert {"token": []} in submit["security"]


def test_the_schema_has_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    from django.core.management import call_command

    call_command("spectacular", "--validate", "--fail-on-warn", "--file", "/dev/null")
    assert capsys.readouterr().err == ""
