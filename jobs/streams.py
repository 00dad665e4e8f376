"""Answers whose parts come one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.utils import timezone, translation

from quotas.streams import in_threads


def lines_stream(request: HttpRequest, lines: Iterator[bytes]) -> StreamingHttpResponse:
    """JSON lines (https://jsonlines.org), each sent as soon as it is there. Call within the request: its language and zone are kept."""
    found = _Spoken(lines)
    answer = StreamingHttpResponse(in_threads(found) if isinstance(request, ASGIRequest) else found, content_type="application/x-ndjson")
    answer["X-Accel-Buffering"] = "no"  # a proxy that gathers lines would make one answer of them
    return answer


class _Spoken:
    """``lines`` in the language and zone of the request, which are over by the time that a line is asked for."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._language = translation.get_language() or "en"
        self._zone = timezone.get_current_timezone()

    def __iter__(self) -> _Spoken:
        return self

    def __next__(self) -> bytes:
        with translation.override(self._language), timezone.override(self._zone):
            return next(self._lines)
