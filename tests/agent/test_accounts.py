"""Accounts that the control plane made up: made once, never over somebody else's, never for the system."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent import accounts
from agent.accounts import account_ensure
from agent.jobenv import SpecError
from agent.protocol import RankSpec


class System:
    """/etc/passwd and useradd."""

    home = "/nonexistent"

    def __init__(self, **people: int) -> None:
        self.people, self.made, self.fails = dict(people), [], ""

    def getpwnam(self, name: str) -> Any:
        return SimpleNamespace(pw_name=name, pw_uid=self.people[name], pw_dir=self.home)

    def getpwuid(self, uid: int) -> Any:
        return next((SimpleNamespace(pw_name=name, pw_uid=uid) for name, number in self.people.items() if number == uid), None) or {}[uid]

    def run(self, argv: Any, **_: Any) -> Any:
        self.made.append(tuple(argv[1:]))
        if not self.fails:
            self.people[argv[-1]] = int(argv[argv.index("--uid") + 1])
        return SimpleNamespace(returncode=9 if self.fails else 0, stderr=self.fails)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    found = System(ann=1001, daemon=2)
    monkeypatch.setattr(accounts.pwd, "getpwnam", found.getpwnam)
    monkeypatch.setattr(accounts.pwd, "getpwuid", found.getpwuid)
    monkeypatch.setattr(accounts.subprocess, "run", found.run)
    monkeypatch.setattr(accounts.shutil, "which", lambda *_args, **_more: "/usr/sbin/useradd")
    return found


def spec(name: str | None, uid: int | None) -> RankSpec:
    return RankSpec(job=1, index=0, argv=("id",), unix_user=name, unix_uid=uid)


def test_it_is_made_once_and_found_afterwards(system: System) -> None:
    for _ in range(2):
        account_ensure(spec("nb-lin", 20_000), may_make=True)
    assert [argv[-1] for argv in system.made] == ["nb-lin"]
    assert system.made[0][:2] == ("--uid", "20000")


@pytest.mark.parametrize(("name", "uid"), [(None, None), ("ann", None), ("nobody-here", None)])
def test_accounts_of_the_nodes_own_are_none_of_its_business(system: System, name: str | None, uid: int | None) -> None:
    account_ensure(spec(name, uid), may_make=True)
    assert system.made == []


@pytest.mark.parametrize(
    ("name", "uid", "may_make", "words"),
    [
        ("nb-lin", 0, True, "can't be an account of a person"),
        ("nb-lin", 999, True, "can't be an account of a person"),
        ("nb-lin", -1, True, "can't be an account of a person"),
        ("--root=/", 20_000, True, "can't be an account of a person"),
        ("nb lin", 20_000, True, "can't be an account of a person"),
        ("ann", 20_000, True, "has uid 1001 on this node"),
        ("nb-lin", 1001, True, "'ann'"),
        ("nb-lin", 20_000, False, "make_accounts"),
    ],
)
def test_nothing_is_made_over_others_below_1000_or_unasked(system: System, name: str, uid: int, may_make: bool, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        account_ensure(spec(name, uid), may_make=may_make)
    assert caught.value.kind == "user"
    assert system.made == []


def test_what_useradd_says_is_told(system: System) -> None:
    system.fails = "useradd: cannot lock /etc/passwd"
    with pytest.raises(SpecError, match="cannot lock /etc/passwd"):
        account_ensure(spec("nb-lin", 20_000), may_make=True)


def test_its_home_is_closed_to_others_and_nobody_elses_folder_is_touched(tmp_path: Path) -> None:
    home, link, others = tmp_path / "home", tmp_path / "link", tmp_path / "others"
    for folder in (home, others):
        folder.mkdir()
        folder.chmod(0o755)
    link.symlink_to(others)
    accounts._home_close(str(home), os.getuid())
    accounts._home_close(str(link), os.getuid())
    accounts._home_close(str(others), os.getuid() + 1)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (home, others)] == [0o700, 0o755]


@pytest.mark.root
def test_a_real_account_is_made_and_is_nobodys_but_its_own() -> None:
    uid = next(number for number in range(29_900, 29_990) if not _is_taken(number))
    name = f"nbt-{os.getpid() % 100_000}"
    try:
        account_ensure(spec(name, uid), may_make=True)
        found = pwd.getpwnam(name)
        assert found.pw_uid == uid
        assert Path(found.pw_dir).stat().st_uid == uid
        assert stat.S_IMODE(Path(found.pw_dir).stat().st_mode) == 0o700
        account_ensure(spec(name, uid), may_make=False)
    finally:
        subprocess.run(["/usr/sbin/userdel", "--remove", name], capture_output=True, check=False)


def _is_taken(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
