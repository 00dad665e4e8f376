"""Attacks on the web process: none of them needs more than an account, most of them need none."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from django.db import OperationalError
from django.http import HttpResponse

from jobs import logs
from jobs.models import Rank
from jobs.services.schedule import pass_run
from nebulagrid.handler import PooledHandler
from tests.factories import node_header, node_make
from tests.jobs.lab import Lab
from tests.test_handler import get
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.django_db(transaction=True)


# --- one person's work must not stop everybody's ------------------------------------------------------------------


class Stuck:
    """A handler in which what is asked for under some paths takes until the test says so."""

    def __init__(self, handler: PooledHandler, *prefixes: str) -> None:
        self.gate, self.inside = threading.Event(), 0
        answer = handler.get_response

        def slow(request: Any) -> Any:
            if request.path.startswith(prefixes):
                self.inside += 1
                assert self.gate.wait(PATIENCE_S)
                return HttpResponse("late")
            return answer(request)

        handler.get_response = slow  # type: ignore[method-assign]


async def test_slow_pages_leave_agents_and_the_health_check_alone() -> None:
    handler = PooledHandler()
    stuck = Stuck(handler, "/jobs/")
    pages = [asyncio.create_task(get(handler, "/jobs/1/")) for _ in range(40)]
    await until(lambda: stuck.inside > 0, "pages are slow")
    assert (await asyncio.wait_for(get(handler, "/healthz"), PATIENCE_S))[0] == 200
    assert (await asyncio.wait_for(get(handler, "/api/agent/v1/sync"), PATIENCE_S))[0] == 405
    stuck.gate.set()
    assert {answer[0] for answer in await asyncio.gather(*pages)} == {200}


async def test_slow_output_of_jobs_leaves_the_reports_of_agents_alone() -> None:
    handler = PooledHandler()
    stuck = Stuck(handler, "/api/agent/v1/logs/", "/api/agent/v1/artifacts/")
    chunks = [asyncio.create_task(get(handler, "/api/agent/v1/logs/1.1.0")) for _ in range(40)]
    await until(lambda: stuck.inside > 0, "output is slow")
    assert (await asyncio.wait_for(get(handler, "/api/agent/v1/sync"), PATIENCE_S))[0] == 405
    assert (await asyncio.wait_for(get(handler, "/api/v1/me"), PATIENCE_S))[0] == 401
    stuck.gate.set()
    await asyncio.gather(*chunks)


async def test_a_queue_without_an_end_is_refused_with_a_time_to_come_again() -> None:
    handler = PooledHandler()
    handler._lanes["people"].waiting_most = 3
    stuck = Stuck(handler, "/api/v1/jobs")
    calls = [asyncio.create_task(get(handler, "/api/v1/jobs")) for _ in range(12)]
    await until(lambda: sum(call.done() for call in calls) == 12 - 3 - 3, "all but three at work and three that wait")
    status, headers, body = await next(call for call in calls if call.done())
    assert (status, headers["retry-after"]) == (503, "2")
    assert b"try again in a moment" in body
    assert headers["x-content-type-options"] == "nosniff"
    stuck.gate.set()
    await asyncio.gather(*calls)


@pytest.mark.parametrize("path", ["/api/agent/v1/sync", "/api/v1/jobs/", "/accounts/login/"])
def test_a_database_that_is_busy_for_too_long_asks_to_come_again(client: Any, monkeypatch: Any, path: str) -> None:
    def locked(*args: Any, **more: Any) -> Any:
        raise OperationalError("database is locked")

    monkeypatch.setattr("jobs.agent_api.node_authenticate", locked)
    monkeypatch.setattr("quotas.auth.credential_open", locked)
    monkeypatch.setattr("allauth.account.views.LoginView.post", locked)
    client.raise_request_exception = False
    answer = client.post(path, headers={"authorization": "Bearer ngt_x"})
    assert (answer.status_code, answer["Retry-After"]) == (503, "2")


def test_a_chunk_that_is_sent_twice_at_once_is_told_to_come_again(client: Any) -> None:
    node = node_make("n1", cards=1)
    Lab().submit()
    pass_run()
    rank = Rank.objects.get()
    with logs._locked(logs.log_path(rank.key)):
        answer = client.put(
            f"/api/agent/v1/logs/{rank.key}?offset=0",
            data=b"abc",
            content_type="application/octet-stream",
            headers={"authorization": node_header(node)},
        )
    assert (answer.status_code, answer["Retry-After"]) == (409, "1")
    assert answer.json() == {"code": "busy", "message": "another chunk of this log is being written", "fields": {}, "length": 0}
