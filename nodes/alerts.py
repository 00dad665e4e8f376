"""Looks at the rules, opens and resolves alerts, tells people; acknowledges and mutes.

A look may be lost, late or repeated. What is remembered between two of them is in Redis (``nebula:alerts:*``); with that emptied,
open alerts are known from their rows, and times that were running begin anew. The database is written when something opens, rises
or resolves, and when the figure of an open alert has moved by a whole step.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from nodes import live, telemetry
from nodes.alert_eval import BLANK, Figures, Rule, Track, rule_look
from nodes.alert_metrics import METRICS, Pool, figures_read, pool_read
from nodes.alert_tell import people_tell
from nodes.errors import AlertRefused
from nodes.models import Alert, AlertJob, AlertMute, AlertRule, Gpu, Node
from nodes.text import json_clean
from quotas.audit import audit
from quotas.models import User

log = logging.getLogger(__name__)

EVERY_S = 15
TURN_KEY, TRACK_KEY, LOOK_KEY = "nebula:alerts:turn", "nebula:alerts:tracks", "nebula:alerts:look"
#: What opens again so soon is the same episode.
FLAP_S = 1800
JOBS_MAX = 50
KEEP = timedelta(days=90)
State = Alert.State
#: What the jobs room adds: figures, and who has to do with a subject: (user id, job id or None) pairs, and names for the sentence.
More = Callable[[Pool, float], tuple[dict[str, dict[str, float | None]], dict[tuple[str, str], dict[str, Any]]]]
Owners = Callable[[str], Sequence[tuple[int, int | None]]]


def _no_more(pool: Pool, now: float) -> tuple[dict[str, dict[str, float | None]], dict[tuple[str, str], dict[str, Any]]]:
    return {}, {}


def _no_owners(subject: str) -> Sequence[tuple[int, int | None]]:
    return ()


def alerts_tick(*, now: float, more: More = _no_more, owners: Owners = _no_owners) -> int:
    """One look at all rules; more than one call within 15 s does nothing. Returns how many alerts opened, rose or resolved. ``now``: Unix
    time. Without news: four SELECTs and those of ``more``, four round trips."""
    turn = int(now) // EVERY_S
    if not telemetry.ask(lambda c: c.set(f"{TURN_KEY}:{turn}", "1", nx=True, ex=4 * EVERY_S), None):
        return 0
    rules = [rule for rule in AlertRule.objects.filter(is_enabled=True) if rule.metric in METRICS]
    pool = pool_read()
    figures = figures_read(pool, now=now)
    kept = _memory_read()
    if figures is None or kept is None:
        return 0
    added, names = more(pool, now)
    figures |= added
    before, last_at = kept
    open_rows = {(row.rule_id, row.subject): row for row in Alert.objects.exclude(state=State.RESOLVED).select_related("rule")}
    elapsed_s = max(0.0, now - last_at) if last_at is not None else 0.0
    after: dict[str, Track] = {}
    changes = 0
    for rule in rules:
        if rule.metric not in figures:
            continue
        tracks = _tracks_of(rule, before, open_rows)
        found, events = rule_look(_pure(rule), tracks, figures[rule.metric], now=now, elapsed_s=elapsed_s)
        for subject, event in events:
            row = open_rows.get((rule.pk, subject))
            value = figures[rule.metric].get(subject)
            if event in ("open", "raise"):
                facts = names.get((rule.metric, subject)) or _facts(subject, pool)
                level = found[subject].level
                row = _open(rule, row, subject=subject, level=level, value=value, facts=facts, owners=owners, now=now)
                if row is not None:
                    open_rows[rule.pk, subject] = row
                    found[subject] = Track(**{**_fields(found[subject]), "times": row.times})
            elif row is not None:
                _resolve(row, why=event, now=now)
                open_rows.pop((rule.pk, subject))
            changes += 1
        after |= {f"{rule.pk}|{subject}": track for subject, track in found.items()}
    changes += _orphans_resolve(open_rows, {rule.pk for rule in rules}, now=now)
    _figures_save(open_rows, figures, now=now)
    _memory_write(before, after, now=now)
    people_tell(open_rows.values(), at=datetime.fromtimestamp(now, UTC))
    if changes:
        live.publish("pool", {"alerts": changes})
    return changes


# --- memory ---------------------------------------------------------------------------------------------------------------


def _memory_read() -> tuple[dict[str, str], float | None] | None:
    def read(c: Any) -> list[Any]:
        pipe = c.pipeline(transaction=False)
        pipe.hgetall(TRACK_KEY)
        pipe.get(LOOK_KEY)
        found: list[Any] = pipe.execute()
        return found

    answer = telemetry.ask(read, None)
    if answer is None:
        return None
    try:
        last_at = float(answer[1]) if answer[1] else None
    except ValueError:
        last_at = None
    return answer[0], last_at


def _memory_write(before: Mapping[str, str], after: Mapping[str, Track], *, now: float) -> None:
    texts = {name: json.dumps(track.to_json(), separators=(",", ":")) for name, track in after.items()}
    changed = {name: text for name, text in texts.items() if before.get(name) != text}
    gone = [name for name in before if name not in texts]

    def write(c: Any) -> None:
        pipe = c.pipeline(transaction=False)
        pipe.set(LOOK_KEY, f"{now:.3f}")
        if changed:
            pipe.hset(TRACK_KEY, mapping=changed)
        if gone:
            pipe.hdel(TRACK_KEY, *gone)
        pipe.execute()

    telemetry.ask(write, None)


def _tracks_of(rule: AlertRule, before: Mapping[str, str], rows: Mapping[tuple[int | None, str], Alert]) -> dict[str, Track]:
    """The row says what is open, Redis since when a figure is past or back. Either may have been lost."""
    found: dict[str, Track] = {}
    lead = f"{rule.pk}|"
    for name, text in before.items():
        if name.startswith(lead):
            try:
                found[name.removeprefix(lead)] = Track.from_json(json.loads(text))
            except (ValueError, TypeError):
                continue  # another version wrote it
    for subject in list(found):
        if found[subject].level and (rule.pk, subject) not in rows:
            found[subject] = Track(**{**_fields(found[subject]), "level": 0, "clear_since": None})
    for (rule_id, subject), row in rows.items():
        if rule_id == rule.pk:
            track = found.get(subject, BLANK)
            told_at = track.told_at if track.told_at is not None else row.seen_at.timestamp()
            found[subject] = Track(**{**_fields(track), "level": row.level, "times": row.times, "told_at": told_at})
    return found


def _fields(track: Track) -> dict[str, Any]:
    return {name: getattr(track, name) for name in Track.__slots__}


def _pure(rule: AlertRule) -> Rule:
    return Rule(op=rule.op, warning=rule.warning, critical=rule.critical, for_s=rule.for_s, clear_by=rule.clear_by, clear_s=rule.clear_s)


# --- episodes -------------------------------------------------------------------------------------------------------------


def _facts(subject: str, pool: Pool) -> dict[str, Any]:
    """Names for the sentence, and what the row points to."""
    kind, _, number = subject.partition(":")
    if kind == "gpu" and int(number) in pool.cards:
        node, _uuid, index, model, *_ = pool.cards[int(number)]
        return {"node": pool.nodes[node][0], "gpu": index, "model": model, "place": pool.place(int(number)), "node_id": node}
    if kind == "node" and int(number) in pool.nodes:
        return {"node": pool.nodes[int(number)][0], "place": pool.nodes[int(number)][0], "node_id": int(number)}
    return {}


def _open(
    rule: AlertRule,
    row: Alert | None,
    *,
    subject: str,
    level: int,
    value: float | None,
    facts: Mapping[str, Any],
    owners: Owners,
    now: float,
) -> Alert | None:
    """A new row, the one that resolved a moment ago, or the open one at a higher level. None if another look was first."""
    at = datetime.fromtimestamp(now, UTC)
    limit = rule.critical if level == Alert.Level.CRITICAL and rule.critical is not None else rule.warning
    limit = rule.critical if limit is None else limit
    params = {name: found for name, found in facts.items() if name != "node_id"} | {"limit": limit, "for_s": rule.for_s}
    if rule.title:
        params["title"] = rule.title
    if row is not None:
        Alert.objects.filter(pk=row.pk).update(level=level, value=value, params=json_clean(params), seen_at=at)
        row.level, row.value, row.params = level, value, params
        return row
    last = Alert.objects.filter(rule=rule, subject=subject, state=State.RESOLVED).order_by("-pk").first()
    try:
        with transaction.atomic():
            if last is not None and last.resolved_at is not None and (at - last.resolved_at).total_seconds() < FLAP_S:
                last.state = State.ACKNOWLEDGED if last.acked_at is not None else State.OPEN
                last.level, last.times = max(level, last.level), last.times + 1
                last.value, last.seen_at, last.params = value, at, json_clean(params)
                last.resolved_at, last.resolved_why = None, ""
                last.save(update_fields=("state", "level", "times", "value", "seen_at", "params", "resolved_at", "resolved_why"))
                row = last
            else:
                gpu = int(subject.partition(":")[2]) if subject.startswith("gpu:") else facts.get("gpu_id")
                row = Alert.objects.create(
                    rule=rule, metric=rule.metric, subject=subject, node_id=facts.get("node_id"), gpu_id=gpu, level=level, value=value,
                    peak=value, params=json_clean({k: v for k, v in params.items() if k != "gpu_id"}), opened_at=at, seen_at=at,
                )  # fmt: skip
            known = set(AlertJob.objects.filter(alert=row).values_list("user_id", "job"))
            people = [pair for pair in dict.fromkeys(owners(subject)) if pair not in known][:JOBS_MAX]
            AlertJob.objects.bulk_create([AlertJob(alert=row, user_id=user, job=job) for user, job in people], ignore_conflicts=True)
    except IntegrityError:  # another look at the same moment
        return None
    log.info("alert %s: %s of %s at %s", row.pk, rule.code, subject, value)
    return row


def _resolve(row: Alert, *, why: str, now: float) -> None:
    at = datetime.fromtimestamp(now, UTC)
    Alert.objects.filter(pk=row.pk).exclude(state=State.RESOLVED).update(state=State.RESOLVED, resolved_at=at, resolved_why=why)


def _orphans_resolve(rows: dict[tuple[int | None, str], Alert], rules: set[int], *, now: float) -> int:
    """Of rules that are no longer in use."""
    gone = [key for key in rows if key[0] not in rules]
    for key in gone:
        _resolve(rows.pop(key), why="rule_off", now=now)
    return len(gone)


def _figures_save(rows: Mapping[tuple[int | None, str], Alert], figures: Mapping[str, Figures], *, now: float) -> None:
    """The figures of open alerts as they are now, where they moved by a whole step, and the worst. One UPDATE each, in all few."""
    at = datetime.fromtimestamp(now, UTC)
    for (_rule, subject), row in rows.items():
        value = figures.get(row.metric, {}).get(subject)
        if value is None or row.rule is None:
            continue
        is_high_bad = row.rule.op in ("gt", "ge")
        peak = value if row.peak is None else max(row.peak, value) if is_high_bad else min(row.peak, value)
        step = 60.0 if METRICS[row.metric].unit == "s" else 1.0
        has_moved = row.value is None or abs(row.value - value) >= step or peak != row.peak
        if has_moved or (at - row.seen_at).total_seconds() >= 300:
            Alert.objects.filter(pk=row.pk).update(value=value, peak=peak, seen_at=at)


# --- what staff do ----------------------------------------------------------------------------------------------------------

REASON_MAX = 200


@transaction.atomic
def alert_acknowledge(*, alert: Alert, by: User, note: str = "", now: datetime | None = None) -> Alert:
    """Somebody looks after it. Idempotent; the first who did stays. Raises AlertRefused once it is resolved."""
    note = note.strip()
    if len(note) > REASON_MAX:
        raise AlertRefused("alert_note", params={"limit": REASON_MAX, "length": len(note)})
    changed = Alert.objects.filter(pk=alert.pk, state=State.OPEN).update(
        state=State.ACKNOWLEDGED, acked_at=now or timezone.now(), acked_by=by, note=note
    )
    alert.refresh_from_db()
    if not changed and alert.state == State.RESOLVED:
        raise AlertRefused("alert_resolved", 409, {"alert": alert.pk})
    if changed:
        audit(by, "alert.acknowledged", f"alert {alert.pk}", {"metric": alert.metric, "subject": alert.subject, "note": note}, now=now)
    live.publish("pool", {"alerts": 1})
    return alert


@transaction.atomic
def alert_reopen(*, alert: Alert, by: User) -> Alert:
    """Take an acknowledgement back. Raises AlertRefused once it is resolved."""
    changed = Alert.objects.filter(pk=alert.pk, state=State.ACKNOWLEDGED).update(state=State.OPEN, acked_at=None, acked_by=None, note="")
    alert.refresh_from_db()
    if not changed and alert.state == State.RESOLVED:
        raise AlertRefused("alert_resolved", 409, {"alert": alert.pk})
    if changed:
        audit(by, "alert.acknowledged", f"alert {alert.pk}", {"metric": alert.metric, "subject": alert.subject, "taken_back": True})
    live.publish("pool", {"alerts": 1})
    return alert


@transaction.atomic
def mute_create(
    *,
    by: User,
    reason: str,
    rule: AlertRule | None = None,
    node: Node | None = None,
    gpu: Gpu | None = None,
    until: datetime | None = None,
    now: datetime | None = None,
) -> AlertMute:
    """Nobody is told of what it names until then. Raises AlertRefused without a reason, without anything named, for a time that has
    passed."""
    now, reason = now or timezone.now(), reason.strip()
    if not 1 <= len(reason) <= REASON_MAX:
        raise AlertRefused("mute_reason", params={"limit": REASON_MAX, "length": len(reason)})
    if rule is None and node is None and gpu is None:
        raise AlertRefused("mute_of_nothing")
    if until is not None and until <= now:
        raise AlertRefused("mute_until_past", params={"until": until.isoformat()})
    if gpu is not None and node is None:
        node = gpu.node
    mute = AlertMute.objects.create(rule=rule, node=node, gpu=gpu, reason=reason, until=until, by=by, created_at=now)
    about = {"rule": rule and rule.code, "node": node and node.name, "card": gpu and gpu.uuid, "until": until, "reason": reason}
    audit(by, "alert.muted", f"mute {mute.pk}", about, now=now)
    live.publish("pool", {"alerts": 1})
    return mute


@transaction.atomic
def mute_lift(*, mute: AlertMute, by: User, now: datetime | None = None) -> AlertMute:
    """People are told again, also of what is still open. Idempotent."""
    if AlertMute.objects.filter(pk=mute.pk, lifted_at__isnull=True).update(lifted_at=now or timezone.now(), lifted_by=by):
        audit(by, "alert.unmuted", f"mute {mute.pk}", {"reason": mute.reason}, now=now)
    mute.refresh_from_db()
    live.publish("pool", {"alerts": 1})
    return mute


def alerts_prune(*, now: datetime) -> int:
    """Throw away what was resolved longer ago than it is kept, a little at a time."""
    old = list(Alert.objects.filter(state=State.RESOLVED, resolved_at__lt=now - KEEP).order_by("pk").values_list("pk", flat=True)[:500])
    return Alert.objects.filter(pk__in=old).delete()[0] if old else 0
