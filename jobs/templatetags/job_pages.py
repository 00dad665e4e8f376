"""Small words of the job pages. See nodes/templatetags/nebula.py for what all rooms share.

{{ gpu.model|model_name }} RTX 4090     {% exact_clock at %} 13:18:44 of today, else date and time
{{ value|pct }} 12.5%, for style attributes, in no language
"""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from nodes import formats

register = template.Library()
register.filter("model_name", formats.model_name)


@register.simple_tag
def exact_clock(at: datetime) -> SafeString:
    local = timezone.localtime(at)
    today = local.date() == timezone.localtime().date()
    text = f"{local:%H:%M:%S}" if today else formats.clock_text(at)
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), formats.moment_title(at), text)


@register.filter
def pct(value: float) -> str:
    return f"{value:g}%"
