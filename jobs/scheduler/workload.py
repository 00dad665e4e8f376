"""Workloads as files: reads and writes the layouts of docs/simulating.md. Text in, text out; opens no file itself.

Two layouts of a workload, told apart by their columns: the short one of many published traces (id,tenant,submit,duration,est,
num_gpu,milli) and our own, which says all that a job can ask for. Whatever can't be read is a WorkloadError with its numbers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobs.scheduler.clusters import MILLI_CARD_MIB, Cluster, WorkloadError
from jobs.scheduler.need import request_error
from jobs.scheduler.simulate import Arrival
from jobs.scheduler.types import Job, Request

SHORT = ("id", "tenant", "submit", "duration", "num_gpu", "milli")
FULL = (
    "id", "user", "project", "name", "submitted_s", "runtime_s", "time_limit_s", "gpu_count", "gpu_mem_mib", "nodes", "priority",
    "queue", "qos", "arch", "model", "vendor", "cuda_min", "driver_min", "labels", "cpu_milli", "host_mem_mib", "exclusive",
)  # fmt: skip
MOST = 1e12  # of any number: seconds of 30,000 years
_NEEDED = ("id", "user", "submitted_s", "runtime_s", "gpu_count")  # of FULL; the others may be missing or empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Arrivals in the order of the file. ``users`` and ``projects``: number -> the name that the file gave it."""

    arrivals: tuple[Arrival, ...]
    users: Mapping[int, str] = field(default_factory=dict)
    projects: Mapping[int, str] = field(default_factory=dict)


def workload_read(lines: Iterable[str], cluster: Cluster, *, limits: bool = True) -> Workload:
    """A workload in either layout. ``limits`` False: no job has a time limit. Raises WorkloadError, by line."""
    rows = csv.DictReader(lines)
    try:
        columns = tuple(rows.fieldnames or ())
    except csv.Error as error:
        raise WorkloadError("not_csv", line=rows.line_num) from error
    if set(SHORT) <= set(columns):
        read: _Reader = _Short(cluster, limits)
    elif set(_NEEDED) <= set(columns):
        read = _Full(limits)
    else:
        raise WorkloadError("columns", have=", ".join(columns)[:200], short=",".join(SHORT), full=",".join(_NEEDED))
    arrivals = []
    seen: set[int] = set()
    for row in _rows(rows):
        arrival = read.arrival(_Row(row, rows.line_num))
        if arrival.job.id in seen:
            raise WorkloadError("row_twice", line=rows.line_num, id=arrival.job.id)
        seen.add(arrival.job.id)
        arrivals.append(arrival)
    if not arrivals:
        raise WorkloadError("empty")
    return read.workload(arrivals)


def _rows(rows: csv.DictReader[str]) -> Iterator[dict[str, str | None]]:
    try:
        yield from rows
    except csv.Error as error:
        raise WorkloadError("not_csv", line=rows.line_num) from error


class _Row:
    """A line's cells; what can't be read names line, column and value."""

    def __init__(self, cells: Mapping[str, str | None], line: int) -> None:
        self._cells = cells
        self.line = line

    def text(self, column: str) -> str:
        return (self._cells.get(column) or "").strip()

    def number(self, column: str, *, least: float = -math.inf) -> float:
        try:
            value = float(self.text(column))
        except ValueError:
            value = math.nan
        if not abs(value) <= MOST or value < least:
            raise WorkloadError("row_number", line=self.line, column=column, value=self.text(column)[:60], least=_least(least))
        return value

    def whole(self, column: str, *, least: int = 0, most: int = 2**53) -> int:
        value = self.number(column, least=least)
        if value != int(value) or value > most:
            raise WorkloadError("row_number", line=self.line, column=column, value=self.text(column)[:60], least=_least(least))
        return int(value)

    def whole_or_none(self, column: str, *, least: int = 0) -> int | None:
        return self.whole(column, least=least) if self.text(column) else None


def _least(value: float) -> float | int | None:
    return None if value == -math.inf else int(value)


class _Owners:
    """Names -> numbers from 1 on, by name, once all are known."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self._first.setdefault(name, len(self._first) + 1)

    def by_name(self) -> tuple[dict[int, int], dict[int, str]]:
        """(number as read -> number by name, number by name -> name): the order of the lines must not matter."""
        names = sorted(self._first)
        return {self._first[name]: at for at, name in enumerate(names, start=1)}, dict(enumerate(names, start=1))


class _Reader:
    def __init__(self) -> None:
        self.users, self.projects = _Owners(), _Owners()
        # Equal requests are one object: plan() looks jobs up by them.
        self._requests: dict[Request, Request] = {}

    def arrival(self, row: _Row) -> Arrival:
        raise NotImplementedError

    def request(self, request: Request, row: _Row) -> Request:
        found = self._requests.get(request)
        if found is None:
            wrong = request_error(request)
            if wrong is not None:
                raise WorkloadError("row_request", line=row.line, reason=wrong.code, **wrong.params)
            found = self._requests[request] = request
        return found

    def workload(self, arrivals: Sequence[Arrival]) -> Workload:
        users, user_names = self.users.by_name()
        projects, project_names = self.projects.by_name()
        return Workload(
            arrivals=tuple(_renumbered(arrival, users, projects) for arrival in arrivals), users=user_names, projects=project_names
        )


def _renumbered(arrival: Arrival, users: Mapping[int, int], projects: Mapping[int, int]) -> Arrival:
    job = arrival.job
    return replace(arrival, job=replace(job, user=users[job.user], project=projects.get(job.project, 0)))


class _Short(_Reader):
    """id,tenant,submit,duration,est,num_gpu,milli: whole cards, or thousandths of one (of the smallest card of the cluster)."""

    def __init__(self, cluster: Cluster, limits: bool) -> None:
        super().__init__()
        self._limits = limits
        self._cards = [len(node.gpus) for node in cluster.snapshot.nodes]
        sizes = [gpu.nominal_mib or gpu.total_mib or 0 for node in cluster.snapshot.nodes for gpu in node.gpus]
        self._by_size: dict[tuple[int, int], Request] = {}
        self._card_mib = min((size for size in sizes if size), default=MILLI_CARD_MIB)

    def arrival(self, row: _Row) -> Arrival:
        cards, milli = row.whole("num_gpu", most=100_000), row.whole("milli", most=1000)
        limit = max(1, round(row.number("est", least=0))) if self._limits and row.text("est") else None
        if (cards, milli) not in self._by_size:
            self._by_size[cards, milli] = self.request(self._request(cards, milli), row)
        job = Job(
            id=row.whole("id"),
            request=self._by_size[cards, milli],
            submitted=row.number("submit"),
            user=self.users.of(row.text("tenant")),
            time_limit_s=limit,
        )
        return Arrival(job=job, seconds=row.number("duration", least=0))

    def _request(self, cards: int, milli: int) -> Request:
        if cards == 0:
            return Request(gpu_count=0)
        if 0 < milli < 1000:
            return Request(gpu_count=cards, gpu_mem_mib=max(milli * self._card_mib // 1000, 1))
        return Request(gpu_count=cards, nodes=nodes_for(cards, self._cards) or 1)


def nodes_for(cards: int, nodes: Sequence[int]) -> int | None:
    """On how few nodes (cards of each) so many cards can be had, spread evenly; None = on none."""
    for count in range(1, len(nodes) + 1):
        if cards % count == 0 and sum(have >= cards // count for have in nodes) >= count:
            return count
    return None


class _Full(_Reader):
    """Our own layout: all that a job can ask for."""

    def __init__(self, limits: bool) -> None:
        super().__init__()
        self._limits = limits

    def arrival(self, row: _Row) -> Arrival:
        request = Request(
            gpu_count=row.whole("gpu_count", most=100_000),
            gpu_mem_mib=row.whole_or_none("gpu_mem_mib", least=1),
            nodes=row.whole_or_none("nodes", least=1) or 1,
            arch=row.text("arch") or None,
            model=row.text("model") or None,
            vendor=row.text("vendor") or None,
            cuda_min=row.text("cuda_min") or None,
            driver_min=row.text("driver_min") or None,
            labels=_labels_read(row),
            cpu_milli=row.whole_or_none("cpu_milli"),
            host_mem_mib=row.whole_or_none("host_mem_mib"),
            is_exclusive=row.text("exclusive") in {"1", "true", "True"},
        )
        job = Job(
            id=row.whole("id"),
            request=self.request(request, row),
            submitted=row.number("submitted_s"),
            priority=int(row.number("priority")) if row.text("priority") else 0,
            user=self.users.of(row.text("user")),
            project=self.projects.of(row.text("project")) if row.text("project") else 0,
            time_limit_s=row.whole_or_none("time_limit_s", least=1) if self._limits else None,
            queue=row.text("queue"),
            qos=row.text("qos"),
        )
        return Arrival(job=job, seconds=row.number("runtime_s", least=0), name=row.text("name"))


def _labels_read(row: _Row) -> tuple[tuple[str, str], ...]:
    text = row.text("labels")
    if not text:
        return ()
    pairs = [part.partition("=") for part in text.split(";")]
    if any(not sign for _key, sign, _value in pairs):
        raise WorkloadError("row_labels", line=row.line, value=text[:60])
    return tuple(sorted((key, value) for key, _sign, value in pairs))


def workload_write(workload: Workload, *, since: float = 0.0) -> Iterator[list[str]]:
    """The rows of our layout, the header first; times count from ``since``."""
    yield list(FULL)
    for arrival in workload.arrivals:
        job, request = arrival.job, arrival.job.request
        cells = (
            job.id, workload.users.get(job.user, job.user), workload.projects.get(job.project, job.project or ""), arrival.name,
            round(job.submitted - since, 3), round(arrival.seconds, 3), job.time_limit_s, request.gpu_count, request.gpu_mem_mib,
            request.nodes, job.priority, job.queue, job.qos, request.arch, request.model, request.vendor, request.cuda_min,
            request.driver_min, ";".join(f"{key}={value}" for key, value in request.labels), request.cpu_milli, request.host_mem_mib,
            int(request.is_exclusive),
        )  # fmt: skip
        yield ["" if cell is None else str(cell) for cell in cells]


def names_hidden(numbers: Iterable[int], stem: str) -> dict[int, str]:
    """``user-1`` … instead of names."""
    return {number: f"{stem}-{at}" for at, number in enumerate(sorted(numbers), start=1)}
