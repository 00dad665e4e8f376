"""The database as one file: SQLite's own online copy, or rows as JSON lines that either database takes in.

Rows keep their numbers. They are read in one transaction (one moment), and written in one with constraints checked at
its end, so their order does not matter; the triggers guard updates and deletions only, and nothing is updated.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from datetime import datetime, time
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core import serializers
from django.core.management.color import no_style
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, models, transaction
from django.db.migrations.recorder import MigrationRecorder

BATCH = 500


class _Encoder(DjangoJSONEncoder):
    """Times to the microsecond: Django's own cuts them to milliseconds, and a charge would no longer match its slice."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if isinstance(o, datetime | time) else super().default(o)


class CopyError(Exception):
    """The database can't be copied."""


def migrations_applied() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for app, name in sorted(MigrationRecorder(connection).applied_migrations()):
        found.setdefault(app, []).append(name)
    return found


def sqlite_copy(source: Path, target: Path) -> None:
    """A consistent copy while others write. Raises CopyError."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as old:
            target.touch(mode=0o600)
            with contextlib.closing(sqlite3.connect(target)) as new:
                old.backup(new)
                new.execute("PRAGMA journal_mode=DELETE")  # one file, no -wal beside it
                sqlite_check(new)
    except sqlite3.Error as error:
        raise CopyError(f"{source} can't be copied: {error}.") from error


def sqlite_check(database: sqlite3.Connection) -> None:
    """Raises CopyError if SQLite finds the file damaged."""
    said = [row[0] for row in database.execute("PRAGMA integrity_check(5)")]
    if said != ["ok"]:
        raise CopyError(f"The database is damaged: {'; '.join(said)[:300]}.")


# --- rows ---------------------------------------------------------------------------------------------------------


def _tables() -> list[type[models.Model]]:
    """All of our tables, those between two models included."""
    return [model for model in apps.get_models(include_auto_created=True) if model._meta.managed and not model._meta.proxy]


@contextlib.contextmanager
def _one_moment() -> Iterator[None]:
    """All reads inside see the database as it was at the first one; nobody's writes wait for it."""
    connection.ensure_connection()
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        else:
            cursor.execute("BEGIN DEFERRED")  # Django's own atomic() would take the write lock
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")


def rows_dump(target: Path) -> int:
    """One row a line; returns how many."""
    count = 0
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file, _one_moment():
        for model in _tables():
            query = model._base_manager.order_by(model._meta.pk.name) if model._meta.pk else model._base_manager.all()
            for row in query.iterator(chunk_size=2000):
                (data,) = serializers.serialize("python", [row])
                # The numbers of a many-to-many field are rows of their own table.
                for many in model._meta.many_to_many:
                    data["fields"].pop(many.name, None)
                file.write(json.dumps(data, cls=_Encoder, ensure_ascii=False, separators=(",", ":")) + "\n")
                count += 1
    return count


def rows_load(source: Path) -> int:
    """Into a database whose tables are fresh from `migrate`. Raises CopyError; nothing is changed then."""
    try:
        with transaction.atomic(), connection.constraint_checks_disabled():
            for model in _tables():
                # What a migration made (content types, permissions, first policies) is in the backup too.
                if model._base_manager.exists():
                    model._base_manager.all()._raw_delete(connection.alias)
            count = _rows_insert(source)
            connection.check_constraints()
            with connection.cursor() as cursor:
                for sql in connection.ops.sequence_reset_sql(no_style(), _tables()):
                    cursor.execute(sql)
    except (serializers.base.DeserializationError, ValueError, KeyError) as error:
        raise CopyError(f"The backup's rows can't be read: {error}.") from error
    return count


def _rows_insert(source: Path) -> int:
    count = 0
    waiting: list[models.Model] = []

    def flush() -> None:
        nonlocal count
        if waiting:
            model = type(waiting[0])
            # raw: a column that takes the present time by itself keeps the one it had.
            model._base_manager.all()._insert(waiting, fields=model._meta.local_concrete_fields, using=connection.alias, raw=True)
            count += len(waiting)
            waiting.clear()

    with source.open(encoding="utf-8") as file:
        for line in file:
            row: Any = next(iter(serializers.deserialize("python", [json.loads(line)])))
            if waiting and (type(waiting[0]) is not type(row.object) or len(waiting) >= BATCH):
                flush()
            waiting.append(row.object)
    flush()
    return count
