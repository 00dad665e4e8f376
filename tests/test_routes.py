"""Every route of the API × everybody who may call it. A new route without a row here fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from jobs import logs
from jobs.agent_api import artifact_path
from jobs.models import Artifact, Job, Rank
from nodes.incidents import incident_open
from nodes.models import AgentCommand, Incident
from nodes.services import command_create
from quotas.models import ApiToken, User
from quotas.services import token_create
from tests.factories import attempt_make, node_make, user_make
from tests.rest import Api, is_error, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
DOCS = Path(__file__).parents[1] / "docs" / "api.md"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SUBMIT = {"argv": ["true"], "gpu_mem": "4G"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What each caller gets. ``owner`` owns the job and the token of the address; ``stranger`` is signed in but owns neither."""

    anonymous: int = 401
    owner: int = 200
    stranger: int = 200
    staff: int = 200
    body: dict[str, Any] | None = None


def hidden(**more: Any) -> Row:
    """A job's route: for a stranger the job does not exist."""
    return Row(stranger=404, **more)


def staff_only(status: int, **more: Any) -> Row:
    return Row(owner=403, stranger=403, staff=status, **more)


TABLE: dict[tuple[str, str], Row] = {
    ("POST", "token"): Row(
        anonymous=201, owner=201, stranger=201, staff=201, body={"email": "owner@lab.example", "password": "correct horse"}
    ),
    ("GET", "me"): Row(),
    ("GET", "tokens/"): Row(),
    ("DELETE", "tokens/<int:id>"): Row(owner=204, stranger=404, staff=404),
    ("GET", "audit/"): staff_only(200),
    ("GET", "audit/export"): staff_only(200),
    ("GET", "nodes/"): Row(),
    ("POST", "nodes/enroll-token"): staff_only(201, body={}),
    ("GET", "nodes/<str:name>"): Row(),
    ("PATCH", "nodes/<str:name>"): staff_only(200, body={"labels": {"rack": "r2"}}),
    ("POST", "nodes/<str:name>/drain"): staff_only(200, body={"reason": "new fan"}),
    ("POST", "nodes/<str:name>/resume"): staff_only(200),
    ("POST", "nodes/<str:name>/commands"): staff_only(202, body={"verb": "ping"}),
    ("GET", "nodes/<str:name>/commands/<int:id>"): staff_only(200),
    ("GET", "gpus/"): Row(),
    ("POST", "nodes/<str:name>/drill"): staff_only(202, body={"fault": "xid79"}),
    ("GET", "gpus/<str:uuid>/health"): Row(),
    ("POST", "gpus/<str:uuid>/act"): staff_only(200, body={"action": "isolate", "reason": "smells"}),
    ("GET", "incidents/"): Row(),
    ("GET", "incidents/<int:id>"): Row(),
    ("POST", "incidents/<int:id>/notes"): staff_only(200, body={"text": "looks loose"}),
    ("POST", "incidents/<int:id>/close"): staff_only(409, body={"text": "a loose riser"}),
    ("GET", "gpus/<str:uuid>/samples"): Row(),
    ("GET", "nodes/<str:name>/samples"): Row(),
    ("GET", "pool/samples"): Row(),
    ("GET", "jobs/<int:id>/samples"): hidden(),
    ("GET", "jobs/"): Row(),
    ("POST", "jobs/submit"): Row(owner=201, stranger=201, staff=201, body=SUBMIT),
    ("GET", "jobs/<int:id>"): hidden(),
    ("POST", "jobs/<int:id>/cancel"): hidden(),
    ("POST", "jobs/<int:id>/hold"): hidden(owner=409, staff=409),
    ("POST", "jobs/<int:id>/release"): hidden(owner=409, staff=409),
    ("POST", "jobs/estimate"): Row(body=SUBMIT),
    ("GET", "jobs/<int:id>/why"): hidden(),
    ("GET", "jobs/<int:id>/alternatives"): hidden(owner=409, staff=409),
    ("GET", "jobs/<int:id>/events"): hidden(),
    ("GET", "jobs/<int:id>/logs"): hidden(),
    ("GET", "jobs/<int:id>/logs/download"): hidden(),
    ("GET", "jobs/<int:id>/artifacts"): hidden(),
    ("GET", "jobs/<int:id>/artifacts/<int:rank>/<path:name>"): hidden(),
    ("GET", "resources/usage"): Row(),
    ("GET", "schema"): Row(anonymous=200),
    ("GET", "docs"): Row(anonymous=200),
}
#: The agents' own door is tested where it is written; people's credentials open nothing there.
AGENT_ROUTES = {"enroll", "sync", "logs/<str:rank>", "artifacts/<str:rank>/<str:name>"}


def routes(prefix: str) -> Iterator[tuple[str, set[str]]]:
    """(route below ``prefix``, its methods) of all that is mounted there."""

    def walk(patterns: list[Any], before: str) -> Iterator[tuple[str, Any]]:
        for pattern in patterns:
            route = before + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, route)
            elif isinstance(pattern, URLPattern) and route.startswith(prefix):
                yield route.removeprefix(prefix), pattern.callback

    for route, view in walk(get_resolver().url_patterns, ""):
        view_class = getattr(view, "cls", None)
        yield route, {method for method in METHODS if hasattr(view_class, method.lower())}


V1 = dict(routes("api/v1/"))


@dataclass
class World:
    owner: User
    stranger: User
    staff: User
    job: Job
    token: ApiToken
    command: AgentCommand
    rank: Rank
    incident: Incident
    values: dict[str, str] = field(default_factory=dict)

    def path(self, route: str) -> str:
        is_token = route.startswith("tokens/")
        is_node = route.startswith("nodes/")
        is_incident = route.startswith("incidents/")
        ids = self.token.pk if is_token else self.command.pk if is_node else self.incident.pk if is_incident else self.job.pk
        name = "node-a" if is_node else "model.bin"
        for mark, value in {
            "<int:id>": str(ids),
            "<str:name>": name,
            "<path:name>": name,
            "<int:rank>": "0",
            "<str:uuid>": "GPU-node-a-0",
        }.items():
            route = route.replace(mark, value)
        return "/" + route


@pytest.fixture
def world(tmp_path: Path, settings: Any) -> World:
    settings.LOG_DIR, settings.ARTIFACT_DIR = tmp_path / "logs", tmp_path / "artifacts"
    owner = user_make("owner@lab.example", password="correct horse")
    node = node_make("node-a", cards=2, is_simulated=True)
    attempt = attempt_make(None, gpus=(node.gpus.first(),))
    job = attempt.job
    Job.objects.filter(pk=job.pk).update(owner=owner, env={"SECRET": "hunter2"})
    rank = attempt.ranks.get()
    logs.log_append(rank.key, offset=0, data=b"top secret output\n")
    Artifact.objects.create(rank=rank, name="model.bin", size=4, sha256="0" * 64)
    path = artifact_path(rank.key, "model.bin")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x00\x01\x02\x03")
    staff = user_make("staff@lab.example", is_staff=True)
    return World(
        owner=owner,
        stranger=user_make("stranger@lab.example"),
        staff=staff,
        job=Job.objects.get(pk=job.pk),
        token=token_create(user=owner, name="ci")[0],
        command=command_create(node=node, verb="ping", by=staff),
        rank=rank,
        incident=incident_open(gpu=node.gpus.all()[1], code="xid", params={"xid": 79}, now=timezone.now()),
    )


def test_the_table_has_a_row_for_every_route_and_method() -> None:
    there = {(method, route) for route, methods in V1.items() for method in methods}
    assert there == set(TABLE)


def test_the_agents_routes_are_the_known_ones() -> None:
    assert {route for route, _ in routes("api/agent/v1/")} == AGENT_ROUTES


@pytest.mark.parametrize(("method", "route"), list(TABLE), ids=lambda part: part)
def test_each_caller_gets_what_the_table_says(world: World, method: str, route: str) -> None:
    row = TABLE[method, route]
    path = world.path(route)
    found = {}
    # Owner last but for staff: an owner's DELETE must not make the stranger's 404 true by itself.
    for who, user in (("anonymous", None), ("stranger", world.stranger), ("owner", world.owner), ("staff", world.staff)):
        answer = Api(user).call(method, path, row.body)
        found[who] = answer.status_code
        if answer.status_code >= 400:
            assert is_error(json.loads(answer.content)), (who, answer.content)
        if answer.status_code == 401:
            assert answer["WWW-Authenticate"].startswith("Bearer")
        if answer.status_code == 404 and who == "stranger":
            assert b"secret" not in answer.content
            assert b"hunter2" not in answer.content
    assert found == {who: getattr(row, who) for who in found}


@pytest.mark.parametrize("route", list(V1))
def test_a_wrong_method_is_refused_in_the_one_shape(world: World, route: str) -> None:
    api = Api(world.staff)
    for method in set(METHODS) - V1[route]:
        answer = api.call(method, world.path(route), {})
        assert answer.status_code == 405, (method, route)
        assert is_error(json.loads(answer.content))
        assert answer["Allow"]


@pytest.mark.parametrize("route", [route for route in V1 if "<int:id>" in route])
def test_a_bad_or_missing_id_is_a_4xx_for_everybody(world: World, route: str) -> None:
    for api in (Api(world.owner), Api(world.staff)):
        for bad in ("0", "999999999", "9" * 18, "9" * 19, "9" * 40, "-1", "abc", "1.5", "%00", "%ff", "1%00"):
            path = "/" + route.replace("<int:id>", bad).replace("<str:name>", "node-a").replace("<path:name>", "x").replace(
                "<int:rank>", "0"
            )
            method = sorted(V1[route])[0]
            answer = api.call(method, path, TABLE[method, route].body)
            assert answer.status_code in {400, 403, 404}, (bad, answer.content)
            assert is_error(json.loads(answer.content))


@pytest.mark.parametrize("rank", ["1", "9" * 9, "9" * 40, "x"])
def test_a_rank_that_is_not_there_is_a_404(world: World, rank: str) -> None:
    answer = Api(world.owner).call("GET", f"/jobs/{world.job.pk}/artifacts/{rank}/model.bin")
    assert answer.status_code == 404
    assert is_error(json.loads(answer.content))


@pytest.mark.parametrize("route", [route for route in V1 if "<str:name>" in route])
def test_a_missing_node_is_a_404(world: World, route: str) -> None:
    path = "/" + route.replace("<str:name>", "no-such-node").replace("<int:id>", str(world.command.pk))
    method = sorted(V1[route])[0]
    answer = Api(world.staff).call(method, path, TABLE[method, route].body)
    assert answer.status_code == 404
    assert is_error(json.loads(answer.content))


def test_lists_show_a_stranger_nothing_of_the_owner(world: World) -> None:
    stranger, staff = Api(world.stranger), Api(world.staff)
    assert stranger.get("/jobs/")[1]["count"] == 0
    for query in ({"owner": "all"}, {"owner": "owner@lab.example"}, {"q": str(world.job.pk)}, {"q": world.job.name}):
        assert stranger.get("/jobs/", **query)[1]["results"] == []
    assert stranger.get("/tokens/")[1]["count"] == 1  # the one that this call is made with
    assert staff.get("/jobs/")[1]["count"] == 1


def test_the_values_of_the_environment_are_the_owners_alone(world: World) -> None:
    assert Api(world.owner).get(f"/jobs/{world.job.pk}")[1]["env"] == {"SECRET": "hunter2"}
    assert Api(world.staff).get(f"/jobs/{world.job.pk}")[1]["env"] == {"SECRET": None}
    assert "hunter2" not in json.dumps(Api(world.staff).get("/jobs/")[1])


def test_a_persons_token_is_no_nodes_credential_and_the_other_way_round(world: World) -> None:
    assert Api(world.staff).call("POST", "/api/agent/v1/sync", {}).status_code == 401
    assert Api(None, Authorization="Node 1:" + "c" * 64).get("/me")[0] == 401


@pytest.mark.parametrize(
    "path", ["/api/", "/api/v1/", "/api/v1/nothing", "/api/v2/jobs/", "/api/v1/jobs", "/api/v1/me/", "/api/%00", "/api/v1/jobs/?q=%00"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_address_without_a_route_answers_in_the_one_shape(world: World, path: str, method: str) -> None:
    answer = Api(world.owner).call(method, path)
    assert answer.status_code in {400, 404}
    assert is_error(json.loads(answer.content))


def test_an_almost_right_address_is_told_the_right_one() -> None:
    assert "/api/v1/jobs/" in Api(None).get("/jobs")[1]["message"]


@pytest.mark.parametrize("route", list(V1))
def test_each_route_is_documented(route: str) -> None:
    shown = re.sub(r"<(?:int|str|path):(\w+)>", r"{\1}", route)
    text = DOCS.read_text(encoding="utf-8")
    for method in V1[route]:
        assert f"`{method} /api/v1/{shown}`" in text, f"docs/api.md has no `{method} /api/v1/{shown}`"
