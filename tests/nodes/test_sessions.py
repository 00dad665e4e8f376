"""Which agent speaks for a node: a restart is taken at once, a copy is refused and told of, and nobody runs a job twice for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodes.claims import CLAIM_S, claim_confirm, claim_id, claim_now
from nodes.doubts import nodes_doubted
from nodes.errors import NodeRefused
from nodes.models import HealthEvent, Node
from nodes.sessions import Known, Verdict, proof_sha256, session_judge
from nodes.sync import NodeSync, node_heard, node_sync
from quotas.models import AuditEntry
from tests.factories import inventory, node_make, sync_of, user_make

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
SECRET = "s" * 64
COPY = claim_id({"session": "copy"})
KNOWN = {"boot_id": "boot-1", "proof_sha256": proof_sha256(SECRET), "silent_s": 3.0, "holds_jobs": True}


@pytest.mark.parametrize(
    ("known", "newcomer", "verdict"),
    [
        # The same agent after a restart, however lately it was heard of.
        ({}, {"proofs": (SECRET,)}, Verdict.TAKE),
        ({}, {"proofs": ("older", SECRET)}, Verdict.TAKE),
        # The same store under another boot: the machine was started anew, or it was copied as a whole.
        ({}, {"proofs": (SECRET,), "boot_id": "boot-2"}, Verdict.BUSY),
        ({"silent_s": 15.0}, {"proofs": (SECRET,), "boot_id": "boot-2"}, Verdict.TAKE),
        ({"holds_jobs": False}, {"proofs": (SECRET,), "boot_id": "boot-2"}, Verdict.TAKE),
        # A copied configuration and credential.
        ({}, {}, Verdict.BUSY),
        ({}, {"boot_id": "boot-2"}, Verdict.BUSY),
        ({"holds_jobs": False}, {}, Verdict.BUSY),
        ({}, {"proofs": ("wrong", "")}, Verdict.BUSY),
        ({"silent_s": 15.0}, {}, Verdict.UNCONFIRMED),
        ({"silent_s": 9e9}, {"boot_id": "boot-2"}, Verdict.UNCONFIRMED),
        ({"silent_s": None}, {}, Verdict.UNCONFIRMED),
        ({"silent_s": 15.0, "holds_jobs": False}, {}, Verdict.TAKE_UNPROVEN),
        # An agent of an older version proves nothing, and is taken when the one before it is silent.
        ({"proof_sha256": ""}, {}, Verdict.BUSY),
        ({"proof_sha256": ""}, {"proofs": ("",)}, Verdict.BUSY),
        ({"proof_sha256": "", "silent_s": 15.0}, {}, Verdict.TAKE),
        # Somebody has looked.
        ({}, {"is_confirmed": True, "boot_id": "boot-2"}, Verdict.TAKE),
    ],
)
def test_who_is_taken(known: dict[str, Any], newcomer: dict[str, Any], verdict: Verdict) -> None:
    asked = {"boot_id": "boot-1", "proofs": (), "is_confirmed": False, "unknown_after_s": 15.0, **newcomer}
    assert session_judge(Known(**{**KNOWN, **known}), **asked) is verdict


@pytest.mark.django_db
class TestOverTheSync:
    @pytest.fixture(autouse=True)
    def lab(self, published: Any, no_redis: None) -> None:
        self.node = node_make("n1", session="first", boot_id="boot-1", session_proof=proof_sha256(SECRET))
        self.holds_jobs = True
        self.at(0, seq=1)

    def at(self, after_s: float, *, seq: int = 1, peer: str = "10.0.0.9", **fields: Any) -> NodeSync:
        now = NOW + timedelta(seconds=after_s)
        node = Node.objects.get(pk=self.node.pk)
        message = sync_of(node, seq, **fields)
        answer = node_sync(node=node, sync=message, now=now, holds_jobs=lambda _node: self.holds_jobs, peer=peer)
        if answer.accepted:
            node_heard(node=node, sync=message, now=now)
        self.node.refresh_from_db()
        return answer

    def copy(self, after_s: float, **fields: Any) -> NodeSync:
        return self.at(after_s, **{"session": "copy", "boot_id": "boot-2", "inventory": inventory("GPU-x", hostname="thief"), **fields})

    def kinds(self) -> list[str]:
        return list(HealthEvent.objects.order_by("pk").values_list("kind", flat=True))

    def test_a_restart_of_the_same_agent_is_taken_at_once_and_its_successor_too(self) -> None:
        answer = self.at(1, session="second", proofs=(SECRET,), proof_sha256=proof_sha256("t"))
        assert (answer.accepted, self.node.session, self.kinds()) == (True, "second", [])
        assert self.at(2, session="third", proofs=(SECRET,)).refusal == "session_busy"  # of the one before the last
        assert self.at(2, session="third", proofs=("t", SECRET)).accepted

    def test_a_copy_is_refused_while_the_agent_is_at_work_and_changes_nothing(self) -> None:
        answer = self.copy(3)
        assert (answer.accepted, answer.refusal, answer.boot_changed) == (False, "session_busy", False)
        assert answer.retry_after_s is not None
        assert 12 <= answer.retry_after_s <= 13
        assert (self.node.session, self.node.boot_id, self.node.gpus.count()) == ("first", "boot-1", 0)
        assert self.kinds() == []  # a machine that was started anew looks the same so far
        assert self.at(5, seq=2).accepted
        assert self.kinds() == ["second_session"]
        assert HealthEvent.objects.get().data == {"peer": "10.0.0.9", "hostname": "thief"}
        assert nodes_doubted([self.node.pk], now=NOW + timedelta(seconds=6)) == {self.node.pk: (2, "second_session")}
        for turn in range(3, 9):  # it goes on trying: one alarm, and the true agent never notices
            assert self.copy(5 * turn).refusal == "session_busy"
            assert self.at(5 * turn + 1, seq=turn).accepted
        assert self.kinds() == ["second_session"]

    def test_a_copy_waits_for_somebody_while_jobs_may_run_under_the_silent_agent(self) -> None:
        assert self.copy(60).refusal == "session_unconfirmed"
        assert self.node.session == "first"
        assert self.kinds() == ["session_unconfirmed"]
        # The agent of before is back: it is still the node's, and the two are an alarm.
        assert self.at(70, seq=2).accepted
        assert self.kinds() == ["session_unconfirmed", "second_session"]

    def test_who_is_confirmed_is_taken_and_the_one_before_is_told_to_end(self) -> None:
        staff = user_make("staff@lab.example", is_staff=True)
        assert self.copy(60).refusal == "session_unconfirmed"
        claim_confirm(node=self.node, by=staff, claim_shown=COPY, now=NOW + timedelta(seconds=65))
        answer = self.copy(70)
        assert (answer.accepted, answer.boot_changed, self.node.session) == (True, True, "copy")
        assert self.node.claim is None
        assert AuditEntry.objects.filter(action="node.session_confirmed", actor=staff).count() == 1
        assert self.at(75, session="first", boot_id="boot-1", seq=9).refusal == "superseded_session"
        assert "second_session" in self.kinds()

    def test_only_who_asks_now_and_was_silent_long_enough_can_be_confirmed(self) -> None:
        for prepare in (lambda: None, lambda: self.copy(3)):
            prepare()
            with pytest.raises(NodeRefused, match="claim_none"):
                claim_confirm(node=self.node, by=None, claim_shown=COPY, now=NOW + timedelta(seconds=10))
        self.copy(60)
        with pytest.raises(NodeRefused, match="claim_none"):
            claim_confirm(node=self.node, by=None, claim_shown=COPY, now=NOW + timedelta(seconds=61 + CLAIM_S))

    def test_a_confirmation_is_for_the_one_who_asked(self) -> None:
        self.copy(60)
        claim_confirm(node=self.node, by=None, claim_shown=COPY, now=NOW + timedelta(seconds=61))
        assert self.copy(62, session="another").refusal == "session_unconfirmed"
        claim = claim_now(self.node, now=NOW + timedelta(seconds=63))
        assert claim is not None
        assert (claim["session"], claim["is_confirmed"]) == ("copy", True)  # nobody else takes its place
        assert self.copy(75).accepted

    def test_a_confirmation_that_is_not_used_is_over_after_a_while(self) -> None:
        self.copy(60)
        claim_confirm(node=self.node, by=None, claim_shown=COPY, now=NOW + timedelta(seconds=61))
        assert self.copy(62 + CLAIM_S, session="another").refusal == "session_unconfirmed"
        assert self.copy(63 + CLAIM_S).refusal == "session_unconfirmed"

    def test_who_came_after_the_one_that_was_looked_at_is_not_confirmed(self) -> None:
        self.copy(60)
        self.copy(62, session="another")
        with pytest.raises(NodeRefused, match="claim_other"):
            claim_confirm(node=self.node, by=None, claim_shown=COPY, now=NOW + timedelta(seconds=63))
        assert not self.node.claim["is_confirmed"]

    def test_a_confirmation_is_not_undone_by_a_request_that_read_the_node_before_it(self) -> None:
        self.copy(60)
        stale = Node.objects.get(pk=self.node.pk)
        claim_confirm(node=self.node, by=None, claim_shown=COPY, now=NOW + timedelta(seconds=61))
        message = sync_of(stale, 1, session="another", boot_id="boot-2")
        assert not node_sync(node=stale, sync=message, now=NOW + timedelta(seconds=62), holds_jobs=lambda _node: True).accepted
        assert self.copy(63).accepted

    @pytest.mark.parametrize(
        ("session", "refusal"), [("second", "session_busy"), ("other", "session_busy"), ("first", "superseded_session")]
    )
    def test_a_request_that_another_overtook_asks_again_unless_its_session_is_past(self, session: str, refusal: str) -> None:
        stale = Node.objects.get(pk=self.node.pk)
        assert self.at(1, session="second", proofs=(SECRET,)).accepted
        message = sync_of(stale, 2, session=session, boot_id="boot-1" if session != "first" else "boot-2", proofs=(SECRET,))
        answer = node_sync(node=stale, sync=message, now=NOW + timedelta(seconds=2), holds_jobs=lambda _node: True)
        assert (answer.accepted, answer.refusal, answer.retry_after_s is not None) == (False, refusal, refusal == "session_busy")
        self.node.refresh_from_db()
        assert self.node.session == "second"

    def test_without_jobs_a_stranger_is_taken_after_the_silence_and_staff_are_told(self) -> None:
        self.holds_jobs = False
        assert self.copy(3).refusal == "session_busy"
        assert self.copy(60).accepted
        assert self.kinds() == ["session_unproven"]

    def test_a_node_that_came_back_from_a_backup_takes_the_session_that_there_is(self) -> None:
        Node.objects.filter(pk=self.node.pk).update(restore="some-restore")
        assert self.at(3, session="later than the backup".replace(" ", "-")).accepted

    def test_what_a_stranger_calls_itself_is_bounded(self) -> None:
        self.copy(3, inventory=inventory("GPU-x", hostname="h\x00" * 9000), peer="p" * 500)
        assert len(str(self.node.claim)) < 1000
