"""``manage.py users_map``: which Unix account each person's jobs run as, on nodes with identity = "mapped"."""

from __future__ import annotations

import csv
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from quotas.models import User
from quotas.unix_accounts import UnixNameRefused, unix_name_set

CLEAR = "-"


class Command(BaseCommand):
    help = (
        "List, set or clear people's Unix accounts. Without arguments: list. PERSON=ACCOUNT sets one (PERSON is an e-mail address), "
        "PERSON=- takes it away. --file reads lines of PERSON,ACCOUNT from a CSV file, - is standard input. All is done, or nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("pairs", nargs="*", metavar="PERSON=ACCOUNT", help="an e-mail address and a Unix account; - clears it")
        parser.add_argument("--file", metavar="CSV", help="a file with lines of PERSON,ACCOUNT; - reads standard input")
        parser.add_argument("--dry-run", action="store_true", help="say what would change, and change nothing")
        parser.add_argument("--missing", action="store_true", help="list active people without an account only")
        parser.add_argument(
            "--share", action="store_true", help="several people may have one account: their jobs can read each other's files"
        )

    def handle(self, *args: Any, pairs: list[str], file: str | None, dry_run: bool, missing: bool, share: bool, **options: Any) -> None:
        wanted = [_pair(text) for text in pairs]
        if file is not None:
            wanted += _lines(file)
        if not wanted:
            self._list(missing=missing)
            return
        try:
            with transaction.atomic():
                changed = sum(self._set(where, email, name, share=share) for where, email, name in wanted)
                if dry_run:
                    transaction.set_rollback(True)
        except UnixNameRefused as error:
            raise CommandError(str(error.message), returncode=2) from error
        what = "would change" if dry_run else "changed"
        self.stdout.write(f"{changed} of {len(wanted)} accounts {what}.")

    def _list(self, *, missing: bool) -> None:
        people = User.objects.filter(is_active=True).order_by("email")
        if missing:
            people = people.filter(unix_name="")
        for email, name, uid in people.values_list("email", "unix_name", "unix_uid"):
            made = f" (made here, uid {uid})" if uid is not None else ""
            self.stdout.write(f"{email}\t{name or '-'}{made}")

    def _set(self, where: str, email: str, name: str, *, share: bool) -> bool:
        user = User.objects.filter(email=email.strip().lower()).first()
        if user is None:
            raise CommandError(f"{where}There is no person {email.strip()[:254]!r}; nothing was changed.", returncode=2)
        before = user.unix_name
        try:
            changed = unix_name_set(user, "" if name == CLEAR else name, how="users_map", may_share=share)
        except UnixNameRefused as error:
            raise CommandError(f"{where}{error.message} Nothing was changed.", returncode=2) from error
        if changed:
            self.stdout.write(f"{user.email}\t{before or '-'} → {user.unix_name or '-'}")
        return changed


def _pair(text: str) -> tuple[str, str, str]:
    email, equals, name = text.rpartition("=")
    if not equals or not email or not name:
        raise CommandError(
            f"{text[:300]!r} is no PERSON=ACCOUNT, such as ann@lab.example=ann (or ann@lab.example=- to clear it).", returncode=2
        )
    return "", email, name.strip()


def _lines(path: str) -> Iterator[tuple[str, str, str]]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}.", returncode=2) from error
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        if not row or row[0].lstrip().startswith("#"):
            continue
        if len(row) != 2 or not row[0].strip() or not row[1].strip():
            raise CommandError(f"{path}, line {number}: expected PERSON,ACCOUNT; nothing was changed.", returncode=2)
        yield f"{path}, line {number}: ", row[0], row[1].strip()
