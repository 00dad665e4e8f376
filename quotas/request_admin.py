"""Approvals in the admin: a page at the front with all that waits, decided one by one or many at once; and every request to look at."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from quotas import approvals
from quotas.models import QuotaRequest, QuotaRequestEvent, User
from quotas.readonly_admin import ReadOnlyAdmin
from quotas.request_words import ask_text, granted_text, owner_text


def ids_of(values: Any) -> list[int]:
    return [int(text) for text in values if text.isascii() and text.isdigit() and len(text) < 19]


def front(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the admin's first page shows besides its list of models (UNFOLD DASHBOARD_CALLBACK). One query."""
    return context | {"approvals": approvals.waiting_for(cast(User, request.user))}


@admin.register(QuotaRequest)
class QuotaRequestAdmin(ReadOnlyAdmin):
    list_display = ("id", "asks", "whose", "by", "state", "granted", "granted_until", "created_at", "decided_by")
    list_display_links = ("id", "asks")
    list_select_related = ("by", "decided_by", "quota__user", "quota__project")
    list_filter = ("state", "what")
    search_fields = ("by__email", "project__name", "why")
    actions = ("approve", "decline")
    exclude = ("nonce",)

    @admin.display(description=_("asks for"))
    def asks(self, row: QuotaRequest) -> str:
        return ask_text(row)

    @admin.display(description=_("for"))
    def whose(self, row: QuotaRequest) -> str:
        return owner_text(row.quota)

    @admin.display(description=_("granted"))
    def granted(self, row: QuotaRequest) -> str:
        return granted_text(row) if row.granted_amount else "–"

    def get_urls(self) -> list[URLPattern]:
        own = [path("approvals/", self.admin_site.admin_view(self.approvals_view), name="quotas_approvals")]
        return [*own, *super().get_urls()]

    def approvals_view(self, request: HttpRequest) -> HttpResponse:
        """GET shows what waits; POST decides what was chosen, and comes back."""
        if request.method == "POST":
            act = request.POST.get("act", "")
            chosen = ids_of(request.POST.getlist("id"))
            if one := request.POST.get("approve") or request.POST.get("decline"):
                act, chosen = ("approve" if "approve" in request.POST else "decline"), ids_of([one])
            if act in ("approve", "decline"):
                self._decide(request, chosen, act, request.POST)
            return HttpResponseRedirect(reverse("admin:quotas_approvals"))
        title = gettext("Approvals")
        context = {**self.admin_site.each_context(request), "title": title, "approvals": approvals.waiting_for(cast(User, request.user))}
        return TemplateResponse(request, "admin/quotas/approvals.html", context)

    def _decide(self, request: HttpRequest, ids: list[int], act: str, values: Any) -> None:
        if not ids:
            self.message_user(request, approvals.nothing_chosen_text(), messages.WARNING)
            return
        decided = approvals.decide(user=cast(User, request.user), ids=ids, act=act, values=values, now=timezone.now())
        for text in decided.refused:
            self.message_user(request, text, messages.WARNING)
        if decided.done:
            count = {"count": decided.done}
            if act == "approve":
                text = ngettext("%(count)d request is approved.", "%(count)d requests are approved.", decided.done) % count
            else:
                text = ngettext("%(count)d request is declined.", "%(count)d requests are declined.", decided.done) % count
            self.message_user(request, text, messages.SUCCESS)

    @admin.action(description=_("Approve as asked"))
    def approve(self, request: HttpRequest, queryset: QuerySet[QuotaRequest]) -> None:
        self._decide(request, list(queryset.values_list("pk", flat=True)), "approve", {})

    @admin.action(description=_("Decline"))
    def decline(self, request: HttpRequest, queryset: QuerySet[QuotaRequest]) -> None:
        self._decide(request, list(queryset.values_list("pk", flat=True)), "decline", {})


@admin.register(QuotaRequestEvent)
class QuotaRequestEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "request", "code", "by", "amount", "until", "text")
    list_select_related = ("request", "by")
    list_filter = ("code",)
    search_fields = ("=request__id", "by__email", "text")
