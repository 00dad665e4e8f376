"""Who may run where, with the people and nodes of this installation put in: the rule itself is jobs/scheduler/access.py.

Where no node demands anything of anybody, which is the usual case, nothing is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from django.conf import settings

from jobs.scheduler.access import ACCOUNT, FIRST_ADMIN, NOTHING, node_demands, owner_lacks
from jobs.scheduler.types import Node
from nodes.isolation import Told, is_mapped, isolates_people
from quotas.unix_accounts import first_admin, owners_with_account

#: (owner, whether the job gets secrets, on how many nodes it runs) → what keeps it from nodes that demand it.
Lacks = Callable[[int, bool, int], frozenset[str]]


def demands_of(told: Told) -> frozenset[str]:
    """What a node demands, by what its agent told of it and by this installation's settings. One that has told nothing yet takes no
    work, and nobody is sent away for it."""
    if told is None:
        return NOTHING
    return node_demands(
        isolates_people=isolates_people(told),
        is_mapped=is_mapped(told),
        allows_unisolated=settings.ALLOW_UNISOLATED,
        shares_secrets=settings.SECRETS_ON_SHARED_NODES,
    )


def demanded_by(nodes: Iterable[Node]) -> frozenset[str]:
    """All that some node of these demands."""
    return NOTHING.union(*{node.demands for node in nodes})


def lacks_read(owners: Collection[int], demanded: frozenset[str]) -> Lacks:
    """What jobs of these owners lack of what is demanded. No query where nothing is; else three at most."""
    if not demanded:
        return lambda owner, has_secrets, parts: NOTHING
    with_account = owners_with_account(owners) if ACCOUNT in demanded else frozenset()
    first = first_admin() if FIRST_ADMIN in demanded else None
    known: dict[tuple[int, bool, bool], frozenset[str]] = {}

    def lacks(owner: int, has_secrets: bool, parts: int) -> frozenset[str]:
        found = known.get((owner, has_secrets, parts > 1))
        if found is None:
            all_of_it = owner_lacks(has_account=owner in with_account, is_first_admin=owner == first, has_secrets=has_secrets, nodes=parts)
            # Only what counts here: equal requests stay equal, so that a pass judges them once.
            found = known[owner, has_secrets, parts > 1] = all_of_it & demanded
        return found

    return lacks


def lacks_of(owner: int, *, has_secrets: bool, parts: int, nodes: Iterable[Node]) -> frozenset[str]:
    """The same of one job on ``parts`` nodes, in a pool of ``nodes``."""
    return lacks_read([owner], demanded_by(nodes))(owner, has_secrets, parts)
