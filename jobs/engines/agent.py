"""The default engine: an attempt runs as ranks of node agents. What a rank is told is built here.

Later engines (Slurm, Kubernetes) stand beside this one behind the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.protocol import GpuGrant, RankSpec, SecretRef
from jobs.models import Job
from jobs.scheduler.types import RankPlacement

NOBODY: Mapping[int, tuple[str, int | None]] = {}
PORT_BASE, PORT_SPAN = 20_000, 12_000  # below Linux's ephemeral range (32768 and up)


def master_port(attempt_id: int) -> int:
    """A port for torchrun's rendezvous, different for any 12,000 attempts in a row."""
    return PORT_BASE + attempt_id % PORT_SPAN


def rank_specs(
    *,
    job: Job,
    epoch: int,
    attempt_id: int,
    ranks: Sequence[RankPlacement],
    uuids: Mapping[int, str],
    addresses: Mapping[int, str],
    log_cap_mib: int,
    grace_s: int,
    owner: str,
    secrets: tuple[SecretRef, ...] = (),
    accounts: Mapping[int, tuple[str, int | None]] = NOBODY,
) -> list[RankSpec]:
    """One spec a rank, in rank order. ``accounts``: node → the owner's Unix account there, on nodes that map people to accounts.

    The user's variables win over ours here; D12's are added by the agent and win over both.
    """
    total = sum(len(rank.grants) for rank in ranks)
    specs: list[RankSpec] = []
    for rank in ranks:
        account, uid = accounts.get(rank.node, (None, None))
        env = {
            "NEBULA_JOB_ID": str(job.pk),
            "NEBULA_JOB_NAME": job.name,
            "NEBULA_JOB_OWNER": owner,
            "NEBULA_ATTEMPT": str(epoch),
            "NEBULA_NNODES": str(len(ranks)),
            "NEBULA_NODE_RANK": str(rank.index),
            "NEBULA_GPU_COUNT": str(total),
            "MASTER_ADDR": addresses[ranks[0].node],
            "MASTER_PORT": str(master_port(attempt_id)),
            "NNODES": str(len(ranks)),
            "NODE_RANK": str(rank.index),
        }
        if job.checkpoint:
            env["NEBULA_CHECKPOINT"] = job.checkpoint
            if epoch > 1:
                # The agent drops it again where nothing has been saved yet.
                env["NEBULA_RESUME_FROM"] = job.checkpoint
        specs.append(
            RankSpec(
                job=job.pk,
                index=rank.index,
                argv=tuple(job.argv),
                name=job.name,
                env={**env, **job.env},
                workdir=job.workdir or None,
                gpus=tuple(GpuGrant(uuid=uuids[grant.gpu], mib=grant.mib, exclusive=grant.exclusive) for grant in rank.grants),
                time_limit_s=job.time_limit_s,
                grace_s=job.grace_s or grace_s,
                checkpoint=job.checkpoint or None,
                log_cap_mib=log_cap_mib,
                memory_mib=job.constraints.get("host_mem_mib"),
                cpu_milli=job.constraints.get("cpu_milli"),
                secrets=secrets,
                unix_user=account,
                unix_uid=uid,
            )
        )
    return specs
