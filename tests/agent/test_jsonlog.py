"""Log lines as JSON, of the agent and of the control plane's processes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.config import ConfigError, config_load
from agent.jsonlog import JsonLines

ROOT = Path(__file__).parents[2]


def told(message: str, *args: Any, error: BaseException | None = None, **extra: Any) -> dict[str, Any]:
    record = logging.LogRecord(
        "nodes.sync", logging.WARNING, "f", 1, message, args, (type(error), error, error.__traceback__) if error else None
    )
    vars(record).update(extra)
    line = JsonLines("web").format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_is_one_object_with_its_process() -> None:
    line = told("node %s is %s", "n1", "silent\nand gone")
    assert (line["level"], line["logger"], line["message"], line["process"]) == (
        "WARNING",
        "nodes.sync",
        "node n1 is silent\nand gone",
        "web",
    )
    assert line["at"].endswith("Z")
    assert line["pid"] == os.getpid()


def test_an_exception_and_what_the_call_gave_are_told() -> None:
    line = told("failed", error=ValueError("bad"), job=7, path=Path("/x"), strange={1: object})
    assert line["error"]["kind"] == "ValueError"
    assert line["error"]["text"] == "bad"
    assert "ValueError: bad" in line["error"]["traceback"]
    assert (line["job"], line["path"]) == (7, "/x")


def test_no_extra_takes_the_place_of_what_each_line_has() -> None:
    assert told("x", level="fake", at="never")["level"] == "WARNING"


def test_an_agents_log_is_json_where_it_says_so(tmp_path: Path) -> None:
    code = "import agent.main, logging; agent.main._logging(False, 'json'); logging.getLogger('nebula-agent').info('hello %s', 'there')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(ran.stderr)["message"] == "hello there"
    assert json.loads(ran.stderr)["process"] == "agent"


@pytest.mark.parametrize("text", ["xml", "JSON"])
def test_another_format_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f'node_id = 1\nname = "n"\nendpoint = "http://127.0.0.1:9"\nlog_format = "{text}"\n')
    with pytest.raises(ConfigError, match="log_format"):
        config_load(path)


def test_the_control_planes_processes_write_json_where_the_setting_says_so(tmp_path: Path) -> None:
    code = "import django, logging; django.setup(); logging.getLogger('jobs').warning('pass of %d ms', 7)"
    env = {**os.environ, "NEBULA_LOG_FORMAT": "json", "NEBULA_ROLE": "worker", "NEBULA_DATA": str(tmp_path)}
    env["DJANGO_SETTINGS_MODULE"] = "nebulagrid.settings"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    line = json.loads(ran.stderr.splitlines()[-1])
    assert (line["message"], line["process"], line["level"]) == ("pass of 7 ms", "worker", "WARNING")
    refused = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**env, "NEBULA_LOG_FORMAT": "xml"}, capture_output=True, text=True
    )
    assert "expected line or json" in refused.stderr
