"""After a commit: tell watchers, nudge a pass, wake the nodes. Hints only; losing one costs a few seconds at most."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import redis
from django.db import connection, transaction

from nodes import live, telemetry

log = logging.getLogger(__name__)

NUDGE_KEY = "nebula:pass"
#: A nudge that was lost (a killed worker) blocks the next ones for so long; the 3 s sweep runs anyway.
NUDGE_KEY_MS = 1500
#: A change of more jobs than this is told to the pool's watchers only.
LIVE_BURST = 200


def pass_nudge() -> None:
    """Asks for a scheduling pass after the commit; many nudges before it starts make one pass."""
    if not any(hook[1] is _pass_send for hook in connection.run_on_commit):
        transaction.on_commit(_pass_send)


def _pass_send() -> None:
    from jobs.tasks import schedule_pass

    try:
        client = telemetry.client()
        if client is not None and not client.set(NUDGE_KEY, "1", nx=True, px=NUDGE_KEY_MS):
            return
        schedule_pass.apply_async(retry=False, expires=10)
    except Exception as error:  # whatever the broker raises, the sweep does the work
        log.warning("no pass nudge: %s", error)


def pass_begun() -> None:
    """Called with the pass lock held, before the snapshot: a change after this moment asks for a pass of its own."""
    client = telemetry.client()
    if client is not None:
        try:
            client.delete(NUDGE_KEY)
        except redis.RedisError as error:
            log.debug("pass key stays: %s", error)


class _JobsTell:
    """The hook of one transaction that tells of all its jobs."""

    def __init__(self) -> None:
        self.ids: dict[int, None] = {}

    def __call__(self) -> None:
        for pk in list(self.ids)[:LIVE_BURST]:
            live.publish(f"job.{pk}", {"job": pk})
        live.publish("pool", {"jobs": len(self.ids)})


def jobs_changed(ids: Sequence[int]) -> None:
    """Tells the watchers of these jobs, after the commit, once however often one has changed."""
    tell = next((hook[1] for hook in connection.run_on_commit if isinstance(hook[1], _JobsTell)), None)
    if tell is None:
        tell = _JobsTell()
        tell.ids.update(dict.fromkeys(ids))
        transaction.on_commit(tell)
    else:
        tell.ids.update(dict.fromkeys(ids))


def nodes_nudge(node_ids: Iterable[int]) -> None:
    """Asks the nodes' agents for a sync now, after the commit."""
    wanted = sorted(set(node_ids))

    def send() -> None:
        for pk in wanted:
            live.nudge_node(pk)

    transaction.on_commit(send)
