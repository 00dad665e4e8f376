"""Launches that a node spoils: the job waits a little longer each time and goes elsewhere, and the node is taken out of service."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import Job
from nodes.launches import SPOILS
from nodes.services import node_cordon, node_resume
from nodes.wording import advice_text, cordon_text
from quotas.models import AuditEntry
from tests.factories import user_make
from tests.jobs.lab import Lab

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lab() -> Lab:
    return Lab()


def spoil(lab: Lab, job: Job, *, how: str = "failed") -> str:
    """The present launch of the job fails by its node's fault; the name of that node."""
    node = lab.rank(job).node
    if how == "failed":
        lab.report(job, "LAUNCH_FAILED", launch_error="internal", launch_detail="No space left on device", released=True)
    else:  # the agent died, and the next one says that nothing was started
        lab.exit(job, None, cause="never_started")
    job.refresh_from_db()
    return node.name


def tried(lab: Lab, job: Job) -> bool:
    return job.pk in lab.schedule(lab.now).started


@pytest.mark.parametrize("how", ["failed", "died"])
def test_it_goes_to_another_node_after_a_pause(lab: Lab, how: str) -> None:
    lab.node("n1", 24564)
    job = lab.submit()
    assert tried(lab, job)
    lab.node("n2", 24564)
    assert spoil(lab, job, how=how) == "n1"
    assert not tried(lab, job)
    job.refresh_from_db()
    assert (job.wait_code, job.wait_params) == ("backing_off", {"times": 1, "pause_s": 5})
    lab.later(5)
    assert tried(lab, job)
    assert lab.rank(job).node.name == "n2"


def test_the_pauses_grow(lab: Lab) -> None:
    node = lab.node("n1", 24564)
    job = lab.submit()
    Job.objects.update(max_requeues=9)
    for pause in (5, 30, 120, 300, 300):
        assert tried(lab, job)
        spoil(lab, job)
        node_resume(node=node, by=None)
        lab.later(pause - 1)
        assert not tried(lab, job)
        lab.later(1)


def test_a_node_that_spoils_three_launches_in_a_row_is_taken_out_of_service(lab: Lab, settings: Any) -> None:
    node = lab.node("n1", *[24564] * 4)
    jobs = [lab.submit() for _ in range(3)]
    lab.schedule(lab.now)
    for number, job in enumerate(jobs, 1):
        spoil(lab, job)
        node.refresh_from_db()
        assert (node.cordoned, node.spoilt_launches) == (number == 3, number)
    assert (node.cordon_reason, node.cordoned_by) == (SPOILS, None)
    assert cordon_text(node.cordon_reason) == advice_text(SPOILS) != SPOILS
    assert AuditEntry.objects.filter(action="node.drained").latest("pk").params["launches"] == 3
    # What it means for jobs is said.
    lab.later(1000)
    lab.schedule(lab.now)
    jobs[0].refresh_from_db()
    assert (jobs[0].state, jobs[0].wait_code) == ("WAITING", "node_cordoned")
    # The undo begins anew.
    node_resume(node=node, by=user_make(is_staff=True))
    node.refresh_from_db()
    assert (node.cordoned, node.spoilt_launches) == (False, 0)


def test_a_program_that_ran_begins_the_count_anew(lab: Lab) -> None:
    node = lab.node("n1", *[24564] * 4)
    jobs = [lab.submit() for _ in range(4)]
    lab.schedule(lab.now)
    spoil(lab, jobs[0])
    spoil(lab, jobs[1])
    lab.report(jobs[2], "RUNNING")
    lab.exit(jobs[2], 1)
    spoil(lab, jobs[3])
    node.refresh_from_db()
    assert (node.cordoned, node.spoilt_launches) == (False, 1)


def test_what_is_the_users_to_mend_counts_for_nobody(lab: Lab) -> None:
    node = lab.node("n1", *[24564] * 4)
    for job in [lab.submit() for _ in range(4)]:
        lab.schedule(lab.now)
        lab.report(job, "LAUNCH_FAILED", launch_error="exec", launch_detail="No such file", released=True)
    node.refresh_from_db()
    assert (node.cordoned, node.spoilt_launches) == (False, 0)


def test_an_admins_cordon_keeps_its_reason(lab: Lab) -> None:
    node = lab.node("n1", *[24564] * 4)
    jobs = [lab.submit() for _ in range(3)]
    lab.schedule(lab.now)
    node_cordon(node=node, by=user_make(is_staff=True), reason="new fans")
    for job in jobs:
        spoil(lab, job)
    node.refresh_from_db()
    assert node.cordon_reason == "new fans"


def test_it_can_be_switched_off(lab: Lab, settings: Any) -> None:
    settings.CORDON_AFTER_LAUNCHES = 0
    node = lab.node("n1", *[24564] * 4)
    jobs = [lab.submit() for _ in range(4)]
    lab.schedule(lab.now)
    for job in jobs:
        spoil(lab, job)
    node.refresh_from_db()
    assert not node.cordoned
