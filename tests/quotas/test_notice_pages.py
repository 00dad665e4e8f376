"""One's own notices and ways as pages: the bell, reading, webhooks that are entered and never shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from quotas import channels
from quotas.models import Notice, NoticeChannel, User
from quotas.notify import notify
from quotas.sealing import seal, unseal
from quotas.webhooks import Answer
from tests.factories import user_make
from tests.rest import no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
FORM = {
    "format": "slack",
    "url": "https://93.184.215.14/geheim",
    "name": "ours",
    "events": ["fail", "node"],
    "is_active": "on",
    "secret": "s3cret",
}


@pytest.fixture
def ada() -> User:
    return user_make("ada@lab.example")


def page(user: User, **headers: str) -> Client:
    client = Client(headers=headers)
    client.force_login(user, backend="allauth.account.auth_backends.AuthenticationBackend")
    return client


def test_the_bell_counts_what_is_unread(ada: User) -> None:
    client = page(ada)
    assert 'id="bell"' in client.get("/notices/").content.decode()
    for _ in range(3):
        notify("test", [ada], {"by": "x"})
    bell = client.get("/notices/bell/").content.decode()
    assert ">3</span>" in bell
    assert f"user:{ada.pk} from:body" in bell
    client.post("/notices/read/")
    assert "count" not in client.get("/notices/bell/").content.decode()


def test_opening_one_reads_it_and_leads_to_its_page(ada: User) -> None:
    notify("test", [ada], {"by": "x"}, path="/jobs/1/")
    notice = Notice.objects.get()
    assert page(user_make()).get(f"/notices/{notice.pk}/").status_code == 404
    assert page(ada).get(f"/notices/{notice.pk}/")["Location"] == "/jobs/1/"
    notice.refresh_from_db()
    assert notice.read_at is not None
    assert "Nothing unread." in page(ada).get("/notices/?unread=1").content.decode()


@pytest.mark.parametrize("path", ["//evil.example/", "https://evil.example/", "/\\evil.example", ""])
def test_a_notice_leads_to_no_other_site(ada: User, path: str) -> None:
    notice = Notice.objects.create(user=ada, kind="test", path=path)
    assert page(ada).get(f"/notices/{notice.pk}/")["Location"] == "/notices/"


def test_the_list_costs_the_same_however_long(ada: User) -> None:
    counts = []
    for n in (1, 20):
        for m in range(n):
            notify("test", [ada], {"by": f"<b>{m}</b>"})
        client = page(ada)
        with CaptureQueriesContext(connection) as queries:
            text = client.get("/notices/").content.decode()
        counts.append(len(queries))
        assert "<b>0</b>" not in text
    assert counts[0] == counts[1]


def test_a_webhook_is_entered_and_its_address_is_not_shown_again(ada: User) -> None:
    client = page(ada)
    assert client.get("/notices/channels/new/").status_code == 200
    assert client.post("/notices/channels/new/", FORM)["Location"] == "/notices/channels/"
    channel = NoticeChannel.objects.get()
    assert (channel.user, channel.format, channel.events, channel.host) == (ada, "slack", ["fail", "node"], "93.184.215.14")
    for address in ("/notices/channels/", f"/notices/channels/{channel.pk}/"):
        text = client.get(address).content.decode()
        assert "geheim" not in text
        assert "s3cret" not in text
    changed = {**FORM, "url": "", "secret": "", "keeps_secret": "on", "name": "other"}
    client.post(f"/notices/channels/{channel.pk}/", changed)
    channel.refresh_from_db()
    assert (channel.name, unseal(channel.url_sealed), unseal(channel.secret_sealed)) == ("other", FORM["url"], "s3cret")
    client.post(f"/notices/channels/{channel.pk}/", {**changed, "keeps_secret": ""})
    channel.refresh_from_db()
    assert channel.secret_sealed == ""
    client.post(f"/notices/channels/{channel.pk}/delete/")
    assert not NoticeChannel.objects.exists()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"url": "https://10.0.0.1/x"}, "not known as a public address"),
        ({"url": "http://93.184.215.14/x"}, "Messages go by HTTPS"),
        ({"url": ""}, "A webhook needs an address."),
        ({"url": "nonsense"}, "Write an address such as"),
    ],
)
def test_an_address_that_may_not_be_used_is_told_beside_its_field(ada: User, changes: dict[str, str], text: str) -> None:
    answer = page(ada).post("/notices/channels/new/", {**FORM, **changes})
    assert answer.status_code == 400
    assert text in answer.content.decode()
    assert 'value="ours"' in answer.content.decode()
    assert not NoticeChannel.objects.exists()


def test_the_labs_ways_are_for_staff(ada: User) -> None:
    page(ada).post("/notices/channels/new/?lab=1", FORM)
    assert NoticeChannel.objects.get().user == ada  # asked for the lab's, got one of her own
    boss = user_make(is_staff=True)
    page(boss).post("/notices/channels/new/?lab=1", FORM)
    lab = NoticeChannel.objects.get(user__isnull=True)
    assert page(ada).get(f"/notices/channels/{lab.pk}/").status_code == 404
    assert page(boss).get(f"/notices/channels/{lab.pk}/").status_code == 200
    assert "The lab's own" not in page(ada).get("/notices/channels/").content.decode().replace("&#x27;", "'")


def test_what_is_mailed_is_chosen(ada: User) -> None:
    client = page(ada)
    assert client.post("/notices/channels/", {"events": ["start", "party"], "is_active": "on"}).status_code == 302
    saved = NoticeChannel.objects.get(user=ada, kind="email")
    assert (saved.events, saved.is_active) == (["start"], True)
    client.post("/notices/channels/", {"events": ["start"]})
    saved.refresh_from_db()
    assert saved.is_active is False


def test_a_test_says_on_the_page_what_became_of_it(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = NoticeChannel.objects.create(user=ada, kind="webhook", host="h", url_sealed=seal("https://127.0.0.1/x"))
    text = page(ada).post(f"/notices/channels/{channel.pk}/test/", follow=True).content.decode()
    assert "The test was not delivered: 127.0.0.1 is not known as a public address." in text
    tried = channels.delivery_try
    monkeypatch.setattr(channels, "delivery_try", lambda row, **more: tried(row, post=lambda *args: Answer(status=200, body=b"ok")))
    assert "The test was delivered." in page(ada).post(f"/notices/channels/{channel.pk}/test/", follow=True).content.decode()
    assert "No mail server is set up here" in page(ada).post("/notices/channels/email/test/", follow=True).content.decode()


def test_in_chinese(ada: User) -> None:
    texts: list[Any] = []
    NoticeChannel.objects.create(user=ada, kind="webhook", host="h", url_sealed=seal("https://127.0.0.1/x"), failures=1, last_error="x")
    for address in ("/notices/", "/notices/channels/", "/notices/channels/new/"):
        texts.append(page(ada, **{"Accept-Language": "zh-hans"}).get(address).content.decode())
    assert "通知方式" in texts[1]
    for english in ("How I am told", "Told of", "Mail me", "Save<", "Format<"):
        assert all(english not in text for text in texts), english
