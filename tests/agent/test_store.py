from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agent.protocol import ExitInfo, GpuGrant, RankSpec
from agent.store import MAX_EVENTS, Store, StoreError, Tombstone
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SPEC = RankSpec(job=42, index=0, argv=("sh", "-c", "echo '☠'; exit 3"), env={"A": "ä\n"}, gpus=(GpuGrant(uuid="GPU-1", mib=4096),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def reopened(store: Store, path: Path) -> Store:
    store.close()
    return Store(path)


def prepared(path: Path, rank: str = "42.3.0", **more: object) -> Store:
    store = Store(path)
    store.rank_prepare(rank=rank, epoch=int(rank.split(".")[1]), spec=SPEC, spec_sha256="abc", boot_id="boot", **more)  # type: ignore[arg-type]
    return store


def test_a_rank_survives_a_restart_whole(path: Path) -> None:
    store = prepared(path, lease_s=600, baseline={"GPU-1": 900})
    store.rank_update(
        "42.3.0",
        state="EXITED",
        exit=ExitInfo(cause="exited", code=3, detail="x"),
        released=True,
        final_log_offset=17,
        started_at=1.5,
        log_done=True,
    )
    before = store.rank("42.3.0")
    store = reopened(store, path)
    assert store.rank("42.3.0") == before
    assert before is not None
    assert before.spec == SPEC
    assert before.released is True
    assert before.is_final
    store.close()


def test_released_unknown_true_and_false_are_three_things(path: Path) -> None:
    store = prepared(path)
    for value in (None, True, False):
        store.rank_update("42.3.0", released=value)
        store = reopened(store, path)
        row = store.rank("42.3.0")
        assert row is not None
        assert row.released is value
        assert row.observed().released is value
    store.close()


def test_preparing_fences_every_lower_epoch_and_not_its_own(path: Path) -> None:
    store = reopened(prepared(path), path)
    assert store.tombstones() == {42: Tombstone(2, 3)}
    store.close()


def test_a_fence_never_sinks(path: Path) -> None:
    store = Store(path)
    store.tombstone(42, 7)
    store.tombstone(42, 3, ran=2)
    store.tombstone(42, 5, ran=1)
    assert store.tombstones()[42] == Tombstone(7, 2)
    store = reopened(store, path)
    assert store.tombstones()[42] == Tombstone(7, 2)
    store.close()


def test_a_refused_rank_is_reported_and_fenced(path: Path) -> None:
    store = Store(path)
    store.rank_refuse(rank="42.3.0", epoch=3, boot_id="b", exit=ExitInfo(cause="never_started"))
    row = store.rank("42.3.0")
    assert row is not None
    seen = row.observed()
    assert (seen.state, seen.released, seen.final_log_offset) == ("EXITED", True, 0)
    assert store.tombstones()[42].epoch == 3
    store.close()


def test_a_batch_that_fails_leaves_neither_rows_nor_cache(path: Path) -> None:
    store = Store(path)
    with pytest.raises(RuntimeError, match="half way"), store.batch():  # noqa: PT012
        store.rank_prepare(rank="42.3.0", epoch=3, spec=SPEC, spec_sha256=None, boot_id="b")
        raise RuntimeError("half way")
    assert store.rank("42.3.0") is None
    assert store.tombstones() == {}
    store.rank_prepare(rank="42.3.0", epoch=3, spec=SPEC, spec_sha256=None, boot_id="b")
    store = reopened(store, path)
    assert store.rank("42.3.0") is not None
    store.close()


def test_a_rank_is_prepared_once(path: Path) -> None:
    store = prepared(path)
    with pytest.raises(sqlite3.IntegrityError):
        store.rank_prepare(rank="42.3.0", epoch=3, spec=SPEC, spec_sha256=None, boot_id="b")
    store.close()


def test_a_command_acts_once_over_restarts(path: Path) -> None:
    store = Store(path)
    assert store.command_begin(5, "ping")
    assert not store.command_begin(5, "ping")
    store = reopened(store, path)
    assert not store.command_begin(5, "ping")
    store.close()


def test_a_result_is_kept_until_it_is_acknowledged(path: Path) -> None:
    store = Store(path)
    store.command_begin(5, "ping")
    assert store.results() == ()
    store.command_finish(5, ok=True, text="pong")
    store = reopened(store, path)
    assert [(r.cid, r.ok, r.text) for r in store.results()] == [(5, True, "pong")]
    store.results_ack([5])
    assert store.results() == ()
    assert not store.command_begin(5, "ping")
    store.close()


def test_a_command_that_the_agent_died_in_has_a_failed_result(path: Path) -> None:
    store = Store(path)
    store.command_begin(5, "diagnose")
    store = reopened(store, path)
    store.command_abandon()
    (result,) = store.results()
    assert not result.ok
    assert "restarted" in result.text
    store.close()


def test_an_event_is_kept_until_acknowledged_and_its_number_is_never_used_again(path: Path) -> None:
    store = Store(path)
    store.event_add(session="s1", kind="xid", gpu="GPU-1", at=1.0, data={"xid": 79})
    (first,) = store.events()
    assert (first.kind, first.gpu, first.data, first.session) == ("xid", "GPU-1", {"xid": 79}, "s1")
    store.events_ack([first.eid])
    store = reopened(store, path)
    assert store.events() == ()
    store.event_add(session="s2", kind="xid", gpu=None, at=2.0, data={})
    assert store.events()[0].eid > first.eid
    store.close()


def test_events_do_not_fill_the_disk(path: Path) -> None:
    store = Store(path)
    with store.batch():
        kept = [store.event_add(session="s", kind="xid", gpu=None, at=1.0, data={}) for _ in range(MAX_EVENTS + 5)]
    assert kept.count(True) == MAX_EVENTS
    assert kept[-5:] == [False] * 5
    assert len(store.events(limit=200)) == 200
    store.close()


def test_sessions_count_up(path: Path) -> None:
    store = Store(path)
    assert store.session_next() == 1
    store = reopened(store, path)
    assert store.session_next() == 2
    store.close()


def test_it_is_on_the_disk_and_not_only_in_the_cache_of_the_system(path: Path) -> None:
    store = Store(path)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    store.close()


def test_kill_in_mid_batch_keeps_all_that_was_committed_and_nothing_else(path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from agent.protocol import RankSpec
from agent.store import Store
store = Store(Path({str(path)!r}))
spec = RankSpec(job=1, index=0, argv=("true",))
store.rank_prepare(rank="1.4.0", epoch=4, spec=spec, spec_sha256=None, boot_id="b")
store.command_begin(9, "reset")
with store.batch():
    store.rank_prepare(rank="2.1.0", epoch=1, spec=spec, spec_sha256=None, boot_id="b")
    os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL
    store = Store(path)
    assert set(store.ranks()) == {"1.4.0"}
    assert store.tombstones() == {1: Tombstone(3, 4)}
    assert not store.command_begin(9, "reset")
    store.close()


def test_it_refuses_the_file_of_a_newer_agent(path: Path) -> None:
    store = Store(path)
    store.meta_set("schema", "99")
    store.close()
    with pytest.raises(StoreError, match="newer agent"):
        Store(path)


def test_a_broken_file_is_one_clear_error(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="cannot be used"):
        Store(path)
