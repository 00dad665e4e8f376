"""Words and paths that are no UTF-8: JSON can't carry them, so they are refused with their name before anything is sent.

Python keeps the odd bytes of a command line, a path or a variable as half surrogates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from client.errors import UsageFault
from client.i18n import _


def is_text(text: str) -> bool:
    """Whether it can be told in UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def bytes_shown(text: str) -> str:
    """A word that is no text, with its odd bytes spelled out: ``caf\\xe9``."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a pair that stands for no byte
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return raw.decode("utf-8", "backslashreplace")


def body_encode(body: Mapping[str, Any]) -> bytes:
    """The body as JSON. Raises UsageFault, which names the field that is no text."""
    try:
        return json.dumps(body, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        field, value = next(_odd("", body), ("", ""))
        message = _("{field} is not UTF-8: {value}. Rename the file, or put the command into a script with a plain name.")
        raise UsageFault("not_utf8", message.format(field=field, value=bytes_shown(value)), {"field": field}) from error


def _odd(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """(field, text) of what is no text: ``argv[2]``, ``env.NAME``."""
    if isinstance(value, str):
        if not is_text(value):
            yield place, value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            if not is_text(str(key)):
                yield place, str(key)
            yield from _odd(f"{place}.{key}" if place else str(key), below)
    elif isinstance(value, Sequence):
        for number, below in enumerate(value):
            yield from _odd(f"{place}[{number}]", below)
