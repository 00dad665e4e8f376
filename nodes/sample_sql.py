"""The statements of samples: put many in, put many together, read them together.

Roll-ups and queries use one rule for how figures of several rows become one, so a curve is the same whether a step was rolled up
before or is put together now: a mean weighted by the samples in each row, that leaves out rows without the figure; the smallest
of the minima; the largest of the maxima.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.db import connection, models
from django.db.models import F, FloatField, Max, Min, Q, Sum
from django.db.models.functions import Coalesce

from nodes.sample_models import Sample

_OWN = ("id", "level", "at", "n")
#: Extreme → the figure that it is of: where a row has no extreme of its own (RAW), the figure is it.
EXTREMES = ("_max", "_min")


def keys_of(model: type[Sample]) -> list[str]:
    """The columns that name the subject: none for the pool."""
    return [field.column for field in model._meta.concrete_fields if field.column not in _OWN and not field.null]


def figures_of(model: type[Sample]) -> list[str]:
    return [field.column for field in model._meta.concrete_fields if field.column not in _OWN and field.null]


def source_of(figure: str) -> str:
    """``temp_max_c`` → ``temp_c``; a plain figure is its own."""
    for mark in EXTREMES:
        figure = figure.replace(mark, "", 1)
    return figure


def together(figure: str) -> str:
    """SQL of one figure of a group of rows, a whole number or NULL."""
    name = connection.ops.quote_name
    own, source = name(figure), name(source_of(figure))
    if "_max" in figure:
        return f"MAX(COALESCE({own}, {source}))"
    if "_min" in figure:
        return f"MIN(COALESCE({own}, {source}))"
    return f"CAST(ROUND(SUM({own} * 1.0 * n) / SUM(CASE WHEN {own} IS NOT NULL THEN n END)) AS integer)"


def rows_put(model: type[Sample], columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    """Inserts in one statement, whatever the number of rows; those that are there already stay as they are. Returns how many came in.

    Values are whole numbers, texts or None, and fit their columns.
    """
    if not rows:
        return 0
    name = connection.ops.quote_name
    listed = ", ".join(name(column) for column in columns)
    types = {field.column: field.db_type(connection) for field in model._meta.concrete_fields}
    if connection.vendor == "postgresql":
        values = ", ".join(f"(r.value->>{place})::{_plain(types[column])}" for place, column in enumerate(columns))
        source = f"SELECT {values} FROM json_array_elements(%s::json) AS r(value)"  # noqa: S608 - columns of ours
    else:
        values = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(columns)))
        source = f"SELECT {values} FROM json_each(%s) WHERE true"  # noqa: S608 - columns of ours
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {name(model._meta.db_table)} ({listed}) {source} ON CONFLICT DO NOTHING",
            [json.dumps(rows, separators=(",", ":"))],
        )
        return int(cursor.rowcount)


def _plain(kind: str | None) -> str:
    return {"varchar(48)": "varchar", "bigint": "bigint", "smallint": "smallint"}.get(kind or "", "integer")


def rows_roll(model: type[Sample], *, source: int, target: int, step_s: int, since: int, until: int) -> int:
    """Rows of level ``source`` with since ≤ at < until become rows of level ``target``, one a step. Returns how many came in."""
    name = connection.ops.quote_name
    keys, figures = keys_of(model), figures_of(model)
    table, bucket = name(model._meta.db_table), f"at / {step_s:d} * {step_s:d}"
    columns = ", ".join(name(column) for column in (*keys, "level", "at", "n", *figures))
    values = ", ".join([*(name(key) for key in keys), "%s", bucket, "SUM(n)", *(together(figure) for figure in figures)])
    group = ", ".join([*(name(key) for key in keys), bucket])
    statement = (
        f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table} "  # noqa: S608 - names and numbers of ours
        f"WHERE level = %s AND at >= %s AND at < %s GROUP BY {group} ON CONFLICT DO NOTHING"
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, [target, source, since, until])
        return int(cursor.rowcount)


def rows_read(query: models.QuerySet[Any], *, figures: Sequence[str], step_s: int, by: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """Of the rows of ``query``: (*by, begin of the step, samples in it, *figures) for each subject and step, by time. One query."""
    made = {f"of_{figure}": _together_orm(figure) for figure in figures}
    steps = query.order_by().values(*by, step=F("at") / step_s * step_s)
    return list(steps.annotate(count=Sum("n"), **made).order_by("step", *by).values_list(*by, "step", "count", *made))


def _together_orm(figure: str) -> Any:
    """``together`` in the ORM's words, not rounded yet."""
    if "_max" in figure:
        return Max(Coalesce(figure, source_of(figure)))
    if "_min" in figure:
        return Min(Coalesce(figure, source_of(figure)))
    return Sum(F(figure) * 1.0 * F("n"), output_field=FloatField()) / Sum("n", filter=Q(**{f"{figure}__isnull": False}))
