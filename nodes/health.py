"""Evidence → verdict: what an XID, a self-test or a run of figures means for a card. Pure; times are Unix seconds.

The rules (D5–D7) are data: ``XidPolicy`` rows. What a user's program can cause never takes a card from its neighbours: a card
becomes SUSPECT for it only when ``OWNERS`` different people hit the same thing within ``OWNERS_S``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

HEALTHY, SUSPECT, ISOLATED, MAINTENANCE, MISSING = "HEALTHY", "SUSPECT", "ISOLATED", "MAINTENANCE", "MISSING"
OWNERS, OWNERS_S = 3, 3600.0
#: The same XID of a card again so soon is the same occurrence: drivers repeat themselves.
BURST_S = 5.0
#: A card that passed a self-test so lately is not tested again for what a program can cause.
TEST_AGAIN_S = 3600.0


class Action(StrEnum):
    """What an XID brings about. RESET and TEST wait until the card is idle; SUSPECT tests at once."""

    NOTE = "note"
    FAIL_JOB = "fail_job"
    RESTART_JOB = "restart"
    TEST = "test"
    RESET = "reset"
    SUSPECT = "suspect"
    ISOLATE = "isolate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``again_s``: SUSPECT becomes isolation, and RESET is not repeated, within this time."""

    xid: int
    action: str
    is_users: bool = False
    again_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One occurrence. ``owner`` None = it can't be told whose program it was."""

    xid: int
    at: float
    owner: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    state: str = HEALTHY
    tested_at: float | None = None  # passed
    reset_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``state`` None = stays as it is. ``wants``: test | reset, when the card allows it."""

    code: str
    params: dict[str, Any] = field(default_factory=dict)
    state: str | None = None
    wants: str | None = None
    fails_job: bool = False  # the program's own doing: it ends
    restarts_job: bool = False  # the card's doing: the program goes back to the queue


def judge_xid(rule: Rule | None, seen: Seen, card: Card, past: Sequence[Seen] = ()) -> Verdict:
    """What this occurrence means. ``past``: earlier ones of the card, bursts already one; ``rule`` None = an XID that nobody knows."""
    note = Verdict(code="xid", params={"xid": seen.xid})
    if rule is None or card.state not in (HEALTHY, SUSPECT):
        # A card that is out already gets no worse; its program, if any, is still the program's.
        return replace(note, fails_job=rule is not None and rule.action == Action.FAIL_JOB)
    if rule.is_users:
        found = _judge_owners(seen, card, past)
        if found is not None:
            return replace(found, fails_job=rule.action == Action.FAIL_JOB)
    again = [p for p in past if p.xid == seen.xid and 0 <= seen.at - p.at <= rule.again_s]
    match rule.action:
        case Action.FAIL_JOB:
            return replace(note, fails_job=True)
        case Action.RESTART_JOB:
            return replace(note, restarts_job=True, wants="reset")
        case Action.TEST:
            is_fresh = card.tested_at is not None and seen.at - card.tested_at < TEST_AGAIN_S
            return note if is_fresh else replace(note, wants="test")
        case Action.RESET:
            was_reset = card.reset_at is not None and seen.at - card.reset_at < rule.again_s
            if rule.is_users:
                return note if was_reset else replace(note, wants="reset")
            # The card's own fault: nothing starts on it before the reset, and what a reset has not mended needs a person.
            if was_reset:
                return Verdict(code="xid_again", params={"xid": seen.xid, "within_s": round(rule.again_s)}, state=ISOLATED)
            return replace(note, state=SUSPECT, wants="reset")
        case Action.SUSPECT if not again:
            return replace(note, state=SUSPECT, wants="test")
        case Action.SUSPECT:
            return Verdict(code="xid_again", params={"xid": seen.xid, "within_s": round(rule.again_s)}, state=ISOLATED)
        case Action.ISOLATE:
            return replace(note, state=ISOLATED)
    return note


def _judge_owners(seen: Seen, card: Card, past: Sequence[Seen]) -> Verdict | None:
    """Several people's programs met the same: then it is the card. A test that was passed since counts as an answer to those before
    it; when three more meet it within an hour of that test, the test was wrong."""
    tested_at = card.tested_at if card.tested_at is not None and card.tested_at <= seen.at else None
    since = max(seen.at - OWNERS_S, tested_at or 0.0)
    owners = {p.owner for p in (*past, seen) if p.xid == seen.xid and p.owner is not None and since <= p.at <= seen.at}
    if len(owners) < OWNERS:
        return None
    is_repeat = tested_at is not None and seen.at - tested_at < OWNERS_S
    params = {"xid": seen.xid, "owners": len(owners)}
    return Verdict(code="xid_owners", params=params, state=ISOLATED if is_repeat else SUSPECT, wants=None if is_repeat else "test")


def judge_kind(kind: str, card: Card) -> Verdict | None:
    """What an event without a number means: a card that left, is lost or came back. None = only a line in the history."""
    if kind == "lost" and card.state in (HEALTHY, SUSPECT):
        return Verdict(code="lost", state=ISOLATED)
    if kind == "missing":
        return Verdict(code="missing")  # the inventory has taken it out
    if kind == "appeared" and card.state in (HEALTHY, SUSPECT):
        return Verdict(code="appeared", state=SUSPECT, wants="test")
    return None


def judge_facts(facts: Mapping[str, Any], card: Card, *, uncorrected: str, since_reset: int = 0) -> Verdict | None:
    """What the slow facts of a card mean; None = nothing. A card without spare memory rows is isolated whatever the setting.

    ``uncorrected``: what memory errors that were not corrected bring about: note | suspect | isolate. ``since_reset``: how many of them
    a passed self-test has answered already (drivers count them from one reset to the next).
    """
    if card.state not in (HEALTHY, SUSPECT):
        return None
    if facts.get("remap_failed"):
        return Verdict(code="remap_failed", state=ISOLATED)
    errors = facts.get("ecc_uncorrected")
    if not isinstance(errors, int) or isinstance(errors, bool) or errors <= since_reset or uncorrected == Action.NOTE:
        return None
    if uncorrected == Action.ISOLATE:
        return Verdict(code="ecc_uncorrected", params={"errors": errors}, state=ISOLATED)
    return None if card.state == SUSPECT else Verdict(code="ecc_uncorrected", params={"errors": errors}, state=SUSPECT, wants="reset")


# --- the self-test --------------------------------------------------------------------------------------------------

TRIES: Final = 3


def judge_test(result: str, card: Card, *, is_users: bool, tries: int) -> Verdict:
    """``result``: passed | failed | impossible | error (the agent failed, or did not answer). Raises nothing.

    What a program caused never takes a card out for want of a test; a fault of the card needs a person then.
    """
    if result == "passed":
        return Verdict(code="test_passed", state=HEALTHY)
    if result == "failed":
        return Verdict(code="test_failed", state=ISOLATED)
    if result == "error" and tries < TRIES:
        return Verdict(code="test_again", wants="test")
    code = "test_impossible" if result == "impossible" else "test_error"
    return Verdict(code=code, state=HEALTHY if is_users and card.state == SUSPECT else None)


# --- runs of figures ------------------------------------------------------------------------------------------------

RUN = 3
LOAD_PCT, LOW_USE_PCT, HOT_C = 50, 20, 75
#: Below these shares of its highest clock a card counts as under its base clock, and its memory as held low.
BASE_CLOCK, MEMORY_CLOCK = 0.7, 0.5
THERMAL = frozenset({"hw_thermal", "sw_thermal", "thermal"})
LEAK_STEP_MIB = 64
TRENDS = ("throttle", "cooling", "memory_clock", "leak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A sample of a card. None = not told. ``held``: (MiB, slices) that jobs hold: a new allocation changes it."""

    util_pct: int | None = None
    temp_c: int | None = None
    used_mib: int | None = None
    core_mhz: int | None = None
    mem_mhz: int | None = None
    core_max_mhz: int | None = None
    mem_max_mhz: int | None = None
    throttle: Sequence[str] | None = ()
    held: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """What is remembered of a card between samples: how long each thing has been so, and which were told."""

    runs: dict[str, int] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    used_mib: int | None = None
    held: tuple[int, int] | None = None


def trend_next(trend: Trend, now: Figures) -> tuple[Trend, tuple[str, ...], tuple[str, ...]]:
    """(memory, what began, what is over): each begins after RUN samples in a row and ends after as many without.

    A figure that is not told neither begins nor ends anything.
    """
    runs: dict[str, int] = {}
    told = set(trend.told)
    began, over = [], []
    for name, is_so in _signs(trend, now).items():
        run = trend.runs.get(name, 0)
        if is_so is not None:
            # Above 0: so many samples in a row with it; below: without.
            run = min(RUN, max(run, 0) + 1) if is_so else max(-RUN, min(run, 0) - 1)
        if run >= RUN and name not in told:
            told.add(name)
            began.append(name)
        elif run <= -RUN and name in told:
            told.discard(name)
            over.append(name)
        if run > 0 or (run < 0 and name in told):
            runs[name] = run
    kept = Trend(runs=runs, told=tuple(sorted(told)), used_mib=now.used_mib, held=now.held)
    return kept, tuple(began), tuple(over)


def _signs(before: Trend, now: Figures) -> dict[str, bool | None]:
    return {
        "throttle": _both(_at_load(now), None if now.throttle is None else bool(THERMAL.intersection(now.throttle))),
        "cooling": _is_cooling_bad(now),
        "memory_clock": _both(_at_load(now), _under(now.mem_mhz, now.mem_max_mhz, MEMORY_CLOCK)),
        "leak": _is_growing(before, now),
    }


def _both(one: bool | None, other: bool | None) -> bool | None:
    """And, where None is "not known": known only if it does not depend on what is not."""
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def _at_load(now: Figures) -> bool | None:
    return None if now.util_pct is None else now.util_pct >= LOAD_PCT


def _under(value: int | None, most: int | None, share: float) -> bool | None:
    return None if value is None or not most else value < most * share


def _is_cooling_bad(now: Figures) -> bool | None:
    """Little use, hot, and the clock under its base: it slows down for the heat. An idle card, with its memory asleep or nobody on
    it, has low clocks by right."""
    if now.held[1] == 0 or _under(now.mem_mhz, now.mem_max_mhz, MEMORY_CLOCK):
        return False
    low = None if now.util_pct is None else now.util_pct < LOW_USE_PCT
    hot = None if now.temp_c is None else now.temp_c >= HOT_C
    return _both(_both(low, hot), _under(now.core_mhz, now.core_max_mhz, BASE_CLOCK))


def _is_growing(before: Trend, now: Figures) -> bool | None:
    """More memory in use than at the sample before, beyond what jobs asked for, and nobody took any."""
    if now.used_mib is None or before.used_mib is None:
        return None
    if before.held != now.held or now.used_mib <= now.held[0]:
        return False
    return now.used_mib - before.used_mib >= LEAK_STEP_MIB


def health_score(*, faults_week: int = 0, told: Sequence[str] = (), remap_pending: bool = False, remap_failed: bool = False) -> int:
    """0 (worst) to 100, for placement: 15 off for each XID of the last week that was the card's own (45 at most), 30 while it slows
    down for heat, 15 while its memory clock is held low, 20 for memory waiting to be taken out of use, 40 for no spare rows."""
    score = 100 - min(45, 15 * faults_week)
    score -= 30 * bool({"throttle", "cooling"}.intersection(told)) + 15 * ("memory_clock" in told)
    return max(0, score - 20 * remap_pending - 40 * remap_failed)
