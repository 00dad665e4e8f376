"""A machine with NVIDIA cards that a test writes: the real pynvml on our small NVML library."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

#: The library tells each once: their numbers grow for the life of the process that has it loaded.
_XIDS = itertools.count(1)
SOURCE = Path(__file__).parent / "nvml" / "nvml.c"
MIB = 1024 * 1024

#: All that a card can tell.
FULL = {
    "name": "NVIDIA GeForce RTX 4090",
    "total": 24564 * MIB,
    "used": 700 * MIB,
    "reserved": 500 * MIB,
    "util": 37,
    "mem_util": 12,
    "temp_v": 61,
    "temp": 60,
    "power_mw": 301900,
    "fan": 42,
    "clk_sm": 2520,
    "clk_mem": 10501,
    "cc": "8.9",
    "pcie_gen": 4,
    "pcie_width": 16,
    "reasons": 0,
}

#: The slow facts of a data-centre card that is well.
HEALTHY = {
    "ecc": 1,
    "ecc_single": 3,
    "ecc_double": 0,
    "ecc_life": 1,
    "rows": "0,0,0,0",
    "pcie_gen_now": 4,
    "pcie_width_now": 16,
    "replays": 2,
    "persistence": 1,
    "compute_mode": 0,
    "limit_mw": 450000,
    "default_mw": 450000,
    "max_sm": 3105,
    "max_mem": 10501,
    "slow_c": 90,
    "bar1": 32768 * MIB,
    "energy_mj": 123456789,
    "link_replays": 1,
    "link_recoveries": 0,
    "link_flits": 2,
    "link_crcs": 0,
}


def library_build(folder: Path) -> Path:
    """Compile the library once; skips the test, aloud, where there is no gcc."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("nvml lane: no gcc to build the NVML test library with (apt-get install gcc libc6-dev)")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-w", "-o", str(target), str(SOURCE), "-lpthread"], check=True, timeout=PATIENCE_S)
    return target


@dataclass
class Machine:
    """Written to the library's state file with every change."""

    path: Path
    cards: list[dict[str, object]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    driver: str = "570.86.10"

    def card(self, **changes: object) -> str:
        """Add a card with everything; a key given as None is one that it does not support. Returns its uuid."""
        index = len(self.cards)
        facts = {**FULL, "uuid": f"GPU-{index:08x}-0000-4000-8000-000000000000", "pci": f"0000:{index + 1:02x}:00", **changes}
        self.cards.append({k: v for k, v in facts.items() if v is not None})
        self.write()
        return str(facts["uuid"])

    def say(self, *lines: str) -> None:
        self.lines += lines
        self.write()

    def xid(self, index: int, code: int, *, part: tuple[int, int] | None = None) -> None:
        """An XID of a card, or of its part with this (GPU instance, compute instance)."""
        if part is None:
            self.say(f"xid {next(_XIDS)} {index} {code}")
        else:
            self.say(f"migxid {next(_XIDS)} {index} {code} {part[0]} {part[1]}")

    def unsay(self, start: str) -> None:
        self.lines = [line for line in self.lines if not line.startswith(start)]
        self.write()

    def write(self) -> None:
        text = [f"driver {self.driver}", *self.lines]
        text += [f"gpu {i} {key} {value}" for i, card in enumerate(self.cards) for key, value in card.items()]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(text) + "\n")
        new.replace(self.path)
