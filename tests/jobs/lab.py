"""A pool in the database, driven as agents and people drive it: through the services, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from agent.protocol import Desired, ExitInfo, Observed
from jobs import logs
from jobs.invariants import CHECKS
from jobs.models import Job, Rank, Slice
from jobs.requests import JobRequest
from jobs.services import job_submit, observed_apply, orders_build
from jobs.services.schedule import PassResult, pass_run
from nodes.isolation import isolation_json
from nodes.models import Gpu, Node, NodeState
from nodes.telemetry import Seen
from quotas.models import User
from quotas.services import project_personal, user_create
from tests.factories import ISOLATED


@dataclass
class Lab:
    now: datetime = field(default_factory=timezone.now)
    reports: dict[int, dict[str, Observed]] = field(default_factory=dict)
    heard: dict[int, Seen] = field(default_factory=dict)
    booted_at: datetime | None = None  # of all nodes; None: their agents don't tell

    def user(self, name: str = "user", **more: Any) -> User:
        email = f"{name}@lab.example"
        return User.objects.filter(email=email).first() or user_create(email=email, password=None, **more)

    def node(self, name: str, *cards: int | None, **more: Any) -> Node:
        """A READY node with a card for each size in MiB."""
        fields = {
            "state": NodeState.READY,
            "session": f"session-{name}",
            "boot_id": "boot-1",
            "address": "10.0.0.1",
            "isolation": isolation_json(ISOLATED),
            **more,
        }
        node = Node.objects.create(name=name, **fields)
        for index, mib in enumerate(cards):
            Gpu.objects.create(node=node, uuid=f"GPU-{name}-{index}", index=index, model="RTX 4090", vendor="nvidia", total_mib=mib)
        self.reports[node.pk] = {}
        return node

    def submit(self, *, owner: User | None = None, argv: Iterable[str] = ("true",), now: datetime | None = None, **request: Any) -> Job:
        owner = owner or self.user()
        wanted = JobRequest(**{"name": "test", "argv": tuple(argv), "project": project_personal(owner), **request})
        return job_submit(owner=owner, request=wanted, now=now)[0]

    def schedule(self, now: datetime | None = None) -> PassResult:
        return pass_run(now)

    def report(self, job: Job, state: str, *, index: int = 0, **more: Any) -> None:
        """The job's node reports its rank in ``state``, with all that it reported before."""
        rank = self.rank(job, index)
        epoch = rank.attempt.epoch
        self.reports[rank.node_id][rank.key] = Observed(rank=rank.key, epoch=epoch, state=state, **more)  # type: ignore[arg-type]
        self.sync(rank.node)

    def exit(
        self, job: Job, code: int | None = 0, *, index: int = 0, cause: str = "exited", released: bool | None = True, **more: Any
    ) -> None:
        rank = self.rank(job, index)
        more.setdefault("final_log_offset", logs.log_length(rank.key))
        # As a shim that saw the end; ``ran_s=None``: nobody did.
        is_seen = cause not in ("node_rebooted", "exit_unknown", "never_started")
        began = more.get("started_at") or (rank.started_at.timestamp() if rank.started_at is not None else None)
        ran_s = more.pop("ran_s", self.now.timestamp() - began if is_seen and began is not None else None)
        signal = more.pop("signal", None)
        self.report(
            job,
            "EXITED",
            index=index,
            released=released,
            exit=ExitInfo(cause=cause, code=code, signal=signal, ran_s=ran_s),
            **more,  # type: ignore[arg-type]
        )

    def sync(self, node: Node, *, boot_changed: bool = False) -> list[Desired]:
        """The node's complete list is applied; its orders come back, and what it is told to forget it forgets."""
        mine = self.reports[node.pk]
        uptime_s = None if self.booted_at is None else self.uptime_s()
        applied = observed_apply(
            node=node,
            observed=list(mine.values()),
            now=self.now,
            boot_changed=boot_changed,
            last=self.heard.get(node.pk),
            uptime_s=uptime_s,
        )
        self.heard[node.pk] = Seen(self.now.timestamp(), uptime_s=uptime_s)
        orders = [*orders_build(applied.ranks), *applied.extra]
        for order in orders:
            if order.want == "FORGET":
                mine.pop(order.rank, None)
        return orders

    def uptime_s(self) -> float:
        assert self.booted_at is not None
        return (self.now - self.booted_at).total_seconds()

    def hear(self, node: Node) -> None:
        """A sync of the node in which nothing is new, and the flush that follows it."""
        self.sync(node)
        self.flush()

    def flush(self) -> None:
        """When each node was heard of comes to the database, as it does every few seconds."""
        for pk, seen in self.heard.items():
            at = datetime.fromtimestamp(seen.at, UTC)
            Node.objects.filter(pk=pk).update(last_seen_at=at, last_uptime_s=seen.uptime_s)

    def rank(self, job: Job, index: int = 0) -> Rank:
        return Rank.objects.select_related("attempt", "node").filter(attempt__job=job, index=index).latest("pk")

    def slices(self, job: Job) -> list[Slice]:
        return list(Slice.objects.filter(rank__attempt__job=job).order_by("pk"))

    def later(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    def check(self) -> None:
        """All invariants hold."""
        for check in CHECKS:
            assert check(self.now) == [], check.__name__


def state(job: Job) -> str:
    job.refresh_from_db()
    return job.state
