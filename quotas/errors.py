"""What a user did that can't be done: a code and the numbers. Put into words, in the reader's language, at the edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class DomainError(Exception):
    """The request can't be done.

    ``code`` is stable and for programs, ``params`` are the numbers of the sentence, ``http_status`` is the API's answer.
    """

    default_code: ClassVar[str] = "refused"
    default_status: ClassVar[int] = 400

    def __init__(self, code: str | None = None, http_status: int | None = None, params: Mapping[str, Any] | None = None) -> None:
        self.code = code or self.default_code
        self.http_status = http_status or self.default_status
        self.params: dict[str, Any] = dict(params or {})
        super().__init__(f"{self.code} {self.params}" if self.params else self.code)


class QuotaExceeded(DomainError):
    """A limit is reached. params: ``used``, ``limit``, ``resets_at`` (ISO time; None = it does not reset), and what is
    counted as ``what``: gpu_hours | active_jobs | cards. Always 403, never 429 (D17)."""

    default_code = "quota_exceeded"
    default_status = 403
