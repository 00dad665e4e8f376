"""Apply: asked twice, made once; what differs is told, and what runs is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.lifecycle import JobState
from jobs.models import AppliedJob, Job
from jobs.services.declare import content_diff
from jobs.services.moves import jobs_move
from tests.factories import node_make, project_make, user_make
from tests.rest import Api, no_redis  # noqa: F401
from tests.threads import in_threads

pytestmark = pytest.mark.django_db
JOB = {"name": "eval", "argv": ["python", "eval.py"], "gpu_mem": "8G", "env": {"A": "1"}}


@pytest.fixture
def api() -> Api:
    node_make("n1", cards=1)
    return Api(user_make("li@lab.example"))


def apply(api: Api, job: dict[str, Any] | None = None, **more: Any) -> tuple[int, dict[str, Any]]:
    return api.post("/jobs/apply", {"job": job or JOB, **more})


def move(number: int, *states: JobState) -> None:
    for state in states:
        end = {"end_reason": "exit_code"} if state is JobState.FAILED else {}
        jobs_move([number], to=state, code="test", fields={"wait_code": "", "wait_params": {}, **end})


def test_the_same_twice_is_one_job(api: Api) -> None:
    first, second = apply(api), apply(api, dict(reversed(JOB.items())))
    assert [(status, body["action"]) for status, body in (first, second)] == [(201, "created"), (200, "unchanged")]
    assert first[1]["job"]["id"] == second[1]["job"]["id"]
    assert Job.objects.count() == 1


def test_another_spelling_of_the_same_changes_nothing(api: Api) -> None:
    apply(api)
    assert apply(api, {**JOB, "gpu_mem": "8192M", "gpu_count": 1, "requeue": True})[1]["action"] == "unchanged"


def test_a_waiting_job_gives_way_to_its_new_content_and_the_difference_is_told(api: Api) -> None:
    old = apply(api)[1]["job"]["id"]
    status, body = apply(api, {**JOB, "gpu_mem": "16G", "env": {"A": "2", "TOKEN": "hunter2"}})
    assert (status, body["action"], body["replaces"]) == (201, "replaced", old)
    assert body["diff"] == [
        {"field": "env.A", "before": "1", "after": "2"},
        {"field": "env.TOKEN", "before": None, "after": "…"},
        {"field": "gpu_mem_mib", "before": 8192, "after": 16384},
    ]
    assert [Job.objects.get(pk=pk).state for pk in (old, body["job"]["id"])] == ["CANCELLED", "WAITING"]


def test_a_running_job_is_left_alone(api: Api) -> None:
    number = apply(api)[1]["job"]["id"]
    move(number, JobState.STARTING, JobState.RUNNING)
    assert apply(api)[1]["action"] == "unchanged"
    status, error = apply(api, {**JOB, "gpu_mem": "16G"})
    assert (status, error["code"]) == (409, "invalid_state")
    assert "gpu_mem_mib" in error["message"]
    assert Job.objects.count() == 1


def test_one_that_has_ended_is_made_anew_only_if_it_differs_or_a_failure_is_to_be_tried_again(api: Api) -> None:
    number = apply(api)[1]["job"]["id"]
    move(number, JobState.STARTING, JobState.RUNNING, JobState.FAILED)
    assert apply(api)[1]["action"] == "unchanged"
    again = apply(api, retry=True)
    assert (again[0], again[1]["action"]) == (201, "renewed")
    assert apply(api, retry=True)[1]["action"] == "unchanged", "it waits: nothing failed"
    move(again[1]["job"]["id"], JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED)
    assert apply(api, retry=True)[1]["action"] == "unchanged"
    assert apply(api, {**JOB, "argv": ["true"]})[1]["action"] == "renewed"


def test_a_dry_run_tells_and_makes_nothing(api: Api) -> None:
    assert apply(api, dry_run=True) == (200, {"action": "created", "dry_run": True, "replaces": None, "diff": [], "job": None})
    assert not AppliedJob.objects.exists()
    number = apply(api)[1]["job"]["id"]
    status, body = apply(api, {**JOB, "nodes": 2, "gpu_count": 2}, dry_run=True)
    assert (status, body["code"]) == (400, "never_fits")
    status, body = apply(api, {**JOB, "gpu_mem": "4G"}, dry_run=True)
    assert (status, body["action"], body["replaces"], len(body["diff"])) == (200, "replaced", number, 1)
    assert Job.objects.get().state == "WAITING"


def test_the_key_is_an_id_or_the_name_within_owner_and_project(api: Api) -> None:
    user = api.user
    assert user is not None
    project_make("vision", members=(user,))
    made = [
        apply(api)[1]["action"],
        apply(api, {**JOB, "id": "nightly"})[1]["action"],
        apply(api, {**JOB, "project": "vision"})[1]["action"],
        apply(Api(user_make("wu@lab.example")))[1]["action"],
        apply(api, {**JOB, "id": "nightly", "name": "other"})[1]["action"],
    ]
    assert made == ["created", "created", "created", "created", "replaced"]


def test_a_wrong_field_is_named_as_a_submit_names_it(api: Api) -> None:
    status, error = apply(api, {**JOB, "gpu_memory": "8G"})
    assert (status, list(error["fields"])) == (400, ["gpu_memory"])
    for wrong in ({"id": 7}, {"id": "x" * 201}, {"id": "a\nb"}):
        status, error = apply(api, {**JOB, **wrong})
        assert (status, list(error["fields"])) == (400, ["id"])
    assert api.post("/jobs/apply", {"job": "eval"})[0] == 400


@pytest.mark.django_db(transaction=True)
def test_many_at_once_make_one(api: Api) -> None:
    answers = in_threads(5, lambda _number: apply(api))
    assert sorted(body["action"] for _status, body in answers) == ["created"] + ["unchanged"] * 4
    assert Job.objects.count() == 1


def test_differences_of_nothing_are_nothing() -> None:
    assert content_diff({"env": {"A": "1"}}, {"env": {"A": "1"}}) == []
    assert content_diff({}, {"name": "x"}) == [("name", None, "x")]
