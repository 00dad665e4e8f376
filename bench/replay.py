"""Replays a workload through ``plan()`` and writes when and where each job started.

python -m bench.replay WORKLOAD.csv CLUSTER.json --out sched.csv [--no-estimates] [--policy NAME]

WORKLOAD.csv: id,tenant,submit,duration,est,num_gpu,milli (seconds; milli = thousandths of a card, 1000 = whole; est = the limit
that its user typed). CLUSTER.json: {"nodes": [cards, …]}. ``duration`` only ends jobs: the policy never sees it.
sched.csv: id,start,alloc; alloc is ``n3:4`` (4 cards of node 3), ``n0:8;n1:8`` (several nodes) or, where the workload has parts
of cards, ``n2.g1:470`` for each card.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.scheduler import Gpu, Job, Node, Policy, Request, Snapshot
from jobs.scheduler.order import ORDERS
from jobs.scheduler.simulate import Arrival, Started, Trace, simulate

CARD_MIB = 1_000  # so that a thousandth of a card is one MiB


def cluster_of(cards: list[int]) -> Snapshot:
    """An empty cluster; node n has cards n × 1000 …"""
    nodes = []
    for number, count in enumerate(cards):
        gpus = tuple(
            Gpu(id=number * 1000 + index, uuid=f"GPU-{number}-{index}", index=index, model="card", total_mib=CARD_MIB, nominal_mib=CARD_MIB)
            for index in range(count)
        )
        nodes.append(Node(id=number, name=f"n{number}", gpus=gpus))
    return Snapshot(now=0.0, nodes=tuple(nodes), jobs=())


def request_of(cards: int, milli: int, nodes: list[int]) -> Request:
    """Whole cards on one node where one is large enough, else spread evenly over as few nodes as will do.

    Raises ValueError for a job that the cluster can never hold.
    """
    if milli < 1000:
        return Request(gpu_count=cards, gpu_mem_mib=milli)
    for count in range(1, len(nodes) + 1):
        if cards % count == 0 and sum(have >= cards // count for have in nodes) >= count:
            return Request(gpu_count=cards, nodes=count)
    raise ValueError(f"A job of {cards} cards fits on no number of nodes of {nodes}.")


def arrivals_read(path: Path, nodes: list[int], *, estimates: bool) -> list[Arrival]:
    """The workload's jobs. Tenants are users, numbered by name."""
    with path.open(newline="") as source:
        rows = list(csv.DictReader(source))
    users = {name: number + 1 for number, name in enumerate(sorted({row["tenant"] for row in rows}))}
    requests: dict[tuple[int, int], Request] = {}
    found = []
    for row in rows:
        size = (int(row["num_gpu"]), int(row["milli"]))
        if size not in requests:
            requests[size] = request_of(*size, nodes)
        limit = max(1, round(float(row["est"]))) if estimates and row.get("est") else None
        job = Job(id=int(row["id"]), request=requests[size], submitted=float(row["submit"]), user=users[row["tenant"]], time_limit_s=limit)
        found.append(Arrival(job=job, seconds=float(row["duration"])))
    return found


def alloc_text(run: Started, *, by_card: bool) -> str:
    parts = []
    for rank in run.placement.ranks:
        if by_card:
            parts += [f"n{rank.node}.g{grant.gpu % 1000}:{CARD_MIB if grant.exclusive else grant.mib}" for grant in rank.grants]
        else:
            parts.append(f"n{rank.node}:{len(rank.grants)}")
    return ";".join(parts)


def replay(workload: Path, cluster: Path, *, estimates: bool, policy: Policy) -> tuple[Trace, bool]:
    """(what happened, whether allocations are by card)."""
    nodes = [int(count) for count in json.loads(cluster.read_text())["nodes"]]
    arrivals = arrivals_read(workload, nodes, estimates=estimates)
    by_card = any(item.job.request.gpu_mem_mib is not None for item in arrivals)
    # Thousandths of a card, not slices with a least size: the workloads ask for those.
    exact = replace(policy, slicing_rules=False)
    return simulate(arrivals, cluster_of(nodes), exact), by_card


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description="Replays a workload through plan().")
    parser.add_argument("workload", type=Path)
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-estimates", action="store_true", help="no job has a time limit")
    parser.add_argument("--policy", choices=ORDERS, default=Policy().order)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=NUMBER", help="another number of the policy")
    args = parser.parse_args(argv)
    policy = Policy(order=args.policy)
    for setting in args.set:
        field, _, number = setting.partition("=")
        if not isinstance(getattr(policy, field, None), float):
            parser.error(f"--set {setting}: the policy has no number of that name.")
        numbers: dict[str, Any] = {field: float(number)}
        policy = replace(policy, **numbers)
    began = time.perf_counter()
    trace, by_card = replay(args.workload, args.cluster, estimates=not args.no_estimates, policy=policy)
    with args.out.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(["id", "start", "alloc"])
        for run in sorted(trace.runs, key=lambda run: run.job):
            writer.writerow([run.job, repr(run.start), alloc_text(run, by_card=by_card)])
    if trace.waiting:
        sys.exit(f"{len(trace.waiting)} jobs never started, the first is {trace.waiting[0]}.")
    waits = [run.start - run.submitted for run in trace.runs]
    mean_h = sum(waits) / max(len(waits), 1) / 3600
    print(f"{len(waits)} jobs, {trace.passes} passes in {time.perf_counter() - began:.1f} s, average wait {mean_h:.2f} h")


if __name__ == "__main__":
    main()
