"""What a program gets from its shim, and what is written down when it ends by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import launch, procs
from agent.protocol import ExitInfo
from tests.agent.rank_lab import PYTHON, Lab, reachable
from tests.smalldisk import small_disk
from tests.waiting import PATIENCE_S, wait_until


def test_it_keeps_output_and_exit_code(lab: Lab) -> None:
    rank = lab.start("sh", "-c", "echo out; echo err >&2; exit 3")
    assert lab.end(rank).exit == ExitInfo(cause="exited", code=3)
    assert lab.text(rank) == "out\nerr\n"
    assert [s.state for s in lab.history] in (["RUNNING", "EXITED"], ["EXITED"])  # a quick one may be over before we look
    assert lab.ranks.tree_gone(rank)


def test_it_tells_how_long_the_program_ran(plain: Lab) -> None:
    exit = plain.end(plain.start("sleep", "0.3")).exit
    assert exit is not None
    assert exit.ran_s is not None
    assert 0.3 <= exit.ran_s < PATIENCE_S


def test_folders_in_place_of_its_files_do_not_keep_it_from_telling_the_end(plain: Lab) -> None:
    here = "$NEBULA_ARTIFACTS/.."
    rank = plain.start("sh", "-c", f"mkdir {here}/exit.json {here}/.exit.json.$PPID; touch {here}/exit.json/x; exit 3")
    assert plain.end(rank).exit == ExitInfo(cause="exited", code=3)
    assert (plain.ranks.rank_dir(rank) / "exit.json").is_file()


def test_it_tells_the_signal_that_ended_the_program(lab: Lab) -> None:
    rank = lab.start("sh", "-c", "kill -SEGV $$")
    assert lab.end(rank).exit == ExitInfo(cause="exited", signal=signal.SIGSEGV)


def test_it_passes_words_and_variables_as_they_are(plain: Lab) -> None:
    words = ("☠", "训练", "$(touch x)", "a'b\"c", "two\nlines", "")
    code = "import os, sys; print(sys.argv[1:]); print(ascii(os.environ['WORT']))"
    rank = plain.start(*PYTHON, code, *words, env={"WORT": "größe 🎉\udcff", "PYTHONUTF8": "1"}, workdir="/")
    assert plain.end(rank).exit == ExitInfo(cause="exited", code=0)
    assert plain.text(rank).splitlines() == [str(list(words)), ascii("größe 🎉\udcff")]


def test_it_gives_a_clean_process(plain: Lab, tmp_path: Path) -> None:
    code = """
import os, signal
print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])   # without the listing itself
print(os.readlink('/proc/self/fd/0'), os.getcwd(), oct(os.umask(0)), os.getsid(0) == os.getpid())
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
print([int(status[k], 16) for k in ('SigBlk', 'ShdPnd')], int(status['SigIgn'], 16) & 1 << signal.SIGHUP - 1, status['NoNewPrivs'].strip())
print(sorted(os.environ))
"""
    rank = plain.start(*PYTHON, code, workdir=str(tmp_path), env={"MINE": "1"})
    assert plain.end(rank).exit == ExitInfo(cause="exited", code=0)
    files, place, signals, env = plain.text(rank).splitlines()
    assert files == "[0, 1, 2]"
    assert place == f"/dev/null {tmp_path} 0o22 True"
    assert signals == "[0, 0] 0 1"
    assert set(eval(env)) - {"LC_CTYPE"} == {"LANG", "MINE", "NEBULA_ARTIFACTS", "NEBULA_RANK_MARK", "PATH"}  # LC_CTYPE: Python's own


def test_it_keeps_the_rank_private(plain: Lab) -> None:
    rank = plain.start("sh", "-c", "echo x > $NEBULA_ARTIFACTS/model")
    plain.end(rank)
    folder = plain.ranks.rank_dir(rank)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "spec.json").stat().st_mode) == 0o600
    assert (plain.ranks.artifacts_dir(rank) / "model").read_text() == "x\n"


@pytest.mark.parametrize(
    ("argv", "fields", "kind", "text"),
    [
        (("pyhton", "x.py"), {}, "exec", "No such file or directory: 'pyhton'"),
        (("/etc/passwd",), {}, "exec", "Permission denied: '/etc/passwd'"),
        (("sh",), {"workdir": "/no/such"}, "workdir", "Cannot enter the working directory '/no/such': No such file or directory"),
        (("sh",), {"unix_user": "no-such-user"}, "user", "There is no user 'no-such-user' on this node"),
        (("sh", "a\0b"), {}, "spec", "The command or its environment cannot be passed on: embedded null byte"),
        (("sh", "x" * 200_000), {}, "exec", "Argument list too long: 'sh'"),
    ],
)
def test_it_says_why_a_program_cannot_start(
    new_lab: Callable[..., Lab], argv: tuple[str, ...], fields: dict[str, str], kind: str, text: str
) -> None:
    lab = new_lab()
    rank = lab.start(*argv, **fields)
    state = lab.end(rank)
    assert (state.state, state.launch_error, state.launch_detail) == ("LAUNCH_FAILED", kind, text)
    assert [s.state for s in lab.history] == ["LAUNCH_FAILED"]
    assert lab.ranks.tree_gone(rank)
    assert lab.ranks.layout.names() == []


def test_it_names_a_missing_interpreter(plain: Lab, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/no/such/bash\n")
    script.chmod(0o755)
    state = plain.end(plain.start(str(script)))
    assert state.launch_detail == f"No such file or directory: '{script}' (its interpreter is '/no/such/bash')"


def test_it_finds_the_program_in_the_jobs_own_path(plain: Lab, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "mine").chmod(0o755)
    rank = plain.start("mine", env={"PATH": str(tmp_path)})
    assert plain.end(rank).exit == ExitInfo(cause="exited", code=0)
    assert plain.text(rank) == "found\n"


def test_it_hands_over_a_checkpoint_only_where_one_is(plain: Lab, tmp_path: Path) -> None:
    (tmp_path / "saved").touch()
    script = 'printf %s "${NEBULA_RESUME_FROM-nothing}"'
    ranks = {
        path: plain.start("/bin/sh", "-c", script, rank=f"{job}.2.0", env={"NEBULA_RESUME_FROM": path}, workdir=str(tmp_path))
        for job, path in enumerate([f"{tmp_path}/saved", f"{tmp_path}/not-yet", "saved"], start=1)
    }
    for path, rank in ranks.items():
        assert plain.end(rank).exit == ExitInfo(cause="exited", code=0)
        assert plain.text(rank) == ("nothing" if "not-yet" in path else path)


@pytest.mark.root
def test_it_becomes_the_mapped_user(plain: Lab) -> None:
    reachable(plain.data)
    code = """
echo $(id -u):$(id -g):$(id -G) $HOME $USER
echo x > "$NEBULA_ARTIFACTS/x"
! cat "$NEBULA_ARTIFACTS/../../../agent/ranks/1.1.0/spec.json"
"""
    rank = plain.start("bash", "-c", code, unix_user="nobody", workdir="/")
    assert plain.end(rank).exit == ExitInfo(cause="exited", code=0), plain.text(rank)
    assert "65534:65534:65534 /nonexistent nobody" in plain.text(rank)


@pytest.mark.root
def test_it_never_runs_as_an_account_of_the_system(plain: Lab) -> None:
    for job, (user, uid) in enumerate({"root": 0, "daemon": 1}.items(), 1):
        state = plain.end(plain.start("id", unix_user=user, rank=f"{job}.1.0"))
        assert (state.state, state.launch_error) == ("LAUNCH_FAILED", "user")
        assert state.launch_detail == f"'{user}' has uid {uid}; jobs only run as users with uid 1000 and above"


def test_a_setsid_child_does_not_survive_the_programs_end(lab: Lab) -> None:
    code = """
import os, time
if os.fork():
    os._exit(5)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep(600)
"""
    rank = lab.start(
        "sh",
        "-c",
        f'{PYTHON[0]} -I -S -c "$0"; while ! [ -s "$1" ]; do sleep 0.01; done; exit 4',
        code,
        str(lab.data / "ranks/1.1.0/output.log"),
    )
    assert lab.end(rank).exit == ExitInfo(cause="exited", code=4)
    child = int(lab.text(rank))
    wait_until(lambda: procs.process_stat(child) is None or procs.process_stat(child).is_dead, "the child's end")
    assert lab.ranks.tree_gone(rank)


def test_it_ends_at_its_time_limit_or_lease_and_not_while_that_is_renewed(lab: Lab) -> None:
    lab.ranks.lease_renew(procs.boottime() + 3600)  # an answer that holds longer than this test has patience
    leased, longer, free = (lab.running("sleep", "600", rank=f"{job}.1.0", lease_s=1, grace_s=60) for job in (2, 3, 4))
    limited = lab.start("sleep", "600", rank="1.1.0", time_limit_s=1, grace_s=60)
    lab.ranks.lease_set(longer, 36_000)
    lab.ranks.lease_set(free, None)
    assert lab.end(limited).exit == ExitInfo(cause="time_limit", signal=signal.SIGTERM, detail="The time limit of 1 s is over.")
    assert {lab.states[r].state for r in (leased, longer, free)} == {"RUNNING"}
    lab.ranks.lease_renew(procs.boottime() - 10)
    detail = "The control plane was silent for too long."
    assert lab.end(leased).exit == ExitInfo(cause="lease_expired", signal=signal.SIGTERM, detail=detail)
    assert {lab.states[r].state for r in (longer, free)} == {"RUNNING"}


@contextlib.contextmanager
def oom_score(value: int) -> Iterator[None]:
    """This process, and what it starts, with another OOM score, as a service's unit sets it."""
    path = Path("/proc/self/oom_score_adj")
    before = path.read_text()
    try:
        path.write_text(str(value))
    except PermissionError:
        pytest.skip("even root may not protect a process from the OOM killer here")
    try:
        yield
    finally:
        path.write_text(before)


@pytest.mark.root
def test_a_job_has_none_of_its_services_protection_from_the_oom_killer_and_its_shim_keeps_it(new_lab: Callable[..., Lab]) -> None:
    with oom_score(-900):
        lab = new_lab()
        reachable(lab.data)
        rank = lab.running("sh", "-c", "cat /proc/self/oom_score_adj; exec sleep 600", unix_user="nobody", workdir="/")
    lab.said(rank, "0\n")
    assert Path(f"/proc/{lab.shim(rank)[0]}/oom_score_adj").read_text() == "-900\n"


@pytest.mark.parametrize(("inherited", "shims", "jobs"), [(-900, "-900", "0"), (-500, "-500", "0"), (0, "-500", "0"), (300, "-500", "300")])
def test_a_job_is_never_protected_and_its_shim_always(
    inherited: int, shims: str, jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = tmp_path / "oom_score_adj"
    score.write_text(f"{inherited}\n")
    monkeypatch.setattr(launch, "OOM_SCORE", str(score))
    assert (launch.oom_score_lower(), score.read_text()) == (jobs, shims)


def test_a_job_keeps_a_score_that_makes_it_go_first(new_lab: Callable[..., Lab]) -> None:
    with oom_score(300):
        lab = new_lab()
        rank = lab.start("cat", "/proc/self/oom_score_adj")
        assert lab.end(rank).exit == ExitInfo(cause="exited", code=0)
    assert lab.text(rank) == "300\n"


def test_it_tells_when_the_kernel_killed_for_memory(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(memory_mib=64)
    if not (lab.ranks.layout.extra.get("memory") or Path(lab.ranks.layout.main or "/", "memory.max").exists()):
        pytest.skip("no memory controller")
    rank = lab.start(*PYTHON, "x = bytearray(400 << 20)")
    exit = lab.end(rank).exit
    assert exit is not None
    assert (exit.cause, exit.signal) == ("host_memory", signal.SIGKILL)


def test_a_fork_bomb_meets_its_limit_and_is_cleared_away(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(pids_max=20)
    if not (lab.ranks.layout.extra.get("pids") or Path(lab.ranks.layout.main or "/", "pids.max").exists()):
        pytest.skip("no pids controller")
    code = "import os, time\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(600)\nexcept OSError: raise SystemExit(9)"
    rank = lab.start(*PYTHON, code)
    exit = lab.end(rank).exit
    assert exit is not None
    assert (exit.cause, exit.code) == ("pids_limit", 9)
    assert lab.ranks.tree_gone(rank)


@pytest.mark.root
def test_a_full_disk_costs_neither_the_exit_code_nor_the_stop(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as small:
        lab = Lab(small)
        try:
            fills = 'head -c 2000000 /dev/zero; echo full > "$0"; while ! [ -e "$1" ]; do sleep 0.02; done; exit 5'
            reachable(tmp_path)
            tmp_path.chmod(0o777)
            stopped = lab.running("sleep", "600", rank="2.1.0", unix_user="nobody", workdir="/")
            by_itself = lab.running("sh", "-c", fills, str(tmp_path / "full"), str(tmp_path / "go"), unix_user="nobody", workdir="/")
            wait_until((tmp_path / "full").exists, "a full disk")
            lab.ranks.stop(stopped, grace_s=60)
            (tmp_path / "go").touch()
            for rank in (by_itself, stopped):
                program = lab.program(rank)
                wait_until(lambda who=program: not procs.is_alive(*who), f"the end of {rank}")
            lab.poll()
            assert {s.state for s in lab.states.values()} == {"RUNNING"}  # nobody could write the end down yet
            os.truncate(lab.ranks.rank_dir(by_itself) / "output.log", 0)
            assert lab.end(by_itself).exit == ExitInfo(cause="exited", code=5)
            assert lab.end(stopped).exit == ExitInfo(cause="exited", signal=signal.SIGKILL)  # no order could reach its shim
        finally:
            lab.close()
