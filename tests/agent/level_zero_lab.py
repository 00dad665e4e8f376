"""A machine with Intel cards that a test writes: the real ctypes binding on our small loader library."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

SOURCE = Path(__file__).parent / "level_zero" / "ze_loader.c"
MIB = 1024 * 1024

#: All that a card can tell.
FULL = {
    "name": "Intel(R) Arc(TM) A770 Graphics",
    "driver": "1.6.31294",
    "total": 16288 * MIB,
    "physical": 16384 * MIB,
    "used": 2048 * MIB,
    "gen": 4,
    "width": 16,
    "gen_now": 4,
    "width_now": 8,
    "engines": "0",
    "active": "1000000",
    "clock": 10_000_000,
    "sensors": "0,1",
    "temps": "48.4,51.6",
    "max_c": 105,
    "energy": 500_000_000,
    "core_mhz": 2400,
    "mem_mhz": 2187,
    "core_max": 2400,
    "fan": 35,
    "ras": "2,0",
}


def loader_build(folder: Path) -> Path:
    """Compile the library once; skips the test, aloud, where there is no gcc."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        pytest.skip("level_zero lane: no gcc to build the loader library with (apt-get install gcc libc6-dev)")
    target = folder / "libze_loader.so.1"
    subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-w", "-o", str(target), str(SOURCE)], check=True, timeout=PATIENCE_S)
    return target


@dataclass
class IntelMachine:
    """Written to the library's state file with every change."""

    path: Path
    cards: list[dict[str, object]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def card(self, **changes: object) -> str:
        """Add a card with everything; a key given as None is one that it does not support. Returns its uuid."""
        index = len(self.cards)
        raw = f"8680a056080000000{index + 3:x}00000000000000"[:32]
        facts = {**FULL, "uuid": raw, "pci": f"0000:{index + 3:02x}:00.0", **changes}
        self.cards.append({k: v for k, v in facts.items() if v is not None})
        self.write()
        return f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"

    def set(self, index: int, **changes: object) -> None:
        self.cards[index] = {k: v for k, v in {**self.cards[index], **changes}.items() if v is not None}
        self.write()

    def say(self, *lines: str) -> None:
        self.lines += lines
        self.write()

    def unsay(self, start: str) -> None:
        self.lines = [line for line in self.lines if not line.startswith(start)]
        self.write()

    def write(self) -> None:
        text = [*self.lines, *(f"gpu {i} {key} {value}" for i, card in enumerate(self.cards) for key, value in card.items())]
        new = self.path.with_suffix(".new")
        new.write_text("\n".join(text) + "\n")
        new.replace(self.path)
