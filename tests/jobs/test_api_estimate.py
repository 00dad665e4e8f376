"""Before a submit: the verdict, when it would start, and what would start sooner; and that each of these comes true."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from jobs import whatif
from jobs.errors import EstimatesBusy
from jobs.models import Job, Slice
from jobs.scheduler import Estimate
from jobs.services.schedule import pass_run
from quotas.models import User
from tests.factories import attempt_make, gpu_make, job_make, node_make, user_make
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example")


@pytest.fixture
def api(lin: User) -> Api:
    return Api(lin)


def half_full(*, hours: float = 2) -> None:
    """node01 with one card of 24,564 MiB: 12,000 MiB of it are taken, for so many hours at most."""
    job = job_make(state="RUNNING", epoch=1, started_at=timezone.now(), time_limit_s=int(3600 * hours))
    attempt_make(job, gpus=(gpu_make(node_make("node01")),), mib=12_000)


def lines(answer: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]


def test_what_starts_is_told_where_and_nothing_is_written(api: Api) -> None:
    gpu_make(node_make("node01"))
    status, told = api.post("/jobs/estimate", {"argv": ["true"], "gpu_mem": "4G"})
    assert (status, told["verdict"], told["place"], told["alternatives"]) == (200, "starts", "node01 gpu0", [])
    assert told["start"] == "Starts now."
    assert not Job.objects.exists()


def test_what_waits_is_told_until_when_and_what_would_start_sooner(api: Api) -> None:
    half_full()
    status, told = api.post("/jobs/estimate", {"argv": ["true"], "gpu_mem": "16G"})
    assert (status, told["verdict"], told["position"]) == (200, "waits", 1)
    # The whole card is free when the only job on it has ended.
    assert told["p50"] == told["params"]["until_at"]
    assert [one["set"] for one in told["alternatives"]] == [{"gpu_mem": mem, "gpu_mem_mib": None} for mem in ("12G", "6G")]


def test_an_alternative_that_is_told_to_start_starts_there(api: Api) -> None:
    half_full()
    job_make(gpu_mem_mib=16_384)  # somebody waits as well
    body = {"argv": ["true"], "gpu_mem": "16G", "time": "1:00:00"}  # short enough to pass
    told = api.post("/jobs/estimate", body)[1]["alternatives"]
    assert told
    for one in told:
        with transaction.atomic():
            job = api.post("/jobs/submit", {**body, **{key: value for key, value in one["set"].items() if value is not None}})[1]
            pass_run()
            part = Slice.objects.get(rank__attempt__job=job["id"])
            assert (f"{part.rank.node.name} gpu{part.gpu.index}", one["start"]) == (one["place"], "Starts now.")
            transaction.set_rollback(True)


def test_the_command_of_an_alternative_asks_for_what_it_sets(api: Api) -> None:
    half_full()
    told = api.post("/jobs/estimate", {"argv": ["echo", "a b"], "gpu_mem": "16G", "time": "1:00:00"})[1]
    assert shlex.split(told["alternatives"][0]["command"]) == [
        *("nebula-ctl", "submit", "--gpu-mem", "12G", "--time", "1:00:00", "--", "echo", "a b")
    ]


def test_a_stream_tells_the_estimate_first(api: Api) -> None:
    half_full()
    answer = api.call("POST", "/jobs/estimate?stream=1", {"argv": ["true"], "gpu_mem": "16G"}, **{"Accept-Language": "zh-hans"})
    assert answer["Content-Type"] == "application/x-ndjson"
    told = lines(answer)
    assert [line["type"] for line in told] == ["estimate", "alternative", "alternative", "end"]
    assert told[0]["verdict"] == "waits"
    assert "现在开始" in told[1]["start"]  # the reader's language lasts to the end of the stream
    assert told[-1]["count"] == 2


@pytest.mark.parametrize(
    ("body", "verdict"),
    [({"gpu_mem": "96G"}, "never"), ({"gpu_count": 2}, "never"), ({"gpu_mem": "4G", "hold": True}, "held")],
)
def test_the_other_verdicts(api: Api, body: dict[str, Any], verdict: str) -> None:
    gpu_make(node_make("node01"))
    status, told = api.post("/jobs/estimate", {"argv": ["true"], **body})
    assert (status, told["verdict"], told["p50"], told["alternatives"]) == (200, verdict, None, [])
    assert told["text"]


def test_a_limit_that_is_reached_is_told_as_a_verdict(api: Api, lin: User) -> None:
    gpu_make(node_make("node01"))
    type(lin.quota).objects.filter(user=lin).update(max_active_jobs=1, active_jobs=1)
    status, told = api.post("/jobs/estimate", {"argv": ["true"]})
    assert (status, told["verdict"], told["code"]) == (200, "refused", "quota_exceeded")


def test_fewer_cards_are_offered_to_who_may_hold_no_more(api: Api, lin: User) -> None:
    node_make("node01", cards=2)
    type(lin.quota).objects.filter(user=lin).update(max_cards=1)
    told = api.post("/jobs/estimate", {"argv": ["true"], "gpu_count": 2})[1]
    assert (told["verdict"], told["code"], told["p50"]) == ("waits", "cards_exceeded", None)
    assert [(one["set"], one["place"]) for one in told["alternatives"]] == [({"gpu_count": 1}, "node01 gpu0")]


@pytest.mark.parametrize("body", [{}, {"argv": ["true"], "gpu_mem": "lots"}, {"argv": ["true"], "gpus": 1}])
def test_what_a_submit_can_not_read_an_estimate_can_not_either(api: Api, body: dict[str, Any]) -> None:
    status, error = api.post("/jobs/estimate", body)
    assert (status, error["code"]) == (400, "invalid")


def test_a_stream_that_is_no_truth_value_is_refused(api: Api) -> None:
    status, error = api.post("/jobs/estimate?stream=perhaps", {"argv": ["true"]})
    assert (status, list(error["fields"])) == (400, ["stream"])


def test_a_waiting_job_is_told_what_would_start_sooner_in_its_place(api: Api, lin: User) -> None:
    half_full()
    job = job_make(lin, gpu_mem_mib=16_384, argv=["python", "train.py"], name="mine", constraints={"vendor": "nvidia"})
    status, told = api.get(f"/jobs/{job.pk}/alternatives")
    assert (status, [one["start"] for one in told]) == (200, ["Starts now.", "Starts now."])
    assert "--gpu-mem 12G" in told[0]["command"]
    assert "--vendor nvidia" in told[0]["command"]
    assert told[0]["command"].endswith("-- python train.py")
    streamed = lines(api.call("GET", f"/jobs/{job.pk}/alternatives?stream=1"))
    assert [line["type"] for line in streamed] == ["alternative", "alternative", "end"]


def test_a_held_job_has_no_alternatives(api: Api, lin: User) -> None:
    half_full()
    assert api.get(f"/jobs/{job_make(lin, gpu_mem_mib=16_384, held=True).pk}/alternatives") == (200, [])


def test_when_too_many_are_made_at_once_it_says_so(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    half_full()

    def busy(*args: Any, **kwargs: Any) -> Estimate:
        raise EstimatesBusy

    monkeypatch.setattr("jobs.estimate_api.estimate_of", busy)
    status, error = api.post("/jobs/estimate", {"argv": ["true"], "gpu_mem": "16G"})
    assert (status, error["code"]) == (503, "estimates_busy")


def test_a_long_queue_is_asked_in_a_process_of_its_own(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    half_full()
    body = {"argv": ["true"], "gpu_mem": "16G"}
    here = api.post("/jobs/estimate", body)[1]
    monkeypatch.setattr(whatif, "INLINE_JOBS", 0)
    there = api.post("/jobs/estimate", body)[1]
    for told in (here, there):
        for one in (told, *told["alternatives"]):
            one.pop("age_s", None)
            # Both are asked some seconds apart: what starts now starts at another second.
            one["p50"] = one["p90"] = None
    assert there["alternatives"] == here["alternatives"] != []
    assert there["verdict"] == here["verdict"]


def test_each_user_asks_only_so_often(api: Api, settings: Any) -> None:
    settings.THROTTLE_ESTIMATE = "1/60"
    gpu_make(node_make("node01"))
    assert api.post("/jobs/estimate", {"argv": ["true"]})[0] == 200
    assert api.post("/jobs/estimate", {"argv": ["true"]})[0] == 429
