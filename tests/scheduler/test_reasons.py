"""Each refusal names the cause that really binds, with its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.scheduler import Node, Policy, Reason, Request, never_reason, reasons
from tests.scheduler.cases import Case, reason_of

DOCS = Path(__file__).parents[2] / "docs" / "scheduling.md"


def test_only_memory_is_short() -> None:
    case = Case().node("a").node("b").taken("a:0", 12_288).taken("a:0", 8_192).taken("b:0", 12_288).job(mib=12_289)
    # A whole card is needed; the most that one has free is 24576 − 12288.
    case.expect_reason(reasons.GPU_MEMORY, needed_mib=12_289, count=1, largest_free_mib=12_288, node="b", gpu=0)
    case = Case().node("a").node("b").taken("a:0", 20_000).taken("b:0", 22_000).job(mib=8_000)
    case.expect_reason(reasons.GPU_MEMORY, needed_mib=8_000, count=1, largest_free_mib=4_576, node="a", gpu=0)


def test_memory_would_do_but_the_job_must_be_alone() -> None:
    case = Case().node("a").taken("a:0", 4_096).job(mib=16_384)
    case.expect_reason(reasons.WHOLE_CARD_BUSY, needed_mib=16_384, cards=1, largest_free_mib=20_480, node="a", gpu=0)


def test_the_numbers_are_those_that_the_pass_leaves_behind() -> None:
    case = Case(order="fifo", keeps_for_head=False).node("a").taken("a:0", 4_096).job(mib=16_384).job(mib=8_192).expect(None, "a:0")
    # 20480 MiB were free when the first job was looked at; the second has taken 8192 of them since.
    case.expect_reason(reasons.GPU_MEMORY, largest_free_mib=12_288, node="a")


def test_who_cards_are_kept_for_does_not_wait_for_itself() -> None:
    case = Case(order="fifo").node("a", cards=4).taken("a:0", limit_s=3_600).taken("a:1", limit_s=3_600)
    case.job(cards=4).job(cards=2).job(cards=4).expect(None, None, None)
    case.expect_reason(reasons.GPU_COUNT, job=1, needed=4, free=2, node="a")
    case.expect_reason(reasons.BLOCKED_BY, job=2)
    # The same request, but to this job the free cards are another's.
    case.expect_reason(reasons.GPU_COUNT, job=3, needed=4, free=0)
    assert [kept.job for kept in case.plan().kept] == [1]


def test_all_cards_are_busy() -> None:
    Case().node("a", cards=2).taken("a:0").taken("a:1").job().expect_reason(
        reasons.WHOLE_CARD_BUSY, needed_mib=None, cards=2, largest_free_mib=0, node="a"
    )


def test_memory_of_several_cards_on_one_node() -> None:
    case = Case().node("a", cards=3).taken("a:0", 20_000).taken("a:1", 22_000).job(mib=8_000, cards=3)
    # a:2 is free; of the other two, the worse one decides: 24576 − 22000.
    case.expect_reason(reasons.GPU_MEMORY, needed_mib=8_000, count=3, largest_free_mib=2_576, node="a", gpu=1)


def test_too_few_whole_cards_are_free_on_one_node() -> None:
    case = Case().node("a", cards=4).node("b", cards=4).taken("a:0").taken("b:0").taken("b:1").job(cards=4)
    case.expect_reason(reasons.GPU_COUNT, needed=4, free=3, node="a", nodes=1, nodes_free=0)


def test_a_full_cluster_is_full_though_a_node_is_cordoned() -> None:
    case = Case().node("a", cards=3).node("b", refusal="cordoned").taken("a:0").taken("a:1").taken("a:2").job()
    case.expect_reason(reasons.WHOLE_CARD_BUSY, cards=3)


@pytest.mark.parametrize(
    ("refusal", "code", "extra"), [("cordoned", reasons.NODE_CORDONED, {}), ("UNKNOWN", reasons.NODE_NOT_READY, {"state": "UNKNOWN"})]
)
@pytest.mark.parametrize("cards", [0, 1])
def test_no_node_takes_work(refusal: str, code: str, extra: dict[str, str], cards: int) -> None:
    case = Case().node("a", refusal=refusal).node("b", refusal=refusal).job(cards=cards)
    case.expect_reason(code, node="a", nodes=2, **extra)


def test_the_only_card_of_its_kind_is_out_of_service() -> None:
    case = Case().node("a").node("b", model="H100", is_schedulable=False, state="SUSPECT").job(request={"model": "H100"})
    case.expect_reason(reasons.GPU_UNHEALTHY, node="b", gpu=0, state="SUSPECT", cards=1)


def test_a_sick_card_does_not_hide_the_busy_ones() -> None:
    case = Case().node("a", cards=3, per_card=[{"is_schedulable": False, "state": "ISOLATED"}]).taken("a:1").taken("a:2").job()
    case.expect_reason(reasons.WHOLE_CARD_BUSY, cards=2)
    case = Case().node("a", cards=2, per_card=[{"is_schedulable": False, "state": "ISOLATED"}]).job(cards=2)
    case.expect_reason(reasons.GPU_UNHEALTHY, node="a", gpu=0, state="ISOLATED", cards=1)


def test_foreign_use_on_one_of_two_cards_that_a_job_needs() -> None:
    case = Case().node("a", cards=2, per_card=[{"foreign_mib": 9_000}]).job(cards=2)
    case.expect_reason(reasons.FOREIGN_USE, largest_free_mib=15_576, foreign_mib=9_000, node="a", gpu=0)  # 24576 − 9000


def test_an_empty_pool_is_waited_for_and_never_refused_for_good() -> None:
    Case().job().expect_reason(reasons.NO_NODE)
    Case().job(cards=0).expect_reason(reasons.NO_NODE)
    Case().node("a", cards=0).node("b", cards=0).job().expect_reason(reasons.NO_GPU, nodes=2)


def test_a_hold_passes_through_with_its_numbers() -> None:
    params = {"used": 10, "limit": 10, "resets_at": None}
    case = Case().node("a").job(hold=reasons.QUOTA_EXCEEDED, hold_params=params).expect(None)
    case.expect_reason(reasons.QUOTA_EXCEEDED, **params)


# Never


def test_no_card_is_large_enough() -> None:
    case = Case().node("a", mib=24_564).node("b", mib=16_376, refusal="cordoned").job(mib=24_577)
    case.expect_reason(reasons.NEVER_GPU_MEMORY, never=True, needed_mib=24_577, largest_nominal_mib=24_576, node="a", gpu=0)


def test_a_large_enough_card_that_is_out_of_service_is_waited_for() -> None:
    case = Case().node("a", mib=24_564).node("b", mib=81_559, refusal="DOWN").job(mib=40_960)
    case.expect_reason(reasons.NODE_NOT_READY, node="b", state="DOWN", nodes=1)


def test_two_cards_where_every_node_has_one_hints_at_nodes() -> None:
    case = Case().node("a").node("b").job(cards=2)
    case.expect_reason(reasons.NEVER_GPU_COUNT, never=True, needed=2, largest=1, node="a", hint_nodes=2)
    Case().node("a").node("b").job(cards=3).expect_reason(reasons.NEVER_GPU_COUNT, never=True, needed=3, largest=1, hint_nodes=None)
    Case().node("a", cards=2).node("b", cards=3).node("c", cards=2).job(cards=6).expect_reason(
        reasons.NEVER_GPU_COUNT, never=True, needed=6, largest=3, node="b", hint_nodes=3
    )


def test_only_suitable_cards_count() -> None:
    case = Case().node("a", cards=2, models=["RTX 4090", "RTX 3080"]).job(cards=2, request={"model": "4090"})
    case.expect_reason(reasons.NEVER_GPU_COUNT, never=True, needed=2, largest=1, node="a")


def test_too_few_nodes() -> None:
    Case().node("a").node("b").job(cards=3, nodes=3).expect_reason(reasons.TOO_MANY_NODES, never=True, needed=3, have=2)
    Case().node("a").job(cards=0, nodes=2).expect_reason(reasons.TOO_MANY_NODES, never=True, needed=2, have=1)
    Case().node("a", cards=2).node("b").job(cards=4, nodes=2).expect_reason(reasons.NEVER_NODES, never=True, needed=2, have=1, per_node=2)


@pytest.mark.parametrize(("cards", "nodes"), [(3, 2), (1, 2)])
def test_cards_must_divide_evenly_over_the_nodes(cards: int, nodes: int) -> None:
    Case().node("a").node("b").job(cards=cards, nodes=nodes).expect_reason(reasons.UNEVEN_NODES, never=True, gpu_count=cards, nodes=nodes)


@pytest.mark.parametrize(
    ("request_", "field", "value"),
    [(Request(nodes=0), "nodes", 0), (Request(gpu_count=-1), "gpu_count", -1), (Request(gpu_mem_mib=0), "gpu_mem_mib", 0)],
)
def test_a_request_that_makes_no_sense_is_refused(request_: Request, field: str, value: int) -> None:
    case = Case().node("a")
    reason = reason_of(never_reason(request_, case.nodes))
    assert (reason.code, reason.params["field"], reason.params["value"]) == (reasons.INVALID_REQUEST, field, value)
    case.job(mib=request_.gpu_mem_mib, cards=request_.gpu_count, nodes=request_.nodes).expect_reason(reasons.INVALID_REQUEST, never=True)


@pytest.mark.parametrize(
    ("asked", "code", "have"),
    [
        ({"vendor": "amd"}, reasons.NEVER_VENDOR, ["nvidia"]),
        ({"model": "H200"}, reasons.NEVER_MODEL, ["A100", "RTX 4090"]),
        ({"arch": "sm_120"}, reasons.NEVER_ARCH, ["8.0", "8.9"]),
        ({"model": "A100", "arch": "8.9"}, reasons.NEVER_ARCH, ["8.0"]),  # each is here, but not on one card
    ],
)
def test_no_card_is_of_that_kind(asked: dict[str, str], code: str, have: list[str]) -> None:
    case = Case().node("a", compute_capability="8.9").node("b", model="A100", compute_capability="8.0").job(request=asked)
    case.expect_reason(code, never=True, asked=list(asked.values())[-1], have=have)


def test_a_request_that_only_has_to_wait_is_not_impossible() -> None:
    case = Case().node("a").taken("a:0").job()
    assert never_reason(Request(), case.nodes) is None
    assert never_reason(Request(gpu_mem_mib=99_999), []) is None
    assert never_reason(Request(), [Node(id=1, name="a")]) is None


# The contract with the edge


def test_every_code_states_its_params() -> None:
    codes = {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
    assert codes == set(reasons.PARAMS)
    assert set(reasons.PARAMS) >= reasons.NEVER


def check_params(reason: Reason) -> None:
    assert set(reason.params) == set(reasons.PARAMS[reason.code]), reason


def test_the_documented_table_is_the_code() -> None:
    rows = [line.split("|")[1:-1] for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    table = {cells[0].strip(" `"): cells[1].strip() for cells in rows if len(cells) == 2}
    expected = {
        code: "; ".join(f"`{name}` {what}" for name, what in params.items()) if params else "none"
        for code, params in reasons.PARAMS.items()
    }
    assert table == expected


def test_the_documented_weights_are_the_code() -> None:
    from jobs.scheduler.score import TOPOLOGY_WEIGHT, WEIGHTS

    text = DOCS.read_text(encoding="utf-8")
    for name, weight in {**WEIGHTS, "topology": TOPOLOGY_WEIGHT}.items():
        assert f"| {name} | {weight:.2f} |" in text
    policy = Policy()
    for setting in (policy.whole_above, policy.min_slice_mib, policy.max_slices, policy.foreign_floor_mib):
        assert f"| {setting} |" in text
