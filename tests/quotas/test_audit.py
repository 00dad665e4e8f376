"""The audit log: written with the action, never changed, and a chain that shows it when it was."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta
from functools import partial
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.utils import timezone

from jobs.requests import JobRequest
from jobs.services import job_cancel, job_submit
from nodes.services import node_cordon
from quotas import audit_segments
from quotas.audit import ACTIONS, audit, audit_chain
from quotas.audit_check import chain_check
from quotas.audit_segments import audit_prune, prune_forget
from quotas.models import AuditEntry, AuditLink, AuditSegment, Quota
from quotas.services import project_personal, quota_for
from quotas.tokens import token_create
from tests.factories import job_make, node_make, user_make
from tests.rest import Api, no_redis  # noqa: F401
from tests.threads import in_threads

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


def told(**fields) -> list[tuple[str, str, str]]:
    return [(e.actor, e.action, e.target) for e in AuditEntry.objects.filter(**fields).order_by("pk")]


def guards_drop() -> None:
    """What somebody with the database's own password could do."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            for table in ("quotas_auditentry", "quotas_auditlink"):
                for verb in ("update", "delete"):
                    cursor.execute(f"DROP TRIGGER {table}_no_{verb}")
        else:
            for table in ("quotas_auditentry", "quotas_auditlink"):
                cursor.execute(f"DROP TRIGGER {table}_guard ON {table}")
                cursor.execute(f"DROP TRIGGER {table}_guard_delete ON {table}")


def problems(**options) -> list[str]:
    return chain_check(now=timezone.now(), **options).problems


# --- the log itself -------------------------------------------------------------------------------------------------


def test_an_action_that_nobody_named_is_refused():
    with pytest.raises(ValueError, match=r"node\.exploded"):
        audit(None, "node.exploded")


def test_an_entry_goes_with_the_action_and_is_taken_back_with_it():
    with transaction.atomic():
        audit(None, "node.drained", "node a")
        transaction.set_rollback(True)
    assert told() == []


@pytest.mark.parametrize("model", [AuditEntry, AuditLink])
@pytest.mark.parametrize("change", ["update", "delete"])
def test_neither_entries_nor_links_can_be_changed_or_removed(model, change):
    audit(None, "node.drained", "node a")
    audit_chain()
    rows = model._base_manager.all()
    values = {"action": "node.resumed"} if model is AuditEntry else {"hash": "0" * 64}
    act = partial(rows._raw_delete, connection.alias) if change == "delete" else partial(rows.update, **values)
    with pytest.raises(DatabaseError), transaction.atomic():
        act()


def test_what_is_kept_comes_back_from_every_database_as_it_went_in():
    params = {"float": 0.1, "huge": 1e300, "time": timezone.now(), "list": [1, None, True], "nul": "a\0b", "set": {3, 1}}
    audit(None, "quota.changed", "quota a\0b", params)
    entry = AuditEntry.objects.get()
    assert entry.target == "quota ab"
    assert entry.params == {
        "float": 0.1, "huge": "1e+300", "time": params["time"].isoformat(), "list": [1, None, True], "nul": "ab", "set": [1, 3],
    }  # fmt: skip


# --- the chain ------------------------------------------------------------------------------------------------------


def entries(count: int) -> None:
    for number in range(count):
        audit(None, "node.drained", f"node {number}", {"reason": "a fan"})


def test_a_chain_that_nobody_touched_is_whole():
    entries(5)
    assert (audit_chain(), audit_chain()) == (5, 0)
    entries(2)
    report = chain_check(now=timezone.now())
    assert (report.entries, report.links, report.waiting, report.problems) == (7, 5, 2, [])


def test_a_changed_entry_is_named():
    entries(3)
    audit_chain()
    guards_drop()
    second = AuditEntry.objects.order_by("pk")[1]
    AuditEntry.objects.filter(pk=second.pk).update(params={"reason": "nothing to see"})
    assert problems() == [f"entry {second.pk} (link 2) is not what was written, or what came before it is not"]


def test_an_entry_taken_out_with_its_link_leaves_a_gap():
    entries(3)
    audit_chain()
    guards_drop()
    link = AuditLink.objects.get(seq=2)
    AuditLink.objects.filter(seq=2)._raw_delete(connection.alias)
    AuditEntry.objects.filter(pk=link.entry_id)._raw_delete(connection.alias)
    assert problems()[0] == "links 2 to 2 are missing"


def test_links_made_anew_after_a_change_differ_from_a_head_that_was_noted():
    entries(3)
    audit_chain()
    head = AuditLink.objects.get(seq=3).hash
    guards_drop()
    AuditEntry.objects.order_by("pk").update(actor="somebody else")
    AuditLink.objects.all()._raw_delete(connection.alias)
    audit_chain()
    assert problems() == []  # whoever owns the database can forge all of it …
    assert problems(heads={3: head}) == ["link 3 is not the one that was noted"]  # … but not what is kept elsewhere


def test_an_end_that_was_cut_off_is_missed_by_its_head():
    entries(3)
    audit_chain()
    head = AuditLink.objects.get(seq=3).hash
    guards_drop()
    last = AuditLink.objects.get(seq=3)
    AuditLink.objects.filter(seq=3)._raw_delete(connection.alias)
    AuditEntry.objects.filter(pk=last.entry_id)._raw_delete(connection.alias)
    assert problems(heads={3: head}) == ["link 3, which was noted, is missing: the end of the log was cut off"]


def test_an_old_entry_without_a_link_is_told():
    audit(None, "node.drained", "node a", now=timezone.now() - timedelta(hours=1))
    assert problems()[0].endswith("has no link")


def test_an_entry_that_was_committed_late_is_linked_too():
    """On PostgreSQL a lower number may appear after a higher one was linked."""
    audit(None, "node.drained", "node a")
    audit_chain()
    late = AuditEntry(pk=AuditEntry.objects.get().pk - 1, actor="system", action="node.resumed")
    late.save(force_insert=True)
    assert audit_chain() == 1
    assert problems() == []


@pytest.mark.django_db(transaction=True)
def test_chains_made_at_once_are_one_chain():
    entries(40)
    in_threads(4, lambda _number: audit_chain())
    audit_chain()
    report = chain_check(now=timezone.now())
    assert (report.links, report.problems) == (40, [])


def test_audit_verify_prints_the_head_and_ends_with_1_when_something_is_wrong():
    entries(2)
    out = StringIO()
    call_command("audit_verify", stdout=out)
    head = out.getvalue().split("head ")[1].strip()
    call_command("audit_verify", "--head", head, stdout=out)
    with pytest.raises(CommandError, match="hexadecimal") as wrong:
        call_command("audit_verify", "--head", "7", stdout=out)
    assert wrong.value.returncode == 2
    guards_drop()
    AuditEntry.objects.update(actor="somebody else")
    with pytest.raises(CommandError, match="not as it was written") as changed:
        call_command("audit_verify", stdout=out)
    assert changed.value.returncode == 1


# --- what is removed ------------------------------------------------------------------------------------------------


@pytest.fixture
def old_log(settings, monkeypatch):
    """Seven linked entries, five of them of a year ago, of which batches of two are removed."""
    settings.KEEP_AUDIT_DAYS = 90
    monkeypatch.setattr(audit_segments, "BATCH", 2)
    prune_forget()
    now = timezone.now()
    for number in range(7):
        audit(None, "node.drained", f"node {number}", now=now - timedelta(days=365 if number < 5 else 1))
    audit_chain()
    yield now
    prune_forget()


def prune_all(now) -> int:
    removed = 0
    while count := audit_prune(now=now):
        removed += count
        prune_forget()
    prune_forget()
    return removed


def test_what_is_old_goes_in_batches_and_the_rest_is_proved_from_there(old_log):
    noted = {link.seq: link.hash for link in AuditLink.objects.all()}
    assert prune_all(old_log) == 5
    assert [entry.target for entry in AuditEntry.objects.filter(action="node.drained").order_by("pk")] == ["node 5", "node 6"]
    assert AuditEntry.objects.filter(action="audit.removed").count() == 3  # two batches, and the one that was left over
    audit_chain()
    report = chain_check(now=timezone.now(), heads=noted)
    assert (report.problems, report.removed, report.links) == ([], 5, 5)
    assert problems(heads={4: "0" * 64}) == ["link 4 is not the one that was noted"]  # the end of a segment
    out = StringIO()
    call_command("audit_verify", stdout=out)
    assert "5 older entries were removed" in out.getvalue()


def test_nothing_is_removed_where_it_is_kept_for_ever_or_young(old_log, settings):
    settings.KEEP_AUDIT_DAYS = 0
    assert prune_all(old_log) == 0
    settings.KEEP_AUDIT_DAYS = 400
    assert prune_all(old_log) == 0
    settings.KEEP_AUDIT_DAYS = 1  # never less than a month
    assert prune_all(old_log - timedelta(days=340)) == 0


def test_the_newest_link_stays_however_old_it_is(old_log):
    assert prune_all(old_log + timedelta(days=1000)) == 6
    assert [link.seq for link in AuditLink.objects.all()] == [7]
    audit_chain()
    assert problems() == []


def test_the_database_lets_nothing_go_that_no_segment_covers(old_log):
    prune_all(old_log)
    for rows in (AuditLink.objects.filter(seq=6), AuditEntry.objects.filter(target="node 6"), AuditSegment.objects.all()):
        with pytest.raises(DatabaseError), transaction.atomic():
            rows._raw_delete(connection.alias)
    with pytest.raises(DatabaseError), transaction.atomic():
        AuditSegment.objects.update(last_seq=7)


def test_a_removal_that_somebody_made_up_has_no_signature_and_is_told(old_log):
    link = AuditLink.objects.get(seq=3)
    AuditSegment.objects.create(
        first_seq=1, last_seq=3, last_hash=link.hash, last_entry_id=link.entry_id, entries=3, removed_at=old_log, signature="0" * 64
    )
    AuditLink.objects.filter(seq__lte=3)._raw_delete(connection.alias)
    assert problems()[0] == "the removal of links 1 to 3 was not written by this installation"


def test_a_change_after_a_removed_part_is_still_found(old_log):
    prune_all(old_log)
    guards_drop()
    AuditEntry.objects.filter(target="node 5").update(actor="somebody else")
    assert "(link 6)" in problems()[0]


# --- what is written ------------------------------------------------------------------------------------------------


def test_a_submit_and_what_owners_do_to_their_own_jobs_write_no_entry():
    """They are in the job's events; forty a second must not meet here."""
    owner = user_make()
    before = AuditEntry.objects.count()
    node_make("a", cards=1)
    job, _ = job_submit(owner=owner, request=JobRequest(name="x", argv=["true"], project=project_personal(owner)))
    job_cancel(job=job, by=owner)
    assert AuditEntry.objects.count() == before


def test_staff_who_cancel_anothers_job_are_told_of():
    job, boss = job_make(user_make("li@lab.example")), user_make("boss@lab.example", is_staff=True)
    job_cancel(job=job, by=boss)
    assert told(action="job.cancelled") == [("boss@lab.example", "job.cancelled", f"job {job.pk}")]


def test_a_drain_by_token_tells_who_whence_and_by_which_token():
    node, boss = node_make("gpu-3"), user_make("boss@lab.example", is_staff=True)
    api = Api(boss)
    assert api.post("/nodes/gpu-3/drain", {"reason": "new fan"})[0] == 200
    entry = AuditEntry.objects.get(action="node.drained")
    assert (entry.actor, entry.actor_id, entry.target) == (boss.email, boss.pk, f"node {node.name}")
    assert entry.params == {"reason": "new fan", "until": None}
    assert (entry.via[:10], entry.address) == ("token ngt_", "127.0.0.1")
    assert len(entry.via) == len("token ") + 12  # as much as the list of tokens shows


def test_signing_in_failing_and_out_is_told_without_what_was_typed(settings):
    user_make("li@lab.example", password=PASSWORD)
    browser = Client()
    for login, password in (("li@lab.example", "wrong"), ("secret-password@lab.example", "x"), ("li@lab.example", PASSWORD)):
        browser.post("/accounts/login/", {"login": login, "password": password})
    browser.post("/accounts/logout/")
    assert told(action__startswith="signin") == [
        ("unknown", "signin.failed", "user li@lab.example"),
        ("unknown", "signin.failed", ""),
        ("li@lab.example", "signin.done", ""),
        ("li@lab.example", "signin.ended", ""),
    ]
    assert "secret-password" not in json.dumps(list(AuditEntry.objects.values("actor", "target", "params")))


def test_tokens_are_told_of_by_their_prefix_alone():
    user = user_make("li@lab.example")
    _token, secret = token_create(user=user, name="ci")
    assert told(action="token.created") == [("li@lab.example", "token.created", f"token {secret[:12]}")]
    assert secret not in json.dumps(list(AuditEntry.objects.values("target", "params")))


def test_every_change_in_the_administration_is_told_with_the_limits_before_and_after():
    boss = user_make("boss@lab.example", is_staff=True, is_superuser=True)
    quota = quota_for(user_make("li@lab.example"))
    browser = Client()
    browser.force_login(boss)
    fields = {"gpu_hours": "3000", "max_active_jobs": "2000", "max_storage_mib": "102400", "max_cards": ""}
    assert browser.post(f"/admin/quotas/quota/{quota.pk}/change/", fields).status_code == 302
    assert Quota.objects.get(pk=quota.pk).gpu_hours == 3000
    assert AuditEntry.objects.get(action="quota.changed").params == {"gpu_hours": [2000, 3000]}
    changed = AuditEntry.objects.get(action="admin.changed")
    assert (changed.actor, changed.target) == ("boss@lab.example", f"quota {quota.pk}")
    assert changed.params["what"] == [{"changed": {"fields": ["GPU-hours a month"]}}]


def test_a_drain_by_the_system_is_told_as_the_systems():
    node_cordon(node=node_make("a"), by=None, reason="it does not start jobs")
    assert told(action="node.drained") == [("system", "node.drained", "node a")]


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.fixture
def boss():
    return user_make("boss@lab.example", is_staff=True)


def test_filters_leave_what_was_asked_for(boss):
    audit("node gpu-1", "node.enrolled", "node gpu-1", now=timezone.now() - timedelta(days=2))
    audit(boss, "node.drained", "node gpu-1")
    audit(boss, "quota.changed", "quota li@lab.example")
    api = Api(boss)

    def found(**query: str) -> list[str]:
        status, page = api.get("/audit/", **query)
        assert status == 200
        return [row["action"] for row in page["results"] if not row["action"].startswith("token")]

    assert found(action="node") == ["node.drained", "node.enrolled"]
    assert found(action="node.drained") == ["node.drained"]
    assert found(actor="BOSS@lab.example") == ["quota.changed", "node.drained"]
    assert found(target="node gpu-1") == ["node.drained", "node.enrolled"]
    assert found(q="li@lab") == ["quota.changed"]
    assert found(until=(timezone.now() - timedelta(days=1)).isoformat()) == ["node.enrolled"]
    for query in ({"action": "nothing"}, {"since": "yesterday"}, {"until": "2026-13-45"}):
        status, error = api.get("/audit/", **query)
        assert (status, list(error["fields"])) == (400, list(query))


def test_the_csv_opens_in_a_spreadsheet_without_running_anything(boss):
    audit(boss, "secret.set", '=HYPERLINK("http://evil.example")', {"name": "Ω, “quotes”\nand lines"})
    answer = Api(boss).call("GET", "/audit/export?as=csv&action=secret")
    data = b"".join(answer.streaming_content)
    rows = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"))))
    assert [row["target"] for row in rows] == ['\'=HYPERLINK("http://evil.example")']
    assert json.loads(rows[0]["params"]) == {"name": "Ω, “quotes”\nand lines"}
    assert int(answer["Content-Length"]) == len(data)


def test_json_lines_carry_the_chain_and_the_export_is_told_itself(boss):
    audit(boss, "node.drained", "node a")
    audit_chain()
    answer = Api(boss).call("GET", "/audit/export?action=node.drained")
    (row,) = [json.loads(line) for line in b"".join(answer.streaming_content).splitlines()]
    assert row["hash"] == AuditEntry.objects.get(action="node.drained").link.hash
    assert AuditEntry.objects.get(action="audit.exported").params == {"as": "jsonl", "action": "node.drained"}


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_page_shows_staff_the_log_and_nobody_else(boss, language):
    audit(boss, "node.drained", "node <script>alert(1)</script>", {"reason": "<b>fan</b>"})
    browser = Client(headers={"Accept-Language": language})
    assert browser.get("/audit/").status_code == 302
    browser.force_login(user_make("li@lab.example"))
    assert browser.get("/audit/").status_code == 403
    browser.force_login(boss)
    page = browser.get("/audit/").content.decode()
    assert "&lt;script&gt;" in page
    assert "<script>alert" not in page
    assert browser.get("/audit/?since=never").status_code == 400
    answer = browser.get("/audit/?as=csv")
    assert answer["Content-Type"].startswith("text/csv")
    assert b"node.drained" in b"".join(answer.streaming_content)


def test_the_page_costs_the_same_number_of_queries_however_long_the_log(boss, django_assert_max_num_queries):
    entries(60)
    audit_chain()
    browser = Client()
    browser.force_login(boss)
    browser.get("/audit/")
    with django_assert_max_num_queries(9):
        browser.get("/audit/")


def test_every_action_has_words():
    assert all(text and text == text.strip() for text in ACTIONS.values())


def test_a_password_and_an_account_switched_off_are_told(boss):
    person = user_make("li@lab.example", password=PASSWORD)
    own = Client()
    own.post("/accounts/login/", {"login": person.email, "password": PASSWORD})
    fields = {"oldpassword": PASSWORD, "password1": "another long one 42", "password2": "another long one 42"}
    assert own.post("/accounts/password/change/", fields).status_code == 302
    boss.is_superuser = True
    boss.save()
    browser = Client()
    browser.force_login(boss)
    form = browser.get(f"/admin/quotas/user/{person.pk}/change/").context["adminform"].form
    fields = {name: value for name, value in form.initial.items() if value not in (None, False, [])}
    del fields["is_active"]
    fields |= {"last_login_0": "", "last_login_1": ""}
    assert browser.post(f"/admin/quotas/user/{person.pk}/change/", fields).status_code == 302
    found = [(e.actor, e.action, e.target) for e in AuditEntry.objects.exclude(action__startswith="admin").order_by("pk")]
    assert ("li@lab.example", "password.changed", "") in found
    assert ("boss@lab.example", "user.switched_off", "user li@lab.example") in found
