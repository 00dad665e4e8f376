"""POST /api/v1/jobs/submit: what is taken, what is refused and how, and what never happens twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pytest_django.fixtures import DjangoAssertNumQueries, Settings

from jobs.models import Job, JobEvent
from quotas.models import Membership, User
from tests.factories import node_make, project_make, user_make
from tests.rest import Api, is_error, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
OK: dict[str, Any] = {"argv": ["true"], "gpu_mem": "4G"}


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example")


@pytest.fixture
def api(lin: User) -> Api:
    node_make("node01", cards=2)
    return Api(lin)


def test_a_job_is_made_as_asked(api: Api, lin: User) -> None:
    status, job = api.post(
        "/jobs/submit",
        {
            "name": "hello",
            "argv": ["python", "-c", "print('a; b')"],
            "gpu_mem": "4G",
            "workdir": "/data/lin",
            "env": {"LR": "0.1"},
            "time": "01:00:00",
            "checkpoint": "ckpt/last.pt",
            "requeue": False,
            "on_node_loss": "requeue",
            "grace_s": 60,
            "constraints": {"model": "RTX 4090"},
        },
    )
    assert status == 201
    row = Job.objects.get(pk=job["id"])
    assert (row.owner, row.state, row.argv, row.env) == (lin, "WAITING", ["python", "-c", "print('a; b')"], {"LR": "0.1"})
    assert (row.gpu_count, row.gpu_mem_mib, row.nodes, row.time_limit_s, row.grace_s) == (1, 4096, 1, 3600, 60)
    assert (row.workdir, row.checkpoint, row.requeue, row.on_node_loss) == ("/data/lin", "ckpt/last.pt", False, "requeue")
    assert row.constraints == {"model": "RTX 4090"}
    assert job == api.get(f"/jobs/{row.pk}")[1] | {"wait": job["wait"]}
    assert job["wait"]["code"] == "submitted"
    assert job["wait"]["text"].endswith(".")
    assert list(JobEvent.objects.filter(job=row).values_list("code", flat=True)) == ["submitted"]


def test_a_command_string_is_split_and_never_run_by_a_shell(api: Api) -> None:
    status, job = api.post("/jobs/submit", {"command": "python train.py --name 'a b'", "gpu_count": 0})
    assert (status, job["argv"], job["name"]) == (201, ["python", "train.py", "--name", "a b"], "python")
    status, error = api.post("/jobs/submit", {"command": "python a.py | tee log", "gpu_count": 0})
    assert (status, error["code"]) == (400, "invalid")
    assert "|" in error["message"]
    assert "sh -c" in error["message"]


@pytest.mark.parametrize("name", ["az'", "$(touch x)", "a;b", "../x", '"', "<script>alert(1)</script>", "‮evil", "训练 ☠ 🎉", "x" * 200])
def test_a_name_is_stored_as_it_is(api: Api, name: str) -> None:
    status, job = api.post("/jobs/submit", OK | {"name": name})
    assert (status, job["name"]) == (201, name)
    assert Job.objects.get(pk=job["id"]).name == name


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("name with a line break", {"name": "a\nb"}, "name"),
    ("name of 10 kB", {"name": "x" * 10_240}, "name"),
    ("empty name", {"name": ""}, "name"),
    ("name that is a number", {"name": 7}, "name"),
    ("name with half a surrogate pair", {"name": "\ud800"}, "name"),
    ("NUL in argv", {"argv": ["a\0b"]}, "argv"),
    ("half a surrogate pair in argv", {"argv": ["x", "\udfff"]}, "argv"),
    ("empty argv", {"argv": []}, "argv"),
    ("argv that is a string", {"argv": "true"}, "argv"),
    ("argv with a number", {"argv": ["sleep", 5]}, "argv"),
    ("argv of 1001 words", {"argv": ["x"] * 1001}, "argv"),
    ("argv of 129 KiB", {"argv": ["x" * 132_096]}, "argv"),
    ("argv and command", {"command": "true"}, "command"),
    ("huge gpu_count", {"gpu_count": 2**31}, "gpu_count"),
    ("very huge gpu_count", {"gpu_count": 10**400}, "gpu_count"),
    ("negative gpu_count", {"gpu_count": -1}, "gpu_count"),
    ("gpu_count as a string", {"gpu_count": "1"}, "gpu_count"),
    ("gpu_count as a boolean", {"gpu_count": True}, "gpu_count"),
    ("gpu_count as a fraction", {"gpu_count": 1.5}, "gpu_count"),
    ("gpu_count null", {"gpu_count": None}, "gpu_count"),
    ("no nodes", {"nodes": 0}, "nodes"),
    ("a share of a GPU", {"gpu_mem": "0.5"}, "gpu_mem"),
    ("memory that is none", {"gpu_mem": "lots"}, "gpu_mem"),
    ("memory as a fraction", {"gpu_mem": 0.5}, "gpu_mem"),
    ("memory as a list", {"gpu_mem": ["4G"]}, "gpu_mem"),
    ("huge memory", {"gpu_mem": 2**31}, "gpu_mem"),
    ("memory twice", {"gpu_mem_mib": 4096}, "gpu_mem"),
    ("memory without a GPU", {"gpu_count": 0}, "gpu_mem"),
    ("huge memory in MiB", {"gpu_mem": None, "gpu_mem_mib": 2**63}, "gpu_mem_mib"),
    ("ambiguous time", {"time": "30:00"}, "time"),
    ("no time at all", {"time": 0}, "time"),
    ("huge time", {"time_limit_s": 2**31}, "time_limit_s"),
    ("time twice", {"time": "1h", "time_limit_s": 60}, "time"),
    ("relative workdir", {"workdir": "data"}, "workdir"),
    ("workdir with NUL", {"workdir": "/a\0"}, "workdir"),
    ("long workdir", {"workdir": "/" + "x" * 5000}, "workdir"),
    ("reserved environment", {"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "env"),
    ("our own environment", {"env": {"NEBULA_GPU_LIST": "0"}}, "env"),
    ("environment with a bad name", {"env": {"A-B": "1"}}, "env"),
    ("environment as a list", {"env": ["A=1"]}, "env"),
    ("environment with a number", {"env": {"A": 1}}, "env"),
    ("requeue as a string", {"requeue": "yes"}, "requeue"),
    ("unknown on_node_loss", {"on_node_loss": "panic"}, "on_node_loss"),
    ("grace beyond the admin's", {"grace_s": 601}, "grace_s"),
    ("priority of a user", {"priority": 1}, "priority"),
    ("huge priority", {"priority": 2**31}, "priority"),
    ("project of nobody", {"project": "nope"}, "project"),
    ("project with NUL", {"project": "a\0"}, "project"),
    ("unknown constraint", {"constraints": {"modle": "A100"}}, "constraints"),
    ("constraints as a string", {"constraints": "A100"}, "constraints"),
    ("unknown field", {"gpu_mm": "4G"}, "gpu_mm"),
]


@pytest.mark.parametrize(("change", "field"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_input_is_a_400_that_names_the_field(api: Api, change: dict[str, Any], field: str) -> None:
    status, error = api.post("/jobs/submit", OK | change)
    assert status == 400, error
    assert is_error(error)
    assert error["code"] == "invalid"
    assert field in error["fields"], error
    assert field in error["message"]
    assert len(error["message"]) < 400
    assert not Job.objects.exists()


def test_an_unknown_field_is_told_the_nearest_known_one(api: Api) -> None:
    assert "gpu_mem" in api.post("/jobs/submit", OK | {"gpu_mm": "4G"})[1]["message"]
    assert "model" in api.post("/jobs/submit", OK | {"constraints": {"modle": "x"}})[1]["message"]
    assert "argv" in api.post("/jobs/submit", OK | {"zzzz": 1})[1]["message"]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'"x"', 400),
        (b'{"argv": ["\xff\xfe"]}', 400),
        (b'{"argv": ["a\x00"]}', 400),
        (b'{"argv": NaN}', 400),
        (b'{"gpu_count": 1e999, "argv": ["x"]}', 400),
        (b'{"gpu_count": ' + b"9" * 5000 + b"}", 400),
        (b'{"argv": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", 400),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, 400),
        (b'{"argv": ["' + b"x" * 2_200_000 + b'"]}', 413),
    ],
    ids=[
        "empty",
        "cut",
        "list",
        "null",
        "string",
        "not UTF-8",
        "raw NUL",
        "NaN",
        "infinite",
        "5000 digits",
        "deep list",
        "deep object",
        "2 MiB",
    ],
)
def test_a_body_that_is_no_request_is_refused_without_a_crash(api: Api, raw: bytes, status: int) -> None:
    answer = api.call("POST", "/jobs/submit", raw=raw)
    assert answer.status_code == status
    assert is_error(json.loads(answer.content))
    assert len(answer.content) < 2000


def test_another_content_type_is_a_415_and_none_is_json(api: Api) -> None:
    body = json.dumps(OK).encode()
    answer = api.client.post("/api/v1/jobs/submit", body, content_type="text/csv")
    assert (answer.status_code, is_error(answer.json())) == (415, True)
    assert api.client.post("/api/v1/jobs/submit", body, content_type="").status_code == 201
    assert api.client.post("/api/v1/jobs/submit", body, content_type="application/x-www-form-urlencoded").status_code == 201  # curl -d
    answer = api.client.post("/api/v1/jobs/submit", b"argv=true", content_type="application/x-www-form-urlencoded")
    assert (answer.status_code, answer.json()["code"]) == (400, "not_json")
    assert api.client.post("/api/v1/jobs/submit", body, content_type="application/json; charset=latin-1").status_code == 201


def test_a_browsers_accept_header_still_gets_json(api: Api) -> None:
    answer = api.client.get("/api/v1/jobs/", headers={"Accept": "text/html"})
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")


# --- refusals with numbers ------------------------------------------------------------------------------------------


def test_what_no_card_can_ever_hold_is_refused_with_the_numbers(api: Api) -> None:
    status, error = api.post("/jobs/submit", OK | {"gpu_mem": "96G"})
    assert (status, error["code"], error["fields"]["reason"]) == (400, "never_fits", "never_gpu_memory")
    assert error["fields"]["needed_mib"] == 98_304
    assert "96 GiB" in error["message"]
    assert "24 GiB" in error["message"]
    assert "24 GiB" in api.post("/jobs/submit", OK | {"gpu_mem": "96G"}, **{"Accept-Language": "zh-hans"})[1]["message"]


def test_the_reader_gets_the_readers_language(api: Api) -> None:
    message = api.post("/jobs/submit", OK | {"gpu_mem": "96G"}, **{"Accept-Language": "zh-CN,zh;q=0.9"})[1]["message"]
    assert "没有卡能满足" in message


def test_twenty_four_gib_fit_a_card_that_reports_less(api: Api) -> None:
    assert api.post("/jobs/submit", OK | {"gpu_mem": "24G"})[0] == 201


def test_a_full_quota_is_a_403_with_the_numbers(lin: User, api: Api) -> None:
    type(lin.quota).objects.filter(user=lin).update(max_active_jobs=1)
    assert api.post("/jobs/submit", OK)[0] == 201
    status, error = api.post("/jobs/submit", OK)
    assert (status, error["code"]) == (403, "quota_exceeded")
    assert (error["fields"]["used"], error["fields"]["limit"], error["fields"]["resets_at"]) == (1, 1, None)
    assert Job.objects.count() == 1


def test_a_used_up_month_says_when_it_resets(lin: User, api: Api) -> None:
    type(lin.quota).objects.filter(user=lin).update(gpu_hours=1, used_gpu_s=3600.0)
    status, error = api.post("/jobs/submit", OK)
    assert (status, error["code"]) == (403, "quota_exceeded")
    assert error["fields"]["resets_at"]


# --- projects and priority ------------------------------------------------------------------------------------------


def test_a_project_is_for_those_who_may_submit_to_it(lin: User, api: Api) -> None:
    project_make("nlp", members=(lin,))
    project_make("looking-on", members=(lin,), role=Membership.Role.VIEWER)
    project_make("closed", members=(lin,), is_active=False)
    project_make("others")
    assert api.post("/jobs/submit", OK | {"project": "nlp"})[1]["project"] == "nlp"
    for name in ("looking-on", "closed", "others"):
        assert api.post("/jobs/submit", OK | {"project": name})[0] == 400


def test_staff_may_go_first() -> None:
    node_make("node01", cards=1)
    assert Api(user_make(is_staff=True)).post("/jobs/submit", OK | {"priority": 5})[1]["priority"] == 5


def test_a_held_job_waits_for_its_release(api: Api) -> None:
    job = api.post("/jobs/submit", OK | {"hold": True})[1]
    assert (job["held"], job["wait"]["code"]) == (True, "held")
    assert "lin@lab.example" in job["wait"]["text"]


# --- once only --------------------------------------------------------------------------------------------------------


def test_a_repeat_with_the_same_key_is_the_same_job(api: Api) -> None:
    first = api.post("/jobs/submit", OK | {"name": "a"}, **{"Idempotency-Key": "k-1"})
    again = api.post("/jobs/submit", {"name": "a", "gpu_mem": "4G", "argv": ["true"]}, **{"Idempotency-Key": "k-1"})  # other order
    assert (first[0], again[0]) == (201, 200)
    assert first[1]["id"] == again[1]["id"]
    assert Job.objects.count() == 1


def test_the_same_key_for_another_body_is_a_conflict(api: Api) -> None:
    job = api.post("/jobs/submit", OK, **{"Idempotency-Key": "k-1"})[1]
    status, error = api.post("/jobs/submit", OK | {"name": "other"}, **{"Idempotency-Key": "k-1"})
    assert (status, error["code"], error["fields"]["job"]) == (409, "idempotency_conflict", job["id"])
    assert str(job["id"]) in error["message"]


def test_a_key_is_its_users_own(api: Api) -> None:
    api.post("/jobs/submit", OK, **{"Idempotency-Key": "k-1"})
    assert Api(user_make()).post("/jobs/submit", OK | {"name": "other"}, **{"Idempotency-Key": "k-1"})[0] == 201


@pytest.mark.parametrize("key", ["x" * 201, "a b", "ü"])
def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    status, error = api.post("/jobs/submit", OK, **{"Idempotency-Key": key})
    assert (status, "Idempotency-Key" in error["fields"]) == (400, True)


# --- cost ---------------------------------------------------------------------------------------------------------------


def test_a_submit_costs_few_statements_whatever_the_pool(api: Api, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    api.post("/jobs/submit", OK)
    for number in range(2, 12):
        node_make(f"node{number:02}", cards=4)
    with django_assert_max_num_queries(14):
        assert api.post("/jobs/submit", OK)[0] == 201


def test_too_many_submits_are_a_429_with_retry_after_and_no_quota_refusal(api: Api, settings: Settings) -> None:
    settings.THROTTLE_SUBMIT = "3/30"
    statuses = [api.call("POST", "/jobs/submit", OK) for _ in range(4)]
    assert [answer.status_code for answer in statuses] == [201, 201, 201, 429]
    error = json.loads(statuses[3].content)
    assert error["code"] == "throttled"
    assert 1 <= int(statuses[3]["Retry-After"]) <= 10
    assert Api(user_make()).post("/jobs/submit", OK)[0] == 201  # another user's bucket is full
