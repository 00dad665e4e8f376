"""Headers that keep a browser from doing what no page of ours needs, and the reader's language."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, timedelta, tzinfo
from datetime import timezone as fixed_zone
from http import HTTPStatus
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render
from django.utils import timezone, translation
from django.utils.decorators import sync_and_async_middleware
from django.utils.translation import gettext as _

from quotas.human_text import DATA_FIELDS, is_seen, text_shown

GetResponse = Callable[[HttpRequest], Any]

_BASE = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'; img-src 'self' data:; "
#: Widths and positions of bars are style attributes; <style> blocks and any inline script are refused.
#: The two <style> elements that plotly makes: an empty one, whose rules it writes through the CSSOM (no policy watches that), and
#: that of its maps, which it writes whenever it is loaded. A test compares them with the package.
STYLES = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' 'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
CSP = _BASE + f"script-src 'self'; style-src 'self' {STYLES}; style-src-attr 'unsafe-inline'"
#: The admin's Alpine.js evaluates its attributes as expressions and writes a <style> block; its scripts still come from here only.
CSP_ADMIN = _BASE + "script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'"
ADMIN_PREFIX = "/admin/"
API_PREFIX = "/api/"


def headers_set(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    response.headers.setdefault("Content-Security-Policy", CSP_ADMIN if request.path.startswith(ADMIN_PREFIX) else CSP)
    response.headers.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    if request.path.startswith(API_PREFIX) or response.headers.get("Content-Type", "").startswith("text/html"):
        # Answers differ from user to user, and a page's address also answers with a piece of it: "back" must show neither
        # that piece nor, after a sign-out, what the one before saw.
        response.headers.setdefault("Cache-Control", "no-store")
    return response


def _refusal(request: HttpRequest) -> HttpResponse | None:
    """A NUL in an address: PostgreSQL refuses it as text, which would end as a 500."""
    if "\0" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
        message = _("The address has a NUL character.")
        return JsonResponse({"code": "invalid", "message": message, "fields": {}}, status=HTTPStatus.BAD_REQUEST)
    return None


@sync_and_async_middleware
def security_headers(get_response: GetResponse) -> GetResponse:
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return headers_set(request, _refusal(request) or await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        return headers_set(request, _refusal(request) or get_response(request))

    return answer


def user_language(get_response: GetResponse) -> Callable[[HttpRequest], HttpResponseBase]:
    """On pages, a user's own language goes before the browser's; a choice made on this device (cookie) goes before both.

    The API follows Accept-Language alone: a program says what it wants. Causes the session's queries, which pages have anyway.
    """

    def answer(request: HttpRequest) -> HttpResponseBase:
        if (
            not request.path.startswith(API_PREFIX)
            and settings.LANGUAGE_COOKIE_NAME not in request.COOKIES
            and request.user.is_authenticated
        ):
            wanted = request.user.language
            if wanted in dict(settings.LANGUAGES):
                translation.activate(wanted)
                request.LANGUAGE_CODE = wanted
        response: HttpResponseBase = get_response(request)
        return response

    return answer


def _zone_of(request: HttpRequest) -> ZoneInfo:
    """The user's own zone, else the browser's (static/js/theme.js keeps it in a cookie), else the installation's."""
    own = request.user.zone if request.user.is_authenticated else ""
    for name in (own, request.COOKIES.get("zone", "").replace("%2F", "/")):
        try:
            if name:
                return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            continue  # a cookie may say anything
    return ZoneInfo(settings.INSTALLATION_ZONE)


_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")


def _zone_asked(request: HttpRequest) -> tzinfo:
    """``Time-Zone: Asia/Shanghai`` or ``+08:00``; UTC without it, and for what is no zone."""
    name = request.headers.get("Time-Zone", "")[:64]
    offset = _OFFSET.fullmatch(name)
    try:
        if offset is not None:
            shift = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
            return fixed_zone(-shift if offset[1] == "-" else shift)
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def user_zone(get_response: GetResponse) -> Callable[[HttpRequest], HttpResponseBase]:
    """Pages tell times in the reader's zone; the API speaks UTC. Its sentences are in the zone of the header ``Time-Zone``."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        if request.path.startswith(API_PREFIX):
            with timezone.override(_zone_asked(request)):
                response: HttpResponseBase = get_response(request)
        else:
            with timezone.override(_zone_of(request)):  # threads are used again: what is set must be taken back
                response = get_response(request)
        return response

    return answer


class SeenText:
    """Forms, those of the administration included: what people will read has nothing in it that they would not see. The API's bodies are
    looked at where they are read (nebulagrid/wire.py)."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: dict[str, Any]) -> HttpResponseBase | None:
        if request.method != "POST" or request.path.startswith(API_PREFIX):
            return None
        for name, values in request.POST.lists():
            if name not in DATA_FIELDS and not all(is_seen(value) for value in values):
                message = _("%(field)s: it has control characters, or marks that turn the direction of text; leave them out.")
                shown = {"field": text_shown(name)[:60], "message": message % {"field": text_shown(name)[:60]}}
                return render(request, "errors/400.html", shown, status=HTTPStatus.BAD_REQUEST)
        return None
