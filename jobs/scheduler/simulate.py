"""A workload through the scheduler, event by event: what would have started when. Decides nothing itself: each pass is ``plan()``.

Deterministic: no clock, no randomness. A simulated installation sees what a real one sees: limits, predictions from the jobs
that have ended before (predict.py), and past use (fairshare.py). The true runtimes end the jobs and reach the policy in no other way.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from jobs.scheduler.backlog import Backlog
from jobs.scheduler.fairshare import Usage
from jobs.scheduler.hosts import Hosts
from jobs.scheduler.plan import plan
from jobs.scheduler.predict import Finished, History, remaining_s
from jobs.scheduler.types import Job, Place, Placement, Policy, Running, Slice, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job, when it comes (``job.submitted``), and how long it truly runs. ``name`` feeds the prediction.

    A job that comes with ``predicted_s`` keeps it; else it is predicted when it comes.
    """

    job: Job
    seconds: float
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One job's run."""

    job: int
    submitted: float
    start: float
    end: float
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A node that takes no new work for a while; what runs there runs on."""

    node: int
    begin: float
    end: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What came of it: runs in the order of their starts, and the jobs that never started. ``is_cut``: it was stopped while there
    was more to come, so what waits starts no sooner than ``finished_at``."""

    runs: tuple[Started, ...]
    waiting: tuple[int, ...]
    passes: int
    finished_at: float
    is_cut: bool = False
    by_job: Mapping[int, Started] = field(default_factory=dict)


def simulate(
    arrivals: Iterable[Arrival],
    cluster: Snapshot,
    policy: Policy,
    *,
    history: History | None = None,
    ends: Mapping[int, float] | None = None,
    stop_after: int | Collection[int] | None = None,
    most_passes: int | None = None,
    watch: Callable[[float, int], bool | None] | None = None,
    drains: Iterable[Drain] = (),
) -> Trace:
    """Run the arrivals on the cluster until all have ended, or nothing more can happen.

    ``cluster``: the nodes, what runs and is taken at ``cluster.now``, and the weights then; its ``jobs`` are not looked at.
    ``history``: what is known of earlier jobs; it is added to. ``ends``: when jobs of ``cluster.running`` end; without one it
    is the pass's own estimate. ``stop_after``: stop as soon as this job has started, or all of these; ``most_passes``: stop after so
    many passes. ``drains``: nodes that take no new work for a while. ``watch`` is told, at each event, the simulated time and how
    many jobs have come: for showing how far it is. True = stop there.
    """
    wanted = None if stop_after is None else {stop_after} if isinstance(stop_after, int) else set(stop_after)
    simulation = _Simulation(arrivals, cluster, policy, history=history, ends=ends or {}, wanted=wanted)
    turns = [turn for drain in drains for turn in ((drain.begin, drain.node, False), (drain.end, drain.node, True))]
    simulation.changes = sorted(turn for turn in turns if turn[0] < math.inf)
    return simulation.run(most_passes, watch)


class _Simulation:
    def __init__(
        self,
        arrivals: Iterable[Arrival],
        cluster: Snapshot,
        policy: Policy,
        *,
        history: History | None,
        ends: Mapping[int, float],
        wanted: set[int] | None,
    ) -> None:
        self.wanted = wanted  # the jobs whose starts are waited for; None = all
        self.cluster = cluster
        self.policy = policy
        self.history = history if history is not None else History()
        self.arrivals = sorted(arrivals, key=lambda item: (item.job.submitted, item.job.id))
        self.now = cluster.now
        self.waiting = Backlog(policy)
        self.facts: dict[int, Arrival] = {}
        self.running: dict[int, Running] = {}
        self.slices: dict[int, tuple[Slice, ...]] = {}
        self.ending: list[tuple[float, int]] = []
        self.runs: list[Started] = []
        self.passes = 0
        self.changes: list[tuple[float, int, bool]] = []  # (when, node, whether it takes work from then on)
        self.totals = {gpu.id: gpu.total_mib or 0 for node in cluster.nodes for gpu in node.gpus}
        self.free_mib = 0
        self.open_ids: set[int] = set()
        self.hosts = Hosts(cluster)
        self._open()
        self.usage, self.project_usage = Usage(policy), Usage(policy)
        self.base, self.project_base = _Fading(cluster.usage, policy, self.now), _Fading(cluster.project_usage, policy, self.now)
        self.idle_slices = self._begin(ends)
        self.places: Mapping[int, Place] = cluster.places

    def _begin(self, ends: Mapping[int, float]) -> tuple[Slice, ...]:
        """Take over what runs; answers with the slices that no running job owns."""
        by_job: dict[int, list[Slice]] = {}
        live = {run.job for run in self.cluster.running}
        loose: list[Slice] = []
        for part in self.cluster.slices:
            if part.job in live and part.job is not None and not part.is_quarantined:
                by_job.setdefault(part.job, []).append(part)
            else:
                loose.append(part)
            self._use(part, 1)
        for run in self.cluster.running:
            self.running[run.job] = run
            self.slices[run.job] = tuple(by_job.get(run.job, ()))
            end = ends.get(run.job)
            if end is None:
                left = remaining_s(
                    elapsed_s=max(self.now - run.started, 0.0),
                    limit_s=run.time_limit_s,
                    predicted_s=run.predicted_s,
                    policy=self.policy,
                    strict=False,
                )
                end = self.now + max(left, 1.0)
            heapq.heappush(self.ending, (max(end, self.now), run.job))
            self._hold(run, 1.0)
        return tuple(loose)

    def _open(self) -> None:
        """Which cards take work now, and how much is free on them."""
        self.open_ids = {gpu.id for node in self.hosts.nodes if node.takes_work for gpu in node.gpus if gpu.is_schedulable}
        self.free_mib = sum(self.totals[gpu] for gpu in self.open_ids)

    def _change(self, node: int, takes_work: bool) -> None:
        self.hosts.turn(node, takes_work)
        self._open()
        for part in (*self.idle_slices, *(part for parts in self.slices.values() for part in parts)):
            self._use(part, 1)

    def _use(self, part: Slice, sign: int) -> None:
        if part.gpu in self.open_ids:
            self.free_mib -= sign * (self.totals[part.gpu] if part.exclusive else part.mib)

    def _hold(self, run: Running, sign: float) -> None:
        cards = 0.0
        for part in self.slices[run.job]:
            total = self.totals.get(part.gpu, 0)
            cards += 1.0 if part.exclusive or total <= 0 else part.mib / total
        self.usage.hold(run.user, sign * cards, self.now)
        self.project_usage.hold(run.project, sign * cards, self.now)

    def run(self, most_passes: int | None, watch: Callable[[float, int], bool | None] | None) -> Trace:
        at, arrivals, turned, changes = 0, self.arrivals, 0, self.changes
        is_cut = False
        while True:
            # 1. The next moment at which anything happens; all that happens then is one event.
            next_end = self.ending[0][0] if self.ending else math.inf
            next_in = arrivals[at].job.submitted if at < len(arrivals) else math.inf
            next_change = changes[turned][0] if turned < len(changes) else math.inf
            moment = min(next_end, max(min(next_in, next_change), self.now))
            if moment == math.inf:
                break
            self.now = moment
            while self.ending and self.ending[0][0] <= moment:
                self._end(heapq.heappop(self.ending)[1])
            while turned < len(changes) and changes[turned][0] <= moment:
                self._change(*changes[turned][1:])
                turned += 1
            while at < len(arrivals) and arrivals[at].job.submitted <= moment:
                self._come(arrivals[at])
                at += 1
            if watch is not None and watch(moment, at):
                is_cut = True
                break
            # 2. A pass. With no memory free no job with cards can start, so none is needed.
            if self.waiting and (self.free_mib > 0 or any(request.gpu_count == 0 for request in self.waiting.requests())):
                self._pass()
            if self.wanted is not None and not self.wanted:
                break
            if most_passes is not None and self.passes >= most_passes:
                is_cut = bool(self.ending) or at < len(arrivals) or turned < len(changes)
                break
        return Trace(
            runs=tuple(self.runs),
            waiting=tuple(sorted(job.id for job in self.waiting)),
            passes=self.passes,
            finished_at=self.now,
            is_cut=is_cut,
            by_job={run.job: run for run in self.runs},
        )

    def _come(self, arrival: Arrival) -> None:
        job = arrival.job
        if job.predicted_s is None:
            predicted = self.history.predict(
                user=job.user, project=job.project, name=arrival.name, request=job.request, time_limit_s=job.time_limit_s
            )
            job = replace(job, predicted_s=predicted)
        self.waiting.add(job)
        self.facts[job.id] = arrival

    def _end(self, job: int) -> None:
        run = self.running.pop(job)
        self._hold(run, -1.0)
        parts = self.slices.pop(job)
        for part in parts:
            self._use(part, -1)
        self.hosts.leave(job)
        if parts:  # a job without a card weighs nothing against those who wait for cards
            self.usage.finish(run.user, self.now)
            self.project_usage.finish(run.project, self.now)
        fact = self.facts.pop(job, None)
        if fact is not None:
            done = Finished(
                user=run.user,
                project=run.project,
                name=fact.name,
                request=fact.job.request,
                time_limit_s=run.time_limit_s,
                seconds=fact.seconds,
            )
            self.history.add(done)

    def _pass(self) -> None:
        now = self.now
        self.passes += 1
        slices = [part for parts in self.slices.values() for part in parts]
        snapshot = replace(
            self.cluster,
            now=now,
            nodes=self.hosts.nodes,
            jobs=self.waiting,
            slices=(*self.idle_slices, *slices),
            running=tuple(self.running.values()),
            usage=self.base.plus(self.usage.weights(now), now),
            project_usage=self.project_base.plus(self.project_usage.weights(now), now),
            places=self.places,
        )
        decided = plan(snapshot, self.policy, explain=False)
        self.places = decided.places
        for placement in decided.placements:
            self._start(placement)

    def _start(self, placement: Placement) -> None:
        job = self.waiting.remove(placement.job)
        if self.wanted is not None:
            self.wanted.discard(job.id)
        parts = tuple(
            Slice(gpu=grant.gpu, mib=grant.mib, exclusive=grant.exclusive, job=job.id) for rank in placement.ranks for grant in rank.grants
        )
        run = Running(
            job=job.id,
            user=job.user,
            project=job.project,
            queue=job.queue,
            slices=parts,
            started=self.now,
            time_limit_s=job.time_limit_s,
            predicted_s=job.predicted_s,
            request=job.request,
        )
        self.running[job.id] = run
        self.slices[job.id] = parts
        for part in parts:
            self._use(part, 1)
        self._hold(run, 1.0)
        self.hosts.enter(job.id, job.request, [rank.node for rank in placement.ranks])
        end = self.now + self.facts[job.id].seconds
        heapq.heappush(self.ending, (end, job.id))
        self.runs.append(Started(job=job.id, submitted=job.submitted, start=self.now, end=end, placement=placement))


class _Fading:
    """The weights that a simulation began with, fading while it runs."""

    def __init__(self, weights: Mapping[int, float], policy: Policy, at: float) -> None:
        self._extra = {owner: max(weight - 1.0, 0.0) for owner, weight in weights.items()}
        self._half = policy.half_life_s
        self._at = at

    def plus(self, weights: dict[int, float], now: float) -> dict[int, float]:
        if self._extra:
            kept = 0.5 ** ((now - self._at) / self._half) if self._half > 0 else 1.0
            for owner, extra in self._extra.items():
                weights[owner] = weights.get(owner, 1.0) + extra * kept
        return weights
