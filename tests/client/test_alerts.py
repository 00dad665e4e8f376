"""nebula-ctl alerts: what is open, who looks after it, what is muted."""

from __future__ import annotations

import json

import pytest

from client.testing import FakeApi
from tests.client.conftest import Ctl


def test_what_is_not_over_is_listed_and_the_rest_on_request(nebula: Ctl, api: FakeApi) -> None:
    api.alert_add("node01 gpu0 is at 87 °C\x1b[31m.")
    api.alert_add("over", state="RESOLVED", level="critical", node="node02")
    done = nebula("alerts", "list")
    assert done.code == 0
    assert "#1" in done.out
    assert "87 °C\\x1b[31m." in done.out
    assert "over" not in done.out
    assert [row["id"] for row in json.loads(nebula("alerts", "list", "--state", "all", "--json").out)] == [2, 1]
    assert "#2" in nebula("alerts", "list", "--state", "resolved", "--level", "critical", "--node", "node02").out
    assert nebula("alerts", "list", "--rule", "disk-low").out.strip() == "No alert."


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["list", "--state", "lost"], "--state 'lost': there are active, open, acknowledged, resolved, all."),
        (["list", "--level", "bad"], "--level 'bad': there are warning, critical."),
        (["mute", "--reason", "x"], "Name what to mute"),
        (["mute", "--reason", "x", "--rule", "hot", "--for", "soon"], "write a number with m, h or d, such as 4h."),
        (["mute", "--reason", "x", "--rule", "hot", "--gpu", "1"], "--gpu is an index on a machine"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(nebula: Ctl, api: FakeApi, argv: list[str], said: str) -> None:
    done = nebula("alerts", *argv)
    assert done.code == 2
    assert said in done.err
    assert api.mutes == []


def test_staff_acknowledge_and_take_it_back(nebula: Ctl, api: FakeApi) -> None:
    number = api.alert_add()
    assert nebula("alerts", "ack", str(number)).code == 3
    api.users[api.token]["is_staff"] = True
    done = nebula("alerts", "ack", str(number), "--note", "on my way")
    assert (done.code, done.out.strip()) == (0, "Alert #1 is acknowledged.")
    assert (api.alerts[0]["state"], api.alerts[0]["note"]) == ("ACKNOWLEDGED", "on my way")
    assert nebula("alerts", "ack", str(number), "--undo").out.strip() == "Alert #1 is open again."
    api.alerts[0]["state"] = "RESOLVED"
    assert nebula("alerts", "ack", str(number)).code == 5
    assert nebula("alerts", "ack", "99").code == 4


def test_staff_mute_a_card_for_a_while_and_lift_it(nebula: Ctl, api: FakeApi) -> None:
    api.users[api.token]["is_staff"] = True
    api.node_add("node07", "RTX 4090", "RTX 4090")
    done = nebula("alerts", "mute", "--node", "node07", "--gpu", "1", "--rule", "hot", "--for", "4h", "--reason", "new paste")
    assert done.code == 0, done.err
    assert done.out.startswith("Mute #1: ")
    assert (api.mutes[0]["for_s"], api.mutes[0]["node"]) == (14_400, "node07")
    assert api.mutes[0]["gpu"].startswith("GPU-")
    assert "new paste" in nebula("alerts", "mutes").out
    assert nebula("alerts", "mute", "--node", "node07", "--gpu", "9", "--reason", "x").code == 2
    assert nebula("alerts", "unmute", "1").out.strip() == "Mute #1 is lifted."
    assert nebula("alerts", "mutes").out.strip() == "Nothing is muted."
    assert nebula("alerts", "unmute", "7").code == 4
    assert "until it is lifted" in nebula("alerts", "mute", "--node", "node07", "--reason", "x").out
