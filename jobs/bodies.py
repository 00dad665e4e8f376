"""A job as the body of the submit that would make it again."""

from __future__ import annotations

from typing import Any

from jobs.clone import clock_of
from jobs.models import Job
from jobs.needs import KIND
from quotas.models import User


def body_of(job: Job, *, reader: User) -> dict[str, Any]:
    """``job.project`` loaded. What has its default is left out; so is another's environment, whose values are its owner's alone."""
    asked = job.constraints
    mib, cores, host = job.gpu_mem_mib, asked.get("cpu_milli"), asked.get("host_mem_mib")
    body: dict[str, Any] = {
        "name": job.name,
        "argv": list(job.argv),
        "gpu_count": job.gpu_count,
        "gpu_mem": None if mib is None else size_text(mib),
        "exclusive": bool(asked.get("exclusive")) or None,
        "nodes": job.nodes,
        "cpus": None if cores is None else f"{cores / 1000:g}",
        "host_mem": None if host is None else size_text(host),
        "workdir": job.workdir or None,
        "env": dict(job.env) if job.owner_id == reader.pk and job.env else None,
        "secrets": list(job.secrets or ()) or None,
        "time": None if job.time_limit_s is None else clock_of(job.time_limit_s),
        "project": None if job.project.personal_of_id == job.owner_id else job.project.name,
        "checkpoint": job.checkpoint or None,
        "requeue": None if job.requeue else False,
        "on_node_loss": job.on_node_loss,
        "grace_s": job.grace_s,
        "priority": job.priority or None,
        "queue": job.queue or None,
        "qos": job.qos or None,
        "constraints": {key: asked[key] for key in KIND if asked.get(key)} or None,
    }
    return {key: value for key, value in body.items() if value is not None}


def size_text(mib: int) -> str:
    """``24G``, or ``1500M`` where it is no whole number of GiB."""
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"
