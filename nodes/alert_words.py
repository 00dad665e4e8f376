"""Alerts in words, in the reader's language and zone: codes and numbers in, sentences out. An unknown figure is shown as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from nodes.alert_eval import is_past
from nodes.alert_metrics import LEVEL_WORDS, METRICS
from nodes.alert_models import Alert, AlertMute, AlertRule
from nodes.formats import NBSP, duration, number
from quotas.notify import Kind, fill

WHY = {
    "clear": gettext_lazy("The figure is back."),
    "gone": gettext_lazy("What it was about is not there any more."),
    "no_data": gettext_lazy("No figure came for an hour."),
    "rule_off": gettext_lazy("Its rule is not in use any more."),
}
OPS = {"gt": gettext_lazy("more than"), "ge": gettext_lazy("at least"), "lt": gettext_lazy("less than"), "le": gettext_lazy("no more than")}


def figure_text(metric: str, value: float | None) -> str:
    """``93%``, ``86 °C``, ``1 h 3 min``; n/a for what is not told."""
    if value is None:
        return _("n/a")
    known = METRICS.get(metric)
    unit = known.unit if known is not None else ""
    if unit == "s":
        return duration(value)
    if unit == "%":
        return f"{number(value, 0)}%"
    return f"{number(value, 1)}{NBSP}{unit}" if unit else number(value, 1)


def metric_title(metric: str) -> str:
    known = METRICS.get(metric)
    return str(known.title) if known is not None else metric


def alert_title(metric: str, params: Mapping[str, Any]) -> str:
    """The rule's own title, or that of its figure, and what it is about."""
    title = str(params.get("title") or metric_title(metric))
    about = params.get("place") or params.get("owner") or ""
    return f"{title}: {about}" if about else title


def alert_sentence(metric: str, value: float | None, params: Mapping[str, Any]) -> str:
    known = METRICS.get(metric)
    if known is None:
        return metric
    shown, limit = figure_text(metric, value), figure_text(metric, params.get("limit"))
    if known.unit == "%" and value is not None and shown == limit:  # "90% is used (limit 90%)" would read as a mistake
        shown = f"{number(value, 1)}%"
    words = {
        "value": shown,
        "limit": limit,
        "for": duration(params.get("for_s") or 0),
    }
    return fill(str(known.sentence), {**params, **words})


def advice_of(metric: str) -> str:
    known = METRICS.get(metric)
    return str(known.advice) if known is not None else ""


def level_word(level: int) -> str:
    return str(LEVEL_WORDS.get(level, level))


def why_text(code: str) -> str:
    return str(WHY.get(code, code))


def rule_text(rule: AlertRule) -> str:
    """What it watches: ``more than 90% for 5 min; critical: …``."""
    parts = []
    if rule.warning is not None:
        parts.append(f"{OPS[rule.op]} {figure_text(rule.metric, rule.warning)}")
    if rule.critical is not None:
        text = f"{OPS[rule.op]} {figure_text(rule.metric, rule.critical)}"
        parts.append(_("critical: %(text)s") % {"text": text})
    text = "; ".join(parts)
    return _("%(text)s, for %(time)s") % {"text": text, "time": duration(rule.for_s)} if rule.for_s else text


def rule_title(rule: AlertRule) -> str:
    return rule.title or metric_title(rule.metric)


def mute_text(mute: AlertMute) -> str:
    """What it keeps quiet: ``Hot · node03 gpu2``."""
    parts = [rule_title(mute.rule)] if mute.rule is not None else [_("all rules")]
    if mute.gpu is not None:
        parts.append(f"{mute.gpu.node.name} gpu{mute.gpu.index}")
    elif mute.node is not None:
        parts.append(mute.node.name)
    return " · ".join(parts)


def row_title(alert: Alert) -> str:
    return alert_title(alert.metric, alert.params)


def row_sentence(alert: Alert) -> str:
    """With the figure as it is now while it is past the limit, else with the worst: "0% is used (limit 90%)" helps nobody."""
    value, limit = alert.value, alert.params.get("limit")
    op = alert.rule.op if alert.rule is not None else "ge"
    if value is None or alert.resolved_at is not None or (isinstance(limit, int | float) and not is_past(op, value, limit)):
        value = alert.peak if alert.peak is not None else value
    return alert_sentence(alert.metric, value, alert.params)


def _notice_title(params: Mapping[str, Any]) -> str:
    return f"{level_word(int(params['level']))} · {alert_title(str(params['metric']), params)}"


def _notice_text(params: Mapping[str, Any]) -> str:
    metric = str(params["metric"])
    return f"{alert_sentence(metric, params.get('value'), params)}\n{advice_of(metric)}"


def _many_title(params: Mapping[str, Any]) -> str:
    title = str(params.get("title") or metric_title(str(params["metric"])))
    return f"{level_word(int(params['level']))} · {title} ×{params['n']}"


def _many_text(params: Mapping[str, Any]) -> str:
    places = [str(place) for place in params["places"]]
    return f"{', '.join(places)}{' …' if int(params['n']) > len(places) else ''}\n{advice_of(str(params['metric']))}"


NOTICES = {
    "alert_many": Kind(event="node", title=_many_title, text=_many_text, tone="warn", icon="warn"),
    "alert_critical_many": Kind(event="node", title=_many_title, text=_many_text, tone="bad", icon="octagon"),
    "alert": Kind(event="node", title=_notice_title, text=_notice_text, tone="warn", icon="warn"),
    "alert_critical": Kind(event="node", title=_notice_title, text=_notice_text, tone="bad", icon="octagon"),
}
