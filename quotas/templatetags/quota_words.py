"""Requests and charges in words."""

from __future__ import annotations

from django import template

from quotas import approvals, request_words

register = template.Library()
register.filter("ask_text", request_words.ask_text)
register.filter("granted_text", request_words.granted_text)
register.filter("step_text", request_words.step_text)
register.filter("owner_text", request_words.owner_text)
register.filter("last_day", approvals.last_day)


@register.filter
def request_tone(state: str) -> str:
    return request_words.TONES.get(state, "")


@register.filter
def request_icon(state: str) -> str:
    return request_words.ICONS.get(state, "help")
