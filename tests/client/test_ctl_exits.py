"""Exit codes, errors in one sentence, sign-in, and watching a job from the command line."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.testing import FakeApi
from tests.client.conftest import Ctl
from tests.waiting import PATIENCE_S, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]


def broken_profile(api: FakeApi, profile: Path) -> None:
    profile.write_text("{")


def gone(api: FakeApi, profile: Path) -> None:
    api.stop()


def over_quota(api: FakeApi, profile: Path) -> None:
    api.quota["used_gpu_hours"] = 2000


def away(api: FakeApi, profile: Path) -> None:
    api.fail(99, 503)


def broken(api: FakeApi, profile: Path) -> None:
    api.fail(1, 500)


def wrong_token(api: FakeApi, profile: Path) -> None:
    api.users.clear()


def small_cards(api: FakeApi, profile: Path) -> None:
    api.node_add("node01", "RTX 4090")


def nothing(api: FakeApi, profile: Path) -> None:
    return


@pytest.mark.parametrize(
    ("argv", "world", "code", "error"),
    [
        (["list"], nothing, 0, None),
        (["list"], broken, 1, "away"),
        (["submit", "--gpu-mem", "24 pounds", "--", "x"], nothing, 2, "invalid"),
        (["list", "--limit", "500"], nothing, 2, "usage"),
        (["show", "0"], nothing, 2, "usage"),
        (["list"], broken_profile, 2, "bad_profile"),
        (["list"], wrong_token, 3, "not_authenticated"),
        (["node", "add", "x"], nothing, 3, "permission_denied"),
        (["show", "7"], nothing, 4, "not_found"),
        (["submit", "--", "x"], over_quota, 5, "quota_exceeded"),
        (["submit", "--gpu-mem", "80G", "--", "x"], small_cards, 5, "never_fits"),
        (["list"], gone, 6, "unreachable"),
        (["list"], away, 6, "away"),
    ],
)
def test_exit_codes_and_one_sentence(
    nebula: Ctl,
    api: FakeApi,
    profile: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    world: Callable[[FakeApi, Path], None],
    code: int,
    error: str | None,
) -> None:
    monkeypatch.setattr("client.retry.RetryPolicy.delay_s", lambda self, failures, jitter: 0.0)
    world(api, profile)
    ran = nebula(*argv)
    assert ran.code == code
    if error is None:
        assert ran.err == ""
        return
    assert ran.out == ""
    assert ran.err.startswith("Error: ")
    assert ran.err.count("\n") <= 2
    border = argv.index("--") if "--" in argv else len(argv)
    as_json = nebula(*argv[:border], "--json", *argv[border:]) if world is not broken else None
    if as_json is not None:
        assert as_json.code == code
        told = json.loads(as_json.err)
        assert set(told) == {"code", "message", "fields"}
        assert told["code"] == error


def test_a_quota_refusal_says_when_it_begins_anew(nebula: Ctl, api: FakeApi) -> None:
    over_quota(api, Path())
    err = nebula("submit", "--", "x").err
    assert "2000 of 2000 GPU hours" in err
    assert "It begins anew at 20" in err


def test_a_bug_is_one_sentence_too(nebula: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("client.sdk.NebulaClient.usage", bug)
    ran = nebula("status")
    assert ran.code == 1
    assert "NEBULA_DEBUG=1" in ran.err
    assert ran.err.count("\n") == 1


def test_a_throttled_command_waits_and_says_so(nebula: Ctl, api: FakeApi) -> None:
    api.throttle(1, 1)
    ran = nebula("list")
    assert ran.code == 0
    assert "Trying again in 1 s" in ran.err


# --- login ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(nebula: Ctl, profile: Path) -> Path:
    profile.unlink()
    return profile


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_login_with_a_token_file(nebula: Ctl, api: FakeApi, fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(f"{api.token}\n")
    ran = nebula("login", "--endpoint", api.url + "/", "--token-file", str(tmp_path / "t"))
    assert ran.code == 0
    assert "user@lab.example" in ran.out
    assert api.token not in ran.out + ran.err
    assert fresh.stat().st_mode & 0o777 == 0o600
    assert json.loads(fresh.read_text()) == {"endpoint": api.url, "token": api.token}
    assert nebula("list").code == 0


def test_login_from_standard_input(nebula: Ctl, api: FakeApi, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, f"{api.token}\n")
    assert nebula("login", "--endpoint", api.url, "--token-file", "-").code == 0
    assert fresh.exists()


def test_login_with_a_token_argument_warns(nebula: Ctl, api: FakeApi, fresh: Path) -> None:
    ran = nebula("login", "--endpoint", api.url, "--token", api.token)
    assert ran.code == 0
    assert "visible in the process list" in ran.err


def test_login_with_a_password(nebula: Ctl, api: FakeApi, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "correct horse\n")
    assert nebula("login", "--endpoint", api.url, "--email", "user@lab.example").code == 0
    assert json.loads(fresh.read_text())["token"] == api.token
    typed(monkeypatch, "wrong\n")
    assert nebula("login", "--endpoint", api.url, "--email", "user@lab.example").code == 3
    typed(monkeypatch, "")
    assert nebula("login", "--endpoint", api.url, "--email", "user@lab.example").code == 2


def test_a_token_that_does_not_work_is_not_kept(nebula: Ctl, api: FakeApi, fresh: Path) -> None:
    assert nebula("login", "--endpoint", api.url, "--token", "ngt_wrong").code == 3
    assert not fresh.exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["--token-file", "-"],
        ["--endpoint", "URL"],
        ["--endpoint", "URL", "--token", "a", "--email", "b"],
        ["--endpoint", "URL", "--token-file", "/no/such/file"],
        ["--endpoint", "http://10.0.0.1:8000", "--token", "ngt_lin"],
        ["--endpoint", "nonsense", "--token", "ngt_lin"],
    ],
)
def test_login_refuses_what_can_not_work(nebula: Ctl, api: FakeApi, fresh: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    typed(monkeypatch, "")
    ran = nebula("login", *[api.url if word == "URL" else word for word in argv])
    assert ran.code == 2
    assert not fresh.exists()


def test_signing_in_again_keeps_the_endpoint(nebula: Ctl, api: FakeApi, profile: Path) -> None:
    assert nebula("login", "--token", api.staff_token).code == 0
    assert json.loads(profile.read_text()) == {"endpoint": api.url, "token": api.staff_token}


def test_logout_and_whoami(nebula: Ctl, api: FakeApi, profile: Path) -> None:
    shown = nebula("whoami").out
    assert "user@lab.example" in shown
    assert "12.5 of 2000.0" in shown
    assert "0 of no limit" in shown
    assert nebula("logout").code == 0
    assert not profile.exists()
    assert nebula("logout").out.startswith("You were not signed in")
    assert nebula("whoami").code == 3


def test_logout_may_revoke_the_token(nebula: Ctl, api: FakeApi, profile: Path) -> None:
    assert "revoked" in nebula("logout", "--revoke").out
    assert api.token not in api.users


# --- wait and logs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("CANCELLED", 1)])
def test_wait_and_follow_exit_as_the_job_did(nebula: Ctl, api: FakeApi, state: str, code: int) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"hello\n")
    api.job_finish(job, state, exit_code=None, text="Because.")
    ran = nebula("wait", "1")
    assert (ran.code, ran.out) == (code, f"Job 1 {state}: Because.\n")
    assert nebula("wait", "1", "--json").json()["state"] == state
    ran = nebula("logs", "-f", "1")
    assert (ran.code, ran.out, ran.err) == (code, "hello\n", f"Job 1 {state}: Because.\n")
    assert nebula("logs", "1").code == 0


def test_wait_gives_up_at_its_time(nebula: Ctl, api: FakeApi) -> None:
    api.job_add()
    ran = nebula("wait", "1", "--timeout", "0.2")
    assert ran.code == 1
    assert "still WAITING" in ran.err


def test_logs_of_a_pipe_are_the_bytes_themselves(api: FakeApi, profile: Path) -> None:
    job = api.job_add()
    api.job_start(job)
    data = b"\x1b[2Jraw \xff\xfe \xe8\xae\xad\n"
    api.log_write(job, data)
    out, err = process(profile, "logs", "1").communicate(timeout=PATIENCE_S)
    assert (out, err) == (data, b"")


@pytest.mark.parametrize(("lines", "expected"), [(0, ""), (1, "9999\n"), (3, "9997\n9998\n9999\n"), (9999, None), (20_000, None)])
def test_tail_counts_lines(nebula: Ctl, api: FakeApi, lines: int, expected: str | None) -> None:
    job = api.job_add()
    api.job_start(job)
    text = "".join(f"{n}\n" for n in range(10_000))
    api.log_write(job, text.encode())
    api.job_finish(job)
    expected = text[len(text) - sum(len(line) for line in text.splitlines(True)[-lines:]) :] if expected is None else expected
    assert nebula("logs", "1", "--tail", str(lines)).out == expected
    assert nebula("logs", "-f", "1", "--tail", str(lines)).out == expected


def test_tail_without_a_last_line_break_and_with_long_lines(nebula: Ctl, api: FakeApi) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, ("名" * 30_000 + "\n" + "ü" * 30_000 + "\nend").encode())
    assert nebula("logs", "1", "--tail", "1").out == "end"
    chunk = nebula("logs", "1", "--tail", "2", "--json").json()
    assert chunk["text"] == "ü" * 30_000 + "\nend"
    assert chunk["offset"] == 90_001


def test_logs_as_json_are_the_whole_log(nebula: Ctl, api: FakeApi) -> None:
    job = api.job_add()
    assert nebula("logs", "1", "--json").json()["attempt"] is None
    api.job_start(job)
    api.log_write(job, b"x" * 600_000)
    api.job_finish(job)
    chunk = nebula("logs", "1", "--json").json()
    assert (chunk["offset"], chunk["next_offset"], chunk["is_complete"], len(chunk["text"])) == (0, 600_000, True, 600_000)


def test_following_as_json_is_one_object_a_line(nebula: Ctl, api: FakeApi) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"hello\n")
    api.job_finish(job)
    rows = [json.loads(line) for line in nebula("logs", "-f", "1", "--json").out.splitlines()]
    assert [row["type"] for row in rows] == ["log", "job"]
    assert rows[0]["text"] == "hello\n"
    assert rows[1]["job"]["state"] == "SUCCEEDED"


def test_ranks_and_attempts_are_chosen(nebula: Ctl, api: FakeApi) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"first\n")
    api.job_requeue(job)
    api.job_start(job)
    api.log_write(job, b"second\n")
    api.log_write(job, b"rank one\n", rank=1)
    assert nebula("logs", "1").out == "second\n"
    assert nebula("logs", "1", "--attempt", "1").out == "first\n"
    assert nebula("logs", "1", "--rank", "1").out == "rank one\n"
    assert nebula("logs", "1", "--rank", "5").code == 4


# --- as a process ------------------------------------------------------------------------------------------------------


def process(profile: Path, *argv: str, **kwargs: Any) -> subprocess.Popen[bytes]:
    env = {"PATH": os.environ["PATH"], "NEBULA_CONFIG": str(profile), "LC_ALL": "C.UTF-8", **kwargs.pop("env", {})}
    kwargs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs
    return subprocess.Popen([sys.executable, "-m", "client", *argv], cwd=REPOSITORY, env=env, **kwargs)


@pytest.mark.parametrize("argv", [["logs", "-f", "1"], ["wait", "1"]])
def test_ctrl_c_leaves_the_job_running_and_says_so(api: FakeApi, profile: Path, argv: list[str]) -> None:
    job = api.job_add()
    api.job_start(job)
    child = process(profile, *argv)
    wait_until(lambda: len(api.seen) >= 3, "three requests")
    child.send_signal(signal.SIGINT)
    _out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 130
    assert b"job 1 goes on" in err
    assert b"Traceback" not in err
    assert api.jobs[job].row["state"] == "RUNNING"
    assert all(seen.method == "GET" for seen in api.seen)


def test_a_reader_that_leaves_is_no_error_message(api: FakeApi, profile: Path) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"line\n" * 400_000)
    child = process(profile, "logs", "1")
    assert child.stdout is not None
    assert child.stdout.read(10)
    child.stdout.close()
    assert child.stderr is not None
    err = child.stderr.read()
    child.stderr.close()
    assert child.wait(timeout=PATIENCE_S) == 141
    assert err == b""


def test_a_terminal_gets_colours_but_no_control_sequences(api: FakeApi, profile: Path) -> None:
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, "\x1b]0;owned\x07\x1b[31mred\x1b[2J ☠".encode())
    api.job_finish(job)
    for argv in (["logs", "1"], ["logs", "-f", "1"]):
        parent, terminal = pty.openpty()
        child = process(profile, *argv, stdout=terminal)
        os.close(terminal)
        shown = b""
        while True:
            try:
                piece = os.read(parent, 4096)
            except OSError:  # the other side closed
                break
            if not piece:
                break
            shown += piece
        os.close(parent)
        child.communicate(timeout=PATIENCE_S)
        assert child.returncode == 0
        assert shown == "\x1b[31mred ☠\x1b[0m".encode()


def test_a_terminal_without_unicode_gets_escapes_not_a_crash(api: FakeApi, profile: Path) -> None:
    api.job_add(name="训练☠")
    child = process(profile, "show", "1", env={"PYTHONIOENCODING": "ascii"})
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, err) == (0, b"")
    assert rb"\u8bad\u7ec3\u2620" in out


def test_a_command_imports_neither_httpx_nor_rich_nor_pydantic(api: FakeApi, profile: Path) -> None:
    """They are most of what a command could spend its start on."""
    heavy = "sorted({'httpx', 'rich', 'pydantic', 'django'} & set(sys.modules))"
    code = f"import sys; from client.ctl import run; code = run(sys.argv[1:]); print(int(code), {heavy})"
    env = {"PATH": os.environ["PATH"], "NEBULA_CONFIG": str(profile)}
    for argv in (["submit", "--gpu-mem", "4G", "--", "true"], ["list"], ["status"], ["show", "1"], ["logs", "1"]):
        ran = subprocess.run([sys.executable, "-c", code, *argv], cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True)
        assert ran.stdout.splitlines()[-1] == "0 []", ran.stderr


def test_submit_and_follow_in_one(api: FakeApi, profile: Path) -> None:
    child = process(profile, "submit", "-f", "--name", "hello", "--", "python", "train.py")
    wait_until(lambda: api.jobs, "a job")
    api.job_start(1)
    api.log_write(1, b"loss 0.5\n")
    wait_until(lambda: any("offset=9" in seen.path for seen in api.seen), "the first line was read")
    api.log_write(1, b"loss 0.1\n")
    api.job_finish(1, "FAILED", exit_code=3, text="Exit code 3.")
    out, err = child.communicate(timeout=PATIENCE_S)
    assert (child.returncode, out) == (1, b"loss 0.5\nloss 0.1\n")
    assert err == b"Job 1 submitted: WAITING\nJob 1 FAILED: Exit code 3.\n"
