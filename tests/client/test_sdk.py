"""The SDK against a control plane that fails in all the usual ways; each test runs over both transports."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from client.errors import NebulaError, Unreachable
from client.retry import RetryPolicy, retry_after_s
from client.sdk import NebulaClient
from client.testing import FakeApi
from tests.client.conftest import Clock


def submits(api: FakeApi) -> list[dict[str, str]]:
    return [seen.headers for seen in api.seen if seen.path.endswith("/jobs/submit")]


def test_it_submits_exactly_what_was_asked(client: NebulaClient, api: FakeApi) -> None:
    job = client.job_submit(argv=["python", "a b.py"], name="☠ 名", gpu_mem="12G", env={"A": "1"}, project=None)
    assert job["state"] == "WAITING"
    assert job["argv"] == ["python", "a b.py"]
    assert json.loads(api.seen[-1].body) == {"argv": ["python", "a b.py"], "name": "☠ 名", "gpu_mem": "12G", "env": {"A": "1"}}
    assert client.job_get(job["id"]) == job


def test_it_makes_one_job_when_the_answer_of_a_submit_is_lost(client: NebulaClient, api: FakeApi) -> None:
    api.cut(2)
    job = client.job_submit(argv=["true"])
    assert len(api.jobs) == 1
    assert job["id"] == 1
    keys = {headers["idempotency-key"] for headers in submits(api)}
    assert len(submits(api)) == 3
    assert len(keys) == 1


def test_two_submits_have_two_keys(client: NebulaClient, api: FakeApi) -> None:
    client.job_submit(argv=["true"])
    client.job_submit(argv=["true"])
    assert len(api.jobs) == 2


def test_a_callers_key_gives_the_same_job_again_and_refuses_another(client: NebulaClient, api: FakeApi) -> None:
    for odd in ("schlüssel", "two words", "x" * 201):
        with pytest.raises(NebulaError, match="1 to 200 visible ASCII") as refused:
            client.job_submit(argv=["true"], idempotency_key=odd)
        assert refused.value.code == "bad_idempotency_key"
    first = client.job_submit(argv=["true"], idempotency_key="ci-7")
    assert client.job_submit(argv=["true"], idempotency_key="ci-7")["id"] == first["id"]
    with pytest.raises(NebulaError) as caught:
        client.job_submit(argv=["false"], idempotency_key="ci-7")
    assert (caught.value.status, caught.value.code) == (409, "idempotency_conflict")


@pytest.mark.parametrize("status", [502, 503, 504])
def test_it_reads_again_while_the_control_plane_is_away(client: NebulaClient, api: FakeApi, clock: Clock, status: int) -> None:
    api.fail(3, status)
    assert client.me()["email"] == "user@lab.example"
    assert len(clock.slept) == 3
    assert clock.slept[0] < clock.slept[1] < clock.slept[2]


def test_it_gives_up_after_five_tries(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    api.fail(9, 503)
    with pytest.raises(Unreachable) as caught:
        client.me()
    assert caught.value.status == 503
    assert len(api.seen) == 5
    assert sum(clock.slept) < 4


def test_a_dead_control_plane_is_named_with_its_address(client: NebulaClient, api: FakeApi) -> None:
    api.stop()
    with pytest.raises(Unreachable, match=rf"Nothing answers at http://127.0.0.1:{api.port}"):
        client.me()


def test_it_does_not_repeat_what_must_happen_once(client: NebulaClient, api: FakeApi) -> None:
    api.users[api.token]["is_staff"] = True
    api.cut(1)
    with pytest.raises(Unreachable):
        client.node_enroll_token(name="n1")
    assert len(api.seen) == 1


def test_it_does_not_repeat_a_500(client: NebulaClient, api: FakeApi) -> None:
    api.fail(1, 500)
    with pytest.raises(NebulaError) as caught:
        client.me()
    assert caught.value.status == 500
    assert len(api.seen) == 1


def test_it_waits_as_long_as_a_429_asks(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    api.throttle(2, 7)
    assert client.job_submit(argv=["true"])["id"] == 1
    assert clock.slept == [7.0, 7.0]


def test_it_does_not_wait_longer_than_a_minute_in_all(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    api.throttle(9, 25)
    with pytest.raises(NebulaError) as caught:
        client.me()
    assert caught.value.status == 429
    assert clock.slept == [25.0, 25.0]


def test_it_tells_before_it_waits(api: FakeApi, clock: Clock) -> None:
    told: list[float] = []
    api.throttle(1, 7)
    with NebulaClient(api.url, api.token, sleep=clock.sleep, on_retry=lambda seconds, why: told.append(seconds)) as client:
        client.me()
    assert told == [7.0]


def test_retry_after_may_be_a_date() -> None:
    assert retry_after_s("Wed, 21 Oct 2015 07:28:10 GMT", 1_445_412_480.0) == 10.0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:10 GMT", 1_445_412_500.0) == 0.0
    assert retry_after_s("soon", 0.0) is None
    assert retry_after_s(None, time.time()) is None


def test_the_delay_doubles_up_to_its_cap() -> None:
    policy = RetryPolicy(base_s=1, cap_s=4)
    assert [policy.delay_s(n, 0.0) for n in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 2.0]
    assert policy.delay_s(3, 0.999) < 4


def test_errors_carry_code_message_and_fields(client: NebulaClient, api: FakeApi) -> None:
    with pytest.raises(NebulaError) as caught:
        client.job_submit(argv=["true"], gpu_cuont=2)
    assert (caught.value.status, caught.value.code) == (400, "unknown_field")
    assert caught.value.fields == {"gpu_cuont": ["There is no such field."]}


def test_a_strangers_job_is_not_found(client: NebulaClient, api: FakeApi) -> None:
    number = api.job_add("mallory@lab.example")
    for call in (client.job_get, client.job_cancel, client.job_why, client.job_logs, client.job_artifacts):
        with pytest.raises(NebulaError) as caught:
            call(number)
        assert caught.value.status == 404


def test_lists_go_over_all_pages_of_our_own_host(client: NebulaClient, api: FakeApi) -> None:
    for _n in range(450):
        api.job_add()
    assert [job["id"] for job in client.jobs()] == list(range(450, 0, -1))


def test_hold_release_and_cancel(client: NebulaClient, api: FakeApi) -> None:
    number = api.job_add()
    assert client.job_hold(number, why="later")["held_why"] == "later"
    assert client.job_release(number)["held"] is False
    assert client.job_cancel(number)["state"] == "CANCELLED"
    assert client.job_cancel(number)["state"] == "CANCELLED"
    with pytest.raises(NebulaError) as caught:
        client.job_hold(number)
    assert (caught.value.code, caught.value.fields) == ("invalid_state", {"state": "CANCELLED"})


def test_downloads_are_the_bytes_themselves(client: NebulaClient, api: FakeApi) -> None:
    number = api.job_add()
    api.job_start(number)
    data = bytes(range(256)) * 3000
    api.log_write(number, data)
    api.artifact_add(number, "a b/ü.bin", data)
    assert b"".join(client.job_log_download(number)) == data
    assert b"".join(client.job_artifact_download(number, rank=0, name="a b/ü.bin")) == data
    with pytest.raises(NebulaError) as caught:
        list(client.job_artifact_download(number, rank=0, name="none"))
    assert caught.value.status == 404


def test_a_download_is_retried_before_its_first_byte(client: NebulaClient, api: FakeApi) -> None:
    number = api.job_add()
    api.job_start(number)
    api.log_write(number, b"x")
    api.fail(2, 503)
    assert b"".join(client.job_log_download(number)) == b"x"


def test_a_client_may_stop_reading_a_download_and_go_on(client: NebulaClient, api: FakeApi) -> None:
    number = api.job_add()
    api.job_start(number)
    api.log_write(number, b"x" * 5_000_000)
    chunks = client.job_log_download(number)
    assert next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert client.job_get(number)["id"] == number


def test_an_idle_connection_that_the_server_closed_is_no_error(client: NebulaClient, api: FakeApi, clock: Clock) -> None:
    client.me()
    api.stop()
    api.start()
    client.me()
    assert client.job_submit(argv=["true"])["id"] == 1


def test_the_token_is_revoked_by_its_own_request(client: NebulaClient, api: FakeApi) -> None:
    assert client.token_revoke() is True
    with pytest.raises(NebulaError) as caught:
        client.me()
    assert caught.value.status == 401


def test_sign_in_with_a_password_sends_no_old_token(client: NebulaClient, api: FakeApi) -> None:
    assert client.token_create(email="user@lab.example", password="correct horse")["token"] == api.token
    assert "authorization" not in api.seen[-1].headers
    with pytest.raises(NebulaError) as caught:
        client.token_create(email="user@lab.example", password="wrong")
    assert caught.value.code == "bad_credentials"


def test_nodes_and_gpus(client: NebulaClient, api: FakeApi) -> None:
    api.node_add("node01", "NVIDIA GeForce RTX 4090", "NVIDIA A100", busy=1)
    assert [gpu["model"] for gpu in client.gpu_list()] == ["NVIDIA GeForce RTX 4090", "NVIDIA A100"]
    assert client.node_get("node01")["state"] == "READY"
    assert client.usage()["gpus"] == {"total": 2, "idle": 1, "busy": 1, "maintenance": 0}
    with pytest.raises(NebulaError) as caught:
        client.node_drain("node01", reason="fans")
    assert caught.value.status == 403
    assert client.healthz()["status"] == "ok"


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ngt_ü"])
def test_what_is_no_token_never_becomes_a_header(token: str, api: FakeApi) -> None:
    with pytest.raises(NebulaError, match="not a token"):
        NebulaClient(api.url, token)


def test_the_token_is_in_no_text_of_the_client(api: FakeApi) -> None:
    with NebulaClient(api.url, "ngt_secret") as client:
        assert "ngt_secret" not in repr(client)
        with pytest.raises(NebulaError) as caught:
            client.me()
    assert "ngt_secret" not in repr(caught.value)
    assert caught.value.status == 401


@pytest.fixture
def chinese(api: FakeApi) -> Iterator[NebulaClient]:
    with NebulaClient(api.url, api.token, language="zh-hans") as made:
        yield made


def test_the_control_plane_is_told_the_readers_language(chinese: NebulaClient, api: FakeApi) -> None:
    chinese.me()
    assert api.seen[-1].headers["accept-language"] == "zh-hans"
