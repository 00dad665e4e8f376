"""A simulation's result as a text for people and as JSON for programs (docs/simulating.md). The same result gives the same bytes."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jobs.scheduler.compare import Change, Comparison, compare
from jobs.scheduler.measures import Judged, Measures, OwnerMeasures
from jobs.scheduler.types import Policy
from jobs.wording import simulations as words

SCHEMA = 1
MOST_OWNERS = 15  # of a list, unless all are asked for
DIGITS = 4

#: heading → the rows below it: (field of Measures, how it is shown)
ROWS: Mapping[str, Sequence[tuple[str, str]]] = {
    "waiting": (
        ("jobs", "number"),
        ("never_started", "number"),
        ("wait_avg_s", "span"),
        ("wait_p50_s", "span"),
        ("wait_p90_s", "span"),
        ("wait_p99_s", "span"),
        ("wait_max_s", "span"),
        ("slowdown_avg", "number2"),
        ("makespan_s", "span"),
    ),
    "use": (("utilisation", "percent"), ("utilisation_makespan", "percent")),
    "sla": (("within_2min", "percent"), ("within_5min", "percent")),
    "energy": (("card_hours_held", "number"), ("card_hours_on", "number"), ("card_hours_on_idle_nodes", "number"), ("kwh", "number")),
    "fairness": (("maxmin_dev", "number3"), ("jain", "number3")),
}
SHOW = {
    "number": words.number,
    "number2": lambda value: words.number(value, 2),
    "number3": lambda value: words.number(value, 3),
    "span": words.span,
    "percent": words.percent,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One policy at one load. ``policy`` None = what was recorded."""

    name: str
    policy: Policy | None
    judged: Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLoad:
    """All columns at one load; the others are compared with ``against``, the column of that name."""

    load: float
    offered: float | None
    columns: tuple[Column, ...]
    against: str

    def comparisons(self) -> list[tuple[str, Comparison]]:
        """(name, what it changes) of each policy but the one that the others are compared with."""
        base = next(column for column in self.columns if column.name == self.against)
        return [
            (column.name, compare(base.judged, column.judged))
            for column in self.columns
            if column is not base and column.policy is not None
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """``source``: kind (last | trace | generated) and what is known of it; ``watts``: (busy, idle) of a card, if told."""

    source: Mapping[str, Any]
    cluster: Mapping[str, Any]
    seed: int
    replicas: int
    loads: tuple[AtLoad, ...]
    users: Mapping[int, str]
    projects: Mapping[int, str]
    notes: Mapping[str, int] = field(default_factory=dict)
    watts: tuple[float, float] | None = None


def kwh(measures: Measures, watts: tuple[float, float] | None) -> float | None:
    """Of the cards alone, from the first submit to the last end: in use × busy + not in use × idle."""
    if watts is None or measures.card_hours_held is None or measures.card_hours_on is None:
        return None
    idle = max(measures.card_hours_on - measures.card_hours_held, 0.0)
    return (measures.card_hours_held * watts[0] + idle * watts[1]) / 1000


# For programs


def report_json(report: Report) -> str:
    """Fields as in docs/simulating.md; numbers have four digits after the point."""
    found = {
        "schema": SCHEMA,
        "source": dict(report.source),
        "cluster": dict(report.cluster),
        "seed": report.seed,
        "replicas": report.replicas,
        "not_as_it_was": dict(report.notes),
        "watts": None if report.watts is None else {"busy": report.watts[0], "idle": report.watts[1]},
        "loads": [_load_fields(at, report) for at in report.loads],
    }
    return json.dumps(_rounded(found), ensure_ascii=False, indent=1, sort_keys=True)


def _load_fields(at: AtLoad, report: Report) -> dict[str, Any]:
    return {
        "load": at.load,
        "offered": at.offered,
        "columns": [
            {
                "name": column.name,
                "policy": None if column.policy is None else asdict(column.policy),
                "measures": asdict(column.judged.measures) | {"kwh": kwh(column.judged.measures, report.watts)},
                "users": _owner_fields(column.judged.users, report.users),
                "projects": _owner_fields(column.judged.projects, report.projects),
            }
            for column in at.columns
        ],
        "comparisons": [
            {
                "policy": name,
                "against": at.against,
                "waits": found.waits,
                "fairness": found.fairness,
                "users_gain": found.count("gains"),
                "users_lose": found.count("loses"),
                "users_same": found.count("same"),
                "users": _change_fields(found.users, report.users),
                "projects": _change_fields(found.projects, report.projects),
            }
            for name, found in at.comparisons()
        ],
    }


def _owner_fields(owners: Mapping[int, OwnerMeasures], names: Mapping[int, str]) -> list[dict[str, Any]]:
    return [{"name": _name(owner, names), **asdict(found)} for owner, found in sorted(owners.items())]


def _change_fields(changes: Sequence[Change], names: Mapping[int, str]) -> list[dict[str, Any]]:
    return [{"name": _name(change.owner, names), "difference_s": change.difference_s, **asdict(change)} for change in changes]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _name(owner: int, names: Mapping[int, str]) -> str:
    return names.get(owner) or str(owner)


# For people


def report_text(report: Report, *, show_all: bool = False) -> str:
    """Tables for a terminal, in the language that is active."""
    lines = [words.source_text(report.source | report.cluster)]
    lines += [words.note_text(code, count) for code, count in report.notes.items()]
    if report.source["kind"] == "last":
        lines.append(words.assumption_text())
    if report.watts is None:
        lines.append(words.energy_text())
    for at in report.loads:
        heads = _heads(at)
        lines += ["", words.load_text(at.load, at.offered), *_measures_table(at, report, heads)]
        for name, found in at.comparisons():
            for kind, changes, names in (("user", found.users, report.users), ("project", found.projects, report.projects)):
                # One project says nothing that the table above does not.
                if len(changes) > 1:
                    before, after = heads[at.against], heads[name]
                    lines += ["", words.owners_text(kind, before, after), *_owners_table(kind, changes, names, before, after, show_all)]
            lines += ["", words.verdict_text(heads[at.against], heads[name], found)]
    if len(report.loads) > 1:
        lines += ["", *_loads_table(report)]
    return "\n".join(lines)


def column_label(name: str) -> str:
    """A column that has a name of ours is called in the reader's language; the others are what was asked for."""
    known = words.labels()
    first, _, rest = name.partition(" ")
    return " ".join(part for part in (known[first] if first in ("recorded", "current") else first, rest) if part)


def _heads(at: AtLoad) -> dict[str, str]:
    """Name of a column → what it is called; of the current policy its order is told, too."""
    return {
        column.name: f"{column_label(column.name)} ({column.policy.order})"
        if column.name == "current" and column.policy is not None
        else column_label(column.name)
        for column in at.columns
    }


def _measures_table(at: AtLoad, report: Report, heads: Mapping[str, str]) -> list[str]:
    known = words.labels()
    table = [["", *(heads[column.name] for column in at.columns)]]
    for heading, rows in ROWS.items():
        shown = []
        for name, show in rows:
            values = [_value(column, name, report) for column in at.columns]
            # Nothing to tell: all jobs started, nobody said what cards draw.
            if (name == "never_started" and not any(values)) or (name == "kwh" and report.watts is None):
                continue
            shown.append([f"  {known[name]}", *(SHOW[show](value) for value in values)])
        table += [[known[heading], *("" for _ in at.columns)], *shown]
    return _aligned(table)


def _value(column: Column, name: str, report: Report) -> float | None:
    measures = column.judged.measures
    return kwh(measures, report.watts) if name == "kwh" else getattr(measures, name)


def _owners_table(kind: str, changes: Sequence[Change], names: Mapping[int, str], before: str, after: str, show_all: bool) -> list[str]:
    known = words.labels()
    table = [[known[kind], known["jobs"], before, after, known["difference"]]]
    shown = changes if show_all else changes[:MOST_OWNERS]
    for change in shown:
        difference = words.span(change.difference_s)
        table.append(
            [
                printable(_name(change.owner, names)),
                words.number(change.jobs),
                words.span(change.before_s),
                words.span(change.after_s),
                f"+{difference}" if change.difference_s >= 0.5 else difference,
            ]
        )
    rest = len(changes) - len(shown)
    return _aligned(table) + ([words.more_text(rest)] if rest else [])


def _loads_table(report: Report) -> list[str]:
    """The four objectives side by side, for each load and policy."""
    known = words.labels()
    fields = (("utilisation", "percent"), ("within_5min", "percent"), ("card_hours_on_idle_nodes", "number"), ("maxmin_dev", "number3"))
    if report.watts is not None:
        fields = (*fields[:2], ("kwh", "number"), fields[3])
    titles = [known["use"], known["within_5min"], known["card_hours_on_idle_nodes"].lstrip("… "), known["maxmin_dev"]]
    if report.watts is not None:
        titles[2] = known["kwh"]
    table = [[known["load"], known["policy"], known["wait_avg_s"], *titles]]
    for at in report.loads:
        heads = _heads(at)
        for column in at.columns:
            row = [SHOW[show](_value(column, name, report)) for name, show in fields]
            table.append([f"{at.load:g}", heads[column.name], words.span(column.judged.measures.wait_avg_s), *row])
    return _aligned(table, left=2)


def printable(text: str) -> str:
    """People's text for a terminal: what would move the cursor or change colours is shown as a box."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _width(text: str) -> int:
    """Columns of a terminal: Chinese characters take two."""
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _aligned(table: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """The first ``left`` columns to the left, the others to the right."""
    widths = [max(_width(row[at]) for row in table) for at in range(len(table[0]))]
    lines = []
    for row in table:
        cells = []
        for at, cell in enumerate(row):
            blanks = " " * (widths[at] - _width(cell))
            cells.append(cell + blanks if at < left else blanks + cell)
        lines.append("  ".join(cells).rstrip())
    return lines
