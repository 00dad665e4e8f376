"""Where secrets are while a rank lives, and that they are gone with it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent import secretdir
from agent.protocol import Desired, Orders, RankSpec, SecretRef
from agent.reconcile import Start, diff
from tests.agent.rank_lab import Lab

VALUE = "canary-7Zq9kX"
CHECK = 'test "$(cat $NEBULA_SECRETS/token)" = "$TOKEN" && stat -c "%a %U" $NEBULA_SECRETS/token $NEBULA_SECRETS'
REFS = (SecretRef(name="token", id=1), SecretRef(name="token", env="TOKEN", id=1))


@pytest.fixture
def memory(tmp_path: Path) -> str:
    folder = tmp_path / "memory"
    folder.mkdir()
    return str(folder)


def start(lab: Lab, *argv: str, rank: str = "1.1.0") -> str:
    spec = RankSpec(job=1, index=0, argv=argv, secrets=REFS)
    lab.ranks.start(rank, spec, {"PATH": os.environ["PATH"]}, secrets={"token": VALUE})
    return rank


def files_with(folder: Path | str) -> list[str]:
    return [p.name for p in Path(folder).rglob("*") if p.is_file() and not p.is_symlink() and VALUE.encode() in p.read_bytes()]


def test_a_rank_has_them_as_file_and_variable_and_nothing_else_of_it_holds_them(new_lab: Callable[..., Lab], memory: str) -> None:
    lab = new_lab(secrets_in=memory)
    rank = start(lab, "sh", "-c", 'test "$(cat $NEBULA_SECRETS/token)" = "$TOKEN" && ls -A $NEBULA_SECRETS && echo ready; exec sleep 60')
    lab.said(rank, "token\nready")
    (top,) = Path(memory).iterdir()
    (parent,) = top.iterdir()
    assert stat.S_IMODE(parent.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
    (folder,) = parent.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert files_with(memory) == ["token"]
    assert files_with(lab.data) == []
    lab.ranks.kill(rank)
    lab.end(rank)
    assert list(parent.iterdir()) == []
    lab.ranks.close()
    lab._ranks = None
    assert list(top.iterdir()) == [], "the parent goes with the agent, when no rank is left that it hides from another"


def test_without_memory_they_are_beside_the_jobs_folders_and_gone_with_its_end(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(secrets_in=None)
    go = lab.data / "go"
    rank = start(lab, "sh", "-c", 'cat $NEBULA_SECRETS/token >/dev/null && echo read; while ! [ -e "$0" ]; do sleep 0.02; done', str(go))
    lab.said(rank, "read")
    assert (lab.ranks.jobs_dir / ".secrets" / rankdir_name(lab, rank)).is_dir()
    go.touch()
    lab.end(rank)
    assert files_with(lab.data) == files_with(lab.ranks.jobs_dir) == []


@pytest.mark.root
def test_under_another_account_it_reads_them_and_nobody_else_does(new_lab: Callable[..., Lab]) -> None:
    """In the machine's own memory folder: the way to it must be open to the account."""
    lab = new_lab(secrets_in=secretdir.memory_folder() or "")
    spec = RankSpec(job=1, index=0, argv=("sh", "-c", CHECK), secrets=REFS, unix_user="nobody", workdir="/")
    lab.ranks.start("1.1.0", spec, {"PATH": os.environ["PATH"]}, secrets={"token": VALUE})
    exit = lab.end("1.1.0").exit
    assert exit is not None
    assert exit.code == 0, lab.text("1.1.0")
    assert lab.text("1.1.0").split() == ["600", "nobody", "700", "nobody"]
    assert VALUE not in lab.text("1.1.0", "spec.json")
    parents = Path(secretdir.top_path(secretdir.MEMORY)).glob(f"{secretdir.prefix_of(lab.agent_id)}*")
    assert [list(parent.iterdir()) for parent in parents] == [[]]


def rankdir_name(lab: Lab, rank: str) -> str:
    return Path(json.loads(lab.text(rank, "spec.json"))["secrets"]).name


def test_a_program_that_can_not_be_started_leaves_none(new_lab: Callable[..., Lab], memory: str) -> None:
    lab = new_lab(secrets_in=memory)
    rank = start(lab, "/no/such/program")
    state = lab.end(rank)
    assert state.state == "LAUNCH_FAILED"
    assert VALUE not in repr(state)
    assert [list(parent.iterdir()) for parent in Path(secretdir.top_path(memory)).iterdir()] == [[]]
    assert files_with(lab.data) == []


def test_a_new_agent_keeps_those_of_living_ranks_and_removes_what_others_left(new_lab: Callable[..., Lab], memory: str) -> None:
    lab = new_lab(secrets_in=memory)
    prefix = secretdir.prefix_of(lab.agent_id)
    rank = start(lab, "sh", "-c", "echo ready; exec sleep 60")
    lab.said(rank, "ready")
    dead = secretdir.write(memory, prefix, "9.9.9", REFS, {"token": VALUE})
    other = secretdir.write(memory, secretdir.prefix_of("another"), "1.1.0", REFS, {"token": VALUE})
    lab.wait(rank, "RUNNING")
    mine = json.loads(lab.text(rank, "spec.json"))["secrets"]
    left = secretdir.write(str(Path(mine).parent), "", "8.8.8", REFS, {"token": VALUE})
    assert secretdir.sweep(str(Path(mine).parent), "", [rank]) == 1
    assert not Path(left).exists()
    assert secretdir.sweep(memory, prefix, [rank]) == 1, "one of an agent of before the parent"
    assert [Path(path).exists() for path in (dead, other, mine)] == [False, True, True]
    lab.ranks.kill(rank)
    lab.end(rank)


def test_values_are_in_no_text_that_is_made_of_an_order() -> None:
    spec = RankSpec(job=1, index=0, argv=("true",), secrets=REFS)
    want = Desired(rank="1.1.0", epoch=1, want="RUN", spec=spec, secrets={"token": VALUE})
    orders = Orders.from_json(json.loads(json.dumps(Orders(server_time=0.0, ack_seq=1, desired=(want,)).to_json())))
    (action,) = diff({"1.1.0": orders.desired[0]}, {})
    assert isinstance(action, Start)
    assert dict(action.secrets) == {"token": VALUE}
    assert VALUE not in repr(orders) + repr(action) + json.dumps(spec.to_json())


@pytest.mark.parametrize("name", ["", ".env", "../x", "a/b", "n" * 65])
def test_a_name_that_could_leave_the_folder_is_refused_and_nothing_stays(name: str, memory: str) -> None:
    with pytest.raises(ValueError, match="no name of a secret"):
        secretdir.write(memory, "x-", "1.1.0", [SecretRef(name=name)], {name: VALUE})
    assert list(Path(memory).iterdir()) == []


def test_removing_follows_no_link(memory: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    folder = Path(secretdir.write(memory, "x-", "1.1.0", REFS, {"token": VALUE}))
    (folder / "link").symlink_to(kept)
    (folder / "sub").mkdir()
    (folder / "sub" / "own").write_text("y")
    secretdir.remove(str(folder))
    assert not folder.exists()
    (Path(memory) / "link").symlink_to(kept)
    secretdir.remove(f"{memory}/link")
    assert (kept / "file").exists()


def test_a_folder_that_becomes_a_link_while_it_is_removed_leads_nowhere(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    folder = Path(secretdir.write(memory, "x-", "1.1.0", REFS, {"token": VALUE}))
    (folder / "sub").mkdir()
    real, looks = os.scandir, []

    def swapped(of: Any) -> Any:
        """Another program of the job's user puts a link there just before what was checked is looked into."""
        looks.append(of)
        if len(looks) == 2:
            (folder / "sub").rmdir()
            (folder / "sub").symlink_to(kept)
        return real(of)

    monkeypatch.setattr(os, "scandir", swapped)
    secretdir.remove(str(folder))
    assert len(looks) >= 2
    assert (kept / "file").exists()


def test_folders_of_an_agent_whose_name_begins_like_ours_stay(memory: str) -> None:
    for name in ("gpu-2", "gpu.2", "gpu-2-1"):
        secretdir.write(memory, secretdir.prefix_of(name), "1.1.0", REFS, {"token": VALUE})
    mine = secretdir.write(memory, secretdir.prefix_of("gpu"), "1.1.0", REFS, {"token": VALUE})
    assert secretdir.sweep(memory, secretdir.prefix_of("gpu"), []) == 1
    assert not Path(mine).exists()
    assert secretdir.sweep(memory, secretdir.prefix_of("gpu.2"), []) == 1
    assert len(list(Path(memory).iterdir())) == 2


def test_what_is_no_tmpfs_is_no_memory(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda1 /dev/shm ext4 rw 0 0\n")
    assert secretdir.memory_folder(str(mounts)) is None
    assert secretdir.memory_folder(str(tmp_path / "none")) is None


def test_a_parent_that_somebody_else_put_there_is_not_used(memory: str, tmp_path: Path) -> None:
    path = secretdir.parent_path(memory, "nebula-x-", "/data/ranks")
    assert path != secretdir.parent_path(memory, "nebula-x-", "/other/ranks"), "two agents of one name and two folders have two parents"
    assert Path(path).parent == Path(secretdir.top_path(memory)), "and one folder above them, for all agents of an account"
    (tmp_path / "elsewhere").mkdir()
    Path(path).parent.mkdir()
    Path(path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is not ours"):
        secretdir.parent_make(path, is_root=False)
