"""One migrated SQLite file for all of a test run: each process's test database and each control plane that tests start begin as its copies.

Migrating an empty file costs seconds of processor time and always gives the same file. The first process that asks makes it
(`python -m tests.template`, on NEBULA_DATABASE_URL), the others wait.
"""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.live.grid import ROOT


def template_sqlite(factory: pytest.TempPathFactory) -> Path:
    """A file as `manage.py migrate` leaves it, the same for all processes of this run; to be copied, not to be opened for writing."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # the folder of the run; each process has its own below
    made, aside = shared / "template.sqlite3", shared / "template.new"
    with (shared / "template.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            aside.unlink(missing_ok=True)
            # None of the caller's settings; and not this process, whose settings are those of tests.
            env = {k: v for k, v in os.environ.items() if not k.startswith(("NEBULA_", "DJANGO_", "PYTEST_"))}
            env |= {"NEBULA_DATA": str(shared / "template-data"), "NEBULA_DATABASE_URL": f"sqlite:///{aside}"}
            done = subprocess.run(
                [sys.executable, "-m", "tests.template"],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"the migrations failed:\n{done.stdout}\n{done.stderr}"
            aside.replace(made)
    return made


def main() -> None:
    gc.disable()  # models by the thousand, rendered and thrown away: a third of the time is the collector's
    os.environ["DJANGO_SETTINGS_MODULE"] = "nebulagrid.settings"
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", interactive=False, verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode=DELETE")  # one file, no -wal beside it
    connection.close()


if __name__ == "__main__":
    main()
