"""What changes something is written down: each route has a row, and each row is true."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from nebulagrid.access import rules
from nebulagrid.audited import REASONS, audited
from quotas import audit
from quotas.audit import ACTIONS
from quotas.models import AuditEntry
from tests.rest import no_redis  # noqa: F401
from tests.world import BODIES, World, world_make

ROOT = Path(__file__).parents[1]
API = "api/v1/"
#: What the small lab can't show by one call; each has a test of its own where it is written.
ELSEWHERE = {
    "incidents/<int:id>/close": "only of a card that is back",
    "jobs/<int:id>/hold": "only of one that waits",
    "jobs/<int:id>/release": "only of one that is held",
    "jobs/<int:id>/renew": "only of one that has a lease: jobs/test_ownerless.py",
    "jobs/<int:id>/artifacts": "only of one that has ended: jobs/test_files.py",
    "alerts/<int:id>/reopen": "only of one that is acknowledged",
    "projects/<str:name>/tokens/<int:id>": "a project's token is another one than the world's",
    "quota/requests/<int:id>/decide": "needs a grant's amount and end",
}


def test_every_route_that_changes_something_has_a_row_and_every_row_a_route() -> None:
    there = {(method, route) for route, methods in rules().items() for method in methods if method != "GET"}
    assert there - audited().keys() == set(), "add rows to nebulagrid/audited.py"
    assert audited().keys() - there == set(), "rows of routes that are gone"


def test_rows_name_actions_and_reasons_that_there_are() -> None:
    assert {name for names in audited().values() for name in names} - REASONS - ACTIONS.keys() == set()


def test_every_action_is_written_somewhere() -> None:
    source = "".join(
        path.read_text(encoding="utf-8") for room in ("quotas", "nodes", "jobs", "nebulagrid") for path in (ROOT / room).rglob("*.py")
    )
    source = source.replace(inspect.getsource(audit), "")
    source = re.sub(r'TABLE = """.*?"""', "", source, flags=re.DOTALL)
    assert [name for name in ACTIONS if f'"{name}"' not in source] == []


@pytest.mark.django_db
def test_each_call_of_the_api_leaves_what_its_row_says(tmp_path: Path, settings: Any) -> None:
    for scope in ("ANONYMOUS", "SUBMIT", "ESTIMATE", "AGENT"):
        setattr(settings, f"THROTTLE_{scope}", "off")
    settings.LOG_DIR, settings.ARTIFACT_DIR = tmp_path / "logs", tmp_path / "artifacts"
    world = world_make(tmp_path)
    untold, unseen = [], []
    for (method, route), actions in audited().items():
        if not route.startswith(API) or route.removeprefix(API) in ELSEWHERE:
            continue
        status, found = outcome(world, method, route.removeprefix(API), actions)
        wanted = set(actions) - REASONS
        if status is None:
            unseen.append((method, route))
        elif (wanted and not REASONS & set(actions) and not wanted & set(found)) or (not wanted and found):
            untold.append((method, route, found))
    assert untold == []
    assert unseen == [], "nobody of the world could do it: say in ELSEWHERE where it is tested"


def outcome(world: World, method: str, route: str, actions: tuple[str, ...]) -> tuple[int | None, list[str]]:
    """Status and new actions of the first person who may; everything is taken back again."""
    for who in ("staff", "owner", "lead", "anonymous"):
        with transaction.atomic():
            last = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            client = Client(headers=world.bearer(who), raise_request_exception=False)
            path = world.path(API + route)
            answer = client.generic(method, path, world_body(method, route), content_type="application/json")
            found = list(AuditEntry.objects.filter(pk__gt=last).values_list("action", flat=True))
            transaction.set_rollback(True)
        if answer.status_code < 300:
            return answer.status_code, found
    return None, []


def world_body(method: str, route: str) -> bytes:
    return json.dumps(BODIES.get((method, route), {})).encode()
