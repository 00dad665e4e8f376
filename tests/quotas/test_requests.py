"""Asking for more: who may ask, pass on, grant; a grant raises the limit at once and ends by itself."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from quotas.caps import BadCaps, caps_parse, caps_sum, caps_text
from quotas.errors import BadValue, QuotaExceeded
from quotas.links import link_open
from quotas.models import AuditEntry, Membership, Notice, Project, Quota, QuotaRequest, QuotaRequestEvent, User
from quotas.notify import message_of, words
from quotas.quota_notices import limits_tell
from quotas.requests import (
    NotOpen,
    NotYours,
    approvers_of,
    grant_end,
    grants_expire,
    may_decide,
    request_approve,
    request_decline,
    request_make,
    request_withdraw,
    requests_to_decide,
    requests_visible_to,
)
from quotas.selectors import quota_view, standing_of
from quotas.services import quota_for, quota_job_admit
from quotas.tokens import token_create
from tests.factories import project_make, user_make
from tests.rest import Api, no_redis  # noqa: F401
from tests.threads import in_threads

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
WHY = "Rebuttal experiments, 3 ablations of 40 GPU-hours each."


@pytest.fixture
def lin() -> User:
    """At her limit of five GPU-hours."""
    return user_make("lin@lab.example", quota={"gpu_hours": 5, "used_gpu_s": 5 * 3600, "period_start": date(2026, 3, 1)})


@pytest.fixture
def admin() -> User:
    return user_make("admin@lab.example", is_staff=True)


def asked(by: User, **more: Any) -> QuotaRequest:
    return request_make(**{"by": by, "what": "gpu_hours", "amount": 10, "why": WHY, "now": NOW, **more})


def led_project(lin: User) -> tuple[Project, User]:
    project, lead = project_make("nlp"), user_make("lead@lab.example")
    Membership.objects.create(project=project, user=lead, role=Membership.Role.LEAD)
    Membership.objects.create(project=project, user=lin)
    return project, lead


def test_an_approved_request_admits_at_once_and_ends_by_itself(lin: User, admin: User) -> None:
    with pytest.raises(QuotaExceeded):
        quota_job_admit(user=lin.pk, now=NOW)
    request = asked(lin)
    assert (request.state, request.until) == ("admin", datetime(2026, 4, 1, tzinfo=UTC))  # the month's end
    request_approve(request=request, by=admin, now=NOW, amount=1, until=NOW + timedelta(days=2))
    quota_job_admit(user=lin.pk, now=NOW)
    assert quota_view(lin, now=NOW).gpu_hours == 6  # 5 + 1
    assert standing_of(users=[lin.pk], projects=[], now=NOW).over_users == {}
    later = NOW + timedelta(days=2)
    with pytest.raises(QuotaExceeded) as caught:
        quota_job_admit(user=lin.pk, now=later)
    assert caught.value.limit == 5
    request.refresh_from_db()
    assert request.state == "ended"


def test_what_has_run_out_is_taken_back_without_anybody_asking(lin: User, admin: User) -> None:
    first = request_approve(request=asked(lin), by=admin, now=NOW, until=NOW + timedelta(days=1))
    request_approve(request=asked(lin), by=admin, now=NOW, amount=3, until=NOW + timedelta(days=9))
    assert quota_for(lin, now=NOW).gpu_hours_limit == 18  # 5 + 10 + 3
    assert grants_expire(now=NOW + timedelta(hours=23)) == 0
    assert grants_expire(now=NOW + timedelta(days=1)) == 1
    quota = Quota.objects.get(user=lin)
    assert (quota.gpu_hours_limit, quota.extras_until) == (8, NOW + timedelta(days=9))
    first.refresh_from_db()
    assert first.state == "ended"


def test_a_lead_passes_on_and_an_admin_grants(lin: User, admin: User) -> None:
    project, lead = led_project(lin)
    request = asked(lin, project=project)
    assert (request.state, approvers_of(request)) == ("lead", [lead])
    assert [may_decide(request, user) for user in (lin, lead, admin, user_make())] == [False, True, True, False]
    request_approve(request=request, by=lead, now=NOW, note="She needs it.")
    assert (request.state, approvers_of(request)) == ("admin", [admin])
    assert Quota.objects.get(user=lin).extra_gpu_hours == 0
    with pytest.raises(NotYours):
        request_approve(request=request, by=lead, now=NOW)
    request_approve(request=request, by=admin, now=NOW)
    steps = QuotaRequestEvent.objects.filter(request=request).values_list("code", "by__email", "amount", "text")
    assert list(steps) == [
        ("asked", "lin@lab.example", 10, WHY),
        ("passed", "lead@lab.example", None, "She needs it."),
        ("approved", "admin@lab.example", 10, ""),
    ]


def test_a_lead_asks_for_the_whole_project_and_for_himself_straight_to_the_admins(lin: User) -> None:
    project, lead = led_project(lin)
    Quota.objects.create(project=project, gpu_hours=100, period_start=date(2026, 3, 1))
    assert asked(lead, project=project).state == "admin"
    request = asked(lead, project=project, of_project=True)
    assert (request.quota.project, request.state) == (project, "admin")
    with pytest.raises(BadValue) as caught:
        asked(lin, project=project, of_project=True)
    assert caught.value.code == "request_lead_only"


def test_a_decided_request_is_decided_for_good(lin: User, admin: User) -> None:
    request = request_decline(request=asked(lin), by=admin, now=NOW, note="Use the sweep limit first.")
    for act in (request_approve, request_decline):
        with pytest.raises(NotOpen):
            act(request=request, by=admin, now=NOW)
    with pytest.raises(NotOpen):
        request_withdraw(request=request, by=lin, now=NOW)
    assert quota_for(lin, now=NOW).gpu_hours_limit == 5


@pytest.mark.django_db(transaction=True)
def test_of_admins_who_decide_at_once_one_does() -> None:
    lin, admin = user_make(quota={"gpu_hours": 5}), user_make("admin@lab.example", is_staff=True)
    pk = asked(lin).pk

    def decide(number: int) -> str:
        request = QuotaRequest.objects.get(pk=pk)
        try:
            (request_approve if number % 2 else request_decline)(request=request, by=admin, now=NOW)
        except NotOpen:
            return "late"
        return "did"

    assert sorted(in_threads(6, decide)) == ["did", *["late"] * 5]
    assert QuotaRequestEvent.objects.filter(request_id=pk).exclude(code="asked").count() == 1


def test_who_asked_withdraws_and_nobody_else(lin: User, admin: User) -> None:
    request = asked(lin)
    with pytest.raises(NotYours):
        request_withdraw(request=request, by=admin, now=NOW)
    assert request_withdraw(request=request, by=lin, now=NOW).state == "withdrawn"
    assert list(requests_to_decide(admin)) == []


def test_a_grant_can_be_ended_early_by_an_admin_alone(lin: User, admin: User) -> None:
    request = request_approve(request=asked(lin), by=admin, now=NOW)
    with pytest.raises(NotYours):
        grant_end(request=request, by=lin, now=NOW)
    grant_end(request=request, by=admin, now=NOW)
    assert quota_for(lin, now=NOW).gpu_hours_limit == 5
    with pytest.raises(NotOpen):
        grant_end(request=request, by=admin, now=NOW)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"what": "sunshine"}, "request_what"),
        ({"amount": 0}, "request_amount"),
        ({"amount": 1_000_001}, "request_amount"),
        ({"until": NOW}, "request_until"),
        ({"until": NOW + timedelta(days=401)}, "request_until"),
        ({"why": "please"}, "request_why"),
        ({"why": "x" * 2001}, "request_why"),
        ({"what": "cards"}, "request_no_limit"),
        ({"what": "model_cards", "model": "a100"}, "request_no_limit"),
    ],
)
def test_what_can_not_be_asked_for_says_why(lin: User, wrong: dict[str, Any], code: str) -> None:
    with pytest.raises(BadValue) as caught:
        asked(lin, **wrong)
    assert caught.value.code == code
    assert caught.value.message
    assert "{" not in caught.value.message


def test_a_foreign_project_can_not_be_named(lin: User) -> None:
    with pytest.raises(BadValue) as caught:
        asked(lin, project=project_make("secret"))
    assert caught.value.code == "request_project"


def test_five_open_requests_are_the_most(lin: User) -> None:
    for _ in range(5):
        asked(lin)
    with pytest.raises(BadValue) as caught:
        asked(lin)
    assert caught.value.code == "request_many"


def test_requests_are_seen_by_who_asked_the_lead_and_admins(lin: User, admin: User) -> None:
    project, lead = led_project(lin)
    request = asked(lin, project=project)
    asked(user_make("other@lab.example"))
    for user in (lin, lead):
        assert list(requests_visible_to(user)) == [request]
    assert requests_visible_to(admin).count() == 2
    assert list(requests_to_decide(lead)) == [request]
    assert list(requests_to_decide(lin)) == []


def test_cards_jobs_and_models_are_granted_on_top_of_limits_that_there_are(admin: User) -> None:
    lin = user_make(quota={"max_cards": 4, "max_active_jobs": 2, "model_caps": {"a100": 1}})
    for what, model in (("cards", ""), ("active_jobs", ""), ("model_cards", "A100")):
        request_approve(request=asked(lin, what=what, model=model, amount=2), by=admin, now=NOW)
    quota = quota_for(lin, now=NOW)
    assert (quota.cards_limit, quota.active_jobs_limit, quota.model_limits) == (6, 4, {"a100": 3})


def test_limits_by_model_are_read_and_written_as_text() -> None:
    caps = caps_parse(" A100:2 , RTX 4090 : 4,")
    assert caps == {"a100": 2, "rtx 4090": 4}
    assert caps_text(caps) == "a100:2, rtx 4090:4"
    assert caps_parse("") == {}
    assert caps_sum({"a100": 2}, {"a100": 1, "h100": 5}) == {"a100": 3}


@pytest.mark.parametrize("text", ["a100", "a100:", ":2", "a100:x", "a100:-1", "a100:2,a100:3", "a100:99999", "a|b:1", "a100:1.5"])
def test_text_that_is_no_limit_by_model_is_refused_with_the_part(text: str) -> None:
    with pytest.raises(BadCaps) as caught:
        caps_parse(text)
    assert caught.value.part in text


# --- who is told ------------------------------------------------------------------------------------------------------


def told(user: User) -> list[tuple[str, str]]:
    return [(notice.kind, words(notice)[0]) for notice in Notice.objects.filter(user=user).order_by("pk")]


def test_who_decides_and_who_asked_are_told_of_each_step(lin: User, admin: User) -> None:
    project, lead = led_project(lin)
    request = asked(lin, project=project)
    assert told(lead) == [("quota_asked", "lin@lab.example asks: +10 GPU-hours a month")]
    assert told(admin) == []
    request_approve(request=request, by=lead, now=NOW)
    assert told(admin) == [("quota_asked", "lin@lab.example asks: +10 GPU-hours a month")]
    path = Notice.objects.get(user=admin).path
    opened = link_open(path.removeprefix("/quota/decide/").rstrip("/"))
    assert (opened.user, opened.request, opened.is_open) == (admin, request, True)
    # The link decides for whoever has it: its person alone gets it, by mail or signed in, and neither a group that a webhook
    # writes to, nor a token that may only read, nor another who administers.
    notice = Notice.objects.get(user=admin)
    assert message_of(notice, user=admin).url.endswith(path)
    assert message_of(notice, user=admin, is_shared=True).url.endswith(f"/quota/requests/{request.pk}/")
    listed = Api(None, Authorization=f"Bearer {token_create(user=admin, name='r', scopes=['read'])[1]}").get("/notices/")[1]
    assert path not in json.dumps(listed)
    other = Client()
    other.force_login(user_make(is_superuser=True))
    assert path not in other.get(f"/admin/quotas/notice/{notice.pk}/change/").content.decode()
    request_approve(request=request, by=admin, now=NOW, amount=4)
    assert told(lin) == [
        ("quota_decided", "Passed on to the admins: +10 GPU-hours a month"),
        ("quota_decided", "Approved: +4 GPU-hours a month"),
    ]
    assert not link_open(path.removeprefix("/quota/decide/").rstrip("/")).is_open
    actions = AuditEntry.objects.filter(target=f"quota request {request.pk}").order_by("pk").values_list("action", "actor")
    assert list(actions) == [
        ("quota.requested", "lin@lab.example"),
        ("quota.approved", "lead@lab.example"),
        ("quota.approved", "admin@lab.example"),
    ]


def test_owners_are_told_once_at_80_and_at_100_percent_and_again_of_a_higher_limit(admin: User) -> None:
    lin = user_make(quota={"gpu_hours": 10, "used_gpu_s": 7.99 * 3600, "period_start": date(2026, 3, 1)})
    assert limits_tell(now=NOW) == 0
    Quota.objects.filter(user=lin).update(used_gpu_s=8 * 3600)  # 80 %
    assert (limits_tell(now=NOW), limits_tell(now=NOW)) == (1, 0)
    Quota.objects.filter(user=lin).update(used_gpu_s=10 * 3600)
    assert (limits_tell(now=NOW), limits_tell(now=NOW)) == (1, 0)
    assert [kind for kind, _text in told(lin)] == ["quota_80", "quota_100"]
    request_approve(request=asked(lin, amount=2), by=admin, now=NOW)
    assert limits_tell(now=NOW) == 1  # 10 of 12 are 83 %
    assert [kind for kind, _text in told(lin)][-1] == "quota_80"
    assert limits_tell(now=NOW + timedelta(days=31)) == 0  # the counter is of last month
    Quota.objects.filter(user=lin).update(used_gpu_s=24 * 3600)
    assert limits_tell(now=NOW) == 1  # at the limit of 12
    boss = Client()
    boss.force_login(user_make(is_superuser=True))
    quota = Quota.objects.get(user=lin)
    form = {"gpu_hours": "28", "max_active_jobs": "", "max_cards": "", "model_caps": ""}
    assert boss.post(f"/admin/quotas/quota/{quota.pk}/change/", form).status_code == 302
    assert limits_tell(now=NOW) == 1  # 24 of 28 + 2
    assert [kind for kind, _text in told(lin)][-2:] == ["quota_100", "quota_80"]


def test_nobody_without_a_limit_is_told() -> None:
    user_make(quota={"gpu_hours": None, "used_gpu_s": 9e9, "period_start": date(2026, 3, 1)})
    assert limits_tell(now=NOW) == 0
