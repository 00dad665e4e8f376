"""``manage.py ledger_replay``: makes the ledger again from slices and events, and compares; exit code 1 when something differs."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs.ledger_replay import replay


class Command(BaseCommand):
    help = "Makes the ledger again from slices and the jobs' events, and says what differs. Read-only; may run on a live system."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        found = replay(now=timezone.now())
        if options["json"]:
            figures = {"slices": found.slices, "owed_gpu_s": found.owed_s, "charged_gpu_s": found.charged_s}
            self.stdout.write(json.dumps({**figures, "differences": found.differences}, indent=2))
        else:
            self.stdout.write(f"{found.slices} slices: {found.owed_s / 3600:,.3f} GPU-hours owed, {found.charged_s / 3600:,.3f} charged.")
            for line in found.differences[:100]:
                self.stdout.write(f"  {line}")
            if len(found.differences) > 100:
                self.stdout.write(f"  … and {len(found.differences) - 100} more")
        if found.differences:
            raise CommandError(f"{len(found.differences)} differences", returncode=1)
