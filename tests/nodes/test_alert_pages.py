"""The pages of alerts and of mutes: what who sees, forms without a script, both languages, a constant number of queries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from nodes.alerts import mute_create
from nodes.models import Alert, AlertJob, AlertMute, AlertRule
from quotas.models import User
from tests.factories import alert_rules_ship, node_make, user_make
from tests.rest import no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff() -> User:
    alert_rules_ship()
    return user_make("boss@lab.example", is_staff=True)


def page(user: User, **headers: str) -> Client:
    client = Client(headers=headers)
    client.force_login(user, backend="allauth.account.auth_backends.AuthenticationBackend")
    return client


def alert_make(**fields: Any) -> Alert:
    params = {"place": "n1 gpu0", "node": "n1", "limit": 85, "for_s": 120, **fields.pop("params", {})}
    return Alert.objects.create(
        **{"rule": AlertRule.objects.get(code="hot"), "metric": "temp_c", "subject": "gpu:1", "value": 87.0, "params": params, **fields}
    )


def test_the_list_shows_what_is_open_and_how_to_act(staff: User) -> None:
    node = node_make("n1", cards=1)
    alert = alert_make(node=node, gpu=node.gpus.get(), times=3)
    text = page(staff).get("/alerts/").content.decode()
    assert "n1 gpu0 is at 87\u00a0°C (limit 85\u00a0°C, for 2\u00a0min)." in text
    assert f'action="/alerts/{alert.pk}/acknowledge/"' in text
    assert "came 3 times" in text
    assert "pool:alerts from:body" in text


def test_a_stranger_sees_an_empty_page_and_an_owner_only_what_is_his(staff: User) -> None:
    ada = user_make()
    mine, other = alert_make(), alert_make(subject="gpu:2", params={"place": "n9 gpu9"})
    AlertJob.objects.create(alert=mine, user=ada, job=42)
    text = page(ada).get("/alerts/").content.decode()
    assert "n1 gpu0" in text
    assert "#42" in text
    assert "n9 gpu9" not in text
    assert "acknowledge" not in text
    assert page(ada).get(f"/alerts/{mine.pk}/").status_code == 200
    assert page(ada).get(f"/alerts/{other.pk}/").status_code == 404
    assert "No alert is open." in page(user_make()).get("/alerts/").content.decode()


def test_users_text_is_data(staff: User) -> None:
    alert = alert_make(params={"place": "<script>alert(1)</script>", "title": "<b>hot</b>"}, note="<i>note</i>", acked_at=timezone.now())
    for address in ("/alerts/", f"/alerts/{alert.pk}/"):
        text = page(staff).get(address).content.decode()
        assert "<script>alert(1)" not in text
        assert "<b>hot</b>" not in text
        assert "<i>note" not in text


def test_acknowledging_from_the_list_comes_back_to_it(staff: User) -> None:
    alert = alert_make()
    answer = page(staff).post(f"/alerts/{alert.pk}/acknowledge/", {"list": "?level=warning"})
    assert (answer.status_code, answer["Location"]) == (302, "/alerts/?level=warning")
    answer = page(staff).post(f"/alerts/{alert.pk}/acknowledge/", {"list": "//evil.example/"})
    assert answer["Location"] == f"/alerts/{alert.pk}/"
    alert.refresh_from_db()
    assert (alert.state, alert.acked_by) == ("ACKNOWLEDGED", staff)
    page(staff).post(f"/alerts/{alert.pk}/reopen/")
    alert.refresh_from_db()
    assert alert.state == "OPEN"
    Alert.objects.update(state="RESOLVED", resolved_at=timezone.now(), resolved_why="clear")
    answer = page(staff).post(f"/alerts/{alert.pk}/acknowledge/")
    assert answer.status_code == 400
    assert "nothing to acknowledge any more" in answer.content.decode()


def test_filters_that_make_no_sense_show_the_open_ones(staff: User) -> None:
    alert_make()
    for query in ("?state=odd", "?level=odd", "?rule=odd", "?page=99", "?node=%00x"):
        assert page(staff).get(f"/alerts/{query}").status_code in (200, 400)
    assert "No alert matches." in page(staff).get("/alerts/?rule=disk-low").content.decode()


def test_a_mute_is_made_for_a_card_by_its_index_and_lifted(staff: User) -> None:
    node = node_make("n1", cards=2)
    form = page(staff).get("/alerts/mutes/?node=n1&gpu=1").content.decode()
    assert "<option selected>n1</option>" in form
    answer = page(staff).post("/alerts/mutes/", {"node": "n1", "gpu": "1", "rule": "", "hours": "4", "reason": "new paste"})
    assert answer.status_code == 302
    mute = AlertMute.objects.get()
    assert (mute.gpu, mute.node, mute.by) == (node.gpus.get(index=1), node, staff)
    assert timedelta(hours=3) < mute.until - timezone.now() <= timedelta(hours=4)
    text = page(staff).get("/alerts/mutes/").content.decode()
    assert "all rules · n1 gpu1" in text
    page(staff).post(f"/alerts/mutes/{mute.pk}/lift/")
    mute.refresh_from_db()
    assert mute.lifted_by == staff


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"reason": "x"}, "Name what to mute"),
        ({"node": "n1", "reason": ""}, "Say why nobody is to be told"),
        ({"node": "nowhere", "reason": "x"}, "There is nothing called nowhere."),
        ({"node": "n1", "gpu": "7", "reason": "x"}, "There is nothing called 7."),
        ({"gpu": "abc", "reason": "x"}, "There is nothing called abc."),
    ],
)
def test_a_mute_that_makes_no_sense_keeps_what_was_written(staff: User, form: dict[str, str], text: str) -> None:
    node_make("n1", cards=1)
    answer = page(staff).post("/alerts/mutes/", {"hours": "24", **form})
    assert answer.status_code == 400
    assert text in answer.content.decode()
    assert '<option value="24" selected>' in answer.content.decode()
    assert not AlertMute.objects.exists()


def test_a_muted_alert_says_so(staff: User) -> None:
    node = node_make("n1", cards=1)
    alert = alert_make(node=node)
    mute_create(by=staff, reason="new paste", node=node)
    assert "muted" in page(staff).get("/alerts/").content.decode()
    assert "new paste" in page(staff).get(f"/alerts/{alert.pk}/").content.decode()


def test_in_chinese(staff: User) -> None:
    alert = alert_make()
    text = page(staff, **{"Accept-Language": "zh-hans"}).get(f"/alerts/{alert.pk}/").content.decode()
    assert "n1 gpu0 温度 87\u00a0°C（阈值 85\u00a0°C，持续 2\u00a0分）。" in text
    for english in ("Opened", "Acknowledge<", "I look after it", "Rule<"):
        assert english not in text


def test_the_list_costs_the_same_however_long(staff: User) -> None:
    node = node_make("n1", cards=1)
    mute_create(by=staff, reason="x", node=node)
    counts = []
    for n in range(2):
        for m in range(1 + 10 * n):
            AlertJob.objects.create(alert=alert_make(subject=f"gpu:{n}{m}", node=node, gpu=node.gpus.get()), user=staff, job=m)
        client = page(staff)
        with CaptureQueriesContext(connection) as queries:
            client.get("/alerts/")
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_a_rule_is_edited_in_the_administration_and_nonsense_is_told(staff: User) -> None:
    User.objects.filter(pk=staff.pk).update(is_superuser=True)
    rule, client = AlertRule.objects.get(code="hot"), page(staff)
    form = {"code": "hot", "title": "", "metric": "temp_c", "op": "ge", "for_s": "60", "clear_by": "5", "clear_s": "60", "is_enabled": "on"}
    address = f"/admin/nodes/alertrule/{rule.pk}/change/"
    assert client.get("/admin/nodes/alertrule/").status_code == 200
    assert client.post(address, {**form, "warning": "80", "critical": "90"}).status_code == 302
    rule.refresh_from_db()
    assert (rule.warning, rule.for_s) == (80.0, 60)
    assert "further off" in client.post(address, {**form, "warning": "80", "critical": "70"}).content.decode()
    assert "at least one" in client.post(address, form).content.decode()
