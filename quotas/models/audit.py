"""AuditEntry, AuditLink, AuditSegment."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class AuditEntry(models.Model):
    """Who did what to what. Append-only (trigger), written in the transaction that does it.

    ``actor_id`` is a number, not a foreign key: a row never changes, whatever becomes of the user; ``actor`` is his address at
    that time, or the name of a node or a program. ``action`` is one of quotas.audit.ACTIONS.
    """

    at = models.DateTimeField(_("at"), default=timezone.now, db_index=True)
    actor_id = models.BigIntegerField(_("actor's number"), null=True, blank=True)
    actor = models.CharField(_("actor"), max_length=254)
    via = models.CharField(_("by way of"), max_length=40, blank=True)  # session | token ngt_… | link | command line | node | "" = by itself
    address = models.CharField(_("address"), max_length=45, blank=True)
    action = models.CharField(_("action"), max_length=40)
    target = models.CharField(_("target"), max_length=200, blank=True)
    params = models.JSONField(_("parameters"), default=dict, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        indexes = (
            models.Index(fields=("action", "-id"), name="audit_action"),
            models.Index(fields=("actor", "-id"), name="audit_actor"),
            models.Index(fields=("target", "-id"), name="audit_target"),
        )

    def __str__(self) -> str:
        return f"{self.actor}: {self.action} {self.target}"


class AuditLink(models.Model):
    """The chain over the entries, made a moment after them: ``hash`` is of the link before and of the entry. Append-only (trigger).

    INVARIANT: ``seq`` counts from 1 without a gap; an entry has one link at most.
    """

    seq = models.BigIntegerField(primary_key=True)
    entry = models.OneToOneField(AuditEntry, on_delete=models.PROTECT, related_name="link")
    hash = models.CharField(max_length=64)

    class Meta:
        verbose_name = _("audit link")
        verbose_name_plural = _("audit links")

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class AuditSegment(models.Model):
    """A part of the log that was removed for its age: where the chain goes on, signed. Append-only (trigger).

    INVARIANT: ``first_seq`` of the first is 1, of each other one more than ``last_seq`` of the one before.
    """

    first_seq = models.BigIntegerField(_("first link"), unique=True)
    last_seq = models.BigIntegerField(_("last link"), unique=True)
    last_hash = models.CharField(max_length=64)
    last_entry_id = models.BigIntegerField()  # the highest number of its entries: up to it the triggers let them go
    entries = models.PositiveIntegerField(_("entries"))
    removed_at = models.DateTimeField(_("removed"))
    signature = models.CharField(max_length=64)

    class Meta:
        ordering = ("first_seq",)
        verbose_name = _("removed part of the audit log")
        verbose_name_plural = _("removed parts of the audit log")

    def __str__(self) -> str:
        return f"{self.first_seq}-{self.last_seq}"
