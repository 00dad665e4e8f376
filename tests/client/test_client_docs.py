"""docs/cli.md and docs/sdk.md name everything, and nothing that is not there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from client import ctl
from client.errors import ExitCode
from client.sdk import NebulaClient

ROOT = Path(__file__).resolve().parents[2]
CLI = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
SDK = (ROOT / "docs/sdk.md").read_text(encoding="utf-8")


def section(words: tuple[str, ...]) -> str:
    """The text under the command's own heading."""
    found = re.search(rf"^### `nebula-ctl {' '.join(words)}[ `].*?(?=^##)", CLI + "\n## end", re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no section for {' '.join(words)}"
    return found[0]


@cache
def tree() -> Any:
    return get_command(ctl.build())


def options(words: tuple[str, ...]) -> set[str]:
    node = tree()
    for word in words:
        node = node.commands[word]
    return {name for param in node.params if param.param_type_name == "option" for name in [*param.opts, *param.secondary_opts]}


@pytest.mark.parametrize("words", list(ctl.COMMANDS), ids=" ".join)
def test_each_command_and_flag_is_documented(words: tuple[str, ...]) -> None:
    text = section(words)
    own = options(words) - {"--json", "--profile"}
    assert sorted(name for name in own if not re.search(rf"`[^`]*(?<![\w-]){re.escape(name)}(?![\w-])", text)) == []


@pytest.mark.parametrize("words", list(ctl.COMMANDS), ids=" ".join)
def test_no_flag_is_documented_that_is_not_there(words: tuple[str, ...]) -> None:
    if words == ("submit",):
        words_text = re.sub(r"```.*?```", "", section(words), flags=re.DOTALL)
    else:
        words_text = section(words)
    tables = "\n".join(line for line in words_text.splitlines() if line.startswith("| `"))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(line.split("|")[1] for line in tables.splitlines())))
    assert named <= options(words)


def test_what_all_commands_share_is_documented() -> None:
    for name in ("--json", "--profile", "--help", "--version", "--install-completion", "--show-completion"):
        assert f"`{name}" in CLI or f" {name}`" in CLI


def test_each_exit_code_is_documented() -> None:
    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", CLI, re.MULTILINE))
    assert {int(code) for code in table} == {int(code) for code in ExitCode}


def test_each_variable_is_documented() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "client").rglob("*.py"))
    for name in set(re.findall(r"\"(NEBULA_[A-Z_]+)\"", source)):
        assert f"`{name}" in CLI, name


def test_each_sdk_method_is_documented() -> None:
    for name in vars(NebulaClient):
        if not name.startswith("_") and callable(getattr(NebulaClient, name)):
            assert f"`{name}`" in SDK, name


def test_the_example_of_the_docs_runs() -> None:
    for block in re.findall(r"```python\n(.*?)```", SDK, re.DOTALL):
        if "FakeApi()" in block:
            exec(block, {})
            return
    pytest.fail("docs/sdk.md has lost its runnable example")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_commands_and_options_in_each_shell(shell: str) -> None:
    """As the shell's function asks for it: by variables, without a control plane."""

    def offered(line: str) -> str:
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8", "_NEBULA_CTL_COMPLETE": f"complete_{shell}"}
        words = line.split(" ")
        env |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)} if shell == "bash" else {"_TYPER_COMPLETE_ARGS": line}
        env |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
        program = Path(sys.executable).with_name("nebula-ctl")
        return subprocess.run([str(program)], env=env, capture_output=True, text=True, check=True).stdout

    assert {"submit", "secrets", "apply"} <= set(re.findall(r"[a-z-]+", offered("nebula-ctl ")))
    assert "delete" in offered("nebula-ctl secrets d")
    assert "--dry-run" in offered("nebula-ctl apply --d")
