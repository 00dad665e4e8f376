"""Writes to the ways that notices go: whose they are, what goes there, where to, and a test of one.

An address and its secret come in and never go out again; a change without them keeps them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_noop

from quotas.audit import audit
from quotas.deliver import delivery_try
from quotas.errors import DomainError
from quotas.models import Notice, NoticeChannel, NoticeDelivery, User
from quotas.notify import EMAIL_DEFAULTS, EVENTS
from quotas.sealing import seal
from quotas.webhooks import Resolver, WebhookFailed, WebhookRefused, resolve, target_check, url_check

MOST = 10
#: Names and receivers of strangers may be slow, and the web process has few threads: one at a time waits for them.
_outside = threading.BoundedSemaphore(1)
WAIT_S = 1.0
TESTS_A_MINUTE = 5
SECRET_MAX, TEMPLATE_MAX, NAME_MAX = 200, 2000, 60


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Raises ChannelRefused while another one waits for somebody outside."""
    if not _outside.acquire(timeout=WAIT_S):
        raise ChannelRefused("busy", 409)
    try:
        yield
    finally:
        _outside.release()


class ChannelRefused(DomainError):
    """No such way can be had."""

    default_code = "invalid"
    sentences = {
        "channel_events": gettext_noop("{wrong} is no event; there are: {events}."),
        "channel_format": gettext_noop("{wrong} is no format; there are: {formats}."),
        "channels_many": gettext_noop("There may be {limit} webhooks; delete one first."),
        "channel_long": gettext_noop("{field} may have {limit} characters; got {length}."),
        "channel_no_url": gettext_noop("A webhook needs an address."),
        "tests_many": gettext_noop("At most {limit} tests a minute; try again in a moment."),
        "busy": gettext_noop("Another address is being tried; try again in a moment."),
        "no_mail_server": gettext_noop("No mail server is set up here (NEBULA_EMAIL_HOST); nothing is mailed."),
    }


def channels_of(user: User) -> QuerySet[NoticeChannel]:
    """The user's own; of staff the lab's, too."""
    query = NoticeChannel.objects.filter(user=user)
    return query | NoticeChannel.objects.filter(user__isnull=True) if user.is_staff else query


def email_channel(user: User) -> NoticeChannel:
    """How things are mailed to the user: the row, or what holds without one (not saved)."""
    found = NoticeChannel.objects.filter(user=user, kind=NoticeChannel.Kind.EMAIL).first()
    return found or NoticeChannel(user=user, kind=NoticeChannel.Kind.EMAIL, format="", events=list(EMAIL_DEFAULTS), is_active=True)


@transaction.atomic
def email_save(*, user: User, events: Collection[str], is_active: bool = True) -> NoticeChannel:
    """What is mailed from now on. Raises ChannelRefused."""
    chosen = _events(events)
    channel, _made = NoticeChannel.objects.update_or_create(
        user=user, kind=NoticeChannel.Kind.EMAIL, defaults={"format": "", "events": chosen, "is_active": is_active}
    )
    audit(user, "notice.changed", "e-mail", {"events": chosen, "active": is_active})
    return channel


def webhook_save(
    *, by: User, channel: NoticeChannel | None = None, is_labs: bool = False, changes: Mapping[str, Any], resolver: Resolver = resolve
) -> NoticeChannel:
    """A new webhook, or changes of one: name, format, url, secret, events, template, is_active. ``url`` and ``secret`` left out, or
    an empty ``url``, stay as they are; an empty ``secret`` takes it away. Resolves the name of a new address, before any transaction:
    on SQLite nobody else writes while one is open. Call it outside of one.

    Raises ChannelRefused, WebhookRefused.
    """
    is_new = channel is None
    if channel is None:
        owner = None if is_labs else by
        _room_check(owner)
        channel = NoticeChannel(user=owner, kind=NoticeChannel.Kind.WEBHOOK, events=list(EMAIL_DEFAULTS))
    for name, limit in (("name", NAME_MAX), ("template", TEMPLATE_MAX)):
        if name in changes:
            setattr(channel, name, _text(name, str(changes[name]).strip(), limit))
    if "format" in changes:
        if changes["format"] not in NoticeChannel.Format.values:
            raise ChannelRefused("channel_format", params={"wrong": changes["format"], "formats": ", ".join(NoticeChannel.Format.values)})
        channel.format = changes["format"]
    if "events" in changes:
        channel.events = _events(changes["events"])
    if "is_active" in changes:
        channel.is_active = bool(changes["is_active"])
    if changes.get("url"):
        _address_set(channel, str(changes["url"]).strip(), resolver=resolver)
    if not channel.url_sealed:
        raise ChannelRefused("channel_no_url")
    if changes.get("secret") is not None:
        channel.secret_sealed = seal(_text("secret", str(changes["secret"]).strip(), SECRET_MAX))
    told = {
        "host": channel.host,
        "format": channel.format,
        "events": channel.events,
        "active": channel.is_active,
        "labs": channel.user_id is None,
    }
    with transaction.atomic():
        if is_new:
            _room_check(channel.user)
        channel.save()
        audit(by, "webhook.changed", f"webhook {channel.pk}", {"what": "made" if is_new else "changed", **told})
    return channel


def _room_check(owner: User | None) -> None:
    """Raises ChannelRefused where there is no room for one more."""
    if NoticeChannel.objects.filter(user=owner, kind=NoticeChannel.Kind.WEBHOOK).count() >= MOST:
        raise ChannelRefused("channels_many", 409, {"limit": MOST})


def _address_set(channel: NoticeChannel, url: str, *, resolver: Resolver) -> None:
    parts = url_check(url)
    try:
        with _one_at_a_time():
            target_check(parts, resolver=resolver)
    except WebhookFailed as error:
        raise WebhookRefused("webhook_private", params={"host": parts.hostname or ""}) from error
    channel.host, channel.url_sealed = (parts.hostname or "")[:253], seal(url)
    channel.failures, channel.last_error = 0, ""


@transaction.atomic
def channel_delete(*, channel: NoticeChannel, by: User) -> None:
    audit(by, "webhook.changed", f"webhook {channel.pk}", {"what": "deleted", "host": channel.host})
    channel.delete()


def channel_test(*, channel: NoticeChannel, by: User, now: datetime | None = None, **more: Any) -> NoticeDelivery:
    """Send a message on this way, now, and tell what became of it (``state``, ``error``). Takes as long as the receiver takes, ten seconds
    at most. Raises ChannelRefused after several in a minute, and where nothing can be mailed."""
    at = now or timezone.now()
    if channel.kind == NoticeChannel.Kind.EMAIL and not settings.EMAIL_HOST:
        raise ChannelRefused("no_mail_server", 409)
    tests = Notice.objects.filter(kind="test", params__by_id=by.pk, at__gt=at - timedelta(minutes=1)).count()
    if tests >= TESTS_A_MINUTE:
        raise ChannelRefused("tests_many", 409, {"limit": TESTS_A_MINUTE})
    with transaction.atomic():
        # Of the lab's, too, it is the one who asked that is told; it is read already: it is no news on the page.
        params = {"by": by.email, "by_id": by.pk}
        notice = Notice.objects.create(user=channel.user or by, kind="test", params=params, path="/notices/channels/", at=at, read_at=at)
        delivery = NoticeDelivery.objects.create(notice=notice, channel=channel if channel.pk else None, next_at=at, created_at=at)
    with _one_at_a_time():
        delivery_try(delivery, now=now, **more)
    return delivery


def _events(events: Collection[str]) -> list[str]:
    wrong = next((name for name in events if name not in EVENTS), None)
    if wrong is not None:
        raise ChannelRefused("channel_events", params={"wrong": str(wrong)[:40], "events": ", ".join(EVENTS)})
    return [name for name in EVENTS if name in events]


def _text(field: str, text: str, limit: int) -> str:
    text = text.replace("\0", "")
    if len(text) > limit:
        raise ChannelRefused("channel_long", params={"field": field, "limit": limit, "length": len(text)})
    return text
