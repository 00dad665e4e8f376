"""The real pass: lock, snapshot, plan, apply, reasons, on a real database with real commits and a real Redis.

python -m bench.live.realpass [--jobs 100] [--cards 20] [--database postgres|sqlite] [--rounds 9] [--json]

Each round finds ``jobs`` waiting jobs of several owners, each for one whole card, and ``cards`` idle cards that report
their status: a pass places as many jobs as there are cards. Then agents report these as run and ended, through the
services, and as many are submitted anew. So history, ledger and events grow as they do in an installation.

PostgreSQL is the one that NEBULA_DATABASE_URL names (a database of our own is made there, and dropped), else an embedded
one, which does not wait for the disk. Figures are medians; ``least_ms`` is the quickest round, for busy machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nebulagrid.embedded import postgres_temporary, redis_temporary

OWNERS = 10
CARDS_A_NODE = 4
TOTAL_MIB = 24564


@contextlib.contextmanager
def installation(database: str) -> Iterator[None]:
    """Django on an empty migrated database, a Redis and a data folder, all thrown away at the end. Once a process."""
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="nebula-realpass-"))
        given = os.environ.get("NEBULA_DATABASE_URL", "")
        url = f"sqlite:///{Path(data) / 'bench.sqlite3'}"
        if database == "postgres":
            url = given if given.startswith("postgres") else stack.enter_context(postgres_temporary())
        redis = stack.enter_context(redis_temporary())
        for name in [name for name in os.environ if name.startswith("NEBULA_")]:
            del os.environ[name]  # nothing of the caller's installation
        os.environ |= {"NEBULA_DATA": data, "NEBULA_DATABASE_URL": url, "NEBULA_REDIS_URL": redis, "NEBULA_LOG_LEVEL": "WARNING"}
        os.environ["DJANGO_SETTINGS_MODULE"] = "nebulagrid.settings"
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        from nodes import live

        if database == "postgres":
            connection.settings_dict["TEST"]["NAME"] = f"nebula_realpass_{os.getpid()}"
            old = connection.settings_dict["NAME"]
            connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
            stack.callback(connection.creation.destroy_test_db, old, verbosity=0)
        else:
            call_command("migrate", verbosity=0)
            stack.callback(connection.close)
        stack.callback(live.close)
        yield


class Pool:
    """Nodes, people and jobs; driven through the services only."""

    def __init__(self, *, cards: int) -> None:
        from nodes.models import Gpu, Node, NodeState
        from quotas.services import project_personal, user_create

        self.owners = [user_create(email=f"owner{number}@bench.example") for number in range(OWNERS)]
        self.projects = [project_personal(owner) for owner in self.owners]
        self.nodes = []
        for number in range(-(-cards // CARDS_A_NODE)):
            node = Node.objects.create(
                name=f"bench{number:03}", state=NodeState.READY, session=f"s{number}", boot_id="b", address="10.0.0.1",
                cpu_cores=64, memory_mib=256 * 1024, isolation={"identity": "shared", "ready": True, "open": []},
            )  # fmt: skip
            self.nodes.append(node)
            Gpu.objects.bulk_create(
                Gpu(node=node, uuid=f"GPU-{number}-{i}", index=i, model="RTX 4090", vendor="nvidia", total_mib=TOTAL_MIB, nominal_mib=24576)
                for i in range(min(CARDS_A_NODE, cards - number * CARDS_A_NODE))
            )
        self.submitted = 0

    def telemetry_store(self) -> None:
        """What the last sync of each node left in Redis."""
        from agent.protocol import GpuStatus
        from nodes import telemetry

        for number, node in enumerate(self.nodes):
            statuses = [
                GpuStatus(uuid=f"GPU-{number}-{i}", used_mib=100 + i, util_pct=3, temp_c=35 + i, power_w=40) for i in range(CARDS_A_NODE)
            ]
            telemetry.sync_store(node_id=node.pk, session=node.session, seq=1, at=time.time(), statuses=statuses)

    def submit(self, count: int) -> None:
        from jobs.requests import JobRequest
        from jobs.services import job_submit

        for _ in range(count):
            turn = self.submitted % OWNERS
            request = JobRequest(
                name=f"train-{self.submitted % 7}", argv=("python", "train.py"), project=self.projects[turn], env={"SEED": "1"},
                time_limit_s=3600 if self.submitted % 2 else None,
            )  # fmt: skip
            job_submit(owner=self.owners[turn], request=request)
            self.submitted += 1

    def finish(self) -> None:
        """The agents' next two syncs: all that was started has run and ended, and is forgotten."""
        from django.utils import timezone

        from agent.protocol import ExitInfo, Observed
        from jobs.services import observed_apply, orders_build

        now = timezone.now()
        for node in self.nodes:
            orders = orders_build(observed_apply(node=node, observed=[], now=now, boot_changed=False).ranks)
            is_over: dict[str, Any] = {"exit": ExitInfo(cause="exited", code=0, ran_s=0.01), "released": True, "final_log_offset": 0}
            seen = [Observed(rank=order.rank, epoch=order.epoch, state="EXITED", started_at=now.timestamp(), **is_over) for order in orders]
            observed_apply(node=node, observed=seen, now=now, boot_changed=False)
            observed_apply(node=node, observed=[], now=now, boot_changed=False)


def measure(*, jobs: int, cards: int, rounds: int) -> dict[str, Any]:
    from django.db import connection

    from jobs.invariants import CHECKS
    from jobs.services.schedule import schedule_pass

    statements = 0

    def count(execute: Any, *args: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*args)

    pool = Pool(cards=cards)
    times: list[dict[str, float]] = []
    counted: list[int] = []
    for turn in range(rounds + 2):
        pool.submit(jobs - (0 if turn == 0 else jobs - cards))
        pool.telemetry_store()
        statements = 0
        time.sleep(0.05)  # the next pass is not one that follows at once, which would gather changes first
        with connection.execute_wrapper(count):
            cpu, began = time.process_time(), time.perf_counter()
            result = schedule_pass()
            spent, used = time.perf_counter() - began, time.process_time() - cpu
        if result is None or len(result.started) != min(jobs, cards):
            raise RuntimeError(f"expected {min(jobs, cards)} starts, got {result}")
        if turn >= 2:  # the first rounds import, compile and connect
            parts = {name: getattr(result, f"{name}_ms") for name in ("snapshot", "plan", "apply", "reasons")}
            times.append({"ms": 1000 * spent, **parts, "cpu": 1000 * used})
            counted.append(statements)
        pool.finish()
    from django.utils import timezone

    wrong = [line for check in CHECKS for line in check(timezone.now())]
    if wrong:
        raise RuntimeError(f"invariants are broken: {wrong[:5]}")
    found: dict[str, Any] = {"jobs": jobs, "cards": cards, "started": min(jobs, cards)}
    found["ms"] = statistics.median(row["ms"] for row in times)
    found["least_ms"] = min(row["ms"] for row in times)
    for name in ("snapshot", "plan", "apply", "reasons", "cpu"):
        found[f"{name}_ms"] = statistics.median(row[name] for row in times)
    found["statements"] = max(counted)
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.live.realpass", description="The real pass on a real database.")
    parser.add_argument("--jobs", type=int, default=100, help="waiting jobs")
    parser.add_argument("--cards", type=int, default=20, help="idle cards; so many jobs are placed")
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    for name in ("jobs", "cards", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; expected 1 or more")
    with installation(args.database):
        found = {"database": args.database, **measure(jobs=args.jobs, cards=args.cards, rounds=args.rounds)}
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<14} {value:10.1f}" if isinstance(value, float) else f"{name:<14} {value!s:>10}")


if __name__ == "__main__":
    main()
