"""The parts of a card that jobs hold, as the API shows them. Jobs are a floor above: that room registers the reading of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.db.models import Q

from nodes.models import Gpu, GpuLink

#: (ids of cards, reader) → card id → its slices as JSON
SlicesRead = Callable[[list[int], Any], Mapping[int, list[dict[str, Any]]]]
_read: SlicesRead = lambda gpus, user: {}  # noqa: E731


def slices_configure(read: SlicesRead) -> None:
    global _read
    _read = read


def slices_of(gpus: Iterable[Gpu], user: Any) -> Mapping[int, list[dict[str, Any]]]:
    """What jobs hold of these cards, as this reader may see it. Two queries at most."""
    return _read([gpu.pk for gpu in gpus], user)


def slice_free(mib: int) -> dict[str, Any]:
    """What is left of a card: slices are cut when a job is placed, so the rest is one piece."""
    return {"id": None, "memory_mib": mib, "state": "free", "job": None, "name": None, "user": None}


def linked_by_nvlink(gpus: Iterable[Gpu]) -> set[int]:
    """The ids of those cards that another one is joined to by NVLink. One query."""
    ids = [gpu.pk for gpu in gpus]
    pairs = GpuLink.objects.filter(Q(a__in=ids) | Q(b__in=ids), kind="nvlink").values_list("a_id", "b_id")
    return {pk for pair in pairs for pk in pair}
