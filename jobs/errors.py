"""Why a job's request is refused. Each has a code and the numbers; jobs/wording makes the sentence."""

from __future__ import annotations

from quotas.errors import DomainError, QuotaExceeded

__all__ = ["BadRequest", "EstimatesBusy", "FilesRemain", "IdempotencyConflict", "InvalidState", "NeverFits", "QuotaExceeded"]


class NeverFits(DomainError):
    """No card or node that the pool knows could ever hold it. ``code`` is one of jobs.scheduler.reasons.NEVER with its params."""

    default_code = "never_fits"
    default_status = 400


class InvalidState(DomainError):
    """The job's state does not allow this. params: ``job``, ``state``, ``action``."""

    default_code = "invalid_state"
    default_status = 409


class IdempotencyConflict(DomainError):
    """The Idempotency-Key was used for another body. params: ``job``, the one that it made."""

    default_code = "idempotency_conflict"
    default_status = 409


class BadRequest(DomainError):
    """The request is not one. ``field`` names what is wrong; ``code`` and params are of jobs.parsing."""

    default_code = "invalid"
    default_status = 400

    def __init__(self, code: str | None = None, *, field: str | None = None, params: dict[str, object] | None = None) -> None:
        self.field = field
        super().__init__(code, params=params)


class FilesRemain(DomainError):
    """The disk did not let go of a job's files; they are still counted."""

    default_code = "files_remain"
    default_status = 503


class EstimatesBusy(DomainError):
    """As many estimates are being made as may be at once; a later call gets one."""

    default_code = "estimates_busy"
    default_status = 503
