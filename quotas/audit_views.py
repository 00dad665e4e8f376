"""The audit log as a page, for staff."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from quotas.audit import ACTIONS
from quotas.audit_api import FORMATS, export_answer
from quotas.audit_read import FILTERS, BadFilter, entries_filtered, entry_json
from quotas.models import AuditEntry

PAGE = 50


def params_text(params: dict[str, Any]) -> str:
    """``reason: new fan · until: –``, as it is kept; users' text stays text."""
    told = ((name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) for name, value in params.items())
    return " · ".join(f"{name}: {value}" for name, value in told if value not in ("", "null"))


@require_safe
@login_required
def audit_list(request: HttpRequest) -> HttpResponseBase:
    """Newest first; filters as the API has them; ``?as=csv`` or ``jsonl`` = all that the filters leave, as a file."""
    if not request.user.is_staff:
        raise PermissionDenied
    asked = {name: request.GET.get(name, "") for name in FILTERS}
    error, status = "", 200
    try:
        entries = entries_filtered(asked)
    except BadFilter as wrong:
        entries, error, status = AuditEntry.objects.none(), str(wrong), 400
    kind = request.GET.get("as", "")
    if kind in FORMATS and not error:
        return export_answer(request, entries, kind=kind, asked=asked)
    page = Paginator(entries, PAGE).get_page(request.GET.get("page"))
    rows = [{"entry": entry, "text": entry_json(entry)["text"], "params": params_text(entry.params)} for entry in page.object_list]
    kinds = sorted({name.split(".")[0] for name in ACTIONS})
    context = {
        "rows": rows,
        "page": page,
        "asked": asked,
        "error": error,
        "actions": [{"name": kind, "items": [(n, _(t)) for n, t in ACTIONS.items() if n.split(".")[0] == kind]} for kind in kinds],
    }
    return render(request, "quotas/audit.html", context, status=status)
