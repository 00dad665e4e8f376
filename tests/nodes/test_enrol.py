"""A token lets one machine in, once, within its hour; and it takes over no node that works."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from agent.protocol import EnrolRequest
from nodes import services
from nodes.auth import node_authenticate
from nodes.errors import EnrolRefused, NodeRefused
from nodes.models import AgentCommand, EnrolToken, Node, NodeState
from nodes.services import command_create, enrol_token_create, node_cordon, node_enrol, node_resume, node_retire
from tests.factories import attempt_make, gpu_make, node_header, node_make, user_make
from tests.rest import Api
from tests.threads import in_threads

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_redis", "published")]
NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


def request(token: str, **fields) -> EnrolRequest:
    return EnrolRequest(**{"token": token, "hostname": "gpu-1.lab.example", **fields})


def test_a_machine_joins_and_its_credential_opens_its_node():
    admin = user_make(is_staff=True)
    token, secret = enrol_token_create(by=admin, now=NOW)
    answer = node_enrol(request=request(secret), now=NOW)
    node = Node.objects.get()
    assert (answer.node_id, answer.name, node.state) == (node.pk, "gpu-1", NodeState.ENROLLING)
    assert len(answer.credential) == 64
    assert node_authenticate(f"Node {node.pk}:{answer.credential}") == node
    assert answer.credential not in str(Node.objects.values())
    assert secret not in str(EnrolToken.objects.values())
    token.refresh_from_db()
    assert (token.used_at, token.node, token.created_by) == (NOW, node, admin)


def test_every_machine_is_told_this_control_planes_own_name():
    admin = user_make(is_staff=True)
    answers = [node_enrol(request=request(enrol_token_create(by=admin, now=NOW)[1]), now=NOW) for _ in range(2)]
    assert len({answer.node_id for answer in answers}) == 2
    assert {answer.installation for answer in answers} == {services.installation_code()}
    assert len(services.installation_code()) == 12


@pytest.mark.django_db(transaction=True)
def test_one_token_lets_one_of_twenty_threads_in():
    _, secret = enrol_token_create(by=None)
    answers = in_threads(20, lambda number: node_enrol(request=request(secret, hostname=f"gpu-{number}")).node_id)
    refused = [answer for answer in answers if isinstance(answer, EnrolRefused)]
    assert len(refused) == 19, answers
    assert Node.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_machines_of_one_name_get_a_name_each():
    tokens = [enrol_token_create(by=None)[1] for _ in range(6)]
    answers = in_threads(6, lambda number: node_enrol(request=request(tokens[number])).name)
    assert sorted(answers) == ["gpu-1", "gpu-1-2", "gpu-1-3", "gpu-1-4", "gpu-1-5", "gpu-1-6"]


def test_a_used_an_expired_and_an_unknown_token_are_refused_in_the_same_words():
    _, used = enrol_token_create(by=None, now=NOW)
    node_enrol(request=request(used), now=NOW)
    _, expired = enrol_token_create(by=None, ttl_s=60, now=NOW - timedelta(seconds=60))
    texts = set()
    for secret in (used, expired, "nge_unknown", ""):
        with pytest.raises(EnrolRefused) as caught:
            node_enrol(request=request(secret), now=NOW)
        texts.add((caught.value.http_status, caught.value.code, caught.value.message))
    assert texts == {(401, "enrol_token_invalid", "This enrolment token is unknown, used or expired. Ask an admin for a new one.")}


@pytest.mark.parametrize("ttl_s", [0, -1, 3601])
def test_a_token_lives_for_an_hour_at_most(ttl_s):
    with pytest.raises(NodeRefused) as caught:
        enrol_token_create(by=None, ttl_s=ttl_s)
    assert caught.value.message == f"An enrolment token lives for 1–3600 s; got {ttl_s} s."


def test_the_token_fixes_the_name():
    _, secret = enrol_token_create(by=None, node_name="a100-box")
    assert node_enrol(request=request(secret, name="other")).name == "a100-box"


@pytest.mark.parametrize(
    ("hostname", "name"), [("GPU_3.lab", "gpu_3"), ("节点", "node"), ("$(touch x)", "touch-x"), ("-" * 300, "node"), ("a" * 300, "a" * 63)]
)
def test_any_host_name_makes_a_name(hostname, name):
    _, secret = enrol_token_create(by=None)
    assert node_enrol(request=request(secret, hostname=hostname)).name == name


def test_a_token_without_a_name_takes_over_no_node():
    node = node_make("gpu-1", state=NodeState.DOWN)
    _, secret = enrol_token_create(by=None)
    assert node_enrol(request=request(secret, name="gpu-1")).name == "gpu-1-2"
    assert node_authenticate(node_header(node)) == node


@pytest.mark.parametrize("state", [NodeState.UNKNOWN, NodeState.DOWN, NodeState.RETIRED])
def test_a_token_with_a_name_brings_a_lost_node_back(state):
    node = node_make("gpu-1", state=state)
    gpu = gpu_make(node)
    _, secret = enrol_token_create(by=None, node_name="gpu-1")
    answer = node_enrol(request=request(secret))
    node.refresh_from_db()
    assert (answer.node_id, node.state, node.gpus.get()) == (node.pk, NodeState.ENROLLING, gpu)
    # It may be another machine: its boot id must prove nothing about what ran on the old one.
    assert node.boot_id == ""
    assert node_authenticate(node_header(node)) is None
    assert node_authenticate(f"Node {node.pk}:{answer.credential}") == node


def test_a_working_node_is_not_knocked_out_and_the_token_stays_good():
    node = node_make("gpu-1", last_seen_at=NOW - timedelta(seconds=5))
    _, secret = enrol_token_create(by=None, node_name="gpu-1", now=NOW)
    with pytest.raises(NodeRefused) as caught:
        node_enrol(request=request(secret), now=NOW)
    assert (caught.value.http_status, caught.value.code) == (409, "node_busy")
    assert node_authenticate(node_header(node)) == node
    node_enrol(request=request(secret), now=NOW + timedelta(seconds=15))


def test_a_node_whose_cards_are_held_is_not_enrolled_anew():
    node = node_make("gpu-1", state=NodeState.UNKNOWN)
    attempt_make(gpus=(gpu_make(node),))
    _, secret = enrol_token_create(by=None, node_name="gpu-1")
    with pytest.raises(NodeRefused, match="node_busy"):
        node_enrol(request=request(secret))


# --- drains ---------------------------------------------------------------------------------------------------------


def test_a_drained_node_takes_no_work_until_it_is_resumed(published, django_capture_on_commit_callbacks):
    admin, node = user_make(is_staff=True), node_make()
    with django_capture_on_commit_callbacks(execute=True):
        node_cordon(node=node, by=admin, reason="  new fan ")
    assert (node.takes_work, node.cordon_reason, node.cordoned_by) == (False, "new fan", admin)
    assert [group for group, _ in published] == ["live.pool"]
    node_resume(node=node, by=admin)
    assert (node.takes_work, node.cordon_reason, node.cordoned_by) == (True, "", None)


@pytest.mark.parametrize(("reason", "until"), [("", None), (" ", None), ("x" * 201, None), ("fan", NOW)])
def test_a_drain_needs_a_reason_and_an_end_in_the_future(reason, until):
    node = node_make()
    with pytest.raises(NodeRefused):
        node_cordon(node=node, by=None, reason=reason, until=until, now=NOW)
    node.refresh_from_db()
    assert node.takes_work


def test_a_retired_node_is_out_for_good_but_not_while_its_cards_are_held():
    node = node_make(cards=1)
    attempt = attempt_make(gpus=(node.gpus.get(),))
    with pytest.raises(NodeRefused, match="node_busy"):
        node_retire(node=node, by=None)
    attempt.ranks.get().slices.update(state="RELEASED")
    node.gpus.update(held_mib=0, live_slices=0)
    node_retire(node=node, by=None)
    assert node.state == NodeState.RETIRED
    assert node_authenticate(node_header(node)) is None


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_command_nudges_its_node_by_a_task_after_the_commit(monkeypatch, django_capture_on_commit_callbacks):
    nudged = []
    monkeypatch.setattr("nodes.tasks.node_nudge.apply_async", lambda args, **options: nudged.append((args, options["retry"])))
    node, admin = node_make(), user_make(is_staff=True)
    with django_capture_on_commit_callbacks(execute=True):
        command = command_create(node=node, verb="diagnose", args={"a": "b\x00"}, by=admin, now=NOW)
        assert nudged == []
    assert nudged == [((node.pk,), False)]
    assert (command.state, command.args, command.created_by, command.expires_at) == (
        "QUEUED",
        {"a": "b�"},
        admin,
        NOW + timedelta(seconds=60),
    )


def test_a_command_is_kept_when_the_broker_is_away(monkeypatch, django_capture_on_commit_callbacks):
    def away(*args, **options):
        raise OSError("no broker")

    monkeypatch.setattr("nodes.tasks.node_nudge.apply_async", away)
    with django_capture_on_commit_callbacks(execute=True):
        command_create(node=node_make(), verb="ping")
    assert AgentCommand.objects.get().state == "QUEUED"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"verb": "rm -rf /"}, "verb_unknown"),
        ({"verb": "warmup"}, "verb_unknown"),  # no agent knows it yet
        ({"verb": "tail", "args": {"x": "y" * 20_000}}, "args_too_long"),
        ({"verb": "ping", "ttl_s": 0}, "command_ttl"),
        ({"verb": "ping", "ttl_s": 10**9}, "command_ttl"),
    ],
)
def test_a_command_that_is_none_is_refused(fields, code):
    with pytest.raises(NodeRefused, match=code) as caught:
        command_create(node=node_make(), **fields)
    assert caught.value.message
    assert not AgentCommand.objects.exists()


def test_a_retired_node_takes_no_command():
    with pytest.raises(NodeRefused, match="node_retired"):
        command_create(node=node_make(state=NodeState.RETIRED), verb="ping")


def test_a_command_that_nobody_answers_expires():
    node = node_make()
    old, young = (command_create(node=node, verb="ping", ttl_s=ttl_s, now=NOW) for ttl_s in (60, 61))
    assert services.commands_expire(now=NOW + timedelta(seconds=60)) == 1
    old.refresh_from_db()
    young.refresh_from_db()
    assert [(old.state, old.finished_at), (young.state, young.finished_at)] == [("EXPIRED", NOW + timedelta(seconds=60)), ("QUEUED", None)]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("gpu01.lab.example.org", "gpu01.lab.example.org"),
        ("GPU01.Lab.", "gpu01.lab"),
        ("gpu01..lab", "gpu01.lab"),
        ("gpu 01", "gpu-01"),
        ("...", "node"),
        ("a" * 70, "a" * 63),
    ],
)
def test_an_admin_may_name_a_machine_with_dots(asked: str, name: str):
    _token, secret = enrol_token_create(by=None, node_name=asked, now=NOW)
    assert node_enrol(request=request(secret), now=NOW).name == name


@pytest.mark.parametrize("name", ["gpu01", "gpu01.lab.example.org", "-old_Slug-"])
def test_each_page_of_a_node_has_an_address(name: str):
    node = node_make(name, cards=1)
    boss = Client()
    boss.force_login(user_make(is_staff=True, is_superuser=True))
    for path in ("", "drain/", "labels/", "curves/", "gpu0/", "gpu0/curves/", "gpu0/act/isolate/"):
        assert boss.get(f"/nodes/{node.name}/{path}").status_code == 200, path


@pytest.mark.parametrize("name", ["gpu/01", "gpu01.", ".gpu01", "a..b", "gpu 01", "gpü", "x" * 64])
def test_a_name_that_no_node_can_have_is_refused_in_one_sentence(name: str):
    status, error = Api(user_make(is_staff=True)).post("/nodes/enroll-token", {"name": name})
    assert status == 400
    assert "slug" not in error["message"]
    assert "gpu01.lab.example.org" in error["message"] or len(name) > 63
