"""Attacks on the web process: none of them needs more than an account, most of them need none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.http import HttpResponse
from django.test import Client
from django.urls import get_resolver

from jobs import logs
from jobs.models import Rank
from jobs.services.schedule import pass_run
from nebulagrid.access import routes_mounted
from nebulagrid.handler import PooledHandler
from nebulagrid.headers import headers_due
from nodes.text import text_clean
from quotas.human_text import DATA_FIELDS, is_seen
from tests.edge_lab import Peer, asked, peers_close
from tests.factories import node_header, node_make, user_make
from tests.jobs.lab import Lab
from tests.rest import Api, no_redis  # noqa: F401
from tests.test_handler import get
from tests.waiting import PATIENCE_S, until, wait_until
from tests.world import BODIES, World, world_make

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


# --- a web process without a server in front of it ------------------------------------------------------------------


class WebProcess:
    """The real one, on a data folder of its own."""

    def __init__(self, data: Path, **settings: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        own = {"NEBULA_DATA": str(data), "NEBULA_PORT": str(self.port), "NEBULA_ROLE": "web", "NEBULA_LOG_LEVEL": "ERROR"}
        env = {name: value for name, value in os.environ.items() if not name.startswith(("NEBULA_", "DJANGO_", "PYTEST_"))}
        self.process = subprocess.Popen([sys.executable, "-m", "nebulagrid.web"], env={**env, **own, **settings})
        wait_until(self.answers, "the web process answers")

    def answers(self) -> bool:
        assert self.process.poll() is None, "the web process ended"
        try:
            return asked(self.port, "/healthz")[0] == 200
        except OSError:
            return False

    def peak_mib(self) -> float:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def stop(self) -> None:
        peers_close()
        self.process.terminate()
        assert self.process.wait(PATIENCE_S) == -signal.SIGTERM


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebProcess]:
    limits = {"HEADER_S": "2", "BODY_S": "2", "IDLE_S": "2", "CONNECTIONS_EACH": "500"}
    process = WebProcess(tmp_path, TMPDIR=str(tmp_path), **{f"NEBULA_WEB_{name}": value for name, value in limits.items()})
    yield process
    process.stop()


def test_hundreds_of_half_sent_requests_cost_little_and_are_closed_in_time(web: WebProcess, tmp_path: Path) -> None:
    before = web.peak_mib()
    headers = [Peer(web.port) for _ in range(250)]
    for peer in headers:
        peer.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-One: ")
    announced = [Peer(web.port) for _ in range(30)]
    for peer in announced:
        peer.send(b"POST /accounts/login/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 4_000_000)
    chunked = [Peer(web.port) for _ in range(30)]
    for peer in chunked:
        peer.send(b"POST /accounts/login/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3D090\r\n" + b"x" * 200_000)
    assert web.answers(), "everybody else is served meanwhile"
    assert {peer.status() for peer in announced} <= {413, 0}
    assert {peer.status() for peer in chunked} <= {413, 0}
    assert {peer.status() for peer in headers} == {408}
    assert web.peak_mib() - before < 64
    assert [path for path in tmp_path.iterdir() if path.name.startswith("tmp")] == []


def test_a_header_of_80_mib_is_refused_at_its_beginning(web: WebProcess) -> None:
    before = web.peak_mib()
    peers = [Peer(web.port) for _ in range(4)]
    for peer in peers:
        peer.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-One: ")
        for _ in range(80):
            if not peer.send(b"a" * 1024 * 1024):
                break
        else:
            pytest.fail("80 MiB of headers were taken")
    assert {peer.status() for peer in peers} <= {431, 0}
    assert web.peak_mib() - before < 16
    assert web.answers()


def test_every_answer_has_the_headers_that_keep_a_browser_from_harm(web: WebProcess) -> None:
    for method, path in (
        ("GET", "/healthz"),
        ("GET", "/static/nothing.css"),
        ("GET", "/static/css/tokens.css"),
        ("GET", "/favicon.ico"),
        ("GET", "/install.sh"),
        ("GET", "/nothing"),
        ("PUT", "/accounts/login/"),
        ("GET", "/%00"),
        ("GET", "/api/v1/me"),
        ("GET", "/api/agent/v1/sync"),
        ("GET", "/metrics"),
        ("BREW", "/"),
    ):
        status, headers, _body = asked(web.port, path, method=method)
        for name, _value in headers_due():
            assert name.decode() in headers, (path, status, name)
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path


# --- passwords: nobody guesses one, and nobody is locked out ------------------------------------------------------------

PASSWORD = "correct horse"


def tried(door: str, email: str, password: str, address: str, client: Client | None = None) -> int:
    """The status of one try; 200 = in."""
    client = client or Client()
    if door == "api":
        body = json.dumps({"email": email, "password": password, "name": "x"})
        answer = client.post("/api/v1/token", body, content_type="application/json", REMOTE_ADDR=address)
        return 200 if answer.status_code == 201 else answer.status_code
    answer = client.post("/accounts/login/", {"login": email, "password": password}, REMOTE_ADDR=address)
    return {302: 200, 200: 401}.get(answer.status_code, answer.status_code)


def test_sixty_wrong_passwords_from_twelve_addresses_at_two_doors_meet_one_count() -> None:
    user_make("lin@lab.example", password=PASSWORD)
    found = [
        tried("api" if number % 2 else "page", "LIN@lab.example " if number % 2 else "lin@lab.example", "wrong", f"198.51.{address}.7")
        for number in range(5)
        for address in range(12)
    ]
    # 12 first tries and 8 more, whichever door they came by; then nobody's address has one left.
    assert (found[:20], set(found[20:])) == ([401] * 20, {429})
    # The right one from a place that tried is refused like a wrong one.
    assert tried("api", "lin@lab.example", PASSWORD, "198.51.3.99") == 429


def test_an_account_that_does_not_exist_is_counted_the_same() -> None:
    found = [tried("api", "nobody@lab.example", "wrong", f"198.51.{number}.7") for number in range(20)]
    assert (found, tried("page", "nobody@lab.example", "wrong", "198.51.3.7")) == ([401] * 20, 429)


@pytest.mark.parametrize("door", ["api", "page"])
def test_a_stranger_locks_nobody_out(door: str) -> None:
    user_make("lin@lab.example", password=PASSWORD)
    own = Client()
    assert tried("page", "lin@lab.example", PASSWORD, "192.0.2.1", own) == 200
    own.post("/accounts/logout/")
    for number in range(60):
        tried(door, "lin@lab.example", "wrong", f"198.51.{number}.7")
    assert tried(door, "lin@lab.example", "wrong", "198.51.3.7") == 429
    assert tried("page", "lin@lab.example", PASSWORD, "198.51.3.9", own) == 200, "her own device, wherever it is"
    assert tried(door, "lin@lab.example", PASSWORD, "203.0.113.5") == 200, "another machine, from where nobody has tried"


def test_a_known_device_is_no_licence_to_guess() -> None:
    user_make("lin@lab.example", password=PASSWORD)
    own = Client()
    assert tried("page", "lin@lab.example", PASSWORD, "192.0.2.1", own) == 200
    own.post("/accounts/logout/")
    found = [tried("page", "lin@lab.example", "wrong", f"192.0.{number}.1", own) for number in range(12)]
    assert found == [401] * 10 + [429] * 2
    own.cookies["device"] = own.cookies["device"].value[:-2] + "xx"  # what we did not sign is worth nothing
    assert tried("page", "lin@lab.example", "wrong", "198.51.100.1", own) == 401


def test_asking_for_the_password_again_counts_too() -> None:
    user_make("lin@lab.example", password=PASSWORD)
    thief = Client()
    assert tried("page", "lin@lab.example", PASSWORD, "192.0.2.1", thief) == 200
    found = [thief.post("/accounts/reauthenticate/", {"password": "wrong"}, REMOTE_ADDR="192.0.2.1").status_code for _ in range(12)]
    assert found == [200] * 10 + [429] * 2


# --- text that says something else than it shows, and days at the edge of the calendar -----------------------------------

UNSEEN = ("\x1b[2J", "\x07", "\x9b31m", "\u202egpj.exe", "\u2066", "\u200f", "\x7f", "\u2028")


@pytest.fixture
def world(tmp_path: Path, settings: Any) -> World:
    settings.LOG_DIR, settings.ARTIFACT_DIR = settings.LOG_DIR, settings.ARTIFACT_DIR  # so that they are put back
    return world_make(tmp_path)


def with_sign(value: Any, sign: str) -> Iterator[Any]:
    """The body again and again, each time with the sign at the end of another text that people read."""
    for key, inner in value.items():
        if key in DATA_FIELDS:
            continue
        if isinstance(inner, str):
            yield {**value, key: inner + sign}
        elif isinstance(inner, list) and inner and isinstance(inner[0], str):
            yield {**value, key: [inner[0] + sign, *inner[1:]]}
        elif isinstance(inner, dict):
            yield from ({**value, key: changed} for changed in with_sign(inner, sign))


def test_text_that_is_not_seen_is_refused_by_every_door_of_the_api(world: World, settings: Any) -> None:
    settings.THROTTLE_ANONYMOUS = "off"
    api, tries = Api(world.staff), 0
    for sign in UNSEEN:
        for (method, route), body in BODIES.items():
            for changed in with_sign(body, sign):
                for data in (json.dumps(changed).encode(), json.dumps(changed, ensure_ascii=False).encode()):
                    answer = api.call(method, world.path(route), raw=data)
                    assert answer.status_code in (400, 404), (route, changed, answer.content)  # 404: another's, for an administrator, too
                    tries += answer.status_code == 400
    assert tries > 300


@pytest.mark.parametrize("sign", UNSEEN, ids=ascii)
def test_text_that_is_not_seen_is_refused_by_every_form(world: World, sign: str) -> None:
    page = Client()
    page.force_login(world.staff, backend="allauth.account.auth_backends.AuthenticationBackend")
    for path, form in (
        ("/admin/quotas/project/add/", {"name": "vision", "title": f"Vision{sign}"}),
        ("/nodes/node-a/drain/", {"reason": f"fans{sign}"}),
        ("/account/", {"first_name": f"Lin{sign}"}),
        ("/account/tokens/new/", {"name": f"ci{sign}", "scopes": "read"}),
    ):
        answer = page.post(path, form)
        assert answer.status_code == 400, path
        assert "control characters" in answer.content.decode(), path


def test_what_is_text_and_what_is_data_passes(world: World) -> None:
    api = Api(world.staff)
    names = ("训练 ☠", "تدريب", "אימון", "👩\u200d🔬 run", 'it\'s "$(here)"')
    argv = ["printf", "\x1b[31mred\x07\u202e"]
    for name in names:
        status, body = api.post("/jobs/submit", {"name": name, "argv": argv, "env": {"PS1": "\x1b]0;x\x07"}, "gpu_count": 0, "cpus": 1})
        assert status in (201, 409, 403), body
        assert "direction" not in json.dumps(body)
    assert is_seen("a\tb\r\nc")


def test_what_a_machine_says_is_shown_with_signs_in_place_of_what_is_not_seen() -> None:
    assert text_clean("RTX\x1b[2J\u202e 4090\n") == "RTX\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER} 4090\n"


#: Each in the zone where it is hardest to tell.
MOMENTS = (
    ("Etc/GMT+12", "9999-12-31T23:59:59-23:59"),
    ("Pacific/Kiritimati", "9999-12-31T23:59:59Z"),
    ("Pacific/Kiritimati", "0001-01-01"),
    ("Pacific/Kiritimati", "0001-01"),
    ("Etc/GMT+12", "2999-12"),
)


def test_no_day_at_the_edge_of_the_calendar_breaks_a_page(world: World) -> None:
    visitor = Client(raise_request_exception=False)
    visitor.force_login(world.staff, backend="allauth.account.auth_backends.AuthenticationBackend")
    broken, asked = [], 0
    for route, _view in routes_mounted(get_resolver().url_patterns):
        path = world.path(route) if "<" in route else f"/{route}"
        if route.startswith(("admin/", "accounts/", "dist/", "install", "api/agent/")) or set("<^(") & set(path):
            continue
        for zone, text in MOMENTS:
            visitor.cookies["zone"] = zone
            query = dict.fromkeys(("since", "until", "from", "to", "month", "day"), text)
            answer = visitor.get(path if path.startswith("/") else f"/{path}", query, headers={"time-zone": zone})
            asked += answer.status_code in (200, 400)
            if answer.status_code >= 500:
                broken.append((path, text))
            elif answer.status_code not in (200, 400):
                break
    assert broken == []
    assert asked > 150


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_a_time_that_no_zone_can_tell_is_refused_where_it_would_be_kept(world: World, text: str) -> None:
    api = Api(world.staff)
    for path, body in (("/nodes/node-a/drain", {"reason": "fans", "until": text}), ("/alerts/mutes/", {"reason": "fans", "until": text})):
        status, found = api.post(path, body)
        assert (status, list(found["fields"])) == (400, ["until"]), path
    page = Client()
    page.force_login(world.staff, backend="allauth.account.auth_backends.AuthenticationBackend")
    assert page.get("/audit/", {"since": text}).status_code == 400
    assert page.post("/nodes/node-a/drain/", {"reason": "fans", "until": text[:19]}).status_code == 400
