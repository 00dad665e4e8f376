"""Of NebulaClient: secrets, whose values go in and never come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast
from urllib.parse import quote

from client import shapes


class Caller(Protocol):
    """What a group of calls needs of the client."""

    def _call(
        self, method: str, path: str, *, params: Mapping[str, Any] | None = None, body: Any = None, is_repeatable: bool = False
    ) -> Any: ...

    def _pages(self, path: str, filters: Mapping[str, Any]) -> Iterator[Any]: ...


class SecretCalls:
    def secret_list(self: Caller) -> list[shapes.Secret]:
        """The secrets that my jobs may use: mine and those of my projects. Names, never values."""
        return cast("list[shapes.Secret]", list(self._pages("/secrets/", {})))

    def secret_set(self: Caller, name: str, value: str, *, project: str | None = None) -> shapes.Secret:
        """Mine, or of a project that I lead; a name that is there gets this new value."""
        body = {"value": value} | ({"project": project} if project else {})
        return cast(shapes.Secret, self._call("PUT", f"/secrets/{quote(name, safe='')}", body=body, is_repeatable=True))

    def secret_delete(self: Caller, name: str, *, project: str | None = None) -> None:
        """No job gets it from now on."""
        self._call("DELETE", f"/secrets/{quote(name, safe='')}", params={"project": project} if project else {})
