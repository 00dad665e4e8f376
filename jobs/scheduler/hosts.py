"""What live jobs hold of their hosts while a simulation runs."""

from __future__ import annotations

from dataclasses import replace

from jobs.scheduler.types import Request, Snapshot


class Hosts:
    """What live ranks hold of their hosts: cores, memory and, of jobs without a card, turns."""

    def __init__(self, cluster: Snapshot) -> None:
        self._by_id = {node.id: node for node in cluster.nodes}
        self.nodes = cluster.nodes
        self._live: dict[int, tuple[Request, list[int]]] = {}
        # What runs at the beginning is in its nodes' numbers already.
        place = {gpu.id: node.id for node in cluster.nodes for gpu in node.gpus}
        for run in cluster.running:
            there = sorted({place[part.gpu] for part in run.slices if part.gpu in place} | (set(run.nodes) & self._by_id.keys()))
            if run.request is not None and _is_on_host(run.request) and there:
                self._live[run.job] = (run.request, there)

    def turn(self, number: int, takes_work: bool) -> None:
        """A node is drained, or takes work again."""
        self._by_id[number] = replace(self._by_id[number], takes_work=takes_work, refusal=None if takes_work else "cordoned")
        self.nodes = tuple(self._by_id.values())

    def enter(self, job: int, request: Request, nodes: list[int]) -> None:
        if _is_on_host(request):
            self._live[job] = (request, nodes)
            self._change(request, nodes, 1)

    def leave(self, job: int) -> None:
        request, nodes = self._live.pop(job, (None, []))
        if request is not None:
            self._change(request, nodes, -1)

    def _change(self, request: Request, nodes: list[int], sign: int) -> None:
        for number in nodes:
            node = self._by_id[number]
            self._by_id[number] = replace(
                node,
                cpu_milli_held=max(node.cpu_milli_held + sign * (request.cpu_milli or 0), 0),
                memory_mib_held=max(node.memory_mib_held + sign * (request.host_mem_mib or 0), 0),
                live_cpu_ranks=max(node.live_cpu_ranks + sign * (request.gpu_count == 0), 0),
            )
        self.nodes = tuple(self._by_id.values())


def _is_on_host(request: Request) -> bool:
    return request.gpu_count == 0 or request.cpu_milli is not None or request.host_mem_mib is not None
