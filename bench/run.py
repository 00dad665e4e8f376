"""`make bench`: measure, print a table, keep the numbers, and judge them by bench/ranges.toml.

python -m bench.run [--short]

Each part runs in a process of its own, so that no part pays for another's memory. Ends with 1 when a limit is passed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: name -> (waiting jobs, cards)
PASSES = {
    "pass_1k_20": (1_000, 20),
    "pass_1k_1k": (1_000, 1_000),
    "pass_10k_1k": (10_000, 1_000),
    "pass_100k_1k": (100_000, 1_000),
    "pass_10k_10k": (10_000, 10_000),
    "pass_100k_10k": (100_000, 10_000),
}

#: On PostgreSQL, from the snapshot to the last row written.
REAL_PASSES = {"realpass_100_20": (100, 20), "realpass_1k_200": (1_000, 200)}


def part(module: str, *args: str) -> dict[str, Any]:
    """The JSON that a part prints last. Its complaints go to our standard error."""
    done = subprocess.run([sys.executable, "-m", module, *args, "--json"], cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{module} ended with {done.returncode}\n{done.stdout}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(*, is_short: bool) -> dict[str, float]:
    found = passes_measure()
    found |= packing_measure(is_short=is_short) | waits_measure(is_short=is_short)
    for name, (jobs, cards) in REAL_PASSES.items():
        real = part("bench.live.realpass", "--jobs", str(jobs), "--cards", str(cards), "--rounds", "3" if is_short else "7")
        found |= {f"{name}_ms": real["least_ms"], f"{name}_statements": real["statements"]}
    found |= part("bench.forecasts", "--repeat", "1" if is_short else "3")
    served = part("bench.live.served", "--rounds", "10" if is_short else "30")
    found |= {f"served_{name}": float(served[name]["least"]) for name in ("why_ms", "list_ms")}
    pool = part("bench.live.telemetry", "--rounds", "3")
    found |= {name: pool[name] for name in ("metrics_4k_cpu_ms", "samples_4k_cpu_ms")}
    found |= part("bench.live.masking", "--rounds", "5")
    found |= fleet_measure(is_short=is_short)
    size = ["--latency", "60", "--jobs", "100", "--idle", "10", "--syncs", "100"] if is_short else []
    return found | part("bench.live.control", *size)


def fleet_measure(*, is_short: bool) -> dict[str, float]:
    """What a fleet's syncs cost, and whether silence is told in time; with twice the nodes nobody is called silent either."""
    sizes = [["--nodes", "50", "--seconds", "15"]] if is_short else [["--nodes", "200", "--seconds", "60"], ["--nodes", "400"]]
    runs = [part("bench.live.fleet", *size) for size in sizes]
    found = {f"fleet_{name}": float(runs[0][name]) for name in ("cpu_ms_per_sync", "p50_ms", "p99_ms", "silent_least_s", "silent_most_s")}
    return found | {f"fleet_{name}": float(sum(run[name] for run in runs)) for name in ("not_ready", "false_alarms", "silent_untold")}


def passes_measure() -> dict[str, float]:
    """A pass as a ratio to the yardstick, which is timed in the same run; and what ten times the jobs cost."""
    parts = {name: part("bench.passes", "--jobs", str(jobs), "--cards", str(cards)) for name, (jobs, cards) in PASSES.items()}
    found = {f"{name}_ratio": float(one["ratio"]) for name, one in parts.items()}
    found["pass_1k_20_ms"] = float(parts["pass_1k_20"]["ms"])
    found["pass_jobs_10x"] = round(parts["pass_100k_1k"]["ms"] / parts["pass_10k_1k"]["ms"], 2)
    return found


def packing_measure(*, is_short: bool) -> dict[str, float]:
    """On made nodes and pods, in one run: what the default strategy places, and what it costs, against first-fit; and the lab."""
    size = ["--made", "60", "--seeds", "2"] if is_short else ["--made", "--seeds", "5"]
    ours, first = (part("bench.packing", *size, "--policy", name)["mean"] for name in ("default", "first-fit"))
    ruled, exact = (part("bench.packing", "--lab", "--rules", rules)["mean"] for rules in ("on", "off"))
    return {
        "pack_made_100_pct": ours["alloc@100"],
        "pack_made_over_first": round(ours["alloc@100"] / first["alloc@100"], 4),
        "pack_cost_over_first": round(ours["us_a_pod"] / first["us_a_pod"], 2),
        "pack_us_a_pod": ours["us_a_pod"],
        "pack_lab_asked_pct": ruled["asked"],
        "pack_lab_taken_pct": ruled["taken"],
        "pack_lab_exact_pct": exact["asked"],
    }


def waits_measure(*, is_short: bool) -> dict[str, float]:
    """Waits and fairness as ratios to a plain fair share, by simulation."""
    return part("bench.waits", *(["--seeds", "2", "--jobs", "700"] if is_short else []))


def judge(found: dict[str, float], ranges: dict[str, Any]) -> list[tuple[str, float, str, bool]]:
    """(name, value, what is allowed, does it hold) for each measured number; one without a range always holds."""
    rows = []
    for name, value in found.items():
        allowed = ranges.get(name, {})
        holds = value <= allowed.get("most", float("inf")) and value >= allowed.get("least", float("-inf"))
        text = f"≤ {allowed['most']:g}" if "most" in allowed else f"≥ {allowed['least']:g}" if "least" in allowed else ""
        rows.append((name, value, text, holds))
    missing = sorted(set(ranges) - set(found))
    return rows + [(name, float("nan"), "not measured", False) for name in missing]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Measure and judge by bench/ranges.toml.")
    parser.add_argument("--short", action="store_true", help="fewer repetitions, for CI")
    args = parser.parse_args(argv)
    began = time.monotonic()
    found = measure(is_short=args.short)
    rows = judge(found, tomllib.loads((HERE / "ranges.toml").read_text()))
    width = max(len(name) for name, *_ in rows)
    print(f"{'':<{width}} {'measured':>10}  allowed")
    for name, value, allowed, holds in rows:
        print(f"{name:<{width}} {value:>10.2f}  {allowed:<12} {'' if holds else 'FAILED'}")
    out = HERE / "out"
    out.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    kept = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine, "short": args.short, "values": found}
    text = json.dumps(kept, indent=2)
    (out / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json").write_text(text)
    (out / "latest.json").write_text(text)
    failed = [name for name, _, _, holds in rows if not holds]
    print(f"{time.monotonic() - began:.0f} s; " + (f"outside their range: {', '.join(failed)}" if failed else "all in range"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
