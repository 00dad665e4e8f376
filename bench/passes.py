"""What one scheduling pass costs: ``plan()`` alone over a synthetic backlog on a busy cluster.

python -m bench.passes --jobs 10000 --cards 1000 [--seed 1] [--repeat N] [--referee pass_bench.py] [--json]

Cluster: nodes of 8 cards (of 4 below 40 cards) of 24576 MiB with telemetry; of the cards 60 % are held by whole-card jobs and 15 %
hold one slice. Queue: 70 % want one card (40 % of those a part of it), 20 % two or four, 10 % all of a node.
Times are the least of the repeats, in ms: of as many as take a second, 3 to 100, or of N. (On a machine that others work on too a
few short ones may all meet a bad moment.) Each repeat plans a snapshot that was built anew, and building it is not timed. After each
repeat the yardstick (yardstick.py) is timed over the same snapshot, and ``indexed`` of a referee's pass_bench.py over its own such
backlog, if that is at hand; the ratios are to these.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import time
from pathlib import Path
from types import ModuleType

from bench import yardstick
from jobs.scheduler import Gpu, Job, Node, Policy, Request, Running, Slice, Snapshot, plan

CARD_MIB = 24_576
SHARES_MIB = (5_400, 7_800, 11_500, 12_288, 16_000)
LIMITS_S = (900, 3_600, 14_400, 86_400)
REPEATS = (3, 100)  # at least, at most
ENOUGH_S = 1.0
REFEREE = Path(__file__).parents[2] / "shared" / "tools" / "referee" / "pass_bench.py"


def backlog(*, jobs: int, cards: int, seed: int) -> Snapshot:
    """A busy cluster and its queue; the same for the same seed."""
    rng = random.Random(seed)
    per_node = 8 if cards >= 40 else min(4, cards)
    nodes: list[Node] = []
    slices: list[Slice] = []
    running: list[Running] = []
    for first in range(0, cards, per_node):
        gpus = tuple(
            Gpu(
                id=card + 1,
                uuid=f"GPU-{card:08d}",
                index=card - first,
                model="NVIDIA GeForce RTX 4090",
                total_mib=CARD_MIB,
                compute_capability="8.9",
                temp_c=rng.randrange(30, 80),
                util_pct=rng.randrange(0, 101),
                health=rng.choice((100, 100, 100, 80)),
                pcie_width=rng.choice((16, 16, 8)),
            )
            for card in range(first, min(first + per_node, cards))
        )
        nodes.append(Node(id=len(nodes) + 1, name=f"node{len(nodes) + 1:04d}", gpus=gpus, cpu_cores=64))
        for gpu in gpus:
            dice = rng.random()
            if dice >= 0.75:
                continue
            whole = dice < 0.6
            part = Slice(gpu=gpu.id, mib=CARD_MIB if whole else rng.choice(SHARES_MIB[:4]), exclusive=whole, job=1_000_000 + gpu.id)
            slices.append(part)
            started = -rng.uniform(0, 3_600)
            limit = rng.choice((*LIMITS_S, None))
            running.append(Running(job=1_000_000 + gpu.id, user=rng.randrange(40), slices=(part,), started=started, time_limit_s=limit))
    # Equal requests are one object, as in a snapshot that is read from the database.
    requests: dict[Request, Request] = {}
    queue = [_job(rng, number + 1, per_node, requests) for number in range(jobs)]
    return Snapshot(now=0.0, nodes=tuple(nodes), jobs=queue, slices=tuple(slices), running=tuple(running))


def _job(rng: random.Random, number: int, per_node: int, requests: dict[Request, Request]) -> Job:
    dice = rng.random()
    if dice < 0.28:
        request = Request(gpu_mem_mib=rng.choice(SHARES_MIB))
    elif dice < 0.7:
        request = Request()
    elif dice < 0.9:
        request = Request(gpu_count=min(rng.choice((2, 4)), per_node))
    else:
        request = Request(gpu_count=per_node)
    request = requests.setdefault(request, request)
    return Job(id=number, request=request, submitted=rng.random(), user=rng.randrange(40), time_limit_s=rng.choice(LIMITS_S))


def referee_load(path: Path) -> ModuleType | None:
    """A file with ``make(jobs, cards)`` and ``indexed(…)``; None if there is none."""
    spec = importlib.util.spec_from_file_location("pass_bench", path) if path.is_file() else None
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(*, jobs: int, cards: int, seed: int, repeat: int | None = None, referee: Path = REFEREE) -> dict[str, float | int]:
    """Plan the backlog ``repeat`` times (None: until that took ENOUGH_S): the least time in ms, what came of it, and the ratios to what
    else was timed."""
    least, most = (repeat, repeat) if repeat is not None else REPEATS
    times: list[float] = []
    bare: list[float] = []
    indexed: list[float] = []
    other = referee_load(referee)
    placed = 0
    while len(times) < least or (len(times) < most and sum(times) < ENOUGH_S):
        snapshot = backlog(jobs=jobs, cards=cards, seed=seed)
        began = time.perf_counter()
        result = plan(snapshot, Policy())
        times.append(time.perf_counter() - began)
        placed = len(result.placements)
        plain = yardstick.bare_of(snapshot)
        began = time.perf_counter()
        yardstick.place(plain)
        bare.append(time.perf_counter() - began)
        del snapshot, result, plain
        if other is not None:
            made = other.make(jobs, cards)
            began = time.perf_counter()
            other.indexed(*made)
            indexed.append(time.perf_counter() - began)
    found: dict[str, float | int] = {"jobs": jobs, "cards": cards, "seed": seed, "repeat": len(times), "placed": placed}
    found |= {"ms": round(min(times) * 1e3, 3), "yardstick_ms": round(min(bare) * 1e3, 3), "ratio": round(min(times) / min(bare), 2)}
    if indexed:
        found |= {"indexed_ms": round(min(indexed) * 1e3, 3), "indexed_ratio": round(min(times) / min(indexed), 2)}
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.passes", description="What one scheduling pass costs.")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--cards", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, help="how often (default: until all passes together took a second, 3 to 100 times)")
    parser.add_argument("--referee", type=Path, default=REFEREE, help="a pass_bench.py to compare with, if there is one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    for name in ("jobs", "cards", "repeat"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name} is {value}; it must be at least 1.")
    result = measure(jobs=args.jobs, cards=args.cards, seed=args.seed, repeat=args.repeat, referee=args.referee)
    if args.json:
        print(json.dumps(result))
    else:
        ratios = f"{result['ratio']} × the yardstick's {result['yardstick_ms']} ms"
        if "indexed_ms" in result:
            ratios += f", {result['indexed_ratio']} × indexed's {result['indexed_ms']} ms"
        print(f"{result['jobs']} jobs × {result['cards']} cards: {result['ms']} ms, {result['placed']} placed; {ratios}")


if __name__ == "__main__":
    main()
