"""submit: everything a job can ask for. The control plane judges the values; here only what needs this machine."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from client.commands import estimate
from client.commands.common import JsonFlag, ProfileOption, note, print_json, say, session_open, usage_fault
from client.commands.light import LightCommand
from client.commands.watch import follow_to_end
from client.encoding import bytes_shown, is_text
from client.i18n import _
from client.output import safe

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ARGV = "nebula.argv"


class OnNodeLoss(StrEnum):
    hold = "hold"
    requeue = "requeue"


class SubmitCommand(LightCommand):
    """Takes the words after the first ``--`` as the program, untouched. Without ``--`` the program's own options and ours
    could not be told apart (``submit python train.py -f data``), so it is required."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            border = args.index("--")
            ctx.meta[_ARGV] = args[border + 1 :]
            args = args[:border]
        else:
            ctx.meta[_ARGV] = None
            loose = next((word for word in args if not word.startswith("-")), None)
            if loose is not None and not _takes_value_before(self, args, loose):
                raise usage_fault(_("Put -- before the program: nebula-ctl submit [OPTIONS] -- {word} …").format(word=safe(loose)))
        return super().parse_args(ctx, args)


def _takes_value_before(command: Any, args: list[str], word: str) -> bool:
    """Whether ``word`` is the value of the option before it."""
    position = args.index(word)
    if position == 0:
        return False
    before = args[position - 1]
    return any(before in param.opts and not param.is_flag for param in command.params if hasattr(param, "is_flag"))


def submit(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help=_("A name to find the job by."))] = None,
    gpu_count: Annotated[int, typer.Option("--gpu-count", metavar="N", min=0, help=_("GPUs of the whole job; 0 = CPU only."))] = 1,
    gpu_mem: Annotated[
        str | None,
        typer.Option(
            "--gpu-mem", metavar="SIZE", help=_("Memory on each GPU: 24G, 12288M, or a share of it such as 0.5. Without it: whole cards.")
        ),
    ] = None,
    exclusive: Annotated[bool, typer.Option("--exclusive", help=_("Whole cards, however little memory is asked for."))] = False,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help=_("Machines to spread over."))] = 1,
    cpus: Annotated[str | None, typer.Option("--cpus", metavar="N", help=_("CPU cores on each node: 8, or 0.5."))] = None,
    mem: Annotated[str | None, typer.Option("--mem", metavar="SIZE", help=_("Main memory on each node: 64G."))] = None,
    workdir: Annotated[
        str | None, typer.Option("--workdir", metavar="DIR", help=_("Folder to run in, on the node (default: this one)."))
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help=_("A variable for the job; K alone copies yours. Repeatable."))
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret", metavar="NAME[=VARIABLE]", help=_("A secret: as the file $NEBULA_SECRETS/NAME, or as a variable. Repeatable.")
        ),
    ] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="TIME", help=_("Time limit: 01:00:00, 90m, 2h or seconds."))] = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help=_("Who pays (default: your own project)."))] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="PATH", help=_("Where the job saves; given back to it after a requeue."))
    ] = None,
    requeue: Annotated[bool, typer.Option("--requeue/--no-requeue", help=_("Start again after a fault of the machine."))] = True,
    on_node_loss: Annotated[
        OnNodeLoss, typer.Option("--on-node-loss", help=_("When its node falls silent: hold = wait for it, requeue = start elsewhere."))
    ] = OnNodeLoss.hold,
    idle_after: Annotated[
        int | None,
        typer.Option("--idle-after", metavar="SECONDS", min=300, max=86400, help=_("Stop it when its GPUs do nothing for so long.")),
    ] = None,
    grace: Annotated[
        int | None, typer.Option("--grace", metavar="SECONDS", min=1, help=_("Time to save its work when it is stopped."))
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help=_("Don't start before nebula-ctl release."))] = False,
    arch: Annotated[str | None, typer.Option("--arch", metavar="ARCH", help=_("Only cards of this architecture, such as sm_89."))] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="TEXT", help=_("Only cards of this model, such as '4090'; or of several: 'A100|H100'.")),
    ] = None,
    vendor: Annotated[str | None, typer.Option("--vendor", metavar="NAME", help=_("Only cards of this vendor."))] = None,
    cuda: Annotated[
        str | None, typer.Option("--cuda", metavar="VERSION", help=_("Only nodes whose driver runs this CUDA or a newer one: 12.4."))
    ] = None,
    driver: Annotated[
        str | None, typer.Option("--driver", metavar="VERSION", help=_("Only nodes with this driver or a newer one: 550."))
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help=_("Only nodes that carry this label. Repeatable."))
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            "--constraint",
            metavar="TEXT",
            help=_("The same in one word: a model, or arch=, vendor=, cuda=, driver=, or a label's KEY=VALUE."),
        ),
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help=_("The queue to wait in (default: the first)."))] = None,
    qos: Annotated[
        str | None, typer.Option("--qos", metavar="NAME", help=_("Quality of service; one that raises the priority is for staff only."))
    ] = None,
    priority: Annotated[int, typer.Option("--priority", metavar="N", help=_("Above 0 for staff only."))] = 0,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="KEY", help=_("The same key and job again gives the same job: for CI."))
    ] = None,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help=_("Submit nothing: say when it would start, and what would start sooner."))
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help=_("Show its output until it ends; exit 0 only if it succeeds."))] = False,
    command: Annotated[
        str | None, typer.Option("--command", metavar="TEXT", help=_("The program as one text, split into words; no shell runs it."))
    ] = None,
    image: Annotated[str | None, typer.Option("--image", metavar="IMAGE", help=_("Containers: not available yet."))] = None,
    data_mount: Annotated[list[str] | None, typer.Option("--data-mount", metavar="A:B", help=_("Containers: not available yet."))] = None,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    argv: list[str] | None = ctx.meta[_ARGV]
    if image is not None or data_mount:
        raise usage_fault(_("Containers are not available yet; leave out --image and --data-mount: the job then runs on the node itself."))
    if argv is not None and command is not None:
        raise usage_fault(_("Give the program once: either --command TEXT or the words after --."))
    if not argv and command is None:
        raise usage_fault(_("Which program? Put it after --: nebula-ctl submit --gpu-mem 4G -- python train.py"))
    kinds = {"arch": arch, "model": model, "vendor": vendor, "cuda_min": cuda, "driver_min": driver}
    constraints = _constraints(kinds, labels=label or [], mixed=constraint or [])
    session = session_open(is_json, profile)
    fields: dict[str, Any] = {
        "argv": argv,
        "command": command,
        "name": name,
        "gpu_count": gpu_count,
        "gpu_mem": gpu_mem,
        "exclusive": exclusive or None,
        "nodes": nodes,
        "cpus": cpus,
        "host_mem": mem,
        "workdir": _workdir(workdir),
        "env": _env(env or []) or None,
        "secrets": secret or None,
        "time": time,
        "project": project,
        "checkpoint": checkpoint,
        "requeue": requeue,
        "on_node_loss": on_node_loss.value,
        "grace_s": grace,
        "idle_after_s": idle_after,
        "hold": hold or None,
        "priority": priority or None,
        "queue": queue,
        "qos": qos,
        "constraints": constraints or None,
    }
    if is_dry:
        if follow or idempotency_key is not None:
            raise usage_fault(_("--dry-run submits nothing; leave out --follow and --idempotency-key."))
        estimate.dry_run(session, fields)
        return
    job = session.client.job_submit(idempotency_key=idempotency_key, **fields)
    first = _("Job {id} submitted: {state}").format(id=job["id"], state=job["state"])
    if follow:
        if session.is_json:
            print_json({"type": "job", "job": job}, is_line=True)
        else:
            note(first)  # standard output is the job's
        follow_to_end(session, job["id"])
        return
    if session.is_json:
        print_json(job)
        return
    say(first)
    if job["held"]:
        say(_("  It is held; let it start with: nebula-ctl release {id}").format(id=job["id"]))
    say(_("  Its output: nebula-ctl logs -f {id}").format(id=job["id"]))
    say(_("  If it waits: nebula-ctl why {id}").format(id=job["id"]))


def _workdir(given: str | None) -> str:
    """Absolute. As the shell shows it (PWD): behind an automounter the real path need not exist on the node."""
    try:
        real = Path.cwd()
        shown = Path(os.environ.get("PWD", ""))
        here = shown if shown.is_absolute() and shown.is_dir() and shown.samefile(real) else real
    except OSError as error:
        if given is not None and Path(given).is_absolute():
            return given
        raise usage_fault(_("The current folder is gone; name one with --workdir DIR.")) from error
    folder = os.path.normpath(here / given) if given else str(here)
    if not is_text(folder):
        message = _("The name of the working folder is not UTF-8: {folder}. Rename it, or name another one with --workdir DIR.")
        raise usage_fault(message.format(folder=bytes_shown(folder)))
    return folder


#: What --constraint may name besides labels → the API's name.
_KINDS = {
    "arch": "arch",
    "model": "model",
    "gpu_type": "model",
    "gpu-type": "model",
    "vendor": "vendor",
    "cuda": "cuda_min",
    "driver": "driver_min",
}


def _constraints(kinds: dict[str, str | None], *, labels: list[str], mixed: list[str]) -> dict[str, Any]:
    """The API's ``constraints``. Raises UsageFault for what is no KEY=VALUE, and for two values of one key."""
    found: dict[str, Any] = {key: value for key, value in kinds.items() if value is not None}
    chosen: dict[str, str] = {}

    def put(into: dict[str, Any], key: str, value: str) -> None:
        if into.setdefault(key, value) != value:
            raise usage_fault(
                _("{key} is asked for twice: {one} and {other}.").format(key=safe(key), one=safe(into[key]), other=safe(value))
            )

    for text in labels:
        key, border, value = text.partition("=")
        if not border:
            raise usage_fault(_("--label {text!r}: write KEY=VALUE, such as rack=r2.").format(text=text))
        put(chosen, key, value)
    for text in mixed:
        key, _border, value = re.split(r"([=:])", text, maxsplit=1) if re.search("[=:]", text) else ("model", "=", text)
        kind = _KINDS.get(key.lower())
        put(found, kind, value) if kind else put(chosen, key, value)
    return found | ({"labels": chosen} if chosen else {})


def _env(pairs: list[str]) -> dict[str, str]:
    chosen = {}
    for pair in pairs:
        key, border, value = pair.partition("=")
        if not _NAME.match(key):
            raise usage_fault(_("--env {pair!r}: write NAME=VALUE, the name of letters, digits and _.").format(pair=pair))
        if not border:
            copied = os.environ.get(key)
            if copied is None:
                raise usage_fault(_("--env {name}: there is no such variable here to copy; write {name}=VALUE.").format(name=key))
            value = copied
        if not is_text(value):
            raise usage_fault(_("--env {name}: the value is not UTF-8: {value}.").format(name=key, value=bytes_shown(value)))
        chosen[key] = value
    return chosen
