"""What people are told, by which way, and what became of it: Notice, NoticeChannel, NoticeDelivery.

A notice is a code and its numbers; it becomes words in its reader's language when it is shown or sent (quotas/notify.py).
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Notice(models.Model):
    """Told to one person, or with ``user`` NULL to the lab's own channels. ``key`` names the episode: a person is told of one once.

    ``path`` is the page that it leads to, without the host.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("user"), null=True, blank=True, on_delete=models.CASCADE, related_name="notices"
    )
    kind = models.CharField(_("kind"), max_length=32)
    params = models.JSONField(_("numbers"), default=dict, blank=True)
    path = models.CharField(_("page"), max_length=300, blank=True)
    key = models.CharField(_("episode"), max_length=120, blank=True)
    at = models.DateTimeField(_("at"), default=timezone.now)
    read_at = models.DateTimeField(_("read"), null=True, blank=True)

    class Meta:
        ordering = ("-pk",)
        verbose_name = _("notice")
        verbose_name_plural = _("notices")
        constraints = (
            models.UniqueConstraint(fields=("user", "key"), condition=Q(user__isnull=False) & ~Q(key=""), name="notice_once"),
            models.UniqueConstraint(fields=("key",), condition=Q(user__isnull=True) & ~Q(key=""), name="notice_lab_once"),
        )
        indexes = (
            models.Index(fields=("user", "-id"), name="notice_user_recent"),
            models.Index(fields=("user",), condition=Q(read_at__isnull=True), name="notice_unread"),
            models.Index(fields=("at",), name="notice_at"),
        )

    def __str__(self) -> str:
        return f"{self.kind} to {self.user_id or 'the lab'}"


class NoticeChannel(models.Model):
    """A way to a person, or with ``user`` NULL to the lab: e-mail, or a webhook in the format of who receives it.

    ``events`` says what goes this way (quotas.notify.EVENTS). Address and secret are sealed (quotas/sealing.py): a webhook's address
    is a password in most products. A person without a row for e-mail gets what ``EMAIL_DEFAULTS`` names.
    """

    class Kind(models.TextChoices):
        EMAIL = "email", _("e-mail")
        WEBHOOK = "webhook", _("webhook")

    class Format(models.TextChoices):
        GENERIC = "generic", _("generic JSON")
        FEISHU = "feishu", _("Feishu")
        DINGTALK = "dingtalk", _("DingTalk")
        WECOM = "wecom", _("WeCom")
        SLACK = "slack", _("Slack")

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("user"), null=True, blank=True, on_delete=models.CASCADE, related_name="notice_channels"
    )
    kind = models.CharField(_("kind"), max_length=8, choices=Kind.choices, default=Kind.WEBHOOK)
    format = models.CharField(_("format"), max_length=10, choices=Format.choices, default=Format.GENERIC, blank=True)
    name = models.CharField(_("name"), max_length=60, blank=True)
    events = models.JSONField(_("events"), default=list, blank=True)
    host = models.CharField(_("host"), max_length=253, blank=True, editable=False)
    url_sealed = models.TextField(blank=True, editable=False)
    secret_sealed = models.TextField(blank=True, editable=False)
    template = models.CharField(_("own text"), max_length=2000, blank=True)
    is_active = models.BooleanField(_("active"), default=True)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    sent_at = models.DateTimeField(_("last sent"), null=True, blank=True, editable=False)
    failures = models.PositiveIntegerField(_("failures in a row"), default=0, editable=False)
    last_error = models.CharField(_("last error"), max_length=200, blank=True, editable=False)

    class Meta:
        ordering = ("pk",)
        verbose_name = _("way of notices")
        verbose_name_plural = _("ways of notices")
        constraints = (
            models.UniqueConstraint(fields=("user",), condition=Q(kind="email"), name="noticechannel_one_email"),
            models.CheckConstraint(condition=Q(kind="webhook") | Q(user__isnull=False), name="noticechannel_email_of_a_person"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.name or self.host}"


class NoticeDelivery(models.Model):
    """One notice on one way. ``channel`` NULL = the person's e-mail by default. WAITING rows are sent when ``next_at`` has come; a
    sender takes one by moving ``next_at`` on, so that two never send the same one at once."""

    class State(models.TextChoices):
        WAITING = "WAITING", _("waiting")
        SENT = "SENT", _("sent")
        FAILED = "FAILED", _("failed")
        DROPPED = "DROPPED", _("not sent")

    notice = models.ForeignKey(Notice, verbose_name=_("notice"), on_delete=models.CASCADE, related_name="deliveries")
    channel = models.ForeignKey(
        NoticeChannel, verbose_name=_("way"), null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries"
    )
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.WAITING)
    tries = models.PositiveSmallIntegerField(_("tries"), default=0)
    next_at = models.DateTimeField(_("next try"), default=timezone.now)
    # The last one of an hour: it says that more happened than is sent.
    is_last = models.BooleanField(default=False, editable=False)
    status = models.PositiveSmallIntegerField(_("HTTP status"), null=True, blank=True)
    error = models.CharField(_("error"), max_length=200, blank=True)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    done_at = models.DateTimeField(_("done"), null=True, blank=True)

    class Meta:
        ordering = ("-pk",)
        verbose_name = _("delivery of a notice")
        verbose_name_plural = _("deliveries of notices")
        constraints = (models.UniqueConstraint(fields=("notice", "channel"), name="noticedelivery_once"),)
        indexes = (
            models.Index(fields=("next_at",), condition=Q(state="WAITING"), name="noticedelivery_due"),
            models.Index(fields=("channel", "created_at"), name="noticedelivery_channel"),
        )

    def __str__(self) -> str:
        return f"{self.state} {self.notice_id} by {self.channel_id or 'e-mail'}"
