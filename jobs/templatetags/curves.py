"""What a panel of curves needs: ``{% curve_ranges as ranges %}``."""

from __future__ import annotations

from django import template

from jobs.curves import ranges

register = template.Library()
register.simple_tag(ranges, name="curve_ranges")
