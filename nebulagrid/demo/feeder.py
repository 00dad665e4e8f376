"""Keeps the demo's lab alive: submits its jobs through the SDK, as its people would.

    python -m nebulagrid.demo.feeder DATA_FOLDER

Started and stopped by `manage.py up --demo`. What was done once is in demo/feeder.json, and each submit carries an
Idempotency-Key made of the recipe and a number from there: a start after a stop or a crash goes on and doubles nothing.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent.config import file_write_private
from client.errors import NebulaError, Unreachable
from client.profile import profile_read
from client.sdk import NebulaClient
from nebulagrid.demo import FOLDER, lab_nodes
from nebulagrid.demo.catalogue import HISTORY, PASSING, STANDING, Recipe

log = logging.getLogger("demo")

ALIVE = "WAITING,STARTING,RUNNING,STOPPING"
#: Between two of the jobs that come and go.
PASSING_EVERY_S = 180.0
#: Between two looks at what is missing.
LOOK_EVERY_S = 20.0
#: A standing job gets so long to find its place before the next is submitted: the order decides who gets which cards.
SETTLE_S = 6.0
DRAINED = "node02"
DRAIN_REASON = "Resizable BAR is being enabled · 正在启用 Resizable BAR"
DRAIN_FOR = timedelta(days=2)
#: What staff has written on the machines.
LABELS = {
    "node01": {"rack": "r1"},
    "node02": {"rack": "r1"},
    "node03": {"rack": "r2", "fabric": "ib"},
    "node04": {"rack": "r2", "fabric": "ib"},
    "node05": {"room": "三楼"},
}


class Feeder:
    """``clients``: who → the client of one person; "admin" is the administrator's."""

    def __init__(self, *, data: Path, clients: dict[str, NebulaClient], sleep: Callable[[float], None] = time.sleep) -> None:
        self.clients, self._sleep = clients, sleep
        self._file = data / FOLDER / "feeder.json"
        try:
            self.memory: dict[str, Any] = json.loads(self._file.read_text())
        except (OSError, ValueError):
            self.memory = {}
        # Jobs find the Python that we run under, whatever PATH says.
        self._path = f"{Path(sys.executable).parent}{os.pathsep}/usr/local/bin{os.pathsep}/usr/bin{os.pathsep}/bin"

    def remember(self, **what: Any) -> None:
        self.memory |= what
        file_write_private(self._file, json.dumps(self.memory, indent=1) + "\n")

    # --- the parts ------------------------------------------------------------------------------------------------

    def nodes_wait(self) -> None:
        """Until all nodes of the lab take part."""
        wanted = {name for name, _path in lab_nodes()}
        while not wanted <= {node["name"] for node in self.clients["admin"].node_list() if node["state"] == "READY"}:
            self._sleep(0.5)

    def drain_once(self) -> None:
        if "drained" not in self.memory:
            until = (datetime.now(UTC) + DRAIN_FOR).isoformat(timespec="seconds")
            self.clients["admin"].node_drain(DRAINED, reason=DRAIN_REASON, until=until)
            self.remember(drained=DRAINED)

    def label_once(self) -> None:
        if "labelled" not in self.memory:
            for name, labels in LABELS.items():
                self.clients["admin"].node_label(name, labels)
            self.remember(labelled=sorted(LABELS))

    def standing_submit(self) -> None:
        """Submit again what neither waits nor runs any more."""
        alive = {job["name"] for job in self.clients["admin"].jobs(state=ALIVE, owner="all")}
        for at, recipe in enumerate(STANDING):
            if recipe.name in alive:
                continue
            turns = self.memory.get("turns", {})
            turn = turns.get(recipe.name, 0)
            job = self.submit(recipe, name=recipe.name, key=f"standing-{at}-{turn}")
            self.remember(turns={**turns, recipe.name: turn + 1})
            if job and recipe.then == "hold":
                self.clients[recipe.owner].job_hold(job["id"], why=recipe.why)
            elif job:
                self._settle(recipe, job)

    def history_submit(self) -> None:
        for at, recipe in enumerate(HISTORY):
            if at < self.memory.get("history", 0):
                continue
            job = self.submit(recipe, name=recipe.name, key=f"history-{at}")
            self.remember(history=at + 1)
            if job and recipe.then == "cancel":
                self._settle(recipe, job, until_it_runs=True)
                self.clients[recipe.owner].job_cancel(job["id"])

    def passing_submit(self) -> None:
        count = self.memory.get("passing", 0)
        recipe = PASSING[count % len(PASSING)]
        self.submit(recipe, name=f"{recipe.name}-{count + 1:03}", key=f"passing-{count}")
        self.remember(passing=count + 1)

    def submit(self, recipe: Recipe, *, name: str, key: str) -> Any:
        """The job, or None where it was refused (a quota may be used up): the others go on.

        What is done is remembered afterwards: after a crash in between the same key asks for the same job.
        """
        fields = recipe.fields(name=name, path=self._path)
        try:
            job = self.clients[recipe.owner].job_submit(idempotency_key=f"demo-{key}", **fields)
        except Unreachable:
            raise
        except NebulaError as error:
            log.warning("%s may not submit %s: %s", recipe.owner, name, error)
            return None
        log.info("%s submitted job %s, %s", recipe.owner, job["id"], name)
        return job

    def _settle(self, recipe: Recipe, job: Any, *, until_it_runs: bool = False) -> None:
        """Until it runs (or says why it waits); at most SETTLE_S."""
        client, end = self.clients[recipe.owner], time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            found = client.job_get(job["id"])
            is_refused = not until_it_runs and bool((found["wait"] or {}).get("code"))
            if found["state"] not in ("WAITING", "STARTING") or is_refused:
                return
            self._sleep(0.1)

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """For ever."""
        self.nodes_wait()
        self.drain_once()
        self.label_once()
        next_passing = time.monotonic() + PASSING_EVERY_S / 4
        log.info("all nodes take part: %s", self.clients["admin"].endpoint)
        while True:
            try:
                self.standing_submit()
                self.history_submit()
                if time.monotonic() >= next_passing:
                    next_passing = time.monotonic() + PASSING_EVERY_S
                    self.passing_submit()
            except NebulaError as error:  # the control plane is being restarted, say: the next look does what was left out
                log.warning("%s", error)
            self._sleep(LOOK_EVERY_S)


def clients_open(data: Path) -> dict[str, NebulaClient]:
    paths = {"admin": data / "cli.json"} | {path.stem: path for path in (data / FOLDER).glob("*.json") if path.stem != "feeder"}
    found = {}
    for who, path in paths.items():
        kept = profile_read(path)
        found[who] = NebulaClient(kept["endpoint"], kept["token"], ca_file=kept.get("ca_file"), language="en")
    return found


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    data = Path(argv[0])
    Feeder(data=data, clients=clients_open(data)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
