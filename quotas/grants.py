"""What a credential is good for. A browser's session is good for all that its user may; a token may be good for less."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    READ = "read"
    SUBMIT = "submit"
    MANAGE = "manage"


ALL_SCOPES = tuple(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """By what a request came in. ``project``: the id of the one project that it is confined to, None = all of its user's.
    ``token``: the id of the ApiToken that it is or was made from."""

    scopes: frozenset[str]
    project: int | None = None
    token: int | None = None
    is_jwt: bool = False


def scopes_text(scopes: Iterable[str]) -> str:
    """As stored and told: in one order, each once, with blanks."""
    wanted = set(scopes)
    return " ".join(scope for scope in ALL_SCOPES if scope in wanted)


def scopes_of(text: str) -> frozenset[str]:
    return frozenset(text.split())
