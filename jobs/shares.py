"""``--gpu-mem 0.5``: a share of a GPU, which becomes MiB when the job is submitted (D27).

It is the share of the nominal memory of the GPUs that the request is for. Those must be of one size: of a pool with 24 GiB and 80 GiB
GPUs half of "a GPU" says nothing, so a model (or vendor, or architecture) has to be named. What is stored is MiB; nothing later depends
on which GPUs come or go.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction

from jobs import snapshot
from jobs.parsing import Unreadable
from jobs.requests import JobRequest
from jobs.scheduler.need import kind_mismatch, node_mismatch, nominal_mib


def share_mib(share: Fraction, sizes: Collection[int]) -> int:
    """Whole MiB, rounded down, of the one nominal size. Raises Unreadable: ``share_no_gpu``, ``share_many_sizes``. Pure."""
    shown = f"{float(share):g}"
    if not sizes:
        raise Unreadable("share_no_gpu", value=shown)
    if len(sizes) > 1:
        raise Unreadable("share_many_sizes", value=shown, sizes=sorted(sizes))
    return max(1, int(share * next(iter(sizes))))


def sizes_for(request: JobRequest) -> set[int]:
    """Nominal MiB of the GPUs of the pool that are of the kind that is asked for, in service or not. Two queries."""
    wanted = snapshot.request_of(request)
    found: set[int] = set()
    for node in snapshot.nodes_all():
        if node_mismatch(wanted, node) is None:
            found |= {
                gpu.nominal_mib or nominal_mib(gpu.total_mib)
                for gpu in node.gpus
                if gpu.total_mib is not None and kind_mismatch(wanted, gpu) is None
            }
    return found
