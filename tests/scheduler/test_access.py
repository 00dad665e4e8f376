"""Who may run where: one rule for the plan, its re-check, and what can never be."""

from __future__ import annotations

from itertools import product

import pytest

from jobs.scheduler import Policy, Request, never_reason, plan, reasons
from jobs.scheduler.access import ACCOUNT, FIRST_ADMIN, NO_SECRETS, ONE_NODE, ORDER, access_denied, node_demands, owner_lacks
from jobs.scheduler.fit import fits, rank_fits
from jobs.scheduler.need import node_mismatch
from jobs.scheduler.never import NodeTraits
from jobs.scheduler.types import Node, RankPlacement
from tests.scheduler.cases import Case


@pytest.mark.parametrize(
    ("node", "demands"),
    [
        ({"isolates_people": True, "is_mapped": False}, set()),
        ({"isolates_people": True, "is_mapped": True}, {ACCOUNT}),
        ({"isolates_people": False, "is_mapped": False}, {FIRST_ADMIN}),
        ({"isolates_people": False, "is_mapped": True}, {ACCOUNT, FIRST_ADMIN}),
        ({"isolates_people": False, "is_mapped": False, "allows_unisolated": True}, {NO_SECRETS}),
        ({"isolates_people": False, "is_mapped": False, "allows_unisolated": True, "shares_secrets": True}, set()),
        ({"isolates_people": False, "is_mapped": False, "shares_secrets": True}, {FIRST_ADMIN}),
        ({"isolates_people": True, "is_mapped": True, "allows_unisolated": True, "shares_secrets": True}, {ACCOUNT}),
    ],
)
def test_what_a_node_demands(node: dict[str, bool], demands: set[str]) -> None:
    assert node_demands(**node) == demands


def test_each_lack_meets_its_demand_and_no_other() -> None:
    for has_account, is_first, has_secrets, is_wide in product((True, False), repeat=4):
        lacks = owner_lacks(has_account=has_account, is_first_admin=is_first, has_secrets=has_secrets, nodes=1 + is_wide)
        denied = {code for code in ORDER if access_denied(lacks, frozenset({code}))}
        wanted = {ACCOUNT: not has_account, FIRST_ADMIN: not is_first, NO_SECRETS: has_secrets, ONE_NODE: is_wide}
        assert denied == {code for code, is_lacking in wanted.items() if is_lacking}


NEVER = (reasons.NEVER_ACCOUNT, reasons.NEVER_ISOLATION, reasons.NEVER_SECRET_ISOLATION, reasons.NEVER_SHARED_ADDRESS)


@pytest.mark.parametrize(("code", "never"), list(zip(ORDER, NEVER, strict=True)))
@pytest.mark.parametrize("cards", [0, 1, 2])
def test_who_may_not_run_there_is_told_why_by_plan_by_its_re_check_and_for_ever(code: str, never: str, cards: int) -> None:
    lacks = {"lacks": frozenset({code})}
    case = Case().node("a", cards=2, host={"demands": frozenset({code})}).job(cards=cards, request=lacks)
    case.expect_reason(never, never=True, node="a")
    snapshot = case.snapshot()
    request, node = snapshot.jobs[0].request, snapshot.nodes[0]
    assert (found := fits(request, node, ())) is not None
    assert found.code == code
    grants = plan(Case().node("a", cards=2).job(cards=cards).snapshot(), Policy()).placements[0].ranks[0].grants
    again = rank_fits(request, RankPlacement(0, node.id, grants), node, ())
    assert again is not None
    assert again.code == code


@pytest.mark.parametrize("cards", [0, 1, 2])
def test_such_a_job_goes_where_it_may_and_another_takes_the_place(cards: int) -> None:
    case = Case().node("a", cards=2, host={"demands": frozenset({ACCOUNT})}).node("b", cards=2)
    place = ",".join(f"{{}}:{at}" for at in range(cards)) or "{}"
    case.job(cards=cards, request={"lacks": frozenset({ACCOUNT})}).expect(place.replace("{}", "b"))
    case = Case().node("a", cards=2, host={"demands": frozenset({ACCOUNT})})
    case.job(cards=2, request={"lacks": frozenset({ACCOUNT})}).job(cards=cards).expect(None, place.replace("{}", "a"))


def test_a_gang_of_two_is_not_put_on_a_node_that_demands_what_its_owner_lacks() -> None:
    open_, closed = {"demands": frozenset()}, {"demands": frozenset({FIRST_ADMIN})}
    lacks = {"lacks": frozenset({FIRST_ADMIN})}
    Case().node("a", host=open_).node("b", host=closed).node("c", host=open_).job(cards=2, nodes=2, request=lacks).expect("a:0|c:0")
    case = Case().node("a", host=open_).node("b", host=closed).job(cards=2, nodes=2, request=lacks)
    case.expect_reason(reasons.NEVER_NODES, never=True, needed=2, have=1)


def test_where_one_demand_bars_one_node_and_another_the_other_one_of_them_is_named() -> None:
    nodes = [Node(id=1, name="a", demands=frozenset({ACCOUNT})), Node(id=2, name="b", demands=frozenset({FIRST_ADMIN}))]
    found = never_reason(Request(gpu_count=0, lacks=frozenset({ACCOUNT, FIRST_ADMIN})), nodes)
    assert found is not None
    assert found.code in (reasons.NEVER_ACCOUNT, reasons.NEVER_ISOLATION)


def test_what_the_card_lacks_is_told_before_what_the_owner_lacks() -> None:
    case = Case().node("a", model="A100", host={"demands": frozenset({ACCOUNT})})
    case.job(request={"model": "H100", "lacks": frozenset({ACCOUNT})})
    case.expect_reason(reasons.NEVER_MODEL, never=True)


def test_a_node_that_can_start_nothing_safely_takes_no_job_and_is_waited_for() -> None:
    case = Case().node("a", refusal="unsafe").job()
    case.expect_reason(reasons.NODE_UNSAFE, node="a", nodes=1)
    assert node_mismatch(Request(), case.nodes[0]) is None


def test_a_pool_that_demands_nothing_has_no_more_kinds_of_cards_and_requests() -> None:
    """What nobody demands is no part of a request, and a demand that nobody fails is none of a kind of card."""
    mapped, plain = Node(id=1, name="a", demands=frozenset({ACCOUNT})), Node(id=2, name="b")
    of_all, of_some = NodeTraits([Request()]), NodeTraits([Request(lacks=frozenset({ACCOUNT}))])
    assert of_all.of(mapped) == of_all.of(plain)
    assert of_some.of(mapped) != of_some.of(plain)
