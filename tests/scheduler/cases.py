"""Scheduling cases that read like the situation: ``Case().node("a", mib=24_576).job(mib=9_000).expect("a")``.

Nodes are numbered from 1 as they are added, cards node × 100 + index, jobs from 1. ``plan`` re-derives the free memory after
each plan and re-checks each grant, so that no case passes on a plan that breaks the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobs.scheduler import (
    Gpu,
    Job,
    Link,
    Node,
    Plan,
    Policy,
    Reason,
    Refusal,
    Request,
    Running,
    Slice,
    Snapshot,
    grant_for,
    plan,
    rank_fits,
)


class Case:
    def __init__(self, **policy: Any) -> None:
        self.policy = Policy(**policy)
        self.nodes: list[Node] = []
        self.slices: list[Slice] = []
        self.running: list[Running] = []
        self.jobs: list[Job] = []
        self.now = 1_000.0
        self._result: Plan | None = None

    # The situation

    def node(
        self,
        name: str,
        *,
        mib: int | None = 24_576,
        cards: int = 1,
        refusal: str | None = None,
        links: Mapping[tuple[int, int], str] | None = None,
        models: Sequence[str] | None = None,
        cpu_cores: int | None = 16,
        live_cpu_ranks: int = 0,
        host: Mapping[str, Any] | None = None,
        per_card: Sequence[Mapping[str, Any]] = (),
        **gpu: Any,
    ) -> Case:
        number = len(self.nodes) + 1
        gpus = []
        for index in range(cards):
            fields: dict[str, Any] = {"model": "RTX 4090", "total_mib": mib, **gpu}
            if models is not None:
                fields["model"] = models[index]
            if index < len(per_card):
                fields.update(per_card[index])
            gpus.append(Gpu(id=number * 100 + index, uuid=f"GPU-{name}-{index}", index=index, **fields))
        near = tuple(Link(a=number * 100 + a, b=number * 100 + b, kind=kind) for (a, b), kind in (links or {}).items())
        node = Node(
            id=number,
            name=name,
            gpus=tuple(gpus),
            links=near,
            takes_work=refusal is None,
            refusal=refusal,
            cpu_cores=cpu_cores,
            live_cpu_ranks=live_cpu_ranks,
            **(host or {}),
        )
        self.nodes.append(node)
        return self

    def card(self, place: str) -> Gpu:
        """``"a:1"`` = the card with index 1 of node a."""
        name, index = place.split(":")
        node = next(node for node in self.nodes if node.name == name)
        return node.gpus[int(index)]

    def taken(
        self, place: str, mib: int | None = None, *, job: int | None = None, started: float = 0.0, limit_s: int | None = None, **part: Any
    ) -> Case:
        """A live slice; without ``mib`` the whole card. ``job`` None = a running job of its own."""
        gpu = self.card(place)
        owner = 1_000 + len(self.slices) if job is None else job
        live = Slice(gpu=gpu.id, mib=mib if mib is not None else gpu.total_mib or 0, exclusive=mib is None, job=owner, **part)
        self.slices.append(live)
        self.running.append(Running(job=owner, user=1, slices=(live,), started=started, time_limit_s=limit_s))
        return self

    def job(
        self,
        *,
        mib: int | None = None,
        cards: int = 1,
        nodes: int = 1,
        count: int = 1,
        request: Mapping[str, Any] | None = None,
        **job: Any,
    ) -> Case:
        for _ in range(count):
            number = len(self.jobs) + 1
            asked = Request(gpu_count=cards, gpu_mem_mib=mib, nodes=nodes, **(request or {}))
            self.jobs.append(Job(id=number, request=asked, **{"submitted": float(number), **job}))
        return self

    # The answer

    def snapshot(self) -> Snapshot:
        return Snapshot(
            now=self.now, nodes=tuple(self.nodes), jobs=tuple(self.jobs), slices=tuple(self.slices), running=tuple(self.running)
        )

    def plan(self) -> Plan:
        if self._result is None:
            snapshot = self.snapshot()
            self._result = plan(snapshot, self.policy)
            plan_check(snapshot, self.policy, self._result)
        return self._result

    def places(self) -> list[str | None]:
        """For each job in the order added: ``"a:0,a:1"`` (ranks parted by ``|``), ``"a"`` for a rank without cards, None = waits."""
        by_job = {placement.job: placement for placement in self.plan().placements}
        names = {node.id: node.name for node in self.nodes}
        index = {gpu.id: gpu.index for node in self.nodes for gpu in node.gpus}
        answer: list[str | None] = []
        for job in self.jobs:
            placed = by_job.get(job.id)
            if placed is None:
                answer.append(None)
                continue
            ranks = [
                ",".join(f"{names[rank.node]}:{index[grant.gpu]}" for grant in rank.grants) or names[rank.node] for rank in placed.ranks
            ]
            answer.append("|".join(ranks))
        return answer

    def expect(self, *places: str | None) -> Case:
        """Where each job goes, in the order added; ``"a"`` also stands for any card of node a."""
        for number, (have, want) in enumerate(zip(self.places(), places, strict=True), start=1):
            if have == want or (have is not None and want is not None and ":" not in want and _nodes_of(have) == want):
                continue
            raise AssertionError(f"job {number}: expected {want}, is {have}; refusals {self.plan().refusals}")
        return self

    def mib(self) -> list[int]:
        """MiB taken by each grant, in the order placed."""
        return [grant.mib for placement in self.plan().placements for rank in placement.ranks for grant in rank.grants]

    def refusal(self, job: int = 1) -> Refusal:
        return next(refusal for refusal in self.plan().refusals if refusal.job == job)

    def expect_reason(self, code: str, *, job: int = 1, never: bool = False, **params: Any) -> Case:
        """The job's reason: its code, and all the params given."""
        refusal = self.refusal(job)
        have = {name: refusal.reason.params.get(name) for name in params}
        assert (refusal.reason.code, have, refusal.never) == (code, params, never), refusal
        return self


def _nodes_of(places: str) -> str:
    return "|".join(rank.split(":")[0] for rank in places.split("|"))


def hosts_after(snapshot: Snapshot, result: Plan) -> list[Node]:
    """The nodes with what the placed ranks hold of the host added."""
    requests = {job.id: job.request for job in snapshot.jobs}
    nodes = {node.id: node for node in snapshot.nodes}
    for placement in result.placements:
        request = requests[placement.job]
        for rank in placement.ranks:
            node = nodes[rank.node]
            nodes[rank.node] = replace(
                node,
                cpu_milli_held=node.cpu_milli_held + (request.cpu_milli or 0),
                memory_mib_held=node.memory_mib_held + (request.host_mem_mib or 0),
            )
    return list(nodes.values())


def plan_check(snapshot: Snapshot, policy: Policy, result: Plan) -> None:
    """Re-derive everything from the plan: each job answered once; each rank fits; memory, slice count and exclusivity hold."""
    answered = [placement.job for placement in result.placements] + [refusal.job for refusal in result.refusals]
    assert sorted(answered) == sorted(job.id for job in snapshot.jobs)
    jobs = {job.id: job for job in snapshot.jobs}
    nodes = {node.id: node for node in snapshot.nodes}
    gpus = {gpu.id: gpu for node in snapshot.nodes for gpu in node.gpus}
    live = list(snapshot.slices)
    for placement in result.placements:
        request = jobs[placement.job].request
        assert jobs[placement.job].hold is None
        assert [rank.index for rank in placement.ranks] == list(range(request.nodes))
        assert len({rank.node for rank in placement.ranks}) == request.nodes
        cards = [grant.gpu for rank in placement.ranks for grant in rank.grants]
        assert len(cards) == len(set(cards)) == request.gpu_count
        before = list(live)
        for rank in placement.ranks:
            assert rank_fits(request, rank, nodes[rank.node], before, policy) is None
            for grant in rank.grants:
                assert grant_for(request, gpus[grant.gpu], before, policy) == grant
                live.append(Slice(gpu=grant.gpu, mib=grant.mib, exclusive=grant.exclusive, job=placement.job))
    before_hosts = {node.id: node for node in snapshot.nodes}
    for node in hosts_after(snapshot, result):
        if node != before_hosts[node.id]:
            assert node.cpu_milli_held <= (node.cpu_cores or 0) * 1000 or node.cpu_milli_held == before_hosts[node.id].cpu_milli_held
            assert node.memory_mib_held <= (node.memory_mib or 0) or node.memory_mib_held == before_hosts[node.id].memory_mib_held
    fresh = {grant.gpu for placement in result.placements for rank in placement.ranks for grant in rank.grants}
    for gpu_id in fresh:
        parts = [part for part in live if part.gpu == gpu_id]
        gpu = gpus[gpu_id]
        assert sum(part.mib for part in parts) <= (gpu.total_mib or 0), f"card {gpu_id} is oversubscribed"
        assert len(parts) == 1 or not any(part.exclusive for part in parts), f"card {gpu_id} is shared with an exclusive slice"
        if policy.slicing_rules:
            assert len(parts) <= min(gpu.max_slices, policy.max_slices)


def reason_of(value: object) -> Reason:
    assert isinstance(value, Reason), value
    return value
