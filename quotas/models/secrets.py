"""Secret."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quotas.models.people import Project, User


class Secret(models.Model):
    """One value of a secret of a user or a project. Never shown again; ``sealed`` is the value under the key of quotas.secrets.

    A row never changes its value: a new one makes a new row and retires the old one (``replaced_at``), which stays for as long as a
    job that got it may still print it. INVARIANT: one owner; one live row a name and owner.
    """

    user = models.ForeignKey(User, verbose_name=_("user"), null=True, blank=True, on_delete=models.CASCADE, related_name="secrets")
    project = models.ForeignKey(Project, verbose_name=_("project"), null=True, blank=True, on_delete=models.CASCADE, related_name="secrets")
    name = models.CharField(_("name"), max_length=64)
    sealed = models.TextField(editable=False)
    created_at = models.DateTimeField(_("set"), default=timezone.now, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, verbose_name=_("set by"), null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    replaced_at = models.DateTimeField(_("replaced"), null=True, blank=True, editable=False)
    used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    class Meta:
        ordering = ("name", "id")
        verbose_name = _("secret")
        verbose_name_plural = _("secrets")
        constraints = (
            models.CheckConstraint(
                condition=Q(user__isnull=False, project__isnull=True) | Q(user__isnull=True, project__isnull=False), name="secret_one_owner"
            ),
            models.UniqueConstraint(fields=("user", "name"), condition=Q(replaced_at__isnull=True), name="secret_user_name"),
            models.UniqueConstraint(fields=("project", "name"), condition=Q(replaced_at__isnull=True), name="secret_project_name"),
        )

    def __str__(self) -> str:
        return self.name
