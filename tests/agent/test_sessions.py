"""An agent shows whose successor it is, and does not end because another one speaks for its node for now."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.config import config_load
from agent.http import Answer, Unreachable
from agent.protocol import SyncRequest
from agent.store import PROOFS_KEPT, Store
from agent.syncline import SyncLine, proof_sha256


class Plane:
    """Answers what the test says."""

    def __init__(self) -> None:
        self.answers: list[Answer | None] = []  # None = it can't be reached

    def request_json(self, method: str, path: str, value: Any, *, timeout_s: float | None = None) -> Answer:
        answer = self.answers.pop(0)
        if answer is None:
            raise Unreachable("nobody there")
        return answer

    def close(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "agent.db")
    yield store
    store.close()


@pytest.fixture
def line(tmp_path: Path) -> tuple[SyncLine, Plane]:
    path = tmp_path / "agent.toml"
    path.write_text('endpoint = "http://127.0.0.1:1"\nnode_id = 1\n')
    plane: Any = Plane()
    return SyncLine(config=config_load(path, {}), client=plane, rng=random.Random(1), first_at=0.0), plane


def refusal(status: int, code: str, retry_after_s: float | None = None) -> Answer:
    return Answer(status, json.dumps({"code": code, "message": "no", "fields": {}}).encode(), retry_after_s)


TAKEN = Answer(200, b'{"server_time": 1.0, "ack_seq": 1}')
SYNC = SyncRequest(session="s", boot_id="b", seq=1)


def test_each_start_has_a_secret_of_its_own_that_the_next_one_knows(store: Store, tmp_path: Path) -> None:
    own, earlier = store.proofs_begin()
    assert (len(own), earlier) == (64, ())
    again = Store(tmp_path / "agent.db")
    second, known = again.proofs_begin()
    assert known == (own,)
    assert second != own
    for _ in range(20):
        _, known = again.proofs_begin()
    assert len(known) == PROOFS_KEPT
    again.close()


def test_the_secret_that_the_control_plane_took_last_outlives_starts_without_an_answer(store: Store, tmp_path: Path) -> None:
    older, _ = store.proofs_begin()
    store.proof_accepted(older)
    own, _ = store.proofs_begin()
    store.proof_accepted(own)
    again = Store(tmp_path / "agent.db")
    for _ in range(3 * PROOFS_KEPT):
        newest, known = again.proofs_begin()
        assert own in known
        assert len(known) <= PROOFS_KEPT
    again.proof_accepted(newest)
    for _ in range(PROOFS_KEPT + 1):
        _, known = again.proofs_begin()
    assert newest in known
    assert own not in known
    again.close()


def test_a_secret_that_can_not_be_read_is_none(store: Store) -> None:
    store.meta_set("proofs", "{not json")
    assert store.proofs_begin()[1] == ()


@pytest.mark.parametrize("code", ["session_busy", "session_unconfirmed"])
def test_who_is_not_believed_yet_asks_again_and_does_not_end(line: tuple[SyncLine, Plane], code: str) -> None:
    sync, plane = line
    plane.answers = [refusal(409, code, 7.0), TAKEN]
    assert sync.send(SYNC) is None
    assert not sync.is_superseded
    assert not sync.is_known
    assert sync.trouble is not None
    assert sync.send(SYNC) is not None
    assert sync.is_known


def test_who_was_superseded_ends(line: tuple[SyncLine, Plane]) -> None:
    sync, plane = line
    plane.answers = [refusal(409, "superseded_session")]
    assert sync.send(SYNC) is None
    assert sync.is_superseded


def test_after_each_refusal_an_agent_shows_again_who_it_is(line: tuple[SyncLine, Plane]) -> None:
    sync, plane = line
    plane.answers = [TAKEN, refusal(401, "unauthenticated"), TAKEN]
    for is_known in (True, False, True):
        sync.send(SYNC)
        assert sync.is_known is is_known


def test_the_secrets_are_told_to_nobody_who_prints_a_request() -> None:
    request = SyncRequest(session="s", boot_id="b", seq=1, proofs=("the secret",), proof_sha256=proof_sha256("x"))
    assert "the secret" not in repr(request)
    assert SyncRequest.from_json(request.to_json()) == request


def test_being_cut_off_is_said_as_it_goes_on_less_and_less_often(
    line: tuple[SyncLine, Plane], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "nebula-agent")
    clock = [1000.0]
    monkeypatch.setattr("agent.syncline.time.monotonic", lambda: clock[0])
    agent, plane = line
    said: list[int] = []

    def send(answer: Answer | None) -> None:
        caplog.clear()
        plane.answers = [answer]
        agent.send(SYNC)

    for minute in range(240):
        clock[0] = 1000.0 + 60 * minute
        send(None)
        if caplog.records:
            said.append(minute)
            assert "nobody there" in caplog.text
            assert (f"for {minute} min now" in caplog.text or minute >= 120) == (minute > 0)
    assert said == [0, 1, 3, 7, 15, 31, 61, 91, 121, 151, 181, 211]
    clock[0] += 60
    send(TAKEN)
    assert "after 4 h 0 min" in caplog.text
    send(None)
    assert "No sync: nobody there" in caplog.text  # and so on from the beginning
