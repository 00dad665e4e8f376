"""An open connection ends when what opened it does: a sign-out, a new password, a revoked token, a disabled account."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.db import OperationalError, connection
from django.test import Client

from jobs.models import Job
from nebulagrid.gate import may_watch
from nodes import consumers, rechecks
from nodes.consumers import CLOSE_UNAUTHENTICATED
from quotas.models import ApiToken, Membership, User
from quotas.tokens import token_authenticate, token_create, token_revoke
from tests.factories import job_make, project_make, user_make
from tests.nodes.test_consumers import HOST, ORIGIN, close_thread_connection, in_memory, socket  # noqa: F401
from tests.sockets import Socket
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def real_tokens(in_memory, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(consumers, "_user_for_token", token_authenticate)


@pytest.fixture
def user() -> User:
    return user_make("member@lab.example")


@pytest.fixture
def browser(user) -> Client:
    client = Client()
    client.force_login(user, backend=django_settings.AUTHENTICATION_BACKENDS[0])
    return client


def page(client: Client) -> Socket:
    name = django_settings.SESSION_COOKIE_NAME
    return socket("/ws/live", cookie=f"{name}={client.cookies[name].value}", origin=ORIGIN)


async def recheck() -> None:
    await rechecks.recheck(user_for_token=token_authenticate)


def sign_out(user: User, client: Client) -> None:
    client.logout()


def new_password(user: User, client: Client) -> None:
    user.set_password("another-9-words")
    user.save()


def disable(user: User, client: Client) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


@pytest.mark.parametrize("act", [sign_out, new_password, disable])
async def test_a_page_is_sent_away(user, browser, act: Callable[[User, Client], None]):
    there, other = (
        page(browser),
        socket("/ws/live", authorization="Bearer " + (await sync_to_async(token_create)(user=user, name="cli"))[1]),
    )
    assert await there.connect() is None
    assert await other.connect() is None
    await recheck()
    assert await there.receive_nothing(0.05)
    await sync_to_async(act)(user, browser)
    await recheck()
    assert await there.receive_output(PATIENCE_S) == {"type": "websocket.close", "code": CLOSE_UNAUTHENTICATED}
    if act is disable:
        assert (await other.receive_output(PATIENCE_S))["type"] == "websocket.close"
    else:  # a token is a door of its own
        assert (await other.ask({"subscribe": []}))["refused"] == []
        await other.leave()


def expire(*, token: ApiToken) -> None:
    ApiToken.objects.filter(pk=token.pk).update(expires_at=token.created_at)


async def test_a_revoked_or_expired_token_is_sent_away(user):
    for end in (token_revoke, expire):
        token, secret = await sync_to_async(token_create)(user=user, name="cli")
        there = socket("/ws/live", authorization=f"Bearer {secret}")
        assert await there.connect() is None
        await recheck()
        assert await there.receive_nothing(0.05)
        await sync_to_async(end)(token=token)
        await recheck()
        assert (await there.receive_output(PATIENCE_S))["code"] == CLOSE_UNAUTHENTICATED


async def test_who_is_no_longer_staff_hears_of_no_node(user, browser):
    await User.objects.filter(pk=user.pk).aupdate(is_staff=True)
    there = page(browser)
    assert await there.connect() is None
    assert (await there.ask({"subscribe": ["node.1", "pool"]}))["refused"] == []
    await User.objects.filter(pk=user.pk).aupdate(is_staff=False)
    await recheck()
    assert await there.hear() == f'{{"topics": ["pool", "user.{user.pk}"], "refused": ["node.1"]}}'
    assert (await there.ask({"subscribe": ["node.1"]}))["refused"] == ["node.1"]
    await there.leave()


async def test_rounds_go_by_themselves_and_outlive_a_database_that_is_away(user, browser, monkeypatch):
    monkeypatch.setattr(rechecks, "EVERY_S", 0.01)
    real, failed = rechecks._users_now, []

    def away_once(*args):
        if not failed:
            failed.append(True)
            raise OperationalError("away")
        return real(*args)

    monkeypatch.setattr(rechecks, "_users_now", away_once)
    there = page(browser)
    assert await there.connect() is None
    await sync_to_async(browser.logout)()
    assert (await there.receive_output(PATIENCE_S))["code"] == CLOSE_UNAUTHENTICATED
    assert failed


class Odd:
    """A connection that breaks when it is told, or takes nothing."""

    def __init__(self, user: User, *, hangs: bool) -> None:
        self.entry, self.hangs = rechecks.Entry(user=user.pk, session_key="x"), hangs

    async def rechecked(self, user: Any, rights: Any) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        raise RuntimeError("closed already")


async def test_one_that_breaks_or_takes_nothing_keeps_no_other_from_being_sent_away(user, browser, monkeypatch):
    monkeypatch.setattr(rechecks, "EVERY_S", 0.05)
    odd = [Odd(user, hangs=True), Odd(user, hangs=False)]
    for one in odd:
        rechecks.watch(one, user_for_token=token_authenticate)
    try:
        there = page(browser)
        assert await there.connect() is None
        await sync_to_async(browser.logout)()
        assert (await there.receive_output(PATIENCE_S))["code"] == CLOSE_UNAUTHENTICATED
    finally:
        for one in odd:
            rechecks.forget(one)


async def test_a_round_costs_three_queries_however_many_are_open(user, browser, django_assert_max_num_queries):
    pages = [page(browser) for _ in range(5)]
    for there in pages:
        assert await there.connect() is None

    def count() -> int:
        connection.ensure_connection()  # its own first statements are not of the round
        with django_assert_max_num_queries(3, connection=connection):
            found = rechecks._users_now([visitor.entry for visitor in rechecks._open], token_authenticate)
        return len([user for user, _rights in found if user is not None])

    assert await sync_to_async(count)() == 5
    for there in pages:
        await there.leave()
    assert not rechecks._open


async def test_who_leaves_a_project_hears_no_more_of_its_jobs(user, monkeypatch):
    def made() -> tuple[Job, str]:
        project = project_make("vision", members=(user,))
        return job_make(project=project), token_create(user=user, name="cli")[1]

    monkeypatch.setattr(consumers, "_may_watch", may_watch)
    job, token = await sync_to_async(made)()
    there = socket("/ws/live", authorization=f"Bearer {token}")
    assert await there.connect() is None
    assert (await there.ask({"subscribe": [f"job.{job.pk}", "pool"]}))["refused"] == []
    await recheck()
    assert await there.receive_nothing(0.05)
    await sync_to_async(Membership.objects.filter(user=user, project=job.project).delete)()
    await recheck()
    assert json.loads(await there.hear())["refused"] == [f"job.{job.pk}"]
    await there.leave()
