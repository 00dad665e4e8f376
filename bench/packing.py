"""How well ``plan()`` packs: a long queue, far more than the cluster holds, planned in one call in the order of arrival.

python -m bench.packing NODES.csv PODS.csv [--seeds 10 | --seeds 42-51] [--rules on|off] [--policy NAME] [--json]
python -m bench.packing --made [NODES] [--seeds 3] [--rules on|off] [--policy NAME] [--json]
python -m bench.packing --lab [--seeds 30] [--rules on|off] [--json]

NODES.csv and PODS.csv are in the layout of Alibaba's open-B trace (sn,cpu_milli,memory_mib,gpu,model and
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec). For each seed pods are drawn until
they ask for 130 % of the cards; they come one by one, are placed or passed over, and never leave. Reported: cards asked for by
placed pods ÷ cards there are, when 95, 100, 110 and 130 % have come
(a mean over the seeds), and the processor time of the whole call ÷ pods. A pod's share of a card, in thousandths, is its share of a
card's memory; a card has 24 MiB a thousandth. ``gpu_spec`` names models, parted by ``|``.

``--made``: so many made nodes, and pods that ask for what the open-B trace's do on average (by its authors' statistics): no file is
needed. ``--lab``: 20 cards of 24564 MiB on 5 nodes, memory asked for uniform in 4, 5 … 24 GiB, 130 % demand; reported: memory asked for and
taken ÷ memory there is.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jobs.scheduler import Gpu, Job, Node, Policy, Request, Snapshot, plan

MIB_PER_MILLI = 24
CARD_MIB = 1000 * MIB_PER_MILLI
DEMAND = 1.3
MARKS = (0.95, 1.0, 1.1, 1.3)
MADE_NODES = 120
#: (share of the nodes, cards, cores, host GiB)
MADE_CLASSES = ((0.45, 8, 96, 384), (0.25, 2, 96, 512), (0.15, 4, 64, 256), (0.15, 8, 128, 768))
#: (share of the pods, cards, thousandths of each to choose from, cores of a card, host GiB of a card)
MADE_PODS = (
    (0.133, 0, (0,), (4, 8, 16, 32), (16, 32, 64)),
    (0.378, 1, (100, 220, 320, 470, 500, 590, 650, 810, 880), (2, 4, 8, 10), (8, 16, 32, 48)),
    (0.48, 1, (1000,), (4, 8, 11, 12), (16, 32, 48, 64)),
    (0.002, 2, (1000,), (6, 8, 12), (32, 48)),
    (0.002, 4, (1000,), (8, 12), (32, 48)),
    (0.005, 8, (1000,), (8, 11), (40, 46)),
)
LAB_NODES, LAB_CARDS, LAB_MIB, LAB_LEAST_GIB, LAB_MOST_GIB = 5, 4, 24_564, 4, 24


@dataclass(frozen=True, slots=True)
class Pod:
    """A row of PODS.csv: ``milli`` is the share of each of its ``cards``, in thousandths."""

    cpu_milli: int
    memory_mib: int
    cards: int
    milli: int
    spec: str

    @property
    def asked(self) -> int:
        return self.cards * self.milli


def nodes_read(path: Path) -> tuple[Node, ...]:
    """The cluster, nodes in the order of the file."""
    nodes = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file), start=1):
            gpus = tuple(
                Gpu(
                    id=number * 100 + index,
                    uuid=f"GPU-{number}-{index}",
                    index=index,
                    model=row.get("model") or "card",
                    total_mib=CARD_MIB,
                    nominal_mib=CARD_MIB,
                )
                for index in range(int(row["gpu"] or 0))
            )
            # Whole cores are what a node has; the odd thousandths count as held.
            cores = -(-int(row["cpu_milli"]) // 1000)
            nodes.append(
                Node(
                    id=number,
                    name=row["sn"],
                    gpus=gpus,
                    cpu_cores=cores,
                    cpu_milli_held=cores * 1000 - int(row["cpu_milli"]),
                    memory_mib=int(row["memory_mib"]),
                )
            )
    return tuple(nodes)


def pods_read(path: Path) -> list[Pod]:
    pods = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            cards = int(row["num_gpu"] or 0)
            share = int(float(row["gpu_milli"] or 0)) if cards else 0
            milli = share if cards == 1 else 1000 if cards else 0
            pods.append(Pod(int(row["cpu_milli"]), int(row["memory_mib"]), cards, milli, row.get("gpu_spec") or ""))
    return pods


def nodes_made(count: int, *, seed: int) -> tuple[Node, ...]:
    """A mixed cluster, the same for the same seed."""
    rng = random.Random(seed)
    nodes = []
    for number in range(1, count + 1):
        _share, cards, cores, gib = rng.choices(MADE_CLASSES, weights=[item[0] for item in MADE_CLASSES])[0]
        gpus = tuple(
            Gpu(
                id=number * 100 + index,
                uuid=f"GPU-{number}-{index}",
                index=index,
                model="card",
                total_mib=CARD_MIB,
                nominal_mib=CARD_MIB,
            )
            for index in range(cards)
        )
        nodes.append(Node(id=number, name=f"n{number}", gpus=gpus, cpu_cores=cores, memory_mib=gib * 1024))
    return tuple(nodes)


def pods_made(count: int, *, seed: int) -> list[Pod]:
    """Kinds of pod to draw from."""
    rng = random.Random(seed)
    pods = []
    for _ in range(count):
        _share, cards, sizes, cores, gib = rng.choices(MADE_PODS, weights=[item[0] for item in MADE_PODS])[0]
        each = max(cards, 1)
        pods.append(Pod(rng.choice(cores) * 1000 * each, rng.choice(gib) * 1024 * each, cards, rng.choice(sizes), ""))
    return pods


def sequence_draw(base: Sequence[Pod], *, capacity: int, seed: int) -> list[Pod]:
    """The trace shuffled, then drawn from again, until ``DEMAND`` × capacity (thousandths of a card) is asked for; in order of arrival."""
    rng = random.Random(seed)
    total = 0
    drawn: list[Pod] = []
    pool = list(base)
    rng.shuffle(pool)
    for pod in pool:
        if total + pod.asked > DEMAND * capacity:
            break
        drawn.append(pod)
        total += pod.asked
    while True:
        pod = base[rng.randrange(len(base))]
        if total + pod.asked > DEMAND * capacity:
            break
        drawn.append(pod)
        total += pod.asked
    rng.shuffle(drawn)
    return drawn


def request_of(pod: Pod) -> Request:
    return Request(
        gpu_count=pod.cards,
        gpu_mem_mib=pod.milli * MIB_PER_MILLI if 0 < pod.milli < 1000 else None,
        model=pod.spec or None,
        cpu_milli=pod.cpu_milli,
        host_mem_mib=pod.memory_mib,
    )


def trace_measure(nodes: tuple[Node, ...], base: Sequence[Pod], *, seed: int, policy: Policy) -> dict[str, float]:
    """One sequence: percentages of the cards at each mark, and µs a pod."""
    capacity = 1000 * sum(len(node.gpus) for node in nodes)
    pods = sequence_draw(base, capacity=capacity, seed=seed)
    requests = {pod: request_of(pod) for pod in set(pods)}
    jobs = [Job(id=number, request=requests[pod], submitted=float(number)) for number, pod in enumerate(pods, start=1)]
    snapshot = Snapshot(now=float(len(jobs) + 1), nodes=nodes, jobs=jobs)
    began = time.process_time()
    result = plan(snapshot, policy)
    spent = time.process_time() - began
    placed = {placement.job for placement in result.placements}
    found: dict[str, float] = {}
    marks = list(MARKS)
    came = held = 0
    for number, pod in enumerate(pods, start=1):
        came += pod.asked
        held += pod.asked if number in placed else 0
        # As a whole card may be the next step, a mark counts as reached within one card of it.
        while marks and came >= marks[0] * capacity - 1000:
            found[f"alloc@{round(100 * marks.pop(0))}"] = 100 * held / capacity
    found |= {f"alloc@{round(100 * mark)}": 100 * held / capacity for mark in marks}
    return found | {"pods": len(pods), "placed": len(placed), "us_a_pod": 1e6 * spent / len(pods)}


def lab_measure(*, seed: int, policy: Policy) -> dict[str, float]:
    """The lab: percentages of its memory that placed jobs asked for and took."""
    rng = random.Random(seed)
    nodes = tuple(
        Node(
            id=number,
            name=f"node{number}",
            gpus=tuple(
                Gpu(id=number * 10 + index, uuid=f"GPU-{number}-{index}", index=index, model="RTX 4090", total_mib=LAB_MIB)
                for index in range(LAB_CARDS)
            ),
        )
        for number in range(1, LAB_NODES + 1)
    )
    capacity = LAB_NODES * LAB_CARDS * LAB_MIB
    sizes: list[int] = []
    while sum(sizes) < DEMAND * capacity:
        sizes.append(1024 * rng.randint(LAB_LEAST_GIB, LAB_MOST_GIB))
    jobs = [Job(id=number, request=Request(gpu_mem_mib=size), submitted=float(number)) for number, size in enumerate(sizes, start=1)]
    began = time.process_time()
    result = plan(Snapshot(now=float(len(jobs) + 1), nodes=nodes, jobs=jobs), policy)
    spent = time.process_time() - began
    asked = sum(min(sizes[placement.job - 1], LAB_MIB) for placement in result.placements)
    taken = sum(grant.mib for placement in result.placements for rank in placement.ranks for grant in rank.grants)
    return {"asked": 100 * asked / capacity, "taken": 100 * taken / capacity, "pods": len(jobs), "us_a_pod": 1e6 * spent / len(jobs)}


def seeds_parse(text: str) -> list[int]:
    """``10`` = 42 … 51; ``42-45`` and ``1,7`` as they stand. Raises ValueError."""
    if "-" in text:
        first, last = text.split("-")
        return list(range(int(first), int(last) + 1))
    if "," in text:
        return [int(part) for part in text.split(",")]
    return list(range(42, 42 + int(text)))


def _runs(args: argparse.Namespace, policy: Policy) -> Iterator[dict[str, float]]:
    if args.lab:
        yield from (lab_measure(seed=seed, policy=policy) for seed in args.seeds)
        return
    nodes = nodes_made(args.made, seed=1) if args.made else nodes_read(args.nodes)
    most_cards = max(len(node.gpus) for node in nodes)
    most_cpu = max((node.cpu_cores or 0) * 1000 - node.cpu_milli_held for node in nodes)
    base = [
        pod
        for pod in (pods_made(2_000, seed=1) if args.made else pods_read(args.pods))
        if pod.cards <= most_cards and pod.cpu_milli <= most_cpu
    ]
    yield from (trace_measure(nodes, base, seed=seed, policy=policy) for seed in args.seeds)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.packing", description="How well plan() packs.")
    parser.add_argument("nodes", nargs="?", type=Path, metavar="NODES.csv")
    parser.add_argument("pods", nargs="?", type=Path, metavar="PODS.csv")
    parser.add_argument("--made", nargs="?", type=int, const=MADE_NODES, metavar="NODES", help=f"so many made nodes ({MADE_NODES})")
    parser.add_argument("--lab", action="store_true", help="20 cards of 24564 MiB instead of a trace")
    parser.add_argument(
        "--seeds", type=seeds_parse, default=None, help="how many from 42 on, FIRST-LAST or a,b,c (default: 10; with --lab 30)"
    )
    parser.add_argument("--rules", choices=("on", "off"), default="off", help="the slicing rules of the default policy (default: off)")
    parser.add_argument("--policy", default="default", help="placing strategy by name (default: default)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    if not args.lab and args.made is None and (args.nodes is None or args.pods is None):
        parser.error("NODES.csv and PODS.csv are needed, or --made, or --lab.")
    if args.made is not None and args.made < 1:
        parser.error(f"--made is {args.made}; it must be at least 1.")
    if args.seeds is None:
        args.seeds = seeds_parse("30" if args.lab else "3" if args.made else "10")
    if not args.seeds:
        parser.error("--seeds must name at least one seed.")
    runs = list(_runs(args, Policy(slicing_rules=args.rules == "on", strategy=args.policy, keeps_for_head=False, order="fifo")))
    names = [name for name in runs[0] if name not in {"pods", "placed"}]
    mean = {name: round(statistics.fmean(run[name] for run in runs), 3) for name in names}
    spread = {name: round(statistics.stdev(run[name] for run in runs), 3) if len(runs) > 1 else 0.0 for name in names}
    kind = "lab" if args.lab else f"{args.made} made nodes" if args.made else args.pods.name
    answer = {"what": kind, "rules": args.rules, "policy": args.policy, "seeds": args.seeds, "mean": mean, "stdev": spread, "runs": runs}
    if args.json:
        print(json.dumps(answer))
    else:
        print(
            f"{kind}, rules {args.rules}, {len(runs)} seeds: "
            + ", ".join(f"{name} {mean[name]:.2f} ± {spread[name]:.2f}" for name in names)
        )


if __name__ == "__main__":
    main()
