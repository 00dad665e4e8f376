"""Users' words for sizes, times and commands."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import parsing
from jobs.parsing import Unreadable, command_split, env_check, name_check, path_check, size_mib, time_s


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("24G", 24 * 1024),
        ("24g", 24576),
        ("24 GiB", 24576),
        ("4GB", 4096),
        ("512M", 512),
        ("24576", 24576),
        (24576, 24576),
        ("1.5G", 1536),
        ("0.1G", 103),
        ("2T", 2 * 1024 * 1024),
        (" 8G ", 8192),
    ],  # 0.1 × 1024 = 102.4, rounded up
)
def test_sizes(text: str | int, mib: int) -> None:
    assert size_mib(text) == mib


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0.5", "size_fraction"),
        ("1.0", "size_fraction"),
        ("", "size_unreadable"),
        ("lots", "size_unreadable"),
        ("24X", "size_unreadable"),
        ("-4G", "size_unreadable"),
        ("0", "size_range"),
        (0, "size_range"),
        (-1, "size_unreadable"),
        ("0G", "size_range"),
        ("9999999T", "size_range"),
        ("9" * 5000, "size_unreadable"),
        (10**30, "size_unreadable"),
        ("٤G", "size_unreadable"),
        (True, "size_unreadable"),
    ],
)
def test_sizes_that_are_none(text: str | int, code: str) -> None:
    with pytest.raises(Unreadable) as caught:
        size_mib(text)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("01:00:00", 3600),
        ("2:30:05", 9005),
        ("100:00:00", 360000),
        ("2-12:00:00", 216000),
        ("1-06:30", 109800),
        ("90m", 5400),
        ("90min", 5400),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1d 6h", 108000),
        ("45s", 45),
        ("3600", 3600),
        (3600, 3600),
    ],
)
def test_times(text: str | int, seconds: int) -> None:
    assert time_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("30:00", "time_ambiguous"),
        ("1:60:00", "time_unreadable"),
        ("1-25:00:00", "time_unreadable"),
        ("", "time_unreadable"),
        ("soon", "time_unreadable"),
        ("-5", "time_unreadable"),
        ("0", "time_range"),
        ("00:00:00", "time_range"),
        ("9" * 12, "time_range"),
        ("1.5h", "time_unreadable"),
        ("9" * 40, "time_unreadable"),
        (False, "time_unreadable"),
    ],
)
def test_times_that_are_none(text: str | int, code: str) -> None:
    with pytest.raises(Unreadable) as caught:
        time_s(text)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --lr 0.1", ["python", "train.py", "--lr", "0.1"]),
        ("python -c 'print(1); print(2)'", ["python", "-c", "print(1); print(2)"]),
        ('sh -c "echo a && echo b"', ["sh", "-c", "echo a && echo b"]),
        (r"echo a\ b \; \$x", ["echo", "a b", ";", "$x"]),
        ("echo $HOME *.py ~", ["echo", "$HOME", "*.py", "~"]),
        ("echo '$(date)' '`date`'", ["echo", "$(date)", "`date`"]),
        ("训练 '☠'", ["训练", "☠"]),
    ],
)
def test_a_command_is_split_as_a_shell_would(text: str, words: list[str]) -> None:
    assert command_split(text) == words


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("a | b", "|"),
        ("a && b", "&&"),
        ("a || b", "||"),
        ("a & b", "&"),
        ("a; b", ";"),
        ("a;b", ";"),
        ("a < in", "<"),
        ("a > out", ">"),
        ("a >> out", ">>"),
        ("a <<E", "<<"),
        ("a $(b)", "$("),
        ('a "$(b)"', "$("),
        ("a `b`", "`"),
        ('a "`b`"', "`"),
        ("a\nb", "\\n"),
        ("a 2>&1", ">"),
    ],
)
def test_a_shell_operator_is_refused_by_name(text: str, operator: str) -> None:
    with pytest.raises(Unreadable) as caught:
        command_split(text)
    assert (caught.value.code, caught.value.params["operator"]) == ("command_operator", operator)


@pytest.mark.parametrize(
    ("text", "code"), [("echo 'a", "command_quotes"), ("  ", "command_empty"), ("''", "argv_program"), ("echo \\", "command_quotes")]
)
def test_commands_that_are_none(text: str, code: str) -> None:
    with pytest.raises(Unreadable) as caught:
        command_split(text)
    assert caught.value.code == code


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8), min_size=1, max_size=6))
def test_quoted_words_come_back_as_they_are(words: list[str]) -> None:
    words = [word or "x" for word in words]
    words[0] = "p" + words[0]
    assert command_split(shlex.join(words)) == words


@given(st.text(max_size=40))
def test_nothing_but_a_refusal_comes_of_any_text(text: str) -> None:
    for parse in (size_mib, time_s, command_split, name_check):
        with suppress(Unreadable):
            parse(text)


@pytest.mark.parametrize("name", ["az'", "$(touch x)", "a;b", "../x", '"', "<script>", "تدريب", "训练 ☠", "x" * 200])
def test_a_name_is_text(name: str) -> None:
    assert name_check(name) == name


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\tb", "a\0b", "\x7f", "a\x85b", "x" * 201, "x" * 10_240])
def test_a_name_without_end_or_with_control_characters_is_refused(name: str) -> None:
    with pytest.raises(Unreadable):
        name_check(name)


@pytest.mark.parametrize(
    ("env", "code"),
    [
        ({"A B": ""}, "env_name"),
        ({"": ""}, "env_name"),
        ({"1A": ""}, "env_name"),
        ({"É": ""}, "env_name"),
        ({"A=B": ""}, "env_name"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "env_reserved"),
        ({"CUDA_DEVICE_ORDER": "x"}, "env_reserved"),
        ({"NEBULA_JOB_ID": "1"}, "env_reserved"),
        ({"A": "\x00"}, "env_nul"),
        ({"A": "x" * 40000}, "env_value_large"),
        ({f"A{i}": "" for i in range(201)}, "env_many"),
        ({f"A{i}": "x" * 30000 for i in range(5)}, "env_large"),
    ],
)
def test_environments_that_no_job_gets(env: dict[str, str], code: str) -> None:
    with pytest.raises(Unreadable) as caught:
        env_check(env)
    assert caught.value.code == code


def test_an_environment_within_the_limits_is_taken() -> None:
    env_check({"_A1": "ü" * 100, "PATH": "", "NCCL_DEBUG": "INFO"})


def test_paths() -> None:
    assert path_check("/data/x y", absolute=True) == "/data/x y"
    assert path_check("ckpt/last.pt", absolute=False) == "ckpt/last.pt"
    for bad in ("data", "./x", "~/x", "/a\nb", "/" + "x" * 4096, "/" + "数" * 2000):
        with pytest.raises(Unreadable):
            path_check(bad, absolute=True)


def test_argv_limits() -> None:
    parsing.argv_check(["x"] * 1000)
    for bad in ([], ["x"] * 1001, ["a\0"], ["x", "y" * 131_072], [""], [" "]):
        with pytest.raises(Unreadable):
            parsing.argv_check(bad)
    assert parsing.name_from_argv(["/usr/bin/python3", "x"]) == "python3"
    assert parsing.name_from_argv(["/"]) == "/"
