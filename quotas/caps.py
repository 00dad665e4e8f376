"""Limits by card model, such as ``a100:2, h100:1``: cards of a model that one owner may hold at once. Pure.

A model is named by whole words of the card's name, as in a job's request: ``a100`` stands for every A100.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MOST = 10_000
MODELS_MOST = 20
_PART = re.compile(r"\s*([^\W_][^,:|\x00-\x1f]{0,58}?)\s*:\s*([0-9]{1,5})\s*")


class BadCaps(ValueError):
    """The text is no list of limits by card model. ``part``: what of it can't be read."""

    def __init__(self, part: str) -> None:
        super().__init__(part)
        self.part = part


def caps_parse(text: str) -> dict[str, int]:
    """``a100:2, h100:1`` → {"a100": 2, "h100": 1}; models in lower case; empty text = no limit. Raises BadCaps."""
    found: dict[str, int] = {}
    for part in (part for part in text.split(",") if part.strip()):
        match = _PART.fullmatch(part)
        if match is None or int(match[2]) > MOST or len(found) >= MODELS_MOST or match[1].lower() in found:
            raise BadCaps(part.strip()[:60])
        found[match[1].lower()] = int(match[2])
    return found


def caps_text(caps: Mapping[str, int]) -> str:
    """The other way round."""
    return ", ".join(f"{model}:{most}" for model, most in sorted(caps.items()))


def caps_sum(base: Mapping[str, int], extra: Mapping[str, int]) -> dict[str, int]:
    """What is granted on top raises a limit that is there; it never makes one."""
    return {model: most + extra.get(model, 0) for model, most in base.items()}
