"""Alerts over REST: who sees which, filters, and what staff do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from nodes.alerts import mute_create
from nodes.models import Alert, AlertJob, AlertMute, AlertRule
from quotas.models import User
from tests.factories import alert_rules_ship, node_make, user_make
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff() -> User:
    return user_make("staff@lab.example", is_staff=True)


def alert_make(metric: str = "temp_c", subject: str = "gpu:1", **fields: Any) -> Alert:
    rule = AlertRule.objects.filter(metric=metric).first()
    params = {"place": "n1 gpu0", "node": "n1", "limit": 85, "for_s": 120, **fields.pop("params", {})}
    return Alert.objects.create(rule=rule, metric=metric, subject=subject, value=87.0, peak=87.0, params=params, **fields)


def resolved(**fields: Any) -> Alert:
    return alert_make(state="RESOLVED", resolved_at=timezone.now(), resolved_why="clear", **fields)


def ids(answer: tuple[int, Any]) -> list[int]:
    assert answer[0] == 200, answer
    return [row["id"] for row in answer[1]["results"]]


def test_staff_see_all_and_others_what_is_about_their_jobs(staff: User) -> None:
    ada, bob = user_make(), user_make()
    mine, both, nobodys = (alert_make(subject=f"gpu:{n}") for n in range(3))
    AlertJob.objects.create(alert=mine, user=ada, job=1)
    AlertJob.objects.create(alert=both, user=ada, job=2)
    AlertJob.objects.create(alert=both, user=bob, job=3)
    assert ids(Api(staff).get("/alerts/")) == [nobodys.pk, both.pk, mine.pk]
    assert ids(Api(ada).get("/alerts/")) == [both.pk, mine.pk]
    assert Api(ada).get(f"/alerts/{nobodys.pk}")[0] == 404
    # Whose other programs are on the card is not for everybody who has one there.
    assert Api(bob).get(f"/alerts/{both.pk}")[1]["jobs"] == [3]
    assert Api(staff).get(f"/alerts/{both.pk}")[1]["jobs"] == [2, 3]


def test_open_ones_come_first_then_the_weightier_then_the_later(staff: User) -> None:
    alert_rules_ship()
    over = resolved(subject="gpu:1")
    acked = alert_make(subject="gpu:2", state="ACKNOWLEDGED", level=2)
    old, late = alert_make(subject="gpu:3"), alert_make(subject="gpu:4")
    bad = alert_make(subject="gpu:5", level=2)
    api = Api(staff)
    assert ids(api.get("/alerts/")) == [bad.pk, late.pk, old.pk, acked.pk]
    assert ids(api.get("/alerts/", state="all")) == [bad.pk, late.pk, old.pk, acked.pk, over.pk]
    assert ids(api.get("/alerts/", state="resolved")) == [over.pk]
    assert ids(api.get("/alerts/", level="critical")) == [bad.pk, acked.pk]
    assert ids(api.get("/alerts/", rule="hot", state="open")) == [bad.pk, late.pk, old.pk]
    assert ids(api.get("/alerts/", node="n9")) == []


@pytest.mark.parametrize("query", [{"state": "odd"}, {"level": "odd"}])
def test_a_filter_that_is_none_is_refused_with_those_that_are(staff: User, query: dict[str, str]) -> None:
    status, body = Api(staff).get("/alerts/", **query)
    assert status == 400
    assert "Must be one of" in body["message"]


def test_an_alert_in_words_of_the_readers_language(staff: User) -> None:
    alert = alert_make()
    body = Api(staff).get(f"/alerts/{alert.pk}")[1]
    assert (body["title"], body["text"]) == ("Hot: n1 gpu0", "n1 gpu0 is at 87\u00a0°C (limit 85\u00a0°C, for 2\u00a0min).")
    chinese = Api(staff, **{"Accept-Language": "zh-hans"}).get(f"/alerts/{alert.pk}")[1]
    assert chinese["text"] == "n1 gpu0 温度 87\u00a0°C（阈值 85\u00a0°C，持续 2\u00a0分）。"


def test_acknowledging_and_taking_it_back(staff: User) -> None:
    alert = alert_make()
    status, body = Api(staff).post(f"/alerts/{alert.pk}/acknowledge", {"note": "on my way"})
    assert (status, body["state"], body["acked_by"], body["note"]) == (200, "ACKNOWLEDGED", "staff@lab.example", "on my way")
    assert Api(staff).post(f"/alerts/{alert.pk}/reopen")[1]["state"] == "OPEN"
    status, body = Api(staff).post(f"/alerts/{resolved(subject='gpu:9').pk}/acknowledge", {})
    assert (status, body["code"]) == (409, "alert_resolved")


def test_muting_a_card_for_a_time_and_lifting_it(staff: User) -> None:
    alert_rules_ship()
    node = node_make("n1", cards=1)
    gpu = node.gpus.get()
    alert = alert_make(subject=f"gpu:{gpu.pk}", node=node, gpu=gpu)
    api = Api(staff)
    status, mute = api.post("/alerts/mutes/", {"gpu": gpu.uuid, "rule": "hot", "for_s": 3600, "reason": "a known job"})
    assert (status, mute["text"], mute["active"], mute["node"]) == (201, "Hot · n1 gpu0", True, "n1")
    assert timedelta(minutes=59) < AlertMute.objects.get().until - timezone.now() <= timedelta(hours=1)
    assert api.get(f"/alerts/{alert.pk}")[1]["muted"] is True
    assert api.post(f"/alerts/mutes/{mute['id']}/lift")[1]["active"] is False
    assert api.get(f"/alerts/{alert.pk}")[1]["muted"] is False
    assert api.get("/alerts/mutes/")[1]["count"] == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"reason": "x"}, 400),
        ({"reason": "x", "node": "nowhere"}, 404),
        ({"reason": "x", "rule": "nothing"}, 404),
        ({"node": "n1"}, 400),
        ({"reason": "x", "node": "n1", "until": "2020-01-01T00:00:00Z"}, 400),
        ({"reason": "x", "node": "n1", "unitl": "2020-01-01T00:00:00Z"}, 400),
        ({"reason": "x", "node": "n1", "for_s": 5}, 400),
    ],
)
def test_a_mute_that_makes_no_sense_is_refused(staff: User, body: dict[str, Any], status: int) -> None:
    node_make("n1")
    answer = Api(staff).post("/alerts/mutes/", body)
    assert (answer[0], AlertMute.objects.count()) == (status, 0)
    assert answer[1]["message"]


def test_the_rules_are_told_in_words(staff: User) -> None:
    alert_rules_ship()
    rows = {row["code"]: row for row in Api(staff).get("/alerts/rules")[1]["results"]}
    assert rows["disk-low"]["text"] == "less than 10%; critical: less than 5%, for 1\u00a0min"
    assert (rows["memory-high"]["title"], rows["memory-high"]["tells_owner"]) == ("Memory nearly full", True)


def test_a_list_costs_the_same_however_long(staff: User) -> None:
    node = node_make("n1", cards=1)
    mute_create(by=staff, reason="x", node=node)
    counts = []
    for n in range(2):
        for m in range(1 + 10 * n):
            AlertJob.objects.create(alert=alert_make(subject=f"gpu:{n}{m}", node=node), user=staff, job=m)
        api = Api(staff)
        with CaptureQueriesContext(connection) as queries:
            api.get("/alerts/")
        counts.append(len(queries))
    assert counts[0] == counts[1]
