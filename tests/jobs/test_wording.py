"""Every code has a sentence, in both languages, and no code ever fails a page."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation

from jobs import parsing, refusals, wording
from jobs.lifecycle import EndReason
from jobs.models import Job, JobEvent
from jobs.scheduler import reasons
from nodes.wording import advice_text, notice_text

ROOT = Path(__file__).parents[2]
#: A value for each kind of param, as the scheduler fills them.
VALUES: dict[str, Any] = {
    "node": "node03",
    "gpu": 1,
    "state": "UNKNOWN",
    "asked": "H100",
    "have": ["A100", "RTX 4090"],
    "job": 41,
    "by": "lin@lab",
}
VALUES |= {"why": "exam week", "resets_at": "2026-08-01T00:00:00+08:00", "field": "nodes", "used": 12.5, "limit": 12}


def params_of(code: str, *, number: int = 24_576) -> dict[str, Any]:
    counted = {"have"} if code in {"never_nodes", "too_many_nodes"} else set()
    return {name: number if name in counted else VALUES.get(name, number) for name in reasons.PARAMS[code]}


@pytest.mark.parametrize("code", sorted(reasons.PARAMS))
def test_each_reason_has_a_sentence_with_its_numbers(code: str) -> None:
    for number in (1, 2, 24_576):
        text = wording.reason_text(code, params_of(code, number=number))
        assert text != code
        assert text.endswith(".") or code == "held", text  # ends with what a person wrote
        assert "%(" not in text
        assert "None" not in text


@pytest.mark.parametrize("code", sorted(reasons.PARAMS))
def test_a_param_that_may_be_none_is_not_shown_as_none(code: str) -> None:
    for name, meaning in reasons.PARAMS[code].items():
        if "None =" in meaning:
            text = wording.reason_text(code, {**params_of(code), name: None})
            assert text != code
            assert "None" not in text


@pytest.mark.parametrize("code", sorted(reasons.PARAMS))
def test_missing_params_fall_back_to_a_text(code: str) -> None:
    assert wording.reason_text(code, {})
    assert wording.reason_text(code, None)
    assert wording.reason_text(code, dict.fromkeys(reasons.PARAMS[code], "odd"))


def test_the_example_sentence() -> None:
    params = {"needed_mib": 40_960, "count": 1, "largest_free_mib": 24_576, "node": "node03", "gpu": None}
    assert wording.reason_text("gpu_memory", params) == "Needs 40 GiB on one GPU; the largest free slice is 24 GiB (node03)."


@pytest.mark.parametrize(
    ("code", "params", "told"),
    [
        ("gpu_memory", {"needed_mib": 16_384, "largest_free_mib": 16_372, "count": 1}, ("16384 MiB", "16372 MiB")),
        ("gpu_memory", {"needed_mib": 16_384, "largest_free_mib": 16_372, "count": 2}, ("16384 MiB", "16372 MiB")),
        ("gpu_memory", {"needed_mib": 16_384, "largest_free_mib": 12_288, "count": 1}, ("16 GiB", "12 GiB")),
        ("whole_card_busy", {"needed_mib": 16_384, "largest_free_mib": 16_390, "cards": 1}, ("16384 MiB", "16390 MiB")),
        ("foreign_use", {"needed_mib": 24_564, "largest_free_mib": 24_552, "foreign_mib": 600}, ("24564 MiB", "24552 MiB")),
        ("never_gpu_memory", {"needed_mib": 24_577, "largest_nominal_mib": 24_576}, ("24577 MiB", "24576 MiB")),
        ("gpu_too_small", {"needed_mib": 24_577, "nominal_mib": 24_576}, ("24577 MiB", "24576 MiB")),
        ("host_memory", {"needed_mib": 65_536, "largest_free_mib": 65_530}, ("65536 MiB", "65530 MiB")),
        ("slice_limit", {"needed_mib": 4_096, "free_mib": 4_096, "limit": 4}, ("4 GiB", "4 GiB")),
    ],
)
def test_two_sizes_that_are_not_equal_do_not_read_so(code: str, params: dict[str, int], told: tuple[str, str]) -> None:
    text = wording.reason_text(code, {"node": "node03", "gpu": 1, **params})
    assert all(text.count(size) == told.count(size) for size in told), text


def test_a_limit_says_when_it_starts_anew_and_in_which_zone(settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    params = {"what": "gpu_hours", "used": 5, "limit": 4}
    text = "resets at 1\xa0Aug\xa02026, 00:00 Asia/Shanghai."
    assert text in wording.quota_sentence(params | {"resets_at": "2026-08-01T00:00:00+08:00"})
    assert text in wording.quota_sentence(params | {"resets_at": "2026-07-31T16:00:00Z"})


def test_with_nothing_free_no_size_is_told() -> None:
    params = {"needed_mib": 73_728, "count": 1, "largest_free_mib": 0, "node": "node04", "gpu": 0, "cards": 2}
    assert wording.reason_text("gpu_memory", params) == "Needs 72 GiB on one GPU; all that are large enough are in use."
    assert "0 GiB" not in wording.reason_text("gpu_memory", params | {"needed_mib": 4096, "count": 2})
    text = wording.reason_text("whole_card_busy", params)
    assert text == "Needs 72 GiB, which takes a whole GPU; all that are large enough are in use."
    params = {"needed": 2, "free": 0, "node": "node01", "nodes": 1, "nodes_free": 0}
    assert wording.reason_text("gpu_count", params) == "Needs 2 free GPUs on one node; none has a suitable one free now."


def test_a_requeued_job_says_what_happened_to_it() -> None:
    text = wording.reason_text("requeued", {"reason": "node_rebooted", "node": "node03", "rank": 0})
    assert text == "Back in the queue; the next pass looks for a place. The last time: The node was rebooted while it ran. Node: node03."


def test_users_text_in_params_is_never_a_template() -> None:
    text = wording.reason_text("held", {"by": "%(why)s", "why": "%s %d 100%"})
    assert text == "Held by %(why)s: %s %d 100%"


@pytest.mark.parametrize("reason", list(EndReason))
def test_each_end_reason_has_a_sentence(reason: EndReason) -> None:
    for params in (
        {},
        {"node": "node03", "exit_code": 3, "signal": 9, "reason": "node_lost", "times": 4, "kind": "exec", "detail": "no such file"},
    ):
        text = wording.end_reason_text(reason, params)
        assert text != reason
        assert text.endswith((".", "file"))


def test_a_signal_is_named() -> None:
    assert "SIGSEGV" in wording.end_reason_text("nonzero_exit", {"exit_code": None, "signal": 11})
    assert "3" in wording.end_text(Job(end_reason="nonzero_exit", exit_code=3))
    assert wording.end_text(Job()) == ""


def codes_written() -> set[str]:
    """Every code that this room writes into an event or as a wait reason, read from its source."""
    found = set()
    for path in [*(ROOT / "jobs" / "services").glob("*.py"), ROOT / "jobs" / "apply.py", ROOT / "jobs" / "snapshot.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in {
                "jobs_move",
                "job_move",
                "move",
                "event_add",
                "create",
                "JobEvent",
            }:
                found |= {k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)}
    return {code for code in found if isinstance(code, str)}


def test_each_event_that_the_services_write_has_a_sentence() -> None:
    written = codes_written()
    assert {"submitted", "placed", "running", "stopping", "succeeded", "failed"} <= written  # else this test reads nothing
    for code in written:
        text = wording.event_text(JobEvent(code=code, params={}))
        assert text != code, f"jobs/wording has no sentence for the event {code}"


def test_each_wait_code_that_the_services_write_has_a_sentence() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "jobs").rglob("*.py") if "migrations" not in path.parts)
    written = set(re.findall(r"wait_code[\"']?(?:=|: )\"(\w+)\"", source))
    assert "submitted" in written
    for code in written:
        assert wording.reason_text(code, {"by": None, "why": None}) != code, code


def test_each_refusal_of_the_parser_has_a_sentence() -> None:
    source = "".join((ROOT / "jobs" / name).read_text(encoding="utf-8") for name in ("parsing.py", "needs.py"))
    codes = set(re.findall(r"Unreadable\(\"(\w+)\"", source))
    assert len(codes) > 15
    assert codes <= set(refusals.ERRORS)
    for parse, text in ((parsing.size_mib, "0.5"), (parsing.time_s, "30:00"), (parsing.command_split, "a | b")):
        with pytest.raises(parsing.Unreadable) as caught:
            parse(text)
        said = refusals.error_text(caught.value.code, caught.value.params)
        assert said != caught.value.code
    assert "sh -c" in said
    assert "|" in said


@pytest.mark.parametrize("speak", [wording.reason_text, wording.event_code_text, wording.end_reason_text, refusals.error_text, notice_text])
def test_an_unknown_code_is_shown_as_it_is(speak: Any) -> None:
    assert speak("from_the_future", {"x": object()}) == "from_the_future"


def test_unknown_advice_is_shown_as_it_is() -> None:
    assert advice_text("from_the_future") == "from_the_future"
    assert advice_text("no_cgroup") != "no_cgroup"


def test_the_readers_language_counts() -> None:
    params = params_of("gpu_memory")
    with translation.override("zh-hans"):
        chinese = wording.reason_text("gpu_memory", params)
    assert chinese != wording.reason_text("gpu_memory", params)
    assert "24 GiB" in chinese
