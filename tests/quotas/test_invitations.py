"""Links by mail that set a password: for who has forgotten it, and for whom an administrator made an account."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core import mail, signing
from django.test import Client
from django.utils import timezone

from quotas.invitations import LIVES_S, can_be_invited, invitation_url
from quotas.models import AuditEntry, User
from tests.factories import user_make
from tests.rest import no_redis  # noqa: F401
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
NEW = "a long new word 7"


@pytest.fixture(autouse=True)
def mail_server(settings: Any) -> None:
    settings.EMAIL_HOST, settings.BASE_URL = "mail.lab.example", "https://grid.lab.example"
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    mail.outbox = []


def link_mailed() -> str:
    message = wait_until(lambda: mail.outbox and mail.outbox.pop(), "the mail is sent")
    [link] = re.findall(r"https://grid\.lab\.example(/\S+)", message.body.replace("https://grid.lab.example.", ""))[-1:]
    return str(link)


def password_set(client: Client, path: str, password: str = NEW) -> Any:
    """Follows the link to its form and fills that in."""
    shown = client.get(path, follow=True)
    form = shown.request["PATH_INFO"]
    return client.post(form, {"password1": password, "password2": password})


def test_a_forgotten_password_is_set_anew_by_the_link_once() -> None:
    lin = user_make("lin@lab.example", password="correct horse")
    Client().post("/accounts/password/reset/", {"email": "lin@lab.example"}, headers={"host": "localhost"})
    path, browser = link_mailed(), Client()
    for _ in range(2):  # a mail scanner may look as often as it likes
        assert Client().get(path, follow=True).status_code == 200
    answer = password_set(browser, path)
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert browser.get("/account/").status_code == 200, "and is signed in"
    assert "device" in browser.cookies, "on a device that is known from now on"
    lin.refresh_from_db()
    assert lin.check_password(NEW)
    password_set(Client(), path, "another long word 8")
    lin.refresh_from_db()
    assert lin.check_password(NEW), "the link is used up"


def test_who_has_no_account_is_told_the_same_and_is_sent_nothing() -> None:
    user_make("lin@lab.example", password="correct horse")
    answers = [Client().post("/accounts/password/reset/", {"email": email}) for email in ("lin@lab.example", "nobody@lab.example")]
    assert len({(answer.status_code, answer["Location"]) for answer in answers}) == 1
    assert link_mailed()
    assert mail.outbox == []


def test_the_mail_names_the_address_that_we_call_ourselves(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    user_make("lin@lab.example", password="correct horse")
    Client().post("/accounts/password/reset/", {"email": "lin@lab.example"}, headers={"host": "evil.example", "accept-language": "zh-hans"})
    message = wait_until(lambda: mail.outbox and mail.outbox.pop(), "the mail is sent")
    assert "evil.example" not in message.body + message.subject
    assert message.subject == "[NebulaGrid] 设置新密码"
    assert "链接只能使用一次" in message.body


def boss() -> Client:
    client = Client()
    client.force_login(
        user_make("boss@lab.example", is_staff=True, is_superuser=True), backend="allauth.account.auth_backends.AuthenticationBackend"
    )
    return client


def test_an_account_without_a_password_is_made_with_an_invitation_that_works_once() -> None:
    admin = boss()
    answer = admin.post("/admin/quotas/user/add/", {"email": "Lin@lab.example", "password1": "", "password2": ""}, follow=True)
    assert "A link to set a password was sent to lin@lab.example." in answer.content.decode()
    lin = User.objects.get(email="lin@lab.example")
    assert not lin.has_usable_password()
    assert AuditEntry.objects.filter(action="user.invited", target="user lin@lab.example").exists()
    path, browser = link_mailed(), Client()
    assert path.startswith("/accounts/invitation/")
    assert password_set(browser, path).status_code == 302
    assert browser.get("/account/").status_code == 200
    assert Client().get(path).status_code == 410
    lin.refresh_from_db()
    assert not can_be_invited(lin)


def test_without_a_mail_server_an_account_needs_a_password(settings: Any) -> None:
    settings.EMAIL_HOST = ""
    answer = boss().post("/admin/quotas/user/add/", {"email": "lin@lab.example", "password1": "", "password2": ""})
    assert answer.status_code == 200
    assert not User.objects.filter(email="lin@lab.example").exists()


def test_invitations_are_sent_again_to_who_has_not_come_yet() -> None:
    admin, new = boss(), user_make("new@lab.example")
    new.set_unusable_password()
    new.save()
    old = user_make("old@lab.example", password="correct horse")
    answer = admin.post("/admin/quotas/user/", {"action": "people_invite", "_selected_action": [new.pk, old.pk]}, follow=True)
    assert "1 link was sent. Who has a password" in answer.content.decode()
    assert link_mailed()


def test_an_old_or_foreign_invitation_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    user = user_make("lin@lab.example")
    path = invitation_url(user).removeprefix("https://grid.lab.example")
    assert Client().get(path).status_code == 302
    assert Client().get(path[:-3] + "xx/").status_code == 410
    now = signing.time.time()
    with monkeypatch.context() as later:
        later.setattr(signing.time, "time", lambda: now + LIVES_S + 1)
        assert Client().get(path).status_code == 410
    User.objects.filter(pk=user.pk).update(last_login=timezone.now())
    assert Client().get(path).status_code == 410
