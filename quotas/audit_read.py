"""Reading the audit log: filters, and the export as CSV or JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from quotas.audit import ACTIONS
from quotas.models import AuditEntry
from quotas.moments import moment_parse

FILTERS = ("actor", "action", "target", "q", "since", "until")
COLUMNS = ("id", "at", "actor", "actor_id", "via", "address", "action", "target", "params", "seq", "hash")
CHUNK = 1000


class BadFilter(ValueError):
    """``field`` is one of FILTERS, the text is a sentence."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


def entries_filtered(query: Mapping[str, str]) -> QuerySet[AuditEntry]:
    """Newest first. ``action`` may be the first part alone ("node"). Raises BadFilter."""
    entries = AuditEntry.objects.select_related("link").order_by("-id")
    if actor := query.get("actor", "").strip():
        entries = entries.filter(actor=actor[:254].lower() if "@" in actor else actor[:254])
    if action := query.get("action", "").strip():
        known = [name for name in ACTIONS if name == action or name.startswith(f"{action}.")]
        if not known:
            raise BadFilter("action", _("%(action)s is no action; there are: %(known)s.") % _named(action))
        entries = entries.filter(action__in=known)
    if target := query.get("target", "").strip():
        entries = entries.filter(target=target[:200])
    if words := query.get("q", "").strip()[:200]:
        entries = entries.filter(Q(actor__icontains=words) | Q(target__icontains=words) | Q(address__startswith=words))
    if (since := _moment(query, "since")) is not None:
        entries = entries.filter(at__gte=since)
    if (until := _moment(query, "until")) is not None:
        entries = entries.filter(at__lt=until)
    return entries


def _named(action: str) -> dict[str, str]:
    return {"action": action[:40], "known": ", ".join(sorted({name.split(".")[0] for name in ACTIONS}))}


def _moment(query: Mapping[str, str], field: str) -> datetime | None:
    """A day (its begin in the reader's zone) or a time; None = not asked."""
    text = query.get(field, "").strip()
    if not text:
        return None
    try:
        return moment_parse(text)
    except ValueError:
        raise BadFilter(field, _("Must be a day or a time, such as 2026-03-31 or 2026-03-31T08:00:00Z.")) from None


def entry_json(entry: AuditEntry) -> dict[str, Any]:
    """``entry`` with its link loaded, or none yet."""
    link = getattr(entry, "link", None)
    return {
        "id": entry.pk,
        "at": entry.at.isoformat().replace("+00:00", "Z"),
        "actor": entry.actor,
        "actor_id": entry.actor_id,
        "via": entry.via,
        "address": entry.address,
        "action": entry.action,
        "text": _(ACTIONS[entry.action]) if entry.action in ACTIONS else entry.action,
        "target": entry.target,
        "params": entry.params,
        "seq": link.seq if link is not None else None,
        "hash": link.hash if link is not None else None,
    }


def entries_jsonl(entries: QuerySet[AuditEntry]) -> Iterator[bytes]:
    """One object a line, oldest first; in no language."""
    for entry in _oldest_first(entries):
        row = entry_json(entry)
        yield json.dumps({name: row[name] for name in COLUMNS}, ensure_ascii=False).encode() + b"\n"


def entries_csv(entries: QuerySet[AuditEntry]) -> Iterator[bytes]:
    """With a line of titles, in UTF-8 with its mark, as spreadsheets want it; oldest first."""
    yield b"\xef\xbb\xbf" + _line(COLUMNS)
    for entry in _oldest_first(entries):
        row = entry_json(entry) | {"params": json.dumps(entry.params, ensure_ascii=False, sort_keys=True)}
        yield _line([cell_plain(row[name]) for name in COLUMNS])


def cell_plain(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front: names are users' text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _line(cells: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(["" if cell is None else cell for cell in cells])
    return text.getvalue().encode()


def _oldest_first(entries: QuerySet[AuditEntry]) -> Iterator[AuditEntry]:
    """In pieces by id, so that no cursor stays open while somebody reads slowly. What is written meanwhile is left out."""
    last = entries.order_by("-id").values_list("pk", flat=True).first() or 0
    after = 0
    while rows := list(entries.filter(pk__gt=after, pk__lte=last).order_by("pk")[:CHUNK]):
        yield from rows
        after = rows[-1].pk
