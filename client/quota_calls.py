"""The client's calls about limits, requests for more, statements, and jobs like earlier ones. A part of NebulaClient."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, cast

from client import shapes


class QuotaCalls:
    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        is_repeatable: bool = False,
        is_anonymous: bool = False,
        base: str = "",
    ) -> Any:
        raise NotImplementedError

    def _pages(self, path: str, filters: Mapping[str, Any]) -> Iterator[Any]:
        raise NotImplementedError

    def _bytes(
        self, path: str, params: Mapping[str, Any], *, method: str = "GET", body: Mapping[str, Any] | None = None
    ) -> Iterator[bytes]:
        raise NotImplementedError

    def job_clone_body(self, job_id: int) -> dict[str, Any]:
        """An earlier job as the ``body`` of a new one, ``left_out`` variables, and ``advice`` on its memory or None."""
        return cast("dict[str, Any]", self._call("GET", f"/jobs/{int(job_id)}/clone"))

    def job_clone(self, job_id: int, *, right_size: bool = False, idempotency_key: str | None = None, **changes: Any) -> shapes.Job:
        """Submit a job like an earlier one; ``changes``: ``job_submit``'s fields that shall be other (``env`` adds to the earlier).
        ``right_size``: ask for the memory that the last runs of its name suggest, if they do."""
        body = {**{name: value for name, value in changes.items() if value is not None}, **({"right_size": True} if right_size else {})}
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return cast(shapes.Job, self._call("POST", f"/jobs/{int(job_id)}/clone", body=body, headers=headers, is_repeatable=True))

    def quota(self) -> dict[str, Any]:
        """My limits with what is used of them, those of my projects, and how many requests of mine are open."""
        return cast("dict[str, Any]", self._call("GET", "/quota"))

    def quota_request_create(
        self, *, what: str, amount: int, why: str, model: str = "", until: str | None = None, project: str | None = None
    ) -> dict[str, Any]:
        """Ask for ``amount`` more of gpu_hours, cards, active_jobs, or model_cards of ``model``, until a time (the month's end)."""
        body: dict[str, Any] = {"what": what, "amount": amount, "why": why}
        body |= {name: value for name, value in (("model", model), ("until", until), ("project", project)) if value}
        return cast("dict[str, Any]", self._call("POST", "/quota/requests/", body=body))

    def quota_request_list(self) -> list[dict[str, Any]]:
        """Mine, of projects that I lead, and for staff all; the newest first."""
        return cast("list[dict[str, Any]]", list(self._pages("/quota/requests/", {})))

    def quota_request_decide(
        self, request: int, *, decision: str, amount: int | None = None, until: str | None = None, note: str = ""
    ) -> dict[str, Any]:
        """approve or decline it, at the step that is mine to decide."""
        body: dict[str, Any] = {"decision": decision, "note": note}
        body |= {name: value for name, value in (("amount", amount), ("until", until)) if value is not None}
        return cast("dict[str, Any]", self._call("POST", f"/quota/requests/{int(request)}/decide", body=body))

    def quota_request_withdraw(self, request: int) -> dict[str, Any]:
        """Take my request back while it is open."""
        return cast("dict[str, Any]", self._call("POST", f"/quota/requests/{int(request)}/withdraw"))

    def storage(self) -> dict[str, Any]:
        """What the files and output of my jobs take on the control plane, against the limits; of projects that I lead, too."""
        return cast("dict[str, Any]", self._call("GET", "/usage/storage"))

    def job_artifacts_remove(self, job_id: int) -> None:
        """Remove all files of a job that has ended: there is room for others then."""
        self._call("DELETE", f"/jobs/{int(job_id)}/artifacts", is_repeatable=True)

    def statement(self, *, month: str | None = None, user: str | None = None, project: str | None = None) -> dict[str, Any]:
        """What was used in a month ("2026-07"; this one), by user, project and card model; figures are texts with exact decimals."""
        return cast("dict[str, Any]", self._call("GET", "/usage/statement", params=_given(month=month, user=user, project=project)))

    def statement_csv(self, *, month: str | None = None, user: str | None = None, project: str | None = None) -> str:
        """The same as the text of a CSV file."""
        found = b"".join(self._bytes("/usage/statement.csv", _given(month=month, user=user, project=project)))
        return found.decode("utf-8-sig")


def _given(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
