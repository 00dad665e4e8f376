"""status, node …, gpu …: the pool's machines and cards."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from client.commands.common import JsonFlag, ProfileOption, columns, say, session_open, usage_fault
from client.errors import NebulaError
from client.i18n import _
from client.output import gib, gib_number, known, labels_text, model_short, node_marks, overview, pairs, percent, safe, table, time_local
from client.profile import secret_write
from client.transport import is_loopback

NodeName = Annotated[str, typer.Argument(metavar="NODE", help=_("The node's name."))]


def status(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    usage = session.client.usage()
    nodes: list[Any] | None
    try:
        nodes = list(session.client.node_list())
    except NebulaError as error:
        if error.status not in {403, 404}:
            raise
        nodes = None  # the numbers are for all, the names perhaps not
    session.answer({"usage": usage, "nodes": nodes}, overview(usage, nodes))


def node_list(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    nodes = session.client.node_list()
    rows = [[n["name"], n["state"], len(n["gpus"]), percent(n["load_pct"]), known(n["agent_version"]), _marks(n)] for n in nodes]
    headers = [_("NAME"), _("STATE"), _("GPUS"), _("LOAD"), _("AGENT"), _("NOTES")]
    text = table(headers, rows, width=columns(), right=frozenset({2, 3}), shrink=(0, 5))
    session.answer(nodes, text if nodes else _("There are no nodes yet; add one with nebula-ctl node add NAME."))


def _marks(node: Any) -> str:
    marks = [mark for mark in node_marks(node) if mark != node["state"]]
    marks += [word] if (word := isolation_word(node)) and word != _("jobs kept apart") else []
    advice = [safe(item.get("text") or item.get("code")) for item in node.get("advice") or []]
    if len(advice) == 1:
        marks.append(_("advice: {text}").format(text=advice[0]))
    elif advice:
        marks.append(
            _("advice: {text} (and {count} more: node show {name})").format(text=advice[0], count=len(advice) - 1, name=node["name"])
        )
    return ", ".join(marks)


def isolation_word(node: Any) -> str:
    """What a job could reach there, in a word; empty where the control plane is of an older version, or no job comes there."""
    if "isolation" not in node or node.get("metrics_only"):
        return ""
    told = node["isolation"]
    if told is None:
        return _("jobs not kept apart (not told)")
    if not told["ready"]:
        return _("starts no job ({problem})").format(problem=safe(told["problem"]))
    if told["isolates_people"]:
        return _("jobs kept apart")
    return _("jobs not kept apart ({reach})").format(reach=safe(", ".join(told["open"])))


def node_show(name: NodeName, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    node = session.client.node_get(name)
    rows = [
        (_("Name"), node["name"]),
        (_("State"), ", ".join([node["state"], *[m for m in node_marks(node) if m != node["state"]]])),
        (_("Host"), f"{node['hostname'] or '-'} ({node['address'] or '-'})"),
        (_("System"), known(node["os"])),
        (_("Agent"), known(node["agent_version"])),
        (_("Jobs"), isolation_word(node) or "-"),
        (_("Driver / CUDA"), f"{known(node['driver_version'])} / {known(node['cuda_version'])}"),
        (_("CPU cores"), known(node["cpu_cores"])),
        (_("Memory"), gib(node["memory_mib"])),
        (_("NUMA nodes"), node.get("numa_nodes")),
        (_("RDMA ports"), _ports(node.get("rdma_ports")) or None),
        (_("Labels"), labels_text(node.get("labels"))),
        (_("Load"), percent(node["load_pct"])),
        (_("Last seen"), time_local(node["last_seen_at"])),
    ]
    lines = [pairs(rows)]
    if node["gpus"]:
        lines += ["", _gpu_table(node["gpus"], with_node=False)]
    lines += [_("Advice: {text}").format(text=safe(item.get("text") or item.get("code"))) for item in node.get("advice") or []]
    session.answer(node, "\n".join(lines))


def _ports(ports: Any) -> str:
    """``mlx5_0:1 ACTIVE 200 Gbit/s``, with commas."""
    found = []
    for port in ports or ():
        rate = f"{port['rate_gbps']} Gbit/s" if port.get("rate_gbps") else ""
        found.append(" ".join(part for part in (port["name"], port.get("state") or "", rate) if part))
    return ", ".join(found)


def node_add(
    name: NodeName,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help=_("Write the token there (mode 0600) instead."))
    ] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    session = session_open(is_json, profile)
    facts = session.client.join_facts()
    endpoint = session.client.endpoint
    if is_loopback(urlsplit(endpoint).hostname or ""):
        endpoint = facts["endpoint"].rstrip("/")  # what this machine calls itself is no use elsewhere
    created = session.client.node_enroll_token(name=name)
    line = _join_line(shlex.quote(endpoint), facts, created["name"] or name)
    if token_file:
        secret_write(Path(token_file).expanduser(), created["token"] + "\n")
    if session.is_json:
        shown = {k: v for k, v in created.items() if k != "token" or not token_file}
        session.answer({**shown, "endpoint": endpoint, "token_file": token_file, "command": line}, "")
        return
    until = time_local(created["expires_at"])
    say(_("{name} may join once, until {when}.").format(name=safe(created["name"] or name), when=until))
    if is_loopback(urlsplit(endpoint).hostname or ""):
        say(_("Other machines don't reach {endpoint}; docs/install.md shows how to serve HTTPS to them.").format(endpoint=endpoint))
    if token_file:
        say(_("The enrolment token is in {path}. On the machine, run (in bash):").format(path=safe(token_file)))
        say(f"  {line} < {safe(token_file)}")
    else:
        say(_("On the machine, paste this into bash; it holds the token, which is shown this once:"))
        # A here-string: the token is in no process list, and with a blank before it most shells keep no history of it.
        say(f"  {line} <<<{created['token']}")


def _join_line(endpoint: str, facts: Any, name: str) -> str:
    """Fetch the installer, hold it against its hash, run those very bytes. Its token comes on standard input.

    It is never in a file: what lies in a folder that others may write to can be another file when it is run. Root fetches it, so that
    nobody else's process has it in its hands either.
    """
    unverified = facts["ca_sha256"] is not None  # its CA is not known there yet: the hashes stand for it
    fetch = f"curl -fsS{'k' if unverified else ''} {endpoint}/install.sh"
    script = (
        f'installer=$({fetch}) && [ "$(printf "%s\\n" "$installer" | sha256sum)" = "{facts["install_sha256"]}  -" ] && eval "$installer"'
        ' || { echo "nebulagrid: nothing was installed" >&2; exit 1; }'
    )
    wanted = f"--controller-endpoint {endpoint} --name {name}"
    if unverified:
        wanted += f" --ca-sha256 {facts['ca_sha256']}"
    return f"sudo bash -c '{script}' nebula-install {wanted} --token-file -"


def node_drain(
    name: NodeName,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help=_("Why; users see it."))],
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help=_("When it ends by itself: 2026-03-01T18:00 (local), or with zone."))
    ] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    if not reason.strip():
        raise usage_fault(_("A drain needs a reason: --reason 'changing the fans'."))
    moment = _moment(until)
    session = session_open(is_json, profile)
    node = session.client.node_drain(name, reason=reason, until=moment)
    session.answer(node, _("{name} takes no new jobs; those that run there go on.").format(name=safe(node["name"])))


def _moment(text: str | None) -> str | None:
    """ISO 8601 with a zone; a time without one is in this machine's zone."""
    if text is None:
        return None
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except ValueError as error:
        raise usage_fault(_("{text!r} is not a time; write it like 2026-03-01T18:00.").format(text=text)) from error


def node_resume(name: NodeName, is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    node = session.client.node_resume(name)
    session.answer(node, _("{name} takes new jobs again.").format(name=safe(node["name"])))


def node_label(
    name: NodeName,
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE|KEY-...", help=_("A label to set, or with - behind it to take away."))],
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    wanted: dict[str, str | None] = {}
    for change in changes:
        key, border, value = change.partition("=")
        if not border and not change.endswith("-"):
            raise usage_fault(_("{change!r}: write KEY=VALUE to set a label, KEY- to take it away.").format(change=change))
        key = key if border else change[:-1]
        if key in wanted:
            raise usage_fault(_("The label {key!r} is named twice.").format(key=key))
        wanted[key] = value if border else None
    session = session_open(is_json, profile)
    node = session.client.node_label(name, wanted)
    session.answer(node, _("{name}: {labels}").format(name=safe(node["name"]), labels=labels_text(node["labels"])))


def gpu_list(is_json: JsonFlag = False, profile: ProfileOption = None) -> None:
    session = session_open(is_json, profile)
    gpus = session.client.gpu_list()
    session.answer(gpus, _gpu_table(gpus, with_node=True) if gpus else _("There are no GPUs in the pool yet."))


def _gpu_table(gpus: Any, *, with_node: bool) -> str:
    rows = []
    for gpu in gpus:
        place = f"{gpu['node']}:{gpu['index']}" if with_node else gpu["index"]
        short = model_short(gpu["model"])
        model = _("sim {model}").format(model=short) if gpu["simulated"] else short  # in front: it must not be cut off
        temp = "-" if gpu.get("temp_c") is None else f"{gpu['temp_c']}°C"
        memory = (gib_number(gpu["total_mib"]), gib_number(gpu["free_mib"]))  # the unit is in the header: models need the room
        state = _("node out") if gpu["state"] == "HEALTHY" and gpu.get("use") == "maintenance" else gpu["state"]
        rows.append([place, gpu["short"], model, state, *memory, percent(gpu.get("util_pct")), temp, _users(gpu)])
    headers = [_("NODE:#") if with_node else "#", "ID", _("MODEL"), _("STATE"), "GiB", _("FREE"), _("UTIL"), _("TEMP"), _("USED BY")]
    if not any(row[-1] for row in rows):  # nobody, or nobody that you may know of
        headers, rows = headers[:-1], [row[:-1] for row in rows]
    return table(headers, rows, width=columns(), right=frozenset({4, 5, 6, 7}), shrink=(2, 0, *range(8, len(headers))))


def _users(gpu: Any) -> str:
    """``lin: train #12, mira: eval #13``, as far as the control plane tells it."""
    jobs = [part for part in gpu.get("slices") or () if part.get("job") is not None]
    return ", ".join(dict.fromkeys(f"{part['user'].partition('@')[0]}: {part['name']} #{part['job']}" for part in jobs))
