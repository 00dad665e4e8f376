"""Users' words for sizes, times and commands, as numbers and argv lists. Pure; a refusal is a code with its params.

jobs/wording has a sentence for each code; nothing here makes prose.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from quotas.human_text import UNSEEN, is_seen

MAX_INT: Final = 2**31 - 1  # what an integer column of every database holds
MAX_ARGS: Final = 1000
MAX_ARGV_BYTES: Final = 128 * 1024  # Linux refuses one argument above 128 KiB; the whole list stays below it too
MAX_ENV: Final = 200
MAX_ENV_VALUE_BYTES: Final = 32 * 1024
MAX_ENV_BYTES: Final = 128 * 1024

#: Set by the control plane and the agent (D12); a job's own values would be lost, so they are refused.
RESERVED_ENV: Final = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NEBULA_GPU_LIST"})
RESERVED_ENV_PREFIX: Final = "NEBULA_"


class Unreadable(ValueError):
    """The text can't be read as what it should be. ``code`` is one of jobs.wording's, ``params`` its numbers."""

    def __init__(self, code: str, **params: Any) -> None:
        super().__init__(code)
        self.code = code
        self.params = params


def shorten(text: str, length: int = 60) -> str:
    """For a message: the user's text, cut, so that 10 kB of it don't come back."""
    return text if len(text) <= length else text[: length - 1] + "…"


# --- sizes ----------------------------------------------------------------------------------------------------

#: G is 1024 MiB (D1). GB is read the same way: what people write on both.
_UNITS: Final = {"M": 1, "MB": 1, "MIB": 1, "G": 1024, "GB": 1024, "GIB": 1024, "T": 1024 * 1024, "TB": 1024 * 1024, "TIB": 1024 * 1024}
_SIZE: Final = re.compile(r"([0-9]{1,12})(\.[0-9]{1,6})?\s*([A-Za-z]*)")


def size_mib(value: str | int) -> int:
    """``"24G"`` → 24576, ``"512M"`` → 512, ``"1.5G"`` → 1536; a plain number is MiB.

    Raises Unreadable: ``size_unreadable``, ``size_fraction`` (a number with a point and no unit, such as 0.5), ``size_range``.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unreadable("size_unreadable", value=shorten(str(value)))
    text = str(value).strip() if isinstance(value, str) else str(value)
    found = _SIZE.fullmatch(text)
    if found is None:
        raise Unreadable("size_unreadable", value=shorten(text))
    whole, fraction, unit = found[1], found[2], found[3].upper()
    if not unit:
        if fraction:
            raise Unreadable("size_fraction", value=shorten(text))
        mib = int(whole)
    elif unit in _UNITS:
        # Whole MiB, rounded up: nobody gets less than they asked for. Integers throughout, so that 0.1G is 103 MiB everywhere.
        digits = (fraction or ".0")[1:]
        mib = -(-(int(whole + digits) * _UNITS[unit]) // 10 ** len(digits))
    else:
        raise Unreadable("size_unreadable", value=shorten(text))
    if not 1 <= mib <= MAX_INT:
        raise Unreadable("size_range", value=shorten(text))
    return mib


def size_or_share(value: str | int) -> int | Fraction:
    """As ``size_mib``; a number with a point and without a unit is a share of a GPU (D27): ``"0.5"`` → 1/2, ``"1.0"`` → 1.

    Raises Unreadable: what ``size_mib`` raises, and ``share_range`` for a share that is not above 0 and at most 1.
    """
    try:
        return size_mib(value)
    except Unreadable as error:
        if error.code != "size_fraction":
            raise
    share = Fraction(str(value).strip())
    if not 0 < share <= 1:
        raise Unreadable("share_range", value=shorten(str(value)))
    return share


# --- times ----------------------------------------------------------------------------------------------------

_CLOCK: Final = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,6}):([0-9]{2})(?::([0-9]{2}))?")
_SPAN: Final = re.compile(
    r"(?:([0-9]{1,6})\s*d)?\s*(?:([0-9]{1,7})\s*h)?\s*(?:([0-9]{1,9})\s*m(?:in)?)?\s*(?:([0-9]{1,10})\s*s)?", re.IGNORECASE
)


def time_s(value: str | int) -> int:
    """Seconds of ``"01:00:00"`` (h:mm:ss), ``"2-12:00:00"`` (days), ``"90m"``, ``"2h"``, ``"1d 6h"`` or ``3600`` (seconds).

    ``"30:00"`` is refused: Slurm reads it as minutes, most people as hours.
    Raises Unreadable: ``time_unreadable``, ``time_ambiguous``, ``time_range``.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unreadable("time_unreadable", value=shorten(str(value)))
    text = value.strip() if isinstance(value, str) else str(value)
    if re.fullmatch(r"[0-9]{1,12}", text):
        seconds = int(text)
    elif (clock := _CLOCK.fullmatch(text)) is not None:
        days, hours, minutes, rest = clock[1], int(clock[2]), int(clock[3]), clock[4]
        if rest is None and days is None:
            raise Unreadable("time_ambiguous", value=shorten(text), hours=f"{text}:00", minutes=f"0:{text}")
        if minutes > 59 or int(rest or 0) > 59 or (days is not None and hours > 23):
            raise Unreadable("time_unreadable", value=shorten(text))
        seconds = int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + int(rest or 0)
    elif text and (span := _SPAN.fullmatch(text)) is not None and any(span.groups()):
        d, h, m, s = (int(part or 0) for part in span.groups())
        seconds = d * 86_400 + h * 3600 + m * 60 + s
    else:
        raise Unreadable("time_unreadable", value=shorten(text))
    if not 1 <= seconds <= MAX_INT:
        raise Unreadable("time_range", value=shorten(text))
    return seconds


# --- commands -------------------------------------------------------------------------------------------------

_OPERATORS: Final = ("&&", "||", ">>", "<<", "$(", "|", "&", ";", "<", ">", "`", "\n", "\r")


def _operator_in(text: str) -> str | None:
    """The first shell operator that stands outside quotes (or that a shell would obey inside double quotes)."""
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        if quote == "'":
            quote = "" if char == "'" else quote
        elif char == "\\":
            at += 1
        elif quote == '"':
            if char == '"':
                quote = ""
            elif char == "`" or text.startswith("$(", at):
                return "`" if char == "`" else text[at : at + 2]
        elif char in "'\"":
            quote = char
        else:
            for operator in _OPERATORS:
                if text.startswith(operator, at):
                    return operator
        at += 1
    return None


def lines_join(text: str) -> str:
    """A backslash at the end of a line goes on with the next one, as in a shell; inside '…' it is text."""
    parts: list[str] = []
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            if text.startswith(("\n", "\r\n"), at + 1):
                at += 2 if text[at + 1] == "\n" else 3
                continue
            parts.append(text[at : at + 2])
            at += 2
            continue
        if char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        parts.append(char)
        at += 1
    return "".join(parts)


def command_split(text: str) -> list[str]:
    """Splits as a shell would split words; no shell ever runs it (D31).

    Raises Unreadable: ``command_operator`` (with the way out: ``-- sh -c '…'``), ``command_quotes``, ``command_empty``.
    """
    text = lines_join(text)
    operator = _operator_in(text.strip())
    if operator is not None:
        raise Unreadable("command_operator", operator={"\n": "\\n", "\r": "\\r"}.get(operator, operator))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise Unreadable("command_quotes") from error
    if not words:
        raise Unreadable("command_empty")
    argv_check(words)
    return words


def argv_check(argv: list[str]) -> None:
    """Raises Unreadable: ``argv_empty``, ``argv_long``, ``argv_large``, ``argv_nul``, ``argv_program``."""
    if not argv:
        raise Unreadable("argv_empty")
    if len(argv) > MAX_ARGS:
        raise Unreadable("argv_long", count=len(argv), limit=MAX_ARGS)
    if any("\0" in word for word in argv):
        raise Unreadable("argv_nul")
    size = sum(len(word.encode("utf-8", "surrogatepass")) + 1 for word in argv)
    if size > MAX_ARGV_BYTES:
        raise Unreadable("argv_large", size=size, limit=MAX_ARGV_BYTES)
    if not argv[0].strip():
        raise Unreadable("argv_program")


# --- environment, names, folders --------------------------------------------------------------------------------

_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


def env_check(env: dict[str, str]) -> None:
    """Raises Unreadable: ``env_many``, ``env_name``, ``env_reserved``, ``env_nul``, ``env_value_large``, ``env_large``."""
    if len(env) > MAX_ENV:
        raise Unreadable("env_many", count=len(env), limit=MAX_ENV)
    total = 0
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise Unreadable("env_name", name=shorten(name))
        if name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIX):
            raise Unreadable("env_reserved", name=shorten(name))
        if "\0" in value:
            raise Unreadable("env_nul", name=shorten(name))
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > MAX_ENV_VALUE_BYTES:
            raise Unreadable("env_value_large", name=shorten(name), size=size, limit=MAX_ENV_VALUE_BYTES)
        total += size + len(name) + 2
    if total > MAX_ENV_BYTES:
        raise Unreadable("env_large", size=total, limit=MAX_ENV_BYTES)


MAX_SECRETS: Final = 50
_SECRET: Final = re.compile(r"(project/)?([A-Za-z][A-Za-z0-9_-]{0,63})(?:=([A-Za-z_][A-Za-z0-9_]{0,254}))?")


def secret_split(text: str) -> tuple[str, str | None, bool]:
    """``"token"`` → ("token", None, False), a file; ``"token=HF_TOKEN"`` → ("token", "HF_TOKEN", False), a variable;
    ``"project/token"`` → ("token", None, True), the project's alone.

    Raises Unreadable: ``secret_unreadable``.
    """
    found = _SECRET.fullmatch(text)
    if found is None:
        raise Unreadable("secret_unreadable", value=shorten(text))
    return found[2], found[3], found[1] is not None


def secrets_check(texts: list[str], env: Mapping[str, str]) -> list[str]:
    """In the order of their names, each once.

    Raises Unreadable: ``secret_unreadable``, ``secrets_many``, ``env_reserved``, ``secret_twice`` (two values for one variable or file).
    """
    if len(texts) > MAX_SECRETS:
        raise Unreadable("secrets_many", count=len(texts), limit=MAX_SECRETS)
    places: set[str] = set()
    whose: dict[str, bool] = {}
    for text in sorted(set(texts)):
        name, variable, of_project = secret_split(text)
        if whose.setdefault(name, of_project) != of_project:  # values travel by their names
            raise Unreadable("secret_twice", place=shorten(name))
        place = name if variable is None else f"${variable}"
        if variable is not None and (variable in RESERVED_ENV or variable.startswith(RESERVED_ENV_PREFIX)):
            raise Unreadable("env_reserved", name=shorten(variable))
        if place in places or variable in env:
            raise Unreadable("secret_twice", place=shorten(place))
        places.add(place)
    return sorted(set(texts))


def name_check(name: str) -> str:
    """A name is stored as it is: quotes, ``$(…)`` and right-to-left text are text. Control characters and direction marks are refused.

    Raises Unreadable: ``name_length``, ``name_control``.
    """
    if not 1 <= len(name) <= 200 or not name.strip():
        raise Unreadable("name_length", length=len(name), limit=200)
    if not is_seen(name) or set(name) & set("\t\r\n"):
        raise Unreadable("name_control")
    return name


def name_from_argv(argv: list[str]) -> str:
    """A job without a name is called after its program."""
    last = argv[0].rstrip("/").rsplit("/", 1)[-1] or argv[0]
    clean = UNSEEN.sub("", last).translate({9: None, 10: None, 13: None}).strip()
    return clean[:200] or "job"


def path_check(path: str, *, absolute: bool) -> str:
    """Raises Unreadable: ``path_long``, ``path_nul``, ``path_relative``."""
    if len(path) > 4096 or len(path.encode("utf-8", "surrogatepass")) > 4096:
        raise Unreadable("path_long", limit=4096)
    if any(ord(char) < 32 for char in path):
        raise Unreadable("path_nul")
    if absolute and path and not path.startswith("/"):
        raise Unreadable("path_relative", value=shorten(path))
    return path
