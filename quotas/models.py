"""People and limits: User, Project, Membership, Quota, ApiToken, LedgerEntry.

INVARIANT (database constraints): a quota belongs to one user or one project; active jobs and held cards never pass
their limit; a slice is charged at most once.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser, BaseUserManager
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class UserManager(BaseUserManager["User"]):
    use_in_migrations = True

    def _create(self, email: str, password: str | None, **extra: Any) -> User:
        if not email:
            raise ValueError("A user needs an e-mail address.")
        user = self.model(email=self.normalize_email(email).lower(), **extra)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_user(self, email: str, password: str | None = None, **extra: Any) -> User:
        extra.setdefault("is_staff", False)
        extra.setdefault("is_superuser", False)
        return self._create(email, password, **extra)

    def create_superuser(self, email: str, password: str | None = None, **extra: Any) -> User:
        extra["is_staff"] = extra["is_superuser"] = True
        return self._create(email, password, **extra)

    def get_by_natural_key(self, username: str | None) -> User:
        return self.get(email=(username or "").lower())


class User(AbstractUser):
    """Signs in by e-mail. ``zone`` and ``language`` empty = the installation's; ``unix_name`` = who the job runs as
    on nodes with identity=mapped (D32)."""

    username = None  # type: ignore[assignment]
    email = models.EmailField(_("e-mail address"), unique=True)
    language = models.CharField(_("language"), max_length=12, blank=True)
    zone = models.CharField(_("time zone"), max_length=64, blank=True)
    unix_name = models.CharField(
        _("Unix user"), max_length=32, blank=True, validators=[RegexValidator(r"^[a-z_][a-z0-9_-]{0,31}$", _("Not a Unix user name."))]
    )

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[UserManager] = UserManager()  # type: ignore[assignment]

    class Meta(AbstractUser.Meta):  # type: ignore[name-defined,misc]
        verbose_name = _("user")
        verbose_name_plural = _("users")

    def __str__(self) -> str:
        return self.email


class Project(models.Model):
    """What jobs are counted under. Each user has a personal one, made with the account."""

    name = models.SlugField(_("name"), max_length=60, unique=True)
    title = models.CharField(_("title"), max_length=120, blank=True)
    personal_of = models.OneToOneField(
        User, verbose_name=_("personal project of"), null=True, blank=True, on_delete=models.CASCADE, related_name="personal_project"
    )
    is_active = models.BooleanField(_("active"), default=True)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    members: models.ManyToManyField[User, Membership] = models.ManyToManyField(User, through="Membership", related_name="projects")

    class Meta:
        ordering = ("name",)
        verbose_name = _("project")
        verbose_name_plural = _("projects")

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    class Role(models.TextChoices):
        LEAD = "lead", _("lead")
        USER = "user", _("user")
        VIEWER = "viewer", _("viewer")

    project = models.ForeignKey(Project, verbose_name=_("project"), on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, verbose_name=_("user"), on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(_("role"), max_length=12, choices=Role.choices, default=Role.USER)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")
        constraints = (models.UniqueConstraint(fields=("project", "user"), name="membership_once"),)

    def __str__(self) -> str:
        return f"{self.user} in {self.project}"


class Quota(models.Model):
    """The limits of one user or one project and the counters they are held against. ``None`` = no limit.

    ``used_gpu_s`` is whole-card seconds since ``period_start`` (D15: a slice costs its share of the card).
    Written only by quotas.services, by conditional UPDATE.
    """

    user = models.OneToOneField(User, verbose_name=_("user"), null=True, blank=True, on_delete=models.CASCADE, related_name="quota")
    project = models.OneToOneField(
        Project, verbose_name=_("project"), null=True, blank=True, on_delete=models.CASCADE, related_name="quota"
    )
    gpu_hours = models.PositiveIntegerField(_("GPU-hours a month"), null=True, blank=True, default=2000)
    max_active_jobs = models.PositiveIntegerField(_("active jobs at once"), null=True, blank=True)
    max_cards = models.PositiveIntegerField(_("cards held at once"), null=True, blank=True)
    period_start = models.DateField(_("month"), null=True, blank=True, help_text=_("First day of the month that the counter is for."))
    used_gpu_s = models.FloatField(_("GPU-seconds used this month"), default=0.0)
    active_jobs = models.PositiveIntegerField(_("active jobs"), default=0)
    held_cards = models.PositiveIntegerField(_("cards held"), default=0)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    class Meta:
        verbose_name = _("quota")
        verbose_name_plural = _("quotas")
        constraints = (
            models.CheckConstraint(
                condition=Q(user__isnull=False, project__isnull=True) | Q(user__isnull=True, project__isnull=False), name="quota_one_owner"
            ),
            models.CheckConstraint(condition=Q(used_gpu_s__gte=0), name="quota_used_not_negative"),
        )

    def __str__(self) -> str:
        return f"quota of {self.user or self.project}"


class ApiToken(models.Model):
    """A personal token for CLI and CI. Only its SHA-256 is stored; ``prefix`` is shown to tell tokens apart."""

    user = models.ForeignKey(User, verbose_name=_("user"), on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(_("name"), max_length=80)
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


class LedgerEntry(models.Model):
    """One charge for one slice, written once when it leaves ACTIVE. Append-only (trigger).

    ``share`` = card share in 0–1 (1 = whole card), ``seconds`` = time ACTIVE, gpu_seconds = share × seconds.
    ``slice_id`` is a number, not a foreign key: this room does not know jobs.
    """

    slice_id = models.BigIntegerField(_("slice"), unique=True)
    job_id = models.BigIntegerField(_("job"), db_index=True)
    user = models.ForeignKey(User, verbose_name=_("user"), on_delete=models.PROTECT, related_name="charges")
    project = models.ForeignKey(Project, verbose_name=_("project"), on_delete=models.PROTECT, related_name="charges")
    gpu_model = models.CharField(_("card model"), max_length=120)
    share = models.FloatField(_("share of the card"))
    mib = models.PositiveIntegerField(_("memory, MiB"))
    started_at = models.DateTimeField(_("from"))
    ended_at = models.DateTimeField(_("to"))
    seconds = models.FloatField(_("seconds"))
    gpu_seconds = models.FloatField(_("GPU-seconds"))
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("ledger entry")
        verbose_name_plural = _("ledger entries")
        indexes = (models.Index(fields=("user", "ended_at"), name="ledger_user_ended"),)
        constraints = (
            models.CheckConstraint(condition=Q(share__gte=0, share__lte=1), name="ledger_share_0_1"),
            models.CheckConstraint(condition=Q(seconds__gte=0), name="ledger_seconds_not_negative"),
        )

    def __str__(self) -> str:
        return f"slice {self.slice_id}: {self.gpu_seconds:.1f} GPU-s"
