"""``manage.py check_invariants``: what must hold at any moment; exit code 1 when something doesn't."""

from __future__ import annotations

import json
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs.invariants import CHECKS, violations


class Command(BaseCommand):
    help = "Checks the invariants of jobs, slices, cards, charges and logs. Read-only; may run on a live system."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the violations as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        found = violations(clock=timezone.now, pause=time.sleep)
        if options["json"]:
            self.stdout.write(json.dumps(found, indent=2))
        else:
            for check in CHECKS:
                wrong = found.get(check.__name__, [])
                self.stdout.write(f"{'FAILED' if wrong else 'ok    '} {check.__name__.replace('_', ' ')}")
                for line in wrong[:50]:
                    self.stdout.write(f"         {line}")
                if len(wrong) > 50:
                    self.stdout.write(f"         … and {len(wrong) - 50} more")
        if found:
            raise CommandError(f"{sum(map(len, found.values()))} violations", returncode=1)
