"""What can go wrong, and the exit code that each kind has. One shape: code, message, fields, HTTP status."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """nebula-ctl's exit codes (docs/cli.md)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_SIGNED_IN = 3
    NOT_FOUND = 4
    REFUSED = 5
    UNREACHABLE = 6
    INTERRUPTED = 130
    PIPE_CLOSED = 141


class NebulaError(Exception):
    """The request failed. ``code`` is stable, ``message`` is for people, ``status`` None = no answer came."""

    def __init__(self, code: str, message: str, fields: Mapping[str, Any] | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fields: dict[str, Any] = dict(fields or {})
        self.status = status

    def as_json(self) -> dict[str, Any]:
        """The API's error shape."""
        return {"code": self.code, "message": self.message, "fields": self.fields}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code!r}, status={self.status!r}, message={self.message!r})"


class Unreachable(NebulaError):
    """No usable answer: refused, timed out, cut, or 502/503/504 to the end of the retries."""


class WaitTimeout(NebulaError):
    """``wait`` gave up; the job goes on."""


class ProfileError(NebulaError):
    """The profile can't be read or written, or names no control plane."""


class UsageFault(NebulaError):
    """The command line asks for something that can't be."""


#: Codes decide before the HTTP status does.
_BY_CODE = {
    "never_fits": ExitCode.REFUSED,
    "quota_exceeded": ExitCode.REFUSED,
    "idempotency_conflict": ExitCode.REFUSED,
    "invalid_state": ExitCode.REFUSED,
    "not_signed_in": ExitCode.NOT_SIGNED_IN,
    "insecure_endpoint": ExitCode.USAGE,
    "bad_endpoint": ExitCode.USAGE,
}
_BY_STATUS = {
    400: ExitCode.USAGE,
    413: ExitCode.USAGE,
    415: ExitCode.USAGE,
    422: ExitCode.USAGE,
    401: ExitCode.NOT_SIGNED_IN,
    403: ExitCode.NOT_SIGNED_IN,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.REFUSED,
    502: ExitCode.UNREACHABLE,
    503: ExitCode.UNREACHABLE,
    504: ExitCode.UNREACHABLE,
}


def exit_code_for(error: NebulaError) -> ExitCode:
    """The exit code of a failed request. 429 and 5xx are FAILED: trying again later may help."""
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    if isinstance(error, Unreachable):
        return ExitCode.UNREACHABLE
    if isinstance(error, ProfileError | UsageFault):
        return ExitCode.USAGE
    return _BY_STATUS.get(error.status or 0, ExitCode.FAILED)
