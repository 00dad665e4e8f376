"""What the command line says of itself and of numbers: flags, bare groups, units, states that agree; and words that are no text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from client import ctl
from client.encoding import body_encode, bytes_shown
from client.errors import UsageFault
from client.testing import FakeApi
from tests.client.conftest import Ctl

ROOT = Path(__file__).parents[2]
CAFE = os.fsdecode(b"caf\xe9")


def test_a_flag_is_not_shown_as_if_it_took_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], *([*words] for words in ctl.COMMANDS), *([group] for group in ctl.GROUPS)):
        assert ctl.run([*words, "--help"]) == 0
        out = capsys.readouterr().out
        assert "--help" in out, words
        assert "<bool>" not in out, words


@pytest.mark.parametrize("group", sorted(ctl.BARE))
def test_a_group_alone_shows_what_there_is(nebula: Ctl, api: FakeApi, group: str) -> None:
    ran, named = nebula(group), nebula(group, ctl.BARE[group])
    assert (ran.code, ran.out, ran.err) == (named.code, named.out, named.err)
    assert nebula(group, "--json").out == nebula(group, ctl.BARE[group], "--json").out


def test_a_group_with_an_unknown_word_is_still_a_wrong_command_line(nebula: Ctl) -> None:
    assert nebula("quota", "shwo").code == 2


def test_options_between_a_group_and_its_command_count_for_the_command(nebula: Ctl, api: FakeApi) -> None:
    assert nebula("node", "--json", "list").json() == []


def test_cards_that_count_as_maintenance_are_named_with_their_reason(nebula: Ctl, api: FakeApi) -> None:
    api.node_add("node01", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090")
    api.node_add("node02", "NVIDIA GeForce RTX 4090", cordoned=True, cordon_reason="new fans")
    api.node_add("node03", "NVIDIA GeForce RTX 4090", state="UNKNOWN")
    api.nodes[0]["gpus"][1]["state"] = "MISSING"
    out = nebula("status").out
    assert "(1 idle, 0 busy, 3 maintenance)" in out
    assert "  Maintenance: node01:1 MISSING, node02:0 node cordoned, node03:0 node UNKNOWN\n" in out
    states = {line.split()[0]: line for line in nebula("gpu", "list").out.splitlines()[1:]}
    assert "MISSING" in states["node01:1"]
    assert "node out" in states["node02:0"]
    assert "HEALTHY" in states["node01:0"]


def test_advice_is_told_in_words(nebula: Ctl, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.node_add("node01", "NVIDIA GeForce RTX 4090", advice=[{"code": "a", "text": "Turn on persistence mode."}])
    monkeypatch.delenv("COLUMNS", raising=False)  # a pipe is not cut
    assert "advice: Turn on persistence mode." in nebula("node", "list").out
    api.nodes[0]["advice"].append({"code": "b", "text": "Reboot."})
    assert "(and 1 more: node show node01)" in nebula("node", "list").out


@pytest.mark.parametrize(
    "argv", [["submit", "--", CAFE], ["submit", "--name", CAFE, "--", "true"], ["list", "-q", CAFE], ["node", "show", CAFE]]
)
def test_a_word_that_is_no_text_is_named(nebula: Ctl, api: FakeApi, argv: list[str]) -> None:
    ran = nebula(*argv)
    assert ran.code == 2
    assert re.search(rf"Word {argv.index(CAFE) + 1} of the command line is not UTF-8: caf\\xe9\.", ran.err), ran.err
    assert not api.jobs


def test_a_folder_whose_name_is_no_text_is_named(profile: Path, api: FakeApi, tmp_path: Path) -> None:
    folder = tmp_path / CAFE
    folder.mkdir()
    env = {name: value for name, value in os.environ.items() if name != "PWD"} | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-m", "client", "submit", "--", "true"], cwd=folder, env=env, capture_output=True, text=True)
    assert ran.returncode == 2
    assert "The name of the working folder is not UTF-8" in ran.stderr
    assert "caf\\xe9" in ran.stderr


def test_a_copied_variable_that_is_no_text_is_named(nebula: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD", CAFE)
    ran = nebula("submit", "--env", "ODD", "--", "true")
    assert ran.code == 2
    assert "--env ODD: the value is not UTF-8: caf\\xe9" in ran.err


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"argv": ["python", CAFE]}, "argv[1]"),
        ({"env": {"A": "b", "NAME": CAFE}}, "env.NAME"),
        ({"constraints": {"labels": {"rack": CAFE}}}, "constraints.labels.rack"),
        ({"name": "\ud800"}, "name"),
    ],
)
def test_the_sdk_names_the_field_that_is_no_text(body: dict[str, object], field: str) -> None:
    with pytest.raises(UsageFault) as caught:
        body_encode(body)
    assert caught.value.message.startswith(f"{field} is not UTF-8: ")


def test_odd_bytes_are_shown_as_they_are() -> None:
    assert bytes_shown(CAFE) == "caf\\xe9"
    assert bytes_shown("训练" + CAFE) == "训练caf\\xe9"
    assert bytes_shown("a\ud800") == "a\\ud800"


def test_the_sdk_has_a_name_of_its_own() -> None:
    code = "import nebulagrid_client as n, nebulagrid_client.testing\n"
    code += "print(all(hasattr(n, name) for name in n.__all__), n.NebulaClient.__name__)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "NebulaClient"]


def test_the_list_of_jobs_has_a_column_for_the_node(nebula: Ctl, api: FakeApi) -> None:
    api.node_add("node03", "NVIDIA GeForce RTX 4090")
    number = api.job_add(name="train")
    assert "NODE" not in nebula("list").out
    api.job_start(number)
    header, row = nebula("list").out.splitlines()
    assert row[header.index("NODE") :].startswith("node03")


def test_the_list_of_cards_says_who_uses_them(nebula: Ctl, api: FakeApi) -> None:
    api.node_add("node03", "NVIDIA GeForce RTX 4090", busy=1)
    assert "USED BY" not in nebula("gpu", "list").out
    api.nodes[0]["gpus"][0]["slices"] = [
        {"id": "s-1", "memory_mib": 4096, "state": "active", "job": 12, "name": "train", "user": "lin@lab.example"},
        {"id": "s-2", "memory_mib": 4096, "state": "active", "job": None, "name": None, "user": None},
    ]
    header, row = nebula("gpu", "list").out.splitlines()
    assert row[header.index("USED BY") :].startswith("lin: tra")
