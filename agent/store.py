"""The agent's memory that survives kill -9 and power loss: one local SQLite file, WAL, synchronous=FULL.

Only the loop's thread uses it. A write is durable when the method returns, or when the `with store.batch()` around it
ends: an answer with twenty RUNs costs one fsync, not twenty.

INVARIANT: a rank's row (PREPARED, with its epoch fence) is committed before anything of it is started.
INVARIANT: a command's cid is committed before the command acts.

Those two are strict: where the disk is full, read-only or locked they raise StoreUnwritable, and nothing is started. Everything else
is then only remembered, in the cache and as statements that are owed, and written with the next transaction that succeeds: what ran
and how it ended is in the ranks' own files, too, so an agent that dies meanwhile comes to the same.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from agent.protocol import (
    AgentEvent,
    CommandResult,
    ExitInfo,
    Observed,
    ObservedState,
    ProtocolError,
    RankId,
    RankSpec,
    events_read,
    from_json,
    rank_parts,
)

SCHEMA_VERSION = 1
#: Events wait here while the control plane is away; beyond this many the newest are counted, not kept.
MAX_EVENTS = 2000
#: Secrets of earlier sessions: a control plane that came back from a backup knows an older one.
PROOFS_KEPT = 5

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ranks (
    rank TEXT PRIMARY KEY, job INTEGER NOT NULL, epoch INTEGER NOT NULL, state TEXT NOT NULL,
    spec TEXT, spec_sha256 TEXT, boot_id TEXT NOT NULL, lease_s INTEGER, baseline TEXT,
    exit TEXT, launch_error TEXT, launch_detail TEXT, final_log_offset INTEGER, released INTEGER,
    started_at REAL, checkpoint_seen INTEGER NOT NULL DEFAULT 0,
    log_offset INTEGER NOT NULL DEFAULT 0, log_done INTEGER NOT NULL DEFAULT 0,
    artifacts_done INTEGER NOT NULL DEFAULT 0, forgotten INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tombstones (job INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, ran_epoch INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS commands (cid INTEGER PRIMARY KEY, kind TEXT NOT NULL, ok INTEGER, text TEXT, acked INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS events (eid INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, body TEXT NOT NULL);
"""


#: How long another program may hold the file before that is an error.
OPEN_TIMEOUT_S = 10.0
#: More than this is not remembered: events first go lost.
MAX_OWED = 5000
#: SQLite's names of what is wrong with the disk, and not with us.
TROUBLES = {"FULL": "full", "READONLY": "readonly", "BUSY": "locked", "LOCKED": "locked", "IOERR": "io", "CANTOPEN": "io"}


class StoreError(RuntimeError):
    """The agent's store cannot be used."""


class StoreCorrupt(StoreError):
    """The agent's store is damaged."""


class StoreUnwritable(StoreError):
    """Nothing can be written to the agent's store now. ``kind``: full | readonly | locked | io."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _is_full(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError):  # Windows has none
        return False
    return found.f_bavail == 0 or (found.f_files > 0 and found.f_favail == 0)


_WAY_OUT = {
    "full": "Make room on its disk.",
    "readonly": "Make the file and its disk writable for this user.",
    "locked": "Another program holds it: end that.",
    "io": "Check the disk.",
}


def _trouble(error: sqlite3.Error) -> str | None:
    """The kind of StoreUnwritable; None where it is something else."""
    name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
    return next((kind for begin, kind in TROUBLES.items() if name.startswith(begin)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank that this node holds or has held. ``state`` is what is reported; PREPARING = row only, so far."""

    rank: RankId
    job: int
    epoch: int
    state: ObservedState
    boot_id: str
    spec: RankSpec | None = None  # None for a rank that never was given to this node (a refused RUN, an unknown STOP)
    spec_sha256: str | None = None
    lease_s: int | None = None
    baseline: dict[str, int] | None = None  # uuid → foreign MiB on the card just before the start
    exit: ExitInfo | None = None
    launch_error: str | None = None
    launch_detail: str | None = None
    final_log_offset: int | None = None
    released: bool | None = None
    started_at: float | None = None
    checkpoint_seen: bool = False
    log_offset: int = 0
    log_done: bool = False
    artifacts_done: bool = False
    forgotten: bool = False  # FORGET came, but output or artefacts are still on their way

    @property
    def is_final(self) -> bool:
        return self.state in ("EXITED", "LAUNCH_FAILED")

    def observed(self) -> Observed:
        """The row in the words of a sync."""
        return from_json(
            Observed,
            {
                "rank": self.rank,
                "epoch": self.epoch,
                "state": self.state,
                "exit": self.exit.to_json() if self.exit else None,
                "launch_error": self.launch_error,
                "launch_detail": self.launch_detail,
                "final_log_offset": self.final_log_offset,
                "released": self.released,
                "started_at": self.started_at,
                "checkpoint_seen": self.checkpoint_seen,
            },
        )


@dataclass(frozen=True, slots=True)
class Tombstone:
    """``epoch``: no RUN at or below it is accepted. ``ran_epoch``: the highest epoch of the job that was started here."""

    epoch: int
    ran_epoch: int = 0


def _tri(value: int | None) -> bool | None:
    return None if value is None else bool(value)


_COLUMNS = tuple(f.name for f in fields(RankRow))  # the table has the same names, in any order


def _row(values: tuple[Any, ...]) -> RankRow:
    found = dict(zip(_COLUMNS, values, strict=True))
    found["spec"] = RankSpec.from_json(json.loads(found["spec"])) if found["spec"] else None
    found["exit"] = ExitInfo.from_json(json.loads(found["exit"])) if found["exit"] else None
    found["baseline"] = json.loads(found["baseline"]) if found["baseline"] else None
    found["released"] = _tri(found["released"])
    for name in ("checkpoint_seen", "log_done", "artifacts_done", "forgotten"):
        found[name] = bool(found[name])
    return RankRow(**found)


def _value(value: Any) -> Any:
    if isinstance(value, RankSpec | ExitInfo):
        return json.dumps(value.to_json())
    if isinstance(value, dict):
        return json.dumps(value)
    return int(value) if isinstance(value, bool) else value


class Store:
    """Rows are cached in memory: a sync reads no disk."""

    def __init__(self, path: Path) -> None:
        """Open or create the store. Raises StoreCorrupt when the file is damaged, StoreUnwritable when it can't be written now, else
        StoreError."""
        self.trouble: str | None = None  # why the last write failed: full | readonly | locked | io
        self._owed: list[tuple[str, tuple[Any, ...]]] = []
        self._log: list[tuple[str, tuple[Any, ...]]] = []  # what the open batch has written
        self._is_strict = self._is_deferring = False
        self._proof_accepted: str | None = None  # by a sync of this run
        try:
            # isolation_level=None: transactions are ours alone, `batch` says BEGIN and COMMIT.
            self._db = sqlite3.connect(path, isolation_level=None, timeout=OPEN_TIMEOUT_S)
            if self._db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise StoreCorrupt(f"The agent's store {path} is damaged.")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA busy_timeout=2000")  # the loop waits for it
            self._db.execute("PRAGMA cache_size=-512")
            self._db.executescript(_SCHEMA)
            self._depth = 0
            self._ranks: dict[RankId, RankRow] = {}
            self._tombs: dict[int, Tombstone] = {}
            version = self.meta("schema")
            if version is None:
                self.meta_set("schema", str(SCHEMA_VERSION))
            elif int(version) > SCHEMA_VERSION:
                raise StoreError(
                    f"{path} was written by a newer agent (schema {version}, this one knows {SCHEMA_VERSION}); upgrade the agent."
                )
            self._ranks = {r.rank: r for r in map(_row, self._db.execute(f"SELECT {', '.join(_COLUMNS)} FROM ranks"))}  # noqa: S608
            self._tombs = {
                job: Tombstone(epoch, ran) for job, epoch, ran in self._db.execute("SELECT job, epoch, ran_epoch FROM tombstones")
            }
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            kind = _trouble(error) if isinstance(error, sqlite3.Error) else None
            if kind == "io" and _is_full(path.parent):
                kind = "full"  # no file could be made beside it
            text = f"The agent's store {path} cannot be used: {error}."
            if kind is not None:
                raise StoreUnwritable(kind, f"{text} {_WAY_OUT[kind]}") from error
            if isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"{text} Check the disk and the file's owner.") from error
            raise StoreCorrupt(text) from error

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def batch(self, *, strict: bool = False) -> Iterator[None]:
        """All writes inside become durable together, or not at all. Where nothing can be written they are remembered (see above);
        ``strict``: raises StoreUnwritable instead, and nothing of it is remembered."""
        if self._depth:
            yield  # inside another batch: that one commits
            return
        ranks, tombs = dict(self._ranks), dict(self._tombs)
        self._depth, self._is_strict, self._is_deferring, self._log = 1, strict, False, []
        try:
            self._attempt(self._begin)
            yield
            if not self._is_deferring:
                self._attempt(lambda: self._db.execute("COMMIT"))
            if self._is_deferring:
                self._owed += self._log
                if len(self._owed) > MAX_OWED:
                    self._owed = [owed for owed in self._owed if not owed[0].startswith("INSERT INTO events")]
            else:
                self._owed, self.trouble = [], None
        except BaseException:
            # The cache must not claim what the disk does not hold, a full disk at COMMIT included.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._ranks, self._tombs = ranks, tombs
            raise
        finally:
            self._depth = 0

    def settle(self) -> bool:
        """Try to write what is owed, if anything is. True when the disk holds all that we know."""
        if self._owed or self.trouble is not None:
            with self.batch():
                self._do("INSERT INTO meta VALUES ('settled', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", str(time.time()))
        return self.trouble is None

    def _begin(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for sql, values in self._owed:
            self._db.execute(sql, values)

    def _attempt(self, action: Callable[[], object]) -> None:
        """Go on by remembering where the disk does not take it. Raises StoreUnwritable in a strict batch."""
        try:
            action()
        except sqlite3.OperationalError as error:
            kind = _trouble(error)
            if kind is None:
                raise
            self.trouble = kind
            if self._is_strict:
                raise StoreUnwritable(kind, f"The agent's store can't be written: {error}.") from error
            self._is_deferring = True
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _do(self, sql: str, *values: Any) -> None:
        """One statement that writes, in the open batch or in one of its own."""
        with self.batch():
            self._log.append((sql, values))
            if not self._is_deferring:
                self._attempt(lambda: self._db.execute(sql, values))

    # --- small facts ------------------------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if found is None else str(found[0])

    def meta_set(self, key: str, value: str) -> None:
        self._do("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)

    def session_next(self) -> int:
        """How many times an agent has started on this store, this time included."""
        number = int(self.meta("sessions") or 0) + 1
        self.meta_set("sessions", str(number))
        return number

    def proofs_begin(self) -> tuple[str, tuple[str, ...]]:
        """A secret for the session that begins, kept before it is told, and those of the sessions before: who knows one of them has
        this store, and so is the same agent."""
        try:
            earlier = tuple(str(proof) for proof in json.loads(self.meta("proofs") or "[]"))[:PROOFS_KEPT]
        except ValueError:
            earlier = ()
        accepted = self.meta("proof_accepted")
        if accepted is not None and accepted not in earlier:
            # The control plane knows this one, and none of those that began after it and were never answered.
            earlier = (*earlier[: PROOFS_KEPT - 1], accepted)
        own = secrets.token_hex(32)
        self.meta_set("proofs", json.dumps([own, *earlier][:PROOFS_KEPT]))
        return own, earlier

    def proof_accepted(self, own: str) -> None:
        """The control plane has taken the session of this secret: it is kept until that of a later session is taken."""
        if own != self._proof_accepted:
            self.meta_set("proof_accepted", own)
            self._proof_accepted = own

    # --- ranks ------------------------------------------------------------------------------------------------

    def ranks(self) -> dict[RankId, RankRow]:
        """Every rank held, those that wait for their artefacts after FORGET included. Treat as read-only."""
        return self._ranks

    def rank(self, rank: RankId) -> RankRow | None:
        return self._ranks.get(rank)

    def rank_prepare(
        self,
        *,
        rank: RankId,
        epoch: int,
        spec: RankSpec,
        spec_sha256: str | None,
        boot_id: str,
        lease_s: int | None = None,
        baseline: dict[str, int] | None = None,
    ) -> RankRow:
        """Row PREPARED plus its fence: every lower epoch of the job is refused from here on."""
        job = rank_parts(rank)[0]
        row = RankRow(
            rank=rank,
            job=job,
            epoch=epoch,
            state="PREPARING",
            boot_id=boot_id,
            spec=spec,
            spec_sha256=spec_sha256,
            lease_s=lease_s,
            baseline=baseline,
        )
        with self.batch(strict=True):
            self._insert(row)
            # epoch - 1, not epoch: a second rank of the same lap may live on this node too. This rank itself is
            # fenced by its row as long as that exists, and by FORGET or STOP afterwards.
            self.tombstone(job, epoch - 1, ran=epoch)
        return row

    def rank_refuse(self, *, rank: RankId, epoch: int, boot_id: str, exit: ExitInfo) -> None:
        """Note and report a rank that will never run here."""
        job = rank_parts(rank)[0]
        with self.batch():
            self._insert(
                RankRow(
                    rank=rank,
                    job=job,
                    epoch=epoch,
                    state="EXITED",
                    boot_id=boot_id,
                    exit=exit,
                    final_log_offset=0,
                    released=True,
                    log_done=True,
                    artifacts_done=True,
                )
            )
            self.tombstone(job, epoch)

    def _insert(self, row: RankRow) -> None:
        marks = ", ".join("?" * len(_COLUMNS))
        if row.rank in self._ranks:
            raise sqlite3.IntegrityError(f"rank {row.rank} is there already")
        self._do(f"INSERT INTO ranks ({', '.join(_COLUMNS)}) VALUES ({marks})", *(_value(getattr(row, c)) for c in _COLUMNS))  # noqa: S608
        self._ranks[row.rank] = row

    def rank_update(self, rank: RankId, **changes: Any) -> RankRow:
        """Change columns of a row; nothing is written when nothing changes. Raises KeyError for an unknown rank."""
        row = self._ranks[rank]
        changes = {k: v for k, v in changes.items() if getattr(row, k) != v}
        if not changes:
            return row
        sets = ", ".join(f"{name} = ?" for name in changes)
        self._do(f"UPDATE ranks SET {sets} WHERE rank = ?", *map(_value, changes.values()), rank)  # noqa: S608
        self._ranks[rank] = row = replace(row, **changes)
        return row

    def rank_delete(self, rank: RankId) -> None:
        self._do("DELETE FROM ranks WHERE rank = ?", rank)
        self._ranks.pop(rank, None)

    # --- fences -----------------------------------------------------------------------------------------------

    def tombstones(self) -> dict[int, Tombstone]:
        return self._tombs

    def tombstone(self, job: int, epoch: int, *, ran: int = 0) -> None:
        """Raise the job's fence; a fence never sinks."""
        old = self._tombs.get(job, Tombstone(-1))
        new = Tombstone(max(old.epoch, epoch), max(old.ran_epoch, ran))
        if new != old:
            self._do(
                "INSERT INTO tombstones VALUES (?, ?, ?) "
                "ON CONFLICT (job) DO UPDATE SET epoch = excluded.epoch, ran_epoch = excluded.ran_epoch",
                job,
                new.epoch,
                new.ran_epoch,
            )
            self._tombs[job] = new

    # --- commands ---------------------------------------------------------------------------------------------

    def command_begin(self, cid: int, kind: str) -> bool:
        """Note that this command is about to act. False: it was seen before, do nothing. Raises StoreUnwritable."""
        with self.batch(strict=True):
            is_new = self._db.execute("SELECT 1 FROM commands WHERE cid = ?", (cid,)).fetchone() is None
            self._do("INSERT OR IGNORE INTO commands (cid, kind) VALUES (?, ?)", cid, kind)
            # The control plane repeats a command until its result is acknowledged, so long-acknowledged cids may go.
            self._do("DELETE FROM commands WHERE acked AND cid < ? - 10000", cid)
        return is_new

    def command_finish(self, cid: int, *, ok: bool, text: str) -> None:
        self._do("UPDATE commands SET ok = ?, text = ? WHERE cid = ?", int(ok), text, cid)

    def command_abandon(self) -> None:
        """After a restart: what was begun and has no result will never have one."""
        self._do("UPDATE commands SET ok = 0, text = 'The agent restarted while this command ran.' WHERE ok IS NULL")

    def results(self) -> tuple[CommandResult, ...]:
        """Results that no answered sync has carried yet. Causes one small query."""
        found = self._db.execute("SELECT cid, ok, text FROM commands WHERE ok IS NOT NULL AND NOT acked ORDER BY cid LIMIT 50")
        return tuple(CommandResult(cid=cid, ok=bool(ok), text=text or "") for cid, ok, text in found)

    def results_ack(self, cids: Iterable[int]) -> None:
        marks = list(cids)
        if marks:
            with self.batch():
                for cid in marks:
                    self._do("UPDATE commands SET acked = 1, text = NULL WHERE cid = ?", cid)

    # --- events -----------------------------------------------------------------------------------------------

    def event_add(self, *, session: str, kind: str, gpu: str | None, at: float, data: dict[str, Any]) -> bool:
        """Keep an event until it is acknowledged. False: MAX_EVENTS are waiting already and it was dropped."""
        if self._db.execute("SELECT COUNT(*) FROM events").fetchone()[0] >= MAX_EVENTS:
            return False
        try:
            event = AgentEvent(eid=0, kind=kind, gpu=gpu, at=at, data=data)
            AgentEvent.from_json(event.to_json())  # what this protocol can't carry must not wait here for ever
            body = json.dumps({"kind": kind, "gpu": gpu, "at": at, "data": event.to_json().get("data", {})})
        except (ProtocolError, TypeError, ValueError, RecursionError) as error:
            body = json.dumps({"kind": kind, "gpu": gpu, "at": time.time(), "data": {"problem": str(error)[:200]}})
        self._do("INSERT INTO events (session, body) VALUES (?, ?)", session, body)
        return True

    def events(self, limit: int = 200) -> tuple[AgentEvent, ...]:
        """The oldest unacknowledged events. An eid is never used twice on this store, over restarts too."""
        found = self._db.execute("SELECT eid, session, body FROM events ORDER BY eid LIMIT ?", (limit,))
        return events_read([{"eid": eid, "session": session, **json.loads(body)} for eid, session, body in found], "store")

    def events_ack(self, eids: Iterable[int]) -> None:
        marks = list(eids)
        if marks:
            with self.batch():
                for eid in marks:
                    self._do("DELETE FROM events WHERE eid = ?", eid)
