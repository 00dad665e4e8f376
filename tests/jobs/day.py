"""A day of an installation with a clock that the test turns: submits, passes and agents' reports through the real services."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.history import history_forget
from jobs.models import Attempt, Job, Slice
from jobs.scheduler import Arrival, Finished, History, Request
from jobs.scheduler import Job as CoreJob
from nodes.models import Node
from nodes.services import node_cordon, node_resume
from quotas.models import Project, User
from quotas.services import project_personal
from quotas.usage import usage_forget
from tests.factories import project_make
from tests.jobs.lab import Lab

START = datetime(2026, 3, 10, tzinfo=UTC)
NAMES = ("train", "eval", "sweep-1", "sweep-2", "prep")
#: (fields of the submit, how often): cards, slices, gangs, jobs without a card, and all that one may ask of a node.
KINDS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"gpu_mem_mib": None}, 20),
    ({"gpu_mem_mib": 4096}, 20),
    ({"gpu_mem_mib": 8192}, 12),
    ({"gpu_mem_mib": 12_288}, 8),
    ({"gpu_mem_mib": 40_000}, 5),
    ({"gpu_count": 2}, 10),
    ({"gpu_count": 4}, 5),
    ({"gpu_count": 2, "nodes": 2, "constraints": {"labels": {"zone": "a"}}}, 4),
    ({"gpu_mem_mib": 4096, "constraints": {"exclusive": True}}, 2),
    ({"gpu_mem_mib": 6000, "constraints": {"cpu_milli": 4000, "host_mem_mib": 24_000}}, 6),
    ({"gpu_mem_mib": 6000, "constraints": {"cuda_min": "12.6", "model": "RTX 4090"}}, 4),
    ({"gpu_count": 0}, 3),
    ({"gpu_count": 0, "constraints": {"cpu_milli": 3000}}, 3),
)


@dataclass(frozen=True, slots=True)
class Coming:
    """What a person submits, when (seconds since the start), and how long it will truly run."""

    at: int
    owner: User
    project: Project
    name: str
    seconds: int
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """``ranks``: (index, node, ((card, MiB, whole), …) in placement order) of each."""

    job: int
    at: float
    ranks: tuple[tuple[int, int, tuple[tuple[int, int, bool], ...]], ...]


def pool_make(lab: Lab) -> list[Node]:
    """14 cards of two sizes on four nodes, and a node without a card."""
    common = {"cpu_cores": 16, "memory_mib": 96_000, "driver_version": "570.1"}
    return [
        lab.node("n1", *[24_564] * 4, **common, cuda_version="12.4", labels={"zone": "a"}),
        lab.node("n2", *[24_564] * 4, **common, cuda_version="12.8", labels={"zone": "a"}),
        lab.node("n3", *[24_564] * 4, **common, cuda_version="12.8", labels={"zone": "b"}),
        lab.node("n4", *[49_140] * 2, **common, cuda_version="12.8", labels={"zone": "b"}),
        lab.node("n5", **common),
    ]


def people_make(lab: Lab) -> list[tuple[User, Project]]:
    """Six of very different appetites; three of them share a project."""
    users = [lab.user(name) for name in ("anna", "ben", "chen", "dora", "emil", "fang")]
    shared = project_make("vision", members=tuple(users[:3]))
    return [(user, shared if number < 3 else project_personal(user)) for number, user in enumerate(users)]


def workload(people: Sequence[tuple[User, Project]], *, jobs: int, seed: int, day_s: int, load: float, cards: int = 14) -> list[Coming]:
    """``load``: card time asked for ÷ card time of the day. Whole seconds, so that both databases and floats hold them exactly."""
    rng = random.Random(seed)
    kinds, often = [kind for kind, _ in KINDS], [times for _, times in KINDS]
    drawn = []
    for _ in range(jobs):
        fields = dict(rng.choices(kinds, often)[0])
        drawn.append((rng.randrange(day_s), fields, rng.lognormvariate(0, 1.3)))
    asked = sum(length * (fields.get("gpu_count", 1) or 0) for _at, fields, length in drawn)
    scale = load * day_s * cards / asked / 0.6  # slices take about 0.6 of a card less than they count here
    coming = []
    for at, fields, length in sorted(drawn, key=lambda item: item[0]):
        owner, project = people[min(int(rng.expovariate(0.5)), len(people) - 1)]
        seconds = max(5, int(length * scale))
        if rng.random() < 0.4:
            fields["time_limit_s"] = int(seconds * rng.choice((1.2, 2, 5))) + 60
        fields["priority"] = rng.choices((0, 5), (30, 1))[0]
        fields["qos"] = rng.choices(("", "low", "high"), (30, 2, 1))[0]
        coming.append(Coming(at, owner, project, rng.choice(NAMES), seconds, fields))
    return coming


def past_make(lab: Lab, people: Sequence[tuple[User, Project]], *, jobs: int, seed: int) -> History:
    """Jobs that ran one after the other in the days before; returns what they teach, found out apart from the rows."""
    rng = random.Random(seed)
    history = History()
    lab.now = START - timedelta(days=3)
    for _ in range(jobs):
        owner, project = rng.choice(people)
        seconds, limit, name = rng.randrange(30, 2 * 86_400 // jobs), rng.choice((None, 40_000)), rng.choice(NAMES)
        job = lab.submit(owner=owner, project=project, name=name, time_limit_s=limit, now=lab.now)
        assert lab.schedule(lab.now).started == [job.pk]
        lab.report(job, "RUNNING")
        lab.later(seconds)
        lab.exit(job)
        history.add(Finished(user=owner.pk, project=project.pk, name=name, request=Request(), time_limit_s=limit, seconds=float(seconds)))
        lab.later(60)
    lab.now = START
    history_forget()
    usage_forget()
    return history


class Day:
    """Runs it. ``drain``: (node, seconds since the start when it is drained, when it takes work again)."""

    def __init__(self, lab: Lab, coming: Sequence[Coming], drain: tuple[Node, int, int]) -> None:
        self.lab = lab
        self.coming = coming
        self.jobs: dict[int, Coming] = {}
        self.passes = 0
        node, begin, end = drain
        # At one moment: ends first, then drains, then submits, as simulate() takes them.
        self._events: list[tuple[int, int, int, Any]] = [(begin, 1, node.pk, False), (end, 1, node.pk, True)]
        self._events += [(item.at, 2, number, item) for number, item in enumerate(coming)]
        heapq.heapify(self._events)

    def run(self, *, check_every: int) -> None:
        while self._events:
            at = self._events[0][0]
            self.lab.now = now = START + timedelta(seconds=at)
            while self._events and self._events[0][0] == at:
                self._do(*heapq.heappop(self._events)[1:])
            for pk in self.lab.schedule(now).started:
                job = Job.objects.get(pk=pk)
                for index in range(job.nodes):
                    self.lab.report(job, "RUNNING", index=index)
                heapq.heappush(self._events, (at + self.jobs[pk].seconds, 0, pk, None))
            self.passes += 1
            if self.passes % check_every == 0:
                self.lab.check()
        self.lab.check()

    def _do(self, kind: int, number: int, what: Any) -> None:
        lab = self.lab
        if kind == 0:
            job = Job.objects.get(pk=number)
            for index in range(job.nodes):
                lab.exit(job, index=index)
        elif kind == 1:
            node = Node.objects.get(pk=number)
            node_resume(node=node, by=None) if what else node_cordon(node=node, by=None, reason="maintenance")
        else:
            made = lab.submit(owner=what.owner, project=what.project, name=what.name, now=lab.now, **what.fields)
            self.jobs[made.pk] = what

    def decisions(self) -> list[Decision]:
        """What the passes decided, from the rows: by time, then job."""
        parts: dict[int, dict[int, tuple[int, list[tuple[int, int, bool]]]]] = {}
        for attempt in Attempt.objects.filter(job_id__in=self.jobs).prefetch_related("ranks"):
            parts[attempt.job_id] = {rank.index: (rank.node_id, []) for rank in attempt.ranks.all()}
        rows = Slice.objects.filter(rank__attempt__job_id__in=self.jobs).order_by("rank_id", "position")
        for job, index, gpu, mib, whole in rows.values_list("rank__attempt__job_id", "rank__index", "gpu_id", "mib", "is_exclusive"):
            parts[job][index][1].append((gpu, mib, whole))
        times = dict(Attempt.objects.filter(job_id__in=self.jobs).values_list("job_id", "created_at"))
        found = [
            Decision(job, times[job].timestamp(), tuple((index, node, tuple(cards)) for index, (node, cards) in sorted(ranks.items())))
            for job, ranks in parts.items()
        ]
        return sorted(found, key=lambda item: (item.at, item.job))

    def arrivals(self) -> list[Arrival]:
        """The same day for ``simulate``: nothing of what the services found out is in it, not even the predictions."""
        found = []
        for pk, item in self.jobs.items():
            limits = item.fields.get("constraints", {})
            job = CoreJob(
                id=pk,
                request=Request(
                    gpu_count=item.fields.get("gpu_count", 1),
                    gpu_mem_mib=item.fields.get("gpu_mem_mib"),
                    nodes=item.fields.get("nodes", 1),
                    model=limits.get("model"),
                    cuda_min=limits.get("cuda_min"),
                    labels=tuple(limits.get("labels", {}).items()),
                    cpu_milli=limits.get("cpu_milli"),
                    host_mem_mib=limits.get("host_mem_mib"),
                    is_exclusive="exclusive" in limits,
                ),
                submitted=(START + timedelta(seconds=item.at)).timestamp(),
                priority=item.fields["priority"],
                user=item.owner.pk,
                project=item.project.pk,
                time_limit_s=item.fields.get("time_limit_s"),
                qos=item.fields["qos"],
            )
            found.append(Arrival(job=job, seconds=float(item.seconds), name=item.name))
        return found
