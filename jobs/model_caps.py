"""Limits by card model (``a100:2``): how many cards an owner may still hold of which model, and what that leaves of a request.

The core knows nothing of them: a job that may not have a model asks for the other models of the pool instead, and one that is
left with none is held. Under the quotas' locks ``ModelRoom.take`` is the last word (jobs/apply.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import Count, Q

from jobs.lifecycle import SliceState
from jobs.models import Slice
from jobs.scheduler import Policy, Reason, Request, never_reason
from jobs.scheduler.need import model_matches
from jobs.scheduler.reasons import MODEL_CARDS_EXCEEDED
from jobs.scheduler.types import Node

Limits = Mapping[int, Mapping[str, int]]  # owner → card model → cards of it that may be held


@dataclass(slots=True)
class ModelRoom:
    """``users``, ``projects``: those with such limits. ``held`` of ("user" | "project", owner): cards by the card's own name."""

    users: Limits
    projects: Limits
    held: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.users or self.projects)

    def limits_of(self, *, user: int, project: int) -> list[tuple[str, int, int]]:
        """(model as the limit names it, cards of it held, cards of it that may be held): the user's, then the project's."""
        found = []
        for key, limits in ((("user", user), self.users.get(user, {})), (("project", project), self.projects.get(project, {}))):
            held = self.held.get(key, Counter())
            for asked, most in limits.items():
                found.append((asked, sum(n for name, n in held.items() if model_matches(asked, name)), most))
        return found

    def take(self, *, user: int, project: int, models: Mapping[str, int]) -> bool:
        """Whether these cards, by name, may be held after all that was taken before; counts them if so."""
        for asked, held, most in self.limits_of(user=user, project=project):
            more = sum(n for name, n in models.items() if model_matches(asked, name))
            if more and held + more > most:
                return False
        for key, limits in ((("user", user), self.users), (("project", project), self.projects)):
            if key[1] in limits:
                self.held.setdefault(key, Counter()).update(models)
        return True


def room_read(users: Limits, projects: Limits) -> ModelRoom:
    """What is held of each model by the owners with such limits. No query where nobody has one, else one."""
    room = ModelRoom(users, projects)
    if not room:
        return room
    live = Slice.objects.exclude(state=SliceState.RELEASED)
    mine = live.filter(Q(rank__attempt__job__owner_id__in=list(users)) | Q(rank__attempt__job__project_id__in=list(projects)))
    by = ("rank__attempt__job__owner_id", "rank__attempt__job__project_id", "gpu__model")
    rows = mine.order_by().values_list(*by).annotate(n=Count("pk"))
    for owner, project, model, n in rows:
        for key, limits in ((("user", owner), users), (("project", project), projects)):
            if key[1] in limits:
                room.held.setdefault(key, Counter())[model] += n
    return room


def narrow(
    request: Request, *, user: int, project: int, room: ModelRoom, nodes: Sequence[Node], policy: Policy, as_if_empty: bool = False
) -> tuple[Request, Reason | None]:
    """The request without the models of which its owner may not hold so many cards more, and why it can't be placed at all now.

    ``as_if_empty``: judged as if nothing were held: what stands then stands for ever, until a limit is raised.
    """
    if not room or request.gpu_count == 0:
        return request, None
    limits = [(asked, 0 if as_if_empty else held, most) for asked, held, most in room.limits_of(user=user, project=project)]
    tight = [(asked, held, most) for asked, held, most in limits if held + request.gpu_count > most]
    if not tight:
        return request, None
    names = sorted({gpu.model for node in nodes for gpu in node.gpus if request.model is None or model_matches(request.model, gpu.model)})
    closed = [name for name in names if any(model_matches(asked, name) for asked, _held, _most in tight)]
    if not closed:
        return request, None
    # A name may be a part of another ("A100" of "A100 80GB"): one that would let a closed model in again is left out, too.
    open_ = [name for name in names if name not in closed and not any(model_matches(name, other) for other in closed)]
    if open_:
        narrowed = replace(request, model="|".join(open_))
        if never_reason(narrowed, nodes, policy) is None:
            return narrowed, None
    asked, held, most = min((one for one in tight if any(model_matches(one[0], name) for name in closed)), key=lambda one: one[2] - one[1])
    params: dict[str, Any] = {"model": asked, "needed": request.gpu_count, "room": max(0, most - held), "limit": most}
    return request, Reason(code=MODEL_CARDS_EXCEEDED, params=params)
