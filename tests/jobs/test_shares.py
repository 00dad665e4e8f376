"""A share of a GPU as its memory: ``--gpu-mem 0.5``."""

from __future__ import annotations

from fractions import Fraction

import pytest
from django.test import Client

from jobs.models import Job
from jobs.parsing import Unreadable, size_or_share
from jobs.shares import share_mib
from tests.factories import gpu_make, node_make, user_make
from tests.jobs.lab import Lab
from tests.rest import Api, no_redis  # noqa: F401


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("0.5", Fraction(1, 2)),
        (" 0.25 ", Fraction(1, 4)),
        ("1.0", Fraction(1)),
        ("0.333333", Fraction(333333, 10**6)),
        ("12G", 12_288),
        (1, 1),
    ],
)
def test_a_point_without_a_unit_is_a_share(text: str | int, read: Fraction | int) -> None:
    assert size_or_share(text) == read


@pytest.mark.parametrize("text", ["0.0", "1.000001", "1.5", "24.0"])
def test_a_share_is_above_nothing_and_at_most_the_whole(text: str) -> None:
    with pytest.raises(Unreadable) as caught:
        size_or_share(text)
    assert caught.value.code == "share_range"


def test_a_share_is_of_one_size_or_of_none() -> None:
    assert share_mib(Fraction(1, 2), {24_576}) == 12_288
    assert share_mib(Fraction(1), {24_576}) == 24_576
    assert share_mib(Fraction(1, 3), {24_576}) == 8192
    assert share_mib(Fraction(1, 10**6), {1024}) == 1
    for sizes, code in ((set(), "share_no_gpu"), ({24_576, 81_920}, "share_many_sizes")):
        with pytest.raises(Unreadable) as caught:
            share_mib(Fraction(1, 2), sizes)
        assert caught.value.code == code


@pytest.fixture
def api(db: None) -> Api:
    gpu_make(node_make("a"), model="NVIDIA GeForce RTX 4090", mib=24_564)
    gpu_make(node_make("b"), model="NVIDIA A100-SXM4-80GB", mib=81_920)
    return Api(user_make())


def test_half_of_a_named_model_is_stored_as_mib(api: Api) -> None:
    for model, mib in (("4090", 12_288), ("A100", 40_960)):
        status, job = api.post("/jobs/submit", {"argv": ["true"], "gpu_mem": "0.5", "constraints": {"model": model}})
        assert (status, job["gpu_mem_mib"]) == (201, mib)


def test_in_a_pool_of_several_sizes_a_model_must_be_named(api: Api) -> None:
    status, error = api.post("/jobs/submit", {"argv": ["true"], "gpu_mem": "0.5"})
    assert status == 400
    assert error["fields"]["gpu_mem"] == [
        "0.5 of a GPU is not one size: suitable GPUs here have 24 GiB, 80 GiB. Name a model, or write a size such as 12G."
    ]
    status, error = api.post("/jobs/submit", {"argv": ["true"], "gpu_mem": "0.5", "constraints": {"vendor": "intel"}})
    assert status == 400
    assert "No GPU here is of this kind" in error["fields"]["gpu_mem"][0]
    assert not Job.objects.exists()


def test_two_halves_share_a_card_that_reports_a_little_less(db: None) -> None:
    lab = Lab()
    lab.node("n1", 24_564)
    api = Api(lab.user())
    jobs = [api.post("/jobs/submit", {"argv": ["true"], "gpu_mem": "0.5"})[1]["id"] for _ in range(2)]
    lab.schedule()
    assert [Job.objects.get(pk=pk).state for pk in jobs] == ["STARTING", "STARTING"]
    lab.check()


def test_the_form_still_reads_a_number_with_the_unit_beside_it(client: Client, db: None) -> None:
    Lab().node("n1", 24_564)
    client.force_login(user_make())
    client.post("/jobs/new/", {"command": "true", "kind": "line", "gpu_count": "1", "gpu_mem": "4.5", "mem_unit": "G", "nodes": "1"})
    assert Job.objects.get().gpu_mem_mib == 4608
