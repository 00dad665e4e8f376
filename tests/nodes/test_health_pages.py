"""Incidents and the card's health on pages: who sees what, who may do what, and what is said when it can't be done."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from nodes.incidents import incident_add, incident_open, kernel_add
from nodes.models import AgentCommand, Gpu, Incident, IncidentEntry
from tests.factories import attempt_make, node_make, user_make, xid_rules_ship

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def rules() -> None:
    xid_rules_ship()


def signed_in(language: str = "en", **fields) -> Client:
    client = Client(headers={"accept-language": language})
    client.force_login(user_make(language=language, **fields))
    return client


@pytest.fixture
def staff() -> Client:
    return signed_in(is_staff=True)


@pytest.fixture
def gpu() -> Gpu:
    return node_make("n1", cards=1).gpus.get()


@pytest.fixture
def incident(gpu: Gpu) -> Incident:
    now = timezone.now()
    found = incident_open(
        gpu=gpu, code="xid", params={"xid": 79}, now=now - timedelta(seconds=42), kernel=["NVRM: Xid <b>79</b>, fell"]
    )  # fmt: skip
    incident_add(found, code="healthy", now=now, phase="REVIEW")
    return found


def test_the_list_shows_what_is_open_with_its_time_to_recover(incident, staff):
    page = staff.get("/incidents/").content.decode()
    assert "The driver reported XID 79. (GPU has fallen off the bus)" in page
    assert "n1 gpu0" in page
    assert "42 s" in page.replace("\xa0", " ")
    Incident.objects.update(phase="CLOSED", closed_at=timezone.now(), review="a riser")
    assert "No incident." in staff.get("/incidents/").content.decode()
    assert "XID 79" in staff.get("/incidents/?state=closed").content.decode()
    assert "XID 79" in staff.get("/incidents/?state=all").content.decode()
    assert "No incident." in staff.get("/incidents/?state=review").content.decode()


def test_a_phase_that_is_none_is_refused_with_those_that_are(staff):
    answer = staff.get("/api/v1/incidents/?phase=zz")
    assert answer.status_code == 400
    assert "Expected open or one of DETECTED, " in answer.json()["fields"]["phase"][0]
    assert staff.get("/api/v1/incidents/?phase=review").status_code == 200


def test_the_list_costs_the_same_for_any_number_of_incidents(staff, django_assert_max_num_queries):
    def make(count):
        for _ in range(count):
            incident_open(gpu=node_make(cards=1).gpus.get(), code="xid", params={"xid": 62}, now=timezone.now())

    make(2)
    staff.get("/incidents/")
    with django_assert_max_num_queries(8):
        staff.get("/incidents/")
    make(20)
    with django_assert_max_num_queries(8):
        staff.get("/incidents/")


def test_an_incident_tells_its_timeline_and_evidence_and_markup_stays_text(incident, staff):
    page = staff.get(f"/incidents/{incident.pk}/").content.decode()
    assert "Back in service." in page
    assert "NVRM: Xid &lt;b&gt;79&lt;/b&gt;, fell" in page
    assert "No figures of the minutes before are kept." in page


def test_everybody_may_look_and_only_staff_may_write(incident, client):
    assert client.get("/incidents/").status_code == 302
    user = signed_in()
    assert user.get("/incidents/").status_code == 200
    page = user.get(f"/incidents/{incident.pk}/")
    assert "<textarea" not in page.content.decode()
    assert user.post(f"/incidents/{incident.pk}/write/", {"text": "mine"}).status_code == 403
    assert user.post("/nodes/n1/gpu0/act/isolate/", {"reason": "mine"}).status_code == 403


def test_a_review_closes_and_without_words_nothing_closes(incident, staff):
    refused = staff.post(f"/incidents/{incident.pk}/write/", {"text": " ", "close": "1"})
    assert refused.status_code == 400
    assert "in 3–4000 characters; got 0." in refused.content.decode()
    assert staff.post(f"/incidents/{incident.pk}/write/", {"text": "looks loose"}).status_code == 302
    assert staff.post(f"/incidents/{incident.pk}/write/", {"text": "a loose riser", "close": "1"}).status_code == 302
    incident.refresh_from_db()
    assert (incident.phase, incident.review) == ("CLOSED", "a loose riser")
    assert "Closed: a loose riser" in staff.get(f"/incidents/{incident.pk}/").content.decode()


def test_a_nul_in_a_note_is_refused(incident, staff):
    assert staff.post(f"/incidents/{incident.pk}/write/", {"text": "a loose\x00riser"}).status_code == 400
    assert not IncidentEntry.objects.filter(incident=incident, code="note").exists()


def test_an_incident_that_is_not_over_is_not_closed(gpu, staff):
    incident = incident_open(gpu=gpu, code="xid", params={"xid": 79}, now=timezone.now())
    refused = staff.post(f"/incidents/{incident.pk}/write/", {"text": "done", "close": "1"})
    assert refused.status_code == 400
    assert "its card is not back in service yet" in refused.content.decode()


@pytest.mark.parametrize(
    "address", ["/incidents/99999/", "/nodes/n1/gpu9/act/isolate/", "/nodes/n1/gpu0/act/explode/", "/nodes/none/gpu0/act/reset/"]
)
def test_what_is_not_there_is_a_404(gpu, staff, address):
    assert staff.get(address).status_code == 404


def test_staff_isolate_a_card_with_a_reason_and_undo_it(gpu, staff):
    attempt_make(gpus=(gpu,))
    form = staff.get("/nodes/n1/gpu0/act/isolate/").content.decode()
    assert "1 slice is in use on it" in form
    assert staff.post("/nodes/n1/gpu0/act/isolate/", {"reason": ""}).status_code == 400
    assert staff.post("/nodes/n1/gpu0/act/isolate/", {"reason": "smells"}).status_code == 302
    gpu.refresh_from_db()
    assert (gpu.state, gpu.state_reason) == ("ISOLATED", "smells")
    page = staff.get("/nodes/n1/gpu0/").content.decode()
    assert "To undo it, return the card as checked." in page
    assert "Return to service" in page
    assert staff.post("/nodes/n1/gpu0/act/return/", {"reason": "the wrong one", "checked": "1"}).status_code == 302
    gpu.refresh_from_db()
    assert gpu.state == "HEALTHY"


def test_a_busy_card_is_not_reset_and_the_page_says_so(gpu, staff):
    attempt_make(gpus=(gpu,))
    refused = staff.post("/nodes/n1/gpu0/act/reset/", {"reason": "now"})
    assert refused.status_code == 400
    assert "gpu0 on n1 is held by 1 slices (4096 MiB)" in refused.content.decode()
    assert not AgentCommand.objects.exists()


def test_the_cards_page_tells_of_its_test_and_its_incident(incident, gpu, staff):
    staff.post("/nodes/n1/gpu0/act/selftest/", {"reason": "to be sure"})
    page = staff.get("/nodes/n1/gpu0/").content.decode()
    assert "Being tested." in page
    assert f"Incident {incident.pk}" in page
    assert "score 100 of 100" in page


def test_the_pages_speak_chinese(incident):
    chinese = signed_in("zh-hans", is_staff=True)
    page = chinese.get(f"/incidents/{incident.pk}/").content.decode()
    assert "GPU 从总线上掉线" in page
    assert "已恢复服务。" in page
    assert "待复盘" in chinese.get("/incidents/").content.decode()


def test_an_admin_changes_a_rule(staff):
    from nodes.models import XidPolicy

    rule = XidPolicy.objects.get(xid=94)
    body = {"xid": 94, "title": rule.title, "action": "suspect", "again_s": 60, "is_users": ""}
    answer = staff.post(f"/admin/nodes/xidpolicy/{rule.pk}/change/", body)
    assert answer.status_code == 302, answer.content.decode()[:500]
    rule.refresh_from_db()
    assert (rule.action, rule.again_s) == ("suspect", 60)


def test_the_open_page_of_an_incident_follows_it_and_what_is_being_written_stays(incident, staff):
    """What changes is fetched in pieces; the field that somebody writes in is in none of them."""
    page = staff.get(f"/incidents/{incident.pk}/").content.decode()
    assert f'hx-get="/incidents/{incident.pk}/" hx-trigger="pool:incidents from:body, live:on from:body"' in page
    assert 'data-topic="pool"' in page
    piece = staff.get(f"/incidents/{incident.pk}/", headers={"HX-Request": "true"}).content.decode()
    assert "<textarea" not in piece
    assert "<html" not in piece
    for part in ("incident-head", "incident-facts", "incident-acts"):
        assert f'id="{part}" ' in page.replace(f'id="{part}">', f'id="{part}" >')
        assert f'id="{part}" hx-swap-oob="true"' in piece or f'id="{part}" aria-labelledby="facts-h" hx-swap-oob="true"' in piece
    assert 'name="close"' in piece
    assert "incident-acts" not in signed_in().get(f"/incidents/{incident.pk}/", headers={"HX-Request": "true"}).content.decode()
    listed = staff.get("/incidents/?state=review", headers={"HX-Request": "true"}).content.decode()
    assert 'hx-get="/incidents/?state=review"' in listed
    assert "<html" not in listed


def test_lines_around_the_fault_take_the_place_of_the_single_ones_and_are_bounded(incident, gpu, staff):
    single = incident.evidence["kernel"][0]
    kernel_add(gpu=gpu, lines=["pcieport: AER: fatal", single, "NVRM: a crash dump <i>"])
    kernel_add(gpu=gpu, lines=["pcieport: AER: fatal", single, "NVRM: a crash dump <i>"])  # told twice
    incident.refresh_from_db()
    assert incident.evidence["kernel"] == ["pcieport: AER: fatal", single, "NVRM: a crash dump <i>"]
    page = staff.get(f"/incidents/{incident.pk}/").content.decode()
    assert "pcieport: AER: fatal\n" in page
    assert "crash dump &lt;i&gt;" in page
    kernel_add(gpu=gpu, lines=[f"{n} " + "x" * 1000 for n in range(100)])
    incident.refresh_from_db()
    assert len(incident.evidence["kernel"]) == 40
    assert max(map(len, incident.evidence["kernel"])) == 400
