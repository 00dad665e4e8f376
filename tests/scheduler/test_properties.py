"""What holds for every snapshot: never oversubscribed, each job answered once, the same answer in whatever order it is asked."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.scheduler import Gpu, Job, Link, Node, Policy, Request, Running, Slice, Snapshot, fits, grant_for, never_reason, plan
from jobs.scheduler.types import Grant
from tests.scheduler.cases import hosts_after, plan_check
from tests.scheduler.test_reasons import check_params

TOTALS = (None, 8_188, 16_376, 24_564, 24_576, 81_559)
SIZES = (None, 1, 4_095, 4_096, 8_192, 12_288, 12_289, 16_384, 24_576, 24_577, 40_960)
KINDS = ("nvlink", "pcie_switch", "pcie_host", "numa", "system")
POLICIES = (
    Policy(),
    Policy(slicing_rules=False),
    Policy(whole_above=0.75, max_slices=2, min_slice_mib=1),
    Policy(strategy="first-fit"),
    Policy(strategy="best-fit", keeps_for_head=False),
    Policy(strategy="load-balance"),
)
#: Refused for others' sake, or by a limit that ``fits`` does not look at.
FOR_OTHERS = {"blocked_by", "above_share", "queue_full", "cpu_busy"}


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes, slices, running = [], [], []
    for number in range(1, draw(st.integers(0, 4)) + 1):
        gpus = []
        for index in range(draw(st.integers(0, 4))):
            gpu = Gpu(
                id=number * 100 + index,
                uuid=f"GPU-{number}-{index}",
                index=index,
                model=draw(st.sampled_from(("RTX 4090", "A100"))),
                total_mib=draw(st.sampled_from(TOTALS)),
                is_schedulable=draw(st.integers(0, 5)) > 0,
                foreign_mib=draw(st.sampled_from((0, 0, 0, 512, 513, 9_000))),
                max_slices=draw(st.sampled_from((4, 4, 2))),
                temp_c=draw(st.sampled_from((None, 30, 70))),
                util_pct=draw(st.sampled_from((None, 0, 95))),
            )
            gpus.append(gpu)
            # What lives there was granted by the same rules.
            for size in draw(st.lists(st.sampled_from(SIZES), max_size=3)):
                mine = [part for part in slices if part.gpu == gpu.id]
                grant = grant_for(Request(gpu_mem_mib=size), replace(gpu, is_schedulable=True), mine)
                if isinstance(grant, Grant):
                    job = 1_000 + len(slices)
                    part = Slice(gpu=gpu.id, mib=grant.mib, exclusive=grant.exclusive, job=job, is_quarantined=draw(st.integers(0, 9)) == 0)
                    slices.append(part)
                    if draw(st.booleans()):
                        limit = draw(st.sampled_from((None, 60, 9_000)))
                        running.append(Running(job=job, user=1, slices=(part,), started=draw(st.integers(0, 900)), time_limit_s=limit))
        links = [Link(a=a.id, b=b.id, kind=draw(st.sampled_from(KINDS))) for a in gpus for b in gpus if a.id < b.id and draw(st.booleans())]
        refusal = draw(st.sampled_from((None, None, None, "cordoned", "UNKNOWN")))
        nodes.append(
            Node(
                id=number,
                name=f"n{number}",
                gpus=tuple(gpus),
                links=tuple(links),
                takes_work=refusal is None,
                refusal=refusal,
                cpu_cores=draw(st.sampled_from((None, 4, 64))),
                memory_mib=draw(st.sampled_from((None, 65_536, 262_144))),
                cpu_milli_held=draw(st.sampled_from((0, 2_500))),
                cuda_version=draw(st.sampled_from((None, "12.4", "12.10"))),
                labels=draw(st.sampled_from(({}, {"room": "a"}))),
            )
        )
    jobs = []
    for number in range(1, draw(st.integers(0, 8)) + 1):
        request = Request(
            gpu_count=draw(st.integers(0, 4)),
            gpu_mem_mib=draw(st.sampled_from(SIZES)),
            nodes=draw(st.sampled_from((1, 1, 1, 2))),
            model=draw(st.sampled_from((None, None, "a100", "h100", "a100|rtx 4090"))),
            cpu_milli=draw(st.sampled_from((None, None, 1_500, 8_000))),
            host_mem_mib=draw(st.sampled_from((None, None, 40_000))),
            cuda_min=draw(st.sampled_from((None, None, None, "12.5"))),
            labels=draw(st.sampled_from(((), (), (("room", "a"),)))),
            is_exclusive=draw(st.sampled_from((False, False, True))),
        )
        jobs.append(
            Job(
                id=number,
                request=request,
                submitted=float(draw(st.integers(0, 3))),
                priority=draw(st.sampled_from((0, 0, 5))),
                time_limit_s=draw(st.sampled_from((None, 600))),
                hold=draw(st.sampled_from((None, None, None, "held"))),
                hold_params={"by": None, "why": None},
                avoid_nodes=frozenset(draw(st.sets(st.integers(1, 4), max_size=1))),
            )
        )
    return Snapshot(now=1_000.0, nodes=tuple(nodes), jobs=tuple(jobs), slices=tuple(slices), running=tuple(running))


def shuffled(snapshot: Snapshot, rng: random.Random) -> Snapshot:
    def mixed(items: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(rng.sample(items, len(items)))

    nodes = tuple(replace(node, gpus=mixed(node.gpus), links=mixed(node.links)) for node in snapshot.nodes)  # type: ignore[arg-type]
    return replace(
        snapshot,
        nodes=mixed(nodes),  # type: ignore[arg-type]
        jobs=mixed(tuple(snapshot.jobs)),  # type: ignore[arg-type]
        slices=mixed(snapshot.slices),  # type: ignore[arg-type]
        running=mixed(snapshot.running),  # type: ignore[arg-type]
    )


@given(snapshot=snapshots(), policy=st.sampled_from(POLICIES), rng=st.randoms(use_true_random=False))
@settings(max_examples=250, deadline=None)
def test_a_plan_keeps_every_rule(snapshot: Snapshot, policy: Policy, rng: random.Random) -> None:
    result = plan(snapshot, policy)
    plan_check(snapshot, policy, result)
    assert plan(shuffled(snapshot, rng), policy) == result
    requests = {job.id: job.request for job in snapshot.jobs}
    holds = {job.id: job.hold for job in snapshot.jobs}
    live = list(snapshot.slices)
    for placement in result.placements:
        assert never_reason(requests[placement.job], snapshot.nodes, policy) is None
        live += [
            Slice(gpu=grant.gpu, mib=grant.mib, exclusive=grant.exclusive, job=placement.job)
            for rank in placement.ranks
            for grant in rank.grants
        ]
    for refusal in result.refusals:
        check_params(refusal.reason)
        if holds[refusal.job] is not None:
            continue
        assert refusal.never == (never_reason(requests[refusal.job], snapshot.nodes, policy) is not None)
        # A job is passed over for one ahead only while it would fit, and refused for itself only while it would not.
        request = requests[refusal.job]
        if not refusal.never:
            good = sum(fits(request, node, live, policy) is None for node in hosts_after(snapshot, result))
            if refusal.reason.code not in FOR_OTHERS:
                assert good < request.nodes


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_input_does_not_matter_on_a_large_queue(seed: int) -> None:
    from bench.passes import backlog

    snapshot = backlog(jobs=200, cards=64, seed=seed)
    result = plan(snapshot, Policy())
    assert len(result.placements) > 10
    plan_check(snapshot, Policy(), result)
    assert plan(shuffled(snapshot, random.Random(seed)), Policy()) == result
