"""Each node is looked at once a day: what is found here, what its own doctor adds, and where that is read."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import translation

from agent.doctor import report_json
from agent.doctor_checks import Check
from agent.protocol import CommandResult
from nodes.inspection_words import finding_said, summary
from nodes.inspections import doctor_findings, inspection_begin, inspection_results, inspections_due, node_findings
from nodes.models import AgentCommand, GpuSample, HealthEvent, Inspection, Level, Node, NodeSample
from nodes.sync import node_sync
from tests.factories import node_make, sync_of, user_make
from tests.rest import Api

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


def codes(node: Node) -> list[tuple[str, str, int | None]]:
    return [(finding["level"], finding["code"], finding["gpu"]) for finding in node_findings(node, now=NOW)]


def node_old(name: str = "n1", **fields: object) -> Node:
    return node_make(name, cards=2, created_at=NOW - timedelta(days=9), state_at=NOW - timedelta(days=2), **fields)


def day_of(node: Node, minutes: int = 1440, **figures: int) -> None:
    NodeSample.objects.bulk_create(
        NodeSample(node=node, level=Level.MINUTE, at=int(NOW.timestamp()) - 60 * n - 60, **figures) for n in range(minutes)
    )


def test_a_node_that_is_well_has_nothing_to_put_right() -> None:
    node = node_old()
    day_of(node, disk_free_mib=500_000)
    assert codes(node) == [("pass", "cards_well", None)]
    assert summary(node_findings(node, now=NOW)) == "1 right"


def test_what_happened_in_the_last_day_is_found_the_gravest_first() -> None:
    node = node_old(cordoned=True, cordon_reason="driver_mismatch")
    day_of(node, 700, disk_free_mib=900_000)
    NodeSample.objects.filter(node=node).order_by("at").first().delete()
    NodeSample.objects.create(node=node, level=Level.MINUTE, at=int(NOW.timestamp()) - 80_000, disk_free_mib=4000)
    first, second = node.gpus.order_by("index")
    node.gpus.filter(pk=first.pk).update(state="ISOLATED", state_reason="xid_again:79", state_at=NOW - timedelta(hours=7), health_score=40)
    at = int(NOW.timestamp()) - 3600
    GpuSample.objects.create(gpu=second, level=Level.MINUTE, at=at, temp_c=80, temp_max_c=91, throttled_pct=60)
    GpuSample.objects.create(gpu=second, level=Level.MINUTE, at=at + 60, temp_c=70, throttled_pct=0)
    for eid, (hours, count) in enumerate(((2, 3), (3, None), (30, 50))):
        data = {"xid": 31} | ({"count": count} if count else {})
        HealthEvent.objects.create(node=node, gpu=second, session="s", eid=eid, kind="xid", data=data, at=NOW - timedelta(hours=hours))
    assert codes(node) == [
        ("fail", "card_state", 0),
        ("warn", "cordoned", None),
        ("warn", "disk_low", None),
        ("warn", "samples_missing", None),
        ("warn", "score_low", 0),
        ("warn", "hot", 1),
        ("warn", "throttled", 1),
        ("warn", "xids", 1),
    ]
    said = {finding["code"]: finding_said(finding)[0] for finding in node_findings(node, now=NOW)}
    assert said["card_state"].startswith("Isolated for 7 hours. The driver reported XID 79 again")
    assert said["cordoned"].startswith("It takes no new work: The NVIDIA driver and its library differ")
    assert said["samples_missing"] == "Only 49% of the day's figures came in."
    assert said["hot"] == "It was up to 91 °C warm."
    assert said["xids"] == "The driver reported XID 31, 4 ×. (GPU memory page fault)"  # those of the day before are not counted
    with translation.override("zh-hans"):
        assert "91 °C" in finding_said(next(f for f in node_findings(node, now=NOW) if f["code"] == "hot"))[0]


def test_silence_is_what_is_found_of_a_silent_node_and_its_agent_is_not_asked() -> None:
    node = node_old()
    Node.objects.filter(pk=node.pk).update(state="UNKNOWN", state_at=NOW - timedelta(hours=5))
    node.refresh_from_db()
    found = inspection_begin(node=node, now=NOW)
    assert (found.findings[0]["code"], found.findings[0]["params"]["hours"]) == ("silent", 5)
    assert found.command is None


def test_each_node_is_due_once_a_day_and_old_reports_go() -> None:
    one, two = node_old("n1"), node_old("n2")
    Node.objects.create(name="n3", state="RETIRED")
    asked = [AgentCommand.objects.create(node=one, verb=verb, expires_at=NOW) for verb in ("doctor", "reset")]
    Inspection.objects.create(node=one, at=NOW - timedelta(days=31), command=asked[0])
    Inspection.objects.create(node=two, at=NOW - timedelta(hours=23))
    assert inspections_due(now=NOW) == 1
    assert list(Inspection.objects.order_by("at").values_list("node__name", flat=True)) == ["n2", "n1"]
    assert AgentCommand.objects.exclude(pk__gt=asked[1].pk).get() == asked[1]  # the doctor's answer went with its report
    assert inspections_due(now=NOW + timedelta(minutes=5)) == 0
    assert inspections_due(now=NOW + timedelta(hours=2)) == 1


REPORT = report_json(
    [
        Check(level="pass", area="agent", code="agent_running"),
        Check(level="warn", area="container", code="container_none"),
        Check(level="fail", area="config", code="config_bad", params={"error": "<b>no</b>"}, gpu=1),
    ],
    chinese=False,
)


def test_what_its_doctor_finds_comes_with_a_sync_in_both_languages() -> None:
    node = node_old()
    found = inspection_begin(node=node, now=NOW)
    command = AgentCommand.objects.get(verb="doctor")
    assert found.command == command
    # It exits with 1 where something is wrong: that is a report all the same.
    result = CommandResult(cid=command.pk, ok=False, text=REPORT)
    assert node_sync(node=node, sync=sync_of(node, results=(result,)), now=NOW).accepted
    found.refresh_from_db()
    assert found.is_told
    said = [(finding["level"], finding["gpu"], *finding_said(finding)) for finding in found.findings if finding["code"] == "doctor"]
    assert said[0] == ("fail", 1, "<b>no</b>", "")
    assert said[1][2:] == (
        "No container runtime was found: jobs that name an image are refused here.",
        "Install podman or docker if they are wanted.",
    )
    with translation.override("zh-hans"):
        assert any(finding_said(finding)[0].startswith("未找到容器运行时") for finding in found.findings)
    before = len(found.findings)
    inspection_results(node=node, cids=[command.pk])  # told again
    found.refresh_from_db()
    assert len(found.findings) == before


@pytest.mark.parametrize("text", ["", "It did not end in time and was killed.", "[]", '{"checks": 7}', '{"checks": null}', "\0"])
def test_an_answer_that_is_no_report_is_a_finding(text: str) -> None:
    (finding,) = doctor_findings(text)
    assert (finding["level"], finding["code"]) == ("warn", "doctor_silent")


def test_checks_of_a_strange_shape_do_no_harm() -> None:
    strange = [7, None, {"level": "x"}, {"level": "warn"}, {"level": "pass", "text": 5, "zh": "no", "gpu": True, "advice": "a" * 9000}]
    found = doctor_findings(json.dumps({"checks": strange}))
    assert [finding["level"] for finding in found] == ["warn", "pass"]
    assert (found[1]["gpu"], len(found[1]["params"]["advice"])) == (None, 400)
    assert finding_said(found[0]) == ("", "")


def test_the_page_shows_the_last_report_and_staff_may_have_one_made(client: Client) -> None:
    node = node_old()
    client.force_login(user_make())
    assert "the first look is still to come" in client.get("/nodes/n1/").content.decode()
    assert client.post("/nodes/n1/inspect/").status_code == 403
    client.force_login(user_make(is_staff=True))
    assert client.post("/nodes/n1/inspect/").headers["Location"] == "/nodes/n1/#inspection"
    command = AgentCommand.objects.get(verb="doctor")
    page = client.get("/nodes/n1/").content.decode()
    assert "still to come" in page
    AgentCommand.objects.filter(pk=command.pk).update(state="DONE", text=REPORT)
    inspection_results(node=node, cids=[command.pk])
    page = client.get("/nodes/n1/").content.decode()
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    assert "No container runtime" in page
    assert "1 wrong, " in page


def test_the_api_tells_reports_in_words_and_makes_one(client: Client) -> None:
    node_old()
    assert Api(user_make()).post("/nodes/n1/inspections", {})[0] == 403
    status, made = Api(user_make(is_staff=True)).post("/nodes/n1/inspections", {})
    assert (status, made["told"]) == (201, False)
    status, page = Api(user_make()).get("/nodes/n1/inspections")
    (row,) = page["results"]
    assert row["id"] == made["id"]
    assert {"level", "code", "gpu", "text", "advice", "params"} == set(row["findings"][0])
    assert Api(user_make()).get("/nodes/none/inspections")[0] == 404
