"""Whether the audit log is as it was written: ``chain_check`` recomputes the chain of hashes over its entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Exists, OuterRef

from quotas.audit import BATCH, FIRST_HASH, LINKED_WITHIN, entry_hash
from quotas.audit_segments import segment_is_ours
from quotas.models import AuditEntry, AuditLink, AuditSegment


@dataclass(kw_only=True)
class ChainReport:
    """What ``chain_check`` found. ``head``: "seq:hash" of the last link, to be kept elsewhere; ``problems``: a sentence each."""

    entries: int = 0
    links: int = 0
    waiting: int = 0  # entries that the next batch links
    removed: int = 0  # entries that were removed for their age
    head: str = f"0:{FIRST_HASH}"
    problems: list[str] = field(default_factory=list)


def chain_check(*, now: datetime, heads: Mapping[int, str] | None = None, most: int = 20) -> ChainReport:
    """Recomputes the whole chain, from the end of what was removed for its age. ``heads``: seq → hash noted earlier; each must
    still be there.

    A chain proves its order and its contents. That its very end was not cut off, only a head that was kept elsewhere proves.
    """
    report = ChainReport(entries=AuditEntry.objects.count())
    wanted = dict(heads or {})

    def problem(text: str) -> None:
        if len(report.problems) < most:
            report.problems.append(text)

    before, expected = FIRST_HASH, 1
    for segment in AuditSegment.objects.order_by("first_seq"):
        report.removed += segment.entries
        if segment.first_seq != expected or not segment_is_ours(segment):
            problem(f"the removal of links {segment.first_seq} to {segment.last_seq} was not written by this installation")
        if wanted.get(segment.last_seq, segment.last_hash) != segment.last_hash:
            problem(f"link {segment.last_seq} is not the one that was noted")
        before, expected = segment.last_hash, segment.last_seq + 1
    # A head within a part that was removed can't be looked up any more; one at its end could, just now.
    wanted = {seq: digest for seq, digest in wanted.items() if seq >= expected}
    report.head = f"{expected - 1}:{before}"
    for link, entry in _chain():
        report.links += 1
        if link.seq != expected:
            problem(f"links {expected} to {link.seq - 1} are missing")
        if entry is None:
            problem(f"entry {link.entry_id} (link {link.seq}) is missing")
        elif entry_hash(before, entry) != link.hash:
            problem(f"entry {entry.pk} (link {link.seq}) is not what was written, or what came before it is not")
        if wanted.pop(link.seq, link.hash) != link.hash:
            problem(f"link {link.seq} is not the one that was noted")
        before, expected = link.hash, link.seq + 1
        report.head = f"{link.seq}:{link.hash}"
    for seq in sorted(wanted):
        problem(f"link {seq}, which was noted, is missing: the end of the log was cut off")
    link_of = AuditLink.objects.filter(entry_id=OuterRef("pk"))
    loose = AuditEntry.objects.filter(~Exists(link_of))
    report.waiting = loose.count()
    for entry in loose.filter(at__lt=now - LINKED_WITHIN).order_by("pk")[:most]:
        problem(f"entry {entry.pk} of {entry.at:%Y-%m-%d %H:%M:%S} UTC has no link")
    return report


def _chain() -> Iterator[tuple[AuditLink, AuditEntry | None]]:
    """All links in order, each with its entry; None = the entry is gone. Two queries for 1,000 links."""
    after = -1  # a number below 1 is no link of ours: it is told as one too many
    while links := list(AuditLink.objects.filter(seq__gt=after).order_by("seq")[:BATCH]):
        entries = AuditEntry.objects.in_bulk([link.entry_id for link in links])
        yield from ((link, entries.get(link.entry_id)) for link in links)
        after = links[-1].seq
