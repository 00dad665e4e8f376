"""The pages of limits and requests, the approvals in the admin, and the link that works once."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.services.schedule import pass_run
from quotas import calendar
from quotas.links import LIVES_S, link_token
from quotas.models import AuditEntry, Membership, Quota, QuotaRequest, User
from quotas.requests import request_approve, request_make
from tests.factories import project_make, user_make
from tests.jobs.lab import Lab, state
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
WHY = "Rebuttal experiments, 3 ablations of 40 GPU-hours each."


@pytest.fixture
def lin() -> User:
    """At her limit of five GPU-hours, of this month."""
    month = calendar.month_of(timezone.now())
    return user_make("lin@lab.example", quota={"gpu_hours": 5, "used_gpu_s": 5 * 3600, "period_start": month})


@pytest.fixture
def boss() -> User:
    return user_make("boss@lab.example", is_superuser=True)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def asked(by: User, **more: Any) -> QuotaRequest:
    return request_make(**{"by": by, "what": "gpu_hours", "amount": 10, "why": WHY, "now": timezone.now(), **more})


@pytest.mark.usefixtures("mid_month")
def test_the_page_says_what_is_used_and_when_it_starts_anew_in_the_zone_that_decides(lin: User, settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    Quota.objects.filter(user=lin).update(max_cards=4, held_cards=1, model_caps={"a100": 2})
    text = signed_in(lin).get("/quota/").content.decode()
    assert "00:00 Asia/Shanghai" in text
    assert "5 of 5" in text
    assert "1 of 4" in text
    assert "0 of 2" in text
    chinese = Client(headers={"Accept-Language": "zh-hans"})
    chinese.force_login(lin)
    answer = chinese.get("/quota/").content.decode()
    assert "申请扩容" in answer
    assert "Ask for more" not in answer


def test_the_page_costs_the_same_whatever_was_asked(lin: User, boss: User) -> None:
    browser = signed_in(lin)

    def count() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert browser.get("/quota/").status_code == 200
        return len(captured)

    asked(lin)
    count()
    few = count()
    for _ in range(3):
        asked(lin, amount=7)
        request_approve(request=asked(lin), by=boss, now=timezone.now())
    assert count() <= few + 1  # a note about what is granted


def test_from_the_refused_submit_to_the_grant_and_the_held_job_starts(lin: User, boss: User) -> None:
    lab = Lab()
    lab.node("n1", 24564)
    Quota.objects.filter(user=lin).update(used_gpu_s=0)
    job = lab.submit(owner=lin, gpu_mem_mib=4096)
    Quota.objects.filter(user=lin).update(used_gpu_s=5 * 3600)
    pass_run()
    assert (state(job), job.wait_code) == ("WAITING", "quota_exceeded")
    browser = signed_in(lin)
    # 1. Refused: it says where to ask.
    refused = browser.post("/jobs/new/", {"command": "true", "gpu_mem": "4", "mem_unit": "G", "gpu_count": "1", "nodes": "1"})
    assert refused.status_code == 403
    assert "/quota/?what=gpu_hours&amp;amount=24#ask" in refused.content.decode()  # a day, as nobody knows how long it runs
    assert "/quota/?what=gpu_hours#ask" in browser.get(f"/jobs/{job.pk}/").content.decode()
    # 2. Asked.
    wrong = browser.post("/quota/requests/new/", {"what": "gpu_hours", "amount": "ten", "why": WHY})
    assert wrong.status_code == 400
    assert "must be from 1 to" in wrong.content.decode()
    assert browser.post("/quota/requests/new/", {"what": "gpu_hours", "amount": "3", "until": "", "why": WHY}).status_code == 302
    request = QuotaRequest.objects.get()
    # 3. Seen at the front of the admin, and granted there.
    admin = signed_in(boss)
    assert WHY in admin.get("/admin/").content.decode()
    admin.post("/admin/quotas/quotarequest/approvals/", {"approve": request.pk, f"amount-{request.pk}": "2", f"until-{request.pk}": ""})
    request.refresh_from_db()
    assert (request.state, request.granted_amount, request.decided_by) == ("approved", 2, boss)
    # 4. Starts.
    assert job.pk in pass_run().started
    assert "Granted on top" in browser.get("/quota/").content.decode()


def test_many_are_decided_at_once_and_one_that_is_late_keeps_none_from_it(lin: User, boss: User) -> None:
    requests = [asked(lin), asked(user_make()), asked(user_make())]
    request_approve(request=requests[0], by=boss, now=timezone.now())
    admin = signed_in(boss)
    page = "/admin/quotas/quotarequest/approvals/"
    answer = admin.post(page, {"id": [one.pk for one in requests], "act": "decline", "note": "Not this month."}, follow=True)
    text = answer.content.decode()
    assert f"#{requests[0].pk} is not open any more." in text
    assert "2 requests are declined." in text
    assert "Nothing waits for a decision." in text
    assert QuotaRequest.objects.filter(state="declined").count() == 2
    assert requests[1].events.get(code="declined").text == "Not this month."


def test_the_admins_list_decides_by_its_actions(lin: User, boss: User) -> None:
    request = asked(lin)
    page = "/admin/quotas/quotarequest/"
    signed_in(boss).post(page, {"action": "approve", "_selected_action": [request.pk]})
    request.refresh_from_db()
    assert request.state == "approved"


def test_the_approvals_of_the_admin_are_for_admins(lin: User) -> None:
    asked(lin)
    answer = signed_in(lin).post("/admin/quotas/quotarequest/approvals/", {"approve": QuotaRequest.objects.get().pk})
    assert answer.status_code == 403
    assert QuotaRequest.objects.get().state == "admin"


def test_a_lead_passes_on_from_his_own_page(lin: User) -> None:
    project, lead = project_make("nlp"), user_make("lead@lab.example")
    Membership.objects.create(project=project, user=lead, role=Membership.Role.LEAD)
    Membership.objects.create(project=project, user=lin)
    signed_in(lin).post("/quota/requests/new/", {"what": "gpu_hours", "amount": "3", "why": WHY, "project": "nlp"})
    request = QuotaRequest.objects.get()
    browser = signed_in(lead)
    assert WHY in browser.get("/quota/approvals/").content.decode()
    assert "Pass on to the admins" in browser.get(f"/quota/requests/{request.pk}/").content.decode()
    browser.post("/quota/approvals/", {"id": [request.pk], "act": "approve"})
    request.refresh_from_db()
    assert request.state == "admin"


def test_a_request_is_nobodys_business_but_of_those_concerned(lin: User) -> None:
    request = asked(lin)
    page = f"/quota/requests/{request.pk}/"
    assert signed_in(user_make()).get(page).status_code == 404
    assert signed_in(user_make()).post(page, {"act": "approve"}).status_code == 404
    assert Client().get(page).status_code == 302
    mine = signed_in(lin)
    assert mine.get(page).status_code == 200
    mine.post(page, {"act": "approve"})
    request.refresh_from_db()
    assert request.state == "admin"
    mine.post(page, {"act": "withdraw"})
    request.refresh_from_db()
    assert request.state == "withdrawn"
    assert mine.get("/quota/requests/999999/").status_code == 404


def test_an_admin_ends_a_grant_early_from_its_page(lin: User, boss: User) -> None:
    request = request_approve(request=asked(lin), by=boss, now=timezone.now())
    signed_in(boss).post(f"/quota/requests/{request.pk}/", {"act": "end"})
    assert Quota.objects.get(user=lin).gpu_hours_limit == 5


# --- by link ----------------------------------------------------------------------------------------------------------


def test_a_link_shows_first_and_decides_once(lin: User, boss: User) -> None:
    request = asked(lin)
    page, nobody = f"/quota/decide/{link_token(request, boss)}/", Client()
    for _ in range(2):  # a mail scanner may look as often as it likes
        shown = nobody.get(page)
        assert shown.status_code == 200
        assert WHY in shown.content.decode()
        assert shown["Referrer-Policy"] == "same-origin"  # tests/browser/test_links.py posts its form
    assert QuotaRequest.objects.get().state == "admin"
    done = nobody.post(page, {"act": "approve", f"amount-{request.pk}": "4"})
    assert (done.status_code, "Decided." in done.content.decode()) == (200, True)
    request.refresh_from_db()
    assert (request.state, request.granted_amount, request.decided_by) == ("approved", 4, boss)
    assert AuditEntry.objects.filter(action="quota.approved").values_list("actor", "via").get() == ("boss@lab.example", "link")
    for again in (nobody.get(page), nobody.post(page, {"act": "decline"})):
        assert again.status_code == 410
        assert not re.search(r"<button[^>]*value=\"approve\"", again.content.decode())
    request.refresh_from_db()
    assert request.state == "approved"


def test_a_link_of_an_earlier_step_opens_nothing_at_the_next(lin: User, boss: User) -> None:
    project, lead = project_make("nlp"), user_make("lead@lab.example")
    Membership.objects.create(project=project, user=lead, role=Membership.Role.LEAD)
    Membership.objects.create(project=project, user=lin)
    request = asked(lin, project=project)
    early = f"/quota/decide/{link_token(request, boss)}/"
    Client().post(f"/quota/decide/{link_token(request, lead)}/", {"act": "approve"})
    request.refresh_from_db()
    assert request.state == "admin"
    assert Client().post(early, {"act": "approve"}).status_code == 410


def test_links_of_others_old_ones_and_broken_ones_open_nothing(lin: User, boss: User, monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(lin)
    good = link_token(request, boss)
    stranger = link_token(request, user_make())
    for token in (stranger, good[:-2] + "xx", "x", "a:b:c"):
        assert Client().post(f"/quota/decide/{token}/", {"act": "approve"}).status_code == 404, token
    User.objects.filter(pk=boss.pk).update(is_active=False)
    assert Client().get(f"/quota/decide/{good}/").status_code == 404
    User.objects.filter(pk=boss.pk).update(is_active=True)
    later = timezone.now() + timedelta(seconds=LIVES_S + 5)
    monkeypatch.setattr("django.core.signing.time.time", later.timestamp)
    assert Client().get(f"/quota/decide/{good}/").status_code == 404
    assert QuotaRequest.objects.get().state == "admin"


@pytest.mark.parametrize("amount", ["-3", "0"])  # 0 is an amount, not "as asked"
def test_a_wrong_amount_by_link_says_so_and_decides_nothing(lin: User, boss: User, amount: str) -> None:
    request = asked(lin)
    answer = Client().post(f"/quota/decide/{link_token(request, boss)}/", {"act": "approve", f"amount-{request.pk}": amount})
    assert answer.status_code == 400
    assert "must be from 1 to" in answer.content.decode()
    assert QuotaRequest.objects.get().state == "admin"


def test_a_projects_limit_is_shown_to_its_members(lin: User) -> None:
    project = project_make("nlp", members=(lin,))
    Quota.objects.create(project=project, gpu_hours=300, max_cards=6)
    assert "Project nlp" in signed_in(lin).get("/quota/").content.decode()
    assert "Project nlp" not in signed_in(user_make()).get("/quota/").content.decode()


def test_a_projects_use_of_an_older_month_is_not_told_as_of_this_one(lin: User) -> None:
    project = project_make("nlp", members=(lin,))
    Quota.objects.create(project=project, gpu_hours=300, used_gpu_s=3600 * 299, period_start="2020-01-01")
    assert Api(lin).get("/quota")[1]["projects"]["nlp"]["used_gpu_hours"] == 0


def test_a_lead_asks_for_the_projects_own_limit_from_the_page(lin: User) -> None:
    project = project_make("nlp", members=(lin,))
    Quota.objects.create(project=project, gpu_hours=300)
    page = {"what": "nlp/gpu_hours", "amount": "100", "why": WHY}
    assert "nlp/gpu_hours" not in signed_in(lin).get("/quota/").content.decode()
    assert signed_in(lin).post("/quota/requests/new/", page).status_code == 400
    Membership.objects.filter(project=project, user=lin).update(role=Membership.Role.LEAD)
    assert "nlp/gpu_hours" in signed_in(lin).get("/quota/").content.decode()
    assert signed_in(lin).post("/quota/requests/new/", page).status_code == 302
    request = QuotaRequest.objects.get()
    assert (request.quota.project, request.state) == (project, "admin")
