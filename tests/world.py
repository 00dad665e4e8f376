"""A small lab with one of each: what routes are asked about, and everybody who may ask."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.test import Client
from django.utils import timezone

from jobs import logs
from jobs.artifacts import artifact_path
from jobs.models import Artifact, Job, Rank
from nodes.alerts import mute_create
from nodes.claims import claim_id, claim_note
from nodes.incidents import incident_open
from nodes.models import AgentCommand, Alert, AlertJob, AlertMute, Incident, Node
from nodes.services import command_create
from quotas.grants import ALL_SCOPES
from quotas.models import ApiToken, Membership, Notice, NoticeChannel, Project, QuotaRequest, User
from quotas.requests import request_make
from quotas.sealing import seal
from quotas.secrets import secret_set
from quotas.tokens import jwt_create, token_create
from tests.factories import alert_rules_ship, attempt_make, node_header, node_make, project_make, user_make

SECRETS = (b"top secret output", b"hunter2")
PEOPLE = ("owner", "mate", "viewer", "lead", "stranger", "staff", "disabled")


SUBMIT = {"argv": ["true"], "gpu_mem": "4G"}
#: A body that is understood, where a route below api/v1/ needs one.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "token"): {"email": "owner@lab.example", "password": "correct horse"},
    ("POST", "tokens/"): {"name": "ci", "scopes": ["manage"]},
    ("POST", "projects/"): {"name": "robots"},
    ("PATCH", "projects/<str:name>"): {"title": "Vision"},
    ("POST", "projects/<str:name>/members"): {"email": "stranger@lab.example"},
    ("PATCH", "projects/<str:name>/members/<int:user>"): {"role": "viewer"},
    ("POST", "nodes/enroll-token"): {},
    ("PATCH", "nodes/<str:name>"): {"labels": {"rack": "r2"}},
    ("POST", "nodes/<str:name>/drain"): {"reason": "new fan"},
    ("POST", "nodes/<str:name>/confirm"): {"what": "agent", "claim": claim_id({"session": "new"})},
    ("POST", "nodes/<str:name>/commands"): {"verb": "ping"},
    ("POST", "nodes/<str:name>/drill"): {"fault": "xid79"},
    ("POST", "gpus/<str:uuid>/act"): {"action": "isolate", "reason": "smells"},
    ("POST", "incidents/<int:id>/notes"): {"text": "looks loose"},
    ("POST", "incidents/<int:id>/close"): {"text": "a loose riser"},
    ("POST", "quota/requests/"): {"what": "gpu_hours", "amount": 5, "why": "a paper is due"},
    ("POST", "quota/requests/<int:id>/decide"): {"decision": "approve"},
    ("POST", "alerts/<int:id>/acknowledge"): {"note": "on my way"},
    ("POST", "alerts/mutes/"): {"node": "node-a", "reason": "a new fan"},
    ("POST", "notices/read"): {},
    ("POST", "notices/channels/"): {"url": "https://93.184.215.14/x", "events": ["fail"]},
    ("PATCH", "notices/channels/email"): {"events": ["end"]},
    ("PATCH", "notices/channels/<int:id>"): {"name": "mine"},
    ("POST", "jobs/<int:id>/clone"): {"env": {"SECRET": "1"}},
    ("POST", "jobs/submit"): SUBMIT,
    ("POST", "jobs/apply"): {"job": SUBMIT},
    ("PUT", "secrets/<str:name>"): {"value": "a longish value"},
    ("POST", "jobs/estimate"): SUBMIT,
}


@dataclass
class World:
    """``job`` is owner's, runs on ``node``, and counts under ``project``, which mate, viewer and lead share with owner."""

    people: dict[str, User]
    project: Project
    other_project: Project
    node: Node
    other_node: Node
    job: Job
    rank: Rank
    token: ApiToken
    command: AgentCommand
    incident: Incident
    request: QuotaRequest
    alert: Alert
    mute: AlertMute
    notice: Notice
    channel: NoticeChannel
    secrets: dict[str, str] = field(default_factory=dict)

    @property
    def project_token(self) -> ApiToken:
        return ApiToken.objects.filter(project=self.project).order_by("pk")[0]

    @property
    def owner(self) -> User:
        return self.people["owner"]

    @property
    def stranger(self) -> User:
        return self.people["stranger"]

    @property
    def staff(self) -> User:
        return self.people["staff"]

    def path(self, route: str) -> str:
        """An address of the route (as the resolver spells it, without what is before it) that names the things of this world."""
        if "quota/requests/" in route:
            route = route.replace("<int:id>", str(self.request.pk))
        for prefix, row in (
            ("alerts/mutes/", self.mute),
            ("alerts/", self.alert),
            ("notices/channels/", self.channel),
            ("notices/", self.notice),
        ):
            if prefix in route:
                route = route.replace("<int:id>", str(row.pk))
        is_node, is_incident = "nodes/" in route or "gpu" in route, "incidents/" in route
        if "projects/" in route:
            route = route.replace("<int:id>", str(self.project_token.pk))
        ids = self.token.pk if "tokens/" in route else self.command.pk if is_node else self.incident.pk if is_incident else self.job.pk
        name = (
            "node-a"
            if is_node
            else self.project.name
            if "projects/" in route
            else "hf"
            if "secrets/" in route
            else "cli"
            if "docs/" in route
            else "model.bin"
        )
        for mark, value in {
            "<int:id>": str(ids),
            "<int:pk>": str(ids),
            "<int:user>": str(self.people["mate"].pk),
            "<str:name>": name,
            "<slug:name>": name,
            "<node:name>": name,
            "<path:name>": name,
            "<int:rank>": "0",
            "<int:index>": "0",
            "<slug:action>": "isolate",
            "<str:token>": "no-such-link",
            "<str:rank>": self.rank.key,
            "<str:uuid>": "GPU-node-a-0",
        }.items():
            route = route.replace(mark, value)
        return "/" + route

    def bearer(self, who: str) -> dict[str, str]:
        """The Authorization header of a person (by name), of a node (node_x, node_y), or of a credential made by ``credential``."""
        if who == "anonymous":
            return {}
        if who in ("node_x", "node_y"):
            return {"Authorization": node_header(self.node if who == "node_x" else self.other_node)}
        return {"Authorization": f"Bearer {self.secrets[who]}"}

    def session(self, who: str) -> Client:
        client = Client(raise_request_exception=False)
        if who in self.people:
            client.force_login(self.people[who], backend=settings.AUTHENTICATION_BACKENDS[0])
        return client


def world_make(folder: Path) -> World:
    settings.LOG_DIR, settings.ARTIFACT_DIR = folder / "logs", folder / "artifacts"  # the caller's settings fixture puts them back
    alert_rules_ship()  # a test that emptied the database took them along
    people = {name: user_make(f"{name}@lab.example", password="correct horse", is_staff=name == "staff") for name in PEOPLE}
    project = project_make("vision", members=(people["owner"], people["mate"], people["disabled"]))
    Membership.objects.create(project=project, user=people["lead"], role=Membership.Role.LEAD)
    Membership.objects.create(project=project, user=people["viewer"], role=Membership.Role.VIEWER)
    other = project_make("speech", members=(people["owner"], people["stranger"]))
    node, other_node = node_make("node-a", cards=2, is_simulated=True), node_make("node-b", cards=1, is_simulated=True)
    claim_note(
        node, session="new", boot_id="b", code="session_unconfirmed", peer="10.0.0.9", hostname="node-a.lab.example", now=timezone.now()
    )
    attempt = attempt_make(None, gpus=(node.gpus.first(),))
    Job.objects.filter(pk=attempt.job_id).update(owner=people["owner"], project=project, env={"SECRET": "hunter2"})
    rank = attempt.ranks.get()
    logs.log_append(rank.key, offset=0, data=b"top secret output\n")
    Artifact.objects.create(rank=rank, name="model.bin", size=4, sha256=hashlib.sha256(b"\x00\x01\x02\x03").hexdigest())
    path = artifact_path(rank.key, "model.bin")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x00\x01\x02\x03")
    alert = Alert.objects.create(metric="temp_c", subject="gpu:1", node=node, gpu=node.gpus.first(), params={"place": "node-a gpu0"})
    AlertJob.objects.create(alert=alert, user=people["owner"], job=attempt.job_id)
    # No name to be resolved, and no public address: a test of it ends at once.
    channel = NoticeChannel.objects.create(user=people["owner"], kind="webhook", host="127.0.0.1", url_sealed=seal("https://127.0.0.1/x"))
    world = World(
        people=people,
        project=project,
        other_project=other,
        node=node,
        other_node=other_node,
        job=Job.objects.get(pk=attempt.job_id),
        rank=rank,
        token=token_create(user=people["owner"], name="ci")[0],
        command=command_create(node=node, verb="ping", by=people["staff"]),
        incident=incident_open(gpu=node.gpus.all()[1], code="xid", params={"xid": 79}, now=timezone.now()),
        request=request_make(by=people["owner"], what="gpu_hours", amount=100, why="a paper is due", now=timezone.now()),
        alert=alert,
        mute=mute_create(by=people["staff"], reason="a known job", node=node),
        notice=Notice.objects.create(user=people["owner"], kind="test", params={"by": "staff@lab.example"}, path="/"),
        channel=channel,
    )
    for person in people.values():
        secret_set(by=person, name="hf", value="hunter2 and more")
    credentials_add(world)
    return world


def credentials_add(world: World) -> None:
    """A token of each person, and of owner every kind that there is."""
    owner, now = world.owner, timezone.now()

    def make(**fields: Any) -> str:
        return token_create(user=fields.pop("user", owner), name="test", **fields)[1]

    found = {name: make(user=user) for name, user in world.people.items()}
    User.objects.filter(pk=world.people["disabled"].pk).update(is_active=False)
    found["expired"] = make(ttl_s=60, now=now - timedelta(hours=1))
    found["revoked"] = make()
    ApiToken.objects.filter(prefix=found["revoked"][:12]).update(revoked_at=now)
    for scope in ALL_SCOPES:
        found[f"without_{scope}"] = make(scopes=[other for other in ALL_SCOPES if other != scope])
    found["of_project"] = make(project=world.project, scopes=["read", "submit"])
    found["of_other_project"] = make(project=world.other_project, scopes=["read", "submit"])
    found["jwt"] = jwt_create(user=owner, grant=None)[0]
    found["jwt_expired"] = jwt_create(user=owner, grant=None, ttl_s=60, now=now - timedelta(hours=1))[0]
    world.secrets = found
