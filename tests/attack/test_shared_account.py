"""A job against another job, where root's agent gives all jobs one account: what the account does not close, the sandbox must."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.test_plain_account import OF_A_PROCESS, TRACING, WORDS, Site, attack

pytestmark = pytest.mark.root

ACCOUNT = "nobody"
#: As for a plain account: the sandbox that a mask leads to, and what then stays open between jobs.
LAYOUTS = {
    "": ("mounts", ("home",)),
    "landlock=5": ("mounts", ("signals", "home")),  # with a user namespace, which keeps memory apart as a domain would
    "landlock": ("mounts", ("signals", "home")),
    "userns,landlock=5": ("mounts", ("processes", "signals", "home")),
    "mounts": ("landlock", ("paths", "home")),
    "mounts,landlock=2": ("landlock", ("signals", "paths", "home")),
    "mounts,landlock": ("none", ("other_jobs_files", "processes", "signals", "paths", "home")),
}
#: What one account has in common: the rest is root's, and closed to it in whatever sandbox.
COMMON = frozenset(
    {name for name in WORDS if "another job's" in name and "output" not in name and "environment" not in name}
    | {"plant a file with another job", "connect to a terminal of the account"}
    | {name.format("other") for name in OF_A_PROCESS}
)


class SharedSite(Site):
    python = "/usr/bin/python3"  # a checkout's own interpreter may lie where no job's account comes

    def __init__(self, folder: Path, mask: str) -> None:
        folder.chmod(0o711)
        super().__init__(folder, mask, job_account=ACCOUNT)
        account = pwd.getpwnam(ACCOUNT)
        os.chown(self.people, account.pw_uid, account.pw_gid)
        os.chown(self.tmux.getsockname(), account.pw_uid, account.pw_gid)

    def _terminal(self) -> Path:
        account = pwd.getpwnam(ACCOUNT)
        folder = Path(f"/tmp/tmux-{account.pw_uid}")
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, account.pw_uid, account.pw_gid)
        return folder / f"test-{os.getpid()}"


@pytest.fixture(params=LAYOUTS, ids=[mask or "newest" for mask in LAYOUTS])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    if not Path(SharedSite.python).exists():
        pytest.skip("no interpreter of the system")
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    found = SharedSite(folder, request.param)
    try:
        if found.found.info.sandbox != LAYOUTS[request.param][0]:
            pytest.skip(f"this kernel has not all of it: {found.found.finding.refused}")
        yield found
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_job_reaches_exactly_what_its_node_reports(site: Site, request: pytest.FixtureRequest) -> None:
    assert site.found.info.open == LAYOUTS[request.node.callspec.params["site"]][1]
    found = attack(site)
    assert found.pop("files that it was given") == "0 1 2"
    names = found.pop("secrets that it sees in memory").split()
    if site.found.info.sandbox == "mounts":
        assert [name.rpartition(".")[0] for name in names if name.count(".") == 3] == ["2.1.0"]
    words = {**WORDS, **{name.format("other"): word for name, word in OF_A_PROCESS.items()}}
    wanted = {name for name in COMMON if words[name] in site.found.info.open}
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and int(scope.read_text()):
        wanted -= {name.format("other") for name in TRACING}
    came_open = {name for name, text in found.items() if text == "open"}
    assert {name: found[name] for name in came_open ^ wanted} == {}


def test_the_way_to_a_jobs_folder_is_open_whatever_the_umask_of_roots_agent() -> None:
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    before = os.umask(0o077)
    site = None
    try:
        site = SharedSite(folder, "")
        (folder / "grid-jobs").chmod(0o711)
        assert site.found.finding.refused == ()
        rank = site.job("1.1.0", "sh", "-c", 'echo made > "$NEBULA_ARTIFACTS/x" && cat "$NEBULA_ARTIFACTS/x"')
        site.lab.end(rank)
        assert site.lab.text(rank) == "made\n"
    finally:
        os.umask(before)
        if site is not None:
            site.close()
        shutil.rmtree(folder, ignore_errors=True)
