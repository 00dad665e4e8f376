"""How long jobs wait and how fairly cards are shared under the default policy, on made workloads: ratios to a plain fair share.

python -m bench.waits [--seeds 4] [--jobs 1500] [--no-estimates] [--json]

The *anchor* is what many sites run: past use decides whose turn it is, the head is kept for (EASY backfill), and only typed limits
say when a job ends. Here that is the same scheduler with everything else of the default policy turned off. Two clusters: ``lab``
(5 nodes of 4 cards, whole cards) and ``parts`` (2 nodes of 8 cards, half of the one-card jobs want a part). Nothing is timed: the
figures change with the scheduler alone, not with the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace

from jobs.scheduler import Policy
from jobs.scheduler.clusters import cluster_read
from jobs.scheduler.measures import Measures
from jobs.scheduler.scenario import Scenario, scenario_of, scenario_run
from jobs.scheduler.synthetic import workload_make
from jobs.scheduler.workload import Workload

LOAD = 0.9
#: name → cards of each node, share of the one-card jobs that want a part
CLUSTERS = {"lab": ((4, 4, 4, 4, 4), 0.0), "parts": ((8, 8), 0.5)}
MEASURES = {"avg": "wait_avg_s", "p99": "wait_p99_s", "dev": "maxmin_dev"}
NEVER_S = 1e12
ANCHOR = Policy(
    weight_power=1.0,
    weight_per_job=0.0,
    load_power=0.0,
    short_floor_s=NEVER_S,  # all jobs count as equally short
    age_fold_s=NEVER_S,
    trust=0.0,
    borrow_s=NEVER_S,
    patience_s=NEVER_S,
)


def scenario_made(name: str, *, jobs: int, seed: int, limits: bool = True) -> Scenario:
    """The same jobs on the same cards for the same seed."""
    nodes, parts = CLUSTERS[name]
    arrivals = workload_make(jobs=jobs, cards=sum(nodes), per_node=max(nodes), seed=seed, load=LOAD, parts=parts)
    if not limits:
        arrivals = [replace(item, job=replace(item.job, time_limit_s=None)) for item in arrivals]
    return scenario_of(Workload(arrivals=tuple(arrivals)), cluster_read(json.dumps({"nodes": nodes})))


def ratios(ours: Measures, anchor: Measures) -> dict[str, float]:
    """Ours ÷ the anchor's; below 1 is better. What neither has to tell counts as the same."""
    found = {}
    for name, field in MEASURES.items():
        first, second = getattr(ours, field), getattr(anchor, field)
        found[name] = first / second if first is not None and second else 1.0
    return found


def measure(*, seeds: int, jobs: int, limits: bool = True) -> dict[str, float]:
    """``waits_lab_avg`` …: mean ratios over the seeds."""
    found: dict[str, float] = {}
    for name in CLUSTERS:
        runs = []
        for seed in range(1, seeds + 1):
            scenario = scenario_made(name, jobs=jobs, seed=seed, limits=limits)
            ours, anchor = (scenario_run(scenario, policy).judged.measures for policy in (Policy(), ANCHOR))
            runs.append(ratios(ours, anchor))
        found |= {f"waits_{name}_{what}": round(statistics.fmean(run[what] for run in runs), 4) for what in MEASURES}
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.waits", description="Waits and fairness as ratios to a plain fair share.")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1_500)
    parser.add_argument("--no-estimates", action="store_true", help="no job has a time limit")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    for name in ("seeds", "jobs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be at least 1.")
    found = measure(seeds=args.seeds, jobs=args.jobs, limits=not args.no_estimates)
    print(json.dumps(found) if args.json else "\n".join(f"{name} {value:.3f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
