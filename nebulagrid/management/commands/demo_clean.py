"""Ends the demo's jobs and removes its data folder."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from nebulagrid.demo.clean import DemoError, demo_clean


class Command(BaseCommand):
    help = "End what the demo in NEBULA_DATA left running, and remove the folder."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            count = demo_clean(settings.DATA_DIR)
        except DemoError as error:
            raise CommandError(str(error), returncode=2) from error
        self.stdout.write(f"{count} jobs ended, {settings.DATA_DIR} removed.")
