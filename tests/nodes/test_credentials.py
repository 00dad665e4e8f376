"""A node's credential is exchanged without a gap, and the old one is a sign of theft afterwards."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from nodes.auth import node_authenticate
from nodes.models import HealthEvent, Node
from nodes.services import node_retire
from quotas.models import AuditEntry
from tests.factories import node_credential, node_header, node_make

pytestmark = pytest.mark.django_db
NEW = "n" * 64


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def exchange(node: Node, *, shown: str = "", **body: Any) -> int:
    http = Client(headers={"authorization": f"Node {node.pk}:{shown or node_credential(node.name)}"})
    data = json.dumps({"session": node.session, "credential_sha256": sha256(NEW), **body})
    return http.post("/api/agent/v1/credential", data=data, content_type="application/json").status_code


def opens(node: Node, credential: str) -> bool:
    return node_authenticate(f"Node {node.pk}:{credential}") is not None


def test_both_are_good_until_the_new_one_was_used_and_the_old_one_is_theft_afterwards() -> None:
    node = node_make("n1")
    old = node_credential("n1")
    assert exchange(node) == 200
    assert not AuditEntry.objects.filter(action="node.credential").exists()
    for _ in range(2):
        assert opens(node, old)  # the answer may have been lost
    assert opens(node, NEW)
    assert AuditEntry.objects.filter(action="node.credential").count() == 1
    assert opens(node, old)  # a request that was on its way
    assert not HealthEvent.objects.exists()
    Node.objects.filter(pk=node.pk).update(credential_at=timezone.now() - timedelta(minutes=2))
    assert opens(node, NEW)
    assert not opens(node, old)
    assert HealthEvent.objects.get().kind == "old_credential"


def test_an_exchange_that_was_broken_off_is_begun_anew() -> None:
    node = node_make("n1")
    assert exchange(node, credential_sha256=sha256("lost" * 16)) == 200
    assert exchange(node) == 200
    assert not opens(node, "lost" * 16)
    assert opens(node, NEW)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"session": "another"}, 409),  # a stolen credential alone exchanges nothing
        ({"credential_sha256": "short"}, 400),
        ({"credential_sha256": "X" * 64}, 400),
        ({"credential_sha256": 5}, 400),
        ({"session": None}, 400),
    ],
)
def test_what_is_no_exchange_is_none(body: dict[str, Any], status: int) -> None:
    node = node_make("n1")
    assert exchange(node, **body) == status
    node.refresh_from_db()
    assert node.next_credential_sha256 == ""
    assert exchange(node, shown="w" * 64) == 401


def test_a_node_that_left_is_opened_by_neither() -> None:
    node = node_make("n1")
    exchange(node)
    node_retire(node=node, by=None)
    assert not opens(node, NEW)
    assert not opens(node, node_credential("n1"))
    assert not HealthEvent.objects.exists()


@pytest.mark.parametrize(
    ("days", "age_days", "is_due"), [(30, None, True), (30, 29, False), (30, 31, True), (0, 900, False), (0, None, False)]
)
def test_an_agent_is_asked_when_it_is_due(settings: Any, days: int, age_days: int | None, is_due: bool) -> None:
    settings.CREDENTIAL_DAYS = days
    node = node_make("n1", credential_at=None if age_days is None else timezone.now() - timedelta(days=age_days))
    body = json.dumps({"session": node.session, "boot_id": node.boot_id, "seq": 1})
    http = Client(headers={"authorization": node_header(node)})
    answer = http.post("/api/agent/v1/sync", data=body, content_type="application/json").json()
    assert answer.get("credential_due", False) is is_due
