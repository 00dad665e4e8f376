"""What a simulation says: what its rows and columns are called, what is not as it was, what it comes to, what can't be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from jobs.scheduler.compare import Comparison
from jobs.wording.numbers import Params, said


def span(seconds: float | None) -> str:
    """For a column of a table, one unit: ``42 s``, ``12.3 min``, ``3.9 h``, ``12.1 d``; a difference has its sign."""
    if seconds is None:
        return "–"
    size = abs(seconds)
    if size < 60:
        number, unit = f"{seconds:.0f}", pgettext("seconds", "s")
    elif size < 3_600:
        number, unit = f"{seconds / 60:.1f}", pgettext("minutes", "min")
    elif size < 2 * 86_400:
        number, unit = f"{seconds / 3_600:.1f}", pgettext("hours", "h")
    else:
        number, unit = f"{seconds / 86_400:.1f}", pgettext("days", "d")
    # Half a second less is no less.
    return f"{'0' if number == '-0' else number} {unit}".replace("-", "−")


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}".replace(",", " ")


# Names of things


def labels() -> dict[str, str]:
    """Field of Measures, or heading, → what it is called."""
    return {
        "waiting": _("Waiting"),
        "jobs": _("jobs"),
        "never_started": _("never started"),
        "wait_avg_s": _("average wait"),
        "wait_p50_s": _("wait of the median job"),
        "wait_p90_s": _("wait, 9 of 10 jobs at most"),
        "wait_p99_s": _("wait, 99 of 100 jobs at most"),
        "wait_max_s": _("longest wait"),
        "slowdown_avg": _("bounded slowdown"),
        "makespan_s": _("first submit to last end"),
        "use": _("Utilisation"),
        "utilisation": _("cards in use while jobs come"),
        "utilisation_makespan": _("cards in use to the last end"),
        "sla": _("Service level"),
        "within_2min": _("started within 2 minutes"),
        "within_5min": _("started within 5 minutes"),
        "energy": _("Energy"),
        "card_hours_held": _("card-hours in use"),
        "card_hours_on": _("card-hours switched on"),
        "card_hours_on_idle_nodes": _("… of these on idle nodes"),
        "kwh": _("kWh of the cards"),
        "fairness": _("Fairness"),
        "maxmin_dev": _("deviation from fair shares"),
        "jain": _("Jain's index over users"),
        "user": _("user"),
        "project": _("project"),
        "difference": _("difference"),
        "load": _("load"),
        "policy": _("policy"),
        "recorded": _("as it was"),
        "current": _("current"),
    }


def source_text(p: Params) -> str:
    """What was simulated, in one sentence."""
    return _("%(jobs)s jobs of %(users)s users within %(span)s on %(cards)s cards of %(nodes)s nodes.") % {**p, "span": span(p["span_s"])}


def load_text(load: float, offered: float | None) -> str:
    if offered is None:
        return _("Load × %(load)s (all jobs come at once)") % {"load": f"{load:g}"}
    return _("Load × %(load)s: the jobs ask for %(offered)s of what the cards can do while they come") % {
        "load": f"{load:g}",
        "offered": percent(offered),
    }


def owners_text(kind: str, before: str, after: str) -> str:
    p = {"before": before, "after": after}
    if kind == "user":
        return _("Average wait of each user under %(before)s and under %(after)s, largest change first") % p
    return _("Average wait of each project under %(before)s and under %(after)s, largest change first") % p


def more_text(count: int) -> str:
    return ngettext("… and %(count)d more (--all shows it)", "… and %(count)d more (--all shows them)", count) % {"count": count}


# What it comes to


def verdict_text(before: str, after: str, found: Comparison) -> str:
    """One sentence."""
    first, second = found.before.measures, found.after.measures
    if found.waits == "unknown":
        return _("%(before)s and %(after)s can't be compared: under one of them no job started.") % {"before": before, "after": after}
    p = {
        "before": before,
        "after": after,
        "wait_before": span(first.wait_avg_s),
        "wait_after": span(second.wait_avg_s),
        "users": len(found.users),
        "gain": found.count("gains"),
        "lose": found.count("loses"),
        "same": found.count("same"),
        "fair_before": number(first.maxmin_dev, 3),
        "fair_after": number(second.maxmin_dev, 3),
    }
    if found.fairness == "unknown":
        return (
            _(
                "Under %(after)s instead of %(before)s the average job waits %(wait_after)s instead of %(wait_before)s; of %(users)d "
                "users %(gain)d wait less, %(lose)d longer and %(same)d about as long."
            )
            % p
        )
    sentence = {
        "fairer": _(
            "Under %(after)s instead of %(before)s the average job waits %(wait_after)s instead of %(wait_before)s; of %(users)d users "
            "%(gain)d wait less, %(lose)d longer and %(same)d about as long; cards are shared more fairly (deviation %(fair_after)s "
            "instead of %(fair_before)s)."
        ),
        "less_fair": _(
            "Under %(after)s instead of %(before)s the average job waits %(wait_after)s instead of %(wait_before)s; of %(users)d users "
            "%(gain)d wait less, %(lose)d longer and %(same)d about as long; cards are shared less fairly (deviation %(fair_after)s "
            "instead of %(fair_before)s)."
        ),
        "same": _(
            "Under %(after)s instead of %(before)s the average job waits %(wait_after)s instead of %(wait_before)s; of %(users)d users "
            "%(gain)d wait less, %(lose)d longer and %(same)d about as long; cards are shared about as fairly (deviation %(fair_after)s "
            "instead of %(fair_before)s)."
        ),
    }[found.fairness]
    return sentence % p


# What is not as it was


def note_text(code: str, count: int) -> str:
    """A code of jobs.replays.Replay.notes; unknown codes come back as they are."""
    return said(NOTES, code, {"count": count})


def _counted(build: Callable[[int], str]) -> Callable[[Params], str]:
    return lambda p: build(p["count"]) % {"count": p["count"]}


NOTES: Mapping[str, Callable[[Params], str]] = {
    "never_ran": _counted(
        lambda n: ngettext(
            "%(count)d job ended without ever running (cancelled while it waited, or failed to launch): left out.",
            "%(count)d jobs ended without ever running (cancelled while they waited, or failed to launch): left out.",
            n,
        )
    ),
    "held": _counted(
        lambda n: ngettext("%(count)d job is held and never ran: left out.", "%(count)d jobs are held and never ran: left out.", n)
    ),
    "waits": _counted(
        lambda n: ngettext(
            "%(count)d job still waits: it takes part, and runs as long as predicted.",
            "%(count)d jobs still wait: they take part, and run as long as predicted.",
            n,
        )
    ),
    "still_runs": _counted(
        lambda n: ngettext(
            "%(count)d job still runs: it counts as running as long as predicted, or twice as long as it has run.",
            "%(count)d jobs still run: they count as running as long as predicted, or twice as long as they have run.",
            n,
        )
    ),
    "requeued": _counted(
        lambda n: ngettext(
            "%(count)d job ran several times after faults: it counts as one run, as long as the last.",
            "%(count)d jobs ran several times after faults: they count as one run each, as long as the last.",
            n,
        )
    ),
    "was_held": _counted(
        lambda n: ngettext(
            "%(count)d job was held for a while: its wait counts from its release.",
            "%(count)d jobs were held for a while: their waits count from their release.",
            n,
        )
    ),
    "ran_elsewhere": _counted(
        lambda n: ngettext(
            "%(count)d job ran at the beginning on a card that is not there any more: left out.",
            "%(count)d jobs ran at the beginning on cards that are not there any more: left out.",
            n,
        )
    ),
    "never_fits": _counted(
        lambda n: ngettext(
            "%(count)d job can never run on these cards: left out.",
            "%(count)d jobs can never run on these cards: left out.",
            n,
        )
    ),
    "cards_left_out": _counted(
        lambda n: ngettext(
            "%(count)d card is missing or of unknown size: left out.", "%(count)d cards are missing or of unknown size: left out.", n
        )
    ),
    "cards_out_of_service": _counted(
        lambda n: ngettext(
            "%(count)d card is out of service now; it counts as in service all the time.",
            "%(count)d cards are out of service now; they count as in service all the time.",
            n,
        )
    ),
}


def assumption_text() -> str:
    return _("Drains, faults, quotas and changes of the pool within the period are not simulated.")


def interrupted_text() -> str:
    return _("Interrupted; nothing was changed.")


def energy_text() -> str:
    return _("What the cards draw is not known here: energy is told in card-hours. --watts BUSY,IDLE turns them into kWh.")


# What can't be read


def _of(text: Callable[[], str]) -> Callable[[Params], str]:
    return lambda p: text() % p


def _row_number(p: Params) -> str:
    if p.get("least") is None:
        return _("Line %(line)s: %(column)s is “%(value)s”; expected a number.") % p
    return _("Line %(line)s: %(column)s is “%(value)s”; expected a whole number in its range, from %(least)s up.") % p


ERRORS: Mapping[str, Callable[[Params], str]] = {
    "columns": _of(lambda: _("The first line must name the columns %(short)s, or %(full)s; it has: %(have)s.")),
    "not_csv": _of(lambda: _("Line %(line)s can't be read as comma-separated values.")),
    "empty": _of(lambda: _("There is no job in the file.")),
    "no_jobs": _of(lambda: _("There is no job to simulate: none came in this period, or none could ever run on these cards.")),
    "row_number": _row_number,
    "row_twice": _of(lambda: _("Line %(line)s: there was a job %(id)s before; each needs a number of its own.")),
    "row_request": _of(lambda: _("Line %(line)s: no cluster can serve this request (%(reason)s).")),
    "row_labels": _of(lambda: _("Line %(line)s: labels is “%(value)s”; expected key=value;key=value.")),
    "cluster_json": _of(
        lambda: _('A cluster is JSON: {"nodes": [4, 4]} or {"nodes": [{"gpus": 8, "model": "A100", "total_mib": 40960}]}.')
    ),
    "cluster_node": _of(lambda: _("Node %(node)s of the cluster is neither a number of cards nor an object with gpus.")),
    "cluster_number": _of(
        lambda: _("Node %(node)s of the cluster: %(field)s is %(value)s; expected a whole number from %(least)s to %(most)s.")
    ),
    "no_cards": _of(lambda: _("The cluster has no card; name one with --cluster FILE or --preset %(preset)s.")),
    "preset": _of(lambda: _("There is no preset %(name)s; there are: %(known)s.")),
    "preset_nodes": _of(lambda: _("A preset of %(nodes)s nodes can't be made; expected %(least)s to %(most)s.")),
    "setting_unknown": _of(lambda: _("The policy has no number %(field)s; it has: %(known)s.")),
    "setting_value": _of(lambda: _("%(field)s is “%(value)s”; expected a number from %(least)s to %(most)s.")),
    "option_number": _of(lambda: _("%(option)s is “%(value)s”; expected a number from %(least)s to %(most)s.")),
    "option_count": _of(lambda: _("%(option)s is “%(value)s”; expected %(count)s numbers, parted by a comma.")),
    "only_with": _of(lambda: _("%(option)s goes with %(other)s only.")),
    "both": _of(lambda: _("Give %(one)s or %(other)s, not both.")),
    "span": _of(lambda: _("--last is “%(value)s”; expected a span such as 30d, 12h or 2d 6h.")),
    "until": _of(lambda: _("--until is “%(value)s”; expected a time with its zone, such as 2026-03-01T00:00+08:00.")),
    "database": _of(lambda: _("The database can't be read (%(why)s); is this the data folder that you mean? NEBULA_DATA names it.")),
    "unreadable": _of(lambda: _("%(path)s can't be read: %(why)s.")),
    "not_text": _of(lambda: _("%(path)s is not text in UTF-8.")),
    "unwritable": _of(lambda: _("%(path)s can't be written: %(why)s.")),
    "file_exists": _of(lambda: _("%(path)s exists; name a file that does not.")),
    "setting_shape": _of(lambda: _("--set %(value)s: expected FIELD=NUMBER, for instance borrow_s=7200.")),
    "order_unknown": _of(lambda: _("There is no policy %(name)s; there are: %(known)s.")),
    "strategy_unknown": _of(lambda: _("There is no strategy %(name)s; there are: %(known)s.")),
}


def error_text(code: str, params: Mapping[str, Any]) -> str:
    return said(ERRORS, code, params)
