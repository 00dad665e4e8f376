"""Following a job's output: every byte once, through restarts, requeues and split characters."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from client import follow
from client.errors import NebulaError, Unreachable, WaitTimeout
from client.sdk import NebulaClient
from client.testing import FakeApi
from tests.client.conftest import Clock
from tests.waiting import PATIENCE_S


def steps(*actions: Callable[[], object]) -> Callable[[], None]:
    """One action a sleep: the world moves on while the client waits."""
    left = list(actions)

    def step() -> None:
        if left:
            left.pop(0)()
        else:
            step.calls += 1  # type: ignore[attr-defined]
            assert step.calls < 500, "the client waits for ever"  # type: ignore[attr-defined]

    step.calls = 0  # type: ignore[attr-defined]
    return step


def test_it_shows_all_from_the_wait_to_the_end(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    clock.on_sleep = steps(
        lambda: api.job_start(job),
        lambda: api.log_write(job, b"one\n"),
        lambda: api.log_write(job, b"two\n"),
        lambda: api.job_finish(job),
    )
    assert list(client.follow_logs(job)) == ["one\n", "two\n"]


def test_it_reads_what_came_between_the_last_look_and_the_end(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    api.job_start(job)

    def last_words() -> None:
        api.log_write(job, b"last words\n")
        api.job_finish(job, "FAILED", exit_code=1)

    clock.on_sleep = steps(last_words)
    assert "".join(client.follow_logs(job)) == "last words\n"


def test_a_character_cut_by_the_writer_arrives_whole(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    api.job_start(job)
    text = "训练☠🙂\n".encode()
    clock.on_sleep = steps(*[lambda b=byte: api.log_write(job, bytes([b])) for byte in text], lambda: api.job_finish(job))
    assert "".join(client.follow_logs(job)) == "训练☠🙂\n"


def test_bytes_that_are_no_text_do_not_stop_it(client: NebulaClient, api: FakeApi) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"a\xff\xfeb\xe8\xae")
    api.job_finish(job)
    assert "".join(client.follow_logs(job)) == "a\ufffd\ufffdb\ufffd"


def test_a_large_log_comes_in_pieces_without_gap(client: NebulaClient, api: FakeApi) -> None:
    job = api.job_add()
    api.job_start(job)
    text = "".join(f"{n} ü\n" for n in range(150_000))
    api.log_write(job, text.encode())
    api.job_finish(job)
    pieces = list(client.follow_logs(job))
    assert len(pieces) > 4
    assert "".join(pieces) == text


def test_it_outlives_a_restart_of_the_control_plane(api: FakeApi) -> None:
    """Real time, real sockets: the server stops in the middle of the output and comes back on its port."""
    job = api.job_add()
    api.job_start(job)
    expected = [f"line {n}\n" for n in range(60)]
    seen: list[str] = []
    has_seen_some = threading.Event()

    def world() -> None:
        for n, line in enumerate(expected):
            api.log_write(job, line.encode())
            if n == 20:
                assert has_seen_some.wait(PATIENCE_S)
                api.stop()
            if n == 40:
                api.start()
        api.job_finish(job)

    writer = threading.Thread(target=world)
    writer.start()
    with NebulaClient(api.url, api.token) as client:
        for text in client.follow_logs(job):
            seen.append(text)
            has_seen_some.set()
    writer.join()
    assert "".join(seen) == "".join(expected)


def test_it_outlives_errors_in_every_place(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    api.job_start(job)

    def trouble(kind: int) -> None:
        api.log_write(job, f"{kind}\n".encode())
        api.cut(1) if kind % 3 == 0 else api.fail(7, 503) if kind % 3 == 1 else api.fail(1, 500)

    clock.on_sleep = steps(*[lambda n=n: trouble(n) for n in range(9)], lambda: api.job_finish(job))
    assert "".join(client.follow_logs(job)) == "".join(f"{n}\n" for n in range(9))


def test_it_gives_up_when_the_control_plane_stays_away(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"x")
    pieces = client.follow_logs(job, patience_s=30)
    assert next(iter(pieces)) == "x"
    api.stop()
    with pytest.raises(Unreachable):
        list(pieces)
    assert 30 <= clock.now_s < 60


def test_after_a_requeue_it_goes_on_with_the_next_attempt(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"first\n")
    notices: list[str] = []

    def requeue() -> None:
        api.log_write(job, b"lost\n")
        api.job_requeue(job)

    clock.on_sleep = steps(requeue, lambda: api.job_start(job), lambda: api.log_write(job, b"again\n"), lambda: api.job_finish(job))
    assert "".join(client.follow_logs(job, on_notice=notices.append)) == "first\nlost\nagain\n"
    assert notices == ["Attempt 1 of job 1 ended; attempt 2 follows."]


def test_a_named_attempt_ends_with_itself(client: NebulaClient, api: FakeApi) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"first\n")
    api.job_requeue(job)
    api.job_start(job)
    api.log_write(job, b"second\n")
    assert "".join(client.follow_logs(job, attempt=1)) == "first\n"


def test_a_job_cancelled_in_the_queue_has_no_output(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    clock.on_sleep = steps(lambda: api.job_finish(job, "CANCELLED", exit_code=None))
    assert list(client.follow_logs(job)) == []


def test_a_log_that_never_completes_ends_with_a_notice(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"half")
    api.job_finish(job, "FAILED", exit_code=None, log_complete=False)
    notices: list[str] = []
    assert "".join(client.follow_logs(job, on_notice=notices.append)) == "half"
    assert "may be incomplete" in notices[0]
    assert clock.now_s >= follow.LINGER_S


def test_a_log_that_shrank_is_an_error_not_a_silent_gap(client: NebulaClient, api: FakeApi) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"0123456789")
    pieces = iter(client.follow_logs(job))
    assert next(pieces) == "0123456789"
    del api.jobs[job].attempts[0].logs[0][5:]
    with pytest.raises(NebulaError) as caught:
        next(pieces)
    assert caught.value.code == "log_gap"


def test_following_a_strangers_job_is_not_found(client: NebulaClient, api: FakeApi) -> None:
    job = api.job_add("mallory@lab.example")
    with pytest.raises(NebulaError) as caught:
        list(client.follow_logs(job))
    assert caught.value.status == 404


def test_wait_answers_with_the_final_job(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    states: list[str] = []
    clock.on_sleep = steps(lambda: api.job_start(job), lambda: api.fail(6, 503), lambda: api.job_finish(job, "FAILED", exit_code=3))
    ended = client.wait(job, on_change=lambda row: states.append(row["state"]))
    assert ended["end"] is not None
    assert ended["end"]["exit_code"] == 3
    assert states == ["WAITING", "RUNNING", "FAILED"]


def test_wait_stops_at_its_time_and_not_later(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    job = api.job_add()
    with pytest.raises(WaitTimeout, match="still WAITING after 10 s"):
        client.wait(job, timeout_s=10)
    assert clock.now_s == pytest.approx(10)
