"""What a rank may use of its node: memory, processors, processes, device files; and that it is told where none of that holds."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent import cgroups, host, launch
from agent.config import config_load
from agent.devices import devices_denied, devices_of
from agent.main import processes_open
from agent.protocol import GpuGrant, GpuInfo, RankSpec
from tests.agent.rank_lab import PYTHON, Lab, reachable

#: /dev/zero stands for the file of a card.
CARD, CARD_PATH = "c 1:5", "/dev/zero"


@pytest.fixture(params=["v2", "v1"])
def limited(request: pytest.FixtureRequest, new_lab: Callable[..., Lab]) -> Lab:
    lab = new_lab(cgroup=request.param, pids_max=500)
    try:
        assert lab.ranks
    except OSError as error:
        lab.settings["cgroup"] = None
        pytest.skip(str(error))
    return lab


def need(lab: Lab, name: str) -> None:
    if not lab.ranks.layout.limits()[name]:
        pytest.skip(f"{name} can't be limited here")


def written(lab: Lab, rank: str, controller: str, *names: str) -> str:
    """What is in the first of the files ``names`` that the rank's group has."""
    plan = lab.ranks.layout.plan(rank)
    folder = Path(plan["extra"].get(controller, plan["main"]))
    return next((folder / name).read_text().strip() for name in names if (folder / name).exists())


def test_the_memory_that_a_job_asked_for_is_all_that_it_gets(limited: Lab) -> None:
    need(limited, "memory")
    limited.ranks._memory_mib = 4096
    exit = limited.end(limited.start(*PYTHON, "x = bytearray(400 << 20)", memory_mib=64)).exit
    assert exit is not None
    assert (exit.cause, exit.signal) == ("host_memory", signal.SIGKILL)
    assert limited.end(limited.start(*PYTHON, "x = bytearray(40 << 20)", memory_mib=64, rank="2.1.0")).exit.code == 0  # type: ignore[union-attr]


def test_a_job_that_asked_for_no_memory_gets_the_nodes_default_share(limited: Lab) -> None:
    need(limited, "memory")
    limited.ranks._memory_mib = 64
    exit = limited.end(limited.start(*PYTHON, "x = bytearray(400 << 20)")).exit
    assert exit is not None
    assert exit.cause == "host_memory"


def test_an_agents_configuration_sets_the_limits_of_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory_mib", lambda: 1000)
    path = tmp_path / "agent.toml"
    path.write_text('endpoint = "https://lab"\nnode_id = 1\ndata_dir = "data"\n')
    (tmp_path / "data").mkdir()
    for env, expected in (({}, (4096, 800)), ({"NEBULA_AGENT_PIDS_MAX": "70", "NEBULA_AGENT_MEMORY_DEFAULT_PCT": "25"}, (70, 250))):
        ranks = processes_open(config_load(path, env))
        assert (ranks._pids_max, ranks._memory_mib) == expected
        ranks.close()


def test_processors_are_shared_by_what_jobs_hold_and_capped_by_what_they_asked_for(limited: Lab) -> None:
    need(limited, "cpu")
    asked = limited.running("sleep", "600", cpu_milli=1500)
    cards = tuple(GpuGrant(uuid=uuid, mib=1024) for uuid in ("GPU-a", "GPU-b", "GPU-b"))
    free = limited.running("sleep", "600", rank="2.1.0", gpus=cards)
    assert written(limited, asked, "cpu", "cpu.weight", "cpu.shares") in ("150", "1536")
    assert written(limited, asked, "cpu", "cpu.max", "cpu.cfs_quota_us") in ("150000 100000", "150000")
    assert written(limited, free, "cpu", "cpu.weight", "cpu.shares") in ("200", "2048")
    assert written(limited, free, "cpu", "cpu.max", "cpu.cfs_quota_us") in ("max 100000", "-1")


def test_a_fork_bomb_meets_the_nodes_limit(limited: Lab) -> None:
    need(limited, "pids")
    limited.ranks._pids_max = 20
    code = "import os, time\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(600)\nexcept OSError: raise SystemExit(9)"
    exit = limited.end(limited.start(*PYTHON, code)).exit
    assert exit is not None
    assert (exit.cause, exit.code) == ("pids_limit", 9)


@pytest.mark.root
def test_only_the_files_of_its_own_cards_can_be_opened(limited: Lab) -> None:
    need(limited, "devices")
    reachable(limited.data)
    look = f"head -c 1 {CARD_PATH} >/dev/null && echo open || echo closed; head -c 1 /dev/full >/dev/null && echo others"
    spec = ("sh", "-c", look)
    for rank, denied in (("1.1.0", (CARD,)), ("2.1.0", ())):
        limited.ranks.start(
            rank, RankSpec(job=1, index=0, argv=spec, unix_user="nobody", workdir="/"), {"PATH": "/usr/bin:/bin"}, denied=denied
        )
        limited.end(rank)
    assert limited.text("1.1.0").split()[-2:] == ["closed", "others"]
    assert limited.text("2.1.0").split() == ["open", "others"]


def test_without_cgroups_it_says_that_nothing_holds_and_a_fork_bomb_meets_the_limit_of_its_account(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(cgroup="none", pids_max=50)
    assert lab.ranks.layout.limits() == {"memory": False, "cpu": False, "pids": False, "devices": False}
    rank = lab.start(*PYTHON, "import resource; print(*resource.getrlimit(resource.RLIMIT_NPROC))", memory_mib=64, cpu_milli=500)
    lab.end(rank)
    soft, hard = map(int, lab.text(rank).split())
    before = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    assert soft == hard
    assert soft > 50
    assert soft <= before or before == resource.RLIM_INFINITY


@pytest.mark.root
def test_a_root_agent_counts_the_processes_of_the_jobs_account(new_lab: Callable[..., Lab]) -> None:
    lab = new_lab(cgroup="none", pids_max=50)
    reachable(lab.data)
    lab.ranks.start("1.1.0", RankSpec(job=1, index=0, argv=("cat", "/proc/self/limits"), unix_user="nobody", workdir="/"), {"PATH": "/bin"})
    lab.end("1.1.0")
    line = next(line for line in lab.text("1.1.0").splitlines() if line.startswith("Max processes"))
    soft, hard = map(int, line.split()[2:4])
    assert soft == hard
    assert 50 <= soft <= 50 + launch._threads_of(65534) + 5, "nobody's, not those of root"


def test_threads_are_counted_by_the_account_that_started_them() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        assert launch._threads_of(os.getuid()) >= 2, "this process and its child"
        child.kill()
    assert launch._threads_of(4_000_000_000) == 0


def test_an_account_with_too_many_processes_is_the_nodes_fault(monkeypatch: pytest.MonkeyPatch, new_lab: Callable[..., Lab]) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(launch, "_exec", full)
    read, write = os.pipe()
    order = {"spec": {"argv": ["/bin/true"], "workdir": "/"}, "env": {}, "group": {"kind": "none"}}
    child = launch.program_fork(order=order, group=cgroups.SessionGroup({"mark": "none"}), account=None, output=write, oom_score=None)
    child.let_go()
    failure = child.failure()
    os.waitpid(child.pid, 0)
    os.close(read)
    os.close(write)
    assert failure is not None
    assert failure.kind == "internal"
    assert "too many processes" in failure.text


# --- which files are a card's ---------------------------------------------------------------------------------------


def tree(root: Path, *, nvidia: dict[str, int], drm: dict[str, dict[str, str]]) -> str:
    for address, minor in nvidia.items():
        folder = root / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t RTX\nBus Location: \t {address}\nDevice Minor: \t {minor}\n")
    for address, files in drm.items():
        for name, number in files.items():
            folder = root / "sys/bus/pci/devices" / address / "drm" / name
            folder.mkdir(parents=True)
            (folder / "dev").write_text(f"{number}\n")
    return str(root)


def card(uuid: str, bus: str | None, **more: object) -> GpuInfo:
    return GpuInfo(uuid=uuid, index=0, model="m", vendor="nvidia", pci_bus_id=bus, **more)  # type: ignore[arg-type]


def test_each_card_has_its_drivers_and_the_kernels_files(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        nvidia={"0000:3b:00.0": 0, "0000:af:00.0": 1},
        drm={"0000:3b:00.0": {"card1": "226:1", "renderD128": "226:128"}, "0000:03:00.0": {"renderD129": "226:129"}},
    )
    assert devices_of(card("GPU-a", "00000000:3B:00.0"), root) == ("c 195:0", "c 226:1", "c 226:128")
    assert devices_of(card("amd", "0000:03:00.0"), root) == ("c 226:129",)
    assert devices_of(card("sim", "0000:3b:00.0", simulated=True), root) == ()
    assert devices_of(card("unknown", None), root) == devices_of(card("gone", "0000:99:00.0"), root) == ()


def test_what_was_not_granted_is_denied_and_a_part_opens_its_whole_cards_file(tmp_path: Path) -> None:
    root = tree(tmp_path, nvidia={"0000:3b:00.0": 0, "0000:af:00.0": 1}, drm={})
    cards = [
        card("GPU-a", "0000:3b:00.0"),
        card("GPU-b", "0000:af:00.0"),
        card("MIG-1", "0000:af:00.0", parent="GPU-b"),
        card("MIG-2", "0000:af:00.0", parent="GPU-b"),
    ]
    assert devices_denied(cards, ["GPU-a"], root) == ("c 195:1",)
    assert devices_denied(cards, ["MIG-1"], root) == ("c 195:0",)
    assert devices_denied(cards, [], root) == ("c 195:0", "c 195:1")
    assert devices_denied(cards, ["GPU-a", "GPU-b"], root) == ()


# --- where groups are made on a machine with v2 alone -----------------------------------------------------------------


def service(tmp_path: Path, *, stays: str = "") -> Path:
    """The files of a service's group as systemd makes it with Delegate= and DelegateSubgroup=. ``stays``: a process beside the agent's."""
    main = tmp_path / "nebula-agent.service"
    for folder in (main, main / "agent", main / "nebulagrid", main / "nebulagrid/x", main / "agent/nebulagrid/x"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("")
        (folder / "cgroup.subtree_control").write_text("")
        (folder / "cgroup.controllers").write_text("cpu io memory pids\n")
    (main / "agent/cgroup.procs").write_text("4711\n")
    (main / "cgroup.procs").write_text(stays)
    return main


@pytest.mark.parametrize(("stays", "place"), [("", "nebulagrid/x"), ("4700\n", "agent/nebulagrid/x")])
def test_groups_lie_beside_the_agents_own_where_that_is_allowed(
    stays: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = service(tmp_path, stays=stays)
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(cgroups, "_own_places", lambda: {"": str(main / "agent")})
    monkeypatch.setattr(cgroups, "_is_usable", lambda base, limit=None: True)
    monkeypatch.setattr(cgroups, "_write", lambda path, text: asked.append((path, text)))
    layout = cgroups.layout_find("x")
    assert (layout.kind, layout.main, layout.home) == ("v2", str(main / place), str(main / "agent"))
    assert (f"{layout.main}/cgroup.subtree_control", "+memory") in asked
    # The kernel did not take it, so nothing holds.
    assert set(layout.limits().values()) == {False}
    (main / place / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert layout.limits() == {"memory": True, "pids": True, "cpu": True, "devices": False}
