"""What a forecast costs: of a whole queue, and of one more job (a what-if), each in a process of its own as the product makes them.

python -m bench.forecasts [--jobs 1000] [--cards 20 200] [--seed 1] [--repeat 3] [--json]

The queue is that of bench.passes under the default policy; the what-if is of one whole card, submitted last. Times are the least of the
repeats, in seconds of wall clock, the start of the process and what goes to and fro included; nothing is cut off. ``cpu``: processor
time of both simulations together; they run side by side, so that at rest the wall clock shows about half of it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import subprocess
import sys
import time
from dataclasses import replace

from bench.passes import backlog
from jobs.scheduler import Estimate, Job, Policy, Request
from jobs.scheduler.child import Answer, Question
from jobs.scheduler.outlook import QueueOutlook

#: More than any of them takes.
BUDGET_S = 120.0


def ask(question: Question) -> tuple[float, float, Answer]:
    """Seconds until the first answer, processor seconds of all that took part, and the answer."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen([sys.executable, "-m", "jobs.scheduler.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("started without pipes")
        pickle.dump(question, child.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        child.stdin.close()
        answer: Answer = pickle.load(child.stdout)
        took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, answer


def measure(*, jobs: int, cards: int, seed: int, repeat: int) -> dict[str, float | int]:
    policy = Policy()
    queue = backlog(jobs=jobs, cards=cards, seed=seed)
    last = Job(id=jobs + 1, request=Request(), submitted=1.0, user=1, predicted_s=3_600.0)
    more = replace(queue, jobs=[*queue.jobs, last])
    whatifs, forecasts, whatif_cpu, forecast_cpu = [], [], [], []
    known = 0
    for _ in range(repeat):
        seconds, cpu, estimate = ask(Question(snapshot=more, policy=policy, job=last.id, budget_s=BUDGET_S, niceness=0))
        if not isinstance(estimate, Estimate) or estimate.p90 is None:
            raise SystemExit(f"no estimate: {estimate}")
        whatifs.append(seconds)
        whatif_cpu.append(cpu)
        seconds, cpu, told = ask(Question(snapshot=queue, policy=policy, budget_s=BUDGET_S, niceness=0))
        if not isinstance(told, QueueOutlook):
            raise SystemExit(f"no forecast: {told}")
        forecasts.append(seconds)
        forecast_cpu.append(cpu)
        known = sum(one.p90 is not None for one in told.jobs.values())
    return {
        "jobs": jobs,
        "cards": cards,
        "seed": seed,
        "repeat": repeat,
        "whatif_s": round(min(whatifs), 3),
        "forecast_s": round(min(forecasts), 3),
        "whatif_cpu_s": round(min(whatif_cpu), 3),
        "forecast_cpu_s": round(min(forecast_cpu), 3),
        "known": known,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.forecasts", description="What a forecast of a queue, and of one more job, costs."
    )
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--cards", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    for name, least in (("jobs", args.jobs), ("repeat", args.repeat), *(("cards", cards) for cards in args.cards)):
        if least < 1:
            parser.error(f"--{name} is {least}; it must be at least 1.")
    found: dict[str, float] = {}
    for cards in args.cards:
        one = measure(jobs=args.jobs, cards=cards, seed=args.seed, repeat=args.repeat)
        found |= {f"{name}_{cards}_cpu_s": one[f"{name}_cpu_s"] for name in ("whatif", "forecast")}
        if not args.json:
            print(
                f"{one['jobs']} waiting × {cards} cards: what-if {one['whatif_s']} s (cpu {one['whatif_cpu_s']}), "
                f"forecast {one['forecast_s']} s (cpu {one['forecast_cpu_s']}), {one['known']} known"
            )
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
