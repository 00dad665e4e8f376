"""Many rows in one statement, where a model object for each would cost more than the database does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
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


def rows_insert(model: type[models.Model], rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Inserts ``rows`` (column name → value, all with the same columns) and returns their primary keys, in order.

    Columns that are left out take the model's defaults. On PostgreSQL the rows travel as one JSON text, which costs a quarter of
    ``bulk_create``; on SQLite it is ``bulk_create``. Times are aware; a NUL in a text is refused by the database, as ever.
    """
    if not rows:
        return []
    if connection.vendor != "postgresql":
        return [made.pk for made in model._default_manager.bulk_create(model(**row) for row in rows)]
    name = connection.ops.quote_name
    table, key = name(model._meta.db_table), name(model._meta.pk.column)
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    given = rows[0].keys()
    constant = {field.column: field.get_default() for field in fields if field.column not in given}
    text = json.dumps([{**constant, **row} for row in rows], cls=_Encoder, separators=(",", ":"), ensure_ascii=False)
    columns = ", ".join(name(field.column) for field in fields)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM json_populate_recordset(NULL::{table}, %s::json) RETURNING {key}",  # noqa: S608
            [text],
        )
        return [int(pk) for (pk,) in cursor.fetchall()]


class _Encoder(DjangoJSONEncoder):
    """Django's own cuts times to milliseconds."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if hasattr(o, "isoformat") else super().default(o)
