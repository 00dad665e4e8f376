"""``manage.py node_lost``: an administrator vouches that a silent node's programs do not run any more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from jobs.services import node_confirm_lost
from nodes import live
from nodes.models import Node
from quotas.models import User


class Command(BaseCommand):
    help = "Write off what ran on a node that is gone for good: its jobs are requeued or fail. Be sure: a job could run twice."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("node", metavar="NODE")
        parser.add_argument("--reason", required=True, metavar="TEXT", help="how you know (its power is off, its disk is out, …)")
        parser.add_argument("--by", metavar="E-MAIL", help="the administrator who vouches (default: the first one)")

    def handle(self, *args: Any, **options: Any) -> None:
        node = Node.objects.filter(name=options["node"]).first()
        if node is None:
            raise CommandError(f"There is no node {options['node']}.", returncode=2)
        admins = User.objects.filter(is_superuser=True, is_active=True).order_by("pk")
        by = admins.filter(email=options["by"]).first() if options["by"] else admins.first()
        if by is None:
            raise CommandError(f"There is no administrator {options['by'] or ''}.".replace(" .", "."), returncode=2)
        try:
            count = node_confirm_lost(node=node, by=by, reason=options["reason"], now=timezone.now())
        except ValueError as error:
            raise CommandError(str(error), returncode=1) from error
        finally:
            live.close()
        self.stdout.write(f"{count} parts of jobs on {node.name} are written off; their memory stays reserved until the node reports again")
