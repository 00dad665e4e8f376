"""Rows for tests: plain functions, each with sensible values for what a test does not care about.

They write rows as the services would leave them; what a test is about it sets by name.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db.models import F
from django.utils import timezone

from agent.protocol import GpuInfo, GpuStatus, Inventory, IsolationInfo, LinkInfo, SyncRequest, rank_id
from jobs.lifecycle import FINAL, LIVE, JobState, RankState, SliceState, Want
from jobs.models import Attempt, Job, JobEvent, Rank, Slice
from nodes.inventory import nominal_mib
from nodes.isolation import isolation_json
from nodes.models import Gpu, Node, NodeState
from quotas.models import Membership, Project, User
from quotas.services import project_personal, user_create

_number = itertools.count(1)
CREDENTIAL = "c" * 64


def user_make(email: str = "", *, password: str | None = None, **fields: Any) -> User:
    """A user with a personal project and a quota. ``quota={"gpu_hours": 1, …}`` sets limits."""
    quota = fields.pop("quota", None)
    user = user_create(email=email or f"user{next(_number)}@lab.example", password=password, **fields)
    if quota:
        type(user.quota).objects.filter(user=user).update(**quota)
        user.refresh_from_db()
    return user


def project_make(name: str = "", *, members: tuple[User, ...] = (), role: str = Membership.Role.USER, **fields: Any) -> Project:
    project = Project.objects.create(name=name or f"project-{next(_number)}", **fields)
    for user in members:
        Membership.objects.create(project=project, user=user, role=role)
    return project


#: What an agent tells that keeps people's jobs apart.
ISOLATED = IsolationInfo(identity="shared", uid=1500, account="jobs", sandbox="mounts", open=("signals",))


def node_make(name: str = "", *, cards: int = 0, mib: int | None = 24_564, credential: str = "", **fields: Any) -> Node:
    """A READY node, with ``cards`` cards of ``mib`` MiB. Its credential is ``credential`` or one made of its name."""
    name = name or f"node-{next(_number)}"
    fields = {"state": NodeState.READY, "session": f"session-{name}", "boot_id": f"boot-{name}", "address": "127.0.0.1", **fields}
    fields.setdefault("isolation", isolation_json(ISOLATED))
    node = Node.objects.create(
        name=name, credential_sha256=hashlib.sha256((credential or node_credential(name)).encode()).hexdigest(), **fields
    )
    for index in range(cards):
        gpu_make(node, index=index, mib=mib)
    return node


def node_credential(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def node_header(node: Node) -> str:
    """The Authorization header of a node of ``node_make``."""
    return f"Node {node.pk}:{node_credential(node.name)}"


def gpu_make(node: Node | None = None, *, index: int | None = None, mib: int | None = 24_564, uuid: str = "", **fields: Any) -> Gpu:
    node = node or node_make()
    index = node.gpus.count() if index is None else index
    fields = {
        "model": "NVIDIA GeForce RTX 4090",
        "vendor": "nvidia",
        "nominal_mib": None if mib is None else nominal_mib(mib),
        "compute_capability": "8.9",
        **fields,
    }
    return Gpu.objects.create(node=node, index=index, uuid=uuid or f"GPU-{node.name}-{index}", total_mib=mib, **fields)


def xid_rules_ship() -> None:
    """The rules that a migration ships: a test that empties the database takes them along."""
    for name in ("0005_xid_rules", "0021_xid_rules_of_nvidias_catalogue"):
        importlib.import_module(f"nodes.migrations.{name}").rules_ship(apps, None)


def alert_rules_ship() -> None:
    """The same of the alert rules."""
    for name in (
        "0008_alert_rules",
        "0011_alert_rules_of_trust",
        "0017_alert_rule_of_spoilt_launches",
        "0020_alert_rule_of_the_control_planes_disk",
    ):
        importlib.import_module(f"nodes.migrations.{name}").rules_ship(apps, None)


def job_make(owner: User | None = None, *, state: str = JobState.WAITING, **fields: Any) -> Job:
    """A job in any state, with the event of its submit; for a live or ended one with ranks use ``attempt_make``."""
    owner = owner or user_make()
    project = fields.pop("project", None) or project_personal(owner)
    fields = {"name": f"job-{next(_number)}", "argv": ["true"], "gpu_mem_mib": 4096, **fields}
    if state == JobState.WAITING:
        fields.setdefault("wait_code", "not_checked")
        fields.setdefault("wait_at", timezone.now())
    if state in FINAL:
        fields.setdefault("ended_at", timezone.now())
    job = Job.objects.create(owner=owner, project=project, state=state, **fields)
    JobEvent.objects.create(job=job, code="submitted", to_state=state, by=owner, epoch=job.epoch)
    return job


def attempt_make(
    job: Job | None = None,
    *,
    gpus: tuple[Gpu, ...] = (),
    node: Node | None = None,
    mib: int = 4096,
    exclusive: bool = False,
    observed: str = RankState.RUNNING,
    slices: str = SliceState.ACTIVE,
    at: datetime | None = None,
    **fields: Any,
) -> Attempt:
    """A live attempt of ``job`` with one rank on one node, and slices on ``gpus`` with the cards' counters to match."""
    at = at or timezone.now()
    job = job or job_make(state=JobState.RUNNING, epoch=1, started_at=at)
    if job.state not in LIVE:
        raise ValueError(f"job {job.pk} is {job.state}; a live attempt needs a job in one of {sorted(LIVE)}")
    if job.epoch == 0:
        Job.objects.filter(pk=job.pk).update(epoch=1)
        job.epoch = 1
    attempt = Attempt.objects.create(job=job, epoch=job.epoch, created_at=at, started_at=at, **fields)
    node = node or (gpus[0].node if gpus else node_make())
    rank = Rank.objects.create(
        attempt=attempt,
        node=node,
        index=0,
        key=rank_id(job.pk, attempt.epoch, 0),
        desired=Want.RUN,
        observed=observed,
        observed_at=at,
        started_at=at,
        spec={"job": job.pk, "index": 0, "argv": job.argv},
    )
    for position, gpu in enumerate(gpus):
        took = (gpu.total_mib or mib) if exclusive else mib
        share = 1.0 if exclusive else took / (gpu.total_mib or took)
        active_at = at if slices != SliceState.HELD else None
        Slice.objects.create(
            rank=rank,
            gpu=gpu,
            position=position,
            mib=took,
            is_exclusive=exclusive,
            share=share,
            state=slices,
            held_at=at,
            active_at=active_at,
        )
        Gpu.objects.filter(pk=gpu.pk).update(held_mib=F("held_mib") + took, live_slices=F("live_slices") + 1, is_exclusive=exclusive)
        gpu.refresh_from_db()
    return attempt


# --- what an agent says -------------------------------------------------------------------------------------------


def gpu_info(uuid: str, index: int = 0, *, mib: int | None = 24_564, **fields: Any) -> GpuInfo:
    return GpuInfo(**{"uuid": uuid, "index": index, "model": "NVIDIA GeForce RTX 4090", "vendor": "nvidia", "total_mib": mib, **fields})


def inventory(*uuids: str, links: tuple[LinkInfo, ...] = (), **fields: Any) -> Inventory:
    """An inventory with these cards at index 0, 1, …"""
    return Inventory(
        **{
            "hostname": "gpu-1.lab.example",
            "gpus": tuple(gpu_info(uuid, index) for index, uuid in enumerate(uuids)),
            "links": links,
            "cpu_cores": 8,
            "memory_mib": 64_000,
            "isolation": ISOLATED,
            **fields,
        }
    )


def sync_of(node: Node, seq: int = 1, **fields: Any) -> SyncRequest:
    """A sync of the node's current session; ``gpus`` may be given as UUIDs."""
    gpus = tuple(gpu if isinstance(gpu, GpuStatus) else GpuStatus(uuid=gpu, used_mib=0) for gpu in fields.pop("gpus", ()))
    return SyncRequest(**{"session": node.session, "boot_id": node.boot_id, "seq": seq, "gpus": gpus, **fields})
