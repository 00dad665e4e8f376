"""Sign-in for programs, and who I am."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.utils import timezone

from quotas.models import ApiToken, User
from quotas.tokens import token_create
from tests.factories import project_make, user_make
from tests.rest import Api, is_error, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse"


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example", password=PASSWORD)


def sign_in(**change: Any) -> tuple[int, Any]:
    return Api().post("/token", {"email": "lin@lab.example", "password": PASSWORD, **change})


def test_a_password_is_traded_for_a_token_that_works(lin: User) -> None:
    status, answer = sign_in(name="laptop", email=" Lin@Lab.example ")
    assert status == 201
    assert set(answer) == {"id", "token", "prefix", "expires_at", "scopes", "project"}
    assert (answer["scopes"], answer["project"]) == (["read", "submit", "manage"], None)
    assert answer["token"].startswith("ngt_")
    assert answer["token"].startswith(answer["prefix"])
    token = ApiToken.objects.get()
    assert (token.user, token.name) == (lin, "laptop")
    assert timedelta(days=364) < token.expires_at - timezone.now() < timedelta(days=366)
    assert answer["token"] not in str(ApiToken.objects.values())
    assert Api(None, Authorization=f"Bearer {answer['token']}").get("/me")[1]["email"] == "lin@lab.example"


def test_a_token_lives_as_long_as_asked(lin: User) -> None:
    assert sign_in(ttl_s=3600)[0] == 201
    assert ApiToken.objects.get().expires_at < timezone.now() + timedelta(hours=1, seconds=5)


@pytest.mark.parametrize(
    "change", [{"password": "wrong"}, {"email": "nobody@lab.example"}, {"password": PASSWORD.upper()}, {"email": "lin"}]
)
def test_wrong_credentials_are_one_401_that_tells_nothing(lin: User, change: dict[str, str]) -> None:
    status, error = sign_in(**change)
    assert (status, error["code"], error["message"]) == (401, "bad_credentials", "E-mail address and password don't match.")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"email": None}, "email"),
        ({"email": 7}, "email"),
        ({"email": "x" * 300}, "email"),
        ({"email": "a\0@b"}, "email"),
        ({"password": ["x"]}, "password"),
        ({"password": "x" * 2000}, "password"),
        ({"password": "\ud800"}, "password"),
        ({"name": "x" * 81}, "name"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 2**40}, "ttl_s"),
        ({"ttl_s": "1h"}, "ttl_s"),
        ({"usernme": "x"}, "usernme"),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(lin: User, change: dict[str, Any], field: str) -> None:
    status, error = sign_in(**change)
    assert (status, is_error(error), field in error["fields"]) == (400, True, True), error


def test_a_disabled_user_gets_no_token_and_the_old_one_opens_nothing(lin: User) -> None:
    api = Api(lin)
    User.objects.filter(pk=lin.pk).update(is_active=False)
    assert sign_in()[0] == 401
    assert api.get("/me")[0] == 401


def test_a_password_alone_is_not_enough_with_a_second_factor(lin: User) -> None:
    Authenticator.objects.create(user=lin, type=Authenticator.Type.TOTP, data={})
    status, error = sign_in()
    assert (status, error["code"]) == (403, "second_factor_needed")


def test_the_sixth_anonymous_call_in_a_minute_is_a_429(lin: User) -> None:
    import json

    answers = [Api().call("POST", "/token", {"email": "lin@lab.example", "password": "wrong"}) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429]
    assert 1 <= int(answers[5]["Retry-After"]) <= 12  # 60 s ÷ 5 calls
    assert json.loads(answers[5].content)["code"] == "throttled"
    assert sign_in()[0] == 429  # the right password does not help
    assert Api(lin).get("/me")[0] == 200  # who is signed in is not counted


def test_a_forged_address_lands_in_the_same_bucket(lin: User) -> None:
    statuses = [Api(None, **{"X-Forwarded-For": f"10.9.8.{n}"}).post("/token", {"email": "x@y.z", "password": "w"})[0] for n in range(6)]
    assert statuses == [401] * 5 + [429]


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer x",
        "Bearer ngt_",
        "Bearer ngt_" + "x" * 43,
        "Bearer ngt_" + "x" * 10_000,
        "Bearer ngt_ü",
        "Basic bGluOng=",
        "ngt_x",
    ],
)
def test_a_header_that_is_no_token_is_a_401(header: str) -> None:
    answer = Api(None, Authorization=header).call("GET", "/me")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_an_expired_and_a_revoked_token_open_nothing(lin: User) -> None:
    for change in ({"expires_at": timezone.now()}, {"revoked_at": timezone.now()}):
        token, secret = token_create(user=lin, name="old")
        ApiToken.objects.filter(pk=token.pk).update(**change)
        assert Api(None, Authorization=f"Bearer {secret}").get("/me")[0] == 401


def test_a_wrong_token_never_falls_back_to_the_session(lin: User) -> None:
    api = Api(None, Authorization="Bearer ngt_wrong")
    api.client.force_login(lin, backend="allauth.account.auth_backends.AuthenticationBackend")
    assert api.get("/me")[0] == 401


def test_me_tells_projects_and_quota(lin: User) -> None:
    project_make("nlp", members=(lin,), title="Language")
    project_make("gone", members=(lin,), is_active=False)
    type(lin.quota).objects.filter(user=lin).update(gpu_hours=10, used_gpu_s=5400.0, max_cards=4)
    status, me = Api(lin).get("/me")
    assert status == 200
    assert [(project["name"], project["role"], project["is_personal"]) for project in me["projects"]] == [
        ("lin", "lead", True),
        ("nlp", "user", False),
    ]
    assert (me["quota"]["gpu_hours"], me["quota"]["used_gpu_hours"], me["quota"]["max_cards"]) == (10, 1.5, 4)  # 5400 s ÷ 3600
    assert me["quota"]["max_active_jobs"] == 2000  # NEBULA_DEFAULT_ACTIVE_JOBS
    assert me["quota"]["resets_at"]


def test_my_tokens_are_listed_without_secrets_and_can_be_revoked(lin: User) -> None:
    api, (token, secret) = Api(lin), token_create(user=lin, name="ci")
    old, _ = token_create(user=lin, name="old", ttl_s=60)
    ApiToken.objects.filter(pk=old.pk).update(expires_at=timezone.now())
    rows = api.get("/tokens/")[1]["results"]
    assert [row["name"] for row in rows] == ["ci", "test"]
    assert secret not in str(rows)
    assert api.call("DELETE", f"/tokens/{token.pk}").status_code == 204
    assert api.call("DELETE", f"/tokens/{token.pk}").status_code == 404
    assert Api(None, Authorization=f"Bearer {secret}").get("/me")[0] == 401
