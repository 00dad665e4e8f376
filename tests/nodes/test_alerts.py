"""Looks at a pool with the rules that ship: episodes, who is told, what a restart changes, acknowledging and muting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from agent.protocol import GpuHealth, GpuStatus, HostStatus
from nodes import telemetry
from nodes.alert_words import alert_sentence, row_sentence, row_title, rule_text
from nodes.alerts import (
    TRACK_KEY,
    alert_acknowledge,
    alert_reopen,
    alerts_prune,
    alerts_tick,
    mute_create,
    mute_lift,
)
from nodes.doubts import doubt
from nodes.errors import AlertRefused
from nodes.models import Alert, AlertJob, AlertRule, Gpu, Node, NodeState
from quotas.models import AuditEntry, Notice
from quotas.notify import words
from tests.factories import alert_rules_ship, node_make, user_make

pytestmark = [pytest.mark.django_db, pytest.mark.redis]
T0 = 1_800_000_000.0
MIB = 10_000
WELL = {"used_mib": 1000, "util_pct": 50, "temp_c": 60, "power_w": 200}


class Lab:
    """Looks every minute, as seldom as counts as no pause; the node tells what the test says."""

    def __init__(self, live_redis: Any) -> None:
        alert_rules_ship()
        self.redis, self.turn, self.holders = live_redis, 0, []
        self.node: Node = node_make("n1", cards=1, mib=MIB)
        self.gpu: Gpu = self.node.gpus.get()
        self.staff = user_make("staff@lab.example", is_staff=True)

    @property
    def now(self) -> float:
        return T0 + 60 * self.turn

    def at(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    def look(
        self, *, for_s: int = 0, silent: bool = False, host: HostStatus | None = None, limit_w: int | None = None, **figures: Any
    ) -> int:
        """One look, and one each minute for so long; how many alerts changed."""
        changes = 0
        for _ in range(1 + for_s // 60):
            self.turn += 1
            if not silent:
                told = GpuStatus(uuid=self.gpu.uuid, **{**WELL, **figures})
                health = [GpuHealth(uuid=self.gpu.uuid, power_limit_w=limit_w)] if limit_w else ()
                telemetry.sync_store(
                    node_id=self.node.pk, session="s", seq=self.turn, at=self.now, statuses=[told], host=host, health=health
                )
            changes += alerts_tick(now=self.now, owners=lambda subject: self.holders if subject.startswith("gpu:") else ())
            assert alerts_tick(now=self.now + 5) == 0  # a second call within the step does nothing
        return changes

    def codes(self, **filters: Any) -> list[str]:
        return [row.rule.code for row in Alert.objects.filter(**filters).select_related("rule").order_by("pk")]


@pytest.fixture
def lab(live_redis: Any, published: Any) -> Lab:
    return Lab(live_redis)


def test_memory_that_stays_full_is_one_alert_and_one_notice(lab: Lab) -> None:
    lab.look(for_s=240, used_mib=9500)
    assert (lab.codes(), Notice.objects.count()) == ([], 0)
    lab.look(for_s=600, used_mib=9500)
    [alert] = Alert.objects.all()
    assert (alert.rule.code, alert.state, alert.level, alert.value, alert.node, alert.gpu) == (
        "memory-high",
        "OPEN",
        1,
        95.0,
        lab.node,
        lab.gpu,
    )
    assert row_title(alert) == "Memory nearly full: n1 gpu0"
    assert row_sentence(alert) == "95% of the memory of n1 gpu0 is used (limit 90%, for 5\u00a0min)."
    [notice] = Notice.objects.all()
    assert (notice.user, notice.kind, notice.path) == (lab.staff, "alert", f"/alerts/{alert.pk}/")


def test_a_card_that_a_job_has_to_itself_may_be_full(lab: Lab) -> None:
    Gpu.objects.update(is_exclusive=True, live_slices=1)
    lab.look(for_s=1800, used_mib=9900)
    assert "memory-high" not in lab.codes()
    Gpu.objects.update(is_exclusive=False)
    lab.look(for_s=1800, used_mib=9900)
    assert "memory-high" in lab.codes()
    Gpu.objects.update(is_exclusive=True)
    lab.look(for_s=600, used_mib=9900)
    assert "memory-high" not in lab.codes(state="OPEN")


def test_it_resolves_when_the_figure_is_back_and_a_new_one_is_a_new_episode(lab: Lab) -> None:
    lab.look(for_s=300, used_mib=9500)
    lab.look(for_s=60)
    [alert] = Alert.objects.all()
    assert (alert.state, alert.resolved_why, alert.resolved_at) == ("RESOLVED", "clear", lab.at())
    lab.look(for_s=1800)
    lab.look(for_s=300, used_mib=9600)
    assert [row.state for row in Alert.objects.order_by("pk")] == ["RESOLVED", "OPEN"]
    assert Notice.objects.count() == 2


def test_one_that_comes_and_goes_stays_one_episode_with_one_notice(lab: Lab) -> None:
    for _ in range(3):
        lab.look(for_s=300, used_mib=9500)
        lab.look(for_s=240)  # 60 s would do the first time, 120 and 240 s the next ones
    [alert] = Alert.objects.all()
    assert (alert.times, alert.state) == (3, "RESOLVED")
    assert Notice.objects.count() == 1


def test_what_the_hardware_does_not_tell_opens_nothing(lab: Lab) -> None:
    Gpu.objects.update(live_slices=1, held_mib=100)
    lab.look(for_s=900, used_mib=None, util_pct=None, temp_c=None, power_w=None)
    assert lab.codes() == []


def test_a_card_that_is_held_and_not_used_tells_its_jobs_owner(lab: Lab) -> None:
    owner = user_make()
    lab.holders = [(owner.pk, 42), (owner.pk, 43)]
    lab.look(for_s=900, util_pct=3)
    assert lab.codes() == []  # nobody holds it
    Gpu.objects.update(live_slices=1, held_mib=100)
    lab.look(for_s=600, util_pct=3)
    [alert] = Alert.objects.all()
    assert alert.rule.code == "held-idle"
    assert sorted(AlertJob.objects.values_list("user", "job")) == [(owner.pk, 42), (owner.pk, 43)]
    assert set(Notice.objects.values_list("user", flat=True)) == {owner.pk, lab.staff.pk}
    Gpu.objects.update(live_slices=0, held_mib=0)
    lab.look(util_pct=3)
    alert.refresh_from_db()
    assert (alert.state, alert.resolved_why) == ("RESOLVED", "gone")


def test_heat_is_a_warning_and_then_critical_and_told_once_each(lab: Lab) -> None:
    lab.look(for_s=120, temp_c=86)
    lab.look(for_s=600, temp_c=93)
    [alert] = Alert.objects.filter(rule__code="hot")
    assert (alert.level, alert.peak) == (2, 93.0)
    assert list(Notice.objects.filter(key__startswith=f"alert:{alert.pk}:").order_by("pk").values_list("kind", flat=True)) == [
        "alert",
        "alert_critical",
    ]


def test_a_card_that_warms_up_fast_is_told_before_it_is_too_hot(lab: Lab) -> None:
    AlertRule.objects.filter(code="getting-hot").update(warning=88)
    for temp in (76, 76, 77, 78, 78, 79, 80, 80, 81, 82, 82):
        lab.look(temp_c=temp)
    assert lab.codes() == []  # too few readings to tell
    for temp in (83, 84, 84):
        lab.look(temp_c=temp)
    assert lab.codes() == ["getting-hot"]
    lab.look(for_s=1200, temp_c=82)  # it goes no further
    assert lab.codes(state="OPEN") == []


def test_full_memory_with_idle_tensor_units_is_told_where_the_hardware_tells_them(lab: Lab) -> None:
    AlertRule.objects.filter(code="memory-high").update(is_enabled=False)
    lab.look(for_s=900, used_mib=9500)
    assert lab.codes() == []
    lab.look(for_s=600, used_mib=9500, tensor_pct=4)
    assert lab.codes() == ["tensor-idle"]
    assert "its tensor units are used to 4%" in row_sentence(Alert.objects.get())


def test_power_near_its_limit_and_without_a_known_limit(lab: Lab) -> None:
    lab.look(for_s=900, power_w=449)
    assert lab.codes() == []
    lab.look(limit_w=450, power_w=449)
    lab.look(for_s=600, power_w=449, limit_w=450)
    assert lab.codes() == ["power-limit"]


def test_a_disk_that_fills_up(lab: Lab) -> None:
    lab.look(for_s=120, host=HostStatus(disk_free_mib=900, disk_total_mib=10_000))
    assert lab.codes() == ["disk-low"]
    lab.look(for_s=60, host=HostStatus(disk_free_mib=400, disk_total_mib=10_000))
    assert Alert.objects.get().level == 2
    lab.look(for_s=600, host=HostStatus(disk_free_mib=None, disk_total_mib=10_000))
    assert lab.codes(state="OPEN") == ["disk-low"]


def test_a_card_that_its_node_tells_nothing_of(lab: Lab) -> None:
    lab.look(for_s=60, used_mib=None, util_pct=None, temp_c=None, power_w=None, error="unresponsive")
    assert lab.codes() == ["card-untold"]
    assert row_sentence(Alert.objects.get()) == "n1 reports, but tells no figures of n1 gpu0 (for 1\u00a0min)."


def test_a_silent_node_is_one_alert_and_its_cards_are_none(lab: Lab) -> None:
    for n in range(3):
        node_make(f"m{n}", cards=1)
    lab.look(for_s=60)
    Node.objects.filter(pk=lab.node.pk).update(state=NodeState.UNKNOWN)
    lab.look(silent=True)
    assert lab.codes() == []
    lab.look(silent=True)
    assert lab.codes() == ["node-silent"]
    assert Alert.objects.get().level == 1
    Node.objects.filter(pk=lab.node.pk).update(state=NodeState.DOWN)
    lab.look(for_s=60, silent=True)
    assert Alert.objects.get().level == 2
    Node.objects.filter(pk=lab.node.pk).update(state=NodeState.READY)
    lab.look(for_s=60)
    assert lab.codes(state="OPEN") == []


def test_with_most_nodes_silent_it_is_one_alert_about_all(lab: Lab) -> None:
    for n in range(5):
        node_make(f"m{n}")
    Node.objects.filter(name__startswith="m").update(state=NodeState.UNKNOWN)
    lab.look(for_s=120)
    assert lab.codes() == ["nodes-silent"]
    assert row_sentence(Alert.objects.get()) == "83% of the nodes are not heard of (limit 50%)."


def test_a_node_that_was_retired_takes_its_alerts_along(lab: Lab) -> None:
    lab.look(for_s=300, used_mib=9500)
    Node.objects.update(state=NodeState.RETIRED)
    lab.look(silent=True)
    assert Alert.objects.get().resolved_why == "gone"


# --- what a restart changes ------------------------------------------------------------------------------------------------


def test_times_go_on_through_a_restart_of_the_worker(lab: Lab) -> None:
    lab.look(for_s=150, used_mib=9500)  # nothing of it is in this process: the next look reads it from Redis
    assert lab.redis.hlen(TRACK_KEY) == 1
    lab.look(for_s=150, used_mib=9500)
    assert lab.codes() == ["memory-high"]


def test_an_emptied_redis_neither_repeats_nor_ends_what_is_open(lab: Lab) -> None:
    lab.look(for_s=300, used_mib=9500)
    lab.redis.flushdb()
    lab.look(for_s=600, used_mib=9500)
    assert ([row.state for row in Alert.objects.all()], Notice.objects.count()) == (["OPEN"], 1)
    lab.look(for_s=60)
    assert Alert.objects.get().state == "RESOLVED"


def test_with_redis_away_nothing_is_judged(lab: Lab, settings: Any) -> None:
    lab.look(for_s=300, used_mib=9500)
    settings.LIVE_REDIS_URL = "unix:///nonexistent/redis.sock"
    lab.turn += 100
    assert alerts_tick(now=lab.now) == 0
    assert Alert.objects.get().state == "OPEN"


def test_a_pause_of_the_worker_opens_nothing(lab: Lab) -> None:
    lab.look(for_s=60, used_mib=9500)
    lab.turn += 100
    lab.look(used_mib=9500)
    assert lab.codes() == []


def test_memory_of_another_version_is_left_aside(lab: Lab) -> None:
    rule = AlertRule.objects.get(code="memory-high")
    lab.redis.hset(TRACK_KEY, f"{rule.pk}|gpu:{lab.gpu.pk}", '{"version": 9}')
    lab.look(for_s=300, used_mib=9500)
    assert lab.codes() == ["memory-high"]


# --- rules are data --------------------------------------------------------------------------------------------------------


def test_a_changed_rule_holds_from_the_next_look_on(lab: Lab) -> None:
    AlertRule.objects.filter(code="memory-high").update(warning=None, critical=50, for_s=0, title="Half full")
    lab.look(used_mib=5100)
    [alert] = Alert.objects.all()
    assert (alert.level, row_title(alert)) == (2, "Half full: n1 gpu0")


def test_a_rule_that_is_switched_off_ends_its_alerts(lab: Lab) -> None:
    lab.look(for_s=300, used_mib=9500)
    AlertRule.objects.update(is_enabled=False)
    lab.look(used_mib=9500)
    assert Alert.objects.get().resolved_why == "rule_off"
    AlertRule.objects.all().delete()
    assert Alert.objects.count() == 1  # what happened stays


def test_a_rule_of_a_figure_that_is_no_more_ends_its_alerts(lab: Lab) -> None:
    lab.look(for_s=300, used_mib=9500)
    AlertRule.objects.filter(code="memory-high").update(metric="of_another_version")
    lab.look(used_mib=9500)
    assert Alert.objects.get().resolved_why == "rule_off"


def test_a_rule_without_a_threshold_is_none() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        AlertRule.objects.create(code="odd", metric="temp_c")


def test_a_rule_in_words() -> None:
    alert_rules_ship()
    assert rule_text(AlertRule.objects.get(code="hot")) == "at least 85\u00a0°C; critical: at least 92\u00a0°C, for 2\u00a0min"


# --- what staff do -----------------------------------------------------------------------------------------------------------


def test_acknowledging_is_once_written_down_and_can_be_taken_back(lab: Lab) -> None:
    lab.look(for_s=300, used_mib=9500)
    [alert] = Alert.objects.all()
    other = user_make(is_staff=True)
    alert_acknowledge(alert=alert, by=lab.staff, note="on my way")
    alert_acknowledge(alert=alert, by=other)
    alert.refresh_from_db()
    assert (alert.state, alert.acked_by, alert.note) == ("ACKNOWLEDGED", lab.staff, "on my way")
    assert AuditEntry.objects.filter(action="alert.acknowledged").count() == 1
    alert_reopen(alert=alert, by=other)
    assert (alert.state, alert.acked_by) == ("OPEN", None)
    with pytest.raises(AlertRefused, match="alert_note"):
        alert_acknowledge(alert=alert, by=other, note="x" * 201)


def test_an_acknowledged_alert_still_resolves_and_then_nobody_can_acknowledge_it(lab: Lab) -> None:
    lab.look(for_s=300, used_mib=9500)
    alert_acknowledge(alert=Alert.objects.get(), by=lab.staff)
    lab.look(for_s=60)
    with pytest.raises(AlertRefused, match="alert_resolved"):
        alert_acknowledge(alert=Alert.objects.get(), by=lab.staff)


@pytest.mark.parametrize("what", ["rule", "node", "gpu"])
def test_a_mute_keeps_people_quiet_until_its_end_and_not_the_page(lab: Lab, what: str) -> None:
    named = {"rule": AlertRule.objects.get(code="memory-high"), "node": lab.node, "gpu": lab.gpu}[what]
    mute_create(by=lab.staff, reason="a known job", until=lab.at() + timedelta(minutes=30), now=lab.at(), **{what: named})
    lab.look(for_s=1200, used_mib=9500)
    assert (lab.codes(), Notice.objects.count()) == (["memory-high"], 0)
    lab.look(for_s=900, used_mib=9500)
    assert Notice.objects.count() == 1  # it is over, and the alert is still open


def test_a_mute_of_something_else_changes_nothing(lab: Lab) -> None:
    other = node_make("n2", cards=1)
    mute_create(by=lab.staff, reason="x", node=other)
    mute_create(by=lab.staff, reason="x", rule=AlertRule.objects.get(code="memory-high"), gpu=other.gpus.get())
    lab.look(for_s=300, used_mib=9500)
    assert Notice.objects.count() == 1


def test_a_lifted_mute_tells_of_what_is_open(lab: Lab) -> None:
    mute = mute_create(by=lab.staff, reason="x", node=lab.node)
    lab.look(for_s=300, used_mib=9500)
    assert Notice.objects.count() == 0
    mute_lift(mute=mute, by=lab.staff)
    lab.look(used_mib=9500)
    assert Notice.objects.count() == 1
    assert list(AuditEntry.objects.filter(action__startswith="alert").order_by("pk").values_list("action", flat=True)) == [
        "alert.muted",
        "alert.unmuted",
    ]


@pytest.mark.parametrize(
    ("code", "wish"),
    [
        ("mute_reason", {"reason": "  "}),
        ("mute_reason", {"reason": "x" * 201}),
        ("mute_of_nothing", {"node": None}),
        ("mute_until_past", {"until": datetime(2020, 1, 1, tzinfo=UTC)}),
    ],
)
def test_a_mute_that_makes_no_sense_is_refused_with_a_sentence(lab: Lab, code: str, wish: dict[str, Any]) -> None:
    with pytest.raises(AlertRefused) as caught:
        mute_create(**{"by": lab.staff, "reason": "x", "node": lab.node, **wish})
    assert caught.value.code == code
    assert caught.value.message


def test_many_at_once_are_one_message_to_staff_and_one_to_each_owner(lab: Lab) -> None:
    ada, bob = user_make(), user_make()
    lab.holders = [(ada.pk, 42)]
    AlertRule.objects.filter(code="hot").update(tells_owner=True)
    node = node_make("rack", cards=7, mib=MIB)
    hot = [GpuStatus(uuid=gpu.uuid, **{**WELL, "temp_c": 90}) for gpu in node.gpus.all()]
    for _ in range(4):
        telemetry.sync_store(node_id=node.pk, session="s", seq=1, at=lab.now + 60, statuses=hot)
        lab.look()
    assert lab.codes() == ["hot"] * 7
    assert sorted(Notice.objects.values_list("user", "kind")) == sorted([(lab.staff.pk, "alert_many"), (ada.pk, "alert_many")])
    title, text, _kind = words(Notice.objects.filter(user=ada).get())
    assert title == "Warning · Hot ×7"
    assert text.startswith("rack gpu0, rack gpu1, ")
    assert bob.notices.count() == 0


# --- what it costs ------------------------------------------------------------------------------------------------------------


def test_a_look_without_news_costs_few_statements_however_large_the_pool(lab: Lab) -> None:
    with CaptureQueriesContext(connection) as one:
        lab.look()
    for n in range(20):
        node_make(f"m{n}", cards=4)
    with CaptureQueriesContext(connection) as many:
        lab.look()
    assert len(one) == len(many) == 5


def test_old_alerts_go(lab: Lab) -> None:
    lab.look(for_s=300, used_mib=9500)
    lab.look(for_s=60)
    assert alerts_prune(now=lab.at() + timedelta(days=89)) == 0
    assert alerts_prune(now=lab.at() + timedelta(days=91)) == 1


def test_a_figure_just_past_its_limit_does_not_read_as_the_limit() -> None:
    params = {"limit": 90.0, "for_s": 300, "place": "node01 gpu0"}
    assert alert_sentence("memory_pct", 90.4, params).startswith("90.4% of the memory of node01 gpu0 is used (limit 90%")
    assert alert_sentence("memory_pct", 93.2, params).startswith("93% of the memory")


def test_a_clock_that_is_wrong_and_a_node_that_is_doubted_are_alerts(lab: Lab) -> None:
    for turn in range(4):
        lab.turn += 1
        telemetry.sync_store(node_id=lab.node.pk, session="s", seq=1000 + turn, at=lab.now, statuses=[], skew_s=-45.0)
        if turn == 1:
            doubt(lab.node.pk, "second_session", now=lab.at())
        alerts_tick(now=lab.now)
    alerts = {row.metric: row for row in Alert.objects.filter(metric__in=("clock_skew_s", "node_doubted"))}
    assert (alerts["clock_skew_s"].level, alerts["node_doubted"].level) == (1, 2)
    assert "differs by 45" in row_sentence(alerts["clock_skew_s"])
    lab.look(for_s=1200)
    assert Alert.objects.get(pk=alerts["node_doubted"].pk).state == "RESOLVED"


def test_a_node_that_was_taken_out_of_service_by_itself_is_an_alert_until_it_is_back(lab: Lab) -> None:
    for reason, is_told in (("launches_failed", True), ("disk_full", True), ("new fans", False)):
        Node.objects.filter(pk=lab.node.pk).update(cordoned=True, cordon_reason=reason)
        lab.look(for_s=60)
        found = Alert.objects.filter(metric="node_spoils", state="OPEN")
        assert [row.level for row in found] == ([1] if is_told else []), reason
        if is_told:
            assert "n1 takes no new work" in row_sentence(found[0])
        Node.objects.filter(pk=lab.node.pk).update(cordoned=False, cordon_reason="")
        lab.look(for_s=120)
        assert not Alert.objects.filter(metric="node_spoils", state="OPEN").exists()
