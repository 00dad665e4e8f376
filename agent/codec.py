"""Dataclasses ↔ JSON, as the protocol has them: defaults are not sent, unknown keys are ignored, and lists of equal things may
go as columns, which name each field once."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, Self

#: A whole number of this protocol is between minus this and this.
INT_MOST = 2**63 - 1
#: How deep values may lie in one another where the protocol leaves their shape open (``data`` of an event, say).
DEPTH_MOST = 16


class ProtocolError(ValueError):
    """The message is not one of this protocol's."""


def json_read(body: bytes) -> Any:
    """The JSON value in ``body``. Raises ProtocolError.

    A whole number with thousands of digits, which Python refuses to make, is read as infinite: the field that has it is
    refused, and not the whole message.
    """
    try:
        try:
            return json.loads(body)
        except json.JSONDecodeError:
            raise
        except ValueError:  # UnicodeDecodeError is one, and it is raised again below
            return json.loads(body, parse_int=_whole_number)
    except RecursionError:
        raise ProtocolError("the message is nested too deeply") from None
    except ValueError as error:
        raise ProtocolError(f"the message is not JSON: {str(error)[:200]}") from error


def _whole_number(text: str) -> int | float:
    return int(text) if len(text) <= 40 else math.inf


def _open_value(value: Any, where: str, depth: int = 0) -> Any:
    """A value whose shape the protocol leaves open, as it is. Raises ProtocolError where no database and no page could hold it."""
    if depth > DEPTH_MOST:
        raise ProtocolError(f"{where} is nested more than {DEPTH_MOST} deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise ProtocolError(f"{where} is not a finite number")
    if isinstance(value, int) and abs(value) > INT_MOST:
        raise ProtocolError(f"{where} has more than 64 bits")
    if isinstance(value, dict):
        for key, inner in value.items():
            _open_value(inner, f"{where}.{str(key)[:40]}" if depth < 2 else where, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _open_value(inner, where, depth + 1)
    return value


def _decode(kind: Any, value: Any, where: str) -> Any:
    """One JSON value → the annotated Python type. Unknown keys of objects are ignored, so that old reads new."""
    origin = typing.get_origin(kind)
    if kind is Any:
        return _open_value(value, where)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        if value is None and type(None) in options:
            return None
        return _decode(next(o for o in options if o is not type(None)), value, where)
    if origin is Literal:
        if value not in typing.get_args(kind):
            raise ProtocolError(f"{where} is {str(value)[:40]!r}; expected one of {', '.join(map(str, typing.get_args(kind)))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ProtocolError(f"{where} must be a list")
        inner = typing.get_args(kind)[0]
        return tuple(_decode(inner, v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ProtocolError(f"{where} must be an object")
        inner = typing.get_args(kind)[1]
        return {str(k): _decode(inner, v, f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(Any, kind), value, where)
    if isinstance(value, int) and abs(value) > INT_MOST:
        raise ProtocolError(f"{where} has more than 64 bits")  # no database column and no arithmetic of a page could hold it
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ProtocolError(f"{where} is not a finite number")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"{where} must be {kind.__name__}, got {type(value).__name__}")
    return value


_HINTS: dict[type, dict[str, Any]] = {}


T = typing.TypeVar("T")


def from_json(cls: type[T], value: Any, where: str = "message") -> T:
    """A JSON object → ``cls``. Raises ProtocolError naming the field that is missing or of the wrong type."""
    if not isinstance(value, dict):
        raise ProtocolError(f"{where} must be an object")
    hints = _HINTS.get(cls)
    if hints is None:
        hints = _HINTS[cls] = typing.get_type_hints(cls)
    found: dict[str, Any] = {}
    for item in dataclasses.fields(typing.cast(Any, cls)):
        if item.name in value:
            found[item.name] = _decode(hints[item.name], value[item.name], f"{where}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ProtocolError(f"{where}.{item.name} is missing")
    return cls(**found)


#: Class → (field, default) of each of its fields. `dataclasses.fields` for each object would cost more than all the rest.
_FIELDS: dict[type, tuple[tuple[str, Any], ...]] = {}
_PLAIN = frozenset({str, int, bool, type(None)})


def _encode(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        # JSON has no infinity, and the other side refuses it: a figure that is none is one that is not known.
        return value if math.isfinite(value) else None
    fields = _FIELDS.get(kind)
    if fields is None and dataclasses.is_dataclass(kind):
        fields = _FIELDS[kind] = tuple((f.name, f.default) for f in dataclasses.fields(kind))
    if fields is not None:
        found: dict[str, Any] = {}
        for name, default in fields:
            own = getattr(value, name)
            # A default is not sent: it keeps a sync of 8 cards under 2 kB.
            if default is dataclasses.MISSING or own != default:
                found[name] = _encode(own)
        return found
    if isinstance(value, tuple | list):
        return [_encode(v) for v in value]
    if isinstance(value, dict):
        return {k: _encode(v) for k, v in value.items()}
    return value


class Message:
    """Base of all messages: JSON in, JSON out."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return typing.cast("dict[str, Any]", _encode(self))

    @classmethod
    def from_json(cls, value: Any) -> Self:
        return from_json(cls, value, cls.__name__)


# --- lists as columns ---------------------------------------------------------------------------------------------


def columns_of(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Dataclasses of one kind → field → its value in each; a field that has its default in all of them is left out."""
    found: dict[str, list[Any]] = {}
    for item in dataclasses.fields(rows[0]):
        values = [getattr(row, item.name) for row in rows]
        if item.default is dataclasses.MISSING or any(value != item.default for value in values):
            found[item.name] = [_encode(value) for value in values]
    return found


def _is_plain(kind: Any, column: Sequence[Any]) -> bool:
    """Whether all are what the annotation says already: one look a column instead of one walk a value. False means only "look closer"."""
    found = set(map(type, column))
    if kind in (str, str | None):
        return found <= {str} or (kind is not str and found <= _TEXTS)
    if kind in (int, int | None):
        return (found <= {int} or (kind is not int and found <= _NUMBERS)) and all(v is None or -INT_MOST <= v <= INT_MOST for v in column)
    return False


_TEXTS, _NUMBERS = {str, type(None)}, {int, type(None)}


def columns_read(cls: type[T], value: Any, where: str) -> tuple[T, ...]:
    """The other way round. Raises ProtocolError naming the column that is missing, or of another length than the first."""
    if not isinstance(value, dict) or not all(isinstance(column, list) for column in value.values()):
        raise ProtocolError(f"{where} must be an object of lists")
    hints = _HINTS.get(cls)
    if hints is None:
        hints = _HINTS[cls] = typing.get_type_hints(cls)
    columns: dict[str, list[Any]] = {}
    length: int | None = None
    for item in dataclasses.fields(typing.cast(Any, cls)):
        name = item.name
        if name not in value:
            if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                raise ProtocolError(f"{where}.{name} is missing")
            continue
        column = value[name]
        length = len(column) if length is None else length
        if len(column) != length:
            raise ProtocolError(f"{where}.{name} has {len(column)} values, the columns before it {length}")
        if not _is_plain(hints[name], column):
            column = [_decode(hints[name], one, f"{where}.{name}[{i}]") for i, one in enumerate(column)]
        columns[name] = column
    return tuple(cls(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))
