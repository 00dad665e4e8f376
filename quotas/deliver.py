"""Sends what notify() left to be sent. A tick takes what is due; it may be lost, late, repeated, or run twice at once.

A delivery is taken by moving its next try on (compare-and-swap), so a sender that dies loses nothing and nobody else sends it
meanwhile; a message may arrive twice, never not at all: the generic format's ``id`` tells a repeat.
"""

from __future__ import annotations

import logging
import smtplib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.db.models import Case, F, When
from django.db.models.functions import Coalesce
from django.utils import timezone, translation
from django.utils.translation import gettext

from quotas.models import Notice, NoticeChannel, NoticeDelivery, User
from quotas.notice_bodies import outgoing, verdict
from quotas.notify import Message, message_of
from quotas.sealing import unseal
from quotas.webhooks import Answer, WebhookFailed, WebhookRefused, webhook_post

log = logging.getLogger(__name__)

#: After the first, second, … try. With the last one failed the delivery is FAILED.
BACKOFF_S = (10, 30, 120, 600, 3600, 4 * 3600, 12 * 3600)
#: What waits behind a receiver that fails again and again waits at most for this place of the above.
REST_MOST = 3
#: For so long a sender has a delivery to itself.
LEASE_S = 120
#: A tick begins nothing new after so long: it has one of the worker's few threads.
BUDGET_S = 20.0
#: Of that the webhooks of one person get so much before they wait.
SHARE_S = 5.0
BATCH = 100
KEEP = timedelta(days=90)
PRUNE_ROWS = 1000
State = NoticeDelivery.State
Post = Callable[[str, bytes, Mapping[str, str]], Answer]


def deliveries_send(*, now: datetime | None = None, post: Post = webhook_post, clock: Callable[[], float] = time.monotonic) -> int:
    """Send what is due: mail, then webhooks that work, then those that have failed, each oldest first, so that receivers that are away
    keep nobody else's waiting; returns how many arrived. Nothing due: one SELECT. ``now`` is given by tests; without it, the time
    of each delivery is its own."""
    started, at = clock(), now or timezone.now()
    due = list(
        NoticeDelivery.objects.filter(state=State.WAITING, next_at__lte=at)
        .select_related("notice__user", "channel")
        .annotate(is_hook=Case(When(channel__kind=NoticeChannel.Kind.WEBHOOK, then=1), default=0))
        .order_by("is_hook", Coalesce("channel__failures", 0), "next_at", "pk")[:BATCH]
    )
    if not due:
        return 0
    sent, resting, spent = 0, set[tuple[str, int | None]](), defaultdict[int | None, float](float)
    mail = _Mail()
    try:
        for delivery in due:
            if clock() - started > BUDGET_S:
                break
            channel = delivery.channel
            way = ("mail", None) if channel is None or channel.kind == NoticeChannel.Kind.EMAIL else ("hook", channel.pk)
            if way in resting or (channel is not None and way[0] == "hook" and spent[channel.user_id] >= SHARE_S):
                # Its receiver did not answer a moment ago: the others wait without a try being counted, the longer the more often it
                # has failed. One that is gone for good, or one person's many slow ones, must not take the sender's time from the others.
                failures = min(channel.failures if channel is not None else 1, REST_MOST)
                NoticeDelivery.objects.filter(pk=delivery.pk, state=State.WAITING).update(
                    next_at=at + timedelta(seconds=BACKOFF_S[failures])
                )
                continue
            begun = clock()
            state = delivery_try(delivery, mail=mail, post=post, now=now)
            if channel is not None:
                spent[channel.user_id] += clock() - begun
            sent += state == State.SENT
            if state == State.WAITING:
                resting.add(way)
    finally:
        mail.close()
    return sent


def delivery_try(delivery: NoticeDelivery, *, mail: _Mail | None = None, post: Post = webhook_post, now: datetime | None = None) -> str:
    """One try, now; returns the state that the delivery is in then, or "" if somebody else has it. Loaded with notice, user and channel."""
    took = NoticeDelivery.objects.filter(pk=delivery.pk, state=State.WAITING, next_at=delivery.next_at).update(
        next_at=(now or timezone.now()) + timedelta(seconds=LEASE_S), tries=F("tries") + 1
    )
    if not took:
        return ""
    delivery.tries += 1
    own_mail = mail or _Mail()
    try:
        _send(delivery, mail=own_mail, post=post, at=now or timezone.now())
    except _Dropped as why:
        return _done(delivery, State.DROPPED, error=str(why), now=now)
    except WebhookRefused as error:
        with translation.override("en"):
            text = error.message
        return _failed(delivery, WebhookFailed(text, is_final=True), now=now)
    except WebhookFailed as error:
        return _failed(delivery, error, now=now)
    except Exception as error:  # a bug of ours in one message must not keep the others from being sent
        log.exception("delivery %s", delivery.pk)
        return _failed(delivery, WebhookFailed(type(error).__name__, is_final=delivery.tries >= 3), now=now)
    finally:
        if mail is None:
            own_mail.close()
    return _done(delivery, State.SENT, now=now)


class _Dropped(Exception):
    """It is not to be sent any more."""


def _send(delivery: NoticeDelivery, *, mail: _Mail, post: Post, at: datetime) -> int | None:
    """Raises _Dropped, WebhookRefused, WebhookFailed."""
    notice, channel = delivery.notice, delivery.channel
    # Between the notice and now somebody may have been switched off, or have switched the way off.
    if notice.user is not None and not notice.user.is_active:
        raise _Dropped("inactive")
    if channel is not None and not channel.is_active and notice.kind != "test":
        raise _Dropped("channel_off")
    is_mail = channel is None or channel.kind == NoticeChannel.Kind.EMAIL
    message = message_of(notice, user=notice.user, is_shared=not is_mail)
    with translation.override(message.language):
        more = gettext("More happened than is sent in an hour; the page of notices has it all.") if delivery.is_last else ""
        open_word = gettext("Open it in NebulaGrid")
    if channel is None or is_mail:
        if notice.user is None or not settings.EMAIL_HOST:
            raise _Dropped("no_email")
        mail.send(notice.user, message, more)
        return None
    url, secret = unseal(channel.url_sealed), unseal(channel.secret_sealed)
    if not url or secret is None:
        raise WebhookFailed("the address can't be read: NEBULA_SECRET_KEY was changed; enter it anew", is_final=True)
    request = outgoing(
        message,
        format=channel.format,
        url=url,
        secret=secret,
        template=channel.template,
        delivery=delivery.pk,
        now=at.timestamp(),
        more=more,
        open_word=open_word,
    )
    answer = post(request.url, request.body, request.headers)
    delivery.status = answer.status
    is_delivered, is_final, text = verdict(channel.format, answer.body)
    if not is_delivered:
        raise WebhookFailed(text, status=answer.status, is_final=is_final)
    return answer.status


class _Mail:
    """One connection to the mail server for all mails of a tick."""

    def __init__(self) -> None:
        self.connection: Any = None

    def send(self, user: User, message: Message, more: str) -> None:
        """Raises WebhookFailed."""
        with translation.override(message.language):
            foot = gettext("You choose what is mailed to you at %(url)s") % {"url": f"{settings.BASE_URL}/notices/channels/"}
        parts = [message.text, more, message.url, f"--\n{foot}"]
        subject = " ".join(f"[NebulaGrid] {message.title}".split())[:180]
        mail = EmailMessage(
            subject=subject,
            body="\n\n".join(part for part in parts if part),
            to=[user.email],
            # No robot shall answer it.
            headers={"Auto-Submitted": "auto-generated"},
        )
        try:
            if self.connection is None:
                self.connection = get_connection()
                self.connection.open()
            mail.connection = self.connection
            mail.send()
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _text in error.recipients.values()]
            raise WebhookFailed(f"the mail server refused the address: {codes}", is_final=all(code >= 500 for code in codes)) from error
        except (smtplib.SMTPException, OSError) as error:
            self.close()
            raise WebhookFailed(f"mail server: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            try:
                connection.close()
            except (smtplib.SMTPException, OSError) as error:
                log.debug("mail server: %s", error)


def _done(delivery: NoticeDelivery, state: str, *, error: str = "", now: datetime | None) -> str:
    at = now or timezone.now()
    NoticeDelivery.objects.filter(pk=delivery.pk).update(state=state, error=error, status=delivery.status, done_at=at)
    if delivery.channel_id is not None and state == State.SENT:
        NoticeChannel.objects.filter(pk=delivery.channel_id).update(sent_at=at, failures=0, last_error="")
    delivery.state, delivery.error = state, error
    return state


def _failed(delivery: NoticeDelivery, error: WebhookFailed, *, now: datetime | None) -> str:
    at = now or timezone.now()
    # A person waits for the end of a test: it is not tried again.
    is_over = error.is_final or delivery.tries > len(BACKOFF_S) or delivery.notice.kind == "test"
    wait = error.retry_after_s or 0
    if not is_over:
        wait = min(max(wait, BACKOFF_S[delivery.tries - 1]), BACKOFF_S[-1])
    NoticeDelivery.objects.filter(pk=delivery.pk).update(
        state=State.FAILED if is_over else State.WAITING,
        next_at=at + timedelta(seconds=wait),
        error=error.text,
        status=error.status,
        done_at=at if is_over else None,
    )
    log.warning("notice %s was not delivered (try %s): %s", delivery.notice_id, delivery.tries, error.text)
    if delivery.channel_id is not None:
        NoticeChannel.objects.filter(pk=delivery.channel_id).update(failures=F("failures") + 1, last_error=error.text)
    delivery.state, delivery.error = (State.FAILED if is_over else State.WAITING), error.text
    return delivery.state


def notices_prune(*, now: datetime) -> int:
    """Throw away notices (with their deliveries) that are older than they are kept, a little at a time."""
    old = list(Notice.objects.filter(at__lt=now - KEEP).order_by("at").values_list("pk", flat=True)[:PRUNE_ROWS])
    return Notice.objects.filter(pk__in=old).delete()[0] if old else 0
