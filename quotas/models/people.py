"""User, IssuedAccount, Project, Membership."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser, BaseUserManager
from django.core.validators import RegexValidator
from django.db import models
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
    # Of an account that was made up here (NEBULA_UNIX_RANGE); the nodes know the number of any other.
    unix_uid = models.PositiveIntegerField(_("Unix user's number"), null=True, blank=True, unique=True, editable=False)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[UserManager] = UserManager()  # type: ignore[assignment]
    #: Set where a project's token brought the user in: the id of that project, and nothing else is his then. No column.
    confined_to: int | None = None

    @property
    def acts_as_staff(self) -> bool:
        """Whether staff rights count: not by a project's token, which others may hold, whoever made it."""
        return self.is_staff and self.confined_to is None

    class Meta(AbstractUser.Meta):  # type: ignore[name-defined,misc]
        verbose_name = _("user")
        verbose_name_plural = _("users")

    def __str__(self) -> str:
        return self.email


class IssuedAccount(models.Model):
    """A Unix account that was made up from NEBULA_UNIX_RANGE, whoever has it now. A row stays for ever: files of the account may lie on a
    node long after it was taken away from its owner, and would be the next one's under the same number or name."""

    uid = models.PositiveIntegerField(primary_key=True)
    name = models.CharField(max_length=32, db_index=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.uid})"


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
