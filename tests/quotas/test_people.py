"""Users, personal projects and API tokens."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quotas.errors import BadValue
from quotas.models import ApiToken, Membership, Project, User
from quotas.selectors import projects_to_submit
from quotas.services import project_personal, user_create
from quotas.tokens import token_authenticate, token_create, token_revoke
from tests.factories import project_make, user_make
from tests.threads import in_threads

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


def test_a_new_user_has_a_personal_project_that_he_leads_and_a_quota():
    user = user_create(email="Lin.Wei@Lab.Example", password="a long password")
    project = Project.objects.get(personal_of=user)
    assert (user.email, project.name) == ("lin.wei@lab.example", "lin-wei")
    assert Membership.objects.get(project=project, user=user).role == Membership.Role.LEAD
    assert user.quota.active_jobs == 0
    assert user.check_password("a long password")


def test_names_that_are_taken_get_a_number():
    names = [project_personal(user_make(email)).name for email in ("lin@a.example", "lin@b.example", "lin@c.example")]
    assert names == ["lin", "lin-2", "lin-3"]


@pytest.mark.parametrize("email", ["李@lab.example", "___@lab.example"])
def test_an_address_without_latin_letters_still_gets_a_project(email):
    user = User.objects.create_user(email)
    assert project_personal(user).name == "user"


def test_an_address_is_taken_whatever_its_case():
    user_make("lin@lab.example")
    with pytest.raises(BadValue) as caught:
        user_create(email="LIN@lab.example")
    assert caught.value.message == "There is already a user LIN@lab.example."
    assert Project.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_threads_that_ask_first_make_one_personal_project():
    user = User.objects.create_user("lin@lab.example")
    answers = in_threads(8, lambda _: project_personal(user).pk)
    assert len(set(answers)) == 1
    assert Project.objects.count() == 1


def test_he_submits_to_projects_that_he_works_in_and_not_where_he_looks_on():
    user = user_make()
    works = project_make("a-team", members=(user,))
    project_make("looks-on", members=(user,), role=Membership.Role.VIEWER)
    project_make("other")
    project_make("closed", members=(user,), is_active=False)
    assert {project.pk for project in projects_to_submit(user)} == {works.pk, project_personal(user).pk}


def test_a_token_opens_and_only_its_hash_is_kept():
    user = user_make()
    token, secret = token_create(user=user, name="laptop")
    assert secret.startswith("ngt_")
    assert len(secret) == 47
    assert token.prefix == secret[:12]
    assert secret not in str(ApiToken.objects.values())
    assert token_authenticate(secret) == user


@pytest.mark.parametrize("secret", ["", "ngt_", "ngt_wrong", "Bearer x", "ngt_" + "x" * 500])
def test_what_is_no_token_opens_nothing(secret):
    token_create(user=user_make(), name="laptop")
    assert token_authenticate(secret) is None


def test_a_token_ends_at_its_time():
    user = user_make()
    _, secret = token_create(user=user, name="ci", ttl_s=60, now=NOW)
    assert token_authenticate(secret, now=NOW + timedelta(seconds=59)) == user
    assert token_authenticate(secret, now=NOW + timedelta(seconds=60)) is None


def test_a_revoked_token_opens_nothing_and_keeps_its_first_time():
    token, secret = token_create(user=user_make(), name="ci")
    token_revoke(token=token, now=NOW)
    token_revoke(token=token, now=NOW + timedelta(days=1))
    assert token.revoked_at == NOW
    assert token_authenticate(secret) is None


def test_a_disabled_users_token_opens_nothing():
    user = user_make()
    _, secret = token_create(user=user, name="ci")
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert token_authenticate(secret) is None


def test_the_last_use_is_written_once_a_minute():
    _, secret = token_create(user=user_make(), name="ci")
    counts = []
    for after_s in (0, 59, 60):
        with CaptureQueriesContext(connection) as queries:
            token_authenticate(secret, now=NOW + timedelta(seconds=after_s))
        counts.append(len(queries))
    assert counts == [2, 1, 2]
    assert ApiToken.objects.get().last_used_at == NOW + timedelta(seconds=60)


@pytest.mark.parametrize("ttl_s", [0, -1])
def test_a_token_that_is_over_before_it_began_is_refused(ttl_s):
    with pytest.raises(BadValue, match="token_ttl") as caught:
        token_create(user=user_make(), name="ci", ttl_s=ttl_s)
    assert caught.value.message == f"A token must live for at least a second; got {ttl_s} s."
