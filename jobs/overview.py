"""The first page: what is free for the reader now, all cards, the queue, the reader's jobs."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


@login_required
def overview(request: HttpRequest) -> HttpResponse:
    return render(request, "home.html")
