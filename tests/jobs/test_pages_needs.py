"""Why a job waits that asks something of its machines: the sentences on its page, in both languages, in the reader's units."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client

from jobs.models import Job
from tests.jobs.lab import Lab
from tests.rest import no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
R2 = {"labels": {"rack": "r2"}}
#: what is asked for → why it waits, and what is said of node big and of node old.
WAITS = {
    "label": (R2 | {"cpu_milli": 1000}, "in use", ("in use", "Asks for the label rack=r2; this node has r1.")),
    "cuda": ({"cuda_min": "12.4"}, "in use", ("in use", "Asks for CUDA 12.4 or newer; this node runs 12.0.")),
    "driver": ({"driver_min": "550"}, "in use", ("in use", "Asks for driver 550 or newer; this node has 525.60.")),
    "node_cpu": ({"cpu_milli": 7500}, "", ("", "Needs 7.5 CPU cores; this node has 4.")),
    "node_memory": ({"host_mem_mib": 65_536}, "", ("", "Needs 64 GiB of host memory; this node has 31.2 GiB.")),
    "host_cpu": (
        R2 | {"cpu_milli": 2500, "_cards": 0},
        "Needs 2.5 CPU cores on each node; the most that a suitable node has free is 2 (big).",
        ("Needs 2.5 CPU cores on each node; the most that a suitable node has free is 2 (big).", ""),
    ),
    "host_memory": (
        R2 | {"host_mem_mib": 32_768, "_cards": 0},
        "Needs 32 GiB of host memory on each node; the most that a suitable node has free is 29.8 GiB (big).",
        ("Needs 32 GiB of host memory on each node; the most that a suitable node has free is 29.8 GiB (big).", ""),
    ),
}


def told(page: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", page))).replace("\xa0", " ")


def test_each_sentence_about_machines_stands_on_the_page_in_both_languages() -> None:
    lab = Lab()
    facts = {"cuda_version": "12.4", "driver_version": "550.54", "labels": {"rack": "r2"}, "cpu_cores": 8, "memory_mib": 96_000}
    lab.node("big", 24_564, **facts)
    lab.node("old", 24_564, cuda_version="12.0", driver_version="525.60", labels={"rack": "r1"}, cpu_cores=4, memory_mib=32_000)
    first = lab.submit(constraints=R2 | {"cpu_milli": 6000, "host_mem_mib": 65_536})
    lab.schedule()
    assert Job.objects.get(pk=first.pk).state == "STARTING"
    lab.submit()  # the other card
    lab.schedule()
    jobs = {}
    for name, (asked, _why, _nodes) in WAITS.items():
        constraints = {key: value for key, value in asked.items() if key != "_cards"}
        jobs[name] = lab.submit(name=name, constraints=constraints, gpu_count=asked.get("_cards", 1))
    lab.schedule()
    client = Client()
    client.force_login(first.owner)
    for name, (_asked, why, (on_big, on_old)) in WAITS.items():
        page = told(client.get(f"/jobs/{jobs[name].pk}/").content.decode())
        for sentence in (why, on_big, on_old):
            assert sentence in page, (name, page)
        chinese = told(client.get(f"/jobs/{jobs[name].pk}/", headers={"Accept-Language": "zh-hans"}).content.decode())
        for sentence in {why, on_big, on_old} - {"", "in use"}:
            assert sentence not in chinese
            for number in re.findall(r"[0-9][0-9.]*[0-9]|[0-9]", sentence):
                assert number in chinese, (name, number)


def test_a_version_that_nobody_knows_is_called_unknown() -> None:
    lab = Lab()
    lab.node("bare", 24_564)
    lab.node("big", 24_564, cuda_version="12.4")
    lab.submit(constraints={"cuda_min": "12.4"})
    lab.schedule()
    job = lab.submit(constraints={"cuda_min": "12.4"})
    client = Client()
    client.force_login(job.owner)
    page = told(client.get(f"/jobs/{job.pk}/").content.decode())
    assert "Asks for CUDA 12.4 or newer; this node does not tell what it runs." in page


def test_a_job_that_wants_nobody_beside_it_holds_the_whole_card_and_its_page_says_so() -> None:
    lab = Lab()
    lab.node("node01", 24_564, labels={"rack": "r2", "a": "1", "zz": ""})
    job = lab.submit(gpu_mem_mib=4096, constraints={"exclusive": True})
    other = lab.submit(gpu_mem_mib=4096)
    lab.schedule()
    (part,) = lab.slices(job)
    assert (part.mib, part.is_exclusive, part.share) == (24_564, True, 1.0)
    assert lab.slices(other) == []
    client = Client()
    client.force_login(job.owner)
    assert "1 × 4 GiB, alone on its card" in told(client.get(f"/jobs/{job.pk}/request/").content.decode())
    lab.check()
