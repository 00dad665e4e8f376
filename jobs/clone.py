"""An earlier job as the begin of a new one."""

from __future__ import annotations

import re
import shlex
from typing import Any

from jobs.models import Job
from jobs.needs import KIND
from jobs.policy import policy_current
from quotas.models import User
from quotas.selectors import projects_to_submit
from quotas.services import project_personal

#: Whose values a clone leaves out. Rather one too many than one too few: an empty value is seen and typed again.
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|PRIVATE|_PWD|COOKIE|SESSION|DSN|SIGNATURE", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@")  # an address with a password in it


def env_is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def initial_from(job: Job, *, reader: User) -> tuple[dict[str, Any], list[str]]:
    """The form's first values for a clone, and the names of variables whose values are not copied.

    Secrets never are; and of another's job (staff) none are: the values are its owner's alone. ``job.project`` loaded.
    """
    env: list[str] = []
    left_out: list[str] = []
    for name, value in sorted(job.env.items()):
        # A value with a line break can't be written on one line: it is left to be typed again too.
        if job.owner_id != reader.pk or env_is_secret(name, str(value)) or "\n" in str(value):
            left_out.append(name)
            value = ""
        env.append(f"{name}={value}")
    asked, mib, host_mib = job.constraints, job.gpu_mem_mib, job.constraints.get("host_mem_mib")
    policy = policy_current()
    raises = {name for name, points in policy.qos if points > 0}
    qos = job.qos if job.qos in dict(policy.qos) and (reader.is_staff or job.qos not in raises) else ""
    is_own_project = projects_to_submit(reader).filter(pk=job.project_id).exists()
    initial = {
        "name": job.name,
        "project": job.project.name if is_own_project else project_personal(reader).name,
        "kind": "line",
        "command": shlex.join(job.argv),
        "workdir": job.workdir,
        "gpu_count": str(job.gpu_count),
        "gpu_mem": _amount(mib),
        "mem_unit": _unit(mib),
        "exclusive": bool(asked.get("exclusive")),
        "nodes": str(job.nodes),
        "cpus": f"{asked['cpu_milli'] / 1000:g}" if asked.get("cpu_milli") else "",
        "host_mem": _amount(host_mib),
        "host_unit": _unit(host_mib),
        **{key: asked.get(key, "") for key in KIND},
        "labels": "\n".join(f"{key}={value}" for key, value in sorted((asked.get("labels") or {}).items())),
        "time": "" if job.time_limit_s is None else clock_of(job.time_limit_s),
        "checkpoint": job.checkpoint,
        "env": "\n".join(env),
        "secrets": " ".join(job.secrets or ()),
        "requeue": job.requeue,
        "on_node_loss": job.on_node_loss,
        "grace_s": "" if job.grace_s is None else str(job.grace_s),
        "queue": job.queue if job.queue in {queue.name for queue in policy.queues} else "",
        "qos": qos,
        "priority": str(job.priority) if reader.is_staff else str(min(0, job.priority)),
    }
    return initial, left_out


def _amount(mib: int | None) -> str:
    return "" if mib is None else str(mib // 1024 if mib % 1024 == 0 else mib)


def _unit(mib: int | None) -> str:
    return "M" if mib is not None and mib % 1024 else "G"


def clock_of(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
