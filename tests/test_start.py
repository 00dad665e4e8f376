"""What a start writes for people: the administrator's profile, and what jobs can reach."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from nebulagrid.management.commands.up import Command
from nebulagrid.reach import reach_lines
from nebulagrid.startfiles import OwnFiles
from quotas.services import user_create
from quotas.tokens import token_authenticate

OTHER = {"endpoint": "https://other.example", "token": "theirs"}


def start(data: Path, named: Path | None) -> tuple[Path, str]:
    """The profile's path, and what was said."""
    out = io.StringIO()
    command = Command(stdout=out)
    command.files = OwnFiles(data, named=str(named) if named else None)
    return command._profile(), out.getvalue()


@pytest.fixture
def admin(db: None) -> None:
    user_create(email="admin@localhost", password="a long enough one", is_staff=True, is_superuser=True)


def token_of(path: Path) -> str:
    return str(json.loads(path.read_text())["token"])


@pytest.mark.usefixtures("admin")
def test_a_profile_of_another_installation_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    named = tmp_path / "profile.json"
    named.write_text(json.dumps(OTHER))
    path, text = start(tmp_path, named)
    assert json.loads(named.read_text()) == OTHER
    assert path == tmp_path / "cli.json"
    assert token_authenticate(token_of(path)) is not None
    assert f"{named}, a profile for https://other.example: it is left alone" in text


@pytest.mark.usefixtures("admin")
def test_a_profile_that_is_not_there_yet_or_our_own_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    named = tmp_path / "folder" / "profile.json"
    path, text = start(tmp_path, named)
    assert (path, text) == (named, "")
    first = token_of(named)
    assert token_authenticate(first) is not None
    start(tmp_path, named)
    assert token_of(named) == first, "a working one stays"
    named.write_text(json.dumps({**json.loads(named.read_text()), "token": "of a database that is gone"}))
    start(tmp_path, named)
    assert token_authenticate(token_of(named)) is not None


@pytest.mark.usefixtures("admin")
def test_without_a_name_it_is_in_the_data_folder(tmp_path: Path) -> None:
    assert start(tmp_path, None) == (tmp_path / "cli.json", "")


def found(*is_open: str, **values: object) -> dict[str, object]:
    base: dict[str, object] = {"identity": "same", "account": "ann", "uid": 1000, "sandbox": "mounts", "ready": True, "refused": []}
    return {**base, "open": list(is_open), **values}


def test_a_machine_that_keeps_jobs_apart_says_so_without_alarm() -> None:
    lines = reach_lines(found("home"), allowed=False)
    assert lines[0] == "  Jobs on this machine run as ann, in a mount namespace of their own."
    assert "***" not in "".join(lines)
    assert "home folder" in lines[1]


def test_what_a_job_can_read_is_said_with_who_may_run_here_and_why() -> None:
    text = "\n".join(reach_lines(found("control_files", "processes", sandbox="none", refused=["no user namespaces"]), allowed=False))
    assert "*** A job can read and change this control plane's keys, database and tokens; read the memory" in text
    assert "only for the first administrator" in text
    assert "does not work here: no user namespaces" in text
    assert "all the same" in "\n".join(reach_lines(found("control_files"), allowed=True))


def test_a_machine_that_runs_no_job_and_one_that_nobody_can_ask_are_said_too() -> None:
    assert "No job can be launched on this machine. Why." in reach_lines(found(ready=False, problem="Why."), allowed=False)[0]
    assert "could not be found out" in reach_lines(None, allowed=False)[0]
