"""Who holds which card, as far as a reader may know it: his own jobs and those of his projects, staff all of them, and everybody
all of them where NEBULA_SHOW_CARD_USERS says so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from jobs.lifecycle import SliceState
from jobs.models import Slice
from quotas.models import User
from quotas.selectors import memberships_shared

#: So many jobs of a card are named in a line.
NAMED_MOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A live slice. ``name``, ``email`` and ``job`` are empty or None where this reader may not know whose it is."""

    id: int
    mib: int
    state: str
    is_mine: bool
    job: int | None = None
    name: str = ""
    email: str = ""

    @property
    def is_known(self) -> bool:
        return self.job is not None

    @property
    def person(self) -> str:
        return self.email.partition("@")[0]


def holders_read(user: User, gpus: Iterable[int] | None = None) -> dict[int, list[Holder]]:
    """Card id → its live slices, the oldest first; of all cards where none are named. Two queries."""
    rows = Slice.objects.exclude(state=SliceState.RELEASED).order_by("pk")
    if gpus is not None:
        rows = rows.filter(gpu__in=gpus)
    shows_all = user.confined_to is None and (user.is_staff or settings.SHOW_CARD_USERS)
    projects = frozenset() if shows_all else frozenset(memberships_shared(user).values_list("project_id", flat=True))
    job = "rank__attempt__job"
    found: dict[int, list[Holder]] = defaultdict(list)
    for pk, gpu, mib, state, number, name, owner, email, project in rows.values_list(
        "pk", "gpu_id", "mib", "state", f"{job}_id", f"{job}__name", f"{job}__owner_id", f"{job}__owner__email", f"{job}__project_id"
    ):
        is_mine = owner == user.pk
        if user.confined_to is not None:
            is_known = project == user.confined_to
        else:
            is_known = shows_all or is_mine or project in projects
        known = {"job": number, "name": name, "email": email} if is_known else {}
        found[gpu].append(Holder(id=pk, mib=mib, state=state, is_mine=is_mine, **known))
    return found


def holders_short(holders: Iterable[Holder]) -> str:
    """For a cell: ``lin``, ``lin +1``; empty where nobody may be named."""
    people = list(dict.fromkeys(holder.person for holder in holders if holder.is_known))
    return "" if not people else people[0] if len(people) == 1 else f"{people[0]} +{len(people) - 1}"


def holders_text(holders: Iterable[Holder]) -> str:
    """``lin@lab.example: train #12, mira@lab.example: eval #13``."""
    known = [holder for holder in holders if holder.is_known]
    jobs = list(dict.fromkeys(f"{holder.email}: {holder.name} #{holder.job}" for holder in known))
    return ", ".join(jobs[:NAMED_MOST]) + (f" +{len(jobs) - NAMED_MOST}" if len(jobs) > NAMED_MOST else "")


def slices_json(gpus: list[int], user: Any) -> dict[int, list[dict[str, Any]]]:
    """For the API: see nodes/slices.py. Two queries."""
    return {
        gpu: [
            {
                "id": f"s-{holder.id}",
                "memory_mib": holder.mib,
                "state": holder.state.lower(),
                "job": holder.job,
                "name": holder.name if holder.is_known else None,
                "user": holder.email if holder.is_known else None,
            }
            for holder in holders
        ]
        for gpu, holders in holders_read(user, gpus).items()
    }
