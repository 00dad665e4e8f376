"""The folder of a rank that is its job's: where it is, whose it is, and that it goes with the rank whatever is in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import jobdir
from agent.artifacts import folder_open
from tests.agent.rank_lab import Lab
from tests.waiting import wait_until

LOOK = 'echo "$NEBULA_ARTIFACTS"; stat -c "%a %u" "$NEBULA_ARTIFACTS" "$NEBULA_ARTIFACTS/.." "$NEBULA_ARTIFACTS/../tmp"'


def test_it_lies_beside_the_agents_data_and_is_the_jobs_alone(plain: Lab) -> None:
    rank = plain.start("sh", "-c", LOOK)
    plain.end(rank)
    where, *modes = plain.text(rank).splitlines()
    assert Path(where) == plain.ranks.artifacts_dir(rank) == Path(f"{plain.data}-jobs") / rank / "artifacts"
    assert modes == [f"700 {os.geteuid()}"] * 3
    assert not (plain.ranks.rank_dir(rank) / "artifacts").exists()


def test_the_configuration_can_name_another_place(new_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = new_lab(jobs_dir=tmp_path / "scratch")
    rank = lab.start("true")
    lab.end(rank)
    assert sorted(p.name for p in (tmp_path / "scratch" / rank).iterdir()) == ["artifacts", "tmp"]
    assert stat.S_IMODE((tmp_path / "scratch").stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)


def test_a_place_that_is_somebody_elses_is_refused(new_lab: Callable[..., Lab], tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="not a folder of this agent's own"):
        jobdir.root_make(str(tmp_path / "link"), is_root=False)


def test_it_goes_with_the_rank_and_leads_nowhere_else(plain: Lab, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    script = """
    cd "$NEBULA_ARTIFACTS/../tmp"
    mkdir -p a/b && touch a/b/c && chmod 000 a/b && chmod 555 a
    ln -s "$0" link && mkfifo pipe && ln -s "$0/file" other
    """
    rank = plain.start("sh", "-c", script, str(kept))
    plain.end(rank)
    assert plain.text(rank) == ""
    plain.ranks.forget(rank)
    assert not plain.ranks.job_dir(rank).exists(), "its name is free at once"
    wait_until(lambda: list(plain.ranks.jobs_dir.iterdir()) in ([], [plain.ranks.jobs_dir / ".secrets"]), "the folder's removal")
    assert (kept / "file").exists()


def test_as_deep_as_a_job_likes_it_is_removed(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("top", dir_fd=folder)
    for name in ("top", *(["d"] * 400)):  # deeper than a path can be long, and than descriptors go
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
        os.mkdir("d", dir_fd=folder)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    jobdir.remove(str(tmp_path / "top"))
    assert list(tmp_path.iterdir()) == []


def test_a_new_agent_removes_what_a_crash_left_and_no_more(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab()
    rank = lab.running("sh", "-c", 'echo kept > "$NEBULA_ARTIFACTS/x"; exec sleep 600')
    for name in ("9.9.9", ".gone-8.8.8-abcd", "notes", "1.2"):
        (lab.ranks.jobs_dir / name / "sub").mkdir(parents=True)
    lab.ranks.close()
    lab._ranks = None
    assert lab.recover(rank).state == "RUNNING"

    def left() -> set[str]:
        return {p.name for p in lab.ranks.jobs_dir.iterdir()} - {".secrets"}

    wait_until(lambda: left() == {rank, "notes", "1.2"}, "what a crash left to be gone")
    assert (lab.ranks.artifacts_dir(rank) / "x").read_text() == "kept\n"


def test_a_rank_of_an_older_agent_keeps_its_artefacts_where_they_are(plain: Lab) -> None:
    older = plain.ranks.rank_dir("1.1.0") / "artifacts"
    assert plain.ranks.artifacts_dir("1.1.0") == plain.ranks.jobs_dir / "1.1.0" / "artifacts"
    older.mkdir(parents=True)
    assert plain.ranks.artifacts_dir("1.1.0") == older


def test_a_job_that_removes_its_own_folder_has_ended_well(plain: Lab) -> None:
    rank = plain.start("sh", "-c", 'rm -rf "$NEBULA_ARTIFACTS/.."; exit 3')
    ended = plain.end(rank).exit
    assert ended is not None
    assert (ended.cause, ended.code) == ("exited", 3)
    plain.ranks.forget(rank)


# --- what is read out of it -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "jobs" / "1.1.0" / "artifacts"
    path.mkdir(parents=True)
    return path


def test_links_in_the_place_of_the_folder_or_the_one_above_lead_nowhere(folder: Path, tmp_path: Path) -> None:
    fd, owner = folder_open(str(folder))
    os.close(fd)
    assert owner == os.geteuid()
    (tmp_path / "private" / "artifacts").mkdir(parents=True)
    folder.rmdir()
    folder.symlink_to(tmp_path / "private")
    with pytest.raises(OSError):
        folder_open(str(folder))
    folder.unlink()
    folder.parent.rmdir()
    folder.parent.symlink_to(tmp_path / "private")
    with pytest.raises(OSError):
        folder_open(str(folder))


@pytest.mark.root
def test_a_folder_of_another_persons_in_its_place_is_not_read(folder: Path) -> None:
    os.chown(folder.parent, 2001, 2001)
    os.chown(folder, 2002, 2002)  # moved there by the job, out of a folder that both may write to
    with pytest.raises(PermissionError, match="not the job's own"):
        folder_open(str(folder))
    os.chown(folder, 2001, 2001)
    fd, owner = folder_open(str(folder))
    os.close(fd)
    assert owner == 2001


@pytest.mark.root
def test_under_an_account_of_its_own_it_is_that_accounts_and_passable(new_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = new_lab()
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    rank = lab.start("sh", "-c", LOOK + '; ls "$NEBULA_ARTIFACTS/../.."', unix_user="nobody", workdir="/")
    ended = lab.end(rank).exit
    assert ended is not None
    assert ended.code == 2, "the names of other jobs are not listed"
    assert lab.text(rank).splitlines()[1:4] == ["700 65534"] * 3
    assert stat.S_IMODE(lab.ranks.rank_dir(rank).stat().st_mode) == 0o700


@pytest.mark.root
def test_root_without_an_account_for_the_job_launches_nothing(plain: Lab) -> None:
    state = plain.end(plain.start("id"))
    assert (state.state, state.launch_error) == ("LAUNCH_FAILED", "user")
    assert "no job runs as root" in (state.launch_detail or "")
    assert "job_account" in (state.launch_detail or ""), "the way out is named"
    assert plain.text("1.1.0") == ""
