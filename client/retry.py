"""When to try again, and how long to wait first. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

#: The control plane, or a proxy before it, is away for a moment.
AWAY = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """``tries`` counts the first one. ``max_wait_s`` bounds all the waiting of one call, Retry-After included."""

    tries: int = 5
    base_s: float = 0.25
    cap_s: float = 8.0
    max_wait_s: float = 60.0

    def delay_s(self, failures: int, jitter: float) -> float:
        """Seconds before the next try after ``failures`` ≥ 1 failed ones: exponential, half of it jittered.

        ``jitter`` in [0, 1). With the defaults the four waits add up to 1.9–3.75 s.
        """
        full = min(self.cap_s, self.base_s * float(2 ** (failures - 1)))
        return full / 2 + full / 2 * jitter


def retry_after_s(value: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks for; None = absent or unreadable. Seconds or an HTTP date."""
    if value is None:
        return None
    text = value.strip()
    if text.isdigit():
        return float(text)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (TypeError, ValueError):
        return None
