"""Files of jobs: what is understood, what is refused with its place, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client.commands.apply import jobs_read, lines_of
from client.ctl import run
from client.errors import UsageFault


def read(text: str) -> list[dict[str, Any]]:
    return jobs_read(text, place="job.yaml")


def test_plain_words_stay_what_was_written() -> None:
    (job,) = read("name: no\ntime: 1:30:00\nargv: [python, train.py, on, 0o17, 2026-03-31]\ngpu_count: 2\nrequeue: false\ncheckpoint: ~\n")
    assert job == {
        "name": "no",
        "time": "1:30:00",
        "argv": ["python", "train.py", "on", "0o17", "2026-03-31"],
        "gpu_count": 2,
        "requeue": False,
        "checkpoint": None,
    }


def test_variables_may_be_numbers_but_nothing_is_guessed_of_true() -> None:
    (job,) = read("argv: [x]\nenv: {OMP_NUM_THREADS: 4, RATE: 0.1, FLAG: true, NAME: x}\n")
    assert job["env"] == {"OMP_NUM_THREADS": "4", "RATE": "0.1", "FLAG": True, "NAME": "x"}


def test_a_file_may_hold_a_job_a_list_or_documents_and_json_is_yaml() -> None:
    assert len(read("name: a\n---\nname: b\n---\n")) == 2
    assert len(read("- name: a\n- name: b\n")) == 2
    assert read('{"name": "a", "argv": ["x"]}') == [{"name": "a", "argv": ["x"]}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nname: b\n", "name is there twice"),
        ("argv: [x\n", "line 2"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("!!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("just words", "a job is a list of"),
        ("", "has 0 jobs"),
        ("- [1]\n", "a job is a list of"),
        ("[" * 3000, "nested"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, words: str) -> None:
    with pytest.raises(UsageFault) as error:
        read(text)
    assert words in error.value.message


def test_differences_are_shown_without_the_signs_of_a_terminal() -> None:
    done: Any = {
        "action": "replaced",
        "dry_run": False,
        "replaces": 7,
        "job": {"id": 8, "name": "eval\x1b[31m", "state": "WAITING"},
        "diff": [{"field": "gpu_mem_mib", "before": None, "after": 8192}, {"field": "env.X", "before": "a", "after": "\x1b]0;b"}],
    }
    lines = lines_of(done, name="", is_dry=False)
    assert lines[0].startswith("Job 8 (eval")
    assert "in place of job 7" in lines[0]
    assert lines[1] == "  gpu_mem_mib: nothing → 8192"
    assert "\x1b" not in "".join(lines)


def test_a_file_that_is_not_there_is_a_usage_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["apply", "-f", str(tmp_path / "none.yaml")]) == 2
    assert "can't be read" in capsys.readouterr().err
