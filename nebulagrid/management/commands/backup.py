"""``manage.py backup``: database, logs and secrets in one file, while everything runs."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from argparse import SUPPRESS
from importlib import metadata
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection
from django.utils import timezone

from nebulagrid.archive import ArchiveError, ArchiveWriter, Manifest, backup_path
from nebulagrid.dbcopy import CopyError, migrations_applied, rows_dump, sqlite_copy
from quotas.audit import audit, command_line

SECRETS = ("secret-key", "secrets-key", "admin-password")


def version() -> str:
    try:
        return metadata.version("nebulagrid-agent")
    except metadata.PackageNotFoundError:
        return "unknown"


def owner_check() -> None:
    """Raises CommandError unless the data folder is ours: files of another user's would lock the service out."""
    try:
        found = settings.DATA_DIR.stat()
    except FileNotFoundError:
        return
    if found.st_uid != os.getuid():
        raise CommandError(f"{settings.DATA_DIR} belongs to user {found.st_uid}; run this as that user.", returncode=2)


class Command(BaseCommand):
    help = "Back up database, logs and secrets into one file (mode 0600), while the control plane and jobs run."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", metavar="FILE|DIR", help="the file to write; in a folder it gets a name with the time")
        parser.add_argument("--descriptor", type=int, help=SUPPRESS)  # of that file, which root has opened
        parser.add_argument("--artifacts", action="store_true", help="the jobs' artefacts too")
        parser.add_argument(
            "--portable", action="store_true", help="rows instead of an SQLite file, to restore into PostgreSQL (always so from PostgreSQL)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        os.umask(0o077)
        owner_check()
        now = timezone.now()
        descriptor: int | None = options["descriptor"]
        path = Path(options["path"]) if descriptor is not None else backup_path(options["path"], now=now)
        if descriptor is None and path.exists():
            raise CommandError(f"{path} is there already; a backup is never written over another.", returncode=2)
        writer = None
        try:
            with tempfile.TemporaryDirectory(dir=settings.DATA_DIR, prefix=".backup-") as folder:
                # The database first: whatever it says was written is then surely in the logs that follow.
                is_file = connection.vendor == "sqlite" and not options["portable"]
                name = "database.sqlite3" if is_file else "database.jsonl"
                copy = Path(folder) / name
                migrations = migrations_applied()
                if is_file:
                    sqlite_copy(Path(str(connection.settings_dict["NAME"])), copy)
                else:
                    rows_dump(copy)
                manifest = Manifest(
                    made_at=now.isoformat(),
                    host=socket.gethostname(),
                    version=version(),
                    vendor=connection.vendor,
                    database=name,
                    migrations=migrations,
                    has_artifacts=bool(options["artifacts"]),
                )
                writer = ArchiveWriter(path, manifest, descriptor=descriptor)
                writer.add(name, copy)
                copy.unlink()
                logs = writer.add_tree("logs", settings.LOG_DIR)
                artifacts = writer.add_tree("artifacts", settings.ARTIFACT_DIR) if options["artifacts"] else 0
                for secret in SECRETS:
                    writer.add(f"secrets/{secret}", settings.DATA_DIR / secret)
                writer.add_tree("secrets/tls", settings.DATA_DIR / "tls")
                writer.finish()
        except (CopyError, ArchiveError, DatabaseError, OSError) as error:
            raise CommandError(f"No backup was made: {error}", returncode=1) from error
        finally:
            if writer is not None and not writer.bytes:
                writer.abandon()
        with contextlib.suppress(DatabaseError):  # the backup is there all the same
            audit(command_line(), "backup.made", "", {"file": str(path), "artifacts": bool(options["artifacts"])})
        size = writer.bytes / (1 << 20)
        extra = f", {artifacts} artefacts" if options["artifacts"] else ", without artefacts"
        self.stdout.write(f"{path}: {size:.1f} MiB, database ({name}), {logs} log files{extra}, secrets.")
        self.stdout.write("It holds keys and credentials' hashes: keep it as safe as the control plane itself.")
