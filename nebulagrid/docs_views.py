"""The documentation and the search over all that a reader may see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.safestring import mark_safe
from django.views.decorators.http import require_safe

from jobs.selectors import jobs_visible_to
from nebulagrid import handbook
from nodes.models import Gpu, GpuState, Node, NodeState
from quotas.models import User
from quotas.selectors import projects_visible_to

#: So many of each kind are shown.
FOUND_MOST = 8
WORDS_MOST = 80


def _folder() -> Path:
    return Path(settings.BASE_DIR) / "docs"


def _contents() -> list[handbook.DocPage]:
    return [page for name in handbook.page_names(_folder()) if (page := handbook.page_read(_folder(), name)) is not None]


@require_safe
@login_required
def docs_index(request: HttpRequest) -> HttpResponse:
    return render(request, "docs/page.html", {"pages": _contents()})


@require_safe
@login_required
def docs_page(request: HttpRequest, name: str) -> HttpResponse:
    html, page = handbook.page_html(_folder(), name), handbook.page_read(_folder(), name)
    if html is None or page is None:
        raise Http404
    body = mark_safe(html)  # noqa: S308 - made of our own files, in which raw HTML is text
    return render(request, "docs/page.html", {"pages": _contents(), "page": page, "body": body})


@require_safe
@login_required
def search(request: HttpRequest) -> HttpResponse:
    """Jobs, nodes, cards, projects, documentation, and for staff people, by their names; ``#12`` goes straight to the job."""
    user = cast(User, request.user)
    text = request.GET.get("q", "").replace("\x00", "").strip()[:WORDS_MOST]
    number = re.fullmatch(r"#?([0-9]{1,18})", text)
    if number is not None and jobs_visible_to(user).filter(pk=int(number[1])).exists():
        return HttpResponseRedirect(reverse("job-detail", args=[int(number[1])]))
    context = {"text": text, "most": FOUND_MOST, **(_found(user, text) if text else {})}
    context["is_empty"] = not any(context.get(kind) for kind in ("jobs", "nodes", "cards", "projects", "people", "docs"))
    return render(request, "search.html", context)


def _found(user: User, text: str) -> dict[str, Any]:
    """A query a kind."""
    # "node03 gpu1" and "node03:1" name a card.
    card = re.fullmatch(r"(\S+?)(?:\s+gpu|:)(\d{1,4})", text, re.IGNORECASE)
    cards = Gpu.objects.exclude(node__state=NodeState.RETIRED).exclude(state=GpuState.MISSING).select_related("node")
    wanted = Q(node__name__iexact=card[1], index=int(card[2])) if card else Q(uuid__icontains=text) | Q(model__icontains=text)
    nodes = Node.objects.exclude(state=NodeState.RETIRED).filter(Q(name__icontains=text) | Q(hostname__icontains=text))
    projects = projects_visible_to(user).filter(Q(name__icontains=text) | Q(title__icontains=text), personal_of__isnull=True)
    people = User.objects.filter(Q(email__icontains=text) | Q(first_name__icontains=text) | Q(last_name__icontains=text))
    return {
        "jobs": list(jobs_visible_to(user).filter(name__icontains=text).select_related("owner").order_by("-pk")[:FOUND_MOST]),
        "nodes": list(nodes.order_by("name")[:FOUND_MOST]),
        "cards": list(cards.filter(wanted).order_by("node__name", "index")[:FOUND_MOST]),
        "projects": list(projects.order_by("name")[:FOUND_MOST]),
        "people": list(people.order_by("email")[:FOUND_MOST]) if user.is_staff else [],
        "docs": handbook.pages_search(_folder(), text, most=FOUND_MOST),
    }
