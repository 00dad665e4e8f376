"""What every answer under /api/ has in common: one error shape, one pagination, strict JSON. And /healthz.

Errors are ``{"code", "message", "fields"}``: code for programs, message one clear sentence in the reader's language,
fields what is wrong where (or the numbers behind the message).
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import redis
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import OperationalError, connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from rest_framework import exceptions
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.pagination import PageNumberPagination
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import set_rollback

from jobs import wording
from jobs.errors import BadRequest, NeverFits

log = logging.getLogger(__name__)

BODY_LIMIT = 2 * 1024 * 1024  # an argv and an environment at their limits fit in twice
API_PREFIX = "/api/"


def error_body(code: str, message: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "fields": dict(fields or {})}


# --- in ---------------------------------------------------------------------------------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")


def _text_check(value: Any, where: str) -> None:
    """Refuses what no database column and no program argument can hold: NUL and half a surrogate pair."""
    if isinstance(value, str):
        if "\0" in value:
            raise exceptions.ValidationError({where or "body": [_("It has a NUL character, which can't be stored.")]})
        if _SURROGATE.search(value):
            raise exceptions.ValidationError({where or "body": [_("It has half of a surrogate pair, which is no text.")]})
    elif isinstance(value, dict):
        for key, inner in value.items():
            _text_check(key, where or "body")
            _text_check(inner, where or key[:60])
    elif isinstance(value, list):
        for inner in value:
            _text_check(inner, where)


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
            raise exceptions.ParseError(_("The body is not UTF-8."), code="not_json") from error
        except RecursionError as error:
            raise exceptions.ParseError(_("The body is nested too deeply."), code="not_json") from error
        except ValueError as error:
            line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
            where = _(" (line %(line)d, column %(column)d)") % {"line": line, "column": column} if line else ""
            raise exceptions.ParseError(_("The body is not valid JSON%(where)s.") % {"where": where}, code="not_json") from error
        if not isinstance(value, dict):
            raise exceptions.ParseError(_("The body must be a JSON object."), code="not_json")
        if b"\\u" in raw or b"\\U" in raw:  # only an escape can make a NUL or half a pair
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
        # A body without a content type (curl -d with none, an empty POST) is taken as JSON; another type is a 415.
        kind = (request.content_type or "").split(";")[0].strip().lower()
        if not kind or kind == "application/json":
            return parsers[0]
        return next((parser for parser in parsers if parser.media_type == kind), None)

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


# --- out --------------------------------------------------------------------------------------------------------


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


def _first_sentence(detail: Any, path: str = "") -> str:
    """The first problem of a DRF error tree, naming its field: ``gpu_count: A valid integer is required.``"""
    if isinstance(detail, Mapping):
        for key, inner in detail.items():
            name = path if key == "non_field_errors" else f"{path}.{key}" if path else str(key)
            text = _first_sentence(inner, name)
            if text:
                return text
        return ""
    if isinstance(detail, list | tuple):
        return next((text for inner in detail if (text := _first_sentence(inner, path))), "")
    return f"{path}: {detail}" if path else str(detail)


def _validation_body(detail: Any) -> dict[str, Any]:
    fields = detail if isinstance(detail, Mapping) else {"non_field_errors": detail}
    return error_body("invalid", _first_sentence(detail) or _("The request is not valid."), fields)


def _domain_body(error: Any) -> dict[str, Any]:
    """A refusal of a service: any exception with ``code``, ``http_status`` and ``params``."""
    params: dict[str, Any] = dict(error.params)
    if isinstance(error, NeverFits):
        return error_body("never_fits", wording.error_text(error.code, params), {"reason": error.code, **params})
    message = wording.error_text(error.code, params)
    if message == error.code:
        message = getattr(error, "message", "") or message
    if isinstance(error, BadRequest):
        name = error.field or "non_field_errors"
        return error_body("invalid", f"{error.field}: {message}" if error.field else message, {name: [message]})
    return error_body(error.code, message, params)


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """DRF's hook: whatever a view raises, in the one shape. None = not ours: Django's 500 answers."""
    headers: dict[str, str] = {}
    if isinstance(error, Http404):
        error = exceptions.NotFound()
    elif isinstance(error, RequestDataTooBig):
        error = TooLarge()
    elif isinstance(error, OperationalError):
        # The database is away or busy beyond its time-out: nothing was done, the client may repeat.
        log.exception("the database did not answer")
        set_rollback()
        body = error_body("database_away", _("The database does not answer; try again in a moment."))
        return Response(body, status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "2"})
    if not isinstance(error, exceptions.APIException):
        if not all(hasattr(error, name) for name in ("code", "http_status", "params")):
            return None
        set_rollback()
        return Response(_domain_body(error), status=error.http_status)
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header
    if isinstance(error, exceptions.ValidationError):
        body = _validation_body(error.detail)
    elif isinstance(error, exceptions.Throttled):
        seconds = max(1, math.ceil(error.wait or 1))
        headers["Retry-After"] = str(seconds)
        body = error_body("throttled", _("Too many calls; try again in %(seconds)d s.") % {"seconds": seconds}, {"retry_after_s": seconds})
    else:
        code = error.get_codes()
        body = error_body(code if isinstance(code, str) else error.default_code, _first_sentence(error.detail))
    set_rollback()
    return Response(body, status=error.status_code, headers=headers)


# --- what never reaches a view ------------------------------------------------------------------------------------


def _answer(request: HttpRequest, status: HTTPStatus, code: str, message: str) -> HttpResponse:
    if request.path.startswith(API_PREFIX):
        return JsonResponse(error_body(code, message), status=status)
    return render(request, f"errors/{status.value}.html", {"message": message}, status=status)


def handler400(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, HTTPStatus.BAD_REQUEST, "bad_request", _("The request can't be understood."))


def handler403(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, HTTPStatus.FORBIDDEN, "permission_denied", _("You may not do this."))


def handler404(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, HTTPStatus.NOT_FOUND, "not_found", _("There is nothing at this address."))


def handler500(request: HttpRequest) -> HttpResponse:
    message = _("The control plane failed to answer; what went wrong is in its log.")
    if request.path.startswith(API_PREFIX):
        return JsonResponse(error_body("internal", message), status=HTTPStatus.INTERNAL_SERVER_ERROR)
    # No request in the context: a context processor may be what failed.
    return HttpResponse(_static_500(message), status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _static_500(message: str) -> str:
    from django.template.loader import render_to_string

    return render_to_string("errors/500.html", {"message": message})


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _answer(
        request, HTTPStatus.FORBIDDEN, "csrf_failed", _("The form has expired or came from another site; load the page again and repeat.")
    )


def api_not_found(request: HttpRequest, rest: str = "") -> HttpResponse:
    """Last route below /api/: keeps APPEND_SLASH from answering a POST to a wrong address with a redirect."""
    return handler404(request)


# --- health -------------------------------------------------------------------------------------------------------


def _database_state() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            cursor.fetchone()
    except Exception as error:  # whatever the driver raises, the answer is the same
        log.warning("healthz: the database does not answer: %s", error)
        return "away"
    return "ok"


def _redis_state() -> str:
    try:
        client = redis.Redis.from_url(settings.LIVE_REDIS_URL, socket_timeout=0.5, socket_connect_timeout=0.5)
        try:
            client.ping()
        finally:
            client.close()
    except (redis.RedisError, OSError):
        return "away"
    return "ok"


def healthz(request: HttpRequest) -> JsonResponse:
    """200 while the database answers; Redis carries hints only, so without it the service is still up."""
    database, hints = _database_state(), _redis_state()
    status = HTTPStatus.OK if database == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
    body = {"status": "ok" if database == "ok" else "unavailable", "database": database, "redis": hints}
    answer = JsonResponse(body, status=status)
    answer["Cache-Control"] = "no-store"
    return answer
