"""15 s of silence make a node UNKNOWN; silence that is our own doing does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nodes.liveness import GAP_S, heard_at, is_half_silent, silent_nodes, watch_next
from nodes.models import Node, NodeState
from nodes.selectors import fencing_frozen, pool_notices
from nodes.services import command_create, last_seen_flush, liveness_check, node_cordon, node_heard, node_ready, node_sync
from nodes.telemetry import Seen, Watch
from tests.factories import gpu_make, node_make, sync_of

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
T = NOW.timestamp()


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class TestRule:
    """The pure rule; node 1 was last heard of at 100."""

    seen = {1: Seen(at=100.0)}
    watching = Watch(checked_at=114.0, epoch=50.0)

    @pytest.mark.parametrize(("now", "silent"), [(114.9, []), (115.0, [1]), (1000.0, [1])])
    def test_silent_at_fifteen_seconds_and_not_before(self, now, silent):
        assert silent_nodes([1], seen=self.seen, watch=self.watching, now=now, after_s=15) == silent

    def test_a_node_without_an_entry_is_counted_from_the_begin_of_the_watching(self):
        watch = Watch(checked_at=64.0, epoch=50.0)
        assert silent_nodes([2], seen={}, watch=watch, now=64.9, after_s=15) == []
        assert silent_nodes([2], seen={}, watch=watch, now=65.0, after_s=15) == [2]

    @pytest.mark.parametrize("checked_at", [None, 100.0 - GAP_S - 0.1, 100.1])
    def test_a_pause_or_a_jump_of_the_clock_starts_the_watching_anew(self, checked_at):
        assert watch_next(Watch(checked_at=checked_at, epoch=1.0), now=100.0) == Watch(checked_at=100.0, epoch=100.0)

    def test_checks_without_a_pause_keep_the_epoch(self):
        assert watch_next(Watch(checked_at=100.0 - GAP_S, epoch=1.0), now=100.0) == Watch(checked_at=100.0, epoch=1.0)

    def test_a_last_sync_far_ahead_of_the_clock_is_not_believed(self):
        assert heard_at(1, seen={1: Seen(at=9999.0)}, watch=self.watching, now=115.0) == 50.0
        assert heard_at(1, seen={1: Seen(at=116.0)}, watch=self.watching, now=115.0) == 116.0

    @pytest.mark.parametrize(
        ("unknown", "watched", "frozen"),
        [(0, 0, False), (1, 1, False), (1, 2, False), (2, 2, True), (2, 3, True), (2, 4, False), (3, 4, True)],
    )
    def test_half_silent_is_more_than_half_and_more_than_one(self, unknown, watched, frozen):
        assert is_half_silent(unknown=unknown, watched=watched) is frozen


@pytest.mark.django_db
@pytest.mark.redis
@pytest.mark.usefixtures("published")
class TestChecks:
    def run(self, begin: int, end: int) -> list[int]:
        """Checks each second from ``begin`` to ``end`` inclusive; who became UNKNOWN."""
        return [pk for second in range(begin, end + 1) for pk in liveness_check(now=at(second))]

    def sync(self, node: Node, second: float, seq: int = 1) -> None:
        loaded, message = Node.objects.get(pk=node.pk), sync_of(node, seq)
        node_sync(node=loaded, sync=message, now=at(second))
        node_heard(node=loaded, sync=message, now=at(second))

    def test_a_node_is_unknown_fifteen_seconds_after_its_last_sync_and_comes_back(self, live_redis):
        node = node_make()
        self.run(0, 2)
        self.sync(node, 3)
        assert self.run(3, 17) == []
        assert liveness_check(now=at(17.9)) == []
        assert liveness_check(now=at(18.0)) == [node.pk]
        node.refresh_from_db()
        assert (node.state, node.state_at) == (NodeState.UNKNOWN, at(18))
        self.sync(node, 19, seq=2)
        node.refresh_from_db()
        assert node.state == NodeState.RECOVERING
        assert node_ready(node=node, now=at(19))
        assert self.run(19, 33) == []

    def test_each_node_is_told_of_once(self, live_redis):
        node = node_make()
        assert self.run(0, 40) == [node.pk]

    def test_an_emptied_redis_makes_nobody_unknown(self, live_redis):
        node = node_make()
        self.run(0, 0)
        self.sync(node, 1)
        self.run(1, 14)
        live_redis.flushdb()
        # The agent itself is well: it syncs every 5 s, the last one just before the flush.
        assert self.run(15, 18) == []
        self.sync(node, 19, seq=2)
        assert self.run(19, 33) == []
        assert self.run(34, 34) == [node.pk]

    def test_a_stopped_control_plane_gives_every_node_its_full_time_again(self, live_redis):
        node = node_make()
        self.run(0, 0)
        self.sync(node, 1)
        self.run(1, 5)
        assert self.run(3600, 3614) == []
        assert self.run(3615, 3615) == [node.pk]

    def test_redis_away_decides_nothing(self, no_redis):
        node = node_make()
        assert self.run(0, 40) == []
        assert Node.objects.get(pk=node.pk).state == NodeState.READY

    def test_only_nodes_that_were_heard_of_can_become_silent(self, live_redis):
        for state in (NodeState.ENROLLING, NodeState.DOWN, NodeState.RETIRED):
            node_make(state=state)
        recovering = node_make(state=NodeState.RECOVERING)
        assert self.run(0, 20) == [recovering.pk]

    def test_a_quiet_check_reads_three_times_and_writes_nothing(self, live_redis):
        node_make()
        with CaptureQueriesContext(connection) as queries:
            liveness_check(now=NOW)
        assert [query["sql"].split()[0] for query in queries] == ["SELECT"] * 3

    def test_more_than_half_silent_freezes_fencing_and_says_so(self, live_redis):
        nodes = [node_make() for _ in range(3)]
        self.run(0, 0)
        self.sync(nodes[0], 10)
        assert not fencing_frozen()
        assert len(self.run(1, 15)) == 2
        assert fencing_frozen()
        assert pool_notices() == [{"code": "fencing_frozen", "params": {"unknown": 2, "watched": 3}}]
        self.sync(nodes[1], 16)
        assert not fencing_frozen()
        assert pool_notices() == []

    def test_a_drain_ends_at_its_time_and_commands_expire(self, live_redis):
        node = node_make()
        node_cordon(node=node, by=None, reason="fan", until=at(5), now=NOW)
        command = command_create(node=node, verb="ping", ttl_s=5, now=NOW)
        self.run(1, 4)
        node.refresh_from_db()
        assert node.cordoned
        self.run(5, 5)
        node.refresh_from_db()
        command.refresh_from_db()
        assert (node.cordoned, command.state) == (False, "EXPIRED")

    def test_last_seen_is_flushed_in_one_statement_and_only_forward(self, live_redis):
        nodes = [node_make() for _ in range(3)]
        for node in nodes:
            self.sync(node, 1)
        ahead = at(60)
        Node.objects.filter(pk=nodes[2].pk).update(last_seen_at=ahead)
        with CaptureQueriesContext(connection) as queries:
            assert last_seen_flush() == 2
        assert sum(query["sql"].startswith("UPDATE") for query in queries) == 1
        assert list(Node.objects.order_by("pk").values_list("last_seen_at", flat=True)) == [at(1), at(1), ahead]
        with CaptureQueriesContext(connection) as queries:
            assert last_seen_flush() == 0
        assert [query["sql"].split()[0] for query in queries] == ["SELECT"]


@pytest.mark.django_db
def test_simulated_cards_are_a_notice():
    gpu_make(is_simulated=True)
    gpu_make(is_simulated=True, state="MISSING")
    assert pool_notices() == [{"code": "simulated_cards", "params": {"cards": 1}}]
