"""Told once an episode, in the reader's words, by the ways that the reader chose; and what is sent arrives, or says why not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core import mail
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quotas import notify as door
from quotas.deliver import BACKOFF_S, deliveries_send, notices_prune
from quotas.models import Notice, NoticeChannel, NoticeDelivery, User
from quotas.notice_bodies import outgoing, signature, verdict
from quotas.notify import Kind, Message, fill, kinds_add, notices_read, notify, unread_count
from quotas.sealing import seal, unseal
from quotas.webhooks import Answer, WebhookFailed
from tests.factories import user_make

NOW = datetime(2026, 7, 14, 12, tzinfo=UTC)
KINDS = {
    "meal": Kind(event="node", title="{what} is ready", text="It has {n} plates."),
    "place": Kind(event="start", title=lambda params: f"place {params['n']}"),
}


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "KINDS", {**door.KINDS, **KINDS})


@pytest.fixture
def mail_server(settings: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"


def hook_make(user: User | None, *events: str, **fields: Any) -> NoticeChannel:
    fields = {"format": "generic", "host": "hooks.example.org", "url_sealed": seal("https://hooks.example.org/a"), **fields}
    return NoticeChannel.objects.create(user=user, kind="webhook", events=list(events), **fields)


class Post:
    """Stands where the network is; keeps what would go out."""

    def __init__(self, *ends: Answer | Exception) -> None:
        self.ends, self.sent = list(ends), []

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        self.sent.append((url, body, headers))
        end = self.ends.pop(0) if self.ends else Answer(status=200, body=b"ok")
        if isinstance(end, Exception):
            raise end
        return end


# --- who is told ------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_each_recipient_is_told_once_an_episode() -> None:
    ada, bob = user_make(), user_make()
    assert notify("meal", [ada], {"what": "soup"}, key="soup:1") == 1
    assert notify("meal", [ada, bob.pk, ada], {"what": "soup"}, key="soup:1") == 1
    assert notify("meal", [ada, bob], {"what": "soup"}, key="soup:2") == 2
    assert notify("meal", [ada], {"what": "soup"}) == 1  # without a key each is one
    assert sorted(Notice.objects.values_list("user", flat=True)) == sorted([ada.pk] * 3 + [bob.pk] * 2)


@pytest.mark.django_db
def test_who_is_switched_off_is_told_nothing() -> None:
    gone = user_make(is_active=False)
    assert notify("meal", [gone], {"what": "soup"}) == 0


def test_a_kind_that_nobody_added_is_an_error() -> None:
    with pytest.raises(KeyError):
        notify("no such kind", [])


def test_a_kind_of_no_event_is_refused() -> None:
    with pytest.raises(ValueError, match="no event"):
        kinds_add({"odd": Kind(event="party", title="x")})


@pytest.mark.django_db
def test_pages_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(door, "_tell", told.extend)
    ada = user_make()
    notify("meal", [ada], {}, key="a")
    notify("meal", [ada], {}, key="a")
    assert told == [ada.pk]
    assert unread_count(ada) == 1
    assert notices_read(user=ada, now=NOW) == 1
    assert (unread_count(ada), told) == (0, [ada.pk, ada.pk])


@pytest.mark.django_db
def test_a_hundred_recipients_cost_the_statements_of_one() -> None:
    users = [user_make() for _ in range(30)]
    for user in users:
        hook_make(user, "node")
    with CaptureQueriesContext(
        connection,
    ) as one:
        notify("meal", users[:1], {}, key="one")
    with CaptureQueriesContext(connection) as many:
        notify("meal", users, {}, key="many")
    assert len(many) == len(one)
    assert NoticeDelivery.objects.count() == 31


# --- by which way -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_way_gets_the_events_that_were_chosen_for_it() -> None:
    ada, bob = user_make(), user_make()
    wanted = hook_make(ada, "node")
    hook_make(ada, "start")
    hook_make(ada, "node", is_active=False)
    hook_make(bob, "node")
    notify("meal", [ada], {})
    assert [row.channel for row in NoticeDelivery.objects.select_related("channel")] == [wanted]


@pytest.mark.django_db
def test_the_labs_own_ways_get_what_is_the_labs() -> None:
    lab = hook_make(None, "node")
    notify("meal", [user_make()], {})
    assert not NoticeDelivery.objects.exists()
    assert notify("meal", [], {}, lab=True, key="k") == 1
    assert notify("meal", [], {}, lab=True, key="k") == 0
    assert [row.channel for row in NoticeDelivery.objects.all()] == [lab]


@pytest.mark.django_db
@pytest.mark.usefixtures("mail_server")
def test_without_a_choice_the_weighty_events_are_mailed() -> None:
    ada, bob = user_make(), user_make()
    NoticeChannel.objects.create(user=bob, kind="email", events=["start"])
    notify("meal", [ada, bob], {})
    notify("place", [ada, bob], {"n": 1})
    found = [(row.notice.user, row.channel_id is None) for row in NoticeDelivery.objects.select_related("notice__user").order_by("pk")]
    assert found == [(ada, True), (bob, False)]


@pytest.mark.django_db
def test_without_a_mail_server_nothing_is_mailed() -> None:
    ada = user_make()
    NoticeChannel.objects.create(user=ada, kind="email", events=["node"])
    notify("meal", [ada], {})
    assert not NoticeDelivery.objects.exists()


@pytest.mark.django_db
def test_a_flood_stays_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PER_HOUR", 3)
    ada = user_make()
    hook_make(ada, "node")
    for n in range(5):
        notify("meal", [ada], {"what": n}, at=NOW + timedelta(minutes=n))
    rows = list(NoticeDelivery.objects.order_by("pk").values_list("state", "is_last"))
    assert rows == [("WAITING", False), ("WAITING", False), ("WAITING", True), ("DROPPED", False), ("DROPPED", False)]
    assert Notice.objects.count() == 5
    post = Post()
    deliveries_send(now=NOW + timedelta(minutes=9), post=post)
    assert ["More happened" in body.decode() for _, body, _ in post.sent] == [False, False, True]
    notify("meal", [ada], {}, at=NOW + timedelta(minutes=61))
    assert NoticeDelivery.objects.filter(state="WAITING").count() == 1


# --- words --------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_message_is_in_its_readers_language() -> None:
    chinese = user_make(language="zh-hans")
    notify("test", [chinese], {"by": "ada@lab.example"}, path="/notices/")
    found = door.message_of(Notice.objects.get(), user=chinese)
    assert (found.language, found.title) == ("zh-hans", "发送方式测试")
    assert "ada@lab.example" in found.text
    assert found.url.endswith("/notices/")
    assert found.url.startswith("http")


def test_only_names_are_filled_in() -> None:
    values = {"job": "{secret}", "secret": "hunter2", "n": 1.5, "none": None}
    assert fill("{job} {n} {none} {missing} {job.__class__} {0} {job!r}", values) == "{secret} 1.5 – {missing} {job.__class__} {0} {job!r}"


@pytest.mark.django_db
def test_numbers_of_another_version_make_no_error() -> None:
    notice = Notice.objects.create(user=user_make(), kind="place", params={})
    assert door.words(notice)[0] == "place"
    assert door.words(Notice(kind="from the future", params={}))[0] == "from the future"


# --- bodies -------------------------------------------------------------------------------------------------------------

EVIL = "<!channel> <@all> **[click](https://evil.example)** @all &"
MESSAGE = Message(
    kind="meal", event="node", tone="warn", icon="bell", title=f"Job {EVIL}", text=f"It said {EVIL}\nsecond line",
    url="https://grid.lab.example/jobs/1/", at=NOW, language="en", params={"n": 3},
)  # fmt: skip


def body_of(format: str, *, secret: str = "", message: Message = MESSAGE, template: str = "", url: str = "https://h.example/x") -> Any:
    found = outgoing(message, format=format, url=url, secret=secret, template=template, delivery=7, now=1_784_030_400.5, open_word="Open")
    return found, json.loads(found.body)


def test_the_generic_body_is_signed_over_its_bytes_and_its_time() -> None:
    found, body = body_of("generic", secret="s3cret")
    stamp = found.headers["X-NebulaGrid-Timestamp"]
    wanted = hmac.new(b"s3cret", stamp.encode() + b"." + found.body, hashlib.sha256).hexdigest()
    assert found.headers["X-NebulaGrid-Signature"] == f"sha256={wanted}" == signature("s3cret", int(stamp), found.body)
    assert (body["id"], body["kind"], body["params"], body["title"]) == (7, "meal", {"n": 3}, f"Job {EVIL}")
    assert "X-NebulaGrid-Signature" not in body_of("generic")[0].headers


def test_feishu_gets_its_signature_in_the_body() -> None:
    _, body = body_of("feishu", secret="s3cret")
    wanted = base64.b64encode(hmac.new(b"1784030400\ns3cret", b"", hashlib.sha256).digest()).decode()
    assert (body["timestamp"], body["sign"], body["msg_type"]) == ("1784030400", wanted, "post")
    post = body["content"]["post"]["en_us"]
    assert post["content"][-1] == [{"tag": "a", "text": "Open", "href": MESSAGE.url}]
    assert all(part["tag"] == "text" for line in post["content"][:-1] for part in line)  # plain: nothing in it is read as markup
    assert list(body_of("feishu", message=replace(MESSAGE, language="zh-hans"))[1]["content"]["post"]) == ["zh_cn"]


def test_dingtalk_gets_its_signature_in_the_address_and_no_markup_of_a_name() -> None:
    found, body = body_of("dingtalk", secret="s3cret", url="https://h.example/x?access_token=t")
    query = parse_qs(urlsplit(found.url).query)
    wanted = base64.b64encode(hmac.new(b"s3cret", b"1784030400500\ns3cret", hashlib.sha256).digest()).decode()
    assert query == {"access_token": ["t"], "timestamp": ["1784030400500"], "sign": [wanted]}
    # Plain text: no name in it is read as markup or calls anybody, and many robots let only messages with a keyword in.
    assert body == {"msgtype": "text", "text": {"content": f"NebulaGrid: {MESSAGE.title}\n{MESSAGE.text}\n{MESSAGE.url}"}}


def test_wecom_calls_nobody_and_stays_short() -> None:
    _, body = body_of("wecom", message=replace(MESSAGE, text="长" * 5000 + EVIL))
    content = body["text"]["content"]
    assert len(content.encode()) <= 2048
    assert "<@" not in body_of("wecom")[1]["text"]["content"]
    assert set(body["text"]) == {"content"}  # no mentioned_list


def test_slack_shows_names_as_plain_text() -> None:
    _, body = body_of("slack")
    kinds = [block["text"]["type"] for block in body["blocks"]]
    assert kinds == ["plain_text", "plain_text", "mrkdwn"]
    assert body["blocks"][2]["text"]["text"] == "<https://grid.lab.example/jobs/1/|Open>"
    assert "<" not in body["text"]
    assert len(body["blocks"][0]["text"]["text"]) <= 150


@pytest.mark.parametrize("format", ["generic", "feishu", "dingtalk", "wecom", "slack"])
def test_a_persons_own_text_serves_every_format(format: str) -> None:
    found, _ = body_of(format, template="n={n} {title} {nothing}", message=replace(MESSAGE, title="plain"))
    text = found.body.decode()
    assert "n=3 plain {nothing}" in text
    assert "It said" not in text


@pytest.mark.parametrize(
    ("format", "body", "wanted"),
    [
        ("feishu", b'{"code":0}', (True, True)), ("feishu", b'{"code":19021,"msg":"sign match fail"}', (False, True)),
        ("feishu", b'{"code":11232,"msg":"too fast"}', (False, False)), ("dingtalk", b'{"errcode":0,"errmsg":"ok"}', (True, True)),
        ("dingtalk", b'{"errcode":310000,"errmsg":"keywords not in content"}', (False, True)),
        ("wecom", b'{"errcode":45009}', (False, False)), ("wecom", b"<html>", (False, False)), ("wecom", b"[]", (False, False)),
        ("feishu", b"<!doctype html>", (False, False)), ("dingtalk", b"{}", (False, False)), ("slack", b"\n<html>", (False, False)),
        ("slack", b"ok", (True, True)), ("generic", b'{"code":9}', (True, True)),
    ],
)  # fmt: skip
def test_an_answer_of_200_may_still_say_no(format: str, body: bytes, wanted: tuple[bool, bool]) -> None:
    assert verdict(format, body)[:2] == wanted


# --- sending ------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_webhook_is_tried_again_later_and_later_and_then_given_up() -> None:
    ada = user_make()
    channel = hook_make(ada, "node")
    notify("meal", [ada], {"what": "soup", "n": 2}, at=NOW)
    at, waits = NOW, []
    for _ in range(len(BACKOFF_S) + 1):
        deliveries_send(now=at, post=Post(WebhookFailed("away", status=503)))
        row = NoticeDelivery.objects.get()
        waits.append((row.next_at - at).total_seconds())
        assert deliveries_send(now=row.next_at - timedelta(seconds=1), post=Post()) == 0
        at = row.next_at
    assert tuple(waits[:-1]) == BACKOFF_S
    assert (row.state, row.tries, row.error, row.status) == ("FAILED", len(BACKOFF_S) + 1, "away", 503)
    channel.refresh_from_db()
    assert (channel.failures, channel.last_error) == (len(BACKOFF_S) + 1, "away")


@pytest.mark.django_db
def test_what_arrives_is_done_and_clears_the_ways_failures() -> None:
    ada = user_make()
    channel = hook_make(ada, "node", failures=3, last_error="away", secret_sealed=seal("s3cret"))
    notify("meal", [ada], {"what": "soup", "n": 2}, at=NOW)
    post = Post()
    assert deliveries_send(now=NOW, post=post) == 1
    assert deliveries_send(now=NOW + timedelta(days=1), post=post) == 0
    [(url, body, headers)] = post.sent
    assert (url, json.loads(body)["title"]) == ("https://hooks.example.org/a", "soup is ready")
    assert headers["X-NebulaGrid-Signature"] == signature("s3cret", int(NOW.timestamp()), body)
    channel.refresh_from_db()
    row = NoticeDelivery.objects.get()
    assert (row.state, row.status, channel.failures, channel.last_error, channel.sent_at) == ("SENT", 200, 0, "", NOW)


@pytest.mark.django_db
def test_retry_after_is_honoured_and_a_final_refusal_is_not_repeated() -> None:
    ada = user_make()
    hook_make(ada, "node")
    notify("meal", [ada], {}, at=NOW)
    deliveries_send(now=NOW, post=Post(WebhookFailed("slow down", status=429, retry_after_s=77)))
    row = NoticeDelivery.objects.get()
    assert row.next_at == NOW + timedelta(seconds=77)
    deliveries_send(now=row.next_at, post=Post(WebhookFailed("gone", status=410, is_final=True)))
    row.refresh_from_db()
    assert (row.state, row.tries) == ("FAILED", 2)


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["bad \0 thing", "bad \ud83d thing"])
def test_a_receivers_answer_that_no_database_takes_is_a_failure_like_any_other(text: str) -> None:
    ada, bob = user_make(), user_make()
    hook_make(ada, "node")
    hook_make(bob, "node", format="feishu", url_sealed=seal("https://other.example.org/b"))
    notify("meal", [ada, bob], {"what": "soup"}, at=NOW)
    refused = Answer(status=200, body=json.dumps({"code": 1, "msg": text}).encode())
    deliveries_send(now=NOW, post=Post(WebhookFailed(f"HTTP 400: {text}", status=400, is_final=True), refused))
    rows = NoticeDelivery.objects.all()
    assert [(row.state, "thing" in row.error) for row in rows] == [("FAILED", True)] * 2
    assert all("\0" not in row.error and row.error.isascii() is ("\0" not in text) for row in rows)


@pytest.mark.django_db
def test_a_receiver_that_does_not_answer_holds_up_its_own_messages_only() -> None:
    ada, bob = user_make(), user_make()
    hook_make(ada, "node")
    hook_make(bob, "node", url_sealed=seal("https://other.example.org/b"))
    for n in range(3):
        notify("meal", [ada], {"what": n}, at=NOW)
    notify("meal", [bob], {"what": "b"}, at=NOW + timedelta(seconds=1))
    post = Post(WebhookFailed("no answer"))
    assert deliveries_send(now=NOW + timedelta(seconds=2), post=post) == 1
    assert [urlsplit(url).hostname for url, _, _ in post.sent] == ["hooks.example.org", "other.example.org"]
    assert sorted(NoticeDelivery.objects.filter(state="WAITING").values_list("tries", flat=True)) == [0, 0, 1]


@pytest.mark.django_db
def test_a_receiver_that_is_gone_for_good_is_tried_less_and_less_often() -> None:
    ada = user_make()
    channel = hook_make(ada, "node", failures=2)
    for n in range(3):
        notify("meal", [ada], {"what": n}, at=NOW)
    deliveries_send(now=NOW, post=Post(WebhookFailed("away")))
    waits = [(at - NOW).total_seconds() for at in NoticeDelivery.objects.order_by("next_at").values_list("next_at", flat=True)]
    assert waits == [10, 120, 120]  # the one that was tried; those behind it, as it has failed twice before
    NoticeChannel.objects.filter(pk=channel.pk).update(failures=99)
    NoticeDelivery.objects.update(next_at=NOW)
    deliveries_send(now=NOW, post=Post(WebhookFailed("away")))
    assert NoticeDelivery.objects.filter(next_at=NOW + timedelta(seconds=600)).count() == 2


@pytest.mark.django_db
def test_receivers_that_are_slow_or_away_keep_no_mail_and_nobody_elses_message_waiting(mail_server: None) -> None:
    ada, bob = user_make(), user_make("bob@lab.example")
    slow = [hook_make(ada, "node", failures=n, url_sealed=seal(f"https://slow{n}.example.org/a")) for n in (3, 0, 0, 0)]
    NoticeChannel.objects.create(user=ada, kind="email", events=[])
    notify("meal", [ada], {"what": "soup"}, at=NOW - timedelta(minutes=5))
    notify("meal", [bob], {"what": "soup"}, at=NOW)  # by mail
    hook_make(bob, "node", url_sealed=seal("https://quick.example.org/b"))
    notify("meal", [bob], {"what": "cake"}, at=NOW)
    time, order = [0.0], []

    def post(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        order.append(urlsplit(url).hostname)
        time[0] += 6 if "slow" in url else 0
        return Answer(status=200, body=b"ok")

    assert deliveries_send(now=NOW, post=post, clock=lambda: time[0]) == 4
    assert [message.to for message in mail.outbox] == [["bob@lab.example"]] * 2
    assert order == ["slow0.example.org", "quick.example.org"]
    later = NoticeDelivery.objects.filter(channel__in=slow, state="WAITING", next_at__gt=NOW, tries=0)
    assert later.count() == 3


@pytest.mark.django_db
def test_a_tick_ends_when_its_time_is_up() -> None:
    users, passed = [user_make() for _ in range(4)], [0.0]
    for user in users:
        hook_make(user, "node")
    notify("meal", users, {"what": "soup"}, at=NOW)

    def post(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        passed[0] += 12
        return Answer(status=200, body=b"ok")

    assert deliveries_send(now=NOW, post=post, clock=lambda: passed[0]) == 2
    assert NoticeDelivery.objects.filter(state="WAITING", next_at=NOW).count() == 2


@pytest.mark.django_db
def test_two_senders_do_not_send_one_message_twice() -> None:
    ada = user_make()
    hook_make(ada, "node")
    notify("meal", [ada], {}, at=NOW)
    inner = Post()

    def post(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        assert deliveries_send(now=NOW, post=inner) == 0  # the other one, meanwhile
        return Answer(status=200, body=b"")

    assert deliveries_send(now=NOW, post=post) == 1
    assert inner.sent == []


@pytest.mark.django_db
def test_who_is_switched_off_in_between_gets_nothing() -> None:
    ada = user_make()
    hook_make(ada, "node")
    notify("meal", [ada], {}, at=NOW)
    User.objects.filter(pk=ada.pk).update(is_active=False)
    post = Post()
    assert deliveries_send(now=NOW, post=post) == 0
    assert (post.sent, NoticeDelivery.objects.get().error) == ([], "inactive")


@pytest.mark.django_db
def test_a_private_address_is_refused_and_not_tried_again() -> None:
    ada = user_make()
    hook_make(ada, "node", url_sealed=seal("https://127.0.0.1/x"))
    notify("meal", [ada], {}, at=NOW)
    assert deliveries_send(now=NOW) == 0  # through the real door
    row = NoticeDelivery.objects.get()
    assert row.state == "FAILED"
    assert "not known as a public address" in row.error


@pytest.mark.django_db
def test_a_new_key_of_the_installation_is_told_as_the_reason(settings: Any) -> None:
    ada = user_make()
    channel = hook_make(ada, "node")
    assert "hooks.example.org/a" not in channel.url_sealed
    assert unseal(channel.url_sealed) == "https://hooks.example.org/a"
    notify("meal", [ada], {}, at=NOW)
    settings.SECRET_KEY = "another key, and long enough to be one"
    assert deliveries_send(now=NOW, post=Post()) == 0
    assert "NEBULA_SECRET_KEY" in NoticeDelivery.objects.get().error


@pytest.mark.django_db
@pytest.mark.usefixtures("mail_server")
def test_a_mail_says_what_where_and_how_to_have_less() -> None:
    ada = user_make(language="zh-hans")
    notify("meal", [ada], {"what": "汤\r\nBcc: all@lab.example", "n": 2}, path="/nodes/a/", at=NOW)
    assert deliveries_send(now=NOW) == 1
    [sent] = mail.outbox
    assert sent.to == [ada.email]
    assert sent.subject == "[NebulaGrid] 汤 Bcc: all@lab.example is ready"
    assert sent.bcc == []
    assert "It has 2 plates." in sent.body
    assert "/nodes/a/" in sent.body
    assert "/notices/channels/" in sent.body
    assert sent.extra_headers["Auto-Submitted"] == "auto-generated"


@pytest.mark.django_db
@pytest.mark.usefixtures("mail_server")
def test_a_mail_server_that_is_away_is_asked_once_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def away(**options: Any) -> Any:
        asked.append(1)
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr("quotas.deliver.get_connection", away)
    notify("meal", [user_make(), user_make(), user_make()], {}, at=NOW)
    assert deliveries_send(now=NOW) == 0
    assert len(asked) == 1
    assert NoticeDelivery.objects.filter(state="WAITING", next_at__gt=NOW).count() == 3


@pytest.mark.django_db
def test_nothing_due_is_one_query() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert deliveries_send(now=NOW) == 0
    assert len(queries) == 1


@pytest.mark.django_db
def test_old_notices_go_and_take_their_deliveries_along() -> None:
    ada = user_make()
    hook_make(ada, "node")
    notify("meal", [ada], {}, at=NOW - timedelta(days=91))
    notify("meal", [ada], {}, at=NOW - timedelta(days=89))
    assert notices_prune(now=NOW) == 2
    assert Notice.objects.count() == NoticeDelivery.objects.count() == 1
