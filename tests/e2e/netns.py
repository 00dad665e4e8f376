"""A second machine on this one: a network namespace of its own, joined to us by one cable that can be pulled."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def missing() -> str | None:
    """Why there can be no second machine here; None when there can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("ip", "nsenter", "curl"):
        if shutil.which(program) is None:
            return f"no {program} (apt-get install iproute2 util-linux curl)"
    name = f"nebula-probe-{secrets.token_hex(3)}"
    made = _ip("netns", "add", name, check=False)
    if made.returncode != 0:
        return f"no network namespaces: {made.stderr.strip()[:200]}"
    _ip("netns", "del", name)
    return None


def _ip(*args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *args], capture_output=True, text=True, check=check)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """``here`` is our address on the cable, ``there`` the other machine's."""

    name: str
    cable: str
    here: str
    there: str

    def argv(self, command: Sequence[str]) -> list[str]:
        """``command`` on the other machine. Only the network is another: `ip netns exec` would hide the cgroups too."""
        return ["nsenter", f"--net=/run/netns/{self.name}", *command]

    def run(self, command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.argv(command), **{"capture_output": True, "text": True, "check": False, "timeout": 120, **more})

    def unplug(self) -> None:
        _ip("link", "set", self.cable, "down")

    def plug(self) -> None:
        _ip("link", "set", self.cable, "up")

    def processes(self) -> list[int]:
        """Whatever runs in the namespace."""
        mine = Path(f"/run/netns/{self.name}").stat().st_ino
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                with contextlib.suppress(OSError):
                    if (place / "ns" / "net").stat().st_ino == mine:
                        found.append(int(place.name))
        return found


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """Names and addresses are drawn: two test runs on one host don't meet (nor does 198.18/15 meet a real network)."""
    tag, number = secrets.token_hex(3), secrets.randbelow(120 * 64)
    net, low = divmod(number, 64)
    base = f"198.18.{net}."
    found = Machine(name=f"nebula-{tag}", cable=f"nb{tag}h", here=f"{base}{4 * low + 1}", there=f"{base}{4 * low + 2}")
    inner = f"nb{tag}m"
    try:
        _ip("netns", "add", found.name)
        _ip("link", "add", found.cable, "type", "veth", "peer", "name", inner)
        _ip("link", "set", inner, "netns", found.name)
        _ip("addr", "add", f"{found.here}/30", "dev", found.cable)
        _ip("link", "set", found.cable, "up")
        _ip("-n", found.name, "addr", "add", f"{found.there}/30", "dev", inner)
        _ip("-n", found.name, "link", "set", inner, "up")
        _ip("-n", found.name, "link", "set", "lo", "up")
        yield found
    finally:
        with contextlib.suppress(OSError):
            for pid in found.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
        _ip("link", "del", found.cable, check=False)
        _ip("netns", "del", found.name, check=False)
