"""The web process's handler: pages and API through the pooled chain, static files before it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.test import Client

from jobs import waits
from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.services.moves import jobs_move
from nebulagrid.handler import PooledHandler
from quotas.models import User
from quotas.tokens import token_create
from tests.factories import job_make, node_header, node_make
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.django_db(transaction=True)


async def get(handler: PooledHandler, path: str, language: str = "en") -> tuple[int, dict[str, str], bytes]:
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"accept-language", language.encode())],
        "client": ("127.0.0.1", 5),
    }
    app = ApplicationCommunicator(handler, scope)
    await app.send_input({"type": "http.request", "body": b""})
    start = await app.receive_output(PATIENCE_S)
    body = b""
    while True:
        part = await app.receive_output(PATIENCE_S)
        body += part.get("body", b"")
        if not part.get("more_body"):
            break
    await app.wait(PATIENCE_S)
    return start["status"], {k.decode().lower(): v.decode() for k, v in start["headers"]}, body


@pytest.fixture
def handler(settings) -> PooledHandler:  # type: ignore[no-untyped-def]
    settings.SERVESTATIC_USE_FINDERS = True
    return PooledHandler()


async def test_pages_and_static_files_are_served_with_the_same_headers(handler: PooledHandler) -> None:
    for path, kind in (("/healthz", "application/json"), ("/static/css/tokens.css", "text/css")):
        status, headers, body = await get(handler, path)
        assert (status, headers["content-type"].split(";")[0]) == (200, kind)
        assert body
        assert "script-src 'self'" in headers["content-security-policy"]


async def test_a_static_file_that_is_not_there_costs_no_page(handler: PooledHandler) -> None:
    assert (await get(handler, "/static/nothing.css"))[0] == 404


async def test_requests_in_parallel_keep_their_own_language(handler: PooledHandler) -> None:
    languages = ["en", "zh-hans"] * 8
    answers = await asyncio.gather(*(get(handler, "/api/v1/me", language) for language in languages))
    assert {status for status, _, _ in answers} <= {401, 429}
    texts = {
        language: {body for got, (status, _, body) in zip(languages, answers, strict=True) if got == language and status == 401}
        for language in ("en", "zh-hans")
    }
    assert all(len(found) <= 1 for found in texts.values())


async def send(handler: PooledHandler, path: str, *pieces: bytes, **headers: str) -> int:
    names = {"host": "localhost", **headers}
    scope = {
        "type": "http",
        "method": "PUT",
        "path": path,
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in names.items()],
        "client": ("127.0.0.1", 5),
    }
    app = ApplicationCommunicator(handler, scope)
    for at, piece in enumerate(pieces):
        await app.send_input({"type": "http.request", "body": piece, "more_body": at + 1 < len(pieces)})
    start = await app.receive_output(PATIENCE_S)
    while (await app.receive_output(PATIENCE_S)).get("more_body"):
        pass
    await app.wait(PATIENCE_S)
    return int(start["status"])


async def test_a_large_body_is_taken_from_who_is_known_only(handler: PooledHandler, settings, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("nebulagrid.bodies.SMALL", 500)
    monkeypatch.setattr("nebulagrid.handler.SMALL", 500)
    monkeypatch.setattr("nebulagrid.bodies.LARGE", 1000)
    monkeypatch.setattr("nebulagrid.handler.PARTING_S", 0.01)
    settings.ARTIFACT_CAP_MIB = 1
    node = await sync_to_async(node_make)("n1")
    ours = {"authorization": node_header(node)}
    someone = await sync_to_async(User.objects.create_user)(email="a@example.org", password="correct horse")
    token = {"authorization": f"Bearer {(await sync_to_async(token_create)(user=someone, name='t'))[1]}"}
    path = "/api/agent/v1/artifacts/1.1.0/x"
    big = b"x" * 450
    wrong = {"authorization": f"Node {node.pk}:{'0' * 64}"}
    # Nobody in particular: refused whether the length is announced or not, and an agent in a way that it comes again.
    for where, who, status in (("/accounts/login/", {}, 413), ("/api/v1/jobs/", {}, 401), (path, {}, 401), (path, wrong, 401)):
        assert await send(handler, where, big, big, **who) == status
        assert await send(handler, where, b"", content_length="501", **who) == status
    # Known senders: as much as their route takes.
    for where, who, status in (("/api/agent/v1/sync", ours, 405), ("/api/v1/jobs/", token, 405)):
        assert await send(handler, where, big, big, **who) == status
        assert await send(handler, where, big, big, big, **who) == 413
        assert await send(handler, where, b"", content_length="1001", **who) == 413
    assert await send(handler, path, big, big, big, **ours) == 404  # there is no such rank, but the node may send that much
    assert await send(handler, path, b"", content_length=str(1024 * 1024 + 1001), **ours) == 413
    assert handler._room.held == {}


async def test_a_session_counts_as_a_credential_and_a_cookie_that_is_none_does_not(handler: PooledHandler, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("nebulagrid.bodies.SMALL", 500)
    monkeypatch.setattr("nebulagrid.handler.SMALL", 500)
    someone = await sync_to_async(User.objects.create_user)(email="a@example.org", password="correct horse")
    client = Client()
    await sync_to_async(client.force_login)(someone)
    session = client.cookies["sessionid"].value
    assert await send(handler, "/jobs/new/", b"x" * 600, cookie=f"sessionid={session}") == 403  # without a CSRF token, but it was read
    assert await send(handler, "/jobs/new/", b"x" * 600, cookie="sessionid=nonsense") == 413


async def test_there_is_room_for_so_much_at_a_time_and_no_sender_gets_more_than_half(handler: PooledHandler, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("nebulagrid.bodies.SMALL", 500)
    monkeypatch.setattr("nebulagrid.handler.SMALL", 500)
    handler._room.most = 4000
    first, second = await sync_to_async(node_make)("n1"), await sync_to_async(node_make)("n2")
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/api/agent/v1/logs/1.1.0",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-length", b"1500"), (b"authorization", node_header(first).encode())],
        "client": ("127.0.0.1", 5),
    }
    app = ApplicationCommunicator(handler, scope)
    await app.send_input({"type": "http.request", "body": b"x", "more_body": True})  # and the rest never comes
    await until(lambda: handler._room.held.total() == 1500, "its room is taken")
    logs = "/api/agent/v1/logs/1.1.0"
    assert await send(handler, logs, b"x" * 600, authorization=node_header(first)) == 503
    assert await send(handler, logs, b"x" * 600, authorization=node_header(second)) == 400
    await app.send_input({"type": "http.disconnect"})
    await app.wait(PATIENCE_S)
    assert handler._room.held == {}
    assert await send(handler, logs, b"x" * 600, authorization=node_header(first)) == 400


# --- waiting --------------------------------------------------------------------------------------------------------


async def ask_to_wait(handler: PooledHandler, path: str, token: str) -> ApplicationCommunicator:
    scope = {
        "type": "http",
        "method": "GET",
        "path": path.partition("?")[0],
        "query_string": path.partition("?")[2].encode(),
        "headers": [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())],
        "client": ("127.0.0.1", 5),
    }
    app = ApplicationCommunicator(handler, scope)
    await app.send_input({"type": "http.request", "body": b""})
    return app


async def waited_for(job: Job) -> None:
    while job.pk not in waits._watch._waiting:
        await asyncio.sleep(0.01)


async def answer_of(app: ApplicationCommunicator) -> tuple[int, dict[str, Any]]:
    start = await app.receive_output(PATIENCE_S)
    body = (await app.receive_output(PATIENCE_S))["body"]
    await app.wait(PATIENCE_S)
    return start["status"], json.loads(body)


def waiting_job() -> tuple[Job, str]:
    job = job_make(state=JobState.WAITING)
    return job, token_create(user=job.owner, name="ci")[1]


def end(job: Job) -> None:
    jobs_move([job.pk], to=JobState.CANCELLED, code="cancelled", fields={"end_reason": "cancelled", "wait_code": "", "wait_params": {}})


async def test_a_wait_holds_no_thread_and_answers_with_the_end(settings: Any) -> None:
    settings.WEB_THREADS = 1
    handler = PooledHandler()
    job, token = await sync_to_async(waiting_job)()
    apps = [await ask_to_wait(handler, f"/api/v1/jobs/{job.pk}/wait?timeout=20", token) for _ in range(8)]
    assert (await get(handler, "/healthz"))[0] == 200, "the one thread is free"
    await asyncio.wait_for(waited_for(job), PATIENCE_S)
    assert all([await app.receive_nothing(0.01) for app in apps])
    await sync_to_async(end)(job)
    for app in apps:
        status, body = await answer_of(app)
        assert (status, body["id"], body["state"]) == (200, job.pk, "CANCELLED")


async def test_a_wait_ends_with_its_time_and_with_another_state_than_the_known_one(handler: PooledHandler) -> None:
    job, token = await sync_to_async(waiting_job)()
    assert (await answer_of(await ask_to_wait(handler, f"/api/v1/jobs/{job.pk}/wait?timeout=0", token)))[1]["state"] == "WAITING"
    path = f"/api/v1/jobs/{job.pk}/wait?timeout=20&state=RUNNING"
    assert (await answer_of(await ask_to_wait(handler, path, token)))[1]["state"] == "WAITING"
    for wrong in ("timeout=26", "timeout=x", "state=GONE"):
        assert (await answer_of(await ask_to_wait(handler, f"/api/v1/jobs/{job.pk}/wait?{wrong}", token)))[0] == 400


async def test_who_is_switched_off_while_waiting_is_told_nothing(handler: PooledHandler) -> None:
    job, token = await sync_to_async(waiting_job)()
    app = await ask_to_wait(handler, f"/api/v1/jobs/{job.pk}/wait?timeout=20", token)
    await asyncio.wait_for(waited_for(job), PATIENCE_S)

    def switch_off() -> None:
        User.objects.filter(pk=job.owner_id).update(is_active=False)
        end(job)

    await sync_to_async(switch_off)()
    assert (await answer_of(app))[0] == 401


async def test_who_is_switched_off_does_not_wait_on_though_the_job_goes_on(handler: PooledHandler, monkeypatch: Any) -> None:
    assert waits.LAP_S < 5
    monkeypatch.setattr(waits, "LAP_S", 0.1)
    job, token = await sync_to_async(waiting_job)()
    app = await ask_to_wait(handler, f"/api/v1/jobs/{job.pk}/wait?timeout=20", token)
    await asyncio.wait_for(waited_for(job), PATIENCE_S)
    await sync_to_async(User.objects.filter(pk=job.owner_id).update)(is_active=False)
    assert (await answer_of(app))[0] == 401


async def test_who_goes_away_is_waited_for_by_nobody(handler: PooledHandler) -> None:
    job, token = await sync_to_async(waiting_job)()
    app = await ask_to_wait(handler, f"/api/v1/jobs/{job.pk}/wait?timeout=20", token)
    await asyncio.wait_for(waited_for(job), PATIENCE_S)
    await app.send_input({"type": "http.disconnect"})
    await app.wait(PATIENCE_S)
    assert not waits._watch._waiting
