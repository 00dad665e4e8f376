"""A small lab on simulated hardware, for `make demo`: where its files are. Light: imports nothing of ours.

Control plane, agents and the jobs' processes are the real ones. Only the cards are made up (deploy/demo/NODE.json), and
the jobs sleep instead of computing (deploy/demo/jobs/).
"""

from __future__ import annotations

from pathlib import Path

LAB = Path(__file__).resolve().parents[2] / "deploy" / "demo"
JOBS = LAB / "jobs"
#: In the data folder: passwords and profiles of the demo's people, what the feeder remembers.
FOLDER = "demo"


def lab_nodes() -> list[tuple[str, Path]]:
    """(name, scenario) of each node of the lab, by name."""
    return [(path.stem, path) for path in sorted(LAB.glob("*.json"))]
