"""The disk of the agent's data folder is full, read-only or locked, or its store is damaged: the agent stays and says so, starts
nothing that it could not write down, tells what ends, and loses nothing once it can write again."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent import room as room_module
from agent.protocol import ExitInfo, RankSpec
from agent.store import Store, StoreCorrupt, StoreError, StoreUnwritable
from agent.testing import FakeControlPlane
from tests.agent.test_runner import Node, make, plane, running  # noqa: F401 - fixtures
from tests.smalldisk import bytes_fill, files_fill, small_disk

SPEC = RankSpec(job=1, index=0, argv=("train",))


def full(store: Store) -> None:
    """From here on the store's file can't grow, as on a full disk."""
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(1000):  # and what is free in it is used up
        with contextlib.suppress(sqlite3.OperationalError):
            store._db.execute("INSERT INTO meta VALUES (?, ?)", (f"fill{number}", "x" * 3000))


def room(store: Store) -> None:
    store._db.execute("PRAGMA max_page_count = 100000")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "agent.db")
    yield found
    found.close()


# --- the store --------------------------------------------------------------------------------------------------------


def test_what_must_be_durable_is_refused_and_everything_else_is_written_later(store: Store, tmp_path: Path) -> None:
    store.rank_prepare(rank="1.1.0", epoch=1, spec=SPEC, spec_sha256=None, boot_id="b")
    full(store)
    big = RankSpec(job=2, index=0, argv=("x" * 5000,))
    with pytest.raises(StoreUnwritable) as caught:
        store.rank_prepare(rank="2.1.0", epoch=1, spec=big, spec_sha256=None, boot_id="b")
    assert caught.value.kind == "full"
    assert store.rank("2.1.0") is None
    with pytest.raises(StoreUnwritable), store.batch(strict=True):
        store.rank_update("1.1.0", launch_detail="y" * 5000)
    assert store.rank("1.1.0").launch_detail is None  # type: ignore[union-attr]
    # An end is told to the control plane in any case.
    store.rank_update("1.1.0", state="EXITED", exit=ExitInfo(cause="exited", code=0), launch_detail="z" * 5000)
    store.event_add(session="s", kind="xid", gpu=None, at=1.0, data={"text": "e" * 5000})
    assert store.rank("1.1.0").state == "EXITED"  # type: ignore[union-attr]
    assert store.trouble == "full"
    assert not store.settle()
    room(store)
    assert store.settle()
    assert store.trouble is None
    other = Store(tmp_path / "agent.db")
    assert other.rank("1.1.0").launch_detail == "z" * 5000  # type: ignore[union-attr]
    assert [event.kind for event in other.events()] == ["xid"]
    assert other.rank("2.1.0") is None
    other.close()


def test_what_is_owed_keeps_its_order(store: Store, tmp_path: Path) -> None:
    store.rank_refuse(rank="1.1.0", epoch=1, boot_id="b", exit=ExitInfo(cause="never_started", detail="d"))
    full(store)
    store.meta_set("a", "1" * 5000)
    store.meta_set("a", "2" * 5000)
    store.rank_delete("1.1.0")
    room(store)
    store.meta_set("b", "3")
    other = Store(tmp_path / "agent.db")
    assert (other.meta("a"), other.meta("b"), other.ranks()) == ("2" * 5000, "3", {})
    other.close()


def test_while_it_can_not_be_written_for_long_events_are_what_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.store.MAX_OWED", 10)
    full(store)
    store.meta_set("kept", "k" * 5000)
    for _ in range(30):
        store.event_add(session="s", kind="xid", gpu=None, at=1.0, data={"text": "e" * 5000})
    assert len(store._owed) <= 11
    room(store)
    store.settle()
    assert store.meta("kept") == "k" * 5000


def test_a_store_that_somebody_holds_is_waited_for_and_loses_nothing(store: Store, tmp_path: Path) -> None:
    store._db.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(tmp_path / "agent.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.meta_set("a", "1")
    assert store.trouble == "locked"
    with pytest.raises(StoreUnwritable) as caught:
        store.command_begin(1, "ping")
    assert caught.value.kind == "locked"
    other.execute("ROLLBACK")
    assert store.settle()
    assert other.execute("SELECT value FROM meta WHERE key = 'a'").fetchone() == ("1",)
    other.close()


def test_a_store_that_somebody_holds_at_the_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path / "agent.db").close()
    other = sqlite3.connect(tmp_path / "agent.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("INSERT INTO meta VALUES ('x', 'y')")
    monkeypatch.setattr("agent.store.OPEN_TIMEOUT_S", 0.05)
    with pytest.raises(StoreUnwritable, match="Another program holds it") as caught:
        Store(tmp_path / "agent.db")
    assert caught.value.kind == "locked"
    other.close()


def test_a_store_that_can_not_be_written_says_so(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    Store(tmp_path / "agent.db").close()
    (tmp_path / "agent.db").chmod(0o400)
    with pytest.raises(StoreError, match=r"readonly|read-only"):
        Store(tmp_path / "agent.db").rank_prepare(rank="1.1.0", epoch=1, spec=SPEC, spec_sha256=None, boot_id="b")


@pytest.mark.parametrize("damage", ["page", "text", "rows"])
def test_a_damaged_store_is_told_from_one_that_only_can_not_be_opened(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    store = Store(path)
    for number in range(200):
        store.meta_set(str(number), "x" * 500)
    store.rank_prepare(rank="1.1.0", epoch=1, spec=SPEC, spec_sha256=None, boot_id="b")
    store.close()
    if damage == "rows":
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("UPDATE ranks SET spec = '{nonsense'")
    else:
        data = bytearray(path.read_bytes())
        data[: len(data)] = b"no database at all" * 100 if damage == "text" else data[:8192] + b"\xff" * (len(data) - 8192)
        path.write_bytes(data)
    with pytest.raises(StoreCorrupt):
        Store(path)


# --- the agent ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "LOOK_S", 0.02)
    monkeypatch.setattr(room_module, "FLOOR_MIB", 0)
    monkeypatch.setattr(room_module, "FLOOR_FILES", 0)


def advice(plane: FakeControlPlane) -> tuple[str, ...]:  # noqa: F811
    return plane.inventory.advice if plane.inventory is not None else ()


def stays(node: Node, plane: FakeControlPlane, fill: Callable[[], None], clear: Callable[[], None]) -> None:  # noqa: F811
    """What an agent does while its disk is full, and afterwards."""
    plane.forgets = False
    running(node, plane, "1.1.0")
    fill()
    plane.run("2.1.0", "train", env={"BIG": "x" * 20_000})
    seen = plane.wait_state("2.1.0", "LAUNCH_FAILED")
    assert (seen.launch_error, seen.released) == ("internal", True)
    assert "full" in (seen.launch_detail or "")
    assert "2.1.0" not in node.ranks.started
    plane.wait(lambda: "disk_full" in advice(plane), what="the advice")
    # What runs ends, and that is told.
    node.ranks.exit("1.1.0", 3)
    assert plane.wait_state("1.1.0", "EXITED").exit == ExitInfo(cause="exited", code=3)
    clear()
    plane.wait(lambda: "disk_full" not in advice(plane), what="the end of the advice")
    plane.wait(lambda: {"disk_full", "disk_full_over"} <= {event.kind for event in plane.events.values()}, what="both events")
    plane.run("3.1.0", "train")
    node.started("3.1.0")


@pytest.mark.usefixtures("quick")
def test_a_full_disk_is_said_starts_nothing_and_hides_no_end(make: Callable[..., Node], plane: FakeControlPlane) -> None:  # noqa: F811
    node = make().online()
    # The store's connection is the loop's thread's own; a limit is set from another one.
    limits: list[int] = []
    store = node.runner._store
    real = store._begin

    def begin() -> None:
        if limits:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"  # type: ignore[misc]
            raise error
        real()

    store._begin = begin  # type: ignore[method-assign]
    stays(node, plane, lambda: limits.append(1), limits.clear)


@pytest.mark.root
@pytest.mark.parametrize("what", ["bytes", "files"])
@pytest.mark.usefixtures("quick")
def test_on_a_disk_that_is_really_full(what: str, make: Callable[..., Node], plane: FakeControlPlane, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "data").mkdir(exist_ok=True)
    node = make()
    with small_disk(node.data, kib=2048, files=60 if what == "files" else 0) as disk:
        node.online()
        if what == "bytes":
            stays(node, plane, lambda: (bytes_fill(disk), None)[1], (disk / "fill").unlink)
        else:
            # Without a file to make the store goes on; starting a rank is what fails, or not at all: it must stay up.
            running(node, plane, "1.1.0")
            many = files_fill(disk)
            node.ranks.exit("1.1.0", 3)
            plane.wait_state("1.1.0", "EXITED")
            shutil.rmtree(many)
            plane.run("3.1.0", "train")
            node.started("3.1.0")
        node.stop()


@pytest.mark.usefixtures("quick")
def test_a_disk_that_is_nearly_full_takes_no_new_work(
    make: Callable[..., Node],  # noqa: F811
    plane: FakeControlPlane,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "nebula-agent")
    make().online()
    monkeypatch.setattr(room_module, "FLOOR_FILES", 1 << 60)
    plane.wait(lambda: "disk_full" in advice(plane), what="the advice")
    monkeypatch.setattr(room_module, "FLOOR_FILES", 0)
    plane.wait(lambda: "disk_full" not in advice(plane), what="its end")
    told = [event for event in plane.events.values() if event.kind == "disk_full"]
    assert told[0].data["free_mib"] >= 0
    assert any("disk_full" in record.message for record in caplog.records)


def test_the_time_of_an_answered_sync_is_noted_on_a_full_disk(tmp_path: Path) -> None:
    """It is written over the one before, so no room is needed. (A rank with a lease would be stopped although all is well.)"""
    from agent.ranks import RankProcesses

    ranks = RankProcesses(tmp_path, "test-room", cgroup="none")
    try:
        ranks.lease_renew(1234.5)
        path = ranks.root / ".renewed"
        before = path.stat()
        ranks.lease_renew(99_999_999.25)
        after = path.stat()
        assert float(path.read_text()) == 99_999_999.25
        assert (before.st_ino, before.st_size, before.st_blocks) == (after.st_ino, after.st_size, after.st_blocks)
    finally:
        ranks.close()
