"""Limits by card model: a job takes another model, waits with a reason, or is refused where it could never start."""

from __future__ import annotations

import pytest

from jobs.errors import QuotaExceeded
from jobs.forecast import forecast
from jobs.models import Job, Slice
from jobs.requests import JobRequest
from jobs.services.schedule import pass_run
from nodes.models import Gpu
from quotas.models import Quota
from quotas.services import project_personal
from tests.jobs.lab import Lab, state
from tests.threads import in_threads

pytestmark = pytest.mark.django_db


def pool(lab: Lab, *, a100: int, other: int) -> None:
    node = lab.node("big", *[81920] * a100)
    Gpu.objects.filter(node=node).update(model="NVIDIA A100-SXM4-80GB")
    lab.node("small", *[24564] * other)


def models_held(job: Job) -> list[str]:
    return list(Slice.objects.filter(rank__attempt__job=job).values_list("gpu__model", flat=True))


def test_a_job_that_asks_for_more_of_a_model_than_it_may_ever_hold_is_refused() -> None:
    lab = Lab()
    pool(lab, a100=4, other=2)
    owner = lab.user()
    Quota.objects.filter(user=owner).update(model_caps={"a100": 2})
    with pytest.raises(QuotaExceeded) as caught:
        lab.submit(owner=owner, gpu_count=3, constraints={"model": "A100"})
    error = caught.value
    assert (error.http_status, error.params["what"], error.params["limit"], error.params["needed"]) == (403, "model_cards", 2, 3)
    assert not Job.objects.exists()
    assert Quota.objects.get(user=owner).active_jobs == 0
    lab.submit(owner=owner, gpu_count=2, constraints={"model": "A100"})


def test_at_the_limit_of_a_model_others_are_taken_and_then_it_waits_with_the_numbers() -> None:
    lab = Lab()
    pool(lab, a100=3, other=1)
    owner = lab.user()
    Quota.objects.filter(user=owner).update(model_caps={"a100": 2})
    first = lab.submit(owner=owner, gpu_count=2, constraints={"model": "A100"})
    lab.schedule()
    assert len(models_held(first)) == 2
    anything = lab.submit(owner=owner)
    an_a100 = lab.submit(owner=owner, constraints={"model": "A100"})
    lab.schedule()
    assert models_held(anything) == ["RTX 4090"]
    assert state(an_a100) == "WAITING"
    assert (an_a100.wait_code, an_a100.wait_params) == ("model_cards_exceeded", {"model": "a100", "needed": 1, "room": 0, "limit": 2})
    asked = JobRequest(name="x", argv=("true",), project=project_personal(owner), constraints={"model": "A100"})
    told = forecast(asked, owner=owner, now=lab.now)
    assert (told.kind, told.code) == ("waits", "model_cards_exceeded")
    lab.report(first, "RUNNING")
    lab.exit(first)
    lab.schedule()
    assert models_held(an_a100) == ["NVIDIA A100-SXM4-80GB"]
    lab.check()


def test_what_only_the_limited_model_can_hold_waits_and_is_not_called_impossible() -> None:
    lab = Lab()
    pool(lab, a100=2, other=1)
    owner = lab.user()
    Quota.objects.filter(user=owner).update(model_caps={"a100": 1})
    lab.submit(owner=owner, gpu_mem_mib=81920)
    lab.schedule()
    big = lab.submit(owner=owner, gpu_mem_mib=61440)
    lab.schedule()
    assert (state(big), big.wait_code) == ("WAITING", "model_cards_exceeded")


@pytest.mark.django_db(transaction=True)
def test_passes_at_once_never_pass_a_limit_by_model() -> None:
    lab = Lab()
    pool(lab, a100=6, other=0)
    one, two = lab.user("one"), lab.user("two")
    Quota.objects.filter(user=one).update(model_caps={"a100": 2})
    Quota.objects.create(project=project_personal(two), model_caps={"a100-sxm4": 1})
    for owner in (one, two):
        for _ in range(4):
            lab.submit(owner=owner)
    in_threads(8, lambda _: pass_run())
    pass_run()
    held = {owner: Slice.objects.filter(rank__attempt__job__owner=owner).count() for owner in (one, two)}
    assert held == {one: 2, two: 1}
    lab.check()


def test_owners_without_such_limits_cost_a_pass_no_query(django_assert_num_queries: object) -> None:
    from jobs.model_caps import room_read

    with django_assert_num_queries(0):  # type: ignore[operator]
        assert not room_read({}, {})
