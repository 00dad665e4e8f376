from __future__ import annotations

import pytest

from agent.protocol import Desired, RankSpec, Want
from agent.reconcile import DEFAULT_GRACE_S, Action, Forget, Held, Lease, Refuse, Start, Stop, Warn, diff
from agent.store import Tombstone


def spec(job: int = 42) -> RankSpec:
    return RankSpec(job=job, index=0, argv=("true",))


def want(rank: str, order: Want = "RUN", **more: object) -> Desired:
    job, epoch, _ = (int(p) for p in rank.split("."))
    if order == "RUN":
        more.setdefault("spec", spec(job))
        more.setdefault("spec_sha256", "abc")
    return Desired(rank=rank, epoch=epoch, want=order, **more)  # type: ignore[arg-type]


def held(rank: str, state: str = "RUNNING", **more: object) -> Held:
    more.setdefault("spec_sha256", "abc")
    return Held(rank=rank, epoch=int(rank.split(".")[1]), state=state, **more)  # type: ignore[arg-type]


def plan(desired: list[Desired], observed: list[Held] | None = None, fences: dict[int, Tombstone] | None = None) -> list[Action]:
    return diff({d.rank: d for d in desired}, {h.rank: h for h in observed or []}, tombstones=fences)


START = Start("42.1.0", 1, spec(), "abc", None)

CASES: dict[str, tuple[list[Desired], list[Held], dict[int, Tombstone], list[Action]]] = {
    "nothing wanted, nothing held": ([], [], {}, []),
    "RUN of something new starts it": ([want("42.1.0")], [], {}, [START]),
    "RUN carries its lease": ([want("42.1.0", lease_s=600)], [], {}, [Start("42.1.0", 1, spec(), "abc", 600)]),
    "RUN of what is being started changes nothing": ([want("42.1.0")], [held("42.1.0", "PREPARING")], {}, []),
    "RUN of what runs changes nothing": ([want("42.1.0")], [held("42.1.0")], {}, []),
    "RUN of what has ended changes nothing": ([want("42.1.0")], [held("42.1.0", "EXITED")], {}, []),
    "RUN of what could not be launched changes nothing": ([want("42.1.0")], [held("42.1.0", "LAUNCH_FAILED")], {}, []),
    "RUN of what runs below the fence keeps it": ([want("42.1.0")], [held("42.1.0")], {42: Tombstone(1, 1)}, []),
    "RUN above the fence starts": ([want("42.2.0")], [], {42: Tombstone(1, 1)}, [Start("42.2.0", 2, spec(), "abc", None)]),
    "observed and not desired keeps running": ([], [held("42.1.0")], {}, []),
    "ended and not desired is kept": ([], [held("42.1.0", "EXITED")], {}, []),
    "a changed lease is taken over": ([want("42.1.0", lease_s=60)], [held("42.1.0", lease_s=600)], {}, [Lease("42.1.0", 60)]),
    "a lease taken away": ([want("42.1.0")], [held("42.1.0", lease_s=600)], {}, [Lease("42.1.0", None)]),
    "STOP of what runs": (
        [want("42.1.0", "STOP", grace_s=15, stop_reason="gpu_fault")],
        [held("42.1.0")],
        {},
        [Stop("42.1.0", 15, "gpu_fault")],
    ),
    "STOP of what is being started": ([want("42.1.0", "STOP", grace_s=15)], [held("42.1.0", "PREPARING")], {}, [Stop("42.1.0", 15, None)]),
    "STOP without a grace uses the default": ([want("42.1.0", "STOP")], [held("42.1.0")], {}, [Stop("42.1.0", DEFAULT_GRACE_S, None)]),
    "a grace below zero is none": ([want("42.1.0", "STOP", grace_s=-5)], [held("42.1.0")], {}, [Stop("42.1.0", 0, None)]),
    "STOP again changes nothing": ([want("42.1.0", "STOP", grace_s=15)], [held("42.1.0", stop_grace_s=15)], {}, []),
    "STOP again with a longer grace changes nothing": ([want("42.1.0", "STOP", grace_s=30)], [held("42.1.0", stop_grace_s=15)], {}, []),
    "STOP again with a shorter grace": (
        [want("42.1.0", "STOP", grace_s=1)],
        [held("42.1.0", stop_grace_s=15)],
        {},
        [Stop("42.1.0", 1, None)],
    ),
    "STOP of what has ended": ([want("42.1.0", "STOP")], [held("42.1.0", "EXITED")], {}, []),
    "FORGET of what has ended": ([want("42.1.0", "FORGET")], [held("42.1.0", "EXITED")], {}, [Forget("42.1.0", 1)]),
    "FORGET of a failed launch": ([want("42.1.0", "FORGET")], [held("42.1.0", "LAUNCH_FAILED")], {}, [Forget("42.1.0", 1)]),
    "FORGET of what was never here raises the fence": ([want("42.3.0", "FORGET")], [], {42: Tombstone(1, 1)}, [Forget("42.3.0", 3)]),
    "FORGET again": ([want("42.1.0", "FORGET")], [], {42: Tombstone(1, 1)}, []),
    "a second rank of the same lap on this node starts": (
        [want("42.1.0"), want("42.1.1")],
        [held("42.1.0")],
        {42: Tombstone(0, 1)},
        [Start("42.1.1", 1, spec(), "abc", None)],
    ),
    "a newer lap waits for the end of the older one": ([want("42.2.0")], [held("42.1.0")], {}, [Stop("42.1.0", DEFAULT_GRACE_S, "fenced")]),
    "a newer lap goes on waiting": ([want("42.2.0")], [held("42.1.0", stop_grace_s=30)], {}, []),
    "a newer lap starts once the older one ended": (
        [want("42.2.0")],
        [held("42.1.0", "EXITED")],
        {42: Tombstone(0, 1)},
        [Start("42.2.0", 2, spec(), "abc", None)],
    ),
    "STOP of the older lap keeps its own grace": (
        [want("42.1.0", "STOP", grace_s=3), want("42.2.0")],
        [held("42.1.0")],
        {},
        [Stop("42.1.0", 3, None)],
    ),
    "stops come before forgets before starts": (
        [want("1.1.0"), want("2.1.0", "FORGET"), want("3.1.0", "STOP", grace_s=9)],
        [held("2.1.0", "EXITED"), held("3.1.0")],
        {},
        [Stop("3.1.0", 9, None), Forget("2.1.0", 1), Start("1.1.0", 1, spec(1), "abc", None)],
    ),
    "starts come in the order of ranks, by number": (
        [want("10.1.0"), want("9.1.0")],
        [],
        {},
        [Start("9.1.0", 1, spec(9), "abc", None), Start("10.1.0", 1, spec(10), "abc", None)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_derives_the_actions(name: str) -> None:
    desired, observed, fences, expected = CASES[name]
    assert plan(desired, observed, fences) == expected


REFUSALS: dict[str, tuple[Desired, dict[int, Tombstone], str]] = {
    "RUN at the fence of a job that ran here": (want("42.1.0"), {42: Tombstone(1, 1)}, "exit_unknown"),
    "RUN at a fence that a STOP raised": (want("42.2.0"), {42: Tombstone(2, 1)}, "never_started"),
    "RUN below the fence": (want("42.1.0"), {42: Tombstone(5, 0)}, "never_started"),
    "STOP for a rank without any trace": (want("42.1.0", "STOP"), {}, "never_started"),
    "STOP for a lap above all that ran": (want("42.2.0", "STOP"), {42: Tombstone(1, 1)}, "never_started"),
    "STOP for a rank that was forgotten": (want("42.1.0", "STOP"), {42: Tombstone(1, 1)}, "exit_unknown"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_refuses_and_says_what_can_be_proven(name: str) -> None:
    order, fences, cause = REFUSALS[name]
    (action,) = plan([order], [], fences)
    assert isinstance(action, Refuse)
    assert (action.rank, action.epoch, action.cause) == (order.rank, order.epoch, cause)


def test_of_two_laps_wanted_at_once_only_the_newer_starts() -> None:
    refused, started = plan([want("42.1.0"), want("42.2.0")])
    assert isinstance(refused, Refuse)
    assert refused.rank == "42.1.0"
    assert isinstance(started, Start)
    assert started.rank == "42.2.0"


def test_it_keeps_a_running_rank_whose_spec_differs_and_warns() -> None:
    (action,) = plan([want("42.1.0", spec_sha256="other")], [held("42.1.0")])
    assert isinstance(action, Warn)


def test_it_does_not_forget_what_still_runs() -> None:
    (action,) = plan([want("42.1.0", "FORGET")], [held("42.1.0")])
    assert isinstance(action, Warn)


@pytest.mark.parametrize(
    "order",
    [
        Desired(rank="../../etc", epoch=1, want="RUN", spec=spec()),
        Desired(rank="42.1.0", epoch=2, want="RUN", spec=spec()),
        Desired(rank="42.1.0", epoch=1, want="RUN"),
        Desired(rank="42.1", epoch=1, want="STOP"),
    ],
)
def test_it_ignores_an_order_that_makes_no_sense(order: Desired) -> None:
    (action,) = plan([order])
    assert isinstance(action, Warn)


def test_applying_a_plan_twice_changes_nothing_more() -> None:
    orders = [want("1.1.0"), want("2.1.0", "STOP", grace_s=5)]
    first = plan(orders, [held("2.1.0")])
    assert {type(a) for a in first} == {Start, Stop}
    assert plan(orders, [held("1.1.0", "PREPARING"), held("2.1.0", stop_grace_s=5)], {1: Tombstone(0, 1)}) == []
