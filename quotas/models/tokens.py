"""ApiToken."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quotas.models.people import Project, User


class ApiToken(models.Model):
    """A token for CLI and CI, of a person or, with ``project``, confined to what is that project's. Only its SHA-256 is stored;
    ``prefix`` is shown to tell tokens apart. ``scopes``: read, submit, manage, with blanks (quotas/grants.py).

    It works for as long as its user does: a project's token ends with the account that made it.
    """

    user = models.ForeignKey(User, verbose_name=_("user"), on_delete=models.CASCADE, related_name="api_tokens")
    project = models.ForeignKey(
        Project, verbose_name=_("project"), null=True, blank=True, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(_("name"), max_length=80)
    scopes = models.CharField(_("scopes"), max_length=60, default="read submit manage")
    prefix = models.CharField(_("prefix"), max_length=12, editable=False)
    token_sha256 = models.CharField(max_length=64, unique=True, editable=False)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
