"""WebSockets: an agent hears "sync" and nothing else; a person hears of what he may see and nothing else."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator

import pytest
from asgiref.sync import sync_to_async
from channels.layers import channel_layers, get_channel_layer
from channels.routing import URLRouter
from django.conf import settings as django_settings
from django.db import connection
from django.test import Client

from nebulagrid.gate import may_watch
from nodes import consumers, live
from nodes.consumers import CLOSE_FORBIDDEN, CLOSE_NOT_FOUND, CLOSE_UNAUTHENTICATED, is_own_origin
from nodes.models import Node, NodeState
from quotas.models import User
from quotas.tokens import token_create
from tests.factories import job_make, node_header, node_make, user_make
from tests.sockets import Socket

pytestmark = pytest.mark.django_db(transaction=True)
HOST = "testserver"
ORIGIN = f"http://{HOST}"


@pytest.fixture(autouse=True)
def in_memory(settings, monkeypatch) -> Iterator[None]:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.ALLOWED_HOSTS = [HOST]
    monkeypatch.setattr(consumers, "_user_for_token", lambda token: User.objects.filter(email=f"{token}@lab.example").first())
    monkeypatch.setattr(
        consumers, "_may_watch", lambda user, topic: topic == f"job.{user.pk * 10}" or (topic[:4] != "job." and may_watch(user, topic))
    )
    yield
    channel_layers.backends.clear()


@pytest.fixture(autouse=True)
async def close_thread_connection():
    """The connection of the thread that asgiref runs SQL in; else it would outlive the test and lock the flush."""
    yield
    await sync_to_async(lambda: connection.close())()


def socket(path: str, **headers: str) -> Socket:
    return Socket(URLRouter(consumers.websocket_urlpatterns), path, host=HOST, **headers)


# --- agents ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def node() -> Node:
    return node_make()


@pytest.mark.parametrize("path", ["/", "/ws/live/", "/ws/nothing", "/api/agent/v1/ws/x"])
async def test_an_address_that_is_none_is_refused_without_an_error(path):
    assert await socket(path).connect() == CLOSE_NOT_FOUND


async def test_an_agent_hears_sync_at_once_and_at_each_nudge(node):
    agent = socket("/api/agent/v1/ws", authorization=node_header(node))
    assert await agent.connect() is None
    assert await agent.hear() == "sync"
    await get_channel_layer().group_send(live.agent_group(node.pk), {"type": "agent.sync"})
    assert await agent.hear() == "sync"
    # What people watch does not reach the agent, nor another node's nudge.
    await get_channel_layer().group_send(live.group_of(f"node.{node.pk}"), {"type": "live.message", "text": "{}"})
    await get_channel_layer().group_send(live.agent_group(node.pk + 1), {"type": "agent.sync"})
    assert await agent.receive_nothing(0.05)
    await agent.leave()
    assert get_channel_layer().groups == {}


@pytest.mark.parametrize("header", ["", "Node 1", "Node 1:{wrong}", "Bearer {wrong}"])
async def test_an_agent_without_its_credential_is_turned_away(node, header):
    agent = socket("/api/agent/v1/ws", **({"authorization": header.replace("{wrong}", "f" * 64)} if header else {}))
    assert await agent.connect() == CLOSE_UNAUTHENTICATED


async def test_a_retired_nodes_agent_is_turned_away(node):
    await Node.objects.filter(pk=node.pk).aupdate(state=NodeState.RETIRED)
    assert await socket("/api/agent/v1/ws", authorization=node_header(node)).connect() == CLOSE_UNAUTHENTICATED


async def test_what_an_agent_says_is_ignored(node):
    agent = socket("/api/agent/v1/ws", authorization=node_header(node))
    await agent.connect()
    await agent.hear()
    await agent.say("x" * 100_000)
    await get_channel_layer().group_send(live.agent_group(node.pk), {"type": "agent.sync"})
    assert await agent.hear() == "sync"
    await agent.leave()


# --- people -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example")


@pytest.fixture
def cookie(lin) -> str:
    client = Client()
    client.force_login(lin, backend=django_settings.AUTHENTICATION_BACKENDS[0])
    return f"{django_settings.SESSION_COOKIE_NAME}={client.cookies[django_settings.SESSION_COOKIE_NAME].value}"


async def test_a_person_hears_of_himself_and_of_what_he_asked_for(lin):
    me = socket("/ws/live", authorization="Bearer lin")
    assert await me.connect() is None
    mine = f"job.{lin.pk * 10}"
    assert await me.ask({"subscribe": [mine, "pool"]}) == {"topics": sorted([mine, "pool", f"user.{lin.pk}"]), "refused": []}
    for topic in (f"user.{lin.pk}", mine, "pool"):
        await get_channel_layer().group_send(live.group_of(topic), {"type": "live.message", "text": json.dumps({"topic": topic})})
        assert json.loads(await me.hear()) == {"topic": topic}
    assert await me.ask({"unsubscribe": [mine]}) == {"topics": sorted(["pool", f"user.{lin.pk}"]), "refused": []}
    await get_channel_layer().group_send(live.group_of(mine), {"type": "live.message", "text": "{}"})
    assert await me.receive_nothing(0.05)
    await me.leave()
    assert get_channel_layer().groups == {}


async def test_what_he_may_not_see_is_refused_like_what_does_not_exist(lin):
    me = socket("/ws/live", authorization="Bearer lin")
    await me.connect()
    other = f"job.{lin.pk * 10 + 1}"
    wanted = [
        other,
        "job.0",
        "job.-1",
        "job.999999999999999999999",
        "job.x",
        f"user.{lin.pk + 1}",
        "node.1",
        "agent.1",
        "live.pool",
        "",
        "*",
    ]
    answer = await me.ask({"subscribe": wanted})
    assert answer == {"topics": [f"user.{lin.pk}"], "refused": wanted}
    await get_channel_layer().group_send(live.group_of(other), {"type": "live.message", "text": "{}"})
    assert await me.receive_nothing(0.05)
    await me.leave()


def test_until_configured_nobody_sees_a_job_and_no_token_opens(lin):
    assert consumers._nothing(lin, 1) is False
    assert consumers._nobody("lin") is None


async def test_in_the_real_application_a_token_opens_own_jobs_only(lin, monkeypatch):
    monkeypatch.setattr(consumers, "_user_for_token", consumers._nobody)
    monkeypatch.setattr(consumers, "_may_watch", consumers._nothing)
    from nebulagrid import asgi

    importlib.reload(asgi)  # hands the real rules in, whoever imported it before
    secret, mine, others = await sync_to_async(lambda: (token_create(user=lin, name="cli")[1], job_make(lin).pk, job_make().pk))()
    me = Socket(asgi.application, "/ws/live", host=HOST, authorization=f"Bearer {secret}")
    assert await me.connect() is None
    answer = await me.ask({"subscribe": [f"job.{mine}", f"job.{others}", f"job.{others + 1}"]})
    assert answer == {"topics": [f"job.{mine}", f"user.{lin.pk}"], "refused": [f"job.{others}", f"job.{others + 1}"]}
    await me.leave()
    assert await Socket(asgi.application, "/ws/live", host=HOST, authorization=f"Bearer {secret}x").connect() == CLOSE_UNAUTHENTICATED


@pytest.mark.parametrize(
    "message", ["x", "[]", "{}", '{"subscribe": "pool"}', '{"subscribe": [1]}', "[" * 5000, '{"subscribe": ["' + "a" * 20_000 + '"]}']
)
async def test_a_message_that_is_none_gets_one_sentence_and_the_line_stays(lin, message):
    me = socket("/ws/live", authorization="Bearer lin")
    await me.connect()
    assert (await me.ask(message))["error"]["code"] == "bad_message"
    assert (await me.ask({"subscribe": ["pool"]}))["refused"] == []
    await me.leave()


async def test_one_connection_has_so_many_topics_at_most(lin, monkeypatch):
    monkeypatch.setattr(consumers, "TOPICS_MAX", 2)
    me = socket("/ws/live", authorization="Bearer lin")
    await me.connect()
    answer = await me.ask({"subscribe": ["pool", f"job.{lin.pk * 10}"]})
    assert answer == {"topics": ["pool", f"user.{lin.pk}"], "refused": [f"job.{lin.pk * 10}"]}
    await me.leave()


@pytest.mark.parametrize("header", ["Bearer nobody", "Bearer ", "Basic bGluOng=", "lin"])
async def test_a_wrong_token_never_falls_back_to_the_session(cookie, header):
    me = socket("/ws/live", authorization=header, cookie=cookie, origin=ORIGIN)
    assert await me.connect() == CLOSE_UNAUTHENTICATED


async def test_a_session_opens_from_our_own_page(lin, cookie):
    me = socket("/ws/live", cookie=cookie, origin=ORIGIN)
    assert await me.connect() is None
    assert (await me.ask({"subscribe": []}))["topics"] == [f"user.{lin.pk}"]
    await me.leave()


@pytest.mark.parametrize("origin", ["http://evil.example", "http://testserver:8001", "http://testserver.evil.example", "null", ""])
async def test_a_session_does_not_open_from_another_page(cookie, origin):
    me = socket("/ws/live", cookie=cookie, **({"origin": origin} if origin else {}))
    assert await me.connect() == CLOSE_FORBIDDEN


async def test_a_visitor_without_a_session_is_turned_away():
    assert await socket("/ws/live", origin=ORIGIN).connect() == CLOSE_UNAUTHENTICATED


async def test_a_disabled_user_is_turned_away(lin, cookie):
    await User.objects.filter(pk=lin.pk).aupdate(is_active=False)
    assert await socket("/ws/live", cookie=cookie, origin=ORIGIN).connect() == CLOSE_UNAUTHENTICATED
    assert await socket("/ws/live", authorization="Bearer lin").connect() == CLOSE_UNAUTHENTICATED


@pytest.mark.parametrize(
    ("host", "origin", "own"),
    [
        ("lab.example", "https://lab.example", True),
        ("lab.example:8000", "http://LAB.example:8000", True),
        ("lab.example:8000", "http://lab.example", False),
        ("evil.example", "https://evil.example", False),
        ("inner:8000", "https://front.example", True),
        ("", "https://lab.example", False),
    ],
)
def test_own_origin_is_the_very_host_and_port_or_a_trusted_one(host, origin, own):
    scope = {"headers": [(b"host", host.encode()), (b"origin", origin.encode())]}
    assert is_own_origin(scope, trusted=["https://front.example/"], hosts=["lab.example", "inner"]) is own


def test_two_origins_are_none():
    scope = {"headers": [(b"host", b"lab.example"), (b"origin", b"https://lab.example"), (b"origin", b"https://evil.example")]}
    assert not is_own_origin(scope, trusted=[], hosts=["lab.example"])
