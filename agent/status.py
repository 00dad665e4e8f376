"""What `nebula-agent status` shows."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from agent.config import Config


def status_collect(config: Config) -> dict[str, Any]:
    """What this node knows of itself, from the agent's files; works while the agent runs and while it doesn't."""
    found: dict[str, Any] = {"node": config.name, "node_id": config.node_id, "endpoint": config.endpoint.url, "running": False}
    with contextlib.suppress(OSError, ValueError):
        found.update(json.loads((config.data_dir / "status.json").read_text(encoding="utf-8")))
    with contextlib.suppress(OSError):
        found["running"] = _is_locked(config.data_dir / "agent.lock")
    ranks: list[dict[str, Any]] = []
    with contextlib.suppress(sqlite3.Error):
        # Read-only, and never in the agent's way.
        with contextlib.closing(sqlite3.connect(f"file:{config.data_dir / 'agent.db'}?mode=ro", uri=True, timeout=1)) as db:
            rows = db.execute("SELECT rank, state, spec, released FROM ranks WHERE NOT forgotten ORDER BY job, rank").fetchall()
        for rank, state, spec, released in rows:
            asked = json.loads(spec) if spec else {}
            started = state != "PREPARING" or (config.data_dir / "ranks" / rank / "started.json").exists()
            ranks.append(
                {
                    "rank": rank,
                    "state": "RUNNING" if state == "PREPARING" and started else state,
                    "name": asked.get("name", ""),
                    "gpus": [g["uuid"] for g in asked.get("gpus", [])],
                    "released": None if released is None else bool(released),
                }
            )
    found["ranks"] = ranks
    return found


def _is_locked(path: Path) -> bool:
    """Whether an agent holds the data directory. Raises OSError where there never was one."""
    with path.open("rb+") as lock:
        try:
            if sys.platform == "win32":
                import msvcrt

                lock.seek(1 << 20)
                msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _plain(text: object) -> str:
    """Names come from users and hardware: nothing of them may steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def status_lines(found: dict[str, Any], *, now: float) -> list[str]:
    lines = [f"Node      {_plain(found['node'])} (id {found['node_id']})"]
    lines.append(f"Agent     {'process ' + str(found.get('pid')) if found['running'] else 'not running'}")
    answered = found.get("answered_at")
    touch = "never answered" if answered is None else f"last answer {max(0, now - answered):.0f} s ago"
    lines.append(f"Control   {found['endpoint']}, {touch}")
    if found.get("trouble"):
        lines.append(f"Trouble   {_plain(found['trouble'])}")
    if found.get("hardware_error"):
        lines.append(f"Hardware  {_plain(found['hardware_error'])}")
    if found.get("isolation"):
        lines.append(f"Jobs      {_plain(_isolation(found['isolation']))}")
    status = {s["uuid"]: s for s in found.get("status", [])}
    lines.append(f"Cards     {len(found.get('gpus', []))}")
    for gpu in found.get("gpus", []):
        card = status.get(gpu["uuid"], {})
        total = gpu.get("total_mib")
        memory = f"{_number(card.get('used_mib'))} / {_number(total)} MiB"
        text = card.get("error") or f"{memory}, {_number(card.get('util_pct'))} %, {_number(card.get('temp_c'))} °C"
        mark = " (simulated)" if gpu.get("simulated") else ""
        lines.append(f"  {gpu['index']}  {_plain(gpu['model'])}{mark}  {text}")
    lines.append(f"Ranks     {len(found['ranks'])}")
    for rank in found["ranks"]:
        lines.append(f"  {rank['rank']}  {rank['state']}  {_plain(rank['name'])}".rstrip())
    return lines


def _isolation(info: dict[str, Any]) -> str:
    """Who jobs run as and what they can reach: fields of protocol.IsolationInfo, of which a default is not there."""
    if not info.get("ready", True):
        return f"can't be launched here ({info.get('problem')}); nebula-agent doctor says what to do"
    who = "each runs as its owner's account" if info["identity"] == "mapped" else f"run as {info.get('account') or info['uid']}"
    reach = ", ".join(info.get("open", ())) or "nothing of others"
    return f"{who}, sandbox {info.get('sandbox', 'none')}; open to them: {reach}"


def _number(value: int | None) -> str:
    return "n/a" if value is None else str(value)
