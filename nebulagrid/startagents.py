"""The agents that `manage.py up` runs on this machine: enrolled where they are not yet, with their configuration. Needs Django."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from agent.backends.choose import backends_present
from agent.installation import name_make
from agent.protocol import EnrolRequest
from nebulagrid.embedded import EmbeddedError, socket_folder
from nebulagrid.startfiles import StartFiles
from nebulagrid.startplan import StartError
from nebulagrid.tls import ca_find


def agents_provide(files: StartFiles, *, count: int, scenario: Path | None, say: Callable[[str], None]) -> dict[str, Path]:
    """Name of each process → its configuration. One agent is this machine's, several are simulated nodes on it. Raises StartError."""
    simulated = count > 1 or scenario is not None
    if count and not simulated and not backends_present():
        simulated = True
        say("no GPU driver found: this machine offers two simulated cards, marked so everywhere")
    found = {}
    for number in range(1, count + 1):
        suffix = "" if number == 1 else f"-{number}"
        name = f"agent{suffix}"
        found[name] = agent_provide(files, name, node=node_name() + suffix, simulated=simulated, scenario=scenario, say=say)
    return found


def agent_provide(files: StartFiles, name: str, *, node: str, simulated: bool, scenario: Path | None, say: Callable[[str], None]) -> Path:
    """The agent's configuration; a new credential only where the node does not know the old one. Raises StartError."""
    from nodes.errors import NodeRefused
    from nodes.models import Node
    from nodes.services import enrol_token_create, installation_code, node_enrol
    from quotas.models import User

    kept = files.agent_read(name)
    node_id, credential = kept.get("node_id"), None
    row = Node.objects.filter(pk=node_id, credential_sha256=kept.get("credential_sha256")).first() if node_id is not None else None
    if row is not None:
        node = row.name
    else:
        admin = User.objects.filter(is_superuser=True, is_active=True).order_by("pk")[0]
        _, token = enrol_token_create(by=admin, node_name=node, ttl_s=60)
        try:
            answer = node_enrol(request=EnrolRequest(token=token, hostname=socket.gethostname(), name=node))
        except NodeRefused as error:
            # A restore on another machine: the old one's jobs still hold its cards, and its agent's memory is not here.
            raise StartError(
                f"This machine's agent can't take over the node {node}: {error} If that machine is gone for good, start with "
                f"--no-agent and say so: manage.py node_lost {node} --reason …"
            ) from error
        node_id, node, credential = answer.node_id, answer.name, answer.credential
        say(f"enrolled node {node}")
    # Two installations on one machine both have a node 1: the id that names cgroups must tell them apart.
    place = hashlib.sha256(os.fsencode(settings.DATA_DIR)).hexdigest()[:8]
    is_known = row is not None and str(kept.get("agent_id", "")).endswith(f"-node{node_id}")
    values: dict[str, str | int] = {
        "endpoint": settings.BASE_URL,
        "node_id": int(node_id or 0),
        "name": node,
        # It stays when the data move: what runs is known by it.
        "agent_id": str(kept["agent_id"]) if is_known else f"{place}-node{node_id}",
        "installation": name_make(installation_code(), kept.get("installation")),
        "backend": "simulated" if simulated else "auto",
        "jobs_dir": str(jobs_root(settings.DATA_DIR) / name),
        "hidden_dirs": ":".join(map(str, dict.fromkeys([settings.DATA_DIR, jobs_root(settings.DATA_DIR), *socket_folders()]))),
    }
    if scenario is not None:
        values["scenario"] = str(scenario)
    if ca_file := ca_find(tls_ca=settings.TLS_CA, tls_cert=settings.TLS_CERT):
        values["ca_file"] = str(ca_file)
    return files.agent_write(name, values, credential)


def jobs_root(data: Path) -> Path:
    """Where this machine's agents keep the folders of jobs: beside the data folder, which is closed to jobs."""
    return data.with_name(f"{data.name}-jobs")


def socket_folders() -> list[Path]:
    """The folder of the embedded Redis's socket, which is not in the data folder where that is too deep."""
    try:
        folder = socket_folder(settings.DATA_DIR)
    except EmbeddedError:
        return []
    return [folder] if folder.is_dir() else []


def node_name() -> str:
    """This machine's name as a node name."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:50] or "node"
