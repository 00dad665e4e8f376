"""`make demo` from its start to `make demo-clean`: what it shows, that nothing is doubled, that nothing is left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.backends.scenario import scenario_parse
from bench.live.grid import Grid, wait_for
from client.sdk import NebulaClient
from nebulagrid.demo import JOBS, lab_nodes
from nebulagrid.demo.catalogue import HISTORY, PASSING, STANDING
from nebulagrid.demo.clean import DemoError, demo_clean
from nebulagrid.demo.feeder import LABELS, Feeder, clients_open
from nodes.inventory import nominal_mib

STATUS = """\
Cluster Overview:
  Nodes: 5
  GPUs: 19 (# idle, # busy, # maintenance)
  Total VRAM: 398 GiB (free: # GiB)
  Maintenance: node02:0 node cordoned
Node Details:
  node01: RTX 4090 x2, RTX 4060 Laptop x1, load #% (simulated)
  node02: Arc A770 x1, load #% (simulated, cordoned: Resizable BAR is being enabled · 正在启用 Resizable BAR)
  node03: RTX 4090 x4, load #% (simulated)
  node04: A100 80GB PCIe x1, RTX 4090 x2, Ascend 910B4 x1, load #% (simulated)
  node05: Arc A770 x2, RTX 4060 Laptop x2, RTX 5070 Laptop x2, Iris Xe x1, load #% (simulated)
Notice: # simulated GPUs are in this pool: jobs on them run for real, but on no GPU.
"""


def test_the_lab_has_the_cards_that_the_readme_promises() -> None:
    lab = {name: scenario_parse(json.loads(path.read_text())) for name, path in lab_nodes()}
    sizes = {name: sum(nominal_mib(d.info.total_mib or 0) for d in s.devices) // 1024 for name, s in lab.items()}
    assert sizes == {"node01": 56, "node02": 16, "node03": 96, "node04": 160, "node05": 70}
    assert sum(sizes.values()) == 398
    cards = [device.info for scenario in lab.values() for device in scenario.devices]
    assert len(cards) == 19
    # What the cards report, rounded as `nebula-ctl status` does it, is the same number.
    assert round(sum(card.total_mib or 0 for card in cards) / 1024) == 398
    assert {card.compute_capability for card in cards if "5070" in card.model} == {"12.0"}
    assert {card.vendor for card in cards} == {"nvidia", "intel", "ascend"}


def test_no_two_recipes_have_one_name() -> None:
    names = [recipe.name for recipe in (*STANDING, *HISTORY, *PASSING)]
    assert len(names) == len(set(names))
    assert (JOBS / "train.py").is_file()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[Grid]:
    grid = Grid(tmp_path_factory.mktemp("demo"), agents=5, up=["--demo"], database=template)
    with grid.running():
        wait_for(lambda: memory(grid).get("history") == len(HISTORY), what="the feeder's first round is through")
        yield grid


def memory(grid: Grid) -> dict[str, Any]:
    try:
        return dict(json.loads((grid.data / "demo" / "feeder.json").read_text()))
    except (OSError, ValueError):
        return {}


def person(grid: Grid, key: str) -> NebulaClient:
    profile = json.loads((grid.data / "demo" / f"{key}.json").read_text())
    return NebulaClient(profile["endpoint"], profile["token"], language="en")


def test_the_overview_is_that_of_the_whole_lab(demo: Grid) -> None:
    done = demo.ctl("status")
    assert done.returncode == 0, done.stderr
    sums = re.search(r"GPUs: 19 \((\d+) idle, (\d+) busy, (\d+) maintenance\)", done.stdout)
    assert sums, done.stdout
    assert sum(int(part) for part in sums.groups()) == 19
    assert re.sub(r"\d+(?=%| idle| busy| maintenance| GiB\)| simulated)|unknown", "#", done.stdout).replace("load #,", "load #%,") == STATUS


def test_its_people_can_sign_in(demo: Grid) -> None:
    said = demo.output.read_text()
    for key in ("lead", "researcher", "student"):
        password = (demo.data / "demo" / f"{key}.password").read_text().strip()
        assert re.search(rf"{key}@lab\.example +password: {re.escape(password)}\n", said)
        for name in (f"{key}.password", f"{key}.json"):
            assert (demo.data / "demo" / name).stat().st_mode & 0o077 == 0
        with person(demo, key) as client:
            me = client.me()
        assert (me["email"], me["is_staff"]) == (f"{key}@lab.example", False)
    with NebulaClient(demo.url, None) as anybody:
        assert anybody.token_create(email="lead@lab.example", password=(demo.data / "demo" / "lead.password").read_text().strip())


def test_its_jobs_run_wait_and_have_ended(demo: Grid) -> None:
    with demo.client() as client:

        def jobs() -> dict[str, Any]:
            return {job["name"]: job for job in client.jobs(owner="all")}

        def all_ended() -> bool:
            return all(jobs()[recipe.name]["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") for recipe in HISTORY)

        wait_for(all_ended, what="the jobs of the history ended")
        found = jobs()
        ends = {(found[recipe.name]["state"], found[recipe.name]["end"]["reason"]) for recipe in HISTORY}
        assert ends == {
            ("SUCCEEDED", "completed"),
            ("FAILED", "nonzero_exit"),
            ("FAILED", "gpu_memory"),
            ("FAILED", "launch_failed"),
            ("FAILED", "time_limit"),
            ("CANCELLED", "cancelled"),
        }
        runs = {recipe.name for recipe in STANDING if found[recipe.name]["state"] == "RUNNING"}
        assert {"llama3-8b-lora", "vit-b16-ddp", "whisper-zh-2node", "glm4-9b-ascend", "数据清洗-commoncrawl"} <= runs
        waits = {name: found[name]["wait"]["code"] for name in found if found[name]["state"] == "WAITING"}
        assert len(set(waits.values())) >= 3, waits
        assert waits["qwen2-72b-eval"] == "held"
        assert waits["clip-图文检索"] == "cards_exceeded"
        two = client.job_get(found["whisper-zh-2node"]["id"])["attempt"]
        assert two is not None
        assert len({rank["node"] for rank in two["ranks"]}) == 2
        assert "Traceback" in b"".join(client.job_log_download(found["gpt2-small-bs64"]["id"])).decode()
        assert "轮次" in b"".join(client.job_log_download(found["分词器-词表"]["id"])).decode()
        wait_for(lambda: client.job_artifacts(found["mnist-smoke"]["id"]), what="artefacts arrived")


def test_a_second_round_doubles_nothing(demo: Grid) -> None:
    with demo.client() as client:
        before = sorted(job["id"] for job in client.jobs(owner="all"))
        clients = clients_open(demo.data)
        again = Feeder(data=demo.data, clients=clients)
        again.drain_once()
        again.label_once()
        assert {node["name"]: node["labels"] for node in client.node_list()} == LABELS
        again.standing_submit()
        again.history_submit()
        # Nor where all memory of it is lost: the keys are the same.
        again.memory = {}
        again.history_submit()
        for other in clients.values():
            other.close()
        assert sorted(job["id"] for job in client.jobs(owner="all")) == before


def test_demo_clean_ends_and_removes_all(demo: Grid, tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="stop it first"):
        demo_clean(demo.data)
    with pytest.raises(DemoError, match="There is no demo"):
        demo_clean(tmp_path)
    assert demo.stop() == 0
    assert demo.processes(), "jobs go on"
    assert "removed" in demo.manage("demo_clean")
    assert not demo.data.exists()
    wait_for(lambda: not demo.processes(), what="no process is left")
