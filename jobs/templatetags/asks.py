"""Words of a job for templates.

{{ job|ask }}: what it asks for; {{ job|needs }}: (name, value) of all beyond cards and memory; {{ job|wait_reason }}: why it waits.
"""

from __future__ import annotations

from django import template

from jobs.asks import ask_text, need_rows
from jobs.wording import why_text

register = template.Library()
register.filter("ask", ask_text)
register.filter("needs", need_rows)


@register.filter
def wait_reason(job: object) -> str:
    return why_text(job)[2]  # type: ignore[arg-type]
