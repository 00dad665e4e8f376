"""The authorisation table against the running routes and sockets: everybody × everything. What is expected comes from the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import channel_layers
from channels.routing import URLRouter
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import get_resolver, include, path, resolve
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.models import Artifact
from nebulagrid import access, gate
from nebulagrid.access import METHODS, Rule, Thing, Tokens, Who, rules, rules_of, sockets
from nodes import consumers, live
from nodes.auth import node_authenticate
from quotas.grants import ALL_SCOPES
from quotas.models import Membership, User
from quotas.tokens import token_authenticate
from tests.factories import job_make
from tests.rest import Api, is_error, no_redis  # noqa: F401
from tests.sockets import Socket
from tests.world import BODIES, SECRETS, World, world_make

#: Whom a person's door does not let in at all, by what they bring.
OUTSIDE = ("anonymous", "node_x", "node_y", "expired", "revoked", "disabled", "jwt_expired")
PEOPLE = ("owner", "mate", "viewer", "lead", "stranger", "staff")
INSIDE = (*PEOPLE, "jwt", "of_project", "of_other_project", *(f"without_{scope}" for scope in ALL_SCOPES))
#: Answers to who may, where they are not a plain 2xx: the thing is not in the state for it.
STATES = {
    ("POST", "api/v1/jobs/<int:id>/hold"): 409,
    ("POST", "api/v1/jobs/<int:id>/release"): 409,
    ("POST", "api/v1/jobs/<int:id>/renew"): 409,
    ("DELETE", "api/v1/jobs/<int:id>/artifacts"): 409,
    ("GET", "api/v1/jobs/<int:id>/alternatives"): 409,
    ("POST", "api/v1/incidents/<int:id>/close"): 409,
}


# --- the table is whole ------------------------------------------------------------------------------------------------


def mounted() -> list[tuple[str, Any]]:
    return [(route, view) for route, view in access.routes_mounted(get_resolver().url_patterns) if route != access.CATCH_ALL]


def test_a_route_is_spelled_as_the_resolver_tells_it() -> None:
    known = {route for route, _view in mounted()}
    for address in (
        "/accounts/confirm-email/MQ:a:b/",
        "/accounts/password/reset/key/1-abc/",
        "/jobs/1/",
        "/api/v1/jobs/1",
        "/admin/quotas/",
    ):
        assert resolve(address).route in known


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    routes = dict(mounted())
    assert [route for route in routes if not rules_of(route)] == [], "add rows to nebulagrid/access.py"
    used = {
        route if route in rules() else next(known for known in rules() if known.endswith("*") and route.startswith(known[:-1]))
        for route in routes
    }
    gone = {route for route in set(rules()) - used if not route.startswith(access.OPTIONAL)}
    assert gone == set(), "rows of routes that are gone"


def test_every_method_of_the_api_has_a_row_and_the_table_is_its_only_guard() -> None:
    for route, view in mounted():
        if (view_class := getattr(view, "cls", None)) is None:
            continue
        there = {method for method in METHODS if hasattr(view_class, method.lower())}
        assert there == set(rules_of(route)), route
        assert view_class.permission_classes == [gate.TableAllows], f"{route} has permission classes of its own"
        assert "get_permissions" not in vars(view_class), route


def test_the_agents_views_are_behind_the_nodes_door() -> None:
    for route, view in mounted():
        if any(rule.who == Who.NODE for rule in rules_of(route).values()):
            assert view.opens_to_nodes_only, route


def test_every_kind_of_topic_has_a_row() -> None:
    kinds = {
        kind
        for kind in ("user", "job", "node", "pool", "gpu", "alert", "project")
        if live.TOPIC.fullmatch(f"{kind}.1") or live.TOPIC.fullmatch(kind)
    }
    assert kinds == set(sockets())
    assert all(kind in live.TOPIC.pattern for kind in kinds)


class Unlisted(APIView):
    def get(self, request: Any) -> Response:
        return Response({"secret": 1})


def unlisted(request: Any, **named: Any) -> HttpResponse:
    return HttpResponse("secret")


urlpatterns = [
    path("forgotten/", unlisted),
    path("api/v1/forgotten", Unlisted.as_view()),
    path("api/agent/v1/forgotten", unlisted),
    path("jobs/<int:id>/", unlisted),  # listed: opens by its row
    path("", include("nebulagrid.urls")),
]


@pytest.mark.django_db
@pytest.mark.urls(__name__)
def test_a_view_without_a_row_opens_to_nobody(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    for address in ("/forgotten/", "/api/v1/forgotten", "/api/agent/v1/forgotten"):
        for answer in (world.session("staff").get(address), Client(headers=world.bearer("staff")).get(address), Client().get(address)):
            assert answer.status_code == 403, address
            assert b"secret" not in answer.content
    assert world.session("owner").get(f"/jobs/{world.job.pk}/").content == b"secret"
    # A view that forgets to look whose job it is: the table does.
    assert world.session("stranger").get(f"/jobs/{world.job.pk}/").status_code == 404


# --- everybody × everything --------------------------------------------------------------------------------------------


def world_at(folder: Path, settings: Any) -> World:
    settings.LOG_DIR, settings.ARTIFACT_DIR = folder / "logs", folder / "artifacts"
    for scope in ("ANONYMOUS", "SUBMIT", "ESTIMATE", "AGENT"):
        setattr(settings, f"THROTTLE_{scope}", "off")
    return world_make(folder)


SEES = {
    Thing.JOB_SEE: ("owner", "mate", "viewer", "lead", "staff"),
    Thing.JOB_OUTPUT: ("owner", "staff"),
    Thing.JOB_CHANGE: ("owner", "lead", "staff"),
    Thing.QUOTA_SEE: ("owner", "staff"),
    Thing.QUOTA_DECIDE: ("staff",),
    Thing.ALERT_SEE: ("owner", "staff"),
    Thing.PROJECT_SEE: ("owner", "mate", "viewer", "lead", "staff"),
    Thing.PROJECT_LEAD: ("lead", "staff"),
}


def refusal(rule: Rule, who: str, route: str) -> int | None:
    """The status that the table means for this caller; None = may."""
    if rule.who == Who.ANYONE:
        return None
    if who in OUTSIDE:
        return 401
    if who.startswith("without_"):
        if rule.scope == who.removeprefix("without_"):
            return 403
        who = "owner"
    if who.startswith("of_") and rule.token != Tokens.ANY:
        return 403
    if who == "jwt" and (route.endswith("/token/jwt") or (route.endswith("v1/tokens/") and rule.scope == "manage")):
        return 403  # else it would live for ever
    if rule.who == Who.STAFF and who != "staff":
        return 403
    if who == "of_other_project" and rule.thing in SEES:
        return 404
    person = "owner" if who in ("jwt", "of_project", "of_other_project") else who
    if rule.thing in SEES and person not in SEES[rule.thing]:
        is_seen = rule.thing in (Thing.JOB_CHANGE, Thing.PROJECT_LEAD) and person in SEES[Thing.JOB_SEE]
        is_seen |= rule.thing == Thing.QUOTA_DECIDE and person in SEES[Thing.QUOTA_SEE]
        return 403 if is_seen else 404
    if rule.thing == Thing.OWN and "<int:id>" in route and person != "owner":
        return 404
    return None


def undone(call: Any) -> Any:
    """What a call changes is taken back: the next caller meets the same world."""
    with transaction.atomic():
        answer = call()
        if answer.streaming and not answer.is_async:
            answer.getvalue()  # a file's cursor is open until its last byte
        transaction.set_rollback(True)
    return answer


@pytest.mark.django_db
def test_each_caller_of_the_api_gets_what_the_table_says(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    clients = {who: Api(None, **world.bearer(who)) for who in (*OUTSIDE, *INSIDE)}
    wrong = []
    for route, methods in rules().items():
        if not route.startswith("api/v1/"):
            continue
        for method, rule in methods.items():
            body, address = BODIES.get((method, route.removeprefix("api/v1/"))), world.path(route)
            for who, api in clients.items():
                expected = refusal(rule, who, route)
                answer = undone(lambda api=api, method=method, address=address, body=body: api.call(method, address, body))
                status, content = answer.status_code, b"" if answer.streaming else answer.content
                is_right = status == expected if expected else 200 <= status < 300 or status == STATES.get((method, route))
                if status >= 400:
                    is_right &= is_error(json.loads(content))
                if status == 401:
                    is_right &= answer["WWW-Authenticate"].startswith("Bearer")
                if expected:
                    is_right &= not any(secret in content for secret in SECRETS)
                if not is_right:
                    wrong.append((method, route, who, expected, status, content[:200]))
    assert wrong == [], "\n".join(map(str, wrong[:30]))


@pytest.mark.django_db
def test_each_visitor_of_a_page_gets_what_the_table_says(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    settings.METRICS_ALLOW = ["127.0.0.1"]  # where the table says "anyone"; who that is, test_metrics.py tells
    # No credential of the API opens a page, whoever bears it; nor does the session of one who was switched off.
    outside = [Client(headers=world.bearer(who), raise_request_exception=False) for who in ("anonymous", "node_x", "staff")]
    outside.append(world.session("disabled"))
    inside = {who: world.session(who) for who in PEOPLE}
    wrong = []
    # Signing out is last: it ends the sessions that all others are asked with.
    for route, methods in sorted(rules().items(), key=lambda item: item[0] == "accounts/logout/"):
        if route.startswith(("api/", access.OPTIONAL)) or "*" in route or "(?P" in route:
            continue
        for method, rule in methods.items():
            address, needs_sign_in = world.path(route), rule.who in (Who.USER, Who.STAFF)
            # Where the table makes no difference between people, two of them are enough.
            who_comes = PEOPLE if rule.thing != Thing.NONE else ("stranger", "staff")
            visitors = [*(("", client) for client in outside), *((who, inside[who]) for who in who_comes)]
            for who, client in visitors:
                answer = undone(lambda client=client, method=method, address=address: client.generic(method, address))
                status, to_login = answer.status_code, answer.headers.get("Location", "").startswith("/accounts/login/?next=")
                expected = refusal(rule, who, route) if who else 302 if needs_sign_in else None
                if rule.who == Who.NOBODY:
                    is_right = status == 404
                elif expected == 302:
                    is_right = to_login
                elif expected:
                    is_right = status == expected and not any(secret in answer.content for secret in SECRETS)
                else:
                    may_lack = rule.who == Who.ANYONE or route.startswith("accounts/2fa/")  # without a second factor there is none to end
                    is_right = (status < 400 and not to_login) or status in (400, 409) or (may_lack and status in (404, 410))
                if not is_right:
                    wrong.append((method, route, who or "outside", expected, status))
    assert wrong == [], "\n".join(map(str, wrong[:30]))


@pytest.mark.django_db
def test_the_administration_opens_to_staff_alone(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    User.objects.filter(pk=world.staff.pk).update(is_superuser=True)
    addresses = [f"/{route}" for route, _view in mounted() if route.startswith("admin/") and "<" not in route and "(" not in route]
    assert len(addresses) > 20
    for address in addresses:
        if address in ("/admin/login/", "/admin/logout/"):
            continue
        assert Client().get(address).headers["Location"].startswith("/accounts/login/?next="), address
        assert world.session("lead").get(address).status_code == 403, address
    assert world.session("staff").get("/admin/").status_code == 200


@pytest.mark.django_db
def test_only_a_node_writes_and_only_to_what_is_its_own(tmp_path: Path, settings: Any) -> None:
    """Known failure 61: one node's credential wrote another job's log."""
    world = world_at(tmp_path, settings)
    (log,) = (file for file in (tmp_path / "logs").rglob("*") if file.is_file())
    log_at, file_at = (
        f"/api/agent/v1/logs/{world.rank.key}?offset={log.stat().st_size}",
        f"/api/agent/v1/artifacts/{world.rank.key}/weights",
    )

    def put(who: str, address: str) -> int:
        return Client(headers=world.bearer(who)).generic("PUT", address, b"forged", content_type="application/octet-stream").status_code

    for who in (*OUTSIDE, *INSIDE):
        if who != "node_x":
            assert {put(who, log_at), put(who, file_at)} == {403 if who == "node_y" else 401}, who
        answer = Client(headers=world.bearer(who)).post("/api/agent/v1/sync", b"{}", content_type="application/json")
        assert answer.status_code == (400 if who in ("node_x", "node_y") else 401), who
    assert log.read_bytes() == b"top secret output\n"
    assert not Artifact.objects.filter(name="weights").exists()
    assert (put("node_x", log_at), put("node_x", file_at)) == (200, 201)


# --- sockets -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
async def test_each_caller_of_a_socket_gets_the_groups_that_the_table_says(tmp_path: Path, settings: Any, monkeypatch: Any) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    monkeypatch.setattr(consumers, "_user_for_token", token_authenticate)
    monkeypatch.setattr(consumers, "_may_watch", gate.may_watch)
    world: World = await sync_to_async(world_at)(tmp_path, settings)
    app = URLRouter(consumers.websocket_urlpatterns)
    owner, node = world.owner.pk, world.node.pk
    topics = {"pool": "pool", "user": f"user.{owner}", "job": f"job.{world.job.pk}", "node": f"node.{node}"}
    assert set(topics) == set(sockets())
    for who in (*OUTSIDE, *INSIDE):
        headers = {name.lower(): value for name, value in world.bearer(who).items()}
        there = Socket(app, "/ws/live", host="testserver", **headers)
        closed = await there.connect()
        if who in OUTSIDE or who == "without_read":
            assert closed in (4401, 4403), who
            continue
        assert closed is None, who
        answer = await there.ask({"subscribe": [*topics.values(), f"agent.{node}", "everything", "job.0"]})
        got = {kind for kind, topic in topics.items() if topic in answer["topics"]}
        assert got == {kind for kind, rule in sockets().items() if _may_join(rule, who)}, who
        own = f"user.{world.people[who].pk}" if who in world.people else f"user.{owner}"
        assert set(answer["topics"]) <= {*topics.values(), own}, who
        await there.leave()
    agent = Socket(app, "/api/agent/v1/ws", authorization=world.bearer("node_x")["Authorization"])
    assert await agent.connect() is None
    assert set(channel_layers["default"].groups) == {live.agent_group(node)}  # its own group, whatever it says
    await agent.leave()
    for who in ("anonymous", *INSIDE):
        headers = {name.lower(): value for name, value in world.bearer(who).items()}
        assert await Socket(app, "/api/agent/v1/ws", **headers).connect() == 4401, who
    # A token in the address opens nothing: addresses are logged.
    assert await Socket(app, f"/ws/live?token={world.secrets['owner']}", host="testserver").connect() in (4401, 4403)
    channel_layers.backends.clear()
    await sync_to_async(lambda: connection.close())()


def _may_join(rule: Rule, who: str) -> bool:
    if rule.who == Who.STAFF:
        return who == "staff"
    if rule.thing == Thing.OWN:
        return who in ("owner", "jwt", "without_submit", "without_manage")
    return rule.thing == Thing.NONE or who in (*SEES[Thing.JOB_SEE], "jwt", "of_project", "without_submit", "without_manage")


# --- places in projects ------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_mate_sees_the_job_but_not_what_it_wrote(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    page = world.session("mate").get(f"/jobs/{world.job.pk}/").content.decode()
    assert world.job.name in page
    assert "hunter2" not in page
    for hidden in (f"/jobs/{world.job.pk}/log/", f"/jobs/{world.job.pk}/files/", f"/jobs/{world.job.pk}/cancel/"):
        assert f'"{hidden}"' not in page
    live_part = world.session("mate").get(f"/jobs/{world.job.pk}/live/?tab=log&epoch=0", headers={"HX-Request": "true"})
    assert live_part.status_code == 200
    assert b"log-view" not in live_part.content
    row = Api(None, **world.bearer("viewer")).get(f"/jobs/{world.job.pk}")[1]
    assert row["env"] == {"SECRET": None}


@pytest.mark.django_db
def test_a_lead_cancels_in_the_project_and_nowhere_else(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    elsewhere, here = job_make(world.owner), job_make(world.owner, project=world.project)
    lead = Api(None, **world.bearer("lead"))
    assert lead.post(f"/jobs/{elsewhere.pk}/cancel")[0] == 404
    assert lead.post(f"/jobs/{here.pk}/cancel")[0] == 200
    # Several at once: what is not the lead's to stop stays.
    mates = job_make(world.people["mate"], project=world.project)
    world.session("viewer").post("/jobs/cancel/", {"id": [mates.pk, elsewhere.pk]})
    mates.refresh_from_db()
    assert mates.state == "WAITING"
    world.session("lead").post("/jobs/cancel/", {"id": [mates.pk, elsewhere.pk]})
    mates.refresh_from_db()
    elsewhere.refresh_from_db()
    assert (mates.state, elsewhere.state) == ("CANCELLED", "WAITING")


@pytest.mark.django_db
def test_who_leaves_a_project_sees_its_jobs_no_more(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    mate = Api(None, **world.bearer("mate"))
    assert mate.get("/jobs/")[1]["count"] == 1
    Membership.objects.filter(project=world.project, user=world.people["mate"]).delete()
    assert mate.get("/jobs/")[1]["count"] == 0
    assert mate.get(f"/jobs/{world.job.pk}")[0] == 404


@pytest.mark.django_db
def test_a_viewer_looks_on_and_submits_nothing(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    status, body = Api(None, **world.bearer("viewer")).post("/jobs/submit", {"argv": ["true"], "gpu_count": 0, "project": "vision"})
    assert (status, list(body["fields"])) == (400, ["project"])


@pytest.mark.django_db
def test_a_projects_token_submits_there_and_nowhere_else(tmp_path: Path, settings: Any) -> None:
    world = world_at(tmp_path, settings)
    own = job_make(world.owner)
    api = Api(None, **world.bearer("of_project"))
    status, job = api.post("/jobs/submit", {"argv": ["true"], "gpu_count": 0})
    assert (status, job["project"]) == (201, "vision")
    assert api.post("/jobs/submit", {"argv": ["true"], "gpu_count": 0, "project": "speech"})[0] == 400
    assert api.get(f"/jobs/{own.pk}")[0] == 404
    assert {row["project"] for row in api.get("/jobs/")[1]["results"]} == {"vision"}
    assert [project["name"] for project in api.get("/me")[1]["projects"]] == ["vision"]


def test_a_node_is_no_person_and_the_other_way_round() -> None:
    assert node_authenticate("Bearer ngt_" + "x" * 43) is None


# --- what must not be told ---------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_token_in_an_address_opens_nothing_and_no_credential_is_logged(tmp_path: Path, settings: Any, caplog: Any) -> None:
    """Known failure 63: tokens in logs, messages and addresses."""
    world = world_at(tmp_path, settings)
    secret, caught = world.secrets["owner"], []
    client = Client(raise_request_exception=False)
    with caplog.at_level("DEBUG"):
        for name in ("token", "access_token", "key", "authorization"):
            assert client.get(f"/api/v1/me?{name}={secret}").status_code == 401
        for header in (f"Bearer {secret}x", f"Bearer  {secret[:-1]}", f"Token {secret}", f"Basic {secret}"):
            answer = client.get("/api/v1/me", headers={"Authorization": header})
            assert answer.status_code == 401
            caught.append(answer.content)
        body = {"email": "owner@lab.example", "password": "a-wrong-secret"}
        answer = client.post("/api/v1/token", body, content_type="application/json")
        caught.append(answer.content)
        caught.append(client.post("/api/v1/token", {**body, "password": {"x": "a-wrong-secret"}}, content_type="application/json").content)
    told = b"".join(caught).decode() + caplog.text
    assert secret[:20] not in told
    assert "a-wrong-secret" not in told
