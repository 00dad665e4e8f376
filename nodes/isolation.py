"""Who jobs run as on a node, and what they can reach there, as its agent told it (``Node.isolation``).

An agent that tells nothing (an older version) counts as one that keeps nobody apart: what is not known is not safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.protocol import REACH_HARMLESS, IsolationInfo
from nodes.text import text_clean

#: More words than this are no list that an agent writes.
WORDS_MOST = 20

#: None = nothing was told since the node joined, or since the control plane learned to ask.
Told = Mapping[str, Any] | None


def isolation_json(info: IsolationInfo | None) -> dict[str, Any]:
    """What is kept of it; {} = the agent does not tell."""
    if info is None:
        return {}
    return {
        "identity": _word(info.identity),
        "account": None if info.account is None else _word(info.account),
        "uid": info.uid if 0 <= info.uid < 2**32 else -1,
        "sandbox": _word(info.sandbox),
        "open": [_word(word) for word in info.open[:WORDS_MOST]],
        "limits": {_word(name): bool(is_kept) for name, is_kept in list(info.limits.items())[:WORDS_MOST]},
        "ready": bool(info.ready),
        "problem": None if info.problem is None else _word(info.problem),
    }


def _word(text: str) -> str:
    return text_clean(text)[:60]


def isolates_people(told: Told) -> bool:
    """Whether a job there can't get at other people's, at the agent's or at the control plane's files and processes."""
    return told is not None and bool(told.get("ready")) and REACH_HARMLESS.issuperset(told.get("open") or ())


def is_mapped(told: Told) -> bool:
    """Whether jobs run as their owner's own Unix account."""
    return told is not None and told.get("identity") == "mapped"


def is_ready(told: Told) -> bool:
    """Whether jobs can be started at all: not where each would run as root, say."""
    return not told or bool(told.get("ready", True))
