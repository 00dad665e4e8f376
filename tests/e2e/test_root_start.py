"""Root starts the control plane where little is allowed, as in a container: it works, or one sentence says why not."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.live.grid import PATIENCE_S, ROOT, Grid, wait_for
from nebulagrid.rooted.layout import layout_find
from tests.e2e.helpers import log_of

pytestmark = [pytest.mark.root, pytest.mark.redis]

PR_CAPBSET_DROP = 24
CAP_SETUID, CAP_SYS_ADMIN = 7, 21
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every account can get to."""
    found = Path(tempfile.mkdtemp(prefix="nebula-root-"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


def done(number: int) -> None:
    if number:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def without(capability: int) -> Callable[[], None]:
    library = libc()
    return lambda: done(library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))


def alone_in_a_namespace() -> Callable[[], None]:
    """Root of a user namespace in which there is nobody else."""
    library = libc()

    def enter() -> None:
        done(library.unshare(CLONE_NEWUSER))
        for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
            Path(f"/proc/self/{name}").write_text(text)

    return enter


def refusal(folder: Path, prepare: Callable[[], None] | None = None, **env: str) -> str:
    found = subprocess.run(
        [sys.executable, "manage.py", "up", "--web-port", "1"],
        cwd=ROOT,
        env={**os.environ, "NEBULA_DATA": str(folder / "data"), **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=prepare,
    )
    assert found.returncode == 2, found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    assert found.stderr.count("\n") == 1
    return found.stderr


@pytest.mark.parametrize("prepare", [lambda: without(CAP_SETUID), alone_in_a_namespace], ids=["no-setuid", "one-user"])
def test_root_that_can_not_become_another_refuses_with_the_way_out(folder: Path, prepare: Callable[[], Callable[[], None]]) -> None:
    assert "can't become the account nebulagrid here" in refusal(folder, prepare())
    assert not (folder / "data").exists()


def test_a_system_without_a_program_for_accounts_is_refused_by_what_is_missing(folder: Path) -> None:
    text = refusal(folder, PATH="/nonexistent", NEBULA_ACCOUNT="nobody-made-it")
    assert "There is no account nobody-made-it, and neither useradd nor adduser to make it." in text


def test_a_port_of_roots_is_refused_because_the_web_server_is_none(folder: Path) -> None:
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 1:
        pytest.skip("every port is everybody's here")
    assert "Port 1 is for root alone" in refusal(folder)


def test_another_accounts_folder_is_refused_by_its_name(folder: Path) -> None:
    (folder / "data").mkdir()
    os.chown(folder / "data", 65534, 65534)
    assert f"{folder / 'data'} belongs to nobody" in refusal(folder)


def contained() -> Callable[[], None]:
    """As in a plain container: no cgroup can be written, nothing mounted."""
    library = libc()

    def enter() -> None:
        done(library.unshare(CLONE_NEWNS))
        done(library.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
        for line in Path("/proc/self/mounts").read_text().splitlines():
            place = line.split()[1]
            if place.startswith("/sys/fs/cgroup"):
                done(library.mount(None, place.encode(), None, MS_REMOUNT | MS_BIND | MS_RDONLY, None))
        done(library.prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0))

    return enter


def test_in_a_container_without_cgroups_and_mounts_it_runs_and_says_what_is_isolated(folder: Path, template: Path) -> None:
    grid = Grid(folder, database=template, as_root=True, prepare=contained())
    with grid.running():
        with grid.client() as client:
            job = client.job_submit(argv=["/bin/sh", "-c", "id -u; cat $0 || echo closed", str(grid.data / "cli.json")], gpu_count=0)
            ended = client.wait(job["id"], timeout_s=PATIENCE_S)
            text = log_of(client, job["id"])
            (node,) = client.node_list()
        assert ended["state"] == "SUCCEEDED", text
        assert int(text.split()[0]) >= 1000
        assert text.rstrip().endswith("closed")
        assert node["isolation"]["sandbox"] != "mounts"
        assert not any(node["isolation"]["limits"].values())
        said = grid.output.read_text()
        assert "Jobs on this machine run as nebulagrid-jobs" in said
        assert "in a mount namespace of their own" not in said


def test_data_that_the_accounts_can_not_get_to_are_kept_where_they_can(folder: Path, template: Path) -> None:
    folder.chmod(0o700)
    grid = Grid(folder, database=template, as_root=True)
    base = layout_find(grid.data.resolve()).base
    try:
        with grid.running():
            assert base != grid.data
            assert str(base) in grid.output.read_text()
            assert (grid.data / "control").resolve() == base / "control"
            assert (grid.data / "cli.json").stat().st_uid == 0
            assert not (grid.data / "nebula.sqlite3").exists(), "what was there is handed over"
            with grid.client() as client:
                job = client.job_submit(argv=["/bin/sh", "-c", "echo $NEBULA_ARTIFACTS; echo x > $NEBULA_ARTIFACTS/model"], gpu_count=0)
                assert client.wait(job["id"], timeout_s=PATIENCE_S)["state"] == "SUCCEEDED"
                assert log_of(client, job["id"]).startswith(str(base / "jobs"))
                wait_for(lambda: client.job_artifacts(job["id"]), what="its file is with the control plane")
    finally:
        shutil.rmtree(base, ignore_errors=True)
