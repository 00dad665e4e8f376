"""What telemetry costs a large pool: one answer of /metrics, and one tick that keeps a sample of every card.

python -m bench.live.telemetry [--cards 4000] [--database postgres|sqlite] [--rounds 5] [--json]

Each card tells all that DCGM's names ask for, and a tenth of them holds a job. The quickest round counts: the others measure the
neighbours. ``…_ms`` is by the wall's clock, ``…_cpu_ms`` what this process used of a processor (the database's own time is not in it).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from bench.live.realpass import CARDS_A_NODE, Pool, installation


def tell(pool: Pool) -> None:
    """All cards of all nodes, with every figure."""
    from agent.protocol import GpuHealth, GpuStatus, HostStatus
    from nodes import telemetry

    figures = {
        "reserved_mib": 500,
        "mem_util_pct": 40,
        "fan_pct": 30,
        "core_mhz": 2500,
        "mem_mhz": 10_000,
        "foreign_mib": 0,
        "throttle": (),
    }
    facts = {
        "ecc_corrected": 0, "ecc_uncorrected": 0, "ecc_uncorrected_total": 0, "remapped_rows": 0, "remap_failed": False, "pcie_gen": 4,
        "pcie_width": 16, "pcie_replays": 3, "power_limit_w": 450, "energy_j": 123_456_789,
    }  # fmt: skip
    for number, node in enumerate(pool.nodes):
        cards = [f"GPU-{number}-{i}" for i in range(CARDS_A_NODE)]
        telemetry.sync_store(
            node_id=node.pk,
            session=node.session,
            seq=1,
            at=time.time(),
            statuses=[GpuStatus(uuid=uuid, used_mib=9000, util_pct=97, temp_c=66, power_w=320, **figures) for uuid in cards],  # type: ignore[arg-type]
            host=HostStatus(cpu_pct=30, memory_mib=90_000, disk_free_mib=1000, disk_total_mib=2000),
            health=[GpuHealth(uuid=uuid, **facts) for uuid in cards],  # type: ignore[arg-type]
        )


def measure(*, cards: int, rounds: int) -> dict[str, Any]:
    from jobs.metrics import metrics_text
    from jobs.services.schedule import schedule_pass
    from nodes import samples

    pool = Pool(cards=cards)
    pool.submit(cards // 10)
    schedule_pass()
    rendered: list[tuple[float, float]] = []
    ticked: list[tuple[float, float]] = []
    text = ""
    at = int(time.time()) // 30 * 30
    for turn in range(rounds):
        tell(pool)
        began, used = time.perf_counter(), time.process_time()
        text = metrics_text(now=time.time())
        rendered.append((time.perf_counter() - began, time.process_time() - used))
        began, used = time.perf_counter(), time.process_time()
        taken = samples.samples_take(at=at + 30 * turn, now=time.time())
        ticked.append((time.perf_counter() - began, time.process_time() - used))
        if taken != cards:
            raise RuntimeError(f"{taken} of {cards} cards have a sample")
    began = time.perf_counter()
    samples.samples_roll(now=at + 3600)
    return {
        "cards": cards,
        "series": sum(not line.startswith("#") for line in text.splitlines()),
        "metrics_mib": len(text) / 2**20,
        "metrics_4k_ms": 1000 * min(wall for wall, _cpu in rendered),
        "metrics_4k_cpu_ms": 1000 * min(cpu for _wall, cpu in rendered),
        "samples_4k_ms": 1000 * min(wall for wall, _cpu in ticked),
        "samples_4k_cpu_ms": 1000 * min(cpu for _wall, cpu in ticked),
        "roll_ms": 1000 * (time.perf_counter() - began),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.live.telemetry", description="What telemetry costs a large pool.")
    parser.add_argument("--cards", type=int, default=4000)
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    for name in ("cards", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; expected 1 or more")
    with installation(args.database):
        found = {"database": args.database, **measure(cards=args.cards, rounds=args.rounds)}
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<18} {value:10.1f}" if isinstance(value, float) else f"{name:<18} {value!s:>10}")


if __name__ == "__main__":
    main()
