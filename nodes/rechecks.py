"""Who came in may have to go: open connections of people are looked at again every few seconds.

A socket lives for hours, and its door was opened once. What closes the door for pages closes it here too, within ``EVERY_S``:
signed out, session expired, password changed, token revoked or expired, account disabled; and what only staff may watch goes with
the staff right, what a project's members may watch with the membership. All connections of a process are checked at once, by three
queries and one for each token.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from channels.db import database_sync_to_async
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.db import DatabaseError
from django.utils import timezone

log = logging.getLogger(__name__)

EVERY_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """By what a connection came in: a token, or a session and the password's hash of then."""

    user: int
    token: str = ""
    session_key: str = ""
    password: str = ""


#: Changes when what a user may watch may have changed: staff or not, and the places in projects.
Rights = tuple[bool, bool, frozenset[tuple[int, str]]]


class Visitor(Protocol):
    entry: Entry

    async def rechecked(self, user: Any | None, rights: Rights) -> None:
        """``user``: as the database has it now; None = may not stay."""


_open: set[Visitor] = set()
_walk: asyncio.Task[None] | None = None


def watch(visitor: Visitor, *, user_for_token: Callable[[str], Any | None]) -> None:
    """From now on it is looked at again, until ``forget``."""
    global _walk
    _open.add(visitor)
    if _walk is None or _walk.done() or _walk.get_loop() is not asyncio.get_running_loop():
        _walk = asyncio.create_task(_rounds(user_for_token), name="live-rechecks")


def forget(visitor: Visitor) -> None:
    _open.discard(visitor)
    if not _open and _walk is not None and not _walk.done():
        _walk.cancel()


async def _rounds(user_for_token: Callable[[str], Any | None]) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            await recheck(user_for_token=user_for_token)
        except DatabaseError as error:  # nobody is sent away for that; the next round asks again
            log.warning("open connections could not be looked at again: %s", error)


async def recheck(*, user_for_token: Callable[[str], Any | None]) -> None:
    """One round over all that is open."""
    visitors = list(_open)
    found = await database_sync_to_async(_users_now)([visitor.entry for visitor in visitors], user_for_token)
    await asyncio.gather(*(_tell(visitor, user, rights) for visitor, (user, rights) in zip(visitors, found, strict=True)))


async def _tell(visitor: Visitor, user: Any | None, rights: Rights) -> None:
    """A connection that breaks, or takes nothing, must not keep the others from being looked at."""
    if visitor not in _open:
        return
    try:
        async with asyncio.timeout(EVERY_S):
            await visitor.rechecked(user, rights)
    except Exception as error:
        log.warning("an open connection of user %s could not be told: %s", visitor.entry.user, type(error).__name__)


def _users_now(entries: Sequence[Entry], user_for_token: Callable[[str], Any | None]) -> list[tuple[Any | None, Rights]]:
    users = get_user_model().objects.prefetch_related("memberships").in_bulk({entry.user for entry in entries})
    keys = {entry.session_key for entry in entries if entry.session_key}
    alive = set(Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now()).values_list("session_key", flat=True))
    by_token = {token: user_for_token(token) for token in {entry.token for entry in entries if entry.token}}
    found: list[tuple[Any | None, Rights]] = []
    for entry in entries:
        user = users.get(entry.user)
        if user is None:
            found.append((None, (False, False, frozenset())))
            continue
        rights = (user.is_staff, user.is_superuser, frozenset((place.project_id, place.role) for place in user.memberships.all()))
        if entry.token:
            user = by_token[entry.token]  # it knows what the token is confined to
            is_welcome = user is not None and user.pk == entry.user
        else:
            is_welcome = entry.session_key in alive and user.password == entry.password
        found.append((user if is_welcome and user.is_active else None, rights))
    return found
