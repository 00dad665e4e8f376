"""The OpenAPI document: valid, complete, and with an example for each operation that is what the API really answers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from nebulagrid.access import rules
from nebulagrid.examples import FILE, examples
from tests.rest import no_redis  # noqa: F401
from tests.world import BODIES, World, world_make

API = "api/v1/"
#: The description of the API itself, and what waits for one answer of many.
LEFT_OUT = {"schema", "docs"}
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")


def schema() -> dict[str, Any]:
    return SchemaGenerator().get_schema(request=None, public=True)


def test_the_document_is_valid_and_complete() -> None:
    found = schema()
    validate_schema(found)
    lacking = []
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            answers = {code: answer for code, answer in operation["responses"].items() if code.startswith("2")}
            bodies = [media for answer in answers.values() for media in answer.get("content", {}).values()]
            bodies += operation.get("requestBody", {}).get("content", {}).values()
            has_example = not bodies or any("example" in media or "examples" in media for media in bodies)
            is_told = operation.get("summary") and operation.get("operationId") and "default" in operation["responses"]
            if not (is_told and answers and has_example):
                lacking.append(f"{method.upper()} {path}")
    assert lacking == []
    routes = {shown(route) for route in rules() if route.startswith(API)} - LEFT_OUT
    assert {path.removeprefix("/api/v1/") for path in found["paths"]} == routes


@pytest.mark.django_db
def test_each_example_is_what_the_api_answers(tmp_path: Path, settings: Any) -> None:
    for scope in ("ANONYMOUS", "SUBMIT", "ESTIMATE", "AGENT"):
        setattr(settings, f"THROTTLE_{scope}", "off")
    settings.LOG_DIR, settings.ARTIFACT_DIR = tmp_path / "logs", tmp_path / "artifacts"
    world = world_make(tmp_path)
    found = {}
    for route, methods in sorted(rules().items()):
        if route.startswith(API) and route.removeprefix(API) not in LEFT_OUT:
            for method in sorted(methods):
                name = f"{method} {shown(route)}"
                if (answer := answered(world, method, route)) is not None:
                    found[name] = answer
    if os.environ.get("NEBULA_WRITE_EXAMPLES"):
        FILE.write_text(json.dumps(found, ensure_ascii=False, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return
    known = examples()
    assert found.keys() - known.keys() == set(), "NEBULA_WRITE_EXAMPLES=1 pytest tests/test_openapi.py writes them"
    changed = {name for name in found if shape(found[name]) != shape(known[name])}
    assert changed == set(), "these answer otherwise than their examples; write them anew"


def shown(route: str) -> str:
    """As the document spells it: ``jobs/{id}``."""
    return re.sub(r"<(?:[a-z]+:)?([a-z]+)>", r"{\1}", route.removeprefix(API))


def answered(world: World, method: str, route: str) -> dict[str, Any] | None:
    """The answer to the first person who may, shortened; None where nobody may or the answer is no JSON. Taken back again."""
    for who in ("staff", "owner", "lead", "anonymous"):
        body = BODIES.get((method, route.removeprefix(API)))
        with transaction.atomic():
            client = Client(headers=world.bearer(who), raise_request_exception=False)
            data = json.dumps(body or {}).encode()
            answer = client.generic(method, world.path(route), data, content_type="application/json")
            transaction.set_rollback(True)
        if answer.status_code < 300:
            told: dict[str, Any] = {"status": answer.status_code}
            if body:
                told["request"] = body
            kind = answer.headers.get("Content-Type", "")
            if kind.startswith("application/json") and not answer.streaming and answer.content:
                told["response"] = shortened(json.loads(answer.content))
            elif answer.status_code != 204:
                content = b"".join(answer.streaming_content) if answer.streaming else answer.content  # type: ignore[attr-defined]
                told["response"] = shortened(content[:120].decode("utf-8", "replace").replace("\ufeff", "").replace("\x00", "␀"))
            return told
    return None


def shortened(value: Any) -> Any:
    """Without what is another each time, and lists with one item."""
    if isinstance(value, dict):
        return {key: shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value[:1]]
    if isinstance(value, str):
        value = MOMENT.sub("2026-03-31T08:00:00Z", value)
        value = re.sub(r"ng[te]_[A-Za-z0-9_-]{20,}", lambda match: match[0][:4] + "Zk3vQ1aB…", value)
        value = re.sub(r"eyJ[A-Za-z0-9_.-]{40,}", "eyJhbGciOi…", value)
        return re.sub(r"\b[0-9a-f]{64}\b", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", value)[:300]
    return value


def shape(value: Any, *, depth: int = 3) -> Any:
    """Names of fields to some depth; what may be null or empty counts as anything."""
    if isinstance(value, dict) and depth:
        return {key: shape(inner, depth=depth - 1) for key, inner in sorted(value.items()) if isinstance(inner, dict | list) and inner} | {
            "": sorted(value)
        }
    return type(value).__name__ if isinstance(value, dict | list) else ""
