"""Secrets of users and projects: set, never read back; given to jobs by the agents' door, and masked in what jobs print.

A value is sealed (Fernet: AES-CBC with HMAC) together with its owner and name, so that nobody can move it to another row. The key is
``NEBULA_SECRETS_KEY``, else the file ``secrets-key`` in the data folder (0600, made at first use, in every backup). Its first line seals,
all of them open; ``keys_rotate`` puts a new one in front.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_noop

from quotas.audit import audit
from quotas.errors import DomainError
from quotas.masking import LEAST, lines_of
from quotas.models import Membership, Project, Secret, User

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
VALUE_MOST = 32 * 1024  # as much as a variable of a job may have
COUNT_MOST = 200  # a user's or a project's
REPLACED_MOST = 200  # a user's or a project's values that were replaced or deleted a moment ago: each is kept for an hour at least
LINES_MOST = 2_000  # each is looked for in all that a job prints; a key file has some dozens
KEY_FILE = "secrets-key"
#: A value that was replaced stays at least so long, for jobs that got it a moment before.
KEPT = timedelta(hours=1)


class SecretRefused(DomainError):
    """A secret that can't be set, used or deleted."""

    default_code = "secret_refused"
    sentences = {
        "secret_name": gettext_noop("{name} is no name of a secret; use a letter, then up to 63 letters, digits, _ and -."),
        "secret_short": gettext_noop("The value has {length} characters; at least {least} are needed, or it could not be masked in logs."),
        "secret_long": gettext_noop("The value has {length} bytes; the most is {most}."),
        "secret_lines": gettext_noop(
            "The value has {lines} lines of {least} characters or more; the most is {most}, or it could not be masked in logs. "
            "Set it in several secrets, or packed into one line such as base64."
        ),
        "secrets_lines": gettext_noop(
            "The secrets of this job have {lines} lines together; at most {most} can be masked in what a job prints. Ask for fewer secrets."
        ),
        "secrets_bytes": gettext_noop(
            "The secrets of this job have {size} bytes together; at most {most} can be masked in what a job prints. Ask for fewer secrets."
        ),
        "secret_nul": gettext_noop("The value has a NUL character, which no program can be given."),
        "secrets_many": gettext_noop("There are {count} secrets already; the most is {most}. Delete one first."),
        "secrets_fast": gettext_noop(
            "{count} values were replaced or deleted within the last hours, and at most {most} such values are kept. Try again in an hour."
        ),
        "secret_project": gettext_noop("There is no project {project} whose secrets you may change: its leads may."),
        "secret_missing": gettext_noop("There is no secret {name}, neither yours nor of the project {project}."),
        "secret_unknown": gettext_noop("There is no secret {name}."),
    }


class KeyMissing(Exception):
    """No key opens this secret: the file secrets-key is not the one that sealed it. Restore it from a backup."""


# --- keys -----------------------------------------------------------------------------------------------------------


def _key_path() -> Path:
    return Path(settings.DATA_DIR) / KEY_FILE


def _key_lines() -> tuple[str, ...]:
    if settings.SECRETS_KEY:
        return tuple(settings.SECRETS_KEY)
    path = _key_path()
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        text = Fernet.generate_key().decode() + "\n"
        aside = path.with_name(f"{KEY_FILE}.{os.getpid()}.{os.urandom(4).hex()}")
        _write(aside, text)
        # Two processes may start at once: the first link wins and both read it.
        try:
            os.link(aside, path)
        except FileExistsError:
            text = path.read_text(encoding="ascii")
        finally:
            aside.unlink()
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@lru_cache(maxsize=4)
def _box(lines: tuple[str, ...]) -> MultiFernet:
    return MultiFernet([Fernet(line) for line in lines])


def _owner_mark(secret: Secret) -> str:
    return f"u{secret.user_id}" if secret.user_id is not None else f"p{secret.project_id}"


def _seal(secret: Secret, value: str) -> str:
    body = json.dumps([_owner_mark(secret), secret.name, value])
    return _box(_key_lines()).encrypt(body.encode()).decode()


def secret_open(secret: Secret) -> str:
    """Raises KeyMissing, also for a value that was moved here from another row."""
    try:
        mark, name, value = json.loads(_box(_key_lines()).decrypt(secret.sealed.encode()))
    except InvalidToken:
        raise KeyMissing from None
    if (mark, name) != (_owner_mark(secret), secret.name):
        raise KeyMissing
    return str(value)


def keys_rotate(*, by: str) -> int:
    """A new key in front, every value sealed anew; how many. The former key stays as the second line until the next rotation: a
    process may have sealed with it a moment ago. May be broken off anywhere and repeated. Raises ValueError where the keys come
    from NEBULA_SECRETS_KEY: then put the new one in front there, and values are sealed anew with it."""
    if settings.SECRETS_KEY:
        count = _seal_anew()
    else:
        old = _key_lines()
        with _key_lock():
            old = _key_lines()
            _keys_put([Fernet.generate_key().decode(), *old])
            count = _seal_anew()
            _keys_put(_key_lines()[:2])
    with transaction.atomic():
        audit(by, "secret.rotated", "", {"secrets": count})
    return count


def _keys_put(lines: Sequence[str]) -> None:
    path = _key_path()
    aside = path.with_name(f"{KEY_FILE}.new")
    aside.unlink(missing_ok=True)
    _write(aside, "".join(f"{line}\n" for line in lines))
    aside.replace(path)


@contextlib.contextmanager
def _key_lock() -> Iterator[None]:
    """One rotation at a time."""
    descriptor = os.open(_key_path().with_name(f"{KEY_FILE}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _seal_anew() -> int:
    count = 0
    for secret in Secret.objects.order_by("pk").iterator(chunk_size=200):
        count += Secret.objects.filter(pk=secret.pk, sealed=secret.sealed).update(sealed=_seal(secret, secret_open(secret)))
    return count


# --- setting and deleting --------------------------------------------------------------------------------------------


def project_for(user: User, name: str) -> Project:
    """The project whose secrets this user may change. Raises SecretRefused (404)."""
    projects = Project.objects.filter(name=name, is_active=True)
    if not user.is_staff:
        projects = projects.filter(memberships__user=user, memberships__role=Membership.Role.LEAD)
    project = projects.first()
    if project is None:
        raise SecretRefused("secret_project", 404, {"project": name[:60]})
    return project


def secrets_of(user: User) -> QuerySet[Secret]:
    """The live secrets that a user may use in jobs: his own and those of projects that he may submit to; by a project's token that
    project's alone. Names only are to be shown."""
    mine = Q(user=user) | Q(
        project__is_active=True,
        project__memberships__in=Membership.objects.filter(user=user, role__in=(Membership.Role.LEAD, Membership.Role.USER)),
    )
    secrets = Secret.objects.filter(mine, replaced_at__isnull=True)
    if user.confined_to is not None:
        secrets = secrets.filter(project_id=user.confined_to)
    return secrets.select_related("project", "created_by").order_by("name", "pk")


def secret_set(*, by: User, name: str, value: str, project: Project | None = None, now: datetime | None = None) -> tuple[Secret, bool]:
    """Sets it for ``by``, or for ``project``; whether it is new. What was there is replaced. Raises SecretRefused."""
    if not NAME.fullmatch(name):
        raise SecretRefused("secret_name", params={"name": name[:64]})
    size = len(value.encode("utf-8", "surrogatepass"))
    if "\0" in value:
        raise SecretRefused("secret_nul")
    if len(value.strip()) < LEAST:
        raise SecretRefused("secret_short", params={"length": len(value.strip()), "least": LEAST})
    if size > VALUE_MOST:
        raise SecretRefused("secret_long", params={"length": size, "most": VALUE_MOST})
    if (lines := lines_of(value)) > LINES_MOST:
        raise SecretRefused("secret_lines", params={"lines": lines, "least": LEAST, "most": LINES_MOST})
    now = now or timezone.now()
    for is_last in (False, True):
        try:
            return _set(by=by, name=name, value=value, project=project, now=now)
        except IntegrityError:
            if is_last:  # twice at once a moment ago, and again: somebody sets it in a loop
                raise
    raise AssertionError("unreachable")


@transaction.atomic
def _set(*, by: User, name: str, value: str, project: Project | None, now: datetime) -> tuple[Secret, bool]:
    owner = {"project": project} if project is not None else {"user": by}
    is_new = not Secret.objects.filter(**owner, name=name, replaced_at__isnull=True).update(replaced_at=now)
    replaced = Secret.objects.filter(**owner, replaced_at__isnull=False).count()
    if replaced > REPLACED_MOST:
        raise SecretRefused("secrets_fast", 429, {"count": replaced - 1, "most": REPLACED_MOST})
    count = Secret.objects.filter(**owner, replaced_at__isnull=True).count()
    if count >= COUNT_MOST:
        raise SecretRefused("secrets_many", params={"count": count, "most": COUNT_MOST})
    secret = Secret(**owner, name=name, created_at=now, created_by=by)
    secret.sealed = _seal(secret, value)
    secret.save()
    audit(by, "secret.set", f"secret {name}", {"project": project.name if project else None, "new": is_new}, now=now)
    return secret, is_new


@transaction.atomic
def secret_delete(*, by: User, name: str, project: Project | None = None, now: datetime | None = None) -> None:
    """No job gets it from now on; one that has it keeps it. Raises SecretRefused (404)."""
    now = now or timezone.now()
    owner = {"project": project} if project is not None else {"user": by}
    if not Secret.objects.filter(**owner, name=name, replaced_at__isnull=True).update(replaced_at=now):
        raise SecretRefused("secret_unknown", 404, {"name": name[:64]})
    audit(by, "secret.deleted", f"secret {name}", {"project": project.name if project else None}, now=now)


# --- use by jobs ------------------------------------------------------------------------------------------------------


def secrets_find(*, user: int, project: int, names: Collection[str], of_project: bool = False) -> dict[str, int]:
    """name → number of the live secret that a job of this user under this project gets: his own before the project's; ``of_project``
    = the project's alone, which only who may submit there gets. Names that are nobody's are left out. One query, none without names."""
    if not names:
        return {}
    place = Membership.objects.filter(user_id=user, project_id=project, role__in=(Membership.Role.LEAD, Membership.Role.USER))
    whose = Q(project_id=project, project__memberships__in=place)
    whose = whose if of_project else whose | Q(user_id=user)
    rows = Secret.objects.filter(whose, name__in=set(names), replaced_at__isnull=True)
    found: dict[str, int] = {}
    for pk, name, owner in rows.values_list("pk", "name", "user_id"):
        if name not in found or owner is not None:
            found[name] = pk
    return found


def secret_values(ids: Iterable[int], *, now: datetime | None = None) -> dict[int, str]:
    """number → value, for the agent that starts a rank. Notes the use. One query and an UPDATE. Raises KeyMissing."""
    rows = list(Secret.objects.filter(pk__in=set(ids)))
    if now is not None and rows:
        Secret.objects.filter(pk__in=[row.pk for row in rows]).update(used_at=now)
    return {row.pk: secret_open(row) for row in rows}


def secrets_purge(*, used: Collection[int], now: datetime) -> int:
    """Throws away values that were replaced or deleted a while ago and that no job in ``used`` can print any more."""
    return Secret.objects.filter(replaced_at__lt=now - KEPT).exclude(pk__in=set(used)).delete()[0]


def secret_json(secret: Secret) -> Mapping[str, object]:
    """``secret`` with project and created_by loaded. Never the value, nor its length."""
    return {
        "name": secret.name,
        "project": secret.project.name if secret.project is not None else None,
        "set_at": secret.created_at,
        "set_by": secret.created_by.email if secret.created_by is not None else None,
        "used_at": secret.used_at,
    }
