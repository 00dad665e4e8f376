"""Text that an agent sends is data, and not every string is one that a database takes."""

from __future__ import annotations

import math
import re
from typing import Any

from quotas.human_text import text_shown

#: What an agent may call a session, a boot or a card: printable ASCII without a blank.
NAME = re.compile(r"[!-~]+")


def text_clean(text: str) -> str:
    """NUL (refused by PostgreSQL), half surrogates (no UTF-8) and what no reader would see become other signs; the rest stays."""
    return text_shown(text).encode(errors="replace").decode()


def text_cap(text: str, limit: int) -> str:
    """Clean text of at most ``limit`` bytes of UTF-8, never half a character."""
    return text_clean(text).encode()[:limit].decode(errors="ignore")


def json_clean(value: Any) -> Any:
    """The same for a JSON value; NaN and infinities, which JSON does not have, become None."""
    if isinstance(value, str):
        return text_clean(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {text_clean(str(key)): json_clean(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return [json_clean(found) for found in value]
    return value
