"""The real pass on a real database decides what the simulator decides: the same jobs, at the same moments, on the same cards."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pytest_django.fixtures import Settings

from jobs import snapshot
from jobs.scheduler import Drain, simulate
from tests.jobs.day import START, Day, Decision, past_make, people_make, pool_make, workload
from tests.jobs.lab import Lab

pytestmark = pytest.mark.django_db


def day_compare(
    *, jobs: int, day_s: int, load: float, seed: int, check_every: int, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> Day:
    settings.POLICY_WEIGHT_PER_CARD_HOUR, settings.POLICY_WEIGHT_POWER = 0.5, 1.0  # what was used in a few hours shall weigh, too
    monkeypatch.setattr("jobs.history.MIX_S", 1e9)  # a simulation's mix is the one that it begins with
    lab = Lab(now=START)
    nodes, people = pool_make(lab), people_make(lab)
    history = past_make(lab, people, jobs=8, seed=seed)
    begin = snapshot.build(START)
    drained = (day_s // 3, day_s // 2)
    day = Day(lab, workload(people, jobs=jobs, seed=seed, day_s=day_s, load=load), (nodes[1], *drained))
    day.run(check_every=check_every)

    drain = Drain(
        node=nodes[1].pk, begin=(START + timedelta(seconds=drained[0])).timestamp(), end=(START + timedelta(seconds=drained[1])).timestamp()
    )
    trace = simulate(day.arrivals(), begin, snapshot.policy_current(), history=history, drains=[drain])
    told = [
        Decision(
            run.job,
            run.start,
            tuple(
                (rank.index, rank.node, tuple((grant.gpu, grant.mib, grant.exclusive) for grant in rank.grants))
                for rank in run.placement.ranks
            ),
        )
        for run in trace.runs
    ]
    done = day.decisions()
    assert len(done) == jobs
    assert trace.waiting == ()
    for real, simulated in zip(done, sorted(told, key=lambda item: (item.at, item.job)), strict=True):
        assert real == simulated, f"{real.at - START.timestamp():.0f} s after the start"
    return day


def test_the_real_pass_decides_as_the_simulator(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    day = day_compare(jobs=50, day_s=3600, load=1.6, seed=3, check_every=60, monkeypatch=monkeypatch, settings=settings)
    waited = [done.at - START.timestamp() - day.jobs[done.job].at for done in day.decisions()]
    assert sum(wait > 60 for wait in waited) > len(waited) / 3, "with nobody waiting there would be nothing to decide"


# Each step commits, as on an installation. In one transaction PostgreSQL could throw away no old version of a row, and each update of a
# card or a counter would have to walk past all those before it.
@pytest.mark.soak
@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(1800)
def test_a_day_of_2000_jobs_is_decided_as_the_simulator_does(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    day_compare(jobs=2000, day_s=86_400, load=1.1, seed=2, check_every=400, monkeypatch=monkeypatch, settings=settings)
