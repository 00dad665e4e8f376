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
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.scheduler import Policy, Started, Trace, never_reason, simulate
from jobs.scheduler.clusters import MILLI_CARD_MIB, MOST_CARDS, cluster_read
from jobs.scheduler.order import ORDERS
from jobs.scheduler.workload import workload_read


def alloc_text(run: Started, *, by_card: bool) -> str:
    parts = []
    for rank in run.placement.ranks:
        if by_card:
            parts += [f"n{rank.node}.g{grant.gpu % MOST_CARDS}:{MILLI_CARD_MIB if grant.exclusive else grant.mib}" for grant in rank.grants]
        else:
            parts.append(f"n{rank.node}:{len(rank.grants)}")
    return ";".join(parts)


def replay(workload: Path, cluster: Path, *, estimates: bool, policy: Policy) -> tuple[Trace, bool]:
    """(what happened, whether allocations are by card).

    Raises WorkloadError for what can't be read, ValueError for a job that never fits.
    """
    pool = cluster_read(cluster.read_text())
    with workload.open(newline="") as lines:
        arrivals = workload_read(lines, pool, limits=estimates).arrivals
    # Thousandths of a card, not slices with a least size: the workloads ask for those.
    exact = replace(policy, slicing_rules=False)
    for request in dict.fromkeys(item.job.request for item in arrivals):
        never = never_reason(request, pool.snapshot.nodes, exact)
        if never is not None:
            raise ValueError(f"A job of {request.gpu_count} cards never fits: {never.code} {dict(never.params)}")
    by_card = any(item.job.request.gpu_mem_mib is not None for item in arrivals)
    return simulate(arrivals, pool.snapshot, exact), by_card


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
