"""Prometheus' text format, written directly: a library that keeps an object for each series would cost more than the text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def labels(**values: object) -> str:
    """``gpu="0",Hostname="node03"`` in the order given; any text may be a value."""
    return ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items())


def metric(name: str, kind: str, text: str, series: Iterable[tuple[str, float | int | None]], *, suffix: str = "") -> list[str]:
    """The lines of one metric: ``series`` are (labels, value). What is None is left out, and a metric without a series altogether.

    ``kind``: gauge | counter | untyped.
    """
    head = name + suffix
    # repr() writes a float as it is, to the last digit; a whole number stays whole.
    lines = [f"{head}{{{of}}} {value!r}\n" if of else f"{head} {value!r}\n" for of, value in series if value is not None]
    return [f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n", *lines] if lines else []


def histogram(name: str, text: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> list[str]:
    """``counts``: how many were ≤ each bound and above the one before, and those above the last; ``total``: their sum."""
    lines, below = [], 0
    for bound, count in zip((*(f"{bound:g}" for bound in bounds), "+Inf"), counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{le="{bound}"}} {below}\n')
    return [f"# HELP {name} {text}\n", f"# TYPE {name} histogram\n", *lines, f"{name}_sum {total!r}\n", f"{name}_count {below}\n"]


def numbers(values: Mapping[str, float | int | None], label: str) -> list[tuple[str, float | int | None]]:
    """``{"READY": 3}`` → series with ``label="READY"``, in a fixed order."""
    return [(labels(**{label: key}), values[key]) for key in sorted(values)]
