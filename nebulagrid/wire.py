"""How the API reads a request: strict JSON of bounded size and depth, whatever Accept says; and its pages.

Apart from nebulagrid/api.py because the REST framework imports these classes while it is itself being imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.pagination import PageNumberPagination
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from quotas.human_text import DATA_FIELDS, UNSEEN_JSON, is_seen

BODY_LIMIT = 2 * 1024 * 1024  # an argv and an environment at their limits fit in twice
_SURROGATE = re.compile("[\ud800-\udfff]")


def _text_check(value: Any, where: str, *, is_data: bool = False) -> None:
    """Refuses what no database column and no program argument can hold: NUL and half a surrogate pair; and, in what people will read,
    what they would not see."""
    if isinstance(value, str):
        if "\0" in value:
            raise exceptions.ValidationError({where or "body": [_("It has a NUL character, which can't be stored.")]})
        if _SURROGATE.search(value):
            raise exceptions.ValidationError({where or "body": [_("It has half of a surrogate pair, which is no text.")]})
        if not is_data and not is_seen(value):
            raise exceptions.ValidationError({where or "body": [unseen_text()]})
    elif isinstance(value, dict):
        for key, inner in value.items():
            _text_check(key, where or "body", is_data=is_data)
            _text_check(inner, where or key[:60], is_data=is_data or key in DATA_FIELDS)
    elif isinstance(value, list):
        for inner in value:
            _text_check(inner, where, is_data=is_data)


def unseen_text() -> str:
    return _("It has control characters, or marks that turn the direction of text; leave them out.")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


class JSONParser(BaseParser):
    """JSON in UTF-8, of bounded size and depth; whatever is wrong with a body is a 400 (or 413), never a crash."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        raw: bytes = stream.read(BODY_LIMIT + 1)
        if len(raw) > BODY_LIMIT:
            raise TooLarge()
        try:
            value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
        except UnicodeDecodeError as error:
            values = {
                "byte": f"0x{raw[error.start]:02x}",
                "at": error.start,
                "before": raw[max(0, error.start - 20) : error.start].decode("utf-8", "replace"),
            }
            message = _("The body is not UTF-8: byte %(byte)s at position %(at)d, after %(before)s")
            raise exceptions.ParseError(message % values, code="not_json") from error
        except RecursionError as error:
            raise exceptions.ParseError(_("The body is nested too deeply."), code="not_json") from error
        except ValueError as error:
            line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
            where = _(" (line %(line)d, column %(column)d)") % {"line": line, "column": column} if line else ""
            raise exceptions.ParseError(_("The body is not valid JSON%(where)s.") % {"where": where}, code="not_json") from error
        if not isinstance(value, dict):
            raise exceptions.ParseError(_("The body must be a JSON object."), code="not_json")
        if UNSEEN_JSON.search(raw):
            _text_check(value, "")
        return value


class TooLarge(exceptions.APIException):
    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"

    def __init__(self) -> None:
        super().__init__(_("The body is larger than %(limit)d bytes.") % {"limit": BODY_LIMIT})


class AlwaysJSON(BaseContentNegotiation):
    """The API speaks JSON whatever Accept says: a browser that opens a link sees the answer, not a 406."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        # `curl -d '{…}'` calls its body a form: it is read as JSON, like a body without a type. Another type is a 415.
        kind = (request.content_type or "").split(";")[0].strip().lower()
        if kind in {"", "application/json", "application/x-www-form-urlencoded"}:
            return parsers[0]
        return next((parser for parser in parsers if parser.media_type == kind), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class Pagination(PageNumberPagination):
    """``?page=`` from 1 and ``?page_size=`` up to 200."""

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200

    def get_page_size(self, request: Request) -> int:
        text = request.query_params.get("page_size")
        return self.page_size if text is None else min(_page_number(text, "page_size"), self.max_page_size)

    def get_page_number(self, request: Request, paginator: Any) -> int:
        return _page_number(request.query_params.get("page", "1"), "page")


def _page_number(text: str, field: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise exceptions.ValidationError({field: [_("Must be a whole number from 1.")]})
    return int(text)
