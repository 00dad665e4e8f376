"""The ways that notices go: what may be entered, what is never told again, and a test of one; over REST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.core import mail
from django.db import connection

from quotas import channels
from quotas.channels import ChannelRefused, channel_test, webhook_save
from quotas.models import AuditEntry, Notice, NoticeChannel, User
from quotas.notify import notify
from quotas.sealing import unseal
from quotas.webhooks import Answer, WebhookFailed, WebhookRefused
from tests.factories import user_make
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
URL = "https://hooks.example.org/services/T0/B0/geheim"


def public(host: str, port: int) -> list[str]:
    return ["93.184.215.14"]


@pytest.fixture
def ada() -> User:
    return user_make("ada@lab.example")


def hook(user: User, **changes: Any) -> NoticeChannel:
    return webhook_save(by=user, changes={"url": URL, **changes}, resolver=public)


def test_an_address_and_its_secret_come_in_and_never_out(ada: User) -> None:
    channel = hook(ada, secret="s3cret", name="ours", format="slack", events=["fail", "start"])
    assert (unseal(channel.url_sealed), unseal(channel.secret_sealed), channel.host) == (URL, "s3cret", "hooks.example.org")
    assert channel.events == ["start", "fail"]
    answers = [Api(ada).get("/notices/channels/")[1], Api(ada).get(f"/notices/channels/{channel.pk}")[1]]
    for text in (str(answers), str(list(AuditEntry.objects.values())), str(list(NoticeChannel.objects.values()))):
        assert "geheim" not in text
        assert "s3cret" not in text


def test_what_is_left_out_of_a_change_stays(ada: User) -> None:
    channel = hook(ada, secret="s3cret")
    webhook_save(by=ada, channel=channel, changes={"name": "other", "url": ""}, resolver=public)
    channel.refresh_from_db()
    assert (unseal(channel.url_sealed), unseal(channel.secret_sealed), channel.name) == (URL, "s3cret", "other")
    webhook_save(by=ada, channel=channel, changes={"secret": ""}, resolver=public)
    assert unseal(channel.secret_sealed) == ""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"url": "https://127.0.0.1/x"}, "webhook_private"),
        ({"url": "http://hooks.example.org/"}, "webhook_scheme"),
        ({"url": "nonsense"}, "webhook_url"),
        ({"url": ""}, "channel_no_url"),
        ({"events": ["party"]}, "channel_events"),
        ({"format": "teams"}, "channel_format"),
        ({"name": "x" * 61}, "channel_long"),
        ({"template": "x" * 2001}, "channel_long"),
        ({"secret": "x" * 201}, "channel_long"),
    ],
)
def test_what_makes_no_way_is_refused_with_a_sentence(ada: User, changes: dict[str, Any], code: str) -> None:
    def resolver(host: str, port: int) -> list[str]:
        return [host] if host[0].isdigit() else public(host, port)

    with pytest.raises((ChannelRefused, WebhookRefused)) as caught:
        webhook_save(by=ada, changes={"url": URL, **changes}, resolver=resolver)
    assert caught.value.code == code
    assert caught.value.message
    assert "{" not in caught.value.message
    assert not NoticeChannel.objects.exists()


def test_a_name_that_can_not_be_resolved_and_one_inside_are_refused_alike(ada: User) -> None:
    def nobody(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    messages = set()
    for resolver in (nobody, lambda host, port: ["10.1.2.3"]):
        with pytest.raises(WebhookRefused) as caught:
            webhook_save(by=ada, changes={"url": URL}, resolver=resolver)
        messages.add((caught.value.code, caught.value.message))
    [(code, message)] = messages  # or names inside of our network could be found by trying
    assert (code, message.partition(".")[0]) == ("webhook_private", "hooks")
    assert "10.1.2.3" not in message


def test_a_slow_name_keeps_nobody_from_writing(ada: User) -> None:
    outside = len(connection.savepoint_ids)  # the test's own

    def slow(host: str, port: int) -> list[str]:
        assert len(connection.savepoint_ids) == outside
        return public(host, port)

    made = webhook_save(by=ada, changes={"url": URL}, resolver=slow)
    webhook_save(by=ada, channel=made, changes={"url": URL}, resolver=slow)
    assert AuditEntry.objects.filter(action="webhook.changed").count() == 2


def test_ten_webhooks_are_enough(ada: User) -> None:
    for _ in range(channels.MOST):
        hook(ada)
    with pytest.raises(ChannelRefused, match="channels_many"):
        hook(ada)


def test_the_labs_own_are_for_staff(ada: User, settings: Any) -> None:
    settings.WEBHOOK_ALLOW = ["127.0.0.9"]
    boss = user_make(is_staff=True)
    body = {"url": "https://127.0.0.9/x", "lab": True}
    assert Api(ada).post("/notices/channels/", body)[0] == 403
    status, made = Api(boss).post("/notices/channels/", body)
    assert (status, made["lab"]) == (201, True)
    assert Api(ada).get(f"/notices/channels/{made['id']}")[0] == 404
    assert Api(boss).patch(f"/notices/channels/{made['id']}", {"name": "ours"})[0] == 200


def test_a_private_address_is_a_400_with_the_way_out(ada: User) -> None:
    status, body = Api(ada).post("/notices/channels/", {"url": "https://169.254.169.254/latest/meta-data/"})
    assert (status, body["code"]) == (400, "webhook_private")
    assert "NEBULA_WEBHOOK_ALLOW" in body["message"]


def test_a_test_is_sent_at_once_and_says_what_became_of_it(ada: User) -> None:
    channel = hook(ada, is_active=False)
    sent = []

    def post(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        sent.append(url)
        return Answer(status=200, body=b"ok")

    assert channel_test(channel=channel, by=ada, post=post).state == "SENT"
    assert sent == [URL]

    def away(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        raise WebhookFailed("no answer within 10 s")

    done = channel_test(channel=channel, by=ada, post=away)
    assert (done.state, done.error) == ("FAILED", "no answer within 10 s")  # nobody tries it again behind one's back
    assert Notice.objects.filter(read_at__isnull=True).count() == 0


def test_tests_are_few(ada: User) -> None:
    channel = hook(ada)
    for _ in range(channels.TESTS_A_MINUTE):
        channel_test(channel=channel, by=ada, post=lambda *args: Answer(status=200, body=b""))
    with pytest.raises(ChannelRefused, match="tests_many"):
        channel_test(channel=channel, by=ada)


def test_one_stranger_at_a_time_holds_a_thread_of_ours(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = hook(ada)

    def post(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        with pytest.raises(ChannelRefused, match="busy"):
            hook(ada, url="https://slow.example.org/")
        return Answer(status=200, body=b"")

    monkeypatch.setattr(channels, "WAIT_S", 0.01)
    assert channel_test(channel=channel, by=ada, post=post).state == "SENT"
    hook(ada, url="https://slow.example.org/")


def test_a_test_of_mail_without_a_server_says_so(ada: User, settings: Any) -> None:
    with pytest.raises(ChannelRefused) as caught:
        channel_test(channel=channels.email_channel(ada), by=ada)
    assert "NEBULA_EMAIL_HOST" in caught.value.message
    settings.EMAIL_HOST = "mail.example.org"
    assert channel_test(channel=channels.email_channel(ada), by=ada).state == "SENT"
    assert mail.outbox[0].to == ["ada@lab.example"]


def test_what_is_mailed_is_chosen(ada: User) -> None:
    assert Api(ada).get("/notices/channels/")[1][0] == {
        "id": None, "kind": "email", "format": "", "name": "", "host": "", "has_secret": False, "events": ["fail", "quota", "node"],
        "template": "", "active": True, "lab": False, "sent_at": None, "failures": 0, "last_error": "",
    }  # fmt: skip
    assert Api(ada).patch("/notices/channels/email", {"events": ["start"]})[1]["events"] == ["start"]
    assert Api(ada).patch("/notices/channels/email", {"active": False})[1]["events"] == ["start"]
    assert Api(ada).patch("/notices/channels/email", {"events": ["party"]})[0] == 400
    assert Api(ada).patch("/notices/channels/email", {"url": "x"})[0] == 400


def test_ones_notices_are_ones_own_and_can_be_read(ada: User) -> None:
    bob = user_make()
    notify("test", [ada, bob], {"by": "x"})
    notify("test", [ada], {"by": "y"}, path="/jobs/1/")
    api = Api(ada)
    status, body = api.get("/notices/")
    assert (status, [row["text"][-2:] for row in body["results"]]) == (200, ["y.", "x."])
    assert body["results"][0]["url"].endswith("/jobs/1/")
    bobs = Notice.objects.get(user=bob).pk
    assert api.post("/notices/read", {"ids": [bobs]})[1] == {"read": 0}
    assert api.post("/notices/read", {"ids": [body["results"][0]["id"]]})[1] == {"read": 1}
    assert len(api.get("/notices/", unread=1)[1]["results"]) == 1
    assert api.post("/notices/read", {})[1] == {"read": 1}
    assert Notice.objects.get(user=bob).read_at is None
