"""What a job used of what it held, what that says of the next one's size, and clones that take it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from jobs.efficiency import efficiency_measure, right_size, waste
from jobs.models import Job
from nodes.models import GpuSample, Level, RankSample
from quotas.models import JobUse, User
from quotas.statements import visible_to
from tests.factories import user_make
from tests.jobs.lab import Lab
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
STEP = 30


def run(
    lab: Lab, owner: User, *, util: list[int | None], own: int | None = 2000, used: int | None = 2600, code: int = 0, **ask: Any
) -> Job:
    """A job that ran for a sample of each of ``util``, and what its card and its processes were seen to use."""
    job = lab.submit(owner=owner, now=lab.now, **ask)
    lab.schedule(lab.now)
    lab.report(job, "RUNNING")
    begin = int(lab.now.timestamp())
    part = lab.slices(job)[0]
    for number, value in enumerate(util):
        at = begin + number * STEP
        GpuSample.objects.create(gpu_id=part.gpu_id, level=Level.RAW, at=at, util_pct=value, used_mib=used)
        if own is not None:
            RankSample.objects.create(rank=part.rank.key, gpu_id=part.gpu_id, level=Level.RAW, at=at, used_mib=own + number)
    lab.later(len(util) * STEP)
    lab.exit(job, code)
    return job


@pytest.fixture
def lab() -> Lab:
    lab = Lab()
    lab.node("n1", 24_564)
    return lab


def measured(lab: Lab, job: Job) -> JobUse:
    lab.later(120)
    efficiency_measure(now=lab.now)
    return JobUse.objects.get(job_id=job.pk)


def test_use_and_peak_are_measured_once_after_the_end(lab: Lab) -> None:
    owner = lab.user()
    job = run(lab, owner, util=[80, 60, 0, 0], own=9000)
    assert efficiency_measure(now=lab.now) == 0  # the last samples may still come
    use = measured(lab, job)
    assert (use.asked_mib, use.peak_mib, use.util_pct, use.idle_share, use.is_shared) == (24_564, 9003, 35, 0.5, False)
    assert (use.gpu_s, use.idle_gpu_s, use.is_success, use.samples) == (120, 60, True, 4)
    assert efficiency_measure(now=lab.now) == 0
    told = Api(owner).get(f"/jobs/{job.pk}")[1]["efficiency"]
    assert (told["peak_mib"], told["util_pct"], told["idle_pct"], told["asked_mib"]) == (9003, 35, 50, 24_564)


def test_what_nobody_told_is_not_known_and_never_0(lab: Lab) -> None:
    owner = lab.user()
    job = run(lab, owner, util=[None, None], own=None, used=None)
    use = measured(lab, job)
    assert (use.peak_mib, use.util_pct, use.idle_share, use.idle_gpu_s, use.samples) == (None, None, None, None, 0)
    browser = Client()
    browser.force_login(owner)
    assert "n/a" in browser.get(f"/jobs/{job.pk}/").content.decode()
    assert waste(visible_to(owner), begin=lab.now - timedelta(days=1), end=lab.now, by="user") == []


def test_memory_of_a_whole_card_stands_in_for_its_processes_and_of_a_shared_one_does_not(lab: Lab) -> None:
    owner = lab.user()
    assert measured(lab, run(lab, owner, util=[50], own=None, used=7000)).peak_mib == 7000
    shared = measured(lab, run(lab, owner, util=[50], own=None, used=7000, gpu_mem_mib=4096))
    assert (shared.peak_mib, shared.is_shared, shared.util_pct) == (None, True, 50)


def test_five_runs_that_peaked_low_suggest_a_smaller_size(lab: Lab) -> None:
    owner = lab.user()
    ask = {"owner": owner.pk, "name": "test", "gpu_count": 1, "gpu_mem_mib": 24_576, "min_slice_mib": 4096}
    for number, peak in enumerate((9000, 9500, 8000, 9523, 9100, 20_000)):  # the first falls out of the last five
        run(lab, owner, util=[50], own=peak if number != 5 else 9200, gpu_mem_mib=24_564)
        measured(lab, Job.objects.latest("pk"))
        if number < 2:
            assert right_size(**ask) is None
    advice = right_size(**ask)
    assert advice is not None
    # 9523 × 1.15 = 10,951 MiB → 11 GiB
    assert (advice.runs, advice.peak_mib, advice.suggested_mib) == (5, 9523, 11 * 1024)
    assert right_size(**{**ask, "gpu_mem_mib": 12_288}) is None  # little to save
    assert right_size(**{**ask, "name": "other"}) is None
    assert right_size(**{**ask, "gpu_count": 0}) is None
    assert right_size(**{**ask, "owner": user_make().pk}) is None


def test_runs_that_failed_say_nothing_of_the_size(lab: Lab) -> None:
    owner = lab.user()
    for _ in range(4):
        run(lab, owner, util=[50], own=500, code=1)
        measured(lab, Job.objects.latest("pk"))
    assert right_size(owner=owner.pk, name="test", gpu_count=1, gpu_mem_mib=24_576, min_slice_mib=4096) is None


def test_waste_is_told_by_person_and_by_project(lab: Lab) -> None:
    anna, ben = lab.user("anna"), lab.user("ben")
    measured(lab, run(lab, anna, util=[0, 0, 0, 90]))
    measured(lab, run(lab, ben, util=[0, 90]))
    measured(lab, run(lab, ben, util=[90, 90]))
    boss = user_make(is_staff=True)
    spans = {"begin": lab.now - timedelta(days=1), "end": lab.now}
    rows = waste(visible_to(boss), by="user", **spans)
    assert [(row["name"], round(row["idle_h"] * 3600), round(row["gpu_h"] * 3600), row["jobs"]) for row in rows] == [
        ("anna@lab.example", 90, 120, 1),
        ("ben@lab.example", 30, 120, 2),
    ]
    assert [row["name"] for row in waste(visible_to(ben), by="project", **spans)] == ["ben"]


# --- clones -------------------------------------------------------------------------------------------------------------


def thrice(lab: Lab, owner: User, **ask: Any) -> Job:
    for _ in range(3):
        job = run(lab, owner, util=[50], own=4500, **ask)
        measured(lab, job)
    return job


def test_a_clone_by_rest_says_what_earlier_runs_peaked_at_and_takes_it_when_told(lab: Lab) -> None:
    owner = lab.user()
    job = thrice(lab, owner, gpu_mem_mib=20_480, time_limit_s=3600, env={"SEED": "7", "WANDB_TOKEN": "hunter2"})
    api = Api(owner)
    status, found = api.get(f"/jobs/{job.pk}/clone")
    assert status == 200
    assert (found["body"]["gpu_mem"], found["body"]["time"], found["body"]["argv"]) == ("20G", "1:00:00", ["true"])
    assert (found["left_out"], found["body"]["env"]) == (["WANDB_TOKEN"], {"SEED": "7"})
    assert "peaked at 4.4 GiB" in found["advice"]["text"].replace("\u00a0", " ")
    status, same = api.post(f"/jobs/{job.pk}/clone", {})
    assert (status, same["gpu_mem_mib"], same["time_limit_s"], same["env"]) == (201, 20_480, 3600, {"SEED": "7", "WANDB_TOKEN": "hunter2"})
    status, small = api.post(f"/jobs/{job.pk}/clone", {"right_size": True, "time_limit_s": 60, "env": {"SEED": "8"}})
    # 4500 × 1.15 = 5175 MiB → 6 GiB
    assert (status, small["gpu_mem_mib"], small["time_limit_s"], small["env"]["SEED"]) == (201, 6 * 1024, 60, "8")
    status, own = api.post(f"/jobs/{job.pk}/clone", {"right_size": True, "gpu_mem": "10G"})
    assert own["gpu_mem_mib"] == 10 * 1024
    for wrong in ({"colour": "red"}, {"right_size": "yes"}, {"gpu_mem": "much"}):
        assert api.post(f"/jobs/{job.pk}/clone", wrong)[0] == 400


def test_a_repeated_clone_with_one_key_is_one_job(lab: Lab) -> None:
    owner = lab.user()
    job = run(lab, owner, util=[50])
    api = Api(owner)
    first = api.post(f"/jobs/{job.pk}/clone", {}, **{"Idempotency-Key": "k1"})
    again = api.post(f"/jobs/{job.pk}/clone", {}, **{"Idempotency-Key": "k1"})
    assert (first[0], again[0], first[1]["id"]) == (201, 200, again[1]["id"])


def test_of_anothers_job_no_value_is_copied_and_staff_are_told_which_to_give(lab: Lab) -> None:
    job = run(lab, lab.user(), util=[50], env={"SEED": "7"})
    boss = Api(user_make(is_staff=True))
    assert boss.get(f"/jobs/{job.pk}/clone")[1]["advice"] is None
    status, error = boss.post(f"/jobs/{job.pk}/clone", {})
    assert (status, "SEED" in error["message"]) == (400, True)
    status, made = boss.post(f"/jobs/{job.pk}/clone", {"env": {"SEED": "1"}})
    assert (status, made["env"]) == (201, {"SEED": "1"})
    assert Api(user_make()).get(f"/jobs/{job.pk}/clone")[0] == 404


def test_the_form_of_a_clone_says_so_and_its_link_sets_the_size(lab: Lab) -> None:
    owner = lab.user()
    job = thrice(lab, owner, gpu_mem_mib=20_480)
    browser = Client()
    browser.force_login(owner)
    text = browser.get(f"/jobs/new/?from=job:{job.pk}").content.decode()
    assert "peaked at 4.4\u00a0GiB" in text
    assert "Ask 6 GiB" in text
    changed = browser.get(f"/jobs/new/?from=job:{job.pk}&gpu_mem=6&mem_unit=G").content.decode()
    assert 'name="gpu_mem" inputmode="decimal" autocomplete="off" placeholder="whole card" value="6"' in changed
