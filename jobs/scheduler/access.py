"""Who may run where. A node demands things of a job or its owner, and these lack things: what is in both keeps the job from the node.

``plan``, its re-check and "never" all ask ``access_denied`` by way of ``need.node_mismatch``, as they ask for labels and versions. Most
pools demand nothing of anybody, and then nothing here costs anything: a request carries only what some node of the pool demands.
"""

from __future__ import annotations

from typing import Final

#: The owner's own Unix account: jobs run as it there.
ACCOUNT: Final = "account"
#: To be the installation's first administrator: jobs there can read each other's files, and the agent's.
FIRST_ADMIN: Final = "isolation"
#: A job without secrets, for the same reason.
NO_SECRETS: Final = "secret_isolation"
#: A job of one node: other nodes can't call this one at the address that it tells.
ONE_NODE: Final = "shared_address"
#: In the order in which one of several is told.
ORDER: Final = (ACCOUNT, FIRST_ADMIN, NO_SECRETS, ONE_NODE)
NOTHING: Final[frozenset[str]] = frozenset()


def node_demands(
    *, isolates_people: bool, is_mapped: bool, allows_unisolated: bool = False, shares_secrets: bool = False
) -> frozenset[str]:
    """What a node asks of a job's owner. ``allows_unisolated`` and ``shares_secrets`` are what the installation's settings lift.

    Where nobody but the first administrator may run, no other person is there to read that one's secrets.
    """
    found = {ACCOUNT} if is_mapped else set()
    if not isolates_people and not allows_unisolated:
        found.add(FIRST_ADMIN)
    elif not isolates_people and not shares_secrets:
        found.add(NO_SECRETS)
    return frozenset(found)


def owner_lacks(*, has_account: bool, is_first_admin: bool, has_secrets: bool, nodes: int = 1) -> frozenset[str]:
    """What a job on ``nodes`` nodes, or its owner, can't meet."""
    lacking = ((ACCOUNT, not has_account), (FIRST_ADMIN, not is_first_admin), (NO_SECRETS, has_secrets), (ONE_NODE, nodes > 1))
    return frozenset(code for code, is_lacking in lacking if is_lacking)


def access_denied(lacks: frozenset[str], demands: frozenset[str]) -> str | None:
    """The code of what keeps a job from a node; None = nothing does."""
    if not lacks or not demands or lacks.isdisjoint(demands):
        return None
    both = lacks & demands
    return next(code for code in ORDER if code in both)
