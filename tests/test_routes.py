"""What all routes of the API have in common. Who may call which is in test_access.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from quotas.models import ApiToken
from tests.rest import Api, is_error, no_redis  # noqa: F401
from tests.world import BODIES, World, world_make

pytestmark = pytest.mark.django_db
DOCS = Path(__file__).parents[1] / "docs" / "api.md"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


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


@pytest.fixture
def world(tmp_path: Path, settings: Any) -> World:
    settings.LOG_DIR, settings.ARTIFACT_DIR = settings.LOG_DIR, settings.ARTIFACT_DIR  # so that they are put back
    return world_make(tmp_path)


def test_a_wrong_method_is_refused_in_the_one_shape(world: World) -> None:
    api = Api(world.staff)
    for route, methods in V1.items():
        for method in set(METHODS) - methods:
            answer = api.call(method, world.path(route), {})
            assert answer.status_code == 405, (method, route)
            assert is_error(json.loads(answer.content))
            assert answer["Allow"]


def test_options_names_the_methods(world: World) -> None:
    api = Api(world.staff)
    for route, methods in V1.items():
        answer = api.call("OPTIONS", world.path(route), {})
        assert answer.status_code == 405, route
        assert set(answer["Allow"].split(", ")) >= methods
        assert is_error(json.loads(answer.content))


def test_a_bad_or_missing_id_is_a_4xx_for_everybody(world: World) -> None:
    for api in (Api(world.owner), Api(world.staff)):
        for route in (route for route in V1 if "<int:id>" in route):
            method = sorted(V1[route])[0]
            for bad in ("0", "999999999", "9" * 18, "9" * 19, "9" * 40, "-1", "abc", "1.5", "%00", "%ff", "1%00"):
                answer = api.call(method, world.path(route.replace("<int:id>", bad)), BODIES.get((method, route)))
                assert answer.status_code in {400, 403, 404}, (route, bad, answer.content)
                assert is_error(json.loads(answer.content))


def test_a_rank_that_is_not_there_is_a_404(world: World) -> None:
    api = Api(world.owner)
    for rank in ("1", "9" * 9, "9" * 40, "x"):
        answer = api.call("GET", f"/jobs/{world.job.pk}/artifacts/{rank}/model.bin")
        assert answer.status_code == 404
        assert is_error(json.loads(answer.content))


def test_a_missing_name_is_a_404(world: World) -> None:
    api = Api(world.staff)
    for route in (route for route in V1 if "<str:name>" in route):
        method = sorted(V1[route])[0]
        answer = api.call(method, world.path(route.replace("<str:name>", "no-such-name")), BODIES.get((method, route)))
        assert answer.status_code == 404, route
        assert is_error(json.loads(answer.content))


def test_lists_show_a_stranger_nothing_of_the_owner(world: World) -> None:
    stranger, staff = Api(world.stranger), Api(world.staff)
    assert stranger.get("/jobs/")[1]["count"] == 0
    for query in ({"owner": "all"}, {"owner": "owner@lab.example"}, {"q": str(world.job.pk)}, {"q": world.job.name}):
        assert stranger.get("/jobs/", **query)[1]["results"] == []
    mine = {row["prefix"] for row in stranger.get("/tokens/")[1]["results"]}
    assert mine == set(ApiToken.objects.filter(user=world.stranger).values_list("prefix", flat=True))
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
