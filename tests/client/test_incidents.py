"""nebula-ctl incidents: what is open, one of them whole, a note, the review."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from client.profile import Profile, profile_save
from client.testing import FakeApi
from tests.client.conftest import Ctl

KERNEL = ["pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error", "NVRM: Xid: 79, \x1b[31mfell"]


@pytest.fixture
def number(api: FakeApi) -> int:
    line = {"at": "2030-01-01T10:00:00Z", "code": "suspect", "params": {}, "text": "Suspect: no new work comes to it.", "by": None}
    api.incident_add("node02", phase="CLOSED", review="a riser", recovered_s=3725.0)
    return api.incident_add(
        "node01", 3, phase="REVIEW", timeline=[line], recovered_s=42.0, recovered_at="2030-01-01T10:00:42Z",
        evidence={"kernel": KERNEL, "power": [[1_893_492_000 + n, 300 + n, None, 2100] for n in range(20)]},
    )  # fmt: skip


def test_what_is_open_is_listed_and_the_rest_on_request(nebula: Ctl, number: int) -> None:
    done = nebula("incidents", "list")
    assert done.code == 0
    assert "node01:3" in done.out
    assert "XID 79" in done.out
    assert "node02" not in done.out
    assert "1:02:05" in nebula("incidents", "list", "--phase", "all").out
    assert "node02:0" in nebula("incidents", "list", "--phase", "closed").out
    assert nebula("incidents", "list", "--node", "node09").out.strip() == "No incident."
    assert [row["id"] for row in json.loads(nebula("incidents", "list", "--json").out)] == [number]
    wrong = nebula("incidents", "list", "--phase", "lost")
    assert (wrong.code, "there are: open, all, detected" in wrong.err) == (2, True)


def test_one_is_shown_with_its_timeline_the_kernels_words_and_what_the_card_drew(nebula: Ctl, number: int) -> None:
    done = nebula("incidents", "show", str(number))
    assert done.code == 0
    assert "Suspect: no new work comes to it." in done.out
    assert "AER: Uncorrected" in done.out
    assert "\x1b" not in done.out  # what a driver writes steers no terminal
    assert "319 W  -  2100 MHz" in done.out
    assert "300 W" not in done.out  # the newest ten
    assert nebula("incidents", "show", "99").code == 4
    assert nebula("incidents", "show", "x").code == 2


def test_staff_note_and_close_and_others_do_not(nebula: Ctl, profile: Path, api: FakeApi, number: int) -> None:
    refused = nebula("incidents", "close", str(number), "--text", "a new riser")
    assert (refused.code, api.incidents[0]["phase"]) == (3, "REVIEW")
    profile_save(profile, Profile(endpoint=api.url, token=api.staff_token))
    assert nebula("incidents", "note", str(number), "--text", "riser is loose").code == 0
    assert api.incidents[0]["timeline"][-1]["text"] == "riser is loose"
    assert nebula("incidents", "close", str(number), "--text", "  ").code == 2
    done = nebula("incidents", "close", str(number), "--text", "a new riser")
    assert (done.code, done.out.strip()) == (0, f"Incident #{number} is closed.")
    early = api.incident_add("node03")
    assert nebula("incidents", "close", str(early), "--text", "too soon").code == 5
