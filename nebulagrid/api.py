"""What every answer under /api/ has in common: one error shape. And /healthz. What comes in is read by nebulagrid/wire.py.

Errors are ``{"code", "message", "fields"}``: code for programs, message one clear sentence in the reader's language,
fields what is wrong where (or the numbers behind the message).
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import redis
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import OperationalError, connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponsePermanentRedirect, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import Resolver404, resolve
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import set_rollback

from jobs import refusals
from jobs.errors import BadRequest, NeverFits
from nebulagrid.missing import missing_text
from nebulagrid.wire import TooLarge
from quotas.disk_state import disk_full, disk_states

log = logging.getLogger(__name__)

API_PREFIX = "/api/"


def error_body(code: str, message: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "fields": dict(fields or {})}


# --- errors ---------------------------------------------------------------------------------------------------


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
        return error_body("never_fits", refusals.error_text(error.code, params), {"reason": error.code, **params})
    message = refusals.error_text(error.code, params)
    if message == error.code:
        message = getattr(error, "message", "") or message
    if isinstance(error, BadRequest):
        name = error.field or "non_field_errors"
        return error_body("invalid", f"{error.field}: {message}" if error.field else message, {name: [message]})
    return error_body(error.code, message, params)


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """DRF's hook: whatever a view raises, in the one shape. None = not ours: Django's 500 answers."""
    if context.get("request") is not None:
        context["request"].accepted_renderer = JSONRenderer()  # also for a page of documentation or a file
    headers: dict[str, str] = {}
    if isinstance(error, Http404) or (isinstance(error, exceptions.NotFound) and error.detail == exceptions.NotFound.default_detail):
        error = exceptions.NotFound(missing_text(context.get("request")))
    elif isinstance(error, RequestDataTooBig):
        error = TooLarge()
    elif isinstance(error, OperationalError):
        # The database is away or busy beyond its time-out: nothing was done, the client may repeat.
        log.exception("the database did not answer")
        set_rollback()
        if (full := disk_full(fresh=True)) is not None:
            refusal = full.refusal()
            return Response(error_body(refusal.code, refusal.message), status=refusal.http_status, headers={"Retry-After": "60"})
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
    is_signed_in = getattr(getattr(request, "user", None), "is_authenticated", False)
    name = f"errors/{status.value}.html" if is_signed_in else f"errors/{status.value}_signed_out.html"
    return render(request, name, {"message": message, "status": status.value, "back": _page_before(request)}, status=status)


def _page_before(request: HttpRequest) -> str:
    """The page of ours that led here, by the Referer; "" = none, or this very one."""
    before = urlsplit(request.headers.get("Referer", ""))
    if before.netloc != request.get_host() or before.path == request.path or not before.path.startswith("/"):
        return ""
    return before.path + (f"?{before.query}" if before.query else "")


def handler400(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, HTTPStatus.BAD_REQUEST, "bad_request", _("The request can't be understood."))


def handler403(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, HTTPStatus.FORBIDDEN, "permission_denied", _("You may not do this."))


def handler404(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _answer(request, HTTPStatus.NOT_FOUND, "not_found", missing_text(request))


def handler500(request: HttpRequest) -> HttpResponse:
    if isinstance(sys.exc_info()[1], OperationalError):
        # Away, or busy beyond its time-out, in the middle of a page or of what an agent sent: nothing was done, it may be repeated.
        return _database_away(request)
    message = _("The control plane failed to answer; what went wrong is in its log.")
    if request.path.startswith(API_PREFIX):
        return JsonResponse(error_body("internal", message), status=HTTPStatus.INTERNAL_SERVER_ERROR)
    # No request in the context: a context processor may be what failed.
    words = {"title": _("Something went wrong"), "message": message}
    return HttpResponse(render_to_string("errors/500.html", words), status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _database_away(request: HttpRequest) -> HttpResponse:
    code, message = "database_away", _("The database does not answer; try again in a moment.")
    status, headers = int(HTTPStatus.SERVICE_UNAVAILABLE), {"Retry-After": "2"}
    if (full := disk_full(fresh=True)) is not None:
        refusal = full.refusal()
        code, message, status, headers = refusal.code, refusal.message, refusal.http_status, {"Retry-After": "60"}
    if request.path.startswith(API_PREFIX):
        return JsonResponse(error_body(code, message), status=status, headers=headers)
    words = {"title": _("Not available now"), "message": message}
    return HttpResponse(render_to_string("errors/500.html", words), status=status, headers=headers)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _answer(
        request, HTTPStatus.FORBIDDEN, "csrf_failed", _("The form has expired or came from another site; load the page again and repeat.")
    )


@csrf_exempt
def api_not_found(request: HttpRequest) -> HttpResponse:
    """Last route below /api/: keeps APPEND_SLASH from answering a POST to a wrong address with a redirect."""
    other = request.path.rstrip("/") if request.path.endswith("/") else request.path + "/"
    try:
        is_known = resolve(other).func is not api_not_found
    except Resolver404:
        is_known = False
    if is_known:
        message = _("There is nothing at this address. Did you mean %(address)s?") % {"address": other}
        return JsonResponse(error_body("not_found", message), status=HTTPStatus.NOT_FOUND)
    return handler404(request)


@csrf_exempt
def api_moved(request: HttpRequest, rest: str) -> HttpResponse:
    """``/v1/…``, as early drafts of the API had it: 308, which keeps method and body. The target is always below /api/v1/."""
    query = request.META.get("QUERY_STRING", "")
    return HttpResponsePermanentRedirect(f"/api/v1/{quote(rest, safe='/')}" + (f"?{query}" if query else ""), preserve_request=True)


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
    """200 while the database answers and the disks take files; Redis carries hints only, so without it the service is still up.

    A full disk is named by what is on it, not by its path: anybody may ask."""
    database, hints = _database_state(), _redis_state()
    full = [state.place for state in disk_states() if state.is_full]
    status = HTTPStatus.OK
    if database != "ok":
        status = HTTPStatus.SERVICE_UNAVAILABLE
    elif full:
        status = HTTPStatus.INSUFFICIENT_STORAGE
    body = {
        "status": "ok" if status == HTTPStatus.OK else "unavailable",
        "database": database,
        "redis": hints,
        "disk": f"full: {', '.join(full)}" if full else "ok",
    }
    answer = JsonResponse(body, status=status)
    answer["Cache-Control"] = "no-store"
    return answer
