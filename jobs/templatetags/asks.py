"""{{ job|ask }}: what a job asks for.  {{ job|wait_reason }}: why it waits, in the reader's language."""

from __future__ import annotations

from django import template

from jobs.asks import ask_text
from jobs.wording import why_text

register = template.Library()
register.filter("ask", ask_text)


@register.filter
def wait_reason(job: object) -> str:
    return why_text(job)[2]  # type: ignore[arg-type]
