"""``manage.py restore``: an installation as a backup has it. What was there is moved aside, never deleted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from argparse import SUPPRESS
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.utils import timezone

from jobs.services.restore import restore_begin, restore_waits_for
from nebulagrid.archive import ArchiveError, Manifest, archive_unpack
from nebulagrid.dbcopy import CopyError, migrations_applied, rows_load
from nebulagrid.management.commands.backup import owner_check
from quotas.audit import audit, command_line

#: Not the control plane's memory: sockets and locks, what is made anew, and this machine's agents, whose jobs go on.
STAYS = frozenset({"run", "dist", "static", "redis-password"})


def stays(name: str) -> bool:
    return name in STAYS or name == "agent" or name.startswith(("agent-", "replaced-", ".restore-", ".backup-"))


#: Whoever runs manage.py in an empty folder makes these there.
MADE = ("secret-key", "metrics-token")


class Command(BaseCommand):
    help = "Bring back what a backup holds. The control plane must be stopped; the nodes' jobs run on meanwhile."
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", metavar="FILE", help="a file that manage.py backup wrote")
        parser.add_argument("--descriptor", type=int, help=SUPPRESS)  # of that file, which root has opened
        parser.add_argument("--force", action="store_true", help="though there is data already: it is moved aside")
        parser.add_argument("--check", action="store_true", help="only verify the file and say what it holds")

    def handle(self, *args: Any, **options: Any) -> None:
        os.umask(0o077)
        owner_check()
        settings.DATA_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)
        stamp = f"{timezone.now():%Y%m%d-%H%M%S}"
        staging = settings.DATA_DIR / f".restore-{os.getpid()}"
        try:
            with self._alone() if not options["check"] else contextlib.nullcontext():
                manifest = archive_unpack(Path(options["path"]).absolute(), staging, descriptor=options["descriptor"])
                self.stdout.write(f"backup of {manifest.made_at} from {manifest.host} (version {manifest.version}), whole and undamaged")
                self._fits(manifest)
                if options["check"]:
                    return
                self._room(force=options["force"], stamp=stamp)
                self._database(manifest, staging, stamp=stamp)
                self._files(staging)
                restore = restore_begin(backup_at=datetime.fromisoformat(manifest.made_at), now=timezone.now())
        except (ArchiveError, CopyError) as error:
            raise CommandError(str(error), returncode=1) from error
        except (DatabaseError, OSError) as error:
            raise CommandError(f"The restore failed: {str(error).strip()}. What was there is in replaced-{stamp}.", returncode=1) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        audit(command_line(), "backup.restored", "", {"made_at": manifest.made_at, "from": manifest.host})
        nodes = restore_waits_for(restore)
        self.stdout.write(
            f"restored. New jobs are numbered from {restore.next_job}; attempts of older ones from {restore.epoch_floor + 1}."
        )
        self.stdout.write(f"Start the control plane. It asks {len(nodes)} nodes what ran since the backup: {', '.join(nodes) or 'none'};")
        self.stdout.write("waiting jobs of the backup start when all have answered (manage.py restore_status; docs/operations.md).")

    # --- may it be? -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the lock that `up` holds while it runs."""
        settings.RUN_DIR.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(settings.RUN_DIR / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(lock, 20, 0).decode().strip() or "unknown"
                raise CommandError(f"The control plane runs (process {owner}); stop it first.", returncode=2) from None
            yield
        finally:
            os.close(lock)

    def _fits(self, manifest: Manifest) -> None:
        """Raises CommandError if this version or this database can't take the backup in."""
        if manifest.database == "database.sqlite3" and connection.vendor != "sqlite":
            raise CommandError(
                "The backup holds an SQLite file and this installation uses PostgreSQL; make one with backup --portable to move over.",
                returncode=2,
            )
        known = {key for key in MigrationLoader(None).disk_migrations if key is not None}  # type: ignore[arg-type]
        theirs = {(app, name) for app, names in manifest.migrations.items() for name in names}
        if newer := sorted(f"{app}.{name}" for app, name in theirs - known):
            raise CommandError(f"The backup is of a newer version ({newer[0]} is not known here); install that one.", returncode=2)
        if manifest.database == "database.jsonl" and (missing := sorted(f"{app}.{name}" for app, name in known - theirs)):
            raise CommandError(
                f"The backup's tables are of version {manifest.version}, before {missing[0]}; restore it with that version, then upgrade.",
                returncode=2,
            )

    # --- make room --------------------------------------------------------------------------------------------------

    def _room(self, *, force: bool, stamp: str) -> None:
        names = sorted(path.name for path in settings.DATA_DIR.iterdir() if not stays(path.name))
        outside = self._sqlite_outside()
        taken = [name for name in names if name not in MADE] + ([str(outside)] if outside and outside.exists() else [])
        tables: list[str] = []
        if connection.vendor == "postgresql":
            tables = connection.introspection.table_names()
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
                others = cursor.fetchone()[0]
            if others and not force:
                raise CommandError(f"{others} other connections use the database; stop the control plane (or --force).", returncode=2)
        if (taken or tables) and not force:
            what = f"{settings.DATA_DIR} holds {', '.join(taken[:5])}" if taken else f"the database holds {len(tables)} tables"
            raise CommandError(f"{what}: this is an installation already. --force moves it aside and restores over it.", returncode=2)
        connection.close()
        aside = settings.DATA_DIR / f"replaced-{stamp}"
        if not taken and names:
            for name in names:
                (settings.DATA_DIR / name).unlink()
        elif names:
            aside.mkdir(mode=0o700)
            for name in names:
                (settings.DATA_DIR / name).rename(aside / name)
            self.stdout.write(f"what was here is in {aside}")
        if outside is not None:
            for suffix in ("", "-wal", "-shm"):
                old = outside.with_name(outside.name + suffix)
                if old.exists():
                    old.rename(outside.with_name(f"{outside.name}.replaced-{stamp}{suffix}"))
        if tables:
            schema = f"replaced_{stamp.replace('-', '_')}"
            with connection.cursor() as cursor:
                cursor.execute(f"ALTER SCHEMA public RENAME TO {schema}")
                cursor.execute("CREATE SCHEMA public")
            self.stdout.write(f"the tables that were here are in the schema {schema}")

    @staticmethod
    def _sqlite_outside() -> Path | None:
        """The database's file where it is not in the data folder."""
        if connection.vendor != "sqlite":
            return None
        path = Path(str(connection.settings_dict["NAME"])).absolute()
        return None if path.is_relative_to(settings.DATA_DIR) else path

    # --- bring back -------------------------------------------------------------------------------------------------

    def _database(self, manifest: Manifest, staging: Path, *, stamp: str) -> None:
        source = staging / manifest.database
        if manifest.database == "database.sqlite3":
            target = Path(str(connection.settings_dict["NAME"])).absolute()
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.move(source, target)
        call_command("migrate", interactive=False, verbosity=0)
        if manifest.database == "database.jsonl":
            rows_load(source)
        missing = {app: set(names) - set(migrations_applied().get(app, ())) for app, names in manifest.migrations.items()}
        if wrong := sorted(app for app, names in missing.items() if names):
            raise CopyError(f"The restored database lacks migrations of {', '.join(wrong)}; nothing was started on it.")

    def _files(self, staging: Path) -> None:
        for name, target in (("logs", settings.LOG_DIR), ("artifacts", settings.ARTIFACT_DIR)):
            if (staging / name).is_dir():
                (staging / name).rename(target)
        secrets = staging / "secrets"
        if secrets.is_dir():
            for path in sorted(secrets.iterdir()):
                path.rename(settings.DATA_DIR / path.name)
