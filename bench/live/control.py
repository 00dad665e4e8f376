"""What a user waits for, on a real control plane with embedded Redis and five agents of four simulated cards each.

python -m bench.live.control [--latency 200] [--jobs 200] [--json]

idle         ΣPSS and processor share of the whole tree (one agent, as `make run` starts it), nothing to do
latency      sequential API submits of `/bin/sh -c 'date +%s.%N'`, from the 201 to the printed time
throughput   no-op jobs of one card by four API clients, first submit to last final state
sync         a node of 8 cards, unchanged report after unchanged report: time and the web process's CPU of each
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.protocol import EnrolRequest, GpuInfo, GpuStatus, Inventory, IsolationInfo, SyncRequest
from bench.live.grid import Grid, scenario_cards, wait_for
from bench.live.proc import cpu_s, pss_mib, tree

CLIENTS = 4
AGENTS, CARDS = 5, 4
#: What agents that are made up here tell of themselves: jobs of anybody may be placed there.
ISOLATION = IsolationInfo(identity="shared", uid=1500, account="jobs", sandbox="mounts")
SYNC_CARDS = 8


def percentile(values: list[float], share: float) -> float:
    """Nearest rank; ``share`` in 0–1."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def idle_measure(grid: Grid, *, seconds: float) -> dict[str, float]:
    assert grid.process is not None
    pids = tree(grid.process.pid)
    before, began = cpu_s(pids), time.monotonic()
    time.sleep(seconds)
    used = (cpu_s(pids) - before) / (time.monotonic() - began)
    return {"idle_pss_mib": pss_mib(pids), "idle_cpu_pct": 100 * used}


def latency_measure(grid: Grid, *, count: int) -> dict[str, float]:
    starts: list[float] = []
    submits: list[float] = []
    with grid.client() as client:
        for _ in range(count):
            began = time.time()
            job = client.job_submit(argv=["/bin/sh", "-c", "date +%s.%N"], gpu_count=1)
            accepted = time.time()
            submits.append(1000 * (accepted - began))
            # The end is polled for gently: a busy client on the same cores would be measured too.
            while client.job_get(job["id"])["state"] not in ("SUCCEEDED", "FAILED", "CANCELLED"):
                time.sleep(0.03)
            printed = wait_for(lambda job=job: client.job_logs(job["id"])["text"], what=f"the output of job {job['id']}")  # type: ignore[misc]
            starts.append(1000 * (float(printed) - accepted))
    return {
        "start_p50_ms": percentile(starts, 0.5),
        "start_p99_ms": percentile(starts, 0.99),
        "submit_p50_ms": percentile(submits, 0.5),
        "submit_p99_ms": percentile(submits, 0.99),
    }


def throughput_measure(grid: Grid, *, count: int) -> dict[str, float]:
    ids: list[int] = []
    faults: list[BaseException] = []
    began = time.time()

    def submit(share: int) -> None:
        try:
            with grid.client() as client:
                for _ in range(share):
                    ids.append(client.job_submit(argv=["/bin/true"], gpu_count=1)["id"])
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=submit, args=(count // CLIENTS,)) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    submitted = time.time()
    with grid.client() as client:
        open_states = "WAITING,STARTING,RUNNING,STOPPING"
        wait_for(lambda: client.job_list(state=open_states, page_size=1)["count"] == 0, what="all jobs ended", deadline_s=120, every_s=0.25)
        jobs = {job["id"]: job for job in client.jobs()}
    wrong = {pk: jobs[pk]["state"] for pk in ids if jobs[pk]["state"] != "SUCCEEDED"}
    if wrong:
        raise RuntimeError(f"not all succeeded: {wrong}")
    last = max(datetime.fromisoformat(str(jobs[pk]["ended_at"]).replace("Z", "+00:00")).timestamp() for pk in ids)
    return {"jobs_per_s": len(ids) / (last - began), "submits_per_s": len(ids) / (submitted - began)}


def sync_measure(grid: Grid, *, count: int) -> dict[str, float]:
    """The node is made for it and drained before it reports a card, so that it never gets work."""
    with grid.client() as client:
        token = client.node_enroll_token(name="bench-sync")["token"]
    link = http.client.HTTPConnection("127.0.0.1", grid.port, timeout=30)

    def post(path: str, body: dict[str, Any], authorization: str = "") -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": authorization} if authorization else {})
        link.request("POST", f"/api/agent/v1/{path}", json.dumps(body), headers)
        answer = link.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{path}: {answer.status} {text[:300]!r}")
        found: dict[str, Any] = json.loads(text)
        return found

    joined = post("enroll", EnrolRequest(token=token, hostname="bench-sync").to_json())
    with grid.client() as client:
        client.node_drain(joined["name"], reason="bench")
    who = f"Node {joined['node_id']}:{joined['credential']}"
    model: dict[str, Any] = {"model": "Bench", "vendor": "nvidia", "total_mib": 24564, "simulated": True}
    cards = tuple(GpuInfo(uuid=f"GPU-bench-{i}", index=i, **model) for i in range(SYNC_CARDS))
    status = tuple(GpuStatus(uuid=card.uuid, used_mib=100 + i, util_pct=5, temp_c=40, power_w=60) for i, card in enumerate(cards))
    inventory = Inventory(hostname="bench-sync", gpus=cards, simulated=True, isolation=ISOLATION)
    web = [grid.pid("web")]
    times: list[float] = []
    cpu = 0.0
    for seq in range(1, count + 11):
        if seq == 11:  # the first ones carry the inventory and warm caches
            times, cpu = [], cpu_s(web)
        sync = SyncRequest(session="bench", boot_id="bench", seq=seq, inventory=inventory if seq == 1 else None, gpus=status)
        began = time.monotonic()
        post("sync", sync.to_json(), who)
        times.append(1000 * (time.monotonic() - began))
    return {
        "sync_p50_ms": statistics.median(times),
        "sync_p99_ms": percentile(times, 0.99),
        "sync_cpu_ms": 1000 * (cpu_s(web) - cpu) / count,
    }


def measure(*, latency: int, jobs: int, idle_s: float, syncs: int) -> dict[str, float]:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="nebula-bench-") as folder:
        small = Grid(Path(folder) / "idle", agents=1)
        with small.running():
            time.sleep(5)  # what starting up left to do is not idling
            found |= idle_measure(small, seconds=idle_s)
        # The bench is one user who submits more in a minute than a person may.
        free = {"NEBULA_THROTTLE_SUBMIT": "100000/1", "NEBULA_THROTTLE_AGENT": "100000/1"}
        grid = Grid(Path(folder) / "grid", agents=AGENTS, scenario=scenario_cards(count=CARDS), env=free)
        with grid.running():
            found |= latency_measure(grid, count=latency)
            found |= throughput_measure(grid, count=jobs)
            found |= sync_measure(grid, count=syncs)
            grid.stop()
            found["restart_s"] = grid.start()
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.live.control", description="What a user waits for.")
    parser.add_argument("--latency", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds")
    parser.add_argument("--syncs", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    found = measure(latency=args.latency, jobs=args.jobs, idle_s=args.idle, syncs=args.syncs)
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<16} {value:10.1f}")


if __name__ == "__main__":
    main()
