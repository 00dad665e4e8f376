"""One statement for many rows whose changes differ: UPDATE … FROM (VALUES …), on SQLite and PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection, models

#: Parameters of one statement; SQLite allows 32,766.
PARAMETERS = 20_000


def rows_update(model: type[models.Model], rows: Sequence[Sequence[Any]], *, assign: str, where: str = "") -> int:
    """Changes one row of ``model`` for each of ``rows``; returns how many were changed.

    ``assign`` (what stands behind SET) and ``where`` are SQL of ours, never a user's text. A row's first value is the primary
    key, ``v.column1``; the others are ``v.column2``, … there. All rows have as many values. Rows are taken in no certain order:
    lock them before, in the order that everybody uses, wherever two such statements could meet.
    """
    if not rows:
        return 0
    name = connection.ops.quote_name
    table, width = name(model._meta.db_table), len(rows[0])
    mark = f"({', '.join(['%s'] * width)})"
    matches = f"{table}.{name(model._meta.pk.column)} = v.column1" + (f" AND ({where})" if where else "")
    changed = 0
    with connection.cursor() as cursor:
        for start in range(0, len(rows), PARAMETERS // width):
            chunk = rows[start : start + PARAMETERS // width]
            values = f"(VALUES {', '.join([mark] * len(chunk))}) AS v"
            cursor.execute(f"UPDATE {table} SET {assign} FROM {values} WHERE {matches}", [value for row in chunk for value in row])  # noqa: S608
            changed += cursor.rowcount
    return changed
