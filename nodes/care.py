"""Every write of a card's state but "not seen" (nodes/inventory.py), and the self-tests and resets that go with it.

A verdict (nodes/health.py) moves the card, opens or continues its incident, and leaves a wish: ``CardCare.wants``. ``care_run``
turns wishes into agent commands as soon as the card allows it; ``results_take`` judges the answers. Jobs on a card that is
ISOLATED or gone are stopped by the jobs room, which reads that from the card's state: nothing is lost when a process dies between.

Locks: the card's row, then its care, then its incident.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from nodes import live, telemetry
from nodes.errors import NodeRefused
from nodes.health import Card, Verdict, judge_test
from nodes.health_models import CardCare, Incident
from nodes.incidents import incident_add, incident_of, incident_open
from nodes.models import AgentCommand, Gpu, GpuState, Node, NodeState
from quotas.audit import audit

log = logging.getLogger(__name__)

COMMAND_TTL_S = 900
HEAT_S = 20
#: A self-test beside a program needs this much memory that nobody has or may take; it leaves this much alone.
ROOM_MIB, MARGIN_MIB = 1024, 512
REASON_MAX = 200
PHASES = {
    GpuState.SUSPECT: Incident.Phase.DIAGNOSING,
    GpuState.ISOLATED: Incident.Phase.RECOVERING,
    GpuState.MAINTENANCE: Incident.Phase.RECOVERING,
    GpuState.HEALTHY: Incident.Phase.REVIEW,
}


def card_of(gpu: Gpu) -> Card:
    """What the rules need of a card. Causes a query."""
    care = CardCare.objects.filter(gpu=gpu).only("tested_at", "reset_at").first()
    if care is None:
        return Card(state=gpu.state)
    tested, reset = (at.timestamp() if at is not None else None for at in (care.tested_at, care.reset_at))
    return Card(state=gpu.state, tested_at=tested, reset_at=reset)


def card_move(gpu: Gpu, to: str, *, reason: str, now: datetime, when: Q | None = None) -> bool:
    """Compare-and-swap of the card's state; False if somebody else moved it (or ``when`` does not hold)."""
    changes = {"state": to, "state_reason": reason[:REASON_MAX], "state_at": now}
    if not Gpu.objects.filter(when or Q(), pk=gpu.pk, state=gpu.state).update(**changes):
        return False
    log.warning("card %s: %s → %s (%s)", gpu.uuid, gpu.state, to, reason)
    for name, value in changes.items():
        setattr(gpu, name, value)
    live.publish("pool", {"node": gpu.node_id, "gpu": gpu.pk, "state": to})
    return True


def reason_of(verdict: Verdict) -> str:
    return f"{verdict.code}:{verdict.params['xid']}" if "xid" in verdict.params else verdict.code


def verdict_apply(*, gpu: Gpu, verdict: Verdict, now: datetime, kernel: Sequence[str] = (), is_users: bool = False) -> bool:
    """Carry a verdict out; True if the card's state changed. Call inside a transaction that holds the card's row."""
    if verdict.code == "appeared" and incident_of(gpu.pk) is None:
        return False  # a card that is new, not one that was lost
    has_moved = False
    if verdict.state is not None and verdict.state != gpu.state:
        has_moved = card_move(gpu, verdict.state, reason=reason_of(verdict), now=now)
    if verdict.wants is not None:
        _wish(gpu, verdict.wants, is_users=is_users and verdict.state is None)
    if verdict.state == GpuState.ISOLATED:
        CardCare.objects.filter(gpu=gpu).update(wants="")  # no test brings it back; a person does
    if verdict.state is not None or verdict.code == "missing":
        incident = incident_open(gpu=gpu, code=verdict.code, params=verdict.params, now=now, kernel=kernel)
        if has_moved or verdict.code == "missing":
            phase = PHASES.get(GpuState(gpu.state), Incident.Phase.RECOVERING)
            incident_add(incident, code=gpu.state.lower() if has_moved else "out", now=now, phase=phase)
    return has_moved


def _wish(gpu: Gpu, wants: str, *, is_users: bool, by_hand: bool = False) -> CardCare:
    care, _made = CardCare.objects.select_for_update().get_or_create(gpu=gpu)
    # A test for the card's own sake is never weakened into one that a program brought about.
    care.is_users = is_users and (care.is_users or not care.wants) and not by_hand
    care.wants = "reset" if "reset" in (wants, care.wants) else wants
    care.tries, care.needs_human = 0, False
    care.save()
    return care


# --- wishes → commands ----------------------------------------------------------------------------------------------


def care_run(*, now: datetime, node: Node | None = None) -> int:
    """Send the self-tests and resets whose cards allow it now; returns how many. A pool without any costs one query."""
    waiting = CardCare.objects.exclude(wants="", command__isnull=True)
    if node is not None:
        waiting = waiting.filter(gpu__node=node)
    sent = 0
    for pk, command in waiting.order_by("pk").values_list("pk", "command__state"):
        if command == AgentCommand.State.QUEUED:
            continue
        with transaction.atomic():
            gpu = Gpu.objects.select_for_update(of=("self",)).select_related("node").get(pk=pk)
            care = CardCare.objects.select_for_update(of=("self",)).get(pk=pk)
            if care.command_id is not None:
                found = AgentCommand.objects.get(pk=care.command_id)
                if found.state == AgentCommand.State.QUEUED:
                    continue
                _answer_take(gpu, care, found, now=now)  # expired, or its answer was overlooked
            if care.wants and not care.needs_human:
                sent += _send(gpu, care, now=now)
    return sent


def _send(gpu: Gpu, care: CardCare, *, now: datetime) -> bool:
    if gpu.node.state not in (NodeState.READY, NodeState.RECOVERING) or gpu.state in (GpuState.MISSING, GpuState.RETIRED):
        return False
    mib = _room(gpu, care)
    if mib is None:
        return False
    is_reset = care.wants == "reset"
    if gpu.state == GpuState.HEALTHY:
        # Out of the pool for the time of it. The slices are in the condition: a pass may place one while we look.
        reason = "resetting" if is_reset else "testing"
        if not card_move(gpu, GpuState.SUSPECT, reason=reason, now=now, when=Q(live_slices=0)):
            return False
    from nodes.services import command_create

    args: dict[str, Any] = {"gpu": gpu.uuid}
    if not is_reset:
        args |= {"mib": mib, "heat_s": 0 if gpu.live_slices else HEAT_S}
    care.command = command_create(node=gpu.node, verb="reset" if is_reset else "selftest", args=args, ttl_s=COMMAND_TTL_S, now=now)
    care.tries += 1
    care.save()
    incident = incident_of(gpu.pk)
    if incident is not None:
        code = "reset_asked" if is_reset else "test_asked"
        incident_add(incident, code=code, params={} if is_reset else {"mib": mib, "busy": bool(gpu.live_slices)}, now=now)
    return True


def _room(gpu: Gpu, care: CardCare) -> int | None:
    """MiB that a self-test may take now (for a reset any number); None = not yet."""
    if gpu.live_slices and (care.wants == "reset" or care.is_users or gpu.is_exclusive or gpu.state != GpuState.SUSPECT):
        return None
    seen = telemetry.gpus_latest([gpu]).get(gpu.pk, {})
    used = (seen.get("used_mib") or 0) + (seen.get("reserved_mib") or 0)
    # What slices may still take counts as taken.
    taken = max(used, gpu.held_mib + (seen.get("foreign_mib") or 0))
    room = (gpu.total_mib or 0) - taken - MARGIN_MIB
    if care.wants == "reset":
        return 0
    return room if room >= ROOM_MIB or not gpu.total_mib else None


# --- answers --------------------------------------------------------------------------------------------------------


def results_take(*, node: Node, cids: Iterable[int], now: datetime) -> bool:
    """Judge the answers to our commands among these; True if a card's state changed. Call inside a transaction."""
    has_changed = False
    for pk in CardCare.objects.filter(gpu__node=node, command__in=list(cids)).order_by("pk").values_list("pk", flat=True):
        gpu = Gpu.objects.select_for_update().get(pk=pk)
        care = CardCare.objects.select_for_update(of=("self",)).get(pk=pk)
        command = AgentCommand.objects.filter(pk=care.command_id).first()
        if command is not None and command.state != AgentCommand.State.QUEUED:
            has_changed |= _answer_take(gpu, care, command, now=now)
    return has_changed


def _answer_take(gpu: Gpu, care: CardCare, command: AgentCommand, *, now: datetime) -> bool:
    care.command = None
    is_done = command.state == AgentCommand.State.DONE
    incident = incident_of(gpu.pk)
    if command.verb == "reset":
        # Whatever came of it, a test says what the card is like now; a second reset within the time is not made either way.
        care.reset_at, care.wants, care.tries = now, "test", 0
        care.save()
        if incident is not None:
            incident_add(incident, code="reset_done" if is_done else "reset_failed", params={"text": command.text[:300]}, now=now)
        return False
    report = _report(command)
    result = report.get("result")
    if result not in ("passed", "failed", "impossible"):
        result = "error"
    verdict = judge_test(result, Card(state=gpu.state), is_users=care.is_users, tries=care.tries)
    care.test = {**report, "result": result, "at": now.isoformat(), "ended": verdict.code}
    if result == "passed":
        care.tested_at = now
    care.wants = verdict.wants or ("reset" if care.wants == "reset" else "")
    care.needs_human = verdict.code in ("test_impossible", "test_error") and verdict.state is None and gpu.state == GpuState.SUSPECT
    care.save()
    if result == "failed" and incident is None:
        incident = incident_open(gpu=gpu, code=verdict.code, params={}, now=now)
    elif incident is not None and verdict.code != "test_again":
        incident_add(incident, code=verdict.code, params=_told(report), now=now)
    to = verdict.state
    if to == GpuState.HEALTHY and gpu.state not in (GpuState.SUSPECT, GpuState.MAINTENANCE):
        to = None  # isolated by a person, or gone meanwhile: a test alone brings nothing back
    if to is None or to == gpu.state:
        return False
    has_moved = card_move(gpu, to, reason="" if to == GpuState.HEALTHY else verdict.code, now=now)
    if has_moved and incident is not None:
        incident_add(incident, code=to.lower(), now=now, phase=PHASES[GpuState(to)])
    return has_moved


def _report(command: AgentCommand) -> dict[str, Any]:
    try:
        # The last line: a library may have said something before.
        found = json.loads(command.text.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"text": command.text[:500]}


def _told(report: Mapping[str, Any]) -> dict[str, Any]:
    names = ("mib", "errors", "max_temp_c", "took_s", "text")
    return {
        name: report[name] if not isinstance(report[name], str) else report[name][:300] for name in names if report.get(name) is not None
    }


# --- what staff do --------------------------------------------------------------------------------------------------


def _by_hand(gpu: Gpu, reason: str) -> tuple[Gpu, str]:
    reason = reason.strip()
    if not 1 <= len(reason) <= REASON_MAX:
        raise NodeRefused("card_reason", params={"limit": REASON_MAX, "length": len(reason)})
    gpu = Gpu.objects.select_for_update(of=("self",)).select_related("node").get(pk=gpu.pk)
    if gpu.state == GpuState.MISSING:
        raise NodeRefused("card_missing", 409, {"node": gpu.node.name, "index": gpu.index})
    return gpu, reason


def _audit(by: AbstractBaseUser | None, action: str, gpu: Gpu, reason: str, now: datetime, **more: Any) -> None:
    audit(by, action, f"card {gpu.node.name}:{gpu.index}", {"uuid": gpu.uuid, "reason": reason, **more}, now=now)


def _refuse_busy(gpu: Gpu) -> None:
    if gpu.live_slices:
        raise NodeRefused("card_busy", 409, {"node": gpu.node.name, "index": gpu.index, "slices": gpu.live_slices, "mib": gpu.held_mib})


def _told_by(gpu: Gpu, code: str, reason: str, by: AbstractBaseUser | None, now: datetime, *, opens: bool = True) -> None:
    incident = incident_of(gpu.pk)
    if incident is None and opens:
        incident = incident_open(gpu=gpu, code="by_hand", params={}, now=now)
    if incident is not None:
        incident_add(incident, code=code, params={"text": reason}, by=by, now=now, phase=PHASES.get(GpuState(gpu.state)))


def _wish_by_hand(gpu: Gpu, wish: str, *, code: str, reason: str, by: AbstractBaseUser | None, now: datetime) -> Gpu:
    """Ask for it, write it into the open incident, and begin at once if the card allows it."""
    _wish(gpu, wish, is_users=False, by_hand=True)
    _told_by(gpu, code, reason, by, now, opens=False)
    care_run(now=now, node=gpu.node)
    gpu.refresh_from_db()
    return gpu


@transaction.atomic
def card_isolate(*, gpu: Gpu, by: AbstractBaseUser | None, reason: str, now: datetime | None = None) -> Gpu:
    """Out of service at once: its jobs are stopped politely and go back to the queue. Idempotent. Raises NodeRefused."""
    now = now or timezone.now()
    gpu, reason = _by_hand(gpu, reason)
    if gpu.state != GpuState.ISOLATED and card_move(gpu, GpuState.ISOLATED, reason=reason, now=now):
        CardCare.objects.filter(gpu=gpu).update(wants="")
        _told_by(gpu, "isolated", reason, by, now)
        _audit(by, "card.isolated", gpu, reason, now)
    return gpu


@transaction.atomic
def card_maintain(*, gpu: Gpu, by: AbstractBaseUser | None, reason: str, now: datetime | None = None) -> Gpu:
    """Under somebody's hands; back by a self-test. Raises NodeRefused (409) while jobs hold it."""
    now = now or timezone.now()
    gpu, reason = _by_hand(gpu, reason)
    _refuse_busy(gpu)
    if gpu.state != GpuState.MAINTENANCE and card_move(gpu, GpuState.MAINTENANCE, reason=reason, now=now, when=Q(live_slices=0)):
        CardCare.objects.filter(gpu=gpu).update(wants="")
        _told_by(gpu, "maintenance", reason, by, now)
        _audit(by, "card.maintained", gpu, reason, now)
    return gpu


@transaction.atomic
def card_test(*, gpu: Gpu, by: AbstractBaseUser | None, reason: str, now: datetime | None = None) -> Gpu:
    """A self-test as soon as the card allows it. Raises NodeRefused."""
    now = now or timezone.now()
    gpu, reason = _by_hand(gpu, reason)
    _audit(by, "card.tested", gpu, reason, now)
    return _wish_by_hand(gpu, "test", code="test_wanted", reason=reason, by=by, now=now)


@transaction.atomic
def card_reset(*, gpu: Gpu, by: AbstractBaseUser | None, reason: str, now: datetime | None = None) -> Gpu:
    """A reset, then a self-test. Raises NodeRefused (409) while jobs hold it."""
    now = now or timezone.now()
    gpu, reason = _by_hand(gpu, reason)
    _refuse_busy(gpu)
    _audit(by, "card.reset", gpu, reason, now)
    return _wish_by_hand(gpu, "reset", code="reset_wanted", reason=reason, by=by, now=now)


@transaction.atomic
def card_return(*, gpu: Gpu, by: AbstractBaseUser | None, reason: str, is_checked: bool = False, now: datetime | None = None) -> Gpu:
    """Back into service: by a self-test (MAINTENANCE until it is passed), or at once where a person has checked the card
    (``is_checked``), which also undoes a mistake. Raises NodeRefused."""
    now = now or timezone.now()
    gpu, reason = _by_hand(gpu, reason)
    if gpu.state == GpuState.HEALTHY:
        return gpu
    if is_checked:
        _audit(by, "card.returned", gpu, reason, now, checked=True)
        CardCare.objects.filter(gpu=gpu).update(wants="", needs_human=False)
        card_move(gpu, GpuState.HEALTHY, reason="", now=now)
        _told_by(gpu, "returned", reason, by, now, opens=False)
        return gpu
    _refuse_busy(gpu)
    if gpu.state == GpuState.ISOLATED:
        card_move(gpu, GpuState.MAINTENANCE, reason=reason, now=now)
    _audit(by, "card.returned", gpu, reason, now)
    return _wish_by_hand(gpu, "test", code="return_wanted", reason=reason, by=by, now=now)
