"""What templates of every room share: icons, badges, numbers, times.

  {% icon "plus" %}  {% icon "loader" "spin" %}          decorative: give the word beside it
  {% badge "job" job.state %}  {% badge "gpu" s bare=True %}  {% state_icon "job" job.state %}
  {{ mib|gib }}  {% gib_of used total %}  {{ 64|percent }}  {{ 5940|duration }}  {{ hours|gpu_hours }}  {{ 7200|clock_limit }}
  {{ bytes|size }} 2.1 KiB
  {% moment at %} 12:31, 2 h 33 min ago     {% ago at %} 2 h 33 min ago     {% clock at %} 13:18     {% elapsed since %} 1 h 39 min
Times are <time> elements in the reader's zone; those that grow old are kept true by static/js/times.js.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from nodes import formats, icons, states
from nodes.event_words import state_reason_text
from nodes.wording import cordon_text

log = logging.getLogger(__name__)
register = template.Library()

for _function in (
    formats.gib,
    formats.gib_number,
    formats.percent,
    formats.size,
    formats.share,
    formats.gpu_hours,
    formats.duration,
    formats.clock_limit,
    formats.number,
):
    register.filter(_function.__name__, _function)
register.filter("state_reason", state_reason_text)
register.filter("cordon_reason", cordon_text)
register.simple_tag(formats.gib_of)
DAY_S = 86_400


@register.simple_tag
def icon(name: str, extra: str = "") -> SafeString:
    if name not in icons.ICONS:
        log.error("no icon is called %r", name)
        name = "help"
    cls = f"i {extra}" if extra else "i"
    return format_html('<svg class="{}" aria-hidden="true"><use href="{}#i-{}"/></svg>', cls, icons.sprite_url(), name)


def _spin(found: states.Look) -> str:
    return "spin" if found.icon == "loader" else ""


@register.simple_tag
def badge(kind: str, state: str, extra: str = "", *, bare: bool = False) -> SafeString:
    """Tone, icon and word of a state; ``extra`` follows the word."""
    found = states.look(kind, str(state))
    cls = "badge bare" if bare else "badge dash" if found.is_dashed else "badge"
    tone = format_html(' data-tone="{}"', found.tone) if found.tone else ""
    return format_html(
        '<span class="{}"{} data-state="{}">{}{}{}</span>', cls, tone, state, icon(found.icon, _spin(found)), found.word, extra
    )


@register.simple_tag
def state_icon(kind: str, state: str) -> SafeString:
    """The icon alone; its word is the tooltip and what a screen reader says."""
    found = states.look(kind, str(state))
    tone = format_html(' data-tone="{}"', found.tone) if found.tone else ""
    return format_html(
        '<span class="tc"{} title="{}">{}<span class="sr">{}</span></span>', tone, found.word, icon(found.icon, _spin(found)), found.word
    )


@register.simple_tag
def state_word(kind: str, state: str) -> str:
    return str(states.look(kind, str(state)).word)


@register.filter
def tone(state: str, kind: str) -> str:
    return states.look(kind, str(state)).tone


def _time(at: datetime, text: str, *, mode: str = "", before: str = "") -> SafeString:
    data = format_html(' data-time="{}"', mode) if mode else ""
    lead = format_html(' data-before="{}"', before) if before else ""
    return format_html('<time datetime="{}" title="{}"{}{}>{}</time>', at.isoformat(), formats.moment_title(at), data, lead, text)


@register.simple_tag
def moment(at: datetime | None) -> SafeString | str:
    """Under a day both the clock and how long ago; else date and time."""
    if at is None:
        return _("never")
    seconds = (timezone.now() - at).total_seconds()
    clock_now = formats.clock_text(at)
    if 0 <= seconds < DAY_S:
        before = f"{clock_now}，" if formats.is_chinese() else f"{clock_now}, "
        return _time(at, before + formats.ago(seconds), mode="ago", before=before)
    return _time(at, clock_now)


@register.simple_tag
def ago(at: datetime | None) -> SafeString | str:
    return _("never") if at is None else _time(at, formats.ago((timezone.now() - at).total_seconds()), mode="ago")


@register.simple_tag
def clock(at: datetime | None) -> SafeString | str:
    return _("never") if at is None else _time(at, formats.clock_text(at))


@register.simple_tag
def exact_clock(at: datetime) -> SafeString:
    """With seconds, where several lines share a minute: ``13:18:04`` of today, ``14 Jul, 13:18:04`` of another day."""
    return _time(at, formats.clock_text(at, is_exact=True))


@register.simple_tag
def stamp(at: datetime) -> SafeString:
    """Date and time to the second, for records: ``2026-07-14 13:18:04``."""
    return _time(at, f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}")


@register.simple_tag
def elapsed(since: datetime | None, until: datetime | None = None) -> SafeString | str:
    """From ``since`` to ``until``; without an end it goes on to count."""
    if since is None:
        return _("n/a")
    seconds = ((until or timezone.now()) - since).total_seconds()
    return formats.duration(seconds) if until is not None else _time(since, formats.duration(seconds), mode="elapsed")


@register.simple_tag(takes_context=True)
def shell(context: dict[str, Any]) -> dict[str, Any]:
    """What static/js/times.js needs to speak the reader's language and agree with the server's clock."""
    return {
        "units": ",".join(formats.units()),
        "ago": _("%(duration)s ago") % {"duration": "%s"},
        "paused": _("Paused %(seconds)s s") % {"seconds": "%s"},
        "joint": formats.NBSP,
        "now": f"{timezone.now().timestamp():.3f}",
    }


@register.simple_tag(takes_context=True)
def query(context: dict[str, Any], **changes: Any) -> str:
    """The page's query string with these changes; None or empty removes one. Starts with ``?``."""
    params = context["request"].GET.copy()
    for name, value in changes.items():
        params.pop(name, None)
        if value not in (None, ""):
            params[name] = value
    return f"?{params.urlencode()}"
