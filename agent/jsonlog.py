"""Log lines as JSON, one object a line: for machines that collect logs. The control plane's processes write them alike."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime

#: What each record has anyway; anything else was given as ``extra`` and is told.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """``{"at", "level", "logger", "message", "process", "pid"}``, with ``error`` (kind, text and traceback) of an exception and whatever
    the call gave as ``extra``. ``process``: NEBULA_ROLE (web, worker, beat), or what the maker says."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self.process = process or os.environ.get("NEBULA_ROLE", "")

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": self.process,
            "pid": record.process,
        }
        line |= {name: value for name, value in vars(record).items() if name not in _PLAIN and name not in line}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = {
                "kind": record.exc_info[0].__name__,
                "text": str(record.exc_info[1]),
                "traceback": self.formatException(record.exc_info),
            }
        # A value that is no JSON (a request, a path) is told by its text: a log line never fails.
        return json.dumps(line, ensure_ascii=False, default=str)
