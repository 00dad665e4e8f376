"""The main road, on the real processes: submit, place, run, log, stop, finish."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import PATIENCE_S, ROOT, Grid, wait_for
from client.errors import NebulaError
from client.sdk import NebulaClient
from tests.e2e.helpers import log_of, running

TRAIN = [sys.executable, "examples/train_digits.py"]


def losses_of(text: str) -> list[float]:
    return [float(line.split("loss")[1].split()[0]) for line in text.splitlines() if line.startswith("epoch")]


def test_it_trains_and_streams_losses_while_it_runs(grid: Grid, client: NebulaClient, tmp_path: Path) -> None:
    seen_first = tmp_path / "seen"  # the program does not end before its first loss was read
    script = '"$@" && while [ ! -e "$0" ]; do sleep 0.1; done'
    argv = ["/bin/sh", "-c", script, str(seen_first), *TRAIN, "--epochs", "8", "--sleep", "0.1"]
    done = grid.ctl("submit", "--json", "--name", "hello", "--gpu-mem", "4G", "--", *argv)
    assert done.returncode == 0, done.stderr
    job_id = json.loads(done.stdout)["id"]
    env = {**grid.env, "NEBULA_CONFIG": str(grid.profile_file)}
    program = Path(sys.executable).with_name("nebula-ctl")
    follow = subprocess.Popen([str(program), "logs", "-f", str(job_id)], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    assert follow.stdout is not None
    seen = ""
    for line in follow.stdout:
        seen += line
        if line.startswith("epoch"):
            seen_first.touch()
    follow.stdout.close()
    assert follow.wait(timeout=PATIENCE_S) == 0
    job = client.job_get(job_id)
    assert job["state"] == "SUCCEEDED"
    losses = losses_of(seen)
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 4
    assert seen == log_of(client, job_id), "what was followed is what was kept"


def test_it_saves_on_a_polite_stop_and_goes_on_from_there(
    grid: Grid, client: NebulaClient, finished: Callable[..., Any], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "digits.npz"
    argv = [*TRAIN, "--epochs", "500", "--sleep", "0.1"]
    job = client.job_submit(argv=argv, gpu_mem="4G", workdir=str(ROOT), checkpoint=str(checkpoint))
    wait_for(lambda: len(losses_of(log_of(client, job["id"]))) >= 3, what="three epochs are done")
    client.job_cancel(job["id"])
    ended = finished(job["id"])
    text = log_of(client, job["id"])
    assert ended["state"] == "CANCELLED"
    assert f"asked to stop: saved {checkpoint}" in text
    last = len(losses_of(text))
    # A requeue sets the variable; a new job may not, so env(1) does it here.
    argv = ["/usr/bin/env", f"NEBULA_RESUME_FROM={checkpoint}", *TRAIN, "--epochs", str(last + 2), "--sleep", "0"]
    again = client.job_submit(argv=argv, gpu_mem="4G", workdir=str(ROOT))
    assert finished(again["id"])["state"] == "SUCCEEDED"
    text = log_of(client, again["id"])
    assert f"resumed after epoch {last}" in text
    assert len(losses_of(text)) == 2


# --- placement ----------------------------------------------------------------------------------------------------


SLEEP = ["/bin/sleep", "600"]


@pytest.fixture
def one_node(grid: Grid, client: NebulaClient) -> str:
    """The name of the only node that takes work."""
    first, *others = sorted(node["name"] for node in client.node_list())
    for name in others:
        client.node_drain(name, reason="a test wants one node")
    return first


def cards_of(job: Any) -> list[tuple[str, int, bool]]:
    return [(gpu["uuid"], gpu["mib"], gpu["exclusive"]) for rank in job["attempt"]["ranks"] for gpu in rank["gpus"]]


def test_24g_is_a_whole_card_that_reports_24564_mib(one_node: str, client: NebulaClient) -> None:
    job = client.job_submit(argv=SLEEP, gpu_mem="24G", constraints={"model": "Simulated RTX 4090"})
    ((_, mib, exclusive),) = cards_of(running(client, job["id"]))
    assert (mib, exclusive) == (24564, True)


def test_12g_fits_twice_on_a_card_that_reports_24564_mib(one_node: str, client: NebulaClient) -> None:
    jobs = [client.job_submit(argv=SLEEP, gpu_mem="12G", constraints={"model": "Simulated RTX 4090"}) for _ in range(2)]
    cards = [cards_of(running(client, job["id"]))[0] for job in jobs]
    assert len({uuid for uuid, _, _ in cards}) == 1
    # 12288 + 12288 = 24576 > 24564: the second is shrunk by the 12 MiB between nominal and real.
    assert sorted(mib for _, mib, _ in cards) == [12276, 12288]


def test_4g_fits_four_times_on_a_card_that_reports_16376_mib(one_node: str, client: NebulaClient) -> None:
    jobs = [client.job_submit(argv=SLEEP, gpu_mem="4G", constraints={"model": "Simulated RTX 4080"}) for _ in range(4)]
    cards = [cards_of(running(client, job["id"]))[0] for job in jobs]
    assert len({uuid for uuid, _, _ in cards}) == 1
    assert sorted(mib for _, mib, _ in cards) == [4088, 4096, 4096, 4096]


def test_what_no_card_can_hold_is_refused_with_the_numbers(grid: Grid, client: NebulaClient) -> None:
    with pytest.raises(NebulaError) as caught:
        client.job_submit(argv=SLEEP, gpu_mem="200G")
    assert caught.value.code == "never_fits"
    assert caught.value.status == 400
    assert "200 GiB" in caught.value.message
    assert "40 GiB" in caught.value.message


#: Of jobs/scheduler/reasons.py: the only card that would do is held.
REASONS = {"gpu_memory", "whole_card_busy", "gpu_count"}


def test_what_must_wait_says_why(one_node: str, client: NebulaClient) -> None:
    only = {"model": "Simulated RTX 4090"}
    first = client.job_submit(argv=SLEEP, gpu_mem="24G", constraints=only)
    running(client, first["id"])
    second = client.job_submit(argv=SLEEP, gpu_mem="8G", constraints=only)
    why = wait_for(
        lambda: (found := client.job_why(second["id"]))["code"] in REASONS and found,
        what="the pass gave its reason",
    )
    assert client.job_get(second["id"])["state"] == "WAITING"
    assert why["text"]
    assert any(character.isdigit() for character in why["text"]), why["text"]
    client.job_cancel(first["id"])
    running(client, second["id"])


# --- stopping -----------------------------------------------------------------------------------------------------


def test_a_program_without_a_handler_gets_sigterm_at_once(grid: Grid, client: NebulaClient, finished: Callable[..., Any]) -> None:
    job = client.job_submit(argv=SLEEP, gpu_mem="4G", grace_s=300)  # longer than anybody here waits
    running(client, job["id"])
    client.job_cancel(job["id"])
    ended = finished(job["id"])
    assert ended["state"] == "CANCELLED"
    assert ended["attempt"]["ranks"][0]["exit_signal"] == 15


def test_a_setsid_child_does_not_survive_a_cancel(grid: Grid, client: NebulaClient, finished: Callable[..., Any]) -> None:
    script = "setsid sleep 4711 & echo child $!; exec sleep 4711"
    job = client.job_submit(argv=["/bin/sh", "-c", script], gpu_mem="4G")
    text = wait_for(lambda: "child" in (found := log_of(client, job["id"])) and found, what="the child's number is printed")
    child = int(text.split()[1])
    assert Path(f"/proc/{child}").exists()
    client.job_cancel(job["id"])
    finished(job["id"])
    wait_for(lambda: not _is_alive(child), what="the setsid child is gone")


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.soak
def test_a_12_s_checkpoint_handler_under_bash_finishes_inside_15_s(
    grid: Grid, client: NebulaClient, finished: Callable[..., Any], tmp_path: Path
) -> None:
    saved = tmp_path / "checkpoint"
    program = (
        "import os, pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    os.write(1, b'saving\\n'); time.sleep(12)\n"
        f"    pathlib.Path({str(saved)!r}).write_text('whole'); os.write(1, b'saved\\n'); sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, save); os.write(1, b'ready\\n')\n"
        "while True: time.sleep(0.1)\n"
    )
    file = tmp_path / "train.py"
    file.write_text(program)
    # bash forks here (the last command is not the only one): the handler lives in a child of the rank's main process.
    argv = ["/bin/bash", "-c", f"{sys.executable} {file}; echo wrapper saw $?"]
    job = client.job_submit(argv=argv, gpu_mem="4G", grace_s=15, checkpoint=str(saved))
    wait_for(lambda: "ready" in log_of(client, job["id"]), what="the handler is set")
    client.job_cancel(job["id"])
    ended = finished(job["id"])
    assert ended["state"] == "CANCELLED"
    assert saved.read_text() == "whole"
    assert "saved" in log_of(client, job["id"])


# --- two users ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="package")
def tokens(shared_grid: Grid) -> dict[str, str]:
    """Two ordinary users and their tokens."""
    script = (
        "from quotas.services import user_create; from quotas.tokens import token_create; import json\n"
        "users = {name: user_create(email=name + '@example.org') for name in ('anna', 'bert')}\n"
        "print('TOKENS ' + json.dumps({name: token_create(user=user, name='test')[1] for name, user in users.items()}))"
    )
    out = shared_grid.manage("shell", "-v", "0", "-c", script)
    found: dict[str, str] = json.loads(out.split("TOKENS ")[1].splitlines()[0])
    return found


def test_neither_user_sees_the_others_job_by_any_route(grid: Grid, tokens: dict[str, str], finished: Callable[..., Any]) -> None:
    with grid.client(tokens["anna"]) as anna, grid.client(tokens["bert"]) as bert:
        _walk_all_routes(grid, anna, bert, tokens, finished)


def _walk_all_routes(grid: Grid, anna: NebulaClient, bert: NebulaClient, tokens: dict[str, str], finished: Callable[..., Any]) -> None:
    import httpx

    job = anna.job_submit(
        argv=["/bin/sh", "-c", "echo secret of anna; echo kept > $NEBULA_ARTIFACTS/model.txt"], gpu_mem="4G", name="anna-job"
    )
    finished(job["id"])
    wait_for(lambda: anna.job_artifacts(job["id"]), what="the artefact arrived")
    (artifact,) = anna.job_artifacts(job["id"])
    places = {"id": job["id"], "pk": job["id"], "job_id": job["id"], "rank": 0, "name": artifact["name"]}
    schema = httpx.get(f"{grid.url}/api/v1/schema", headers={"Authorization": f"Bearer {tokens['anna']}"}).raise_for_status().json()
    checked = []
    for path, methods in schema["paths"].items():
        if "/jobs/{" not in path:
            continue
        url = grid.url + path
        for place, value in places.items():
            url = url.replace("{" + place + "}", str(value))
        assert "{" not in url, f"the test does not know the parameters of {path}"
        for method in sorted(set(methods) & {"get", "post", "put", "patch", "delete"}):
            for address in (url, url + "/download") if path.endswith("/logs") else (url,):
                answer = httpx.request(method, address, headers={"Authorization": f"Bearer {tokens['bert']}"}, follow_redirects=True)
                assert answer.status_code == 404, f"{method} {address} → {answer.status_code}"
                assert "anna" not in answer.text
                if method == "get":
                    own = httpx.get(address, headers={"Authorization": f"Bearer {tokens['anna']}"}, follow_redirects=True)
                    # A job that waits no more has no alternatives; to the other it isn't even there.
                    expected = 409 if path.endswith("/alternatives") else 200
                    assert own.status_code == expected, f"the owner: {method} {address} → {own.status_code}"
                checked.append(f"{method} {path}")
    assert len({path.partition(" ")[2] for path in checked}) >= 6, checked
    for filters in ({}, {"owner": "all"}, {"q": "anna"}):
        assert job["id"] not in [row["id"] for row in bert.jobs(**filters)]
    assert job["id"] in [row["id"] for row in anna.jobs()]


def test_a_socket_tells_each_user_of_own_jobs_only(grid: Grid, tokens: dict[str, str], finished: Callable[..., Any]) -> None:
    import websocket

    url = f"ws://127.0.0.1:{grid.port}/ws/live"
    sockets = {
        name: websocket.create_connection(url, header=[f"Authorization: Bearer {token}"], timeout=PATIENCE_S)
        for name, token in tokens.items()
    }
    try:
        with grid.client(tokens["anna"]) as anna:
            job = anna.job_submit(argv=["/bin/true"], gpu_mem="4G", hold=True)
        topic = f"job.{job['id']}"
        answers = {}
        for name, socket in sockets.items():
            socket.send(json.dumps({"subscribe": [topic]}))
            while "refused" not in (answer := json.loads(socket.recv())):
                pass
            answers[name] = answer
        assert topic in answers["anna"]["topics"]
        assert answers["anna"]["refused"] == []
        assert topic not in answers["bert"]["topics"]
        assert answers["bert"]["refused"] == [topic]
        with grid.client(tokens["anna"]) as anna:
            anna.job_release(job["id"])
        told = json.loads(sockets["anna"].recv())
        assert str(job["id"]) in json.dumps(told)
        finished(job["id"])
        sockets["bert"].settimeout(1.0)
        with pytest.raises(websocket.WebSocketTimeoutException):
            sockets["bert"].recv()
    finally:
        for socket in sockets.values():
            socket.close()


def test_a_socket_without_a_token_or_from_a_foreign_page_is_refused(grid: Grid) -> None:
    import websocket

    def connect_and_ask(headers: list[str]) -> None:
        socket = websocket.create_connection(f"ws://127.0.0.1:{grid.port}/ws/live", header=headers, timeout=PATIENCE_S)
        socket.send('{"subscribe": ["pool"]}')
        if not socket.recv():  # how a close frame arrives
            raise websocket.WebSocketConnectionClosedException("closed")

    for headers in ([], [f"Origin: http://evil.example:{grid.port}"], ["Authorization: Bearer ngt_wrong"]):
        with pytest.raises((websocket.WebSocketException, OSError)):
            connect_and_ask(headers)


def test_the_password_is_in_its_file_and_nowhere_else(grid: Grid) -> None:
    file = grid.data / "admin-password"
    password = file.read_text().strip()
    assert len(password) >= 12
    assert file.stat().st_mode & 0o777 == 0o600
    for log in (grid.data / "run").glob("*.log*"):
        assert password not in log.read_text(errors="replace")
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                assert password.encode() not in (place / "cmdline").read_bytes()
            except OSError:
                continue
