"""Projects and their members: who may be added, changed and taken out, and what goes with it."""

from __future__ import annotations

import pytest

from quotas.models import ApiToken, AuditEntry, Membership, Project, User
from quotas.tokens import token_create
from tests.factories import project_make, user_make
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example", first_name="Lin")


@pytest.fixture
def vision(lin: User) -> Project:
    return project_make("vision", members=(lin,), role=Membership.Role.LEAD)


def roles(project: Project) -> dict[str, str]:
    return dict(Membership.objects.filter(project=project).values_list("user__email", "role"))


def test_an_admin_makes_a_project_and_names_its_lead(lin: User) -> None:
    admin = Api(user_make(is_staff=True))
    status, made = admin.post("/projects/", {"name": "vision", "title": "Vision group", "lead": "LIN@lab.example "})
    assert status == 201
    assert [(member["email"], member["role"]) for member in made["members"]] == [("lin@lab.example", "lead")]
    assert Api(lin).post("/projects/", {"name": "mine"})[0] == 403
    assert admin.post("/projects/", {"name": "vision"})[1]["code"] == "project_there"
    for name in ("", "Vision", "a b", "../x", "-x", "x" * 61, "名"):
        assert admin.post("/projects/", {"name": name})[0] == 400, name
    assert admin.post("/projects/", {"name": "x", "lead": "nobody@lab.example"})[1]["message"].startswith("There is no account")


def test_a_lead_adds_members_changes_their_role_and_takes_them_out(lin: User, vision: Project) -> None:
    chen, lead = user_make("chen@lab.example"), Api(lin)
    assert lead.post("/projects/vision/members", {"email": "chen@lab.example", "role": "viewer"})[0] == 201
    assert lead.post("/projects/vision/members", {"email": "chen@lab.example"})[1]["code"] == "member_there"
    assert Api(chen).get("/projects/vision")[1]["role"] == "viewer"
    assert lead.patch(f"/projects/vision/members/{chen.pk}", {"role": "user"})[0] == 200
    assert roles(vision) == {"lin@lab.example": "lead", "chen@lab.example": "user"}
    assert lead.call("DELETE", f"/projects/vision/members/{chen.pk}").status_code == 204
    assert Api(chen).get("/projects/vision")[0] == 404
    done = list(AuditEntry.objects.filter(action__startswith="member.").order_by("pk").values_list("action", "target", "params__member"))
    assert done == [(f"member.{what}", "project vision", "chen@lab.example") for what in ("added", "changed", "removed")]


def test_a_project_keeps_a_lead(lin: User, vision: Project) -> None:
    admin = Api(user_make(is_staff=True))
    for api in (Api(lin), admin):
        assert api.patch(f"/projects/vision/members/{lin.pk}", {"role": "user"})[1]["code"] == "last_lead"
        assert api.call("DELETE", f"/projects/vision/members/{lin.pk}").status_code == 409
    user_make("chen@lab.example")
    admin.post("/projects/vision/members", {"email": "chen@lab.example", "role": "lead"})
    assert Api(lin).patch(f"/projects/vision/members/{lin.pk}", {"role": "viewer"})[0] == 200
    assert roles(vision)["lin@lab.example"] == "viewer"


def test_a_persons_own_project_has_no_other_members(lin: User) -> None:
    own = Project.objects.get(personal_of=lin)
    user_make("chen@lab.example")
    assert Api(lin).post(f"/projects/{own.name}/members", {"email": "chen@lab.example"})[1]["code"] == "personal_project"
    assert Api(lin).call("DELETE", f"/projects/{own.name}/members/{lin.pk}").status_code == 409


def test_who_is_taken_out_or_made_viewer_loses_the_projects_tokens(lin: User, vision: Project) -> None:
    for change in ({"role": "viewer"}, None):
        chen = user_make()
        Membership.objects.create(project=vision, user=chen)
        secret = token_create(user=chen, name="ci", project=vision, scopes=["read", "submit"])[1]
        own = token_create(user=chen, name="own")[1]
        path = f"/projects/vision/members/{chen.pk}"
        assert (Api(lin).patch(path, change)[0] if change else Api(lin).call("DELETE", path).status_code) in (200, 204)
        assert Api(None, Authorization=f"Bearer {secret}").get("/me")[0] == 401
        assert Api(None, Authorization=f"Bearer {own}").get("/me")[0] == 200


def test_a_lead_sees_and_revokes_tokens_of_the_project_only(lin: User, vision: Project) -> None:
    chen = user_make("chen@lab.example")
    Membership.objects.create(project=vision, user=chen)
    made, _secret = token_create(user=chen, name="ci", project=vision, scopes=["read"])
    own, _secret = token_create(user=chen, name="own")
    rows = Api(lin).get("/projects/vision/tokens")[1]["results"]
    assert [(row["name"], row["project"]) for row in rows] == [("ci", "vision")]
    assert Api(lin).call("DELETE", f"/projects/vision/tokens/{own.pk}").status_code == 404
    assert Api(lin).call("DELETE", f"/projects/vision/tokens/{made.pk}").status_code == 204
    assert ApiToken.objects.get(pk=made.pk).revoked_at is not None
    assert AuditEntry.objects.filter(action="token.revoked", actor="lin@lab.example").count() == 1


def test_nothing_new_is_submitted_under_a_closed_project(lin: User, vision: Project) -> None:
    assert Api(lin).patch("/projects/vision", {"is_active": False, "title": "Closed"})[1]["title"] == "Closed"
    assert Api(lin).post("/jobs/submit", {"argv": ["true"], "gpu_count": 0, "project": "vision"})[0] == 400


def test_the_list_counts_all_members_for_everybody(lin: User, vision: Project) -> None:
    chen = user_make("chen@lab.example")
    Membership.objects.create(project=vision, user=chen, role="viewer")
    row = next(row for row in Api(chen).get("/projects/")[1]["results"] if row["name"] == "vision")
    assert (row["members_count"], row["role"]) == (2, "viewer")


def test_bad_members_are_refused_in_a_sentence(lin: User, vision: Project) -> None:
    user_make("gone@lab.example", is_active=False)
    for body in ({}, {"email": "nobody@lab.example"}, {"email": "gone@lab.example"}, {"email": "lin@lab.example", "role": "king"}):
        status, answer = Api(lin).post("/projects/vision/members", body)
        assert status == 400, body
        assert answer["message"]
