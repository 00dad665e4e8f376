"""One's own notices, and the ways that they go. Each form works without a script."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from quotas import channels
from quotas.channels import ChannelRefused
from quotas.models import Notice, NoticeChannel, NoticeDelivery
from quotas.notify import EVENTS, notices_read, unread_count, words
from quotas.webhooks import WebhookRefused

PAGE = 50
Kind, State = NoticeChannel.Kind, NoticeDelivery.State


@require_safe
@login_required
def notice_list(request: HttpRequest) -> HttpResponse:
    """The latest first; ``?unread=1``."""
    query = Notice.objects.filter(user=request.user)
    is_unread = request.GET.get("unread") == "1"
    if is_unread:
        query = query.filter(read_at__isnull=True)
    page = Paginator(query, PAGE).get_page(request.GET.get("page"))
    rows = []
    for notice in page.object_list:
        title, text, kind = words(notice)
        rows.append({"notice": notice, "title": title, "text": text, "kind": kind})
    return render(request, "notices/list.html", {"rows": rows, "page": page, "is_unread": is_unread})


@require_safe
@login_required
def notice_bell(request: HttpRequest) -> HttpResponse:
    """The bell alone, as it is now."""
    return render(request, "notices/_bell.html", {"unread_notices": unread_count(request.user)})


@require_safe
@login_required
def notice_open(request: HttpRequest, id: int) -> HttpResponse:
    """It counts as read, and leads to the page that it is about."""
    notice = get_object_or_404(Notice, pk=id, user=request.user)
    notices_read(user=request.user, ids=[notice.pk])
    # Our own paths only: what a row says is never the address of another site.
    is_ours = notice.path.startswith("/") and not notice.path.startswith("//") and "\\" not in notice.path
    return redirect(notice.path if is_ours else "notice-list")


@require_POST
@login_required
def notices_mark(request: HttpRequest) -> HttpResponse:
    notices_read(user=request.user)
    return redirect("notice-list")


# --- ways -------------------------------------------------------------------------------------------------------------------


class WebhookForm(forms.Form):
    format = forms.ChoiceField(label=gettext_lazy("Format"), choices=NoticeChannel.Format.choices)
    url = forms.CharField(label=gettext_lazy("Address"), max_length=2000, required=False)
    secret = forms.CharField(label=gettext_lazy("Secret"), max_length=channels.SECRET_MAX, required=False)
    name = forms.CharField(label=gettext_lazy("Name"), max_length=channels.NAME_MAX, required=False)
    events = forms.MultipleChoiceField(label=gettext_lazy("Told of"), choices=list(EVENTS.items()), required=False)
    template = forms.CharField(label=gettext_lazy("Own text"), max_length=channels.TEMPLATE_MAX, required=False)
    is_active = forms.BooleanField(label=gettext_lazy("In use"), required=False)
    keeps_secret = forms.BooleanField(required=False)


def _hook(request: HttpRequest, id: int) -> NoticeChannel:
    return get_object_or_404(channels.channels_of(request.user), pk=id, kind=Kind.WEBHOOK)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def channel_list(request: HttpRequest) -> HttpResponse:
    """POST says what is mailed."""
    if request.method == "POST":
        channels.email_save(
            user=request.user,
            events=[name for name in request.POST.getlist("events") if name in EVENTS],
            is_active="is_active" in request.POST,
        )
        messages.info(request, _("Saved: what is mailed to you."))
        return redirect("notice-channels")
    hooks = list(channels.channels_of(request.user).filter(kind=Kind.WEBHOOK))
    context = {
        "email": channels.email_channel(request.user),
        "hooks": [hook for hook in hooks if hook.user_id is not None],
        "labs": [hook for hook in hooks if hook.user_id is None],
        "events": EVENTS.items(),
        "mail_works": bool(settings.EMAIL_HOST),
        "can_add": len(hooks) < channels.MOST,
    }
    return render(request, "notices/channels.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def channel_edit(request: HttpRequest, id: int | None = None) -> HttpResponse:
    """A new webhook, or one that is there. An address that was entered is never shown again."""
    channel = _hook(request, id) if id is not None else None
    is_labs = channel.user_id is None if channel is not None else request.user.is_staff and "lab" in request.GET
    if channel is not None:
        initial: dict[str, Any] = {name: getattr(channel, name) for name in ("format", "name", "events", "template", "is_active")}
    else:
        initial = {
            "events": ["fail", "quota", "node"] if not is_labs else ["node"],
            "is_active": True,
            "format": NoticeChannel.Format.GENERIC,
        }
    form = WebhookForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST" and form.is_valid():
        changes = {name: form.cleaned_data[name] for name in ("format", "url", "name", "events", "template", "is_active")}
        if form.cleaned_data["secret"] or not form.cleaned_data["keeps_secret"]:
            changes["secret"] = form.cleaned_data["secret"]
        try:
            channels.webhook_save(by=request.user, channel=channel, is_labs=is_labs, changes=changes)
        except WebhookRefused as error:
            form.add_error("url", error.message)
        except ChannelRefused as error:
            form.add_error("url" if error.code == "channel_no_url" else None, error.message)
        else:
            messages.info(request, _("Saved. Send a test to see whether messages arrive."))
            return redirect("notice-channels")
    context = {"form": form, "channel": channel, "is_labs": is_labs, "events": EVENTS.items(), "formats": NoticeChannel.Format.choices}
    return render(request, "notices/channel.html", context, status=400 if request.method == "POST" else 200)


@require_POST
@login_required
def channel_remove(request: HttpRequest, id: int) -> HttpResponse:
    channels.channel_delete(channel=_hook(request, id), by=request.user)
    messages.info(request, _("The webhook is deleted."))
    return redirect("notice-channels")


@require_POST
@login_required
def channel_try(request: HttpRequest, id: int | None = None) -> HttpResponse:
    """A test, now; without an id of e-mail."""
    channel = _hook(request, id) if id is not None else channels.email_channel(request.user)
    try:
        done = channels.channel_test(channel=channel, by=request.user)
    except ChannelRefused as error:
        messages.error(request, error.message)
    else:
        if done.state == State.SENT:
            messages.info(request, _("The test was delivered."))
        else:
            messages.error(request, _("The test was not delivered: %(why)s") % {"why": done.error or done.get_state_display()})
    return redirect("notice-channels")
