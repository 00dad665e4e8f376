"""Small words of the job pages. See nodes/templatetags/nebula.py for what all rooms share.

{{ gpu.model|model_name }} RTX 4090
{{ value|pct }} 12.5%, for style attributes, in no language
"""

from __future__ import annotations

from django import template

from nodes import formats

register = template.Library()
register.filter("model_name", formats.model_name)


@register.filter
def pct(value: float) -> str:
    return f"{value:g}%"
