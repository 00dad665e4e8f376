"""nebula-ctl: what is typed, what is sent, what is shown, and the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from client import ctl
from client.testing import FakeApi
from tests.client.conftest import Ctl

# --- submit: the parse matrix ---------------------------------------------------------------------------------------


def sent(api: FakeApi) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(next(seen.body for seen in reversed(api.seen) if seen.path.endswith("/jobs/submit")))
    return body


HERE = {"workdir": str(Path.cwd()), "gpu_count": 1, "nodes": 1, "requeue": True, "on_node_loss": "hold"}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--", "python", "train.py", "--lr", "0.1", "-f"], {"argv": ["python", "train.py", "--lr", "0.1", "-f"]}),
        (["--", "a", "--", "b"], {"argv": ["a", "--", "b"]}),
        (["--", "$(touch x)", "a;b", ""], {"argv": ["$(touch x)", "a;b", ""]}),
        (["--", ".venv/bin/python"], {"argv": [".venv/bin/python"]}),
        (["--command", "python 'a b.py'"], {"command": "python 'a b.py'"}),
        (["--name", "训练 ☠", "--", "x"], {"argv": ["x"], "name": "训练 ☠"}),
        (["--name", "--", "--", "x"], "exit 2"),
        (["--gpu-count", "0", "--", "x"], {"argv": ["x"], "gpu_count": 0}),
        (["--gpu-count=4", "--nodes=2", "--gpu-mem", "24G", "--", "x"], {"argv": ["x"], "gpu_count": 4, "nodes": 2, "gpu_mem": "24G"}),
        (["--workdir", "/data/x", "--", "x"], {"argv": ["x"], "workdir": "/data/x"}),
        (["--workdir", "sub/../other", "--", "x"], {"argv": ["x"], "workdir": str(Path.cwd() / "other")}),
        (["--env", "A=1", "--env", "B=x=y z", "--env", "C=", "--", "x"], {"argv": ["x"], "env": {"A": "1", "B": "x=y z", "C": ""}}),
        (["--env", "COPIED", "--", "x"], {"argv": ["x"], "env": {"COPIED": "from here"}}),
        (["--env", "NOT_THERE", "--", "x"], "exit 2"),
        (["--env", "1A=2", "--", "x"], "exit 2"),
        (["--env", "=2", "--", "x"], "exit 2"),
        (["--time", "01:00:00", "--", "x"], {"argv": ["x"], "time": "01:00:00"}),
        (["--project", "vision", "--", "x"], {"argv": ["x"], "project": "vision"}),
        (["--checkpoint", "ck/last.pt", "--", "x"], {"argv": ["x"], "checkpoint": "ck/last.pt"}),
        (["--no-requeue", "--", "x"], {"argv": ["x"], "requeue": False}),
        (["--on-node-loss", "requeue", "--", "x"], {"argv": ["x"], "on_node_loss": "requeue"}),
        (["--on-node-loss", "panic", "--", "x"], "exit 2"),
        (["--grace", "60", "--", "x"], {"argv": ["x"], "grace_s": 60}),
        (["--grace", "0", "--", "x"], "exit 2"),
        (["--hold", "--", "x"], {"argv": ["x"], "hold": True}),
        (
            ["--arch", "sm_89", "--model", "RTX 4090", "--vendor", "nvidia", "--", "x"],
            {"argv": ["x"], "constraints": {"arch": "sm_89", "model": "RTX 4090", "vendor": "nvidia"}},
        ),
        (
            ["--model", "A100|H100", "--cuda", "12.4", "--driver", "550", "--", "x"],
            {"argv": ["x"], "constraints": {"model": "A100|H100", "cuda_min": "12.4", "driver_min": "550"}},
        ),
        (
            ["--label", "rack=r2", "--label", "zone=", "--label", "eq=a=b", "--", "x"],
            {"argv": ["x"], "constraints": {"labels": {"rack": "r2", "zone": "", "eq": "a=b"}}},
        ),
        (["--label", "rack", "--", "x"], "exit 2"),
        (["--label", "rack=a", "--label", "rack=b", "--", "x"], "exit 2"),
        (["--constraint=a100", "--", "x"], {"argv": ["x"], "constraints": {"model": "a100"}}),
        (
            ["--constraint", "gpu_type:4090", "--constraint", "cuda=12.4", "--constraint", "net/fabric=ib:1", "--", "x"],
            {"argv": ["x"], "constraints": {"model": "4090", "cuda_min": "12.4", "labels": {"net/fabric": "ib:1"}}},
        ),
        (["--constraint", "a100", "--model", "a100", "--", "x"], {"argv": ["x"], "constraints": {"model": "a100"}}),
        (["--constraint", "a100", "--model", "h100", "--", "x"], "exit 2"),
        (["--cpus", "0.5", "--mem", "64G", "--exclusive", "--", "x"], {"argv": ["x"], "cpus": "0.5", "host_mem": "64G", "exclusive": True}),
        (["--queue", "batch", "--qos", "low", "--", "x"], {"argv": ["x"], "queue": "batch", "qos": "low"}),
        (["--priority", "5", "--", "x"], {"argv": ["x"], "priority": 5}),
        (["--priority", "-5", "--", "x"], {"argv": ["x"], "priority": -5}),
        (["--gpu-count", "-1", "--", "x"], "exit 2"),
        (["--gpu-count", "two", "--", "x"], "exit 2"),
        (["--nodes", "0", "--", "x"], "exit 2"),
        (["--image", "pytorch", "--", "x"], "exit 2"),
        (["--data-mount", "/a:/b", "--", "x"], "exit 2"),
        (["python", "train.py"], "exit 2"),
        (["--gpu-mem", "4G", "python", "train.py"], "exit 2"),
        (["--command", "a", "--", "b"], "exit 2"),
        (["--"], "exit 2"),
        ([], "exit 2"),
        (["--bogus", "--", "x"], "exit 2"),
    ],
)
def test_submit_sends_what_was_typed(
    nebula: Ctl, api: FakeApi, monkeypatch: pytest.MonkeyPatch, argv: list[str], expected: dict[str, Any] | str
) -> None:
    monkeypatch.setenv("COPIED", "from here")
    ran = nebula("submit", *argv)
    if expected == "exit 2":
        assert ran.code == 2
        assert ran.out == ""
        assert ran.err.startswith("Error: ")
        assert ran.err.count("\n") == 1
        assert api.jobs == {}
    else:
        assert (ran.code, ran.err) == (0, "")
        assert isinstance(expected, dict)
        assert sent(api) == HERE | expected


def test_submit_says_what_to_do_next(nebula: Ctl) -> None:
    ran = nebula("submit", "--", "true")
    assert ran.out == "Job 1 submitted: WAITING\n  Its output: nebula-ctl logs -f 1\n  If it waits: nebula-ctl why 1\n"
    assert "nebula-ctl release 2" in nebula("submit", "--hold", "--", "true").out


def test_containers_come_later_and_say_so(nebula: Ctl) -> None:
    assert "Containers are not available yet" in nebula("submit", "--image", "pytorch", "--", "x").err


def test_a_program_without_dashes_is_shown_where_they_go(nebula: Ctl) -> None:
    assert "Put -- before the program: nebula-ctl submit [OPTIONS] -- python" in nebula("submit", "python", "-f", "x").err


def test_the_folder_is_the_one_the_shell_shows(nebula: Ctl, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path / "link")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    nebula("submit", "--", "x")
    assert sent(api)["workdir"] == str(tmp_path / "link")
    monkeypatch.setenv("PWD", "/")  # a lie: the current folder is another one
    nebula("submit", "--", "x")
    assert sent(api)["workdir"] == str(tmp_path / "real")


def test_a_folder_that_is_gone_is_told(nebula: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    ran = nebula("submit", "--", "x")
    assert ran.code == 2
    assert "--workdir" in ran.err
    assert nebula("submit", "--workdir", "/data", "--", "x").code == 0


def test_a_retried_submit_makes_one_job(nebula: Ctl, api: FakeApi) -> None:
    api.cut(1)
    assert nebula("submit", "--", "true").code == 0
    assert len(api.jobs) == 1


def test_a_callers_idempotency_key_is_sent(nebula: Ctl, api: FakeApi) -> None:
    for _n in range(2):
        assert nebula("submit", "--idempotency-key", "ci-1", "--", "true").out.startswith("Job 1 ")
    assert nebula("submit", "--idempotency-key", "ci-1", "--", "false").code == 5


# --- golden output ----------------------------------------------------------------------------------------------------


def lab(api: FakeApi) -> None:
    api.node_add("node01", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4060 Laptop GPU", busy=1, load_pct=42)
    api.node_add("node02", "Intel(R) Arc(TM) A770", cordoned=True, cordon_reason="new fans", load_pct=None)
    api.node_add("node03", "NVIDIA A100-PCIE-40GB", state="UNKNOWN", load_pct=None)
    api.node_add("sim01", "NVIDIA GeForce RTX 4090", simulated=True)
    api.node_add("cpu01")


def test_status_is_the_overview_of_the_documents(nebula: Ctl, api: FakeApi) -> None:
    lab(api)
    api.notices.append({"code": "simulated", "text": "1 node is simulated."})
    ran = nebula("status")
    assert ran.out == (
        "Cluster Overview:\n"
        "  Nodes: 5\n"
        "  GPUs: 6 (3 idle, 1 busy, 2 maintenance)\n"
        "  Total VRAM: 144 GiB (free: 72 GiB)\n"
        "  Maintenance: node02:0 node cordoned, node03:0 node UNKNOWN\n"
        "Node Details:\n"
        "  node01: RTX 4090 x2, RTX 4060 Laptop x1, load 42%\n"
        "  node02: Arc A770 x1, load unknown (cordoned: new fans)\n"
        "  node03: A100-PCIE-40GB x1, load unknown (UNKNOWN)\n"
        "  sim01: RTX 4090 x1, load 0% (simulated)\n"
        "  cpu01: no GPUs, load 0%\n"
        "Notice: 1 node is simulated.\n"
    )
    assert (ran.code, ran.err) == (0, "")


def test_status_in_the_documents_own_numbers() -> None:
    from client.output import overview

    usage = {
        "nodes": {"total": 5},
        "gpus": {"total": 19, "idle": 12, "busy": 5, "maintenance": 2},
        "vram": {"total_mib": 398 * 1024, "free_mib": 214 * 1024},
    }
    assert overview(usage, None) == (
        "Cluster Overview:\n  Nodes: 5\n  GPUs: 19 (12 idle, 5 busy, 2 maintenance)\n  Total VRAM: 398 GiB (free: 214 GiB)"
    )


def test_an_empty_pool_says_how_to_fill_it(nebula: Ctl) -> None:
    assert "nebula-ctl node add NAME" in nebula("status").out


DAY = "2025-03-01T"


def jobs_for_golden(api: FakeApi) -> None:
    api.job_add(
        name="训练 resnet\x1b[31m with a name that goes on and on", state="SUCCEEDED", gpu_count=2, gpu_mem_mib=12_288, wait=None,
        submitted_at=DAY + "10:00:00Z", started_at=DAY + "10:00:02Z", ended_at=DAY + "11:02:07Z",
        end={"reason": "completed", "params": {}, "text": "Completed.", "exit_code": 0},
    )  # fmt: skip
    api.job_add(
        name="\u202egnp", state="FAILED", wait=None,
        submitted_at=DAY + "10:00:00Z", started_at=DAY + "10:00:00Z", ended_at=DAY + "10:00:09Z",
        end={"reason": "nonzero_exit", "params": {}, "text": "Exit code 3.", "exit_code": 3},
    )  # fmt: skip
    reason = "Needs 40960 MiB on one GPU; the largest free slice is 24576 MiB (gpu-3:1)."
    wait = {"code": "memory", "params": {}, "text": reason, "position": 2, "checked_at": DAY + "10:00:00Z"}
    api.job_add(name="debug", gpu_count=0, wait=wait, submitted_at=DAY + "10:00:00Z")


def test_list_fits_80_columns_and_shows_names_as_data(nebula: Ctl, api: FakeApi) -> None:
    jobs_for_golden(api)
    ran = nebula("list")
    assert ran.out == (
        "ID  NAME           STATE      GPUS    MEMORY  SUBMITTED   RUN TIME  NOTE\n"
        " 3  debug          WAITING       0         -  2025-03-01         -  Needs 40960…\n"
        " 2  \\u202egnp      FAILED        1     whole  2025-03-01   0:00:09  Exit code 3.\n"
        " 1  训练 resnet\\…  SUCCEEDED     2  12.0 GiB  2025-03-01   1:02:05\n"
    )


def test_list_asks_for_what_was_typed(nebula: Ctl, api: FakeApi) -> None:
    jobs_for_golden(api)
    api.job_add("mallory@lab.example", name="hers")
    ran = nebula("list", "--state", "running,waiting", "--json")
    assert [row["id"] for row in ran.json()["results"]] == [3]
    assert "owner=me" in api.seen[-1].path
    assert "state=RUNNING%2CWAITING" in api.seen[-1].path
    assert nebula("list", "-q", "no such").out == "No jobs match.\n"
    nebula("list", "--project", "vision", "--ordering", "-id", "--page", "1", "--limit", "7")
    assert "project=vision" in api.seen[-1].path
    assert "page_size=7" in api.seen[-1].path


def test_staff_sees_the_owners(nebula: Ctl, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_for_golden(api)
    api.job_add("mallory@lab.example", name="hers")
    monkeypatch.setenv("NEBULA_TOKEN", api.staff_token)
    out = nebula("list", "--all").out
    assert "OWNER" in out
    assert " mallory…  hers " in out
    assert nebula("list").out == "No jobs match.\n"


def test_a_long_list_says_that_there_is_more(nebula: Ctl, api: FakeApi) -> None:
    for _n in range(3):
        api.job_add()
    ran = nebula("list", "--limit", "2")
    assert ran.err == "2 of 3 jobs; more with --page 2.\n"


def test_show_tells_all_about_a_job(nebula: Ctl, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs_for_golden(api)
    api.jobs[1].row |= {
        "env": {"B": "x y", "HIDDEN": None},
        "argv": ["python", "a b.py"],
        "workdir": "/data",
        "constraints": {"arch": "sm_89"},
    }
    out = nebula("show", "1").out.splitlines()
    fields = dict(line.split(":", 1) for line in out)
    shown = {name: value.strip() for name, value in fields.items()}
    assert shown["Job"] == "1 训练 resnet\\x1b[31m with a name that goes on and on"
    assert shown["Command"] == "python 'a b.py'"
    assert shown["Environment"] == "'B=x y' HIDDEN"
    assert shown["GPUs"] == "2 × 12.0 GiB, arch sm_89"
    assert shown["Ended"] == "Completed."
    assert shown["Exit code"] == "0"
    assert shown["Run time"] == "1:02:05"
    waits = nebula("show", "3").out
    assert "Waits because: Needs 40960 MiB on one GPU; the largest free slice is 24576 MiB (gpu-3:1). (position 2)" in waits
    assert "none (CPU only)" in waits


def test_show_tells_what_was_asked_of_the_nodes(nebula: Ctl) -> None:
    wants = ["--label", "rack=r2", "--label", "floor=三楼\u202e", "--cuda", "12.4", "--driver", "550", "--cpus", "1.5", "--mem", "64G"]
    nebula("submit", *wants, "--exclusive", "--gpu-mem", "4G", "--model", "A100|H100", "--queue", "batch", "--qos", "low", "--", "x")
    shown = {name: value.strip() for name, value in (line.split(":", 1) for line in nebula("show", "1").out.splitlines())}
    assert shown["GPUs"] == "1 × 4.0 GiB, model A100|H100, nobody beside it"
    needs = r"CUDA 12.4 or newer, driver 550 or newer, floor=三楼\u202e rack=r2, 1.5 CPU cores, 64.0 GiB of main memory"
    assert shown["Node must have"] == needs
    assert (shown["Queue"], shown["Quality of service"]) == ("batch", "low")


def test_show_names_node_and_cards_of_each_rank(nebula: Ctl, api: FakeApi) -> None:
    api.node_add("node01", "NVIDIA GeForce RTX 4090")
    job = api.job_add()
    api.job_start(job)
    api.log_write(job, b"x" * 2048)
    assert "Rank 0 on node01: RUNNING, no GPUs, 2.0 KiB of output" in nebula("show", "1").out


def test_why_and_events(nebula: Ctl, api: FakeApi) -> None:
    jobs_for_golden(api)
    out = nebula("why", "3").out.splitlines()
    assert out[0] == "Job 3 is WAITING: Needs 40960 MiB on one GPU; the largest free slice is 24576 MiB (gpu-3:1)."
    assert out[1] == "Position 2 of the queue; 1 before it."
    assert nebula("why", "2").out == "Job 2 is FAILED: Exit code 3.\n"
    job = api.job_add()
    api.job_start(job)
    events = nebula("events", str(job)).out
    assert "· → WAITING" in events
    assert "WAITING → RUNNING" in events
    assert nebula("events", str(job), "--json").json()[1]["to_state"] == "RUNNING"


# --- when it would start ----------------------------------------------------------------------------------------------


def forecast_set(api: FakeApi) -> None:
    """A job that would wait: until 15:10 UTC of another year, in nine of ten cases until 16:40; one smaller starts now."""
    api.forecast |= {
        "verdict": "waits",
        "code": "gpu_memory",
        "text": "Needs 16 GiB on one GPU until about 15:10.",
        "position": 3,
        "p50": "2031-03-01T15:10:00Z",
        "p90": "2031-03-02T16:40:00Z",
        "place": "node03 gpu1",
    }
    api.alternatives = [
        {
            "text": "12 GiB a card instead of 16 GiB",
            "set": {"gpu_mem": "12G"},
            "p50": "2025-03-01T00:00:00Z",
            "p90": "2025-03-01T00:00:00Z",
            "start": "Starts now.",
            "place": "node03 gpu1",
            "command": "nebula-ctl submit --gpu-mem 12G -- true",
        }
    ]


def test_a_dry_run_says_when_it_would_start_and_what_would_start_sooner(nebula: Ctl, api: FakeApi) -> None:
    forecast_set(api)
    ran = nebula("submit", "--dry-run", "--gpu-mem", "16G", "--", "true")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "It would wait: Needs 16 GiB on one GPU until about 15:10.\n"
        "Position 3 of the queue; 2 before it.\n"
        "Starts ≈ 2031-03-01; nine times in ten by 2031-03-02 (node03 gpu1).\n"
        "What would start sooner:\n"
        "  12 GiB a card instead of 16 GiB: Starts now (node03 gpu1).\n"
        "    nebula-ctl submit --gpu-mem 12G -- true\n"
    )
    assert api.jobs == {}
    assert json.loads(api.seen[-1].body)["gpu_mem"] == "16G"
    told = nebula("submit", "--dry-run", "--gpu-mem", "16G", "--json", "--", "true").json()
    assert (told["verdict"], [one["set"] for one in told["alternatives"]]) == ("waits", [{"gpu_mem": "12G"}])


def test_a_dry_run_of_what_starts_is_one_line(nebula: Ctl) -> None:
    assert nebula("submit", "--dry-run", "--", "true").out == "It would start at once: node01 gpu0.\n"


@pytest.mark.parametrize(
    ("verdict", "code", "begin"),
    [("held", 0, "It would be held: "), ("refused", 2, "It would be refused: "), ("never", 2, "It could never run here: ")],
)
def test_a_dry_run_fails_for_what_would_not_get_into_the_queue(nebula: Ctl, api: FakeApi, verdict: str, code: int, begin: str) -> None:
    api.forecast |= {"verdict": verdict, "text": "Because.", "p50": None, "p90": None}
    ran = nebula("submit", "--dry-run", "--", "true")
    assert (ran.code, ran.out) == (code, f"{begin}Because.\n")
    assert nebula("submit", "--dry-run", "--json", "--", "true").code == code


def test_a_dry_run_can_not_be_followed(nebula: Ctl, api: FakeApi) -> None:
    ran = nebula("submit", "--dry-run", "--follow", "--", "true")
    assert (ran.code, ran.err) == (2, "Error: --dry-run submits nothing; leave out --follow and --idempotency-key.\n")
    assert api.seen == []


def test_why_tells_the_estimate_and_what_would_start_sooner(nebula: Ctl, api: FakeApi) -> None:
    forecast_set(api)
    number = api.job_add()
    api.jobs[number].row["wait"]["estimate"] = {
        "p50": None,
        "p90": None,
        "later_than": "2031-03-01T15:10:00Z",
        "text": "",
        "place": "",
        "made_at": "2025-03-01T00:00:00Z",
        "age_s": 21.7,
        "is_stale": True,
    }
    out = nebula("why", str(number)).out.splitlines()
    assert out[2:4] == ["Starts later than 2031-03-01.", "That estimate is 22 s old; a new one is being made."]
    assert out[-3:] == [
        "What would start sooner:",
        "  12 GiB a card instead of 16 GiB: Starts now (node03 gpu1).",
        "    nebula-ctl submit --gpu-mem 12G -- true",
    ]
    assert "sooner" not in nebula("why", str(number), "--no-alternatives").out
    assert nebula("why", str(number), "--json").json()["alternatives"] == api.alternatives
    api.alternatives = []
    assert nebula("why", str(number)).out.endswith("Nothing smaller would start sooner.\n")


def test_the_list_has_a_column_for_the_start_of_what_waits(nebula: Ctl, api: FakeApi) -> None:
    number = api.job_add(name="waits")
    assert "START" not in nebula("list").out
    told = {"p50": "2031-03-01T15:10:00Z", "p90": None, "later_than": None, "text": "", "place": "", "made_at": "", "age_s": 1.0}
    api.jobs[number].row["wait"]["estimate"] = told | {"is_stale": False}
    header, row = nebula("list").out.splitlines()
    assert row[header.index("START") :].startswith("≈ 2031-03-01")


def test_a_stream_that_breaks_is_no_complete_answer(nebula: Ctl, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    forecast_set(api)
    monkeypatch.setattr("client.testing_http._json_lines", lambda rows: b'{"type": "alternative", "text": "half')
    ran = nebula("why", str(api.job_add()))
    assert (ran.code, ran.err) == (6, "Error: The connection broke before the answer was complete.\n")


def test_the_api_is_told_the_zone_of_this_machine(nebula: Ctl, api: FakeApi) -> None:
    nebula("list")
    assert re.fullmatch(r"[+-]\d\d:\d\d", api.seen[-1].headers["time-zone"])


# --- changing jobs ---------------------------------------------------------------------------------------------------


def test_cancel_hold_release(nebula: Ctl, api: FakeApi) -> None:
    one, two = api.job_add(), api.job_add()
    api.job_start(two)
    assert nebula("hold", "1", "--why", "later").out == "Job 1 is held; let it start with: nebula-ctl release 1\n"
    assert api.jobs[one].row["held_why"] == "later"
    assert nebula("release", "1").out == "Job 1 may start.\n"
    ran = nebula("cancel", "1", "2", "1")
    assert ran.out == "Job 1 CANCELLED: cancelled\nJob 2: cancel wanted (STOPPING); it is being stopped politely.\n"


def test_one_refused_job_does_not_keep_the_others(nebula: Ctl, api: FakeApi) -> None:
    api.job_add()
    api.job_add()
    ran = nebula("cancel", "99", "1", "2")
    assert ran.code == 4
    assert ran.err == "Job 99: There is no job 99 that you may see.\n"
    assert {api.jobs[1].row["state"], api.jobs[2].row["state"]} == {"CANCELLED"}
    rows = nebula("cancel", "--json", "99", "1").json()
    assert rows[0]["error"]["code"] == "not_found"
    assert rows[1]["state"] == "CANCELLED"
    assert nebula("cancel", "--json", "1").json()["id"] == 1


# --- nodes and GPUs --------------------------------------------------------------------------------------------------


def test_node_and_gpu_tables(nebula: Ctl, api: FakeApi) -> None:
    lab(api)
    nodes = nebula("node", "list").out.splitlines()
    assert nodes[0].split() == ["NAME", "STATE", "GPUS", "LOAD", "AGENT", "NOTES"]
    assert nodes[2] == "node02  READY       1     -  0.1.0  cordoned: new fans"
    gpus = nebula("gpu", "list").out.splitlines()
    assert all(len(line) <= 80 for line in gpus)
    assert len(gpus) == 7
    assert "sim RTX" in gpus[6]
    shown = nebula("node", "show", "node01").out
    assert "RTX 4060 Laptop" in shown
    assert "64.0 GiB" in shown
    assert nebula("gpu", "list", "--json").json()[0]["total_mib"] == 24_564


def test_labelling_a_node(nebula: Ctl, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.node_add("node01", labels={"rack": "r1", "old": "x"})
    assert nebula("node", "label", "node01", "rack=r2").code == 3
    monkeypatch.setenv("NEBULA_TOKEN", api.staff_token)
    ran = nebula("node", "label", "node01", "rack=r2", "floor=三楼=x", "zone=", "old-")
    assert (ran.code, ran.out) == (0, "node01: floor=三楼=x rack=r2 zone=\n")
    assert "Labels:        floor=三楼=x rack=r2 zone=" in nebula("node", "show", "node01").out
    for wrong in (["rack"], ["rack=a", "rack-"], []):
        assert nebula("node", "label", "node01", *wrong).code == 2


def test_draining_and_resuming_a_node(nebula: Ctl, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    lab(api)
    assert nebula("node", "drain", "node01", "--reason", "fans").code == 3
    monkeypatch.setenv("NEBULA_TOKEN", api.staff_token)
    monkeypatch.setenv("TZ", "UTC")
    ran = nebula("node", "drain", "node01", "--reason", "fans", "--until", "2026-03-01T18:00:00+08:00")
    assert ran.out == "node01 takes no new jobs; those that run there go on.\n"
    assert api.nodes[0]["cordon_reason"] == "fans"
    assert api.nodes[0]["cordoned_until"].endswith("+00:00") or "+08:00" in api.nodes[0]["cordoned_until"]
    assert nebula("node", "resume", "node01").code == 0
    assert api.nodes[0]["cordoned"] is False
    assert nebula("node", "drain", "node01").code == 2
    assert nebula("node", "drain", "node01", "--reason", " ").code == 2
    assert nebula("node", "drain", "node01", "--reason", "x", "--until", "soon").code == 2
    assert nebula("node", "show", "none").code == 4


def test_a_node_that_only_reports_and_its_ports_are_told(nebula: Ctl, api: FakeApi) -> None:
    ports = [
        {"name": "mlx5_0:1", "state": "ACTIVE", "rate_gbps": 200, "layer": "InfiniBand"},
        {"name": "mlx5_1:1", "state": "", "rate_gbps": None},
    ]
    api.node_add("node07", "RTX 4090", metrics_only=True, numa_nodes=2, rdma_ports=ports)
    shown = nebula("node", "show", "node07").out
    assert "metrics only" in shown
    assert "mlx5_0:1 ACTIVE 200 Gbit/s, mlx5_1:1" in shown
    assert "metrics only" in nebula("node", "list").out


def test_adding_a_node_shows_the_line_to_run(nebula: Ctl, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert nebula("node", "add", "node09").code == 3
    monkeypatch.setenv("NEBULA_TOKEN", api.staff_token)
    line = (
        "sudo bash -c 'installer=$(curl -fsSk https://grid.lab:8443/install.sh)"
        f' && [ "$(printf "%s\\n" "$installer" | sha256sum)" = "{"a" * 64}  -" ] && eval "$installer"'
        """ || { echo "nebulagrid: nothing was installed" >&2; exit 1; }'"""
        f" nebula-install --controller-endpoint https://grid.lab:8443 --name node09 --ca-sha256 {'c' * 64} --token-file -"
    )
    out = nebula("node", "add", "node09").out
    assert out.count("nge_secret") == 1
    assert f"  {line} <<<nge_secret\n" in out
    target = tmp_path / "token"
    out = nebula("node", "add", "node09", "--token-file", str(target)).out
    assert "nge_secret" not in out
    assert f"  {line} < {target}\n" in out
    assert target.read_text() == "nge_secret\n"
    assert target.stat().st_mode & 0o777 == 0o600
    told = nebula("node", "add", "node09", "--token-file", str(target), "--json")
    assert "nge_secret" not in told.out
    assert told.json()["command"] == line
    assert nebula("node", "add", "node09", "--json").json()["token"] == "nge_secret"


# --- artifacts ---------------------------------------------------------------------------------------------------------


def test_artifacts_are_fetched_without_leaving_the_folder(
    nebula: Ctl, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = api.job_add()
    assert "left no files" in nebula("artifacts", "list", "1").out
    api.job_start(job)
    api.artifact_add(job, "../../evil.bin", b"\x00\x01")
    api.artifact_add(job, "model.pt", b"weights")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert nebula("artifacts", "list", "1").out.splitlines()[1].split() == ["1", "0", "2", "../../evil.bin"]
    assert nebula("artifacts", "get", "1", "../../evil.bin").code == 0
    assert (tmp_path / "work" / "evil.bin").read_bytes() == b"\x00\x01"
    assert nebula("artifacts", "get", "1", "model.pt", "-o", str(tmp_path)).code == 0
    assert (tmp_path / "model.pt").read_bytes() == b"weights"
    ran = nebula("artifacts", "get", "1", "model.pt", "-o", str(tmp_path / "model.pt"))
    assert ran.code == 2
    assert "--force" in ran.err
    assert nebula("artifacts", "get", "1", "model.pt", "-o", str(tmp_path / "model.pt"), "--force").code == 0
    assert nebula("artifacts", "get", "1", "none").code == 4
    assert sorted(p.name for p in (tmp_path / "work").iterdir()) == ["evil.bin"]
    assert nebula("artifacts", "get", "1", "model.pt", "-o", "-").out == "weights"


# --- the frame -----------------------------------------------------------------------------------------------------------


def test_options_before_the_command_count_too(nebula: Ctl, api: FakeApi, profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api.job_add()
    monkeypatch.setenv("NEBULA_CONFIG", "/nowhere")
    assert nebula("--json", "--profile", str(profile), "list").json()["count"] == 1
    assert nebula("list", "--profile", str(profile)).code == 0
    assert nebula("list").code == 3


def test_version_and_help(nebula: Ctl) -> None:
    assert nebula("--version").out.startswith("nebula-ctl 0.")
    assert nebula("--json", "--version").out.startswith("nebula-ctl 0.")
    assert "submit" in nebula("--help").out
    assert nebula().code == 2
    assert nebula("artifacts").code == 2  # it needs a job: there is nothing to list without one


def test_every_command_has_help_json_and_profile(nebula: Ctl) -> None:
    for words in ctl.COMMANDS:
        ran = nebula(*words, "--help")
        assert ran.code == 0, words
        assert "--json" in ran.out, words
        assert "--profile" in ran.out, words


def test_a_readable_profile_is_warned_about(nebula: Ctl, profile: Path) -> None:
    profile.chmod(0o644)
    ran = nebula("list")
    assert ran.code == 0
    assert "chmod 600" in ran.err


def test_a_name_that_looks_like_markup_stays_as_it_is(nebula: Ctl, api: FakeApi) -> None:
    api.job_add(name="[bold]{id}%s<script>")
    assert "[bold]{id}%s" in nebula("show", "1").out
