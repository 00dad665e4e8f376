"""What goes over the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from agent.codec import DEPTH_MOST
from agent.protocol import (
    AgentEvent,
    GpuStatus,
    HostStatus,
    Inventory,
    IsolationInfo,
    Observed,
    ProtocolError,
    SyncRequest,
    events_read,
    json_read,
)
from agent.syncline import EVENTS_A_SYNC, EventWindow


def test_the_report_of_eight_busy_cards_and_eight_ranks_is_under_two_kilobytes() -> None:
    """All that a sync tells every 5 s: the cards, the host, and what runs."""
    status = tuple(
        GpuStatus(
            uuid=f"GPU-{i:08x}-aaaa-4bbb-8ccc-0123456789ab",
            used_mib=23456,
            reserved_mib=512,
            util_pct=100,
            mem_util_pct=87,
            temp_c=81,
            power_w=448,
            fan_pct=73,
            core_mhz=2520,
            mem_mhz=10501,
            throttle=("power_cap",) if i == 0 else (),
            foreign_mib=1024 if i == 7 else 0,
        )
        for i in range(8)
    )
    observed = tuple(Observed(rank=f"{i}.1.0", epoch=1, state="RUNNING", started_at=1700000000.123) for i in range(8))
    host = HostStatus(cpu_pct=100, memory_mib=2_064_384, disk_free_mib=15_260_000, disk_total_mib=15_360_000)
    sync = SyncRequest(session="0" * 36, boot_id="0" * 36, seq=123456, gpus=status, observed=observed, host=host)
    wire = sync.to_json(columns=True)
    assert len(json.dumps(wire, separators=(",", ":"))) < 2000
    assert SyncRequest.from_json(wire) == SyncRequest.from_json(sync.to_json()) == sync


def test_statuses_in_columns_are_read_as_strictly_as_one_by_one() -> None:
    def read(cards: Any) -> SyncRequest:
        return SyncRequest.from_json({"session": "s", "boot_id": "b", "seq": 1, "cards": cards})

    found = read({"uuid": ["A", "B"], "temp_c": [61, None], "throttle": [None, ["hw_thermal"]], "later": [1]})
    assert found.gpus == (GpuStatus(uuid="A", temp_c=61, throttle=None), GpuStatus(uuid="B", throttle=("hw_thermal",)))
    for cards, words in (
        ({"temp_c": [61]}, "uuid is missing"),
        ({"uuid": ["A", "B"], "temp_c": [61]}, "temp_c has 1 values"),
        ({"uuid": ["A"], "temp_c": ["61"]}, "temp_c[0] must be int"),
        ({"uuid": "A"}, "object of lists"),
        (["A"], "object of lists"),
    ):
        with pytest.raises(ProtocolError) as refused:
            read(cards)
        assert words in str(refused.value)


def test_what_a_job_can_reach_is_read_as_it_was_sent() -> None:
    sent = IsolationInfo(identity="same", uid=1000, account="ann", sandbox="mounts", open=("signals", "home"), limits={"pids": True})
    inventory = Inventory(hostname="gpu01", isolation=sent)
    assert Inventory.from_json(json.loads(json.dumps(inventory.to_json()))) == inventory
    assert Inventory.from_json({"hostname": "gpu01"}).isolation is None, "an older agent tells nothing"


# --- what is refused --------------------------------------------------------------------------------------------------

DEEP = "[" * 500 + "]" * 500


@pytest.mark.parametrize(
    "event",
    [
        '{"eid": 2, "kind": "xid", "at": 1e400}',
        '{"eid": 2, "kind": "xid", "at": 1' + "0" * 5000 + "}",
        '{"eid": 2, "kind": "xid", "at": NaN}',
        '{"eid": 2, "kind": "xid", "data": {"xid": NaN}}',
        '{"eid": 2, "kind": "xid", "data": {"xid": -Infinity}}',
        '{"eid": 2, "kind": "xid", "data": {"a": [{"b": 1e999}]}}',
        '{"eid": 2, "kind": "xid", "data": {"xid": 1' + "0" * 30 + "}}",
        '{"eid": 2, "kind": "xid", "data": {"deep": ' + DEEP + "}}",
        '{"eid": 2, "kind": 5}',
        '{"eid": 2}',
    ],
    ids=range(10),
)
def test_a_bad_event_stands_under_its_number_and_the_others_are_read(event: str) -> None:
    body = '{"session": "s", "boot_id": "b", "seq": 1, "events": [{"eid": 1, "kind": "xid"}, ' + event + ', {"eid": 3, "kind": "lost"}]}'
    found = SyncRequest.from_json(json_read(body.encode()))
    assert [(event.eid, event.kind) for event in found.events] == [(1, "xid"), (2, "bad_event"), (3, "lost")]
    assert found.events[1].data["problem"]


def test_a_bad_event_without_a_number_is_counted_and_not_acknowledged() -> None:
    assert [event.eid for event in events_read([None, 5, {"eid": "1", "kind": "x"}, {"eid": True, "kind": "x"}], "events")] == [-1] * 4


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"a": ' * 5000])
def test_what_is_no_json_is_one_error(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        json_read(body)


@pytest.mark.parametrize("field", ["host", "gpus", "cards", "observed", "sent_at"])
def test_a_figure_that_is_not_finite_is_refused_wherever_it_is(field: str) -> None:
    bad = {
        "host": '{"load1": NaN}',
        "gpus": '[{"uuid": "A", "temp_c": Infinity}]',
        "cards": '{"uuid": ["A"], "temp_c": [1e400]}',
        "observed": '[{"rank": "1.1.0", "epoch": 1, "state": "RUNNING", "started_at": NaN}]',
        "sent_at": "-Infinity",
    }[field]
    body = f'{{"session": "s", "boot_id": "b", "seq": 1, "{field}": {bad}}}'
    if field == "host":
        assert SyncRequest.from_json(json_read(body.encode())).host is not None  # a key that nobody knows is nobody's
    else:
        with pytest.raises(ProtocolError):
            SyncRequest.from_json(json_read(body.encode()))


def test_lists_that_no_machine_has_are_cut_and_a_complete_list_is_refused() -> None:
    many = [{"uuid": f"G{number}", "pid": 1, "user": "u", "command": "c"} for number in range(5000)]
    base = {"session": "s", "boot_id": "b", "seq": 1}
    cards = [{"uuid": f"G{n}", "index": n, "model": "m", "vendor": "nvidia"} for n in range(5000)]
    found = SyncRequest.from_json({**base, "gpus": [{"uuid": one["uuid"]} for one in many], "inventory": {"hostname": "h", "gpus": cards}})
    assert len(found.gpus) == 1024
    assert found.inventory is not None
    assert len(found.inventory.gpus) == 257
    assert len(SyncRequest.from_json({**base, "cards": {"uuid": [one["uuid"] for one in many]}}).gpus) == 1024
    assert len(SyncRequest.from_json({**base, "events": [{"eid": n, "kind": "x"} for n in range(900)]}).events) == 500
    with pytest.raises(ProtocolError, match="4097 ranks"):
        SyncRequest.from_json({**base, "observed": [{"rank": "1.1.0", "epoch": 1, "state": "RUNNING"}] * 4097})


_VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=20),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=8), inner, max_size=4),
    max_leaves=30,
)
_NAMES = some.sampled_from([*SyncRequest.__dataclass_fields__, "cards", "later"])
_EVENTS = some.fixed_dictionaries({}, optional={"eid": _VALUES, "kind": _VALUES, "gpu": _VALUES, "at": _VALUES, "data": _VALUES})


@given(some.dictionaries(_NAMES, _VALUES), some.lists(_EVENTS | _VALUES, max_size=6))
def test_whatever_comes_is_read_or_refused_with_one_error(message: dict[str, Any], events: list[Any]) -> None:
    body = json.dumps({"session": "s", "boot_id": "b", "seq": 1, "events": events, **message}).encode()
    try:
        found = SyncRequest.from_json(json_read(body))
    except ProtocolError:
        return
    # What was read can be written by the strictest of writers: nothing after the decoder can stumble over it.
    json.dumps(found.to_json(), allow_nan=False)


@given(some.lists(_EVENTS | _VALUES, max_size=8))
def test_no_event_refuses_a_sync(events: list[Any]) -> None:
    body = json.dumps({"session": "s", "boot_id": "b", "seq": 1, "events": events}).encode()
    found = SyncRequest.from_json(json_read(body))
    assert len(found.events) == len(events)
    json.dumps(found.to_json(), allow_nan=False)


def test_open_values_are_read_to_the_depth_that_is_stated() -> None:
    def nested(depth: int) -> Any:
        return [] if depth == 0 else [nested(depth - 1)]

    assert events_read([{"eid": 1, "kind": "x", "data": {"a": nested(DEPTH_MOST)}}], "events")[0].kind == "x"
    assert events_read([{"eid": 1, "kind": "x", "data": {"a": nested(DEPTH_MOST + 1)}}], "events")[0].kind == "bad_event"


def test_an_agents_own_infinity_goes_out_as_not_known() -> None:
    assert SyncRequest(session="s", boot_id="b", seq=1, sent_at=float("inf")).to_json()["sent_at"] is None


# --- the agent's side of events that are not understood -----------------------------------------------------------------


def _sync(*eids: int) -> SyncRequest:
    return SyncRequest(session="s", boot_id="b", seq=1, events=tuple(AgentEvent(eid=eid, kind="x") for eid in eids))


def test_of_many_events_the_one_that_is_not_understood_is_found_and_given_up() -> None:
    waiting, bad, refused = list(range(1, 301)), 137, 0
    window = EventWindow()
    for _ in range(200):
        sent = _sync(*waiting[: window.most])
        if any(event.eid == bad for event in sent.events):
            refused += 1
            window.refused(sent)
        else:
            gone = {event.eid for event in sent.events} | set(window.taken(sent))
            waiting = [eid for eid in waiting if eid not in gone]
        if not waiting:
            break
    assert waiting == []
    assert refused <= 20
    assert window.most == EVENTS_A_SYNC


def test_a_sync_that_is_refused_without_events_costs_no_event() -> None:
    window = EventWindow()
    for sent in (_sync(1, 2), _sync(1), _sync(), _sync(1)):
        window.refused(sent)
    assert window.taken(_sync(1)) == ()
