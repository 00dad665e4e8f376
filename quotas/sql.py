"""Many rows in one statement, where a model object for each would cost more than the database does."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, models
from django.db.models import QuerySet

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


def swap(model: type[models.Model], pk: int, *, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Compare and swap on one row: sets the columns of ``new`` if those of ``old`` still have these values; whether it did.

    ``filter(pk=…, **old).update(**new)`` for plain values, at a quarter of its price: what ends a job is half a dozen of them.
    """
    name = connection.ops.quote_name
    setting, parameters = _terms(model, new)
    expected, values = _terms(model, old)
    settings = ", ".join(f"{name(column)} = %s" for column in setting)
    conditions = [f"{name(model._meta.pk.column)} = %s"]
    conditions += [
        f"{name(column)} = %s" if value is not None else f"{name(column)} IS NULL" for column, value in zip(expected, values, strict=True)
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {name(model._meta.db_table)} SET {settings} WHERE {' AND '.join(conditions)}",  # noqa: S608
            [*parameters, pk, *(value for value in values if value is not None)],
        )
        return bool(cursor.rowcount == 1)


def _terms(model: type[models.Model], changes: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """Columns, and the values as the database takes them."""
    fields = [model._meta.get_field(name) for name in changes]
    return [field.column for field in fields], [field.get_db_prep_save(changes[field.name], connection) for field in fields]


def rows_insert(model: type[models.Model], rows: Sequence[Mapping[str, Any]], *, once: str = "") -> list[int]:
    """Inserts ``rows`` (column name → value, all with the same columns) and returns their primary keys, in order.

    Columns that are left out take the model's defaults. ``once`` names a unique column: a row whose value there is known already
    is left out, and that column's values of the others are returned. On PostgreSQL the rows travel as one JSON text, which costs
    a quarter of ``bulk_create``. Times are aware; a NUL in a text is refused by the database, as ever.
    """
    if not rows:
        return []
    name = connection.ops.quote_name
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    constant = {field.column: field.get_default() for field in fields if field.column not in rows[0]}
    columns = ", ".join(name(field.column) for field in fields)
    table, wanted = name(model._meta.db_table), name(once or model._meta.pk.column)
    after = f"{f'ON CONFLICT ({wanted}) DO NOTHING ' if once else ''}RETURNING {wanted}"
    made: list[int] = []
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            text = json.dumps([{**constant, **row} for row in rows], cls=_Encoder, separators=(",", ":"), ensure_ascii=False)
            source = f"SELECT {columns} FROM json_populate_recordset(NULL::{table}, %s::json)"  # noqa: S608
            cursor.execute(f"INSERT INTO {table} ({columns}) {source} {after}", [text])
            made += [int(value) for (value,) in cursor.fetchall()]
        else:
            step = PARAMETERS // len(fields)
            mark = f"({', '.join(['%s'] * len(fields))})"
            for start in range(0, len(rows), step):
                chunk = [{**constant, **row} for row in rows[start : start + step]]
                values = [field.get_db_prep_save(row[field.column], connection) for row in chunk for field in fields]
                cursor.execute(f"INSERT INTO {table} ({columns}) VALUES {', '.join([mark] * len(chunk))} {after}", values)  # noqa: S608
                made += [int(value) for (value,) in cursor.fetchall()]
    return made


class _Encoder(DjangoJSONEncoder):
    """Django's own cuts times to milliseconds."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if hasattr(o, "isoformat") else super().default(o)


def moment(at: datetime) -> object:
    """A time as a parameter that compares with a column of times."""
    # SQLite keeps texts, and Django leaves out a fraction of zero: as a prefix the shorter text is the earlier one, which it is.
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f") if connection.vendor == "sqlite" else at


def fade_sql(column: str) -> str:
    """What is left of 1 since the time in ``column``: parameters are ``moment(now)`` and the half-life in seconds, above 0."""
    if connection.vendor == "sqlite":
        age = f"((julianday(%s) - julianday({column})) * 86400.0)"
    else:
        age = f"EXTRACT(EPOCH FROM (%s - {column}))::float8"
    return f"POWER(0.5, {age} / %s)"


class Select:
    """A ``values_list`` query that Django compiles once, not at each call: compiling is most of what a small query costs it.

    ``build`` makes the query from its arguments, which stand for whole numbers that are compared with, or for lists of such
    (``__in``); everything else in it is constant. Calling the object gives the rows, like ``list(build(…))``::

        ranks_of_node = Select(lambda node: Rank.objects.filter(node_id=node).values_list("pk", "key"))
        rows = ranks_of_node(node.pk)

    A query for each length of the lists is kept, so let no list be longer than a few hundred. Rows are tuples; converted as ever.
    """

    #: Numbers that stand for arguments while a query is compiled: no constant of a query is one of them.
    MARK = 7_301_000_000_000_000_000
    KEPT = 256

    def __init__(self, build: Callable[..., QuerySet[Any, Any]]) -> None:
        self._build = build
        self._local = threading.local()  # what is compiled refers to its thread's connection

    def __call__(self, *arguments: int | Sequence[int]) -> list[tuple[Any, ...]]:
        shape = tuple(None if isinstance(argument, int) else len(argument) for argument in arguments)
        if 0 in shape:
            return list(self._build(*arguments))  # Django knows what an empty list means
        kept: dict[tuple[Any, ...], _Compiled] = self._local.__dict__.setdefault(connection.vendor, {})
        compiled = kept.get(shape)
        if compiled is None:
            if len(kept) >= self.KEPT:
                kept.clear()
            compiled = kept[shape] = self._compile(shape)
        flat = [value for argument in arguments for value in ((argument,) if isinstance(argument, int) else argument)]
        with connection.cursor() as cursor:
            cursor.execute(compiled.statement, [flat[place] if is_ours else value for is_ours, place, value in compiled.parameters])
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        if compiled.converters:
            return [tuple(row) for row in compiled.compiler.apply_converters(rows, compiled.converters)]
        return rows

    def _compile(self, shape: tuple[int | None, ...]) -> _Compiled:
        marks = itertools.count(self.MARK)
        arguments = [next(marks) if length is None else [next(marks) for _ in range(length)] for length in shape]
        end = next(marks)
        compiler = self._build(*arguments).query.get_compiler(using=connection.alias)
        statement, values = compiler.as_sql()
        parameters = [(True, v - self.MARK, None) if isinstance(v, int) and self.MARK <= v < end else (False, 0, v) for v in values]
        found = sum(is_ours for is_ours, _, _ in parameters)
        if found != end - self.MARK:
            raise TypeError(
                f"{found} of {end - self.MARK} arguments are left in the compiled query: they must be whole numbers or lists of such"
            )
        return _Compiled(statement, parameters, compiler, compiler.get_converters(one for one, _, _ in compiler.select))


@dataclass(frozen=True, slots=True)
class _Compiled:
    statement: str
    parameters: list[tuple[bool, int, Any]]  # (is an argument, which one, else the constant)
    compiler: Any
    converters: Any
