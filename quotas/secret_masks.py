"""What masks the secrets of a job: made once for each set of them, and how much of them one job may have."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection

from django.db.models import Sum
from django.db.models.functions import Length

from quotas.masking import Masks, lines_of
from quotas.models import Secret
from quotas.secrets import KeyMissing, SecretRefused, secret_open

#: Of all secrets of one job together: what masks them takes a second to make then, and some dozens of MiB to keep.
LINES_MOST = 20_000
BYTES_MOST = 1024 * 1024
#: Less than this, sealed, can't have so many lines.
_SURELY_FEW = LINES_MOST * 9
#: All that is kept for jobs that print, in bytes.
KEPT_MOST = 128 * 1024 * 1024


def secrets_weigh(ids: Collection[int]) -> None:
    """Raises SecretRefused when a job with these secrets would have more to mask than can be done. One query, a second one for those
    with long values. What can't be opened counts nothing: no job gets it."""
    rows = Secret.objects.filter(pk__in=set(ids))
    if (rows.aggregate(sealed=Sum(Length("sealed")))["sealed"] or 0) <= _SURELY_FEW:
        return
    values = []
    for row in rows:
        with contextlib.suppress(KeyMissing):
            values.append(secret_open(row))
    if refusal := _too_much(values):
        raise refusal


def _too_much(values: Collection[str]) -> SecretRefused | None:
    size, lines = sum(len(value.encode("utf-8", "surrogatepass")) for value in values), sum(map(lines_of, values))
    if size > BYTES_MOST:
        return SecretRefused("secrets_bytes", params={"size": size, "most": BYTES_MOST})
    if lines > LINES_MOST:
        return SecretRefused("secrets_lines", params={"lines": lines, "most": LINES_MOST})
    return None


class _Kept:
    """The masks that were asked for last, as many as KEPT_MOST holds. Of two threads that want new ones one makes them at a time."""

    def __init__(self) -> None:
        self._masks: OrderedDict[tuple[int, ...], Masks] = OrderedDict()
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def cache_clear(self) -> None:
        with self._lock:
            self._masks.clear()

    def _kept(self, ids: tuple[int, ...]) -> Masks | None:
        with self._lock:
            if ids in self._masks:
                self._masks.move_to_end(ids)
            return self._masks.get(ids)

    def __call__(self, ids: tuple[int, ...]) -> Masks:
        """What masks these secrets: a row never changes its value. One query at the first call. Raises KeyMissing.

        Values that became too many after the job was submitted are not looked for: all of its output is masked then.
        """
        if (masks := self._kept(ids)) is not None:
            return masks
        with self._making:
            if (masks := self._kept(ids)) is not None:
                return masks
            values = [secret_open(row) for row in Secret.objects.filter(pk__in=ids)]
            masks = Masks(values) if _too_much(values) is None else Masks.of_everything()
        with self._lock:
            self._masks[ids] = masks
            weight = sum(kept.weight for kept in self._masks.values())
            while weight > KEPT_MOST and len(self._masks) > 1:
                weight -= self._masks.popitem(last=False)[1].weight
        return masks


masks_for = _Kept()
