"""The parts of a control plane that root starts: accounts, places, what is handed over, and what root does for the other side."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.launch import LaunchFailed, account_find
from agent.placed import placed
from nebulagrid.rooted import handover, placement
from nebulagrid.rooted import layout as layout_module
from nebulagrid.rooted.accounts import Account, as_account, control_account, control_commands, job_account, job_commands, unreadable
from nebulagrid.rooted.entry import owner_of
from nebulagrid.rooted.errors import RootedError
from nebulagrid.rooted.handover import hand_over
from nebulagrid.rooted.layout import Layout, layout_find, layout_make, place_name, state_folder
from nebulagrid.rooted.line import RootFiles, serve
from nebulagrid.rooted.placement import Source, code_files
from nebulagrid.startfiles import OwnFiles
from nebulagrid.supervisor import ChildSpec, open_own

NOBODY = Account(name="nobody", uid=65534, gid=65534, groups=(65534,), home="/nonexistent")


def programs(*names: str) -> Callable[[str], str | None]:
    return lambda name: f"/sbin/{name}" if name in names else None


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder of root's that every account can get to."""
    folder = Path(tempfile.mkdtemp(prefix="nebula-rooted-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# --- accounts -------------------------------------------------------------------------------------------------------


def test_accounts_are_made_by_what_the_system_has() -> None:
    assert control_commands("grid", programs("useradd", "adduser", "addgroup"))[0][:3] == ["/sbin/useradd", "--system", "--user-group"]
    assert [command[0] for command in control_commands("grid", programs("adduser", "addgroup"))] == ["/sbin/addgroup", "/sbin/adduser"]
    assert "--system" not in job_commands("people", programs("useradd"))[0], "a uid of 1000 or more"
    assert "/var/lib/people" in job_commands("people", programs("adduser"))[0]


def test_without_a_program_that_makes_accounts_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(RootedError, match=r"neither useradd nor adduser.*NEBULA_ACCOUNT.*ordinary user"):
        control_account({"NEBULA_ACCOUNT": "nobody-made-this"})


def test_the_control_plane_is_never_root_and_jobs_never_an_account_of_the_system() -> None:
    with pytest.raises(RootedError, match="never runs as root"):
        control_account({"NEBULA_ACCOUNT": "root"})
    with pytest.raises(RootedError, match="uid of 1000 or more"):
        job_account({"NEBULA_JOB_ACCOUNT": "daemon"}, control=NOBODY)
    with pytest.raises(RootedError, match="both name nobody"):
        job_account({"NEBULA_JOB_ACCOUNT": "nobody"}, control=NOBODY)


@pytest.mark.parametrize("min_uid", [1000, 0, -1])
def test_no_job_becomes_root_whatever_the_least_uid_is(monkeypatch: pytest.MonkeyPatch, min_uid: int) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(LaunchFailed, match="'root' has uid 0; jobs only run as users with uid 1"):
        account_find("root", min_uid=min_uid)
    assert account_find("nobody", min_uid=min_uid) is not None


def test_what_is_the_callers_own_stays_with_the_caller() -> None:
    env = NOBODY.environ({"PATH": "/bin", "XDG_RUNTIME_DIR": "/run/user/0", "SSH_AUTH_SOCK": "/x", "HOME": "/root"}, home="/data")
    assert env == {"PATH": "/bin", "HOME": "/data", "USER": "nobody", "LOGNAME": "nobody"}


@pytest.mark.root
def test_it_becomes_another_account_wholly_and_tells_what_that_can_not_read(open_folder: Path) -> None:
    assert (
        as_account(NOBODY, lambda: repr((os.getresuid(), os.getresgid(), os.getgroups())).encode())
        == repr(((65534,) * 3, (65534,) * 3, [65534])).encode()
    )
    (open_folder / "closed").touch(mode=0o600)
    (open_folder / "open").touch(mode=0o644)
    wanted = [open_folder / "closed", open_folder / "open", open_folder]
    assert unreadable(NOBODY, wanted) == [open_folder / "closed"]


def test_root_that_can_not_become_another_says_so_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(groups: list[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setgroups", refused)
    with pytest.raises(RootedError, match=r"can't become the account nobody here \(Operation not permitted\).*ordinary user"):
        as_account(NOBODY, bytes)


# --- places ---------------------------------------------------------------------------------------------------------


def test_names_of_places_are_readable_and_differ() -> None:
    assert place_name(Path("/root/NebulaGrid/var")).startswith("nebulagrid-var-")
    assert place_name(Path("/root/a-b/var")) != place_name(Path("/root/a/b-var"))


@pytest.mark.root
def test_data_stay_where_only_root_can_move_them_and_go_elsewhere_otherwise(open_folder: Path) -> None:
    states = (open_folder / "state",)
    assert layout_find(open_folder / "var", states).base == open_folder / "var"
    (open_folder / "closed").mkdir(mode=0o700)
    assert layout_find(open_folder / "closed" / "var", states).base.parent == open_folder / "state"
    (open_folder / "others").mkdir(mode=0o755)
    os.chown(open_folder / "others", 65534, 65534)
    assert layout_find(open_folder / "others" / "var", states).is_moved, "its owner could put another folder in the place of the agent's"
    (open_folder / "anybodys").mkdir()
    (open_folder / "anybodys").chmod(0o777)
    assert layout_find(open_folder / "anybodys" / "var", states).is_moved


@pytest.mark.root
def test_a_state_folder_of_another_account_is_passed_over(open_folder: Path) -> None:
    theirs, ours = open_folder / "theirs", open_folder / "ours"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    assert state_folder((theirs, ours)) == ours
    with pytest.raises(RootedError, match="belongs to root alone"):
        state_folder((theirs,))


@pytest.mark.root
def test_the_folders_have_their_owners_and_modes(open_folder: Path) -> None:
    (open_folder / "closed").mkdir(mode=0o700)
    for top in (open_folder / "var", open_folder / "closed" / "var"):
        found = layout_find(top, (open_folder / "state",))
        layout_make(found, NOBODY)
        layout_make(found, NOBODY)
        hand_over(found, NOBODY, print)
        modes = {path.name: (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) for path in (found.control, found.agents, found.jobs)}
        assert modes == {"control": (65534, 0o700), "agents": (0, 0o700), "jobs": (0, 0o711)}
        assert (top / "control").resolve() == found.control
        assert found.run.stat().st_uid == 0
        assert as_account(NOBODY, lambda found=found: str(os.access(found.control, os.W_OK)).encode()) == b"True"


@pytest.mark.root
def test_a_folder_of_another_account_is_refused_by_name(open_folder: Path) -> None:
    theirs = open_folder / "var"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(RootedError, match=r"belongs to nobody.*NEBULA_DATA"):
        layout_make(Layout(top=theirs, base=theirs), NOBODY)
    owner = owner_of(theirs)
    assert owner is not None
    assert owner.uid == 65534


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757])
def test_a_folder_that_others_may_write_to_is_refused(open_folder: Path, mode: int) -> None:
    top = open_folder / "var"
    top.mkdir()
    top.chmod(mode)
    with pytest.raises(RootedError, match=r"Others than root may write to .*chmod go-w .*NEBULA_DATA"):
        layout_make(Layout(top=top, base=top), NOBODY)
    assert [stat.S_IMODE(top.stat().st_mode), *top.iterdir()] == [mode], "nothing is touched"
    top.chmod(0o755)
    layout_make(Layout(top=top, base=top), NOBODY)


@pytest.mark.root
@pytest.mark.parametrize("name", ["agents", "jobs", "run"])
def test_what_stands_in_the_place_of_a_folder_of_roots_is_refused(open_folder: Path, name: str) -> None:
    top, elsewhere = open_folder / "var", open_folder / "elsewhere"
    top.mkdir()
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    for make, said in (
        (lambda place: place.symlink_to(elsewhere), "a link"),
        (lambda place: place.symlink_to(open_folder / "nowhere"), "a link"),
        (lambda place: place.touch(), "no folder"),
    ):
        make(top / name)
        with pytest.raises(RootedError, match=f"{name} has to be a folder of root's, and it is {said}"):
            layout_make(Layout(top=top, base=top), NOBODY)
        (top / name).unlink()
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755
    shutil.rmtree(top / name, ignore_errors=True)
    (top / name).mkdir()
    os.chown(top / name, 65534, 65534)
    with pytest.raises(RootedError, match="it is of uid 65534"):
        layout_make(Layout(top=top, base=top), NOBODY)


@pytest.mark.root
def test_the_links_of_a_start_that_kept_the_data_elsewhere_still_lead_there(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "STATES", (open_folder / "state",))
    top = open_folder / "var"
    layout_make(Layout(top=top, base=open_folder / "state" / place_name(top)), NOBODY)
    assert (top / "agents").is_symlink()
    layout_make(Layout(top=top, base=top), NOBODY)


# --- handing over ---------------------------------------------------------------------------------------------------


def older(top: Path) -> None:
    """What a control plane that ran as root has left."""
    (top / "logs" / "1").mkdir(parents=True)
    (top / "logs" / "1" / "output").write_text("hello")
    (top / "nebula.sqlite3").write_text("rows")
    (top / "secret-key").write_text("key")
    (top / "cli.json").write_text("{}")
    (top / "my notes").write_text("mine")
    (top / "agent" / "ranks").mkdir(parents=True)
    (top / "agent" / "agent.credential").write_text("credential")
    (top / "logs" / "away").symlink_to(top.parent / "passwd")
    (top.parent / "passwd").write_text("root's")
    os.link(top.parent / "passwd", top / "logs" / "linked")


def owners(layout: Layout) -> dict[str, int]:
    return {str(path.relative_to(layout.top)): path.lstat().st_uid for path in sorted(layout.top.rglob("*"))}


@pytest.mark.root
def test_an_older_folder_is_handed_over_once_without_following_links(open_folder: Path) -> None:
    layout = Layout(top=open_folder / "var", base=open_folder / "var")
    older(layout.top)
    layout_make(layout, NOBODY)
    assert hand_over(layout, NOBODY, print)
    found = owners(layout)
    theirs = {name for name, uid in found.items() if uid == 65534}
    assert theirs == {"control", *(name for name in found if name.startswith("control/"))}
    assert {"control/nebula.sqlite3", "control/logs/1/output", "agents/agent/agent.credential", "cli.json", "my notes"} <= set(found)
    assert (open_folder / "passwd").stat().st_uid == 0, "neither a link nor a second name gives a file of root's away"
    assert (layout.control / "logs" / "linked").read_text() == "root's"
    (layout.top / "secret-key").write_text("later")
    assert not hand_over(layout, NOBODY, print), "what is the account's is never walked by root again"
    assert (layout.top / "secret-key").stat().st_uid == 0


@pytest.mark.root
@pytest.mark.parametrize("at", range(7))
def test_a_crash_in_the_middle_is_made_good_by_the_next_start(open_folder: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    layout = Layout(top=open_folder / "var", base=open_folder / "var")
    older(layout.top)
    layout_make(layout, NOBODY)
    left = at
    real: dict[str, Any] = {"rename": Path.rename, "fchown": os.fchown}

    def crashing(name: str) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return real[name](*args)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crashing("rename"))
        patch.setattr(os, "fchown", crashing("fchown"))
        with pytest.raises(KeyboardInterrupt):
            hand_over(layout, NOBODY, print)
    assert layout.control.stat().st_uid == 0
    assert hand_over(layout, NOBODY, print)
    assert (layout.control / "nebula.sqlite3").read_text() == "rows"
    assert {uid for name, uid in owners(layout).items() if name.startswith("control")} == {65534}


@pytest.mark.root
def test_from_another_disk_it_is_copied_and_no_half_is_left(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(top=open_folder / "closed" / "var", base=open_folder / "state" / "var")
    older(layout.top)
    layout_make(layout, NOBODY)
    real = Path.rename

    def other_disk(self: Path, target: Path) -> Path:
        if self.parent == layout.top:
            raise OSError(18, "Invalid cross-device link")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", other_disk)
    (layout.control / ".handed-logs").mkdir()
    hand_over(layout, NOBODY, print)
    assert (layout.control / "logs" / "1" / "output").read_text() == "hello"
    assert [path.name for path in layout.control.iterdir() if path.name.startswith(".handed")] == []
    assert not (layout.top / "logs").exists()


@pytest.mark.root
def test_nothing_is_moved_away_from_under_a_control_plane_that_runs(open_folder: Path) -> None:
    import fcntl

    layout = Layout(top=open_folder / "var", base=open_folder / "var")
    older(layout.top)
    layout_make(layout, NOBODY)
    with (layout.run / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        with pytest.raises(RootedError, match="process 4711"):
            hand_over(layout, NOBODY, print)
    assert (layout.top / "secret-key").exists()


# --- code -----------------------------------------------------------------------------------------------------------


def checkout_make(folder: Path) -> None:
    for name, text in {
        "manage.py": "x", "agent/main.py": "x", "agent/.env": "SECRET", "deploy/lab.key": "SECRET", "deploy/credentials": "SECRET",
        "var/secret-key": "SECRET", ".git/config": "SECRET", "notes.txt": "SECRET", "agent/__pycache__/main.pyc": "x",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    (folder / "deploy" / "credentials").chmod(0o600)
    (folder / "agent" / "passwd.py").symlink_to("/etc/passwd")


def test_only_code_is_placed(tmp_path: Path) -> None:
    checkout_make(tmp_path)
    assert [str(name) for _, name in code_files(tmp_path)] == ["manage.py", "agent/main.py"]


@pytest.mark.root
def test_what_is_placed_is_roots_and_open_and_nobody_elses_to_write(open_folder: Path) -> None:
    (open_folder / "theirs.py").write_text("x")
    os.chown(open_folder / "theirs.py", 65534, 65534)
    (open_folder / "closed.py").write_text("x")
    (open_folder / "closed.py").chmod(0o600)
    (open_folder / "program").write_text("x")
    (open_folder / "program").chmod(0o755)
    for name in ("theirs.py", "closed.py", "program"):
        placement._lay(open_folder / name, open_folder / f"{name}.placed")
    found = {name: (open_folder / f"{name}.placed").stat() for name in ("theirs.py", "closed.py", "program")}
    assert {found.st_uid for found in found.values()} == {0}
    assert [stat.S_IMODE(found.st_mode) for found in found.values()] == [0o644, 0o644, 0o755]
    assert [found.st_nlink for found in found.values()] == [1, 1, 2], "a link where the file is root's and open"


@pytest.mark.root
def test_compiling_imports_nothing_from_where_root_was_started(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source.of_this_process(open_folder / "closed" / "checkout")
    checkout_make(source.checkout)
    (open_folder / "closed").chmod(0o700)
    (source.checkout / "agent" / "main.py").write_text("x = 1\n")
    monkeypatch.setattr(placement, "_try", lambda account, place: None)
    there = open_folder / "there"
    there.mkdir()
    (there / "compileall.py").write_text(f"open({str(open_folder / 'ran')!r}, 'w')")
    monkeypatch.chdir(there)
    monkeypatch.setenv("PYTHONPATH", str(there))
    placed_at = placement.place_find(source, [NOBODY], lambda: open_folder / "state", print)
    assert not (open_folder / "ran").exists()
    assert list((placed_at.code / "agent" / "__pycache__").glob("main.*.pyc")), "it is compiled all the same"


@pytest.mark.root
def test_it_is_placed_once_and_again_when_something_changed(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source.of_this_process(open_folder / "closed" / "checkout")
    checkout_make(source.checkout)
    (open_folder / "closed").chmod(0o700)
    monkeypatch.setattr(placement, "_try", lambda account, place: None)  # there is no whole project in it
    said: list[str] = []

    def place() -> placement.Place:
        return placement.place_find(source, [NOBODY], lambda: open_folder / "state", said.append)

    first = place()
    assert first.code.parent == open_folder / "state" / "code"
    assert as_account(NOBODY, lambda: (first.code / "agent" / "main.py").read_bytes()) == b"x"
    assert place() == first
    assert len(said) == 1
    (source.checkout / "agent" / "main.py").write_text("changed")
    second = place()
    assert second.code != first.code
    assert (second.code / "agent" / "main.py").read_text() == "changed"
    assert not first.code.exists(), "nothing uses it any more"
    assert as_account(NOBODY, lambda: os.access(second.python, os.X_OK).to_bytes(1, "big")) == b"\1"
    moves = [(str(old), str(new)) for old, new in second.moves]
    assert placed(str(source.checkout / "agent"), moves) == str(second.code / "agent")


def test_paths_below_a_checkout_are_placed_where_something_is(tmp_path: Path) -> None:
    (tmp_path / "code" / "examples").mkdir(parents=True)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    places = [("/root/grid", str(tmp_path / "code")), ("/root/grid/.venv", str(tmp_path / "env"))]
    assert placed("/root/grid", places) == str(tmp_path / "code")
    assert placed("/root/grid/examples/", places) == str(tmp_path / "code" / "examples")
    assert placed("/root/grid/.venv/bin", places) == str(tmp_path / "env" / "bin")
    assert placed("/root/grid/data", places) is None, "nothing is there: the job is told by its own path"
    assert placed("/root/gridlock", places) is None
    assert placed("/root/grid/../other", places) is None


# --- root's answers -------------------------------------------------------------------------------------------------


class Asked:
    """Root's side in a thread, the account's side here."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        self.prepared: Any = None
        files = OwnFiles(folder)

        def answer() -> None:
            with ours:
                decided = {"identity": "shared", "job_account": "people", "jobs_dir": f"{folder}/jobs/{{name}}"}
                self.prepared = serve(ours, files, agent_values=decided, hello={"folder": "/somewhere", "bin": "/somewhere/bin"})

        self.thread = threading.Thread(target=answer)
        self.thread.start()
        self.link = theirs
        self.files = RootFiles(theirs)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    found = Asked(tmp_path)
    yield found
    found.link.close()
    found.thread.join()


def test_root_writes_what_it_knows_and_decides_who_jobs_run_as(asked: Asked, tmp_path: Path) -> None:
    asked.files.password_write("open sesame\n")
    assert asked.files.has_password()
    asked.files.profile_write({"endpoint": "http://here", "token": "t", "ca_file": None}, named=False)
    assert asked.files.profile_read(named=False)["token"] == "t"
    assert asked.files.profile_path(named=True) is None
    values = {"endpoint": "http://here", "node_id": 7, "identity": "same", "data_dir": "/etc", "credential_file": "/etc/shadow"}
    config = asked.files.agent_write("agent-2", values, "credential")
    assert config == tmp_path / "agent-2" / "agent.toml"
    text = config.read_text()
    assert 'identity = "shared"' in text
    assert f'jobs_dir = "{tmp_path}/jobs/agent-2"' in text
    assert "/etc" not in text
    assert asked.files.agent_read("agent-2")["node_id"] == 7
    assert stat.S_IMODE((tmp_path / "agent-2" / "agent.credential").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["../etc", "agent/../../etc", "agent-", "demo", "agent-A", ""])
def test_root_writes_nowhere_else(asked: Asked, tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="no name of an agent"):
        asked.files.agent_write(name, {"node_id": 1}, "credential")
    assert list(tmp_path.iterdir()) == []


WEB: dict[str, Any] = {"name": "web", "argv": ["/code/python", "-m", "nebulagrid.web"], "env": {"A": "b"}, "stage": 1}


def test_the_lock_goes_along_as_an_open_file(asked: Asked, tmp_path: Path) -> None:
    asked.files.agent_write("agent", {"node_id": 1}, "credential")
    with (tmp_path / "lock").open("w") as lock:
        asked.files.finish(children=[WEB], agents=["agent"], ready=["ready"], lock=lock.fileno())
        asked.thread.join()
        assert os.path.samestat(os.fstat(asked.prepared.lock), os.fstat(lock.fileno()))
    os.close(asked.prepared.lock)
    assert [child["argv"] for child in asked.prepared.children] == [WEB["argv"]]
    assert (asked.prepared.agents, asked.prepared.ready) == (["agent"], ["ready"])


def finished(asked: Asked, **given: Any) -> Any:
    asked.files._ask("finish", **{"children": [WEB], "agents": [], "ready": [], **given})
    asked.thread.join()
    return asked.prepared


@pytest.mark.parametrize("agents", [["../control/x"], ["agent/../../control"], ["agent-2"], ["agent", "agent"], "agent", [7], None])
def test_root_runs_no_agent_but_those_that_it_wrote_itself(asked: Asked, tmp_path: Path, agents: Any) -> None:
    asked.files.agent_write("agent", {"node_id": 1}, "credential")
    (tmp_path / "agent-2").mkdir()  # of an earlier start
    with pytest.raises(OSError, match="agent"):
        asked.files._ask("finish", children=[WEB], agents=agents, ready=[])
    asked.link.close()
    asked.thread.join()
    assert asked.prepared is None, "what was refused starts nothing"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../../etc/cron.d/x"}, {"name": "agent"}, {"argv": []}, {"argv": "sh"}, {"argv": ["sh"]}, {"argv": ["/bin/sh", "a\0b"]},
        {"env": None}, {"env": {"A=B": "c"}}, {"env": {"A": 1}}, {"stage": True}, {"stage": "1"}, {"until_s": 1e9}, {"stop_signal": 9},
        {"probe": "http:here:port"}, {"probe": "file:/etc/shadow"}, {"probe_password_file": "../x"}, {"hints": ["/"]},
    ],
)  # fmt: skip
def test_root_starts_only_the_children_that_it_knows(asked: Asked, wrong: dict[str, Any]) -> None:
    with pytest.raises(OSError, match=r"\w"):
        asked.files._ask("finish", children=[{**WEB, **wrong}], agents=[], ready=[])
    with pytest.raises(OSError, match="named twice"):
        asked.files._ask("finish", children=[WEB, WEB], agents=[], ready=[])
    assert len(finished(asked).children) == 1


@pytest.mark.parametrize("probe", ["http:127.0.0.1:8000", "https:::1:8443", "http:fe80::1%eth0:8000", "http:lab.example.org:80"])
def test_an_address_where_the_web_server_answers_is_taken_as_it_is(asked: Asked, probe: str) -> None:
    assert finished(asked, children=[{**WEB, "probe": probe}]).children[0]["probe"] == probe


def test_who_a_child_runs_as_and_where_is_not_the_other_sides_to_say(asked: Asked) -> None:
    from nebulagrid.management.commands.up import child_given

    given = child_given(ChildSpec(name="redis", argv=["/bin/redis"], stage=0, probe="redis:/data/redis.sock", hints="/data/redis"))
    own = {"account": None, "cwd": "/etc", "clean": True, "is_whole_env": False, "unknown": 1}
    (child,) = finished(asked, children=[{**given, **own}]).children
    assert ChildSpec(**child) == ChildSpec(**{**given, "is_whole_env": True})
    assert not {"account", "cwd", "clean", "unknown"} & child.keys()


def test_lines_for_roots_terminal_carry_no_orders_to_it(asked: Asked) -> None:
    ready = ["  就绪: ready", "", "\x1b]0;title\x07\x1b[2Jgone\r\nnext\x9b1m\u202e\ud800"]
    assert finished(asked, ready=ready).ready == ["  就绪: ready", "", "]0;title[2Jgonenext1m"]


def test_a_side_that_goes_away_prepared_nothing(asked: Asked) -> None:
    asked.link.close()
    asked.thread.join()
    assert asked.prepared is None


@pytest.mark.root
def test_root_reads_no_other_file_in_the_place_of_the_accounts_own(tmp_path: Path) -> None:
    me = {"uid": pwd.getpwnam("nobody").pw_uid}
    (tmp_path / "roots").write_text("root's")
    os.link(tmp_path / "roots", tmp_path / "linked")
    (tmp_path / "pointing").symlink_to(tmp_path / "roots")
    os.mkfifo(tmp_path / "pipe")
    os.chown(tmp_path / "pipe", me["uid"], -1)
    for name in ("linked", "pointing", "pipe"):
        with pytest.raises(OSError, match=r"own file|Too many levels"):
            open_own(tmp_path / name, me)
    os.chown(tmp_path / "linked", me["uid"], -1)
    with open_own(tmp_path / "linked", me) as file:
        assert file.read() == b"root's"


def test_moved_files_keep_their_names() -> None:
    assert handover.is_ours("nebula.sqlite3-wal")
    assert handover.is_ours("agent-2")
    assert not handover.is_ours("cli.json")
    assert not handover.is_ours("agents")
