"""Removing the oldest part of the audit log, so that what stays can still be proved.

A part that is removed leaves a segment: the numbers and the hash of its last link, from which the chain goes on, signed with the
installation's key. Who can write the database, but has no key, can't make the removal of an entry look like one for its age. The
database's triggers let nothing go that no segment covers.
"""

from __future__ import annotations

import hmac
import time
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils.crypto import salted_hmac

from quotas.audit import BATCH, audit
from quotas.models import AuditEntry, AuditLink, AuditSegment

EVERY_S = 600.0
#: Fewer entries than a batch are removed when the oldest of them is so much older than need be: no segment for each day's handful.
PATIENCE = timedelta(days=7)
#: A shorter time is a slip of the pen: what happened yesterday is looked for tomorrow.
LEAST_DAYS = 30

_done_at = float("-inf")


def _signature(segment: AuditSegment) -> str:
    text = f"{segment.first_seq} {segment.last_seq} {segment.last_hash} {segment.last_entry_id} {segment.entries}"
    return salted_hmac("quotas.audit.segment", text, algorithm="sha256").hexdigest()


def segment_is_ours(segment: AuditSegment) -> bool:
    """Whether this installation removed this part, and wrote just this about it."""
    return hmac.compare_digest(segment.signature, _signature(segment))


def audit_prune(*, now: datetime) -> int:
    """Removes at most a batch of entries that are older than NEBULA_KEEP_AUDIT_DAYS; how many. Every ten minutes a process, at once while
    there is more. The newest link always stays: the chain goes on from it."""
    global _done_at
    if settings.KEEP_AUDIT_DAYS <= 0 or time.monotonic() - _done_at < EVERY_S:
        return 0
    removed = _prune(cutoff=now - timedelta(days=max(LEAST_DAYS, settings.KEEP_AUDIT_DAYS)), now=now)
    if removed < BATCH:
        _done_at = time.monotonic()
    return removed


@transaction.atomic
def _prune(*, cutoff: datetime, now: datetime) -> int:
    links = list(AuditLink.objects.select_related("entry").order_by("seq")[: BATCH + 1])
    old: list[AuditLink] = []
    for link in links[:-1]:
        if link.entry.at >= cutoff:
            break
        old.append(link)
    if not old or (len(old) < BATCH and old[0].entry.at > cutoff - PATIENCE):
        return 0
    last = old[-1]
    ids = [link.entry_id for link in old]
    segment = AuditSegment(
        first_seq=old[0].seq, last_seq=last.seq, last_hash=last.hash, last_entry_id=max(ids), entries=len(old), removed_at=now
    )
    segment.signature = _signature(segment)
    segment.save()
    AuditLink.objects.filter(seq__lte=last.seq).delete()
    AuditEntry.objects.filter(pk__in=ids).delete()
    params = {"entries": len(old), "first": segment.first_seq, "last": f"{last.seq}:{last.hash}", "until": last.entry.at}
    audit(None, "audit.removed", "", params, now=now)
    return len(old)


def prune_forget() -> None:
    """The next call looks again. For tests."""
    global _done_at
    _done_at = float("-inf")
