"""drill: throw a fault at a simulated card and watch the whole chain, from the detection to the return to service."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from client.commands.common import JsonFlag, ProfileOption, Session, note, session_open, usage_fault
from client.errors import ExitCode
from client.i18n import _
from client.output import safe
from client.shapes import Gpu

EVERY_S = 0.2
#: A second fault so soon would count as the same one.
APART_S = 6.0
FAULT = re.compile(r"xid[0-9]{1,3}")


@dataclass(slots=True)
class Step:
    """``took_s``: since the step before it, or the beginning; together they are the whole drill."""

    name: str
    took_s: float


@dataclass(slots=True)
class Drill:
    session: Session
    uuid: str
    deadline: float
    last: float = field(default_factory=time.monotonic)
    incident: int | None = None
    steps: list[Step] = field(default_factory=list)

    def health(self) -> dict[str, Any]:
        return self.session.client.gpu_health(self.uuid)

    def step(self, name: str) -> None:
        now = time.monotonic()
        self.steps.append(Step(name, round(now - self.last, 1)))
        self.last = now
        if not self.session.is_json:
            note(_("{took:6.1f} s  {step}").format(took=self.steps[-1].took_s, step=name))

    def until(self, condition: Callable[[], Any]) -> Any:
        """What the condition answers first; None when the time is up."""
        while time.monotonic() < self.deadline:
            if found := condition():
                return found
            time.sleep(EVERY_S)
        return None


def drill(
    fault: Annotated[str, typer.Argument(metavar="FAULT", help=_("xid79, or another XID."))],
    node: Annotated[str, typer.Argument(metavar="NODE", help=_("A simulated machine."))],
    gpu: Annotated[int, typer.Option("--gpu", metavar="N", min=0, help=_("Which card of it."))] = 0,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1, help=_("Give up after this time."))] = 180.0,
    is_json: JsonFlag = False,
    profile: ProfileOption = None,
) -> None:
    if not FAULT.fullmatch(fault):
        raise usage_fault(_("{fault!r} is no fault for a drill; write xid and its number, such as xid79.").format(fault=fault))
    session = session_open(is_json, profile)
    client = session.client
    card = next((c for c in client.node_get(node)["gpus"] if c["index"] == gpu and c["state"] != "MISSING"), None)
    if card is None:
        raise usage_fault(_("{node} has no card {gpu}.").format(node=safe(node), gpu=gpu))
    if card["state"] != "HEALTHY":
        raise usage_fault(
            _("{node}:{gpu} is {state}; a drill begins with a healthy card.").format(node=safe(node), gpu=gpu, state=card["state"])
        )
    run = Drill(session, card["uuid"], time.monotonic() + timeout_s)
    is_done = _chain(run, fault, node, gpu)
    if not is_done:
        run.step(_("nothing more came of it"))
    took_s = round(sum(step.took_s for step in run.steps), 1)
    found = {
        "fault": fault, "node": node, "gpu": gpu, "recovered": is_done, "took_s": took_s, "incident": run.incident,
        "steps": [{"step": step.name, "took_s": step.took_s} for step in run.steps],
    }  # fmt: skip
    state = run.health()["state"]
    text = _("{node}:{gpu} recovered; the drill took {took} s.") if is_done else _("{node}:{gpu} is {state} after {took} s: not recovered.")
    session.answer(found, text.format(node=safe(node), gpu=gpu, took=took_s, state=state))
    if not is_done:
        raise typer.Exit(ExitCode.FAILED)


def _chain(run: Drill, fault: str, node: str, gpu: int) -> bool:
    """The fault once, and once more if the card healed: then it leaves, its jobs go on elsewhere, and it is brought back."""
    client = run.session.client
    known = {event["at"] for event in run.health()["events"]}
    client.node_drill(node, fault=fault, gpu=gpu)
    if not run.until(lambda: {event["at"] for event in run.health()["events"]} - known):
        return False
    run.step(_("the fault was noticed"))
    health = run.until(lambda: _settled(run, node))
    if not health:
        return False
    run.step(_("the card is {state}").format(state=health["state"]))
    incident = run.incident = health["incident"]
    if incident is None:
        return bool(health["state"] == "HEALTHY")  # a fault that a program can cause: nothing else follows
    if health["state"] != "ISOLATED":
        time.sleep(APART_S)
        run.step(_("waited: a second fault so soon would count as the first"))
        client.node_drill(node, fault=fault, gpu=gpu)
        if not run.until(lambda: run.health()["state"] == "ISOLATED"):
            return False
        run.step(_("the fault came again: the card is isolated"))
    # Its jobs are stopped a moment after it left.
    if not run.until(lambda: _stopped(run, incident) or not _live_slices(run, node)):
        return False
    jobs = _stopped(run, incident)
    if jobs and not run.until(lambda: all(_is_elsewhere(client.job_get(job), run.uuid) for job in jobs)):
        return False
    if jobs:
        run.step(_("jobs that left the card: {jobs}").format(jobs=", ".join(f"#{job}" for job in jobs)))
    if not run.until(lambda: not _live_slices(run, node)):
        return False
    client.gpu_act(run.uuid, action="return", reason="drill")
    if not run.until(lambda: run.health()["state"] == "HEALTHY"):
        return False
    run.step(_("the card passed its self-test and is back in service"))
    client.incident_close(incident, text="drill")
    return True


def _settled(run: Drill, node: str) -> dict[str, Any] | None:
    """The card's health once nothing more comes of the fault by itself. A card that a job has whole is tested only after it."""
    health = run.health()
    if health["needs_human"] or (health["state"] != "SUSPECT" and not health["waits_for"]):
        return health
    return health if _card(run, node)["exclusive"] else None


def _card(run: Drill, node: str) -> Gpu:
    return next(card for card in run.session.client.node_get(node)["gpus"] if card["uuid"] == run.uuid)


def _live_slices(run: Drill, node: str) -> int:
    return _card(run, node)["live_slices"]


def _stopped(run: Drill, incident: int) -> list[int]:
    lines = run.session.client.incident_get(incident)["timeline"]
    return sorted({int(line["params"]["job"]) for line in lines if line["code"] == "job_stopped"})


def _is_elsewhere(job: Any, uuid: str) -> bool:
    """It runs on other cards, waits for some, or is over."""
    if job["state"] in ("STARTING", "STOPPING"):
        return False
    ranks = (job["attempt"] or {}).get("ranks", []) if job["state"] == "RUNNING" else []
    return all(card["uuid"] != uuid for rank in ranks for card in rank["gpus"])
