"""Configuration, enrolment and the command line."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import config as config_module
from agent.backends.scenario import FAULTS, scenario_parse
from agent.config import ConfigError, config_load, config_path, config_text
from agent.jobenv import SpecError, environment
from agent.main import main
from agent.protocol import GpuGrant, GpuInfo, RankSpec
from agent.status import status_lines
from agent.testing import Failure, FakeControlPlane
from tests.agent.rank_lab import ROOT
from tests.waiting import PATIENCE_S

GOOD = {"endpoint": "https://lab.example", "node_id": 7}


def config_file(folder: Path, **values: object) -> Path:
    path = folder / "agent.toml"
    path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()))
    return path


def test_the_least_configuration(tmp_path: Path) -> None:
    config = config_load(config_file(tmp_path, **GOOD), {})
    assert (config.endpoint.url, config.node_id, config.agent_id) == ("https://lab.example:443", 7, "node7")
    assert (config.backend, config.cuda_visible, config.identity) == ("auto", "index", "same")
    assert config.credential_file == tmp_path / "agent.credential"


def test_relative_paths_count_from_the_file(tmp_path: Path) -> None:
    config = config_load(config_file(tmp_path, **GOOD, data_dir="data", scenario="s.json", ca_file="/etc/ca.pem"), {})
    assert (config.data_dir, config.scenario, str(config.ca_file)) == (tmp_path / "data", tmp_path / "s.json", "/etc/ca.pem")


def test_the_environment_wins(tmp_path: Path) -> None:
    env = {"NEBULA_AGENT_DATA": "/data", "NEBULA_AGENT_BACKEND": "none", "NEBULA_AGENT_NODE_ID": "9", "NEBULA_AGENT_CUDA_VISIBLE": "uuid"}
    config = config_load(config_file(tmp_path, **GOOD, data_dir="/other", backend="nvml"), env)
    assert (str(config.data_dir), config.backend, config.node_id, config.cuda_visible) == ("/data", "none", 9, "uuid")


def test_where_the_file_is_looked_for() -> None:
    assert str(config_path(None, {})) == "/etc/nebulagrid/agent.toml"
    assert str(config_path(None, {"NEBULA_AGENT_CONFIG": "/a"})) == "/a"
    assert str(config_path("/b", {"NEBULA_AGENT_CONFIG": "/a"})) == "/b"


BAD: list[tuple[dict[str, object], str]] = [
    ({"node_id": 7}, "endpoint is missing"),
    ({"endpoint": "https://lab.example"}, "node_id is missing"),
    ({**GOOD, "node_id": "seven"}, "whole number"),
    ({**GOOD, "node_id": -1}, "whole number"),
    ({**GOOD, "pids_max": 0}, "whole number"),
    ({**GOOD, "memory_default_pct": 101}, "between 1 and 100"),
    ({**GOOD, "installation": "a/b"}, "installation"),
    ({**GOOD, "node_id": True}, "whole number"),
    ({**GOOD, "endpoint": "http://lab.example"}, "use https"),
    ({**GOOD, "endpoint": 5}, "must be a string"),
    ({**GOOD, "backend": "cuda"}, "must be one of auto, nvml, level_zero, ascend, amd, simulated, none"),
    ({**GOOD, "cuda_visible": "name"}, "must be one of index, uuid"),
    ({**GOOD, "identity": "root"}, "must be one of same, shared, mapped"),
    ({**GOOD, "colour": "red"}, "unknown key 'colour'"),
    ({**GOOD, "pin_sha256": "abc"}, "64 hexadecimal"),
    ({**GOOD, "agent_id": "../x"}, "agent_id"),
    ({**GOOD, "agent_id": "a" * 61}, "agent_id"),
]


@pytest.mark.parametrize(("values", "words"), BAD)
def test_a_bad_configuration_is_one_sentence_and_exit_2(
    tmp_path: Path, values: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(tmp_path, **values)
    with pytest.raises(ConfigError, match=words):
        config_load(path, {})
    assert main(["run", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_file_that_is_no_toml_or_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "agent.toml"
    assert main(["run", "--config", str(path)]) == 2
    assert "nebula-agent enroll" in capsys.readouterr().err
    path.write_text("endpoint = \n")
    assert main(["status", "--config", str(path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_what_enrol_writes_is_read_back_whatever_it_holds(tmp_path: Path) -> None:
    values: dict[str, str | int] = {**GOOD, "name": 'a "quoted" \\ name\n中文 😀', "data_dir": str(tmp_path / "da ta")}
    path = tmp_path / "agent.toml"
    path.write_text(config_text(values))
    config = config_load(path, {})
    assert (config.name, config.data_dir) == (values["name"], tmp_path / "da ta")


# --- run, before it runs --------------------------------------------------------------------------------------


def run_here(folder: Path, **values: object) -> int:
    folder.joinpath("agent.credential").write_text("secret")
    folder.joinpath("agent.credential").chmod(0o600)
    return main(["run", "--config", str(config_file(folder, **GOOD, **values))])


def test_run_refuses_an_open_credential(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, **GOOD)
    tmp_path.joinpath("agent.credential").write_text("secret")
    tmp_path.joinpath("agent.credential").chmod(0o644)
    assert main(["run", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert "chmod 600" in said
    assert "secret" not in said


def test_run_refuses_a_data_directory_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.joinpath("file").touch()
    assert run_here(tmp_path, data_dir=str(tmp_path / "file" / "data")) == 2
    assert "data directory" in capsys.readouterr().err


def test_run_refuses_a_scenario_that_makes_no_sense(tmp_path: Path) -> None:
    tmp_path.joinpath("s.json").write_text('{"devices": [{"memory": 1}]}')
    tmp_path.joinpath("agent.credential").write_text("secret")
    tmp_path.joinpath("agent.credential").chmod(0o600)
    path = config_file(tmp_path, **GOOD, data_dir=str(tmp_path / "data"), backend="simulated", scenario="s.json", agent_id="test-none")
    done = subprocess.run(
        [sys.executable, "-m", "agent.main", "run", "--config", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 2
    assert "unknown keys memory" in done.stderr.splitlines()[-1]


# --- enroll ---------------------------------------------------------------------------------------------------


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as found:
        found.tokens["one-use"] = "named-by-token"
        yield found


def test_enrol_writes_configuration_and_credential(plane: FakeControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token, path = tmp_path / "token", tmp_path / "etc" / "agent.toml"
    token.write_text("one-use\n")
    code = main(
        [
            "enroll",
            "--endpoint",
            plane.url,
            "--token-file",
            str(token),
            "--config",
            str(path),
            "--backend",
            "simulated",
            "--data-dir",
            str(tmp_path / "data"),
        ]
    )
    assert code == 0
    config = config_load(path, {})
    assert (config.node_id, config.name, config.backend, config.data_dir) == (7, "named-by-token", "simulated", tmp_path / "data")
    assert config.credential_file.read_text().strip() == plane.credential
    assert config.credential_file.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr()
    assert plane.credential not in said.out + said.err
    assert "one-use" not in said.out + said.err + path.read_text()
    assert plane.tokens == {}


def test_enrol_reads_the_token_from_standard_input(plane: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one-use\nmore\n"))
    path = tmp_path / "agent.toml"
    assert main(["enroll", "--endpoint", plane.url, "--token-file", "-", "--name", "mine", "--config", str(path)]) == 0
    assert config_load(path, {}).name == "mine"


def test_a_token_on_the_command_line_works_with_a_warning(
    plane: FakeControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["enroll", "--endpoint", plane.url, "--token", "one-use", "--config", str(tmp_path / "a.toml")]) == 0
    assert "--token-file" in capsys.readouterr().err


def test_enrolling_again_keeps_the_other_settings(plane: FakeControlPlane, tmp_path: Path) -> None:
    path = config_file(tmp_path, **GOOD, cuda_visible="uuid", backend="none")
    assert main(["enroll", "--endpoint", plane.url, "--token", "one-use", "--config", str(path)]) == 0
    config = config_load(path, {})
    assert (config.cuda_visible, config.backend, config.endpoint.url) == ("uuid", "none", plane.url)


def test_a_refused_token_says_so_and_writes_nothing(plane: FakeControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "agent.toml"
    assert main(["enroll", "--endpoint", plane.url, "--token", "old", "--config", str(path)]) == 1
    assert "ask for a new one" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("status", [0, 429, 500])
def test_a_control_plane_in_trouble_is_one_sentence(
    plane: FakeControlPlane, tmp_path: Path, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.failures.append(Failure("/api/agent/v1/enroll", status, 5))
    assert main(["enroll", "--endpoint", plane.url, "--token", "one-use", "--config", str(tmp_path / "a.toml")]) == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--endpoint", "http://lab.example", "--token", "x"], "use https"),
        (["--endpoint", "https://lab.example"], "--token-file"),
        (["--endpoint", "https://lab.example", "--token", "  "], "empty"),
        (["--endpoint", "https://lab.example", "--token-file", "/nowhere/token"], "cannot be read"),
    ],
)
def test_enrol_checks_before_it_spends_the_token(args: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["enroll", *args, "--config", str(tmp_path / "a.toml")]) == 2
    assert words in capsys.readouterr().err


def test_a_place_that_cannot_be_written_keeps_the_token(plane: FakeControlPlane, tmp_path: Path) -> None:
    tmp_path.joinpath("file").touch()
    assert main(["enroll", "--endpoint", plane.url, "--token", "one-use", "--config", str(tmp_path / "file" / "a.toml")]) == 2
    assert plane.tokens


# --- status ---------------------------------------------------------------------------------------------------


def test_status_before_the_first_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, **GOOD, data_dir="data")
    assert main(["status", "--config", str(path)]) == 1
    assert "not running" in capsys.readouterr().out
    assert main(["status", "--json", "--config", str(path)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["node_id"], found["running"], found["ranks"]) == (7, False, [])
    assert not (tmp_path / "data").exists()


def test_status_says_na_where_a_card_does_not_tell() -> None:
    found = {
        "node": "n",
        "node_id": 7,
        "endpoint": "https://lab:443",
        "running": True,
        "pid": 5,
        "answered_at": 90.0,
        "gpus": [{"uuid": "A", "index": 0, "model": "iGPU"}, {"uuid": "B", "index": 1, "model": "4090", "total_mib": 24564}],
        "status": [{"uuid": "A"}, {"uuid": "B", "error": "lost"}],
        "ranks": [],
    }
    lines = status_lines(found, now=100.0)
    assert "last answer 10 s ago" in lines[2]
    assert lines[4] == "  0  iGPU  n/a / n/a MiB, n/a %, n/a °C"
    assert lines[5] == "  1  4090  lost"


def test_the_agent_starts_without_heavy_imports() -> None:
    heavy = ("django", "httpx", "typer", "rich", "pynvml", "asyncio", "websocket")
    code = f"import agent.main, agent.runner, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == "[]"


# --- the job's environment ------------------------------------------------------------------------------------

CARDS = (
    GpuInfo(uuid="GPU-4090", index=0, model="RTX 4090", vendor="nvidia", pci_bus_id="00000000:41:00.0"),
    GpuInfo(uuid="GPU-4060", index=1, model="RTX 4060", vendor="nvidia", pci_bus_id="00000000:01:00.0"),
    GpuInfo(uuid="ARC-770", index=2, model="Arc A770", vendor="intel", pci_bus_id="00000000:02:00.0"),
)


def env_of(*uuids: str, cuda_visible: str = "index", agent_env: dict[str, str] | None = None, **fields: object) -> dict[str, str]:
    grants = tuple(GpuGrant(uuid=u, mib=4096) for u in uuids)
    spec = RankSpec(job=1, index=0, argv=("true",), gpus=grants, **fields)  # type: ignore[arg-type]
    return environment(rank="1.1.0", spec=spec, gpus=CARDS, cuda_visible=cuda_visible, artifacts="/a", agent_env=agent_env or {})


@pytest.mark.parametrize(
    ("uuids", "mode", "visible"),
    [
        (("GPU-4090",), "index", "1"),  # CUDA counts by the bus: 01 is the 4060
        (("GPU-4060",), "index", "0"),
        (("GPU-4090", "GPU-4060"), "index", "1,0"),  # in placement order
        (("GPU-4090", "GPU-4060"), "uuid", "GPU-4090,GPU-4060"),
        (("GPU-4060", "GPU-4060"), "index", "0"),  # each card once
        (("ARC-770",), "index", ""),  # no CUDA card
        ((), "index", ""),
    ],
)
def test_cards_reach_the_job_in_placement_order(uuids: tuple[str, ...], mode: str, visible: str) -> None:
    env = env_of(*uuids, cuda_visible=mode)
    assert env["CUDA_VISIBLE_DEVICES"] == visible
    assert env["NEBULA_GPU_LIST"] == ",".join(dict.fromkeys(uuids))
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_nothing_of_the_agent_leaks() -> None:
    agent_env = {
        "PATH": "/bin",
        "HOME": "/root",
        "LANG": "zh_CN.UTF-8",
        "NEBULA_AGENT_CREDENTIAL_FILE": "/x",
        "NEBULA_SECRET_KEY": "s",
        "AWS_SECRET_ACCESS_KEY": "s",
        "PYTHONPATH": "/agent",
        "CUDA_VISIBLE_DEVICES": "3",
        "JOURNAL_STREAM": "8:1",
    }
    env = env_of(agent_env=agent_env)
    assert (env["PATH"], env["HOME"], env["LANG"], env["CUDA_VISIBLE_DEVICES"]) == ("/bin", "/root", "zh_CN.UTF-8", "")
    assert set(env) <= {
        "PATH",
        "HOME",
        "LANG",
        "NEBULA_GPU_LIST",
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "NEBULA_RANK",
        "NEBULA_ARTIFACTS",
    }


def test_the_users_values_win_except_for_the_cards() -> None:
    env = env_of(
        env={"PATH": "/mine", "LANG": "C", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "NEBULA_GPU_LIST": "x", "NEBULA_RESUME_FROM": "/c"}
    )
    assert (env["PATH"], env["LANG"], env["NEBULA_RESUME_FROM"]) == ("/mine", "C", "/c")
    assert (env["CUDA_DEVICE_ORDER"], env["NEBULA_GPU_LIST"]) == ("PCI_BUS_ID", "")


def test_a_bare_agent_environment_still_gives_a_path_and_a_home() -> None:
    env = env_of()
    assert "/usr/bin" in env["PATH"]
    assert env["HOME"]


def test_a_mapped_user_has_that_users_home() -> None:
    env = env_of(unix_user="root", agent_env={"HOME": "/agents", "USER": "agent", "TMPDIR": "/agents/tmp"})
    assert (env["HOME"], env["USER"], env["LOGNAME"]) == ("/root", "root", "root")
    assert "TMPDIR" not in env


def test_one_account_for_all_jobs_has_its_own_home_too() -> None:
    spec = RankSpec(job=1, index=0, argv=("true",))
    env = environment(
        rank="1.1.0", spec=spec, gpus=CARDS, cuda_visible="index", artifacts="/a", job_account="root", agent_env={"HOME": "/agents"}
    )
    assert (env["HOME"], env["USER"]) == ("/root", "root")


def test_temporary_files_go_to_the_jobs_own_folder_unless_it_names_another() -> None:
    def env(temporary: str | None, **own: str) -> dict[str, str]:
        spec = RankSpec(job=1, index=0, argv=("true",), env=own)
        return environment(
            rank="1.1.0", spec=spec, gpus=(), cuda_visible="index", artifacts="/a", temporary=temporary, agent_env={"TMPDIR": "/agents"}
        )

    assert (env("/jobs/1.1.0/tmp")["TMPDIR"], env("/jobs/1.1.0/tmp")["TMUX_TMPDIR"]) == ("/jobs/1.1.0/tmp", "/jobs/1.1.0/tmp")
    assert env("/jobs/1.1.0/tmp", TMPDIR="/scratch")["TMPDIR"] == "/scratch"
    assert env(None)["TMPDIR"] == "/agents"


def test_folders_of_jobs_and_folders_to_hide_count_from_the_files_own_place(tmp_path: Path) -> None:
    lab = {"endpoint": "https://lab.example", "node_id": 7}
    path = config_file(tmp_path, **lab, identity="shared", job_account="nebula-job", jobs_dir="scratch", hidden_dirs="/srv/grid:data")
    config = config_load(path, {})
    assert (config.identity, config.job_account, config.jobs_dir) == ("shared", "nebula-job", tmp_path / "scratch")
    assert config.hidden_dirs == (Path("/srv/grid"), tmp_path / "data")
    assert config_load(config_file(tmp_path, **lab), {}).hidden_dirs == ()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"env": {"A=B": "x"}}, "spec"),
        ({"env": {"": "x"}}, "spec"),
        ({"env": {"A": "x\0y"}}, "spec"),
        ({"unix_user": "no-such-user"}, "user"),
    ],
)
def test_what_cannot_be_given_to_a_program_is_refused(fields: dict[str, object], kind: str) -> None:
    with pytest.raises(SpecError) as caught:
        env_of(**fields)  # type: ignore[arg-type]
    assert caught.value.kind == kind


def test_a_card_that_is_not_seen_is_refused() -> None:
    with pytest.raises(SpecError, match="GPU-gone") as caught:
        env_of("GPU-gone")
    assert caught.value.kind == "gpu"


# --- the documentation cannot rot -----------------------------------------------------------------------------

DOC = (ROOT / "docs" / "agent.md").read_text(encoding="utf-8")


def test_the_scenario_in_the_documentation_is_one() -> None:
    example = re.search(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert example is not None
    assert len(scenario_parse(json.loads(example.group(1))).devices) == 3


@pytest.mark.parametrize("key", config_module._KEYS)
def test_every_key_is_documented_with_its_variable(key: str) -> None:
    variable = config_module._ENV.get(key, f"NEBULA_AGENT_{key.upper()}")
    assert f"| `{key}` | `{variable}` |" in DOC


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_documented(fault: str) -> None:
    assert f"| `{fault}` |" in DOC
