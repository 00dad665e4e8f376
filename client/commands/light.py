"""Plain reading of plain parameters. Typer's own way imports pydantic: 58 ms, a third of a command's start.

Only flags, texts, numbers, enums and lists of texts or numbers are read here; a parameter of any other kind, or a Typer without
these hooks, keeps Typer's way: slower, not wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from client.i18n import _


class PlainParam:
    """Stands in for Typer's RuntimeParam: ``coerce`` turns the words of the command line into values."""

    def __init__(self, kind: Callable[[str], Any]) -> None:
        self._kind = kind

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        if param.multiple or param.nargs == -1:
            return [self._one(item, param, ctx) for item in value or ()]
        return None if value is None else self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        kind: Any = self._kind
        if kind is bool:
            return value  # the parser gives flags their constant
        if isinstance(kind, type) and issubclass(kind, Enum):
            known = [str(choice.value) for choice in kind]
            if str(value) not in known:
                message = _("{value!r} is not one of {known}").format(value=str(value), known=", ".join(known))
                raise BadParameter(message, ctx=ctx, param=param)
            return kind(value)
        try:
            read = kind(value)
        except ValueError as error:
            message = _("{value!r} is not a whole number") if kind is int else _("{value!r} is not a number")
            raise BadParameter(message.format(value=value), ctx=ctx, param=param) from error
        if kind is not str and ((param.min is not None and not read >= param.min) or (param.max is not None and not read <= param.max)):
            if param.max is None:
                message = _("{value} is too small; the least is {least}").format(value=value, least=param.min)
            else:
                message = _("{value} is outside {least} to {most}").format(value=value, least=param.min, most=param.max)
            raise BadParameter(message, ctx=ctx, param=param)
        return read


def _plain_kind(annotation: Any) -> Any:
    """The reader of this annotation; None = Typer's own."""
    inner = {list[str]: str, list[int]: int}.get(annotation, annotation)
    if inner in (str, int, float, bool) or (isinstance(inner, type) and issubclass(inner, Enum)):
        return inner
    return None


def _nothing(ctx: Any) -> None:
    return None


def lighten(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            # A flag takes no value; Typer would show its type as if it did: --json <bool>.
            param.display_type_rich = _nothing
        kind = _plain_kind(getattr(getattr(param, "type_descriptor", None), "annotation", None))
        if kind is not None and hasattr(param, "get_runtime_param"):
            param.get_runtime_param = partial(PlainParam, kind)
    return params


class LightCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return lighten(super().get_params(ctx))


class LightGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return lighten(super().get_params(ctx))
