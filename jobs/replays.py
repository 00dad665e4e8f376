"""The installation's own past as a scenario: the jobs of a period with what they asked for, when they came and how long they ran.

What can't be taken over as it was is left out or taken for something near; ``Replay.notes`` says so, with numbers, and so must
whoever shows the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from jobs.history import MIX_KINDS, NOT_FINISHED, OWN_ENDS
from jobs.past import Lap, PastJob, past_read
from jobs.scheduler import types as core
from jobs.scheduler.predict import Finished, History, name_stem
from jobs.scheduler.runs import Ran, cards_asked
from jobs.scheduler.scenario import Scenario
from jobs.scheduler.simulate import Arrival
from jobs.scheduler.workload import Workload, names_hidden
from jobs.snapshot import nodes_all
from nodes.models import GpuState
from quotas.models import Project, User

EARLIER = timedelta(days=30)  # before the period: what predictions and past use are made from


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """``recorded``: how it really went, for the jobs of ``scenario.arrivals``, in the same order.

    ``notes``: code of jobs.wording.simulations → how many jobs (or cards) are not as they were.
    """

    scenario: Scenario
    recorded: tuple[Ran, ...]
    users: Mapping[int, str]
    projects: Mapping[int, str]
    notes: Mapping[str, int]


def replay_read(*, since: datetime, until: datetime) -> Replay:
    """What came in [since, until), and what was there at ``since``, on the nodes as they are known now."""
    past = past_read(since=since - EARLIER, until=until)
    reader = _Reader(past, since.timestamp(), until.timestamp())
    for job in past:
        reader.take(job)
    return Replay(
        scenario=reader.scenario(),
        recorded=tuple(reader.recorded),
        users=dict(User.objects.filter(pk__in={job.user for job in past}).values_list("pk", "email")),
        projects=dict(Project.objects.filter(pk__in={job.project for job in past}).values_list("pk", "name")),
        notes={code: count for code, count in sorted(reader.notes.items()) if count},
    )


class _Reader:
    def __init__(self, past: Sequence[PastJob], begin: float, until: float) -> None:
        self.begin, self.until = begin, until
        self.notes: Counter[str] = Counter()
        self.nodes = nodes_in_service(self.notes)
        self.bare = core.Snapshot(now=begin, nodes=self.nodes, jobs=(), mix=_mix(past, begin))
        self.known_nodes = {node.id for node in self.nodes}
        self.known = {gpu.id for node in self.nodes for gpu in node.gpus}
        self.earlier = tuple(
            replace(_ran(job, lap), has_finished=_counts(job, lap)) for job in past for lap in job.laps if lap.start < begin
        )
        self.finished = _finished(past, begin)
        self.history = History(self.finished)
        self.running: list[core.Running] = []
        self.slices: list[core.Slice] = []
        self.ends: dict[int, float] = {}
        self.arrivals: list[Arrival] = []
        self.recorded: list[Ran] = []

    def scenario(self) -> Scenario:
        return Scenario(
            arrivals=tuple(self.arrivals),
            cluster=replace(self.bare, nodes=self._hosts(), slices=tuple(self.slices), running=tuple(self.running)),
            ends=self.ends,
            earlier=self.earlier,
            finished=self.finished,
        )

    def _hosts(self) -> tuple[core.Node, ...]:
        """The nodes with what the jobs that ran at the beginning hold of their cores and memory."""
        place = {gpu.id: node.id for node in self.nodes for gpu in node.gpus}
        cores: Counter[int] = Counter()
        memory: Counter[int] = Counter()
        turns: Counter[int] = Counter()
        for run in self.running:
            if run.request is not None:
                for node in {place[part.gpu] for part in run.slices} | set(run.nodes):
                    cores[node] += run.request.cpu_milli or 0
                    memory[node] += run.request.host_mem_mib or 0
                    turns[node] += run.request.gpu_count == 0
        return tuple(
            replace(node, cpu_milli_held=cores[node.id], memory_mib_held=memory[node.id], live_cpu_ranks=turns[node.id])
            for node in self.nodes
        )

    def take(self, job: PastJob) -> None:
        """Sort a job in: it ran when the period began, or came (or waited) in it, or is left out."""
        there = next((lap for lap in job.laps if lap.start < self.begin and (lap.end is None or lap.end > self.begin)), None)
        if there is not None:
            self._ran_at_the_beginning(job, there)
            return
        before = [lap for lap in job.laps if lap.start < self.begin]
        laps = [lap for lap in job.laps if lap.start >= self.begin]
        if laps:
            self._arrived(job, before, laps)
        elif job.is_over:
            # It ended before the period, or it never ran: nobody knows how long it would have.
            self.notes["never_ran"] += not before and job.submitted >= self.begin
        elif job.held:
            self.notes["held"] += 1
        else:
            self._waits(job, before)

    def _ran_at_the_beginning(self, job: PastJob, lap: Lap) -> None:
        if any(gpu not in self.known for gpu, *_ in lap.cards) or not set(lap.nodes) <= self.known_nodes:
            self.notes["ran_elsewhere"] += 1
            return
        parts = tuple(core.Slice(gpu=gpu, mib=mib, exclusive=whole, job=job.id) for gpu, mib, whole, _share in lap.cards)
        self.slices += parts
        self.ends[job.id] = self._end_of(job, lap)
        self.running.append(
            core.Running(
                job=job.id,
                user=job.user,
                project=job.project,
                queue=job.queue,
                slices=parts,
                started=lap.start,
                time_limit_s=job.time_limit_s,
                predicted_s=self._predicted(job),
                request=job.request,
                nodes=() if parts else tuple(sorted(lap.nodes)),
            )
        )

    def _arrived(self, job: PastJob, before: Sequence[Lap], laps: Sequence[Lap]) -> None:
        first, last = laps[0], laps[-1]
        submitted = self._since_when(job, before, first.start)
        # One run of the length of the last: in the simulation no machine fails, so nothing is run again.
        self.notes["requeued"] += len(laps) > 1
        seconds = max(self._end_of(job, last) - last.start, 0.0)
        self._add(job, submitted, seconds)
        start = max(first.start, submitted)
        self.recorded.append(
            replace(_ran(job, last), submitted=submitted, start=start, end=start + seconds, nodes=tuple(sorted(last.nodes)))
        )

    def _waits(self, job: PastJob, before: Sequence[Lap]) -> None:
        self.notes["waits"] += 1
        submitted = self._since_when(job, before, self.until)
        self._add(job, submitted, self._predicted(job))
        self.recorded.append(
            Ran(
                job=job.id,
                user=job.user,
                project=job.project,
                submitted=submitted,
                start=None,
                end=None,
                cards=cards_asked(job.request, self.bare, core.Policy()),
            )
        )

    def _since_when(self, job: PastJob, before: Sequence[Lap], start: float) -> float:
        """Since when it waited for cards alone: not for the end of a hold, and not while an earlier attempt ran."""
        submitted = job.submitted
        if before and before[-1].end is not None:
            submitted = max(submitted, before[-1].end)
        let_go = [at for at in job.released if submitted < at <= start]
        self.notes["was_held"] += bool(let_go)
        return max([submitted, *let_go])

    def _add(self, job: PastJob, submitted: float, seconds: float) -> None:
        asked = core.Job(
            id=job.id,
            request=job.request,
            submitted=submitted,
            priority=job.priority,
            user=job.user,
            project=job.project,
            time_limit_s=job.time_limit_s,
            queue=job.queue,
            qos=job.qos,
        )
        self.arrivals.append(Arrival(job=asked, seconds=seconds, name=job.name))

    def _predicted(self, job: PastJob) -> float:
        return self.history.predict(user=job.user, project=job.project, name=job.name, request=job.request, time_limit_s=job.time_limit_s)

    def _end_of(self, job: PastJob, lap: Lap) -> float:
        """When it ended; of what still runs, when it probably will: as long as predicted, or as long again as it has run."""
        if lap.end is not None:
            return lap.end
        self.notes["still_runs"] += 1
        so_far = max(self.until - lap.start, 1.0)
        seconds = max(self._predicted(job), 0.0)
        seconds = seconds if seconds > so_far else 2 * so_far
        return lap.start + (seconds if job.time_limit_s is None else max(min(seconds, job.time_limit_s), so_far))


def _counts(job: PastJob, lap: Lap) -> bool:
    """Whether its owner finished a job with it, as history.py counts: not with one that a machine ended, nor without cards."""
    return lap is job.laps[-1] and bool(lap.cards) and lap.reason not in NOT_FINISHED


def _ran(job: PastJob, lap: Lap) -> Ran:
    return Ran(job=job.id, user=job.user, project=job.project, submitted=job.submitted, start=lap.start, end=lap.end, cards=lap.share)


def _mix(past: Iterable[PastJob], begin: float) -> tuple[tuple[core.Request, float], ...]:
    """What came in the time before, by how often: packing keeps room for it. Of a young installation, what comes in the period."""
    came = [job for job in past if job.request.gpu_count]
    found = Counter(job.request for job in came if job.submitted < begin) or Counter(job.request for job in came)
    return tuple((request, float(times)) for request, times in found.most_common(MIX_KINDS))


def _finished(past: Iterable[PastJob], begin: float) -> tuple[Finished, ...]:
    """Those that ended by themselves before the period, in that order."""
    found: list[tuple[float, int, Finished]] = []
    for job in past:
        lap = job.laps[-1] if job.laps else None
        if lap is not None and lap.end is not None and lap.end < begin and lap.reason in OWN_ENDS:
            item = Finished(
                user=job.user,
                project=job.project,
                name=job.name,
                request=job.request,
                time_limit_s=job.time_limit_s,
                seconds=lap.end - lap.start,
            )
            found.append((lap.end, job.id, item))
    return tuple(item for _end, _job, item in sorted(found, key=lambda entry: entry[:2]))


def nodes_in_service(notes: Counter[str]) -> tuple[core.Node, ...]:
    """All known nodes as if they took work, with all cards that are in them and nothing on them."""
    found = []
    for node in nodes_all():
        there = [gpu for gpu in node.gpus if gpu.state != GpuState.MISSING and gpu.total_mib]
        notes["cards_left_out"] += len(node.gpus) - len(there)
        notes["cards_out_of_service"] += sum(gpu.state != GpuState.HEALTHY or not node.takes_work for gpu in there)
        gpus = tuple(
            replace(gpu, is_schedulable=True, state=str(GpuState.HEALTHY), foreign_mib=0, temp_c=None, util_pct=None, health=100)
            for gpu in there
        )
        ids = {gpu.id for gpu in gpus}
        links = tuple(link for link in node.links if link.a in ids and link.b in ids)
        found.append(
            replace(
                node,
                gpus=gpus,
                links=links,
                takes_work=True,
                refusal=None,
                live_cpu_ranks=0,
                cpu_milli_held=0,
                memory_mib_held=0,
                power_headroom_pct=None,
            )
        )
    return tuple(found)


# For a file


def workload_of(workload: Workload, *, since: float, with_names: bool) -> Workload:
    """The jobs that came from ``since`` on; without ``with_names`` people, projects and kinds of job are numbered."""
    arrivals = tuple(item for item in workload.arrivals if item.job.submitted >= since)
    if with_names:
        return replace(workload, arrivals=arrivals)
    kinds = {stem: f"kind-{_letters(at)}" for at, stem in enumerate(sorted({name_stem(item.name) for item in arrivals}))}
    return Workload(
        arrivals=tuple(replace(item, name=kinds[name_stem(item.name)]) for item in arrivals),
        users=names_hidden({item.job.user for item in arrivals}, "user"),
        projects=names_hidden({item.job.project for item in arrivals}, "project"),
    )


def _letters(number: int) -> str:
    """0 → a, 25 → z, 26 → aa: digits tell no kinds of job apart (predict.name_stem)."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
