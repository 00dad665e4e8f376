"""Every sentence has its Chinese; every word for a user goes through ``_``."""

from __future__ import annotations

import ast
import gettext
import os
import re
import string
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from client import i18n
from client.commands.estimate import verdict_lines

ROOT = Path(i18n.__file__).parent
PO = ROOT / "locale/zh_CN/LC_MESSAGES/nebula.po"
#: Their words are for programmers' tests, not for users.
NOT_SHOWN = {"testing.py", "testing_http.py"}


def calls() -> Iterator[tuple[Path, ast.Call]]:
    for path in sorted(ROOT.rglob("*.py")):
        if path.name not in NOT_SHOWN:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield path, node


def name_of(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def source_texts() -> set[str]:
    texts = set()
    for path, call in calls():
        if isinstance(call.func, ast.Name) and call.func.id == "_":
            (argument,) = call.args
            assert isinstance(argument, ast.Constant), f"{path}:{call.lineno}: _() needs one plain text; put variables in with .format()"
            assert isinstance(argument.value, str)
            texts.add(argument.value)
    return texts


def po_texts() -> dict[str, str]:
    texts: dict[str, str] = {}
    for block in PO.read_text(encoding="utf-8").split("\n\n"):
        found = re.search(r"^msgid (.*)\nmsgstr (.*)$", block, re.MULTILINE)
        assert found, block
        key, value = ast.literal_eval(found[1]), ast.literal_eval(found[2])
        if key:
            assert key not in texts, f"twice: {key}"
            texts[key] = value
    return texts


def places(text: str) -> list[tuple[str, str | None, str | None]]:
    return sorted((name, form, conversion) for _text, name, form, conversion in string.Formatter().parse(text) if name is not None)  # type: ignore[type-var]


def test_every_text_has_a_translation_and_none_is_left_over() -> None:
    source, translated = source_texts(), set(po_texts())
    assert sorted(source - translated) == []
    assert sorted(translated - source) == []


def test_every_translation_is_chinese_and_has_the_same_places() -> None:
    for key, value in po_texts().items():
        assert places(key) == places(value), key
        words = re.sub(r"\{[^}]*\}", "", key)
        if re.search(r"[A-Za-z]", words) and key not in {"GPUs", "{used} of {limit}"}:  # the same in both
            assert re.search(r"[\u3000-\u9fff\uff00-\uffef]", value), key
        assert (len(key) - len(key.lstrip())) == (len(value) - len(value.lstrip())), key


def test_the_compiled_catalogue_is_up_to_date() -> None:
    compiled = gettext.translation(i18n.DOMAIN, localedir=str(i18n.LOCALE_DIR), languages=["zh_CN"])
    held = {key: value for key, value in compiled._catalog.items() if key}  # type: ignore[attr-defined]
    assert held == po_texts(), "run: msgfmt -c -o nebula.mo nebula.po"


@pytest.mark.parametrize(
    "function", ["NebulaError", "Unreachable", "ProfileError", "WaitTimeout", "usage_fault", "ConnectionFailed", "note", "say"]
)
def test_no_sentence_goes_round_the_translation(function: str) -> None:
    for path, call in calls():
        if name_of(call) == function:
            for argument in call.args[1:] if function.endswith(("Error", "Unreachable", "Timeout")) else call.args[:1]:
                is_sentence = isinstance(argument, ast.Constant) and isinstance(argument.value, str) and " " in argument.value
                assert not is_sentence, f"{path}:{call.lineno}"


def test_every_help_text_goes_through_the_translation() -> None:
    for path, call in calls():
        for keyword in call.keywords:
            if keyword.arg == "help":
                assert not isinstance(keyword.value, ast.Constant | ast.JoinedStr), f"{path}:{call.lineno}"


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh_CN"),
        ({"LANG": "zh_SG"}, "zh_CN"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "en_GB", "NEBULA_LANG": "zh"}, "zh_CN"),
        ({"LANG": "zh_CN", "NEBULA_LANG": "en"}, "en"),
        ({"LANG": "de_DE"}, "en"),
    ],
)
def test_the_language_is_the_environments(environ: dict[str, str], language: str) -> None:
    assert i18n.language_from(environ) == language


def test_a_chinese_user_reads_chinese_and_programs_read_the_same_json(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "LANG": "zh_CN.UTF-8", "NEBULA_CONFIG": str(tmp_path / "none")}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "client", *argv], cwd=ROOT.parent, env=env, capture_output=True, encoding="utf-8")

    ran = run("list")
    assert ran.returncode == 3
    assert ran.stderr.startswith("错误：你尚未登录")
    assert '"code": "not_signed_in"' in run("list", "--json").stderr
    assert "提交任务" in run("submit", "--help").stdout


def test_chinese_sentences_have_chinese_colons_and_full_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(i18n, "_catalogue", i18n.catalogue("zh_CN"))
    told = {"verdict": "starts", "place": "node01 gpu0", "text": "", "position": None, "p50": None, "p90": None, "later_than": None}
    assert list(verdict_lines(told, datetime.now(UTC))) == ["会立即开始：node01 gpu0。"]
    assert list(verdict_lines({**told, "place": ""}, datetime.now(UTC))) == ["会立即开始。"]
    assert next(verdict_lines({**told, "verdict": "waits", "text": "队列较长。"}, datetime.now(UTC))) == "需要等待：队列较长。"


def test_the_command_line_calls_a_job_and_a_hold_what_the_pages_call_them() -> None:
    texts = po_texts().values()
    assert [text for text in texts if "作业" in text or "挂起" in text] == []
    assert any("任务" in text for text in texts)
