"""POST /api/v1/jobs/submit: what is taken, what is refused and how, and what never happens twice."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import DjangoAssertNumQueries, Settings

from jobs import snapshot
from jobs.models import Job, JobEvent
from jobs.services.submit import fits_forget
from nodes.models import Gpu
from quotas.models import Membership, Quota, User
from quotas.services import quota_for
from tests.factories import gpu_make, node_make, project_make, user_make
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
    found = api.get(f"/jobs/{row.pk}")[1]
    assert job | {"kept": found["kept"]} == found | {"wait": job["wait"]}
    assert next(iter(job)) == next(iter(found)) == "id"  # shell scripts look for the first one
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


@pytest.mark.parametrize("name", ["az'", "$(touch x)", "a;b", "../x", '"', "<script>alert(1)</script>", "تدريب", "训练 ☠ 🎉", "x" * 200])
def test_a_name_is_stored_as_it_is(api: Api, name: str) -> None:
    status, job = api.post("/jobs/submit", OK | {"name": name})
    assert (status, job["name"]) == (201, name)
    assert Job.objects.get(pk=job["id"]).name == name


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("name that turns the direction", {"name": "\u202eevil"}, "name"),
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
    ("more than a whole GPU as a share", {"gpu_mem": "1.5"}, "gpu_mem"),
    ("no share of a GPU at all", {"gpu_mem": "0.0"}, "gpu_mem"),
    ("a share of a GPU that is not there", {"gpu_mem": "0.5", "constraints": {"model": "H9000"}}, "gpu_mem"),
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
    ("arch that is a number", {"constraints": {"arch": 8.9}}, "constraints"),
    ("CUDA in words", {"constraints": {"cuda_min": "the newest"}}, "constraints"),
    ("driver with a sign", {"constraints": {"driver_min": ">=550"}}, "constraints"),
    ("labels as a list", {"constraints": {"labels": ["a=b"]}}, "constraints"),
    ("label with a bad name", {"constraints": {"labels": {"a b": "c"}}}, "constraints"),
    ("label with a number", {"constraints": {"labels": {"a": 1}}}, "constraints"),
    ("label with a long value", {"constraints": {"labels": {"a": "x" * 64}}}, "constraints"),
    ("17 labels", {"constraints": {"labels": {f"k{n}": "" for n in range(17)}}}, "constraints"),
    ("cores in words", {"cpus": "two"}, "cpus"),
    ("no cores", {"cpus": 0}, "cpus"),
    ("negative cores", {"cpus": -1}, "cpus"),
    ("a sliver of a core", {"cpus": "0.0005"}, "cpus"),
    ("huge cores", {"cpus": 3_000_000}, "cpus"),
    ("cores as a truth value", {"cpus": True}, "cpus"),
    ("cores twice", {"cpus": 1, "cpu_milli": 1000}, "cpus"),
    ("a fraction of a thousandth", {"cpu_milli": 0.5}, "cpu_milli"),
    ("host memory as a share", {"host_mem": "0.5"}, "host_mem"),
    ("host memory twice", {"host_mem": "1G", "host_mem_mib": 1024}, "host_mem"),
    ("no host memory", {"host_mem_mib": 0}, "host_mem_mib"),
    ("exclusive as a word", {"exclusive": "yes"}, "exclusive"),
    ("exclusive without a GPU", {"gpu_mem": None, "gpu_count": 0, "exclusive": True}, "exclusive"),
    ("a model without a GPU", {"gpu_mem": None, "gpu_count": 0, "constraints": {"model": "A100"}}, "constraints"),
    ("unknown queue", {"queue": "fast"}, "queue"),
    ("unknown quality of service", {"qos": "gold"}, "qos"),
    ("quality of service for staff", {"qos": "high"}, "qos"),
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


# --- what nodes and cards must be -----------------------------------------------------------------------------------

NEEDS: dict[str, Any] = {
    "constraints": {
        "arch": "sm_89",
        "model": "RTX 4090|A100",
        "vendor": "nvidia",
        "cuda_min": "12.2",
        "driver_min": "535",
        "labels": {"zone": "", "rack": "三楼"},
    },
    "cpu_milli": 500,
    "host_mem_mib": 65_536,
    "exclusive": True,
    "queue": "interactive",
    "qos": "low",
}


@pytest.fixture
def rich() -> None:
    node_make(
        "rich", cards=1, cuda_version="12.4", driver_version="550.54", labels={"rack": "三楼", "zone": ""}, cpu_cores=8, memory_mib=128_000
    )


def test_all_that_a_job_may_ask_for_is_kept_and_read_back(api: Api, rich: None) -> None:
    status, job = api.post("/jobs/submit", OK | NEEDS)
    assert status == 201, job
    assert {name: job[name] for name in NEEDS} == NEEDS
    assert api.get(f"/jobs/{job['id']}")[1]["constraints"] == NEEDS["constraints"]
    asked = snapshot.request_of(Job.objects.get())
    assert (asked.cuda_min, asked.driver_min, asked.labels) == ("12.2", "535", (("rack", "三楼"), ("zone", "")))
    assert (asked.cpu_milli, asked.host_mem_mib, asked.is_exclusive) == (500, 65_536, True)


@pytest.mark.parametrize(("cpus", "milli"), [("0.5", 500), (0.5, 500), (8, 8000), ("1.25", 1250), (" 2 ", 2000), (0.001, 1)])
def test_cores_may_be_fractions(api: Api, rich: None, cpus: Any, milli: int) -> None:
    job = api.post("/jobs/submit", OK | {"cpus": cpus, "host_mem": "1.5G"})[1]
    assert (job["cpu_milli"], job["host_mem_mib"]) == (milli, 1536)


def test_what_was_not_asked_for_is_none_and_not_0(api: Api) -> None:
    job = api.post("/jobs/submit", OK | {"exclusive": False, "constraints": {"labels": {}}, "cpus": None})[1]
    assert (job["cpu_milli"], job["host_mem_mib"], job["exclusive"], job["constraints"]) == (None, None, False, {})
    assert (job["queue"], job["qos"]) == ("", "")
    assert Job.objects.get().constraints == {}


NOT_HERE: list[tuple[dict[str, Any], str, str]] = [
    ({"constraints": {"cuda_min": "12.10"}}, "never_cuda", "No suitable node here runs CUDA 12.10 or newer; here are: 12.4."),
    ({"constraints": {"driver_min": "580"}}, "never_driver", "No suitable node here has driver 580 or newer; here are: 550.54."),
    (
        {"constraints": {"labels": {"rack": "r9"}}},
        "never_label",
        "No suitable node here has the label rack=r9; its values here are: 三楼.",
    ),
    (
        {"constraints": {"model": "A100|H100"}},
        "never_model",
        "No GPU here is of the model A100|H100; the models here are: NVIDIA GeForce RTX 4090.",
    ),
    (
        {"cpus": 64},
        "never_node_cpu",
        "No node can ever hold this: 64 CPU cores are asked on each node, the largest has 8 (rich).",
    ),
    (
        {"host_mem": "256G"},
        "never_node_memory",
        "No node can ever hold this: 256 GiB of host memory are asked on each node, the largest has 125 GiB (rich).",
    ),
]


@pytest.mark.parametrize(("change", "reason", "said"), NOT_HERE, ids=[row[1] for row in NOT_HERE])
def test_what_no_node_has_is_refused_with_what_there_is(lin: User, rich: None, change: dict[str, Any], reason: str, said: str) -> None:
    api = Api(lin)
    status, error = api.post("/jobs/submit", OK | change)
    assert (status, error["code"], error["fields"]["reason"]) == (400, "never_fits", reason)
    assert error["message"] == said
    chinese = api.post("/jobs/submit", OK | change, **{"Accept-Language": "zh-hans"})[1]["message"]
    assert re.search(r"[\u4e00-\u9fff]{4}", chinese)
    assert chinese != said
    assert not Job.objects.exists()


def test_a_wrong_queue_or_quality_of_service_is_told_those_that_there_are(api: Api) -> None:
    policy = snapshot.policy_current()
    said = api.post("/jobs/submit", OK | {"queue": "fast"})[1]["message"]
    assert f"There is no queue fast; there are: {', '.join(queue.name for queue in policy.queues)}." in said
    said = api.post("/jobs/submit", OK | {"qos": "gold"})[1]["message"]
    assert f"there are: {', '.join(name for name, _points in policy.qos)}." in said


def test_a_quality_of_service_that_raises_is_for_staff_and_one_that_lowers_for_all(api: Api) -> None:
    assert "raises the priority by 100" in api.post("/jobs/submit", OK | {"qos": "high"})[1]["message"]
    assert api.post("/jobs/submit", OK | {"qos": "low"})[1]["qos"] == "low"
    assert Api(user_make(is_staff=True)).post("/jobs/submit", OK | {"qos": "high"})[1]["qos"] == "high"


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
    for change in ({"cpus": 1}, {"exclusive": True}, {"queue": "batch"}, {"constraints": {"labels": {"a": "b"}}}):
        assert api.post("/jobs/submit", OK | change, **{"Idempotency-Key": "k-1"})[0] == 409


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
    with django_assert_max_num_queries(9):  # the token, what ran before, the quotas, the job, its event; savepoints
        assert api.post("/jobs/submit", OK)[0] == 201


def test_what_fitted_once_is_refused_again_once_the_pool_has_shrunk(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"argv": ["true"], "constraints": {"model": "RTX 9090"}}
    gpu = gpu_make(node_make("big"), model="RTX 9090")
    assert api.post("/jobs/submit", asked)[0] == 201
    Gpu.objects.filter(pk=gpu.pk).update(model="RTX 1010")
    assert api.post("/jobs/submit", asked)[0] == 201  # just judged
    monkeypatch.setattr("jobs.services.submit.FITS_S", 0.0)
    assert api.post("/jobs/submit", asked)[0] == 400
    Gpu.objects.filter(pk=gpu.pk).update(model="RTX 9090")
    assert api.post("/jobs/submit", asked)[0] == 201  # a refusal is never remembered


def test_a_repeat_is_answered_with_the_first_job_even_where_a_new_one_would_be_refused(api: Api, lin: User) -> None:
    key = {"Idempotency-Key": "once"}
    status, job = api.post("/jobs/submit", OK, **key)
    assert status == 201
    Quota.objects.filter(user=lin).update(max_active_jobs=1)
    assert api.post("/jobs/submit", OK)[0] == 403
    status, again = api.post("/jobs/submit", OK, **key)
    assert (status, again["id"]) == (200, job["id"])
    assert Quota.objects.get(user=lin).active_jobs == 1
    fits_forget()
    Gpu.objects.update(total_mib=1024, nominal_mib=1024)
    assert api.post("/jobs/submit", OK)[1]["code"] == "never_fits"
    assert api.post("/jobs/submit", OK, **key)[1]["id"] == job["id"]


def test_too_many_submits_are_a_429_with_retry_after_and_no_quota_refusal(api: Api, settings: Settings) -> None:
    settings.THROTTLE_SUBMIT = "3/30"
    statuses = [api.call("POST", "/jobs/submit", OK) for _ in range(4)]
    assert [answer.status_code for answer in statuses] == [201, 201, 201, 429]
    error = json.loads(statuses[3].content)
    assert error["code"] == "throttled"
    assert 1 <= int(statuses[3]["Retry-After"]) <= 10
    assert Api(user_make()).post("/jobs/submit", OK)[0] == 201  # another user's bucket is full


@pytest.mark.parametrize("languages", [("en", "zh-hans"), ("zh-hans", "en")])
@pytest.mark.parametrize("change", [{"gpu_count": -1}, {"name": "x" * 201}, {"constraints": {"model": "x" * 401}}])
def test_a_limit_is_told_in_the_language_of_who_asks(api: Api, change: dict[str, Any], languages: tuple[str, str]) -> None:
    told = {language: api.post("/jobs/submit", OK | change, **{"Accept-Language": language})[1]["message"] for language in languages}
    assert "Ensure this" in told["en"]
    assert "请确保" in told["zh-hans"]


# --- bytes ----------------------------------------------------------------------------------------------------------

LONG = OK | {"argv": ["python", "x" * 100_000]}


def test_the_text_of_active_jobs_has_a_limit_that_an_end_gives_back(api: Api, lin: User, settings: Settings) -> None:
    settings.JOB_TEXT_MIB = 1
    jobs = [api.post("/jobs/submit", LONG)[1] for _ in range(10)]
    status, error = api.post("/jobs/submit", LONG)
    assert (status, error["code"]) == (413, "job_text")
    assert "1024 KiB" in error["message"]
    assert "file" in error["message"]
    assert Quota.objects.get(user=lin).active_jobs == 10  # the refused one is not counted
    assert api.post("/jobs/submit", OK)[0] == 201
    assert Api(user_make()).post("/jobs/submit", LONG)[0] == 201
    assert api.post(f"/jobs/{jobs[0]['id']}/cancel")[0] == 200
    assert api.post("/jobs/submit", LONG)[0] == 201


def test_the_text_of_a_days_submits_has_a_limit_too(api: Api, settings: Settings) -> None:
    settings.THROTTLE_TEXT = "250/86400"
    assert [api.post("/jobs/submit", LONG)[0] for _ in range(3)] == [201, 201, 429]
    status, error = api.post("/jobs/submit", LONG, **{"Accept-Language": "zh-hans"})
    assert (status, error["code"]) == (429, "job_text_day")
    assert "KiB" in error["message"]
    assert not error["message"].isascii()


def test_a_new_user_has_a_limit_of_active_jobs(settings: Settings) -> None:
    settings.DEFAULT_ACTIVE_JOBS = 2
    api = Api(user_make())
    assert [api.post("/jobs/submit", OK)[0] for _ in range(3)] == [201, 201, 403]
    settings.DEFAULT_ACTIVE_JOBS = 0
    assert quota_for(user_make()).max_active_jobs is None


def test_on_a_full_disk_a_submit_is_refused_and_the_disk_is_named(api: Api, lin: User, settings: Settings) -> None:
    settings.DISK_FLOOR_MIB = 10**9
    status, error = api.post("/jobs/submit", OK)
    assert (status, error["code"]) == (507, "disk_full")
    assert str(settings.DATA_DIR) in error["message"]
    page = Client()
    page.force_login(lin)
    answer = page.post("/jobs/new/", {"kind": "line", "command": "true", "gpu_count": "0", "name": "x"})
    assert answer.status_code == 507
    assert str(settings.DATA_DIR) in answer.content.decode()
    assert not Job.objects.exists()
