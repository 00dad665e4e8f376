"""The environment that a rank starts with: a few basics of the node, the job's own, then what D12 fixes."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Mapping, Sequence

from agent.addresses import port_is_taken
from agent.backends.base import bus_key
from agent.protocol import GpuInfo, RankId, RankSpec

#: Vendor → the variable that shows a program its cards by their place among the vendor's cards. CUDA has its own rules, below.
VISIBLE = {"amd": "HIP_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES", "intel": "ZE_AFFINITY_MASK"}
#: What a job inherits from the agent. A list of what may pass, not of what may not: secrets have many names.
INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SpecError(ValueError):
    """The rank cannot be started as asked. ``kind`` is a protocol.LaunchError."""

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


def cuda_indexes(gpus: Sequence[GpuInfo]) -> dict[str, int] | None:
    """uuid → the index that CUDA_DEVICE_ORDER=PCI_BUS_ID gives each NVIDIA card; None when a bus id is not known.

    nvidia-smi's or NVML's index would be wrong on mixed cards: CUDA counts in the order of the bus.
    """
    nvidia = [g for g in gpus if g.vendor == "nvidia" and g.parent is None]
    try:
        ordered = sorted(nvidia, key=lambda g: bus_key(g.pci_bus_id or ""))
    except ValueError:
        return None
    return {g.uuid: i for i, g in enumerate(ordered)}


def environment(
    *,
    rank: RankId,
    spec: RankSpec,
    gpus: Sequence[GpuInfo],
    cuda_visible: str,
    artifacts: str,
    temporary: str | None = None,
    job_account: str | None = None,
    agent_env: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The rank's complete environment; ``gpus`` are the cards that answer now, ``temporary`` its own folder for temporary files (None =
    the system's), ``job_account`` who it runs as where the spec names nobody. Raises SpecError."""
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise SpecError(f"The variable {name[:60]!r} cannot be given to a program: its name or value holds '=' or NUL.", "spec")
    if any("\0" in word for word in spec.argv) or not spec.argv:
        raise SpecError("The command is empty or holds a NUL character.", "spec")

    env = {name: agent_env[name] for name in INHERITED if agent_env.get(name)}
    env.setdefault("PATH", PATH)
    env.setdefault("LANG", "C.UTF-8")
    if "HOME" not in env:  # a system service has none
        with contextlib.suppress(KeyError):
            env["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
    user = spec.unix_user or job_account
    if user is not None:
        env.pop("TMPDIR", None)
        try:
            account = pwd.getpwnam(user)
        except (KeyError, ValueError):
            raise SpecError(f"There is no Unix user {user!r} on this node.", "user") from None
        env.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name, SHELL=account.pw_shell or "/bin/sh")
    if temporary is not None:
        env["TMPDIR"] = env["TMUX_TMPDIR"] = temporary
    env.update(spec.env)

    cards = list(dict.fromkeys(g.uuid for g in spec.gpus))  # each once, in placement order
    seen = {g.uuid for g in gpus}
    missing = [uuid for uuid in cards if uuid not in seen]
    if missing:
        raise SpecError(f"Card {missing[0]} is not seen on this node now ({len(seen)} cards are).", "gpu")
    env["NEBULA_GPU_LIST"] = ",".join(cards)
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    env["CUDA_VISIBLE_DEVICES"] = ",".join(_cuda_names(cards, gpus, cuda_visible))
    for vendor, variable in VISIBLE.items():
        # Nothing is said where the rank has no such card: what an empty list means differs from vendor to vendor.
        places = {g.uuid: str(i) for i, g in enumerate(sorted((g for g in gpus if g.vendor == vendor), key=lambda g: g.index))}
        mine = [places[uuid] for uuid in cards if uuid in places]
        if mine:
            env[variable] = ",".join(mine)
    _port_try(spec)
    env["NEBULA_RANK"] = rank
    env["NEBULA_ARTIFACTS"] = artifacts
    return env


def _port_try(spec: RankSpec) -> None:
    """The first rank of several listens where the others look for it. Its port was drawn without a look at this machine: where somebody
    else has it, the job starts anew with another one instead of failing. Raises SpecError."""
    if spec.index != 0 or spec.env.get("NNODES", "1") == "1":
        return
    port = spec.env.get("MASTER_PORT", "")
    if port.isdecimal() and 0 < int(port) < 65536 and port_is_taken(int(port)):
        raise SpecError(f"Another program of this node listens on port {port}, which the parts of the job would meet at.", "port")


def _cuda_names(cards: Sequence[str], gpus: Sequence[GpuInfo], cuda_visible: str) -> list[str]:
    known = {g.uuid: g for g in gpus}
    cuda = [uuid for uuid in cards if known[uuid].vendor == "nvidia"]
    # CUDA counts no MIG parts: they have names only.
    by_index = cuda_visible == "index" and not any(known[uuid].parent for uuid in cuda)
    indexes = cuda_indexes(gpus) if by_index else None
    # Without every bus id an index is a guess, and a guess may point at a neighbour's card; a UUID never does.
    return cuda if indexes is None else [str(indexes[uuid]) for uuid in cuda]
