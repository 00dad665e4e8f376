"""What ``submit --dry-run`` and ``why`` say: when a job will start, and what would start sooner. Each part is printed as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import typer

from client.commands.common import Session, note, print_json, say
from client.errors import ExitCode, NebulaError
from client.i18n import _, labelled
from client.output import known, safe, time_local, time_parse, time_short
from client.shapes import Alternative

#: What a submit would not accept, or nothing could ever run.
REFUSED = frozenset({"never", "refused"})
SOON_S = 5
#: It has just started, or others ask as well.
LATER = frozenset({"invalid_state", "estimates_busy", "throttled"})


def about(text: str | None, now: datetime) -> str:
    """``15:10`` of today, else the date with it, in this machine's zone; ``-`` for None."""
    shown = time_short(text, now)
    return shown[:5] if shown.count(":") == 2 else shown


def start_words(told: Mapping[str, Any] | None, now: datetime) -> str:
    """``Starts ≈ 15:10; nine times in ten by 16:40 (node03 gpu1).`` Empty where nothing is known."""
    if told is None:
        return ""
    first, last, later = (time_parse(told.get(key)) for key in ("p50", "p90", "later_than"))
    place = f" ({safe(told['place'])})" if told.get("place") else ""
    if first is None:
        return "" if later is None else _("Starts later than {time}.").format(time=about(told["later_than"], now))
    if (first - now).total_seconds() <= SOON_S:
        return _("Starts now{place}.").format(place=place)
    times = {"first": about(told["p50"], now), "last": about(told["p90"], now), "place": place}
    if last is None or times["first"] == times["last"]:
        return _("Starts ≈ {first}{place}.").format(**times)
    return _("Starts ≈ {first}; nine times in ten by {last}{place}.").format(**times)


def start_short(job: Mapping[str, Any], now: datetime) -> str:
    """For a column: ``≈ 15:10`` of what waits; empty where nothing is known."""
    told = (job.get("wait") or {}).get("estimate") if job["state"] == "WAITING" else None
    if told is None:
        return ""
    if told["p50"] is not None:
        return f"≈ {about(told['p50'], now)}"
    return f"> {about(told['later_than'], now)}" if told["later_than"] else ""


def dry_run(session: Session, body: Mapping[str, Any]) -> None:
    """Exit code 2 for what would not get into the queue."""
    told: dict[str, Any] = {}
    if session.is_json:
        told = dict(session.client.job_estimate(**body))
        print_json(told)
    else:
        lines = session.client.job_estimate_live(**body)
        told = next(lines)
        for line in verdict_lines(told, datetime.now(UTC)):
            say(line)
        if told["verdict"] == "waits":
            alternatives_say(lines)
    if told["verdict"] in REFUSED:
        raise typer.Exit(ExitCode.USAGE)


def verdict_lines(told: Mapping[str, Any], now: datetime) -> Iterator[str]:
    words = {
        "starts": _("It would start at once"),
        "waits": _("It would wait"),
        "held": _("It would be held"),
        "refused": _("It would be refused"),
        "never": _("It could never run here"),
    }
    verdict = words.get(told["verdict"], str(told["verdict"]))
    if told["verdict"] == "starts":
        yield _("{sentence}.").format(sentence=labelled(verdict, safe(told["place"])))
        return
    yield labelled(verdict, safe(told["text"]))
    if told["position"] is not None:
        yield _("Position {position} of the queue; {ahead} before it.").format(position=told["position"], ahead=told["position"] - 1)
    start = start_words(told, now)
    if start or told["verdict"] == "waits":
        yield start or _("Nobody can say yet when it starts.")


def alternatives_say(found: Iterable[Mapping[str, Any] | Alternative]) -> None:
    """Each as it comes. The rest is waited for aloud: a long queue takes seconds."""
    count = 0
    for one in found:
        if not count:
            say(_("What would start sooner:"))
        count += 1
        text = safe(one["text"])
        say("  " + labelled(text, start_words(one, datetime.now(UTC))))
        say(f"    {safe(one['command'])}")
    if not count:
        say(_("Nothing smaller would start sooner."))


def why_say(session: Session, job_id: int, *, has_alternatives: bool) -> None:
    """Why the job waits, when it will start, and what would start sooner."""
    why = session.client.job_why(job_id)
    is_waiting = why["state"] == "WAITING" and why["code"] != "held"
    wants = has_alternatives and is_waiting
    if session.is_json:
        print_json({**why, "alternatives": list(session.client.job_alternatives(job_id))} if wants else why)
        return
    text = safe(why["text"] or why["code"] or "")
    say(labelled(_("Job {id} is {state}").format(id=job_id, state=why["state"]), text))
    if why["position"] is not None:
        say(_("Position {position} of the queue; {ahead} before it.").format(position=why["position"], ahead=known(why["ahead"])))
    told = why.get("estimate")
    start = start_words(told, datetime.now(UTC))
    if start:
        say(start)
    if told is not None and told["is_stale"]:
        say(_("That estimate is {age:.0f} s old; a new one is being made.").format(age=told["age_s"]))
    if why["checked_at"]:
        say(_("Checked {when}.").format(when=time_local(why["checked_at"])))
    if wants:
        try:
            alternatives_say(session.client.job_alternatives(job_id))
        except NebulaError as error:
            if error.code not in LATER:
                raise
            note(safe(error.message))  # what was asked for is told already
