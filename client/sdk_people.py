"""Of NebulaClient: tokens, projects and their members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

from client.sdk_secrets import Caller


def _name(text: str) -> str:
    return quote(text, safe="")


class PeopleCalls:
    def token_list(self: Caller) -> list[dict[str, Any]]:
        """My tokens that are good now; their secrets are not kept."""
        return cast("list[dict[str, Any]]", list(self._pages("/tokens/", {})))

    def token_add(
        self: Caller, name: str, *, scopes: Sequence[str] = ("read", "submit"), project: str | None = None, ttl_s: int | None = None
    ) -> dict[str, Any]:
        """A new token with its secret, which is told this once. ``scopes``: read, submit, manage; with ``project`` it is confined to
        what is that project's."""
        body: dict[str, Any] = {"name": name, "scopes": list(scopes)}
        body |= {key: value for key, value in (("project", project), ("ttl_s", ttl_s)) if value is not None}
        return cast("dict[str, Any]", self._call("POST", "/tokens/", body=body))

    def token_end(self: Caller, token_id: int) -> None:
        """One of my tokens opens nothing from now on."""
        self._call("DELETE", f"/tokens/{int(token_id)}")

    def token_jwt(self: Caller, *, ttl_s: int = 900, scopes: Sequence[str] | None = None) -> dict[str, Any]:
        """A JWT of at most 900 s to hand on; it never has more scopes than this client's token."""
        body: dict[str, Any] = {"ttl_s": ttl_s} | ({} if scopes is None else {"scopes": list(scopes)})
        return cast("dict[str, Any]", self._call("POST", "/token/jwt", body=body))

    def project_list(self: Caller) -> list[dict[str, Any]]:
        """Mine; staff see all."""
        return cast("list[dict[str, Any]]", list(self._pages("/projects/", {})))

    def project_get(self: Caller, name: str) -> dict[str, Any]:
        """With its members."""
        return cast("dict[str, Any]", self._call("GET", f"/projects/{_name(name)}"))

    def project_create(self: Caller, name: str, *, title: str = "", lead: str | None = None) -> dict[str, Any]:
        """``lead``: an e-mail address, by default mine. Staff."""
        body = {"name": name, "title": title} | ({"lead": lead} if lead else {})
        return cast("dict[str, Any]", self._call("POST", "/projects/", body=body))

    def project_change(self: Caller, name: str, *, title: str | None = None, is_active: bool | None = None) -> dict[str, Any]:
        """None leaves as it is. Leads and staff."""
        body = {key: value for key, value in (("title", title), ("is_active", is_active)) if value is not None}
        return cast("dict[str, Any]", self._call("PATCH", f"/projects/{_name(name)}", body=body, is_repeatable=True))

    def member_add(self: Caller, project: str, *, email: str, role: str = "user") -> dict[str, Any]:
        """``role``: lead, user or viewer. Leads and staff."""
        return cast("dict[str, Any]", self._call("POST", f"/projects/{_name(project)}/members", body={"email": email, "role": role}))

    def member_change(self: Caller, project: str, user_id: int, *, role: str) -> dict[str, Any]:
        path = f"/projects/{_name(project)}/members/{int(user_id)}"
        return cast("dict[str, Any]", self._call("PATCH", path, body={"role": role}, is_repeatable=True))

    def member_remove(self: Caller, project: str, user_id: int) -> None:
        """Jobs go on; the tokens that the member made for the project end."""
        self._call("DELETE", f"/projects/{_name(project)}/members/{int(user_id)}")
