"""Tell people something, once an episode: on the page, by e-mail, by webhook. The one door for every room.

    notify("quota_80", [user], {"used": 1600, "limit": 2000}, key="quota_80:7:2026-07", path="/quota/")

A row for the page is written for each recipient who is active, and one for each way that they chose for its event; quotas/deliver.py
sends those. Call it inside the transaction of what it tells of: nothing is told of what was rolled back.

What a kind says is a ``Kind`` in ``KINDS``: this room's are here, a room above adds its own with ``kinds_add`` when Django starts. A
sentence has ``{names}`` of params, in the same language as a person's own text of a channel (``fill``). A new kind costs a sentence
for its title, one for its text, and their translations.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Count
from django.utils import timezone, translation
from django.utils.translation import gettext_lazy

from quotas.models import Notice, NoticeChannel, NoticeDelivery, User

log = logging.getLogger(__name__)

#: What a person chooses by: each kind belongs to one.
EVENTS: Final = {
    "start": gettext_lazy("A job starts"),
    "end": gettext_lazy("A job ends"),
    "fail": gettext_lazy("A job fails"),
    "quota": gettext_lazy("Limits and requests"),
    "node": gettext_lazy("Nodes, cards and alerts"),
}
#: By e-mail, as long as a person has chosen nothing.
EMAIL_DEFAULTS: Final = ("fail", "quota", "node")
#: More than so many an hour are not sent on one way: a thousand jobs that fail are one message too many. The page has them all.
PER_HOUR: Final = 60
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``title`` and ``text``: a translatable sentence with {names} of params, or a function of params; both are asked in the reader's
    language and zone. ``event`` "" = goes to no way that anybody chose, only to the page. ``tone`` and ``icon`` as on pages."""

    event: str
    title: str | Callable[[Mapping[str, Any]], str]
    text: str | Callable[[Mapping[str, Any]], str] = ""
    tone: str = "info"
    icon: str = "bell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notice in words, in one reader's language. ``url`` is whole."""

    kind: str
    event: str
    tone: str
    icon: str
    title: str
    text: str
    url: str
    at: datetime
    language: str
    params: Mapping[str, Any]


KINDS: dict[str, Kind] = {
    "test": Kind(
        event="",
        title=gettext_lazy("Test of this way"),
        text=gettext_lazy("If you can read this, messages arrive. Asked for by {by}."),
        icon="send",
    ),
}


def kinds_add(kinds: Mapping[str, Kind]) -> None:
    """For the rooms above, in their AppConfig.ready. Raises ValueError for an event that nobody can choose."""
    for name, kind in kinds.items():
        if kind.event and kind.event not in EVENTS:
            raise ValueError(f"notice kind {name}: {kind.event!r} is no event; there are {', '.join(EVENTS)}")
        KINDS[name] = kind


def _nobody(user_ids: Sequence[int]) -> None:
    """Who looks at a page is told by the room that has the sockets."""


_tell: Callable[[Sequence[int]], None] = _nobody


def configure(*, tell: Callable[[Sequence[int]], None]) -> None:
    """``tell`` gets the users with news; it is called inside the transaction and must not fail or block."""
    global _tell
    _tell = tell


# --- writing -----------------------------------------------------------------------------------------------------------


def notify(
    kind: str,
    recipients: Iterable[User | int],
    params: Mapping[str, Any] | None = None,
    *,
    key: str = "",
    path: str = "",
    lab: bool = False,
    at: datetime | None = None,
) -> int:
    """Returns how many are told, the lab's own channels (``lab``) as one. ``key`` names the episode: who was told of it is not told
    again. ``params``: JSON values only; ``path`` begins with /.

    Six statements however many recipients, one more each where somebody was told by another transaction meanwhile.
    Raises KeyError for a kind that nobody has added.
    """
    known, params, at = KINDS[kind], dict(params or {}), at or timezone.now()
    wanted = {person if isinstance(person, int) else person.pk for person in recipients}
    users: list[int | None] = (
        list(User.objects.filter(pk__in=wanted, is_active=True).order_by("pk").values_list("pk", flat=True)) if wanted else []
    )
    if lab and NoticeChannel.objects.filter(user__isnull=True, is_active=True).exists():
        users.append(None)
    with transaction.atomic():
        notices = _notices_create([Notice(user_id=pk, kind=kind, params=params, path=path, key=key, at=at) for pk in users], key=key)
        if notices and known.event:
            _deliveries_create(notices, event=known.event, at=at)
        told = [notice.user_id for notice in notices if notice.user_id is not None]
        if told:
            _tell(told)
    return len(notices)


def staff() -> list[int]:
    """Who runs the lab. One SELECT."""
    return list(User.objects.filter(is_staff=True, is_active=True).order_by("pk").values_list("pk", flat=True))


def _notices_create(rows: list[Notice], *, key: str) -> list[Notice]:
    """Those that are new."""
    if not rows:
        return []
    if key:
        before = set(Notice.objects.filter(key=key).values_list("user_id", flat=True))
        rows = [row for row in rows if row.user_id not in before]
    try:
        with transaction.atomic():
            return Notice.objects.bulk_create(rows)
    except IntegrityError:  # another transaction told some of them in between
        return [row for row in rows if _notice_create(row)]


def _notice_create(row: Notice) -> bool:
    try:
        with transaction.atomic():
            row.pk = None
            row.save(force_insert=True)
    except IntegrityError:
        return False
    return True


def _deliveries_create(notices: Sequence[Notice], *, event: str, at: datetime) -> None:
    users = [notice.user_id for notice in notices if notice.user_id is not None]
    channels = list(NoticeChannel.objects.filter(user__in=users))
    if any(notice.user_id is None for notice in notices):
        channels += NoticeChannel.objects.filter(user__isnull=True)
    has_email = {channel.user_id for channel in channels if channel.kind == NoticeChannel.Kind.EMAIL}
    sent = dict(
        NoticeDelivery.objects.filter(channel__in=[channel.pk for channel in channels], created_at__gt=at - HOUR)
        .exclude(state=NoticeDelivery.State.DROPPED)
        .values_list("channel")
        .annotate(n=Count("pk"))
        .order_by()
    )
    by_default = [pk for pk in users if pk not in has_email] if settings.EMAIL_HOST and event in EMAIL_DEFAULTS else []
    mailed = dict(
        NoticeDelivery.objects.filter(channel__isnull=True, notice__user__in=by_default, created_at__gt=at - HOUR)
        .exclude(state=NoticeDelivery.State.DROPPED)
        .values_list("notice__user")
        .annotate(n=Count("pk"))
        .order_by()
        if by_default
        else ()
    )
    rows = []
    for notice in notices:
        ways: list[tuple[int | None, int]] = [
            (channel.pk, sent.get(channel.pk, 0))
            for channel in channels
            if channel.user_id == notice.user_id
            and channel.is_active
            and event in channel.events
            and (channel.kind != NoticeChannel.Kind.EMAIL or settings.EMAIL_HOST)
        ]
        if notice.user_id in by_default:
            ways.append((None, mailed.get(notice.user_id, 0)))
        for channel_id, n in ways:
            is_over = n >= PER_HOUR
            rows.append(
                NoticeDelivery(
                    notice=notice,
                    channel_id=channel_id,
                    state=NoticeDelivery.State.DROPPED if is_over else NoticeDelivery.State.WAITING,
                    error="many" if is_over else "",
                    is_last=n == PER_HOUR - 1,
                    next_at=at,
                    created_at=at,
                    done_at=at if is_over else None,
                )
            )
    NoticeDelivery.objects.bulk_create(rows)


def notices_read(*, user: User, ids: Iterable[int] | None = None, now: datetime | None = None) -> int:
    """Mark the user's notices as read, all without ``ids``. Returns how many were not."""
    query = Notice.objects.filter(user=user, read_at__isnull=True)
    if ids is not None:
        query = query.filter(pk__in=list(ids))
    count = query.update(read_at=now or timezone.now())
    if count:
        _tell([user.pk])
    return count


def unread_count(user: User) -> int:
    """One SELECT on an index of unread ones; counted to 100."""
    return Notice.objects.filter(user=user, read_at__isnull=True).order_by()[:100].count()


# --- words ------------------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"\{(\w{1,40})\}")


def fill(template: str, values: Mapping[str, Any]) -> str:
    """``{name}`` → its value; a name without one stays as it is. Only names: no attribute, index or format can be reached, and what a
    value says is never read as a template."""
    return _NAME.sub(lambda found: _plain(values[found[1]]) if found[1] in values else found[0], template)


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:,.2f}".rstrip("0").rstrip(".")
    return str(value)


def language_of(user: User | None) -> str:
    wanted = user.language if user is not None else ""
    return wanted if wanted in dict(settings.LANGUAGES) else settings.LANGUAGE_CODE


def zone_of(user: User | None) -> ZoneInfo:
    try:
        return ZoneInfo((user.zone if user is not None else "") or settings.INSTALLATION_ZONE)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return ZoneInfo(settings.INSTALLATION_ZONE)


def words(notice: Notice) -> tuple[str, str, Kind]:
    """Title, text and kind in the active language; a kind of another version by its name."""
    kind = KINDS.get(notice.kind) or Kind(event="", title=notice.kind)
    return _said(kind.title, notice), _said(kind.text, notice), kind


def _said(source: Any, notice: Notice) -> str:
    try:
        return str(source(notice.params)) if callable(source) else fill(str(source), notice.params)
    except Exception:  # params of another version: a poor sentence is better than a queue that stands still
        log.exception("notice %s of kind %s can't be worded", notice.pk, notice.kind)
        return notice.kind


def message_of(notice: Notice, *, user: User | None, is_shared: bool = False) -> Message:
    """In the words of who reads it; the lab's channels in the installation's language and zone.

    ``is_shared``: others may read it too, such as a group that a webhook writes to, or a program with a token that may only read.
    Where the page's address is itself a key (a link that decides), they get the one in params["open_path"] instead.
    """
    path = str(notice.params.get("open_path", notice.path)) if is_shared else notice.path
    language = language_of(user)
    with translation.override(language), timezone.override(zone_of(user)):
        title, text, kind = words(notice)
    return Message(
        kind=notice.kind,
        event=kind.event,
        tone=kind.tone,
        icon=kind.icon,
        title=title,
        text=text,
        url=f"{settings.BASE_URL}{path}" if path else "",
        at=notice.at,
        language=language,
        params=notice.params,
    )
