"""Tokens with scopes and of projects, and the short JWTs made from them (D18)."""

from __future__ import annotations

import base64
import hmac
import json
from datetime import datetime, timedelta
from typing import Any

import jwt
import pytest
from django.utils import timezone

from quotas.errors import BadValue
from quotas.grants import Grant
from quotas.models import Membership, User
from quotas.secrets import secret_set
from quotas.tokens import JWT_MOST_S, _jwt_key, credential_open, jwt_create, token_create, token_revoke
from tests.factories import project_make, user_make
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example", password="correct horse")


def part(data: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()


def _joined(text: str, mark: bytes) -> str:
    return f"{text}.{base64.urlsafe_b64encode(mark).decode().rstrip('=')}"


def claims_of(text: str) -> dict[str, Any]:
    return jwt.decode(text, options={"verify_signature": False})


def me(text: str) -> int:
    return Api(None, Authorization=f"Bearer {text}").get("/me")[0]


# --- JWTs ---------------------------------------------------------------------------------------------------------------


def test_a_jwt_opens_the_api_and_names_user_and_groups(lin: User) -> None:
    project_make("vision", members=(lin,))
    status, answer = Api(lin).post("/token/jwt", {"ttl_s": 300})
    assert status == 201
    assert me(answer["token"]) == 200
    claims = claims_of(answer["token"])
    assert (claims["sub"], claims["email"], claims["groups"]) == (str(lin.pk), "lin@lab.example", ["lin", "vision"])
    assert claims["exp"] - claims["iat"] == 300
    assert jwt.get_unverified_header(answer["token"])["alg"] == "HS256"
    assert "quota" not in claims
    assert "role" not in claims


@pytest.mark.parametrize("ttl_s", [0, -1, 901, 10**9, True, "300", 1.5])
def test_a_jwt_lives_fifteen_minutes_at_most(lin: User, ttl_s: Any) -> None:
    assert Api(lin).post("/token/jwt", {"ttl_s": ttl_s})[0] == 400


def forgeries(good: str) -> dict[str, str]:
    claims, (head, body, mark) = claims_of(good), good.split(".")
    now = int(timezone.now().timestamp())
    sign = lambda data, **more: jwt.encode(data, _jwt_key(), algorithm="HS256", **more)  # noqa: E731
    hs512 = f"{part({'alg': 'HS512', 'typ': 'JWT'})}.{body}"
    none = part({"alg": "none", "typ": "JWT"})
    return {
        "alg none": f"{none}.{body}.",
        "alg None": f"{part({'alg': 'None', 'typ': 'JWT'})}.{body}.",
        "alg none, old signature": f"{none}.{body}.{mark}",
        "no signature": f"{head}.{body}.",
        "another user": f"{head}.{part(claims | {'sub': '1'})}.{mark}",
        "more scopes": f"{head}.{part(claims | {'scope': 'read submit manage'})}.{mark}x",
        "another key": jwt.encode(claims, "k" * 32, algorithm="HS256"),
        "another algorithm with our key": jwt.encode(claims, _jwt_key().ljust(64, b"0"), algorithm="HS512"),
        "HS512 with the very key": _joined(hs512, hmac.digest(_jwt_key(), hs512.encode(), "sha512")),
        "expired": sign(claims | {"iat": now - 1000, "exp": now - 100}),
        "no end": sign({key: value for key, value in claims.items() if key != "exp"}),
        "lives for years": sign(claims | {"exp": now + 10**8}),
        "from the future": sign(claims | {"iat": now + 600, "exp": now + 900}),
        "for another audience": sign(claims | {"aud": "somebody-else"}),
        "of another issuer": sign(claims | {"iss": "https://evil.example"}),
        "no user": sign(claims | {"sub": "999999"}),
        "no number": sign(claims | {"sub": "lin"}),
        "no password mark": sign({key: value for key, value in claims.items() if key != "pwd"}),
        "endless number": sign(claims | {"exp": 1e308}),
        "not JSON": f"{head}.bm90IGpzb24.{mark}",
        "a word": "a.b.c",
        "a list": sign({**claims, "sub": "1"}).replace(".", ".."),
        "long": "a" * 5000 + ".b.c",
        "an elf": "ñ.b.c",
    }


def test_a_forged_or_expired_jwt_is_a_401(lin: User) -> None:
    good = jwt_create(user=lin, grant=None)[0]
    assert me(good) == 200
    for name, text in forgeries(good).items():
        client = Api(None).client
        answer = client.get("/api/v1/me", headers={"Authorization": f"Bearer {text}"})
        assert answer.status_code == 401, name
        assert answer["WWW-Authenticate"].startswith("Bearer")


def test_a_jwt_ends_when_its_time_is_over(lin: User) -> None:
    now = timezone.now()
    text = jwt_create(user=lin, grant=None, ttl_s=60, now=now)[0]
    assert credential_open(text, now=now + timedelta(seconds=58)) is not None
    assert credential_open(text, now=now + timedelta(seconds=60)) is None


def test_a_jwt_ends_with_what_it_was_made_from(lin: User) -> None:
    token, secret = token_create(user=lin, name="ci")
    from_token = Api(None, Authorization=f"Bearer {secret}").post("/token/jwt", {})[1]["token"]
    from_session = jwt_create(user=lin, grant=None)[0]
    token_revoke(token=token)
    assert (me(from_token), me(from_session)) == (401, 200)
    lin.set_password("another horse")
    lin.save()
    assert me(from_session) == 401


def test_rights_are_read_at_each_use_not_from_the_jwt(lin: User) -> None:
    User.objects.filter(pk=lin.pk).update(is_staff=True)
    lin.refresh_from_db()
    api = Api(None, Authorization=f"Bearer {jwt_create(user=lin, grant=None)[0]}")
    assert api.post("/nodes/enroll-token", {})[0] == 201
    User.objects.filter(pk=lin.pk).update(is_staff=False)
    assert api.post("/nodes/enroll-token", {})[0] == 403
    User.objects.filter(pk=lin.pk).update(is_active=False)
    assert api.get("/me")[0] == 401


def test_a_jwt_has_no_more_scopes_than_its_token_and_makes_no_other(lin: User) -> None:
    reader = Api(None, Authorization=f"Bearer {token_create(user=lin, name='r', scopes=['read'])[1]}")
    assert reader.post("/token/jwt", {"scopes": ["submit"]})[0] == 400
    status, answer = reader.post("/token/jwt", {})
    assert (status, answer["scopes"]) == (201, ["read"])
    by_jwt = Api(None, Authorization=f"Bearer {answer['token']}")
    assert by_jwt.post("/jobs/submit", {"argv": ["true"], "gpu_count": 0})[1]["code"] == "scope_missing"
    assert by_jwt.post("/token/jwt", {})[1]["code"] == "jwt_from_jwt"


def test_a_jwt_of_a_projects_token_stays_confined(lin: User) -> None:
    project = project_make("vision", members=(lin,))
    secret = token_create(user=lin, name="ci", project=project, scopes=["read", "submit"])[1]
    text = Api(None, Authorization=f"Bearer {secret}").post("/token/jwt", {})[1]["token"]
    assert claims_of(text)["groups"] == ["vision"]
    found = credential_open(text)
    assert found is not None
    assert found[0].confined_to == project.pk


def test_a_grant_longer_than_the_rule_is_refused(lin: User) -> None:
    with pytest.raises(BadValue):
        jwt_create(user=lin, grant=Grant(scopes=frozenset({"read"})), ttl_s=JWT_MOST_S + 1)


# --- tokens -------------------------------------------------------------------------------------------------------------


def test_a_token_is_made_with_scopes_and_tells_them(lin: User) -> None:
    status, answer = Api(lin).post("/tokens/", {"name": "ci", "scopes": ["submit", "read", "read"]})
    assert (status, answer["scopes"]) == (201, ["read", "submit"])
    row = next(row for row in Api(lin).get("/tokens/")[1]["results"] if row["name"] == "ci")
    assert "token" not in row
    assert row["scopes"] == ["read", "submit"]


@pytest.mark.parametrize("body", [{}, {"name": "x", "scopes": []}, {"name": "x", "scopes": ["root"]}, {"name": "x", "project": "lost"}])
def test_a_token_that_can_not_be_is_refused_in_a_sentence(lin: User, body: dict[str, Any]) -> None:
    status, answer = Api(lin).post("/tokens/", body)
    assert status == 400
    assert answer["message"]


def test_a_viewer_makes_no_token_for_the_project_and_no_projects_token_manages(lin: User) -> None:
    project = project_make("vision")
    Membership.objects.create(project=project, user=lin, role=Membership.Role.VIEWER)
    assert Api(lin).post("/tokens/", {"name": "ci", "project": "vision"})[0] == 400
    Membership.objects.update(role=Membership.Role.LEAD)
    assert Api(lin).post("/tokens/", {"name": "ci", "project": "vision", "scopes": ["manage"]})[0] == 400
    assert Api(lin).post("/tokens/", {"name": "ci", "project": "vision"})[0] == 201


def test_a_projects_token_ends_with_its_makers_place(lin: User) -> None:
    project = project_make("vision", members=(lin,))
    api = Api(None, Authorization=f"Bearer {token_create(user=lin, name='ci', project=project, scopes=['read', 'submit'])[1]}")
    short = api.post("/token/jwt", {})[1]["token"]
    assert (api.get("/jobs/")[0], me(short)) == (200, 200)
    Membership.objects.filter(project=project).update(role=Membership.Role.VIEWER)  # as the administration does it: by no service
    assert (api.get("/jobs/")[0], me(short)) == (401, 401)
    Membership.objects.filter(project=project).delete()
    assert (api.get("/jobs/")[0], me(short)) == (401, 401)


def test_a_projects_token_of_an_admin_has_no_admins_rights_and_shows_nothing_of_his_own(lin: User) -> None:
    boss = user_make("boss@lab.example", is_staff=True)
    project = project_make("vision", members=(lin, boss))
    secret_set(by=boss, name="mine", value="canary of boss")
    secret_set(by=boss, name="ours", value="canary of vision", project=project)
    secret = token_create(user=boss, name="ci", project=project, scopes=["read", "submit"])[1]
    api, whole = Api(None, Authorization=f"Bearer {secret}"), Api(boss)
    body = {"argv": ["true"], "gpu_count": 0, "priority": 1}
    assert [one.post("/jobs/submit", body)[0] for one in (api, whole)] == [400, 201]
    names = [[row["name"] for row in one.get("/secrets/")[1]["results"]] for one in (api, whole)]
    assert names == [["ours"], ["mine", "ours"]]


def test_nothing_that_ends_leaves_a_token_behind_that_does_not(lin: User) -> None:
    now = timezone.now()
    by_jwt = Api(None, Authorization=f"Bearer {jwt_create(user=lin, grant=None)[0]}")
    status, answer = by_jwt.post("/tokens/", {"name": "for ever"})
    assert (status, answer["code"]) == (403, "jwt_from_jwt")
    short = Api(None, Authorization=f"Bearer {token_create(user=lin, name='an hour', ttl_s=3600)[1]}")
    for body in ({"name": "a year"}, {"name": "a day", "ttl_s": 86_400}):
        status, answer = short.post("/tokens/", body)
        assert status == 201
        assert datetime.fromisoformat(answer["expires_at"]) <= now + timedelta(seconds=3660)
    status, answer = short.post("/tokens/", {"name": "a minute", "ttl_s": 60})
    assert datetime.fromisoformat(answer["expires_at"]) <= now + timedelta(seconds=120)
