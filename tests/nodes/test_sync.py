"""The nodes' half of a sync: sessions, repeats, events, commands, and not one write when nothing changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.protocol import PROTO, AgentEvent, CommandResult
from nodes import events
from nodes.auth import node_authenticate
from nodes.doubts import doubts_counted, nodes_doubted
from nodes.models import AgentCommand, HealthEvent, Node, NodeState
from nodes.services import command_create, node_heard, node_ready, node_sync
from nodes.sync import PAST_SESSIONS, RESULT_MAX
from nodes.telemetry import gpus_latest, nodes_latest
from nodes.wording import node_advice
from tests.factories import gpu_make, inventory, node_credential, node_header, node_make, sync_of, xid_rules_ship

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def quiet(published):
    return published


def sync(node, *args, now=NOW, **fields):
    """One request: the node as the endpoint loads it, then its sync."""
    fresh = Node.objects.get(pk=node.pk)
    message = sync_of(fresh, *args, **fields)
    answer = node_sync(node=fresh, sync=message, now=now)
    if answer.accepted and not answer.is_repeat:
        node_heard(node=fresh, sync=message, now=now)
    node.refresh_from_db()
    return answer


# --- cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.redis
def test_an_unchanged_sync_writes_nothing_and_reads_twice(live_redis):
    node = node_make(cards=8)
    uuids = tuple(node.gpus.values_list("uuid", flat=True))
    sync(node, 1, gpus=uuids, inventory=inventory(*uuids))
    with CaptureQueriesContext(connection) as queries:
        loaded = node_authenticate(node_header(node))
        message = sync_of(node, 2, gpus=uuids)
        answer = node_sync(node=loaded, sync=message, now=NOW + timedelta(seconds=5))
        node_heard(node=loaded, sync=message, now=NOW + timedelta(seconds=5))
    assert answer.accepted
    assert not answer.is_repeat
    statements = [query["sql"].split()[0] for query in queries]
    assert statements == ["SELECT", "SELECT"]
    assert live_redis.hget("nebula:seen", str(node.pk)) == f"{NOW.timestamp() + 5:.3f} {node.session} 2"


def test_an_unchanged_inventory_sent_again_writes_nothing(no_redis):
    node = node_make()
    sync(node, 1, inventory=inventory("GPU-a", "GPU-b"))
    with CaptureQueriesContext(connection) as queries:
        loaded = Node.objects.get(pk=node.pk)
        node_sync(node=loaded, sync=sync_of(loaded, 2, inventory=inventory("GPU-a", "GPU-b")), now=NOW)
    assert [query["sql"].split()[0] for query in queries] == ["SELECT", "SELECT"]


# --- sessions ---------------------------------------------------------------------------------------------------------


def test_a_new_session_takes_over_and_the_node_recovers(no_redis):
    node = node_make(session="old")
    answer = sync(node, session="new")
    assert answer.accepted
    assert answer.is_new_session
    assert (node.session, node.past_sessions, node.state) == ("new", ["old"], NodeState.RECOVERING)


def test_a_superseded_session_is_refused_and_changes_nothing(no_redis):
    node = node_make(session="old")
    sync(node, session="new")
    node_ready(node=node)
    answer = sync(node, 99, session="old", boot_id="other", inventory=inventory("GPU-x"))
    assert (answer.accepted, answer.refusal) == (False, "superseded_session")
    assert (node.session, node.state, node.gpus.count()) == ("new", NodeState.READY, 0)


def test_of_two_new_agent_starts_at_once_one_is_refused(no_redis):
    node = node_make(session="old")
    as_loaded = Node.objects.get(pk=node.pk)  # both requests loaded the node before either wrote
    sync(node, session="first")
    answer = node_sync(node=as_loaded, sync=sync_of(as_loaded, session="second"), now=NOW)
    assert answer.refusal == "session_busy"  # it asks again, and is judged then
    assert Node.objects.get(pk=node.pk).session == "first"


def test_past_sessions_are_kept_up_to_a_number(no_redis):
    node = node_make(session="s0")
    for number in range(1, PAST_SESSIONS + 3):
        sync(node, session=f"s{number}", now=NOW + timedelta(minutes=number))
    assert len(node.past_sessions) == PAST_SESSIONS
    assert node.past_sessions[-1] == f"s{PAST_SESSIONS + 1}"


@pytest.mark.redis
def test_a_repeated_seq_is_answered_but_changes_nothing(live_redis):
    node = node_make()
    command = command_create(node=node, verb="ping", now=NOW)
    sync(node, 7)
    for seq in (7, 3):
        answer = sync(node, seq, boot_id="other", events=(AgentEvent(eid=1, kind="xid"),), now=NOW + timedelta(seconds=1))
        assert answer.accepted
        assert answer.is_repeat
        assert [given.cid for given in answer.commands] == [command.pk]
        assert answer.ack_eids == ()
    assert not HealthEvent.objects.exists()
    assert node.boot_id != "other"
    assert not sync(node, 8).is_repeat


@pytest.mark.redis
def test_a_new_session_counts_its_seq_anew(live_redis):
    node = node_make(session="old")
    sync(node, 500)
    assert not sync(node, 1, session="new").is_repeat


@pytest.mark.redis
def test_with_redis_emptied_a_repeat_is_harmless(live_redis):
    node = node_make()
    command = command_create(node=node, verb="ping", now=NOW)
    fields = {"events": (AgentEvent(eid=1, kind="xid"),), "results": (CommandResult(cid=command.pk, ok=True, text="pong"),)}
    sync(node, 7, **fields)
    live_redis.flushdb()
    answer = sync(node, 7, **fields)
    assert not answer.is_repeat
    assert HealthEvent.objects.count() == 1
    command.refresh_from_db()
    assert (command.state, command.text) == ("DONE", "pong")


def test_another_boot_id_is_told_once(no_redis):
    node = node_make(boot_id="boot-1")
    assert sync(node, session="new", boot_id="boot-2").boot_changed
    assert not sync(node, 2, boot_id="boot-2").boot_changed
    assert node.boot_id == "boot-2"


def test_the_first_boot_id_is_no_change(no_redis):
    node = node_make(boot_id="", session="", state=NodeState.ENROLLING)
    answer = sync(node, session="first", boot_id="boot-1")
    assert (answer.boot_changed, node.state) == (False, NodeState.RECOVERING)


@pytest.mark.parametrize("state", [NodeState.UNKNOWN, NodeState.DOWN])
def test_a_silent_node_that_is_back_recovers_before_it_is_ready(no_redis, state):
    node = node_make(state=state)
    assert sync(node).state == NodeState.RECOVERING
    assert node.state == NodeState.RECOVERING
    assert node_ready(node=node)
    assert Node.objects.get(pk=node.pk).state == NodeState.READY


def test_ready_needs_a_reconcile_of_the_current_session(no_redis):
    node = node_make(session="old")
    sync(node, session="new")
    as_loaded = Node.objects.get(pk=node.pk)
    sync(node, session="newer", now=NOW + timedelta(minutes=1))
    assert not node_ready(node=as_loaded)
    assert Node.objects.get(pk=node.pk).state == NodeState.RECOVERING


def test_a_retired_node_is_refused_even_when_it_was_loaded_before(no_redis):
    node = node_make(session="old")
    as_loaded = Node.objects.get(pk=node.pk)
    Node.objects.filter(pk=node.pk).update(state=NodeState.RETIRED)
    assert node_sync(node=as_loaded, sync=sync_of(as_loaded, session="new"), now=NOW).refusal == "retired"


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [({"proto": PROTO + 1}, "unsupported_proto")]
    + [({"session": text}, "bad_session") for text in ("", "x" * 41, "a b", "a\x00b", "云")]
    + [({"boot_id": ""}, "bad_session"), ({"seq": 2**64}, "bad_session")],
)
def test_a_sync_that_is_none_is_refused(no_redis, fields, refusal):
    assert sync(node_make(), **fields).refusal == refusal


def test_the_inventory_is_asked_for_until_it_came(no_redis):
    node = node_make()
    assert sync(node, 1).want_inventory
    assert not sync(node, 2, inventory=inventory("GPU-a")).want_inventory
    later = NOW + timedelta(minutes=1)
    assert sync(node, 1, session="new", now=later).want_inventory
    assert not sync(node, 2, inventory=inventory("GPU-a"), now=later).want_inventory


# --- who it is ------------------------------------------------------------------------------------------------------


def test_a_credential_opens_its_own_node_only():
    node, other = node_make("one"), node_make("two")
    secret = node_credential("one")
    assert node_authenticate(f"Node {node.pk}:{secret}") == node
    for header in (f"Node {other.pk}:{secret}", f"Node {node.pk}:{secret}x", f"Bearer {node.pk}:{secret}", f"Node {secret}", "", "Node",
                   f"Node ١:{secret}", f"Node {'9' * 30}:{secret}", f"Node 999999:{secret}"):  # fmt: skip
        assert node_authenticate(header) is None, header


def test_a_node_without_a_credential_can_not_sign_in():
    node = node_make("one")
    Node.objects.filter(pk=node.pk).update(credential_sha256=None)
    assert node_authenticate(node_header(node)) is None


def test_a_retired_nodes_credential_opens_nothing():
    assert node_authenticate(node_header(node_make(state=NodeState.RETIRED))) is None


# --- events ---------------------------------------------------------------------------------------------------------


def test_an_event_is_kept_once_and_all_are_acknowledged(no_redis):
    node = node_make()
    gpu = gpu_make(node)
    first = AgentEvent(eid=1, kind="xid", gpu=gpu.uuid, at=5_000.0, data={"xid": 79})
    sync(node, 1, events=(first,), sent_at=5_030.0)  # by the node's clock
    answer = sync(node, 2, events=(first, AgentEvent(eid=2, kind="throttle", gpu="GPU-of-another-node")))
    assert answer.ack_eids == (1, 2)
    assert list(HealthEvent.objects.order_by("eid").values_list("eid", "kind", "gpu", "at")) == [
        (1, "xid", gpu.pk, NOW - timedelta(seconds=30)),
        (2, "throttle", None, NOW),
    ]


def test_an_event_sent_again_by_a_restarted_agent_is_the_same_event(no_redis):
    node = node_make(session="old")
    sync(node, 1, events=(AgentEvent(eid=1, kind="lost"),))
    again = (AgentEvent(eid=1, kind="lost", session="old"), AgentEvent(eid=1, kind="lost"))
    sync(node, 1, session="new", now=NOW + timedelta(minutes=1), events=again)
    assert list(HealthEvent.objects.order_by("id").values_list("session", "eid")) == [("old", 1), ("new", 1)]


@pytest.mark.parametrize(
    ("at", "sent_at", "age_s"),
    [
        (None, None, 0),
        (100.0, None, 0),  # an agent that doesn't tell when it sent: now
        (100.0, 160.0, 60),
        (9e18, 9e18 + 4096, 4096),  # a clock that is wrong is wrong on both sides
        (160.0, 100.0, 0),  # after it was sent? then now
        (0.0, 9e9, 0),  # older than a week: the clock was set in between
    ],
)
def test_when_an_event_was_is_counted_by_one_clock(no_redis, at, sent_at, age_s):
    node = node_make()
    sync(node, events=(AgentEvent(eid=1, kind="lost", at=at),), sent_at=sent_at)
    assert HealthEvent.objects.get().at == NOW - timedelta(seconds=age_s)


def test_an_event_that_can_not_be_is_acknowledged_counted_and_dropped_alone(no_redis):
    node = node_make()
    gpu = gpu_make(node)
    events = (
        AgentEvent(eid=1, kind="k" * 100, at=9e18, data={"text": "x" * 100_000}),
        AgentEvent(eid=2**70, kind="lost"),
        AgentEvent(eid=3, kind="xid\x00", at=float("nan"), data={"\ud800": [float("inf"), "a\x00"]}, gpu="a\x00"),
        AgentEvent(eid=4, kind="xid", gpu=gpu.uuid, data={"xid": float("nan")}),
        AgentEvent(eid=5, kind="xid", gpu=gpu.uuid, data={"xid": True}),
        AgentEvent(eid=6, kind="lost", session="doubt:second_session"),
        AgentEvent(eid=7, kind="xid", gpu=gpu.uuid, data={"xid": 43}),
    )
    assert sync(node, events=events).ack_eids == (1, 2**70, 3, 4, 5, 6, 7)
    event = HealthEvent.objects.get(eid=1)
    assert (event.at, len(event.kind), list(event.data)) == (NOW, 40, ["too_long"])
    event = HealthEvent.objects.get(eid=3)
    assert (event.at, event.kind, event.data) == (NOW, "xid�", {"?": [None, "a�"], "uuid": "a�"})
    assert HealthEvent.objects.get(eid=7).data["xid"] == 43
    assert HealthEvent.objects.filter(kind="bad_event").count() == 1  # written down once, however many
    assert HealthEvent.objects.count() == 4


def test_a_row_of_before_without_a_number_spoils_no_later_xid(no_redis):
    """Written by an older version, for an event with `xid: NaN`."""
    xid_rules_ship()
    node = node_make()
    gpu = gpu_make(node)
    HealthEvent.objects.create(node=node, gpu=gpu, session="s", eid=1, kind="xid", data={"xid": None}, at=NOW)
    sync(node, events=(AgentEvent(eid=2, kind="xid", gpu=gpu.uuid, data={"xid": 79}),))
    gpu.refresh_from_db()
    assert gpu.state == "SUSPECT"


def test_an_event_that_we_stumble_over_takes_no_other_with_it(no_redis, monkeypatch):
    node = node_make()
    gpu = gpu_make(node)
    judge = events.judge_kind
    monkeypatch.setattr(events, "judge_kind", lambda kind, card: judge(kind, card) if kind != "odd" else {}["odd"])
    answer = sync(node, events=(AgentEvent(eid=1, kind="odd", gpu=gpu.uuid), AgentEvent(eid=2, kind="lost", gpu=gpu.uuid)))
    gpu.refresh_from_db()
    assert (answer.ack_eids, gpu.state) == ((1, 2), "ISOLATED")
    assert "KeyError" in HealthEvent.objects.get(kind="bad_event").data["problem"]


@pytest.mark.redis
def test_a_flood_of_events_is_counted_and_not_kept(live_redis, monkeypatch):
    monkeypatch.setattr(events, "HOUR_MOST", 5)
    node = node_make()
    answer = sync(node, 1, events=tuple(AgentEvent(eid=n, kind="lost") for n in range(8)))
    assert len(answer.ack_eids) == 8
    assert HealthEvent.objects.filter(kind="lost").count() == 5
    sync(node, 2, events=tuple(AgentEvent(eid=n, kind="lost") for n in range(8, 10)))
    assert HealthEvent.objects.filter(kind="lost").count() == 5
    assert doubts_counted() == {(node.pk, "event_flood"): 5}
    assert nodes_doubted([node.pk], now=NOW) == {node.pk: (1, "event_flood")}
    assert nodes_doubted([node.pk], now=NOW + timedelta(hours=1)) == {}


@pytest.mark.redis
@pytest.mark.parametrize(("behind_s", "is_told"), [(600, True), (-600, True), (5, False), (None, False)])
def test_a_clock_that_is_wrong_is_told(live_redis, behind_s, is_told):
    node = node_make()
    sync(node, sent_at=None if behind_s is None else NOW.timestamp() - behind_s)
    latest = nodes_latest([node.pk])[node.pk]
    assert latest.skew_s == behind_s
    assert ("clock_skew" in node_advice(node.advice, latest)) is is_told


# --- commands -------------------------------------------------------------------------------------------------------


def test_a_command_is_given_with_every_sync_until_it_is_answered(no_redis):
    node = node_make()
    command = command_create(node=node, verb="diagnose", args={"deep": True}, ttl_s=60, now=NOW)
    for _ in range(2):
        (given,) = sync(node, now=NOW + timedelta(seconds=20)).commands
        assert (given.cid, given.kind, given.args, given.expires_in_s) == (command.pk, "diagnose", {"deep": True}, 40)
    assert sync(node, results=(CommandResult(cid=command.pk, ok=False, text="no driver"),)).commands == ()
    command.refresh_from_db()
    assert (command.state, command.text, command.finished_at) == ("FAILED", "no driver", NOW)


def test_an_expired_command_is_not_given(no_redis):
    node = node_make()
    command_create(node=node, verb="ping", ttl_s=60, now=NOW)
    assert sync(node, now=NOW + timedelta(seconds=60)).commands == ()


def test_only_the_nodes_own_command_is_answered_and_only_once(no_redis):
    node, other = node_make(), node_make()
    command = command_create(node=node, verb="ping", now=NOW)
    sync(other, results=(CommandResult(cid=command.pk, ok=True, text="forged"), CommandResult(cid=2**80, ok=True)))
    command.refresh_from_db()
    assert command.state == AgentCommand.State.QUEUED
    sync(node, 1, results=(CommandResult(cid=command.pk, ok=True, text="pong"),))
    sync(node, 2, results=(CommandResult(cid=command.pk, ok=False, text="again"),))
    command.refresh_from_db()
    assert (command.state, command.text) == ("DONE", "pong")


def test_a_long_result_is_cut_at_a_character(no_redis):
    node = node_make()
    command = command_create(node=node, verb="tail", now=NOW)
    sync(node, results=(CommandResult(cid=command.pk, ok=True, text="\x00" + "云" * RESULT_MAX),))
    command.refresh_from_db()
    assert RESULT_MAX - 3 < len(command.text.encode()) <= RESULT_MAX
    assert set(command.text) == {"�", "云"}


# --- cards' latest ----------------------------------------------------------------------------------------------------


@pytest.mark.redis
def test_the_latest_status_has_none_for_what_is_not_told_and_is_read_in_one_query(live_redis):
    one, two = node_make(cards=2), node_make(cards=1)
    for node in (one, two):
        sync(node, gpus=tuple(node.gpus.values_list("uuid", flat=True)))
    ids = [*one.gpus.values_list("pk", flat=True), *two.gpus.values_list("pk", flat=True)]
    with CaptureQueriesContext(connection) as queries:
        latest = gpus_latest(ids, now=NOW.timestamp() + 14.9)
    assert len(queries) == 1
    assert list(latest) == ids
    status = latest[ids[0]]
    assert (status["used_mib"], status["temp_c"], status["foreign_mib"], status["stale"]) == (0, None, 0, False)
    assert gpus_latest(ids, now=NOW.timestamp() + 15)[ids[0]]["stale"] is True


@pytest.mark.redis
def test_a_node_can_not_speak_for_anothers_card(live_redis):
    mine, other = node_make(cards=1), node_make()
    sync(other, gpus=(mine.gpus.get().uuid,))
    assert gpus_latest(mine.gpus.all()) == {}


def test_without_redis_a_sync_works_and_nothing_is_latest(no_redis):
    node = node_make(cards=1)
    assert sync(node, gpus=(node.gpus.get().uuid,)).accepted
    assert gpus_latest(node.gpus.all()) == {}
