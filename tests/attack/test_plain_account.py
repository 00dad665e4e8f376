"""A job against its node and against another job, where agent, control plane and all jobs have one plain account.

Real shims, the sandbox as an agent would choose it, on this kernel and as on older ones (a mask takes the newest features away).
What comes open must be exactly what the node reports: nothing more, and nothing that is reported in vain.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import secretdir
from agent.config import Config
from agent.http import endpoint_parse
from agent.isolation import MASK_VARIABLE, Isolation, isolation_find
from agent.protocol import REACH, RankSpec, SecretRef
from tests.agent.rank_lab import ROOT, Lab

pytestmark = pytest.mark.skipif(os.geteuid() == 0, reason="root launches nothing under its own account")

#: The sandbox that each mask leads to on a kernel that has all of it, and what then stays open.
LAYOUTS = {
    "": ("mounts", ("home",)),
    "landlock=5": ("mounts", ("signals", "home")),
    "landlock": ("mounts", ("signals", "home")),
    "mounts": ("landlock", ("paths", "home")),
    "mounts,landlock=5": ("landlock", ("signals", "paths", "home")),
    "mounts,landlock=2": ("landlock", ("signals", "paths", "home")),
    "mounts,landlock=1": ("landlock", ("signals", "paths", "home")),
    "mounts,landlock": ("none", REACH),
}
CONTROL = ("cli.json", "secret-key", "secrets-key", "admin-password", "db.sqlite3")
AGENT = ("agent.credential", "agent.toml", "agent.db")
SPARE = ("spare", "spare-2", "spare-3", "spare-4")
TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine(), 234)
VALUE = "canary-3fQ81x"

# --- attack → the word under which a node reports it as open; None: closed everywhere ------------------------------------------
WORDS: dict[str, str | None] = {
    **dict.fromkeys((f"read {name}" for name in CONTROL), "control_files"),
    **dict.fromkeys((f"read {name}" for name in (*AGENT, *SPARE)), "agent_files"),
    "read it through /proc/self/root": "agent_files",
    "read it through a link of one's own": "agent_files",
    "hard link it to one's own folder": "agent_files",
    "move it to one's own folder": "agent_files",
    "truncate": "agent_files",
    "remove a file": "agent_files",
    "plant a file with the agent": "agent_files",
    "plant a rank with the agent": "agent_files",
    "plant a link with the agent": "agent_files",
    "rename the agent's folder of ranks": "agent_files",
    "move the folder above both away": "control_files",
    "plant a file with the control plane": "control_files",
    "list": "paths",
    "stat": "paths",
    "change a mode": "paths",
    "change a time": "paths",
    "watch": "paths",
    "connect to Redis": "paths",
    "connect to a terminal of the account": "paths",
    "send hints to the agent": "paths",
    "change the agent's code": "agent_files",
    "plant code beside the agent's": "agent_files",
    "open by handle": None,
    "read another job's artefact": "other_jobs_files",
    "read another job's temporary file": "other_jobs_files",
    "read another job's secret": "other_jobs_files",
    "read another job's output": "agent_files",
    "read another job's environment on the disk": "agent_files",
    "plant a file with another job": "other_jobs_files",
    "link another job's artefact": "other_jobs_files",
    "stat another job's folder": "paths",
    "read one's own order": "agent_files",
    "plant a file with one's own order": "agent_files",
    "unmount the empty folder": None,
    "unmount it as master of one's own namespace": None,
    "bind the folder above elsewhere": "control_files",
    "bind the folder above and all below elsewhere": "control_files",
    "move the empty folder away": None,
    "clone the tree above": "control_files",
    "make our code writable": None,
    "leave by chroot": "control_files",
    "read as a thread": "control_files",
    "read after exec": "control_files",
}
OF_A_PROCESS: dict[str, str | None] = {
    "read environ of {}": "processes",
    "read maps of {}": "processes",
    "read auxv of {}": "processes",
    "open the memory of {}": "processes",
    "read where the files of {} are": "processes",
    "enter the root of {}": "processes",
    "enter the folder of {}": "processes",
    "read the program of {}": "processes",
    "attach to {}": "processes",
    "seize {}": "processes",
    "copy the memory of {}": "processes",
    "take a file of {}": "processes",
    "enter the namespaces of {}": None,
    "enter the namespaces of {} by pidfd": None,
    "signal {}": "signals",
    "signal {} by pidfd": "signals",
    "signal a thread of {}": "signals",
    "queue a signal to {}": "signals",
    "have a file signal {}": None,
    "signal all of the group of {}": "signals",
    "limit {}": "home",
    "slow {} down": "home",
}
#: Where the system lets nobody trace but a parent its child, these are closed without us.
TRACING = ("attach to {}", "seize {}", "open the memory of {}", "copy the memory of {}", "take a file of {}")
PEOPLE = ("agent", "zygote", "shim", "other", "other's shim")


class Site:
    """An installation: data of a control plane, an agent within it, and the ranks of that agent.

    ``job_account`` None = all of it, jobs included, under this process's account."""

    python = sys.executable

    def __init__(self, folder: Path, mask: str, *, job_account: str | None = None) -> None:
        self.data, self.agent, self.people = folder / "grid", folder / "grid" / "agent", folder / "people"
        for path in (self.data, self.data / "run", self.agent, self.people):
            path.mkdir(mode=0o700)
        self.files = {name: self.data / name for name in CONTROL} | {name: self.agent / name for name in (*AGENT, *SPARE)}
        for name, path in self.files.items():
            path.write_text(f"canary of {name}")
            path.chmod(0o600)
        self.redis, self.tmux = (self._listen(path) for path in (self.data / "run" / "redis.sock", self._terminal()))
        config = Config(
            path=self.files["agent.toml"],
            endpoint=endpoint_parse("http://127.0.0.1:1"),
            node_id=1,
            name="n",
            credential_file=self.files["agent.credential"],
            data_dir=self.agent,
            agent_id="n",
            jobs_dir=folder / "grid-jobs" / "agent",
            hidden_dirs=(self.data, folder / "grid-jobs"),
            identity="same" if job_account is None else "shared",
            job_account=job_account,
        )
        (folder / "grid-jobs").mkdir()
        self.found: Isolation = isolation_find(config, {"HOME": str(self.people), MASK_VARIABLE: mask})
        self.lab = Lab(self.agent, jobs_dir=config.jobs_dir, closed_by=self.found.finding.plan, job_account=job_account)

    def _terminal(self) -> Path:
        folder = Path(f"/tmp/tmux-{os.geteuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / f"test-{os.getpid()}"

    def _listen(self, path: Path) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        line.bind(str(path))
        line.listen()
        return line

    def job(self, rank: str, *argv: str) -> str:
        spec = RankSpec(job=1, index=0, argv=argv, workdir=str(self.people), secrets=(SecretRef(name="token"),))
        self.lab.ranks.start(rank, spec, {"PATH": os.environ["PATH"], "JOBS_OWN": VALUE}, secrets={"token": VALUE})
        return rank

    def close(self) -> None:
        self.lab.close()
        for line in (self.redis, self.tmux):
            Path(line.getsockname()).unlink(missing_ok=True)
            line.close()


@pytest.fixture(params=LAYOUTS, ids=[mask or "newest" for mask in LAYOUTS])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    # A short path: the socket of the installation must fit.
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    found = Site(folder, request.param)
    if found.found.info.sandbox != LAYOUTS[request.param][0]:
        found.close()
        shutil.rmtree(folder)
        pytest.skip(f"this kernel has not all of it: {found.found.finding.refused}")
    yield found
    found.close()
    shutil.rmtree(folder, ignore_errors=True)


def attack(site: Site) -> dict[str, str]:
    """Run a victim, then the attacker; attack → what came of it."""
    other = site.job(
        "1.1.0", "sh", "-c", 'echo m > "$NEBULA_ARTIFACTS/model"; echo s > "$NEBULA_ARTIFACTS/../tmp/scratch"; echo up; exec sleep 600'
    )
    site.lab.said(other, "up")
    order = json.loads(site.lab.text(other, "spec.json"))
    pids = {
        "agent": os.getpid(),
        "zygote": site.lab.ranks._zygote.pid,
        "other": site.lab.program(other)[0],
        "other's shim": site.lab.shim(other)[0],
    }
    program = site.people / "attacker.py"
    shutil.copy(Path(__file__).with_name("attacker.py"), program)
    told: dict[str, Any] = {
        "files": {name: str(path) for name, path in site.files.items()},
        "control_data": str(site.data),
        "agent_data": str(site.agent),
        "names": [*CONTROL, "agent"],
        "own": str(site.lab.ranks.job_dir("2.1.0")),
        "other": str(site.lab.ranks.job_dir(other)),
        "other_secrets": order["secrets"],
        "rank": "2.1.0",
        "other_rank": other,
        "redis": site.redis.getsockname(),
        "tmux": site.tmux.getsockname(),
        "code": str(ROOT / "agent" / "launch.py"),
        "pids": pids,
        "tgkill": TGKILL,
        "memory": secretdir.top_path(secretdir.MEMORY),
        "same_namespace": site.found.info.sandbox != "mounts",
    }
    rank = site.job("2.1.0", site.python, "-I", str(program), json.dumps(told))
    site.lab.end(rank)
    text = site.lab.text(rank)
    result = [line.removeprefix("RESULT ") for line in text.splitlines() if line.startswith("RESULT ")]
    assert result, text
    found: dict[str, str] = json.loads(result[0])
    # The victim and the agent's own things are as they were.
    assert site.lab.program(other)[0] == pids["other"]
    assert Path(f"/proc/{pids['other']}").exists()
    return found


def expected(site: Site) -> set[str]:
    """The attacks that must come out open, by what the node reports."""
    words = {**WORDS, **{name.format(who): word for name, word in OF_A_PROCESS.items() for who in PEOPLE}}
    reported = {name for name, word in words.items() if word in site.found.info.open}
    plan = site.found.finding.plan
    if plan["kind"] == "landlock" and plan["abi"] < 3:
        reported.add("truncate")  # as `paths` says
    if Path("/proc/sys/kernel/yama/ptrace_scope").exists() and int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text()):
        reported -= {name.format(who) for name in TRACING for who in PEOPLE}
    return reported


def test_a_job_reaches_exactly_what_its_node_reports(site: Site, request: pytest.FixtureRequest) -> None:
    found = attack(site)
    given, names = found.pop("files that it was given"), found.pop("secrets that it sees in memory").split()
    assert set(found) == {*WORDS, *(name.format(who) for name in OF_A_PROCESS for who in PEOPLE)}
    came_open = {name for name, text in found.items() if text == "open"}
    wanted = expected(site)
    unexpected = {name: found[name] for name in came_open ^ wanted}
    assert unexpected == {}, f"reported open: {site.found.info.open}"
    assert site.found.info.open == LAYOUTS[request.node.callspec.params["site"]][1]
    assert given == "0 1 2"
    if site.found.info.sandbox == "mounts":
        assert [name.rpartition(".")[0] for name in names if name.count(".") == 3] == ["2.1.0"]


@pytest.mark.parametrize("site", [mask for mask in LAYOUTS if LAYOUTS[mask][0] != "none"], indirect=True)
def test_where_people_are_isolated_the_grave_attacks_are_all_closed(site: Site) -> None:
    """The same, without trust in the report: by name."""
    assert site.found.info.isolates_people
    found = attack(site)
    for name in (*CONTROL, *AGENT):
        assert found[f"read {name}"] != "open"
    for name in ("artefact", "temporary file", "secret", "output", "environment on the disk"):
        assert found[f"read another job's {name}"] != "open"
    for who in PEOPLE:
        assert found[f"read environ of {who}"] != "open"
        assert found[f"open the memory of {who}"] != "open"


NEEDS = """
set -e
cd "$NEBULA_ARTIFACTS/../tmp"
git init -q repo && cd repo && git -c user.email=a@b -c user.name=a commit -q --allow-empty -m one && git log --oneline | wc -l
"$0" -c 'import multiprocessing as m; print(sum(m.Pool(2).map(abs, [-1, -2])))'
"$0" -c 'import multiprocessing.shared_memory as s; b = s.SharedMemory(create=True, size=64); b.close(); b.unlink(); print("shm")'
"$0" -m venv --without-pip own && own/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'
cat "$NEBULA_SECRETS/token"; echo
echo again >> /dev/stdout
sleep 60 & kill -TERM $! && wait $! || echo "ended $?"
echo home > "$HOME/kept" && cat "$HOME/kept"
ls -d / /tmp /proc/self >/dev/null && head -c 1 /dev/urandom >/dev/null && echo devices
test -z "$(ls -A /run/user 2>/dev/null)" && echo "no sessions"
"""


def test_what_jobs_need_works(site: Site) -> None:
    python = shutil.which("python3") or sys.executable
    rank = site.job("1.1.0", "env", f"HOME={site.people}/ann", "bash", "-c", NEEDS, python)
    (site.people / "ann").mkdir()
    site.lab.end(rank)
    lines = site.lab.text(rank).splitlines()
    said = ["1", "3", "shm", "True", VALUE, "again", "ended 143", "home", "devices"]
    assert [line for line in lines if line != "no sessions"] == said, site.lab.text(rank)


NESTED = "echo in; mount -t tmpfs none /mnt && touch /mnt/x && ls /mnt"
TRACE = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    time.sleep(60)
assert libc.ptrace(16, child, None, None) == 0, "attach to a child"
os.waitpid(child, 0)
open(f"/proc/{child}/environ").close()
os.kill(child, 9)
print("traced")
"""


def test_a_job_may_look_at_its_own_processes(site: Site) -> None:
    """Debuggers, MPI between the processes of a job, and profilers do."""
    rank = site.job("1.1.0", site.python, "-I", "-c", TRACE)
    site.lab.end(rank)
    assert site.lab.text(rank) == "traced\n"


@pytest.mark.parametrize("site", ["", "landlock"], indirect=True)
def test_a_job_may_make_a_sandbox_of_its_own(site: Site) -> None:
    rank = site.job("1.1.0", "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", NESTED)
    site.lab.end(rank)
    assert site.lab.text(rank).split() == ["in", "x"]


def test_a_way_with_links_in_it_leads_to_the_same_place(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    (folder / "real").mkdir()
    (folder / "link").symlink_to(folder / "real")
    site = Site(folder / "link", "")
    try:
        rank = site.job(
            "1.1.0",
            "sh",
            "-c",
            'touch "$NEBULA_ARTIFACTS/made" "$NEBULA_ARTIFACTS/../tmp/made"; cat "$0" || echo closed',
            str(site.files["cli.json"]),
        )
        site.lab.end(rank)
        assert site.lab.text(rank).endswith("closed\n")
        assert (site.lab.ranks.artifacts_dir(rank) / "made").exists()
    finally:
        site.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("site", [""], indirect=True)
def test_a_program_that_can_not_be_closed_in_is_not_started(site: Site) -> None:
    # A file: no folder can be put over it.
    site.lab.ranks._closed_by = {**site.found.finding.plan, "hidden": [str(site.files["cli.json"])]}
    state = site.lab.end(site.job("1.1.0", "true"))
    assert state.state == "LAUNCH_FAILED"
    assert "could not be closed off" in (state.launch_detail or "")


@pytest.mark.parametrize("site", ["", "landlock"], indirect=True)
def test_a_folder_that_appears_under_a_hidden_parent_stays_hidden(site: Site) -> None:
    """A restore puts another data folder in the place of the old one: where its parent is hidden, running jobs see neither."""
    go = site.people / "go"
    script = 'echo up; while ! [ -e "$0" ]; do sleep 0.02; done; cat "$1" && echo seen; ls "$2"'
    rank = site.job("1.1.0", "sh", "-c", script, str(go), str(site.agent / "agent.credential"), str(site.data))
    site.lab.said(rank, "up")
    site.agent.rename(site.data / "before")
    shutil.copytree(site.data / "before", site.agent, ignore=shutil.ignore_patterns("ranks"))
    (site.data / "before" / "ranks").rename(site.agent / "ranks")
    go.touch()
    site.lab.end(rank)
    assert "seen" not in site.lab.text(rank)
