"""Who may run where, through submit, pass, apply and forecast: nodes that map people to accounts, and nodes that keep nobody apart."""

from __future__ import annotations

import json
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from agent.protocol import IsolationInfo
from jobs import snapshot
from jobs.errors import NeverFits
from jobs.forecast import forecast
from jobs.models import Job, Rank
from jobs.requests import JobRequest
from jobs.services.submit import fits_forget
from jobs.waiting_page import why_data
from jobs.wording import reason_text
from nodes.isolation import isolation_json
from nodes.models import Node
from quotas.models import AuditEntry, IssuedAccount, User
from quotas.services import project_personal
from quotas.unix_accounts import UnixNameRefused, account_of, range_left, unix_name_set
from tests.factories import ISOLATED, inventory, sync_of, user_make
from tests.jobs.lab import Lab, state

pytestmark = pytest.mark.django_db

MAPPED = isolation_json(IsolationInfo(identity="mapped", uid=0, sandbox="mounts"))
SHARED_UID = isolation_json(IsolationInfo(identity="same", uid=1000, account="ann", open=("agent_files", "processes")))
UNSAFE = isolation_json(IsolationInfo(identity="same", uid=0, ready=False, problem="root_same"))
OLDER: dict[str, Any] = {}  # an agent that tells nothing


@pytest.fixture
def lab() -> Lab:
    fits_forget()
    return Lab()


@pytest.fixture
def admin() -> User:
    return user_make("admin@lab.example", is_staff=True, is_superuser=True)


def refused(lab: Lab, owner: User, **request: Any) -> str:
    with pytest.raises(NeverFits) as caught:
        lab.submit(owner=owner, **request)
    assert not Job.objects.filter(owner=owner).exists()
    return caught.value.code


# --- accounts ---------------------------------------------------------------------------------------------------------


def test_without_a_unix_account_a_job_is_refused_before_it_is_placed_and_told_the_way_out(lab: Lab) -> None:
    lab.node("n1", 24_576, isolation=MAPPED)
    lin = user_make("lin@lab.example")
    assert refused(lab, lin) == "never_account"
    text = reason_text("never_account", {"node": "n1"})
    assert "users_map" in text
    with translation.override("zh-hans"):
        assert "users_map" in reason_text("never_account", {"node": "n1"}) != text


def test_with_one_the_job_runs_as_it_there_and_as_nobody_by_name_elsewhere(lab: Lab) -> None:
    lin = user_make("lin@lab.example", unix_name="lin")
    mapped = lab.node("n1", 24_576, isolation=MAPPED)
    first = lab.submit(owner=lin)
    lab.schedule()
    Node.objects.filter(pk=mapped.pk).update(cordoned=True)
    lab.node("n2", 24_576)
    second = lab.submit(owner=lin)
    lab.schedule()
    specs = {job: Rank.objects.get(attempt__job=job).spec for job in (first, second)}
    assert (specs[first]["unix_user"], specs[first].get("unix_uid")) == ("lin", None)
    assert "unix_user" not in specs[second]


def test_an_account_that_was_taken_away_keeps_a_waiting_job_waiting_also_between_plan_and_apply(lab: Lab, monkeypatch: Any) -> None:
    lin = user_make("lin@lab.example", unix_name="lin")
    lab.node("n1", 24_576, isolation=MAPPED)
    job = lab.submit(owner=lin)
    real = snapshot.nodes_lock

    def too_late(*args: Any, **kwargs: Any) -> Any:
        User.objects.filter(pk=lin.pk).update(unix_name="")
        return real(*args, **kwargs)

    monkeypatch.setattr(snapshot, "nodes_lock", too_late)
    lab.schedule()
    assert not Rank.objects.exists()
    lab.schedule()
    job.refresh_from_db()
    assert (job.state, job.wait_code) == ("WAITING", "never_account")
    why = why_data(job, now=lab.now)
    assert "has none" in why["nodes"][0].text


def test_the_preview_says_what_the_submit_would(lab: Lab) -> None:
    lab.node("n1", 24_576, isolation=MAPPED)
    lin = user_make("lin@lab.example")
    wanted = JobRequest(name="x", argv=("true",), project=project_personal(lin))
    told = forecast(wanted, owner=lin, now=lab.now)
    assert (told.kind, told.code) == ("never", "never_account")
    unix_name_set(lin, "lin")
    assert forecast(wanted, owner=lin, now=lab.now).kind == "starts"


def test_accounts_are_made_on_demand_from_the_range_and_end_with_it(lab: Lab, settings: Any) -> None:
    settings.UNIX_RANGE, settings.UNIX_PREFIX = range(20_000, 20_002), "nb-"
    lab.node("n1", 24_576, 24_576, 24_576, isolation=MAPPED)
    people = [user_make(f"{name}@lab.example") for name in ("Li.N", "li_n", "mal")]
    jobs = [lab.submit(owner=owner, gpu_mem_mib=4096) for owner in people[:2]]
    lab.schedule()
    specs = [Rank.objects.get(attempt__job=job).spec for job in jobs]
    assert [(spec["unix_user"], spec["unix_uid"]) for spec in specs] == [("nb-lin", 20_000), ("nb-li-n", 20_001)]
    assert range_left() == 0
    assert refused(lab, people[2]) == "never_account"
    assert account_of(people[2]) is None
    assert account_of(people[0]) == ("nb-lin", 20_000)
    assert AuditEntry.objects.filter(action="user.unix_name").count() == 2


def test_a_number_and_a_name_of_the_range_are_never_given_out_again(lab: Lab, settings: Any) -> None:
    settings.UNIX_RANGE, settings.UNIX_PREFIX = range(20_000, 20_003), "nb-"
    ann, other, third = (user_make(f"ann@{place}.example") for place in ("lab", "works", "home"))
    assert account_of(ann) == ("nb-ann", 20_000)
    unix_name_set(ann, "")
    assert range_left() == 2
    assert account_of(other) == ("nb-ann1", 20_001)
    unix_name_set(other, "ann")
    assert account_of(ann) == ("nb-ann2", 20_002)
    assert range_left() == 0
    assert account_of(third) is None


def test_what_was_given_out_before_it_was_kept_is_taken_from_the_audit_log(settings: Any) -> None:
    settings.UNIX_RANGE, settings.UNIX_PREFIX = range(20_000, 20_010), "nb-"
    ann, lin = user_make("ann@lab.example"), user_make("lin@lab.example")
    assert account_of(ann) == ("nb-ann", 20_000)
    unix_name_set(ann, "")
    account_of(lin)
    IssuedAccount.objects.all().delete()
    import_module("quotas.migrations.0017_issued_accounts").fill(apps, None)
    assert sorted(IssuedAccount.objects.values_list("uid", "name")) == [(20_000, "nb-ann"), (20_001, "nb-lin")]


# --- nodes that keep nobody apart ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [SHARED_UID, OLDER], ids=["its own account", "an older agent"])
def test_only_the_first_administrator_runs_where_jobs_can_read_each_others_files(lab: Lab, admin: User, settings: Any, told: Any) -> None:
    second = user_make("second@lab.example", is_staff=True, is_superuser=True)
    lin = user_make("lin@lab.example")
    lab.node("n1", 24_576, isolation=told)
    assert [refused(lab, owner) for owner in (lin, second)] == ["never_isolation"] * 2
    job = lab.submit(owner=admin)
    lab.schedule()
    assert state(job) == "STARTING"
    settings.ALLOW_UNISOLATED = True
    fits_forget()
    waits = lab.submit(owner=lin)
    lab.exit(job)
    lab.schedule()
    assert state(waits) == "STARTING"


def test_secrets_go_only_to_nodes_that_keep_people_apart(lab: Lab, admin: User, settings: Any) -> None:
    settings.ALLOW_UNISOLATED = True
    lin = user_make("lin@lab.example")
    shared = lab.node("n1", 24_576, isolation=SHARED_UID)
    assert refused(lab, lin, secrets=("TOKEN",)) == "never_secret_isolation"
    assert lab.submit(owner=lin) is not None
    good = lab.node("n2", 24_576)
    fits_forget()
    job = lab.submit(owner=lin, secrets=("TOKEN",))
    lab.schedule()
    assert Rank.objects.get(attempt__job=job).node == good
    settings.SECRETS_ON_SHARED_NODES = True
    Node.objects.filter(pk=good.pk).update(cordoned=True)
    Job.objects.filter(owner=lin).exclude(pk=job.pk).update(held=True)
    job = lab.submit(owner=lin, secrets=("TOKEN",), gpu_mem_mib=4096)
    lab.schedule()
    assert shared.pk in set(Rank.objects.filter(attempt__job__owner=lin).values_list("node", flat=True))


def test_a_node_that_can_start_nothing_safely_gets_nothing_and_jobs_wait_for_it(lab: Lab, admin: User) -> None:
    lab.node("n1", 24_576, isolation=UNSAFE, state="READY")
    job = lab.submit(owner=admin)
    lab.schedule()
    job.refresh_from_db()
    # It keeps nobody apart either, but the first administrator is not kept away for that.
    assert (job.state, job.wait_code) == ("WAITING", "node_unsafe")


def test_a_node_that_has_told_nothing_yet_is_waited_for_and_sends_nobody_away(lab: Lab) -> None:
    lab.node("n1", 24_576, isolation=None)
    job = lab.submit()
    lab.schedule()
    job.refresh_from_db()
    assert (job.state, job.wait_code) == ("WAITING", "node_not_ready")


def test_what_an_agent_tells_is_kept_and_bounded(no_redis: None) -> None:
    from nodes.sync import node_sync

    node = Lab().node("n1", isolation=None)
    wild = IsolationInfo(identity="x" * 900, uid=-5, open=("w",) * 900, limits={f"l{n}": True for n in range(900)}, problem="p" * 900)
    for seq, told in enumerate((ISOLATED, wild, None), start=1):
        node_sync(node=node, sync=sync_of(node, seq, inventory=inventory("GPU-a", isolation=told)), now=Lab().now)
        node.refresh_from_db()
        assert len(json.dumps(node.isolation)) < 4000
        assert node.takes_work is True
        node.state = "READY"
    assert node.isolation == {}


# --- cost -------------------------------------------------------------------------------------------------------------------


def test_a_pool_that_demands_nothing_costs_a_pass_no_query_more(lab: Lab) -> None:
    node = lab.node("n1", 24_576)
    for n in range(5):
        lab.submit(owner=user_make(f"u{n}@lab.example"), gpu_count=1)
    snapshot.build(lab.now)
    with CaptureQueriesContext(connection) as plain:
        view = snapshot.build(lab.now)
    assert len({id(job.request) for job in view.jobs}) == 1
    Node.objects.filter(pk=node.pk).update(isolation=MAPPED | {"open": ["processes"]})
    with CaptureQueriesContext(connection) as demanding:
        view = snapshot.build(lab.now)
    assert {job.request.lacks for job in view.jobs} == {frozenset({"account", "isolation"})}
    assert len(demanding) == len(plain) + 2  # accounts, and who came first


# --- manage.py users_map ------------------------------------------------------------------------------------------------------


def ran(*args: str) -> str:
    out = StringIO()
    call_command("users_map", *args, stdout=out)
    return out.getvalue()


def test_users_map_lists_sets_clears_and_tries(tmp_path: Path) -> None:
    ann, lin = user_make("ann@lab.example"), user_make("lin@lab.example", unix_name="lin")
    assert ran() == "ann@lab.example\t-\nlin@lab.example\tlin\n"
    assert ran("--missing") == "ann@lab.example\t-\n"
    assert "1 of 1 accounts would change" in ran("ann@lab.example=ann", "--dry-run")
    ann.refresh_from_db()
    assert ann.unix_name == ""
    table = tmp_path / "map.csv"
    table.write_text("# person,account\nANN@lab.example, ann\n\nlin@lab.example,-\n")
    assert "2 of 2 accounts changed" in ran("--file", str(table))
    for user, name in ((ann, "ann"), (lin, "")):
        user.refresh_from_db()
        assert user.unix_name == name
    assert AuditEntry.objects.filter(action="user.unix_name").count() == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["ann@lab.example"], "is no PERSON=ACCOUNT"),
        (["nobody@lab.example=x"], "no person"),
        (["ann@lab.example=root"], "account of the system"),
        (["ann@lab.example=Ann B"], "no Unix account name"),
        (["ann@lab.example=lin"], "is the Unix account of lin@lab.example already"),
        (["--file", "/no/such.csv"], "cannot be read"),
        (["ann@lab.example=ann", "lin@lab.example=0x"], "no Unix account name"),
    ],
)
def test_users_map_does_all_or_nothing_and_says_why(args: list[str], words: str) -> None:
    ann = user_make("ann@lab.example")
    user_make("lin@lab.example", unix_name="lin")
    with pytest.raises(CommandError, match=words) as caught:
        ran(*args)
    assert caught.value.returncode == 2
    ann.refresh_from_db()
    assert ann.unix_name == ""


def test_one_account_for_two_people_is_said_aloud() -> None:
    user_make("lin@lab.example", unix_name="lab")
    ann = user_make("ann@lab.example")
    with pytest.raises(UnixNameRefused):
        unix_name_set(ann, "lab")
    assert ran("ann@lab.example=lab", "--share").startswith("ann@lab.example\t- → lab")


@pytest.mark.parametrize(("name", "is_taken"), [("ann", True), ("root", False), ("lin", False), ("A b", False), ("", True)])
def test_the_administration_holds_the_same_rules(admin: User, name: str, is_taken: bool) -> None:
    user_make("lin@lab.example", unix_name="lin")
    ann = user_make("ann@lab.example", unix_name="before", unix_uid=20_000)
    browser = Client()
    browser.force_login(admin)
    form = browser.get(f"/admin/quotas/user/{ann.pk}/change/").context["adminform"].form
    fields = {key: value for key, value in form.initial.items() if value not in (None, False, [])}
    fields |= {"last_login_0": "", "last_login_1": "", "unix_name": name}
    assert browser.post(f"/admin/quotas/user/{ann.pk}/change/", fields).status_code == (302 if is_taken else 200)
    ann.refresh_from_db()
    assert (ann.unix_name, ann.unix_uid) == ((name, None) if is_taken else ("before", 20_000))


# --- the way between nodes ----------------------------------------------------------------------------------------------


def test_a_job_on_two_nodes_goes_where_they_can_call_each_other_and_is_refused_where_none_can() -> None:
    lab = Lab()
    near, far = lab.node("near", 24_564), lab.node("far", 24_564)
    Node.objects.filter(pk=near.pk).update(address="127.0.0.1")  # the control plane's own machine
    Node.objects.filter(pk=far.pk).update(address="10.0.0.7")
    fits_forget()
    with pytest.raises(NeverFits) as caught:
        lab.submit(gpu_count=2, nodes=2)
    assert caught.value.code == "never_nodes"  # of two nodes one can be called
    single = lab.submit(gpu_count=1)
    lab.schedule(lab.now)
    assert state(single) == "STARTING"
    third, fourth = lab.node("third", 24_564), lab.node("fourth", 24_564)
    Node.objects.filter(pk__in=(third.pk, fourth.pk)).update(address="10.0.0.8")
    fits_forget()
    both = lab.submit(gpu_count=2, nodes=2)
    lab.schedule(lab.now)
    assert state(both) == "STARTING"
    assert near.pk not in Rank.objects.filter(attempt__job=both).values_list("node_id", flat=True)
