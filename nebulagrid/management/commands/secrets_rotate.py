"""``manage.py secrets_rotate``: a new key for secrets, and every value sealed anew with it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from quotas.audit import command_line
from quotas.secrets import KeyMissing, keys_rotate


class Command(BaseCommand):
    help = (
        "Seal all secrets with a new key, while everything runs. The key before it opens until the next rotation: run it twice to drop it."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            count = keys_rotate(by=command_line())
        except KeyMissing as error:
            raise CommandError(" ".join((error.__doc__ or "").split()), returncode=1) from error
        where = "NEBULA_SECRETS_KEY" if settings.SECRETS_KEY else "secrets-key"
        self.stdout.write(f"{count} values are sealed with the first key of {where}.")
