"""``manage.py audit_verify``: recompute the chain of the audit log; exit code 1 if anything was changed, taken out or put in."""

from __future__ import annotations

import re
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from quotas.audit import audit_chain
from quotas.audit_check import chain_check


class Command(BaseCommand):
    help = "Check that the audit log is as it was written. Prints its head, to be kept in another place and given to a later check."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--head",
            action="append",
            default=[],
            metavar="SEQ:HASH",
            help="a head printed earlier must still be there; repeatable",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        heads: dict[int, str] = {}
        for text in options["head"]:
            found = re.fullmatch(r"([0-9]{1,18}):([0-9a-f]{64})", text.strip())
            if found is None:
                raise CommandError(f"--head is {text[:80]!r}; expected a number, a colon and 64 hexadecimal digits.", returncode=2)
            if int(found[1]) > 0:
                heads[int(found[1])] = found[2]
        audit_chain()
        report = chain_check(now=timezone.now(), heads=heads)
        for text in report.problems:
            self.stdout.write(text)
        if report.removed:
            self.stdout.write(f"{report.removed} older entries were removed for their age; the chain goes on from the last of them.")
        self.stdout.write(f"{report.entries} entries, {report.links} linked, {report.waiting} to be linked; head {report.head}")
        if report.problems:
            raise CommandError("The audit log is not as it was written.", returncode=1)
