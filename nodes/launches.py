"""Launches that a node spoils by its own fault: after a few in a row it gets no more work, until somebody has looked at it."""

from __future__ import annotations

import logging

from django.conf import settings
from django.db import transaction
from django.db.models import F

from nodes import live
from nodes.models import Node
from quotas.audit import audit

log = logging.getLogger(__name__)

#: The reason of that cordon, put into words at the edge (nodes/wording.py).
SPOILS = "launches_failed"


@transaction.atomic
def launch_spoilt(node_id: int) -> bool:
    """Counts one; True if the node was cordoned for it. Resuming it, and a program that ran there, begin the count anew.

    A node that an admin has cordoned keeps that reason.
    """
    Node.objects.filter(pk=node_id).update(spoilt_launches=F("spoilt_launches") + 1)
    limit = settings.CORDON_AFTER_LAUNCHES
    if not limit:
        return False
    spoilt = Node.objects.filter(pk=node_id, cordoned=False, spoilt_launches__gte=limit)
    if not spoilt.update(cordoned=True, cordon_reason=SPOILS, cordoned_by=None, cordoned_until=None):
        return False
    node = Node.objects.get(pk=node_id)
    audit(None, "node.drained", f"node {node.name}", {"reason": SPOILS, "launches": node.spoilt_launches})
    log.warning("node %s: cordoned, %d launches in a row failed there by its own fault", node.name, node.spoilt_launches)
    live.publish("pool", {"node": node.pk, "state": node.state, "cordoned": True})
    return True


def launch_worked(node_id: int) -> None:
    """A program ran there. Called only where something was counted."""
    Node.objects.filter(pk=node_id, spoilt_launches__gt=0).update(spoilt_launches=0)
