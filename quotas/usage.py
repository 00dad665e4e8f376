"""Past use that fades (D4): decayed card-hours of each user and project, from the ledger.

The ledger is the only truth; nothing else is stored. Each process keeps running sums: at first they come from the ledger in one
aggregate (of 100,000 entries in a quarter of a second), from then on each read adds what was charged since and lets the sums fade.
So a restart changes nothing, nor does another database, and another half-life takes effect at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connection
from django.db.models import Q

from quotas.models import LedgerEntry
from quotas.sql import fade_sql, moment

#: What is older counts less than a millionth of what is new.
HALF_LIVES = 20
#: A number that was left out may belong to a charge that is not committed yet; one that was rolled back never comes.
GAP_PATIENCE_S = 60.0
#: More gaps than this are no late commits; they are not waited for.
GAPS_MAX = 1000


class Fading:
    """Amounts of owners that halve every ``half_life_s`` seconds; 0 = they never fade. Times are seconds since the epoch."""

    def __init__(self, half_life_s: float, at: float) -> None:
        self.half_life_s = half_life_s
        self.at = at
        self._amounts: dict[int, float] = {}

    def kept(self, seconds: float) -> float:
        """What is left of 1 after so many seconds."""
        return 0.5 ** (seconds / self.half_life_s) if self.half_life_s > 0 else 1.0

    def move(self, at: float) -> None:
        """To another moment; all amounts fade until then."""
        if at == self.at:
            return
        kept = self.kept(at - self.at)
        self._amounts = {owner: amount * kept for owner, amount in self._amounts.items()}
        self.at = at

    def add(self, owner: int, amount: float) -> None:
        """``amount`` as it is now (``at``)."""
        self._amounts[owner] = self._amounts.get(owner, 0.0) + amount

    def amounts(self) -> dict[int, float]:
        return dict(self._amounts)


def faded_hours(*, share: float, begin: float, end: float, now: float, half_life_s: float) -> float:
    """∫ share · 0.5^((now − t) ÷ half-life) dt from begin to end, in hours: what is left of the card-hours used then.

    Without a half-life: share × (end − begin) ÷ 3600. Source: the same integral as jobs/scheduler/fairshare.py's Usage.
    """
    if half_life_s <= 0:
        return share * (end - begin) / 3600
    late, early = 0.5 ** ((now - end) / half_life_s), 0.5 ** ((now - begin) / half_life_s)
    return share * (late - early) * half_life_s / math.log(2) / 3600


class CardHours:
    """The running sums of one process for one half-life. Call ``read`` only while holding the lock of this module."""

    def __init__(self, half_life_s: float) -> None:
        self.half_life_s = half_life_s
        self.users = Fading(half_life_s, 0.0)
        self.projects = Fading(half_life_s, 0.0)
        self._top = -1  # the highest number that was seen; -1 = nothing was read yet
        self._gaps: dict[int, float] = {}  # number below it that was not there → until when it is waited for (monotonic)

    def read(self, now: datetime) -> tuple[dict[int, float], dict[int, float]]:
        """(user → hours, project → hours) left at ``now``. One query; three the first time."""
        at = now.timestamp()
        if self._top < 0:
            self._load(now)
        for fading in (self.users, self.projects):
            fading.move(at)
        self._follow(at)
        return self.users.amounts(), self.projects.amounts()

    def _load(self, now: datetime) -> None:
        """All but the last entries in one aggregate; those are read one by one, as some of them may be missing still."""
        at = now.timestamp()
        self.users, self.projects = Fading(self.half_life_s, at), Fading(self.half_life_s, at)
        last = LedgerEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
        self._top = max(last - GAPS_MAX // 2, 0)
        for user, project, hours in _sums(self._top, now, self.half_life_s):
            self.users.add(user, hours)
            self.projects.add(project, hours)

    def _follow(self, at: float) -> None:
        rows = LedgerEntry.objects.filter(Q(pk__gt=self._top) | Q(pk__in=list(self._gaps))).order_by("pk")
        until = time.monotonic() + GAP_PATIENCE_S
        for pk, user, project, share, started, ended in rows.values_list("pk", "user_id", "project_id", "share", "started_at", "ended_at"):
            hours = faded_hours(share=share, begin=started.timestamp(), end=ended.timestamp(), now=at, half_life_s=self.half_life_s)
            self.users.add(user, hours)
            self.projects.add(project, hours)
            if pk > self._top:
                self._gaps |= dict.fromkeys(range(max(self._top + 1, pk - GAPS_MAX), pk), until)
                self._top = pk
            else:
                del self._gaps[pk]
        if self._gaps:
            clock = time.monotonic()
            self._gaps = {pk: until for pk, until in list(self._gaps.items())[-GAPS_MAX:] if until > clock}


def _sums(top: int, now: datetime, half_life_s: float) -> Iterable[tuple[int, int, float]]:
    """(user, project, hours left at ``now``) of the ledger up to number ``top``."""
    value, params, where = "gpu_seconds / 3600.0", [], "id <= %s"
    limits: list[object] = [top]
    if half_life_s > 0:
        value = f"share * ({fade_sql('ended_at')} - {fade_sql('started_at')}) * %s"
        params = [moment(now), half_life_s, moment(now), half_life_s, half_life_s / math.log(2) / 3600]
        where += " AND ended_at > %s"
        limits.append(moment(horizon(now, half_life_s)))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT user_id, project_id, SUM({value}) FROM quotas_ledgerentry WHERE {where} "  # noqa: S608 - no user's text is in it
            "GROUP BY user_id, project_id ORDER BY user_id, project_id",
            [*params, *limits],
        )
        return [(user, project, float(hours)) for user, project, hours in cursor.fetchall()]


def horizon(now: datetime, half_life_s: float) -> datetime:
    """What was before this has faded away."""
    return now - timedelta(seconds=min(half_life_s * HALF_LIVES, 50 * 365 * 86_400))


_lock = threading.Lock()
_kept: CardHours | None = None


def card_hours_left(*, now: datetime, half_life_s: float) -> tuple[dict[int, float], dict[int, float]]:
    """(user → hours, project → hours): whole-card hours charged until now, each halved for every half-life since; owners without
    any are left out. One query (three in a process's first call). What runs is not charged yet and not in it."""
    global _kept
    with _lock:
        if _kept is None or _kept.half_life_s != half_life_s:
            _kept = CardHours(half_life_s)
        try:
            return _kept.read(now)
        except Exception:
            _kept = None  # half of a read is in it
            raise


def usage_forget() -> None:
    """Read the ledger anew at the next call: after a restore, and in tests, whose rows vanish."""
    global _kept
    with _lock:
        _kept = None
