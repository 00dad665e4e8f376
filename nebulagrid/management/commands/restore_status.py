"""``manage.py restore_status``: which nodes a restored control plane still waits for; and to wait for one no longer."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs.lifecycle import FINAL
from jobs.models import Job
from jobs.services.restore import restore_give_up, restore_open, restore_waits_for
from nodes import live
from nodes.models import Node


class Command(BaseCommand):
    help = "Show which nodes have not yet said what ran since the backup that was restored."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--give-up",
            action="append",
            default=[],
            metavar="NODE",
            help="don't wait for this node: it is gone for good, or surely started none of the waiting jobs since the backup",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        for name in options["give_up"]:
            node = Node.objects.filter(name=name).first()
            if node is None:
                raise CommandError(f"There is no node {name}.", returncode=2)
            restore_give_up(node=node, now=timezone.now())
        live.close()  # its thread must not be at work when Python ends
        restore = restore_open()
        if restore is None:
            self.stdout.write("no restore is open")
            return
        names = restore_waits_for(restore)
        held = Job.objects.filter(is_restored=True).exclude(state__in=FINAL).count()
        self.stdout.write(f"restored {restore.at:%Y-%m-%d %H:%M} from a backup of {restore.backup_at:%Y-%m-%d %H:%M} (UTC)")
        self.stdout.write(f"waits for {len(names)} nodes: {', '.join(names) or 'none'}; {held} jobs of the backup have not ended")
