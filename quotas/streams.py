"""Answers in pieces, and files made for one answer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

CHUNK = 262_144


async def in_threads(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Under ASGI a plain iterator would be read into memory as a whole before its first byte is sent."""
    take = sync_to_async(lambda: next(chunks, b""), thread_sensitive=False)
    while data := await take():
        yield data


def file_answer(request: HttpRequest, parts: Iterable[bytes], *, name: str, content_type: str) -> StreamingHttpResponse:
    """``parts`` as a download. They are written into a file without a name first: the database is asked in this request, not by
    threads that come and go while somebody reads slowly. ``name``: ours, plain ASCII."""
    with tempfile.TemporaryFile() as file:
        length = sum(file.write(part) for part in parts)
        file.flush()
        chunks = _Chunks(os.dup(file.fileno()))
    answer = StreamingHttpResponse(in_threads(chunks) if isinstance(request, ASGIRequest) else chunks, content_type=content_type)
    answer._resource_closers.append(chunks.close)  # type: ignore[attr-defined]
    answer["Content-Length"] = str(length)
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


class _Chunks:
    """A file's pieces from its beginning. It is closed after the last one, or with this object: an answer may never be read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._at = descriptor, 0

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> bytes:
        data = os.pread(self._descriptor, CHUNK, self._at) if self._descriptor >= 0 else b""
        self._at += len(data)
        if not data:
            self.close()
            raise StopIteration
        return data

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close
