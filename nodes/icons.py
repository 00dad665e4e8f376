"""One SVG sprite from the lucide package's icons: our short name → Lucide's. Made once a process, cached by its hash."""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources
from zipfile import ZipFile

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

ICONS = {
    name: name
    for name in (
        "archive", "arrow-down", "arrow-up", "ban", "bell", "calendar", "check", "clock", "contrast", "copy", "download", "file", "flag",
        "flame", "folder", "ghost", "globe", "hourglass", "info", "key", "keyboard", "link", "list", "lock", "log-out", "mail", "menu",
        "pause", "pencil", "play", "plus", "power", "search", "send", "server", "settings", "shield", "tag", "terminal", "trash", "upload",
        "user", "users", "wrench", "x", "zap", "layers", "table", "history", "image", "eye", "code",
    )
} | {
    "grid": "layout-grid",
    "jobs": "list-video",
    "chip": "cpu",
    "pie": "chart-pie",
    "stamp": "square-check",
    "pulse": "activity",
    "barrier": "construction",
    "octagon": "octagon-minus",
    "okc": "circle-check",
    "badc": "circle-x",
    "stop": "circle-stop",
    "help": "circle-question-mark",
    "warn": "triangle-alert",
    "rotate": "rotate-cw",
    "loader": "loader-circle",
    "flask": "flask-conical",
    "wrap": "text-wrap",
    "bulb": "lightbulb",
    "dots": "ellipsis",
    "book": "book-open",
    "filter": "list-filter",
    "arrow": "arrow-right",
    "down": "chevron-down",
    "right": "chevron-right",
    "left": "chevron-left",
    "bottom": "arrow-down-to-line",
}  # fmt: skip
_FILLED = {"play"}
_SVG = re.compile(r"<svg[^>]*>(.*)</svg>", re.DOTALL)


@functools.cache
def sprite() -> tuple[str, str]:
    """The sprite and its short hash. Raises KeyError when the installed package lacks one of the icons."""
    symbols = []
    with resources.files("lucide").joinpath("lucide.zip").open("rb") as packed, ZipFile(packed) as icons:
        for name, lucide in sorted(ICONS.items()):
            found = _SVG.search(icons.read(f"{lucide}.svg").decode())
            body = re.sub(r"\s+", " ", found[1]).strip() if found else ""
            fill = ' fill="currentColor"' if name in _FILLED else ""
            symbols.append(f'<symbol id="i-{name}" viewBox="0 0 24 24"{fill}>{body}</symbol>')
    text = f'<svg xmlns="http://www.w3.org/2000/svg">{"".join(symbols)}</svg>'
    return text, hashlib.sha256(text.encode()).hexdigest()[:12]


@functools.cache
def sprite_url() -> str:
    return f"{reverse('icons')}?v={sprite()[1]}"


@require_safe
def icons_view(request: HttpRequest) -> HttpResponse:
    """The address carries the hash of the content, so a browser keeps it for a year."""
    return HttpResponse(sprite()[0], content_type="image/svg+xml", headers={"Cache-Control": "public, max-age=31536000, immutable"})
