"""People's Unix accounts: who a job runs as on nodes with identity = "mapped".

``User.unix_name`` is set by the administration, by a directory (NEBULA_LDAP_UNIX_ATTRIBUTE), by ``manage.py users_map``, or made on
demand from NEBULA_UNIX_RANGE; of those, ``unix_uid`` is the number, and the agents make the account. Others exist on the nodes already.
INVARIANT: neither a number nor a name of the range is given out a second time (``IssuedAccount``), also not after it was taken away.
An agent never runs a job as an account with a number below 1000, whatever is written here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.text import slugify
from django.utils.translation import gettext_noop

from quotas.audit import audit
from quotas.errors import DomainError
from quotas.models import IssuedAccount, User
from quotas.sql import Select

UNIX_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
#: Accounts of every system; none of them is a person.
RESERVED = frozenset({"root", "nobody", "daemon", "bin", "sys", "sync", "mail", "www-data", "backup", "sshd", "messagebus"})
_TRIES = 20

_first_admin = Select(lambda: User.objects.filter(is_superuser=True, is_active=True).order_by("pk").values_list("pk")[:1])


class UnixNameRefused(DomainError):
    """This can't be somebody's Unix account."""

    default_code = "unix_name_bad"
    sentences = {
        "unix_name_bad": gettext_noop(
            "{name} is no Unix account name: use 1–32 small letters, digits, - and _, beginning with a letter or _."
        ),
        "unix_name_reserved": gettext_noop("{name} is an account of the system. Jobs never run as it; name the person's own account."),
        "unix_name_taken": gettext_noop(
            "{name} is the Unix account of {other} already; the jobs of both could read each other's files. "
            "Name another one, or say --share if that is wanted."
        ),
    }


def first_admin() -> int | None:
    """The installation's first administrator: the owner of the account that everything runs as where nothing is isolated. One query."""
    rows = _first_admin()
    return rows[0][0] if rows else None


def owners_with_account(owners: Collection[int]) -> set[int]:
    """Those of ``owners`` who have a Unix account, or get one when they need it. At most two queries."""
    found = set(User.objects.filter(pk__in=owners).exclude(unix_name="").values_list("pk", flat=True))
    missing = set(owners) - found
    return found | missing if missing and range_left() > 0 else found


def range_left() -> int:
    """How many accounts can still be made on demand. One query where NEBULA_UNIX_RANGE is set."""
    numbers = settings.UNIX_RANGE
    if numbers is None:
        return 0
    return len(numbers) - IssuedAccount.objects.filter(uid__gte=numbers.start, uid__lt=numbers.stop).count()


def account_of(user: User) -> tuple[str, int | None] | None:
    """(name, number) of the account that this person's jobs run as; it is made now where the range says so. None = there is none.

    The number is None for an account that the nodes have already.
    """
    if user.unix_name:
        return user.unix_name, user.unix_uid
    return _account_make(user) if settings.UNIX_RANGE is not None else None


def _account_make(user: User) -> tuple[str, int | None] | None:
    numbers: range = settings.UNIX_RANGE
    for _ in range(_TRIES):
        user.refresh_from_db(fields=("unix_name", "unix_uid"))
        if user.unix_name:
            return user.unix_name, user.unix_uid
        taken = set(IssuedAccount.objects.filter(uid__gte=numbers.start, uid__lt=numbers.stop).values_list("uid", flat=True))
        number = next((number for number in numbers if number not in taken), None)
        if number is None:
            return None
        name = _name_for(user)
        with contextlib.suppress(IntegrityError), transaction.atomic():
            # Compare-and-swap: somebody may have named an account meanwhile; the unique number settles two makers at once.
            if User.objects.filter(pk=user.pk, unix_name="").update(unix_name=name, unix_uid=number):
                IssuedAccount.objects.create(uid=number, name=name)
                audit(None, "user.unix_name", f"user {user.email}", {"unix_name": name, "uid": number, "how": "range"})
    return None


def _name_for(user: User) -> str:
    base = (settings.UNIX_PREFIX + slugify(user.email.partition("@")[0]).replace("_", "-"))[:28].rstrip("-") or "nb"
    names = set(User.objects.filter(unix_name__startswith=base).values_list("unix_name", flat=True))
    names |= set(IssuedAccount.objects.filter(name__startswith=base).values_list("name", flat=True))
    return next(name for n in range(len(names) + 2) if (name := base if n == 0 else f"{base}{n}") not in names)


def unix_name_check(user: User, name: str, *, may_share: bool = False) -> None:
    """Raises UnixNameRefused where this can't be the person's account."""
    if not UNIX_NAME.fullmatch(name):
        raise UnixNameRefused("unix_name_bad", params={"name": name[:60]})
    if name in RESERVED:
        raise UnixNameRefused("unix_name_reserved", params={"name": name})
    other = User.objects.filter(unix_name=name).exclude(pk=user.pk).order_by("pk").first()
    if other is not None and not may_share:
        raise UnixNameRefused("unix_name_taken", params={"name": name, "other": other.email})


def unix_name_set(user: User, name: str, *, by: User | None = None, how: str = "", may_share: bool = False) -> bool:
    """Name somebody's account, or take it away (""). False if that changes nothing. Raises UnixNameRefused."""
    if name == user.unix_name:
        return False
    if name:
        unix_name_check(user, name, may_share=may_share)
    with transaction.atomic():
        audit(by, "user.unix_name", f"user {user.email}", {"unix_name": name, "before": user.unix_name, "how": how})
        User.objects.filter(pk=user.pk).update(unix_name=name, unix_uid=None)
    user.unix_name, user.unix_uid = name, None
    return True
