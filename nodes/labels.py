"""Labels of nodes: names and values that staff gives to machines, and that a job may ask for.

The rules are pure; ``node_label`` is the one writer of ``Node.labels``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.utils.translation import gettext as _

from nodes import live
from nodes.errors import NodeRefused
from nodes.models import Node, NodeState
from quotas.audit import audit

log = logging.getLogger(__name__)

KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
VALUE_MAX = 63
LABELS_MAX = 64


def is_key(key: str) -> bool:
    """1–63 letters, digits and ``. _ - /``, the first and the last a letter or digit."""
    return KEY.fullmatch(key) is not None


def is_value(value: str) -> bool:
    """At most 63 characters in any script, without signs that don't show and without blanks at the ends; empty is a value, too."""
    return len(value) <= VALUE_MAX and value.isprintable() and value == value.strip()


def labels_parse(text: str) -> dict[str, str]:
    """One KEY=VALUE a line, empty lines between them allowed. Raises ValueError with the sentence."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip():
            continue
        key, border, value = (part.strip() for part in line.partition("="))
        if not border:
            raise ValueError(_("Line %(number)d has no =; write KEY=VALUE.") % {"number": number})
        if key in found:
            raise ValueError(_("%(name)s is there twice, again in line %(number)d.") % {"name": key[:60], "number": number})
        found[key] = value
    return found


@transaction.atomic
def node_label(*, node: Node, by: AbstractBaseUser | None, changes: Mapping[str, str | None], replace: bool = False) -> Node:
    """Give the node these labels; None takes one away. With ``replace`` it has no others afterwards. Idempotent.

    Jobs that run stay where they are; the next pass reads the new labels. Locks the node's row.

    Raises NodeRefused: ``node_label_key``, ``node_label_value``, ``node_labels_many``; ``node_retired`` (409).
    """
    for key, value in changes.items():
        if not is_key(key):
            raise NodeRefused("node_label_key", params={"key": key[:60]})
        if value is not None and not is_value(value):
            raise NodeRefused("node_label_value", params={"key": key, "length": len(value), "limit": VALUE_MAX})
    row = Node.objects.select_for_update().get(pk=node.pk)
    if row.state == NodeState.RETIRED:
        raise NodeRefused("node_retired", 409, {"node": row.name})
    before: dict[str, str] = dict(row.labels)
    merged = {**({} if replace else before), **changes}
    labels = {key: value for key, value in sorted(merged.items()) if value is not None}
    if len(labels) > LABELS_MAX:
        raise NodeRefused("node_labels_many", params={"count": len(labels), "limit": LABELS_MAX})
    if labels != before:
        Node.objects.filter(pk=row.pk).update(labels=labels)
        log.info("node %s labelled by %s: %s", row.name, by or "nobody", labels)
        audit(by, "node.labelled", f"node {row.name}", {"before": before, "after": labels})
        live.publish("pool", {"node": row.pk, "state": row.state})
    node.refresh_from_db()
    return node
