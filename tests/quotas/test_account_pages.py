"""One's own account and the projects' pages, as plain forms."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from allauth.usersessions.models import UserSession
from django.conf import settings as django_settings
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from quotas.models import ApiToken, Membership, Project, User
from quotas.sessions import sessions_prune
from quotas.tokens import credential_open, token_create
from tests.factories import project_make, user_make
from tests.po import ROOT
from tests.rest import no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse"


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example", password=PASSWORD)


@pytest.fixture
def vision(lin: User) -> Project:
    return project_make("vision", members=(lin,), role=Membership.Role.LEAD)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user, backend=django_settings.AUTHENTICATION_BACKENDS[0])
    return client


def by_password(email: str = "lin@lab.example") -> Client:
    client = Client()
    client.post("/accounts/login/", {"login": email, "password": PASSWORD})
    return client


# --- the person -----------------------------------------------------------------------------------------------------------


def test_name_language_and_zone_are_kept(lin: User) -> None:
    page = signed_in(lin)
    assert page.post("/account/", {"first_name": "Lin", "language": "zh-hans", "zone": "Asia/Shanghai"}).status_code == 302
    lin.refresh_from_db()
    assert (lin.first_name, lin.language, lin.zone) == ("Lin", "zh-hans", "Asia/Shanghai")
    assert "账号" in page.get("/account/").content.decode() or "账户" in page.get("/account/").content.decode()


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "x" * 64])
def test_a_zone_that_is_none_is_told(lin: User, zone: str) -> None:
    answer = signed_in(lin).post("/account/", {"zone": zone})
    assert answer.status_code == 400
    assert "is no time zone" in answer.content.decode()
    lin.refresh_from_db()
    assert lin.zone == ""


def test_nobody_makes_himself_staff_by_the_form(lin: User) -> None:
    signed_in(lin).post("/account/", {"is_staff": "1", "is_superuser": "1", "email": "root@lab.example", "unix_name": "root"})
    lin.refresh_from_db()
    assert (lin.is_staff, lin.is_superuser, lin.email, lin.unix_name) == (False, False, "lin@lab.example", "")


# --- tokens -----------------------------------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_works(lin: User, vision: Project) -> None:
    page = signed_in(lin)
    answer = page.post("/account/tokens/new/", {"name": "ci", "scopes": ["read", "submit"], "project": "vision", "days": "30"})
    secret = re.search(r"ngt_[\w-]{43}", answer.content.decode())[0]
    assert "no-store" in answer["Cache-Control"]
    user, grant = credential_open(secret)
    assert (user.pk, grant.project, grant.scopes) == (lin.pk, vision.pk, {"read", "submit"})
    assert secret not in page.get("/account/").content.decode()


@pytest.mark.parametrize("change", [{"scopes": []}, {"scopes": ["root"]}, {"name": ""}, {"days": "9999"}, {"project": "elsewhere"}])
def test_a_token_that_can_not_be_is_told_in_place(lin: User, change: dict[str, object]) -> None:
    answer = signed_in(lin).post("/account/tokens/new/", {"name": "ci", "scopes": ["read"], "days": "30"} | change)
    assert answer.status_code == 400
    assert 'role="alert"' in answer.content.decode()
    assert not ApiToken.objects.exists()


def test_a_token_is_revoked_by_its_owner_alone(lin: User) -> None:
    token, _secret = token_create(user=lin, name="x")
    assert signed_in(user_make()).post(f"/account/tokens/{token.pk}/revoke/").status_code == 404
    assert signed_in(lin).post(f"/account/tokens/{token.pk}/revoke/").status_code == 302
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_names_of_tokens_are_text(lin: User) -> None:
    token_create(user=lin, name="<script>alert(1)</script>")
    assert "<script>alert" not in signed_in(lin).get("/account/").content.decode()


# --- second factor and sessions --------------------------------------------------------------------------------------------


def test_a_second_factor_is_set_up_and_asked_for_at_the_next_sign_in(lin: User) -> None:
    page = by_password()
    assert page.get("/accounts/2fa/totp/activate/")["Location"].startswith("/accounts/reauthenticate/")  # who left the desk is not enough
    page.post("/accounts/reauthenticate/", {"password": PASSWORD})
    shown = page.get("/accounts/2fa/totp/activate/").content.decode()
    styles = "".join((ROOT / "static" / "css" / f"{name}.css").read_text() for name in re.findall(r"css/([a-z]+)[.\w]*\.css", shown))
    assert "img.qr{background:#fff" in styles  # black on black is for no camera
    secret = re.search(r'value="([A-Z2-7]{32})"', shown)[1]
    code = format_hotp_value(hotp_value(secret, next(iter(yield_hotp_counters_from_time()))))
    assert page.post("/accounts/2fa/totp/activate/", {"code": code}).status_code == 302
    assert "on: an authenticator app" in page.get("/account/").content.decode()
    codes = re.findall(r"\b[0-9a-f]{8}\b|\b\d{8}\b", page.get("/accounts/2fa/recovery-codes/").content.decode())
    assert len(codes) >= 8
    other = Client()
    answer = other.post("/accounts/login/", {"login": "lin@lab.example", "password": PASSWORD})
    assert answer["Location"].startswith("/accounts/2fa/authenticate/")
    assert other.get("/jobs/").status_code == 302  # not in yet
    assert other.post("/accounts/2fa/authenticate/", {"code": "000000"}).status_code == 200
    assert other.post("/accounts/2fa/authenticate/", {"code": codes[0]}).status_code == 302
    assert other.get("/jobs/").status_code == 200


def test_other_sessions_are_ended(lin: User) -> None:
    here, there = by_password(), by_password()
    assert there.get("/jobs/").status_code == 200
    assert UserSession.objects.count() == 2
    here.post("/accounts/sessions/")
    assert there.get("/jobs/").status_code == 302
    assert here.get("/jobs/").status_code == 200


def test_sessions_that_are_over_go_with_all_that_is_known_of_them(lin: User) -> None:
    over, live = (by_password().session.session_key for _ in range(2))
    now = timezone.now()
    Session.objects.filter(pk=over).update(expire_date=now - timedelta(seconds=1))
    assert (sessions_prune(now=now), sessions_prune(now=now)) == (1, 0)
    assert Session.objects.get().pk == live
    assert UserSession.objects.get().session_key == live


# --- who is switched off ------------------------------------------------------------------------------------------------------


def test_who_is_switched_off_is_out_at_the_next_call(lin: User, vision: Project) -> None:
    from quotas.tokens import jwt_create

    page = by_password()
    made = (
        token_create(user=lin, name="x")[1],
        token_create(user=lin, name="y", project=vision, scopes=["read"])[1],
        jwt_create(user=lin, grant=None)[0],
    )
    api = [Client(headers={"Authorization": f"Bearer {text}"}) for text in made]
    assert [client.get("/api/v1/me").status_code for client in api] == [200, 200, 200]
    User.objects.filter(pk=lin.pk).update(is_active=False)
    assert [client.get("/api/v1/me").status_code for client in api] == [401, 401, 401]
    assert page.get("/jobs/")["Location"].startswith("/accounts/login/")
    assert page.get("/api/v1/me").status_code == 401
    assert Client().post("/api/v1/token", {"email": lin.email, "password": PASSWORD}, content_type="application/json").status_code == 401


# --- projects -----------------------------------------------------------------------------------------------------------------


def test_a_lead_keeps_the_members_by_the_page(lin: User, vision: Project) -> None:
    chen, page = user_make("chen@lab.example"), signed_in(lin)
    page.post("/projects/vision/act/", {"act": "add", "email": "chen@lab.example", "role": "viewer"})
    assert Membership.objects.get(project=vision, user=chen).role == "viewer"
    page.post("/projects/vision/act/", {"act": "role", "id": chen.pk, "role": "user"})
    assert Membership.objects.get(project=vision, user=chen).role == "user"
    text = page.get("/projects/vision/").content.decode()
    assert "chen@lab.example" in text
    assert signed_in(chen).post("/projects/vision/act/", {"act": "remove", "id": lin.pk}).status_code == 403
    page.post("/projects/vision/act/", {"act": "remove", "id": chen.pk})
    assert not Membership.objects.filter(project=vision, user=chen).exists()
    refused = page.post("/projects/vision/act/", {"act": "remove", "id": lin.pk}, follow=True).content.decode()
    assert "only lead" in refused


@pytest.mark.parametrize(
    "post", [{}, {"act": "fly"}, {"act": "add", "email": "x"}, {"act": "add", "role": "king"}, {"act": "title", "title": "a" * 900}]
)
def test_an_odd_form_changes_nothing_and_never_fails(lin: User, vision: Project, post: dict[str, str]) -> None:
    assert signed_in(lin).post("/projects/vision/act/", post).status_code == 302
    assert Membership.objects.filter(project=vision).count() == 1


def test_an_admin_makes_a_project_by_the_page(lin: User) -> None:
    admin = signed_in(user_make(is_staff=True))
    assert admin.post("/projects/new/", {"name": "Bad Name"}).status_code == 400
    assert admin.post("/projects/new/", {"name": "robots", "lead": "lin@lab.example"})["Location"] == "/projects/robots/"
    assert Membership.objects.get(project__name="robots").user == lin
    assert "robots" in signed_in(lin).get("/projects/").content.decode()
