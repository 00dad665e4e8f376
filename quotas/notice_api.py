"""One's own notices, and the ways that they go, over REST."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quotas import channels
from quotas.models import Notice, NoticeChannel, NoticeDelivery, User
from quotas.notify import EVENTS, message_of, notices_read, words
from quotas.serializers import InputSerializer, StrictBoolean, StrictChar, StrictInteger


class NoticeSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    kind = serializers.CharField()
    event = serializers.CharField(help_text="start, end, fail, quota, node; empty = a test.")
    tone = serializers.CharField()
    title = serializers.CharField()
    text = serializers.CharField()
    url = serializers.CharField(help_text="The page that it leads to; may be empty.")
    at = serializers.DateTimeField()
    read_at = serializers.DateTimeField(allow_null=True)
    params = serializers.DictField()


class ReadRequest(InputSerializer):
    ids = serializers.ListField(child=StrictInteger(min_value=1), max_length=500, required=False, help_text="Left out: all.")


class ReadAnswer(serializers.Serializer[Any]):
    read = serializers.IntegerField()


class ChannelSchema(serializers.Serializer[Any]):
    """``id`` null: e-mail as it is without a choice."""

    id = serializers.IntegerField(allow_null=True)
    kind = serializers.ChoiceField(choices=NoticeChannel.Kind.values)
    format = serializers.CharField(help_text="generic, feishu, dingtalk, wecom, slack; empty for e-mail.")
    name = serializers.CharField()
    host = serializers.CharField(help_text="All that is told of an address.")
    has_secret = serializers.BooleanField()
    events = serializers.ListField(child=serializers.CharField())
    template = serializers.CharField()
    active = serializers.BooleanField()
    lab = serializers.BooleanField(help_text="The lab's own: gets what is everybody's. Staff only.")
    sent_at = serializers.DateTimeField(allow_null=True)
    failures = serializers.IntegerField(help_text="In a row.")
    last_error = serializers.CharField()


class ChannelRequest(InputSerializer):
    """Webhooks: all of it. E-mail (PATCH /notices/channels/email): events and active."""

    name = StrictChar(max_length=channels.NAME_MAX, required=False, allow_blank=True)
    format = serializers.ChoiceField(choices=NoticeChannel.Format.values, required=False)
    url = StrictChar(max_length=2000, required=False, help_text="Kept sealed, never told again.")
    secret = StrictChar(max_length=channels.SECRET_MAX, required=False, allow_blank=True, help_text="Signs; empty takes it away.")
    events = serializers.ListField(child=serializers.ChoiceField(choices=list(EVENTS)), max_length=len(EVENTS), required=False)
    template = StrictChar(
        max_length=channels.TEMPLATE_MAX, required=False, allow_blank=True, help_text="Own text: {title} {text} {url} and names of params."
    )
    active = StrictBoolean(required=False)
    lab = StrictBoolean(required=False, help_text="Only when it is made.")


class EmailRequest(InputSerializer):
    events = serializers.ListField(child=serializers.ChoiceField(choices=list(EVENTS)), max_length=len(EVENTS), required=False)
    active = StrictBoolean(required=False)


class TestAnswer(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=NoticeDelivery.State.values)
    status = serializers.IntegerField(allow_null=True)
    error = serializers.CharField()


EXAMPLE = OpenApiExample(
    "Failures and limits to a Feishu group",
    value={"format": "feishu", "url": "https://open.feishu.cn/open-apis/bot/v2/hook/…", "secret": "…", "events": ["fail", "quota"]},
    request_only=True,
)


def notice_json(notice: Notice) -> dict[str, Any]:
    title, text, kind = words(notice)
    url = message_of(notice, user=None, is_shared=True).url if notice.path else ""
    return {
        "id": notice.pk, "kind": notice.kind, "event": kind.event, "tone": kind.tone, "title": title, "text": text, "url": url,
        "at": notice.at, "read_at": notice.read_at, "params": notice.params,
    }  # fmt: skip


def channel_json(channel: NoticeChannel) -> dict[str, Any]:
    return {
        "id": channel.pk, "kind": channel.kind, "format": channel.format, "name": channel.name, "host": channel.host,
        "has_secret": bool(channel.secret_sealed), "events": channel.events, "template": channel.template, "active": channel.is_active,
        "lab": channel.user_id is None, "sent_at": channel.sent_at, "failures": channel.failures, "last_error": channel.last_error,
    }  # fmt: skip


class NoticeListView(generics.GenericAPIView[Notice]):
    def get_queryset(self) -> QuerySet[Notice]:
        query = Notice.objects.filter(user=self.request.user)
        return query.filter(read_at__isnull=True) if self.request.query_params.get("unread") in ("1", "true") else query

    @extend_schema(
        operation_id="notice_list",
        summary="My notices, the latest first",
        parameters=[OpenApiParameter("unread", bool, description="Only those that were not read.")],
        responses=NoticeSchema(many=True),
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset()) or []
        return self.get_paginated_response([NoticeSchema(notice_json(notice)).data for notice in page])


class NoticeReadView(APIView):
    @extend_schema(operation_id="notice_read", summary="Mark notices as read", request=ReadRequest, responses=ReadAnswer)
    def post(self, request: Request) -> Response:
        body = ReadRequest(data=request.data)
        body.is_valid(raise_exception=True)
        return Response({"read": notices_read(user=request.user, ids=body.validated_data.get("ids"))})


def _changes(data: Any, kind: type[InputSerializer] = ChannelRequest) -> dict[str, Any]:
    body = kind(data=data)
    body.is_valid(raise_exception=True)
    found = dict(body.validated_data)
    if "active" in found:
        found["is_active"] = found.pop("active")
    return found


class ChannelListView(APIView):
    @extend_schema(
        operation_id="notice_channel_list",
        summary="The ways that my notices go",
        description="E-mail first, then webhooks; of staff the lab's, too.",
        responses=ChannelSchema(many=True),
    )
    def get(self, request: Request) -> Response:
        user: User = request.user
        hooks = channels.channels_of(user).filter(kind=NoticeChannel.Kind.WEBHOOK)
        return Response([ChannelSchema(channel_json(channel)).data for channel in [channels.email_channel(user), *hooks]])

    @extend_schema(
        operation_id="notice_channel_create",
        summary="A new webhook",
        description="Only public addresses by HTTPS, or networks that NEBULA_WEBHOOK_ALLOW names.",
        request=ChannelRequest,
        responses={201: ChannelSchema},
        examples=[EXAMPLE],
    )
    def post(self, request: Request) -> Response:
        changes = _changes(request.data)
        is_labs = changes.pop("lab", False)
        if is_labs and not request.user.is_staff:
            raise PermissionDenied
        channel = channels.webhook_save(by=request.user, is_labs=is_labs, changes=changes)
        return Response(ChannelSchema(channel_json(channel)).data, status=status.HTTP_201_CREATED)


class EmailView(APIView):
    @extend_schema(operation_id="notice_email_update", summary="What is mailed to me", request=EmailRequest, responses=ChannelSchema)
    def patch(self, request: Request) -> Response:
        before, changes = channels.email_channel(request.user), _changes(request.data, EmailRequest)
        saved = channels.email_save(
            user=request.user, events=changes.get("events", before.events), is_active=changes.get("is_active", before.is_active)
        )
        return Response(ChannelSchema(channel_json(saved)).data)


def _hook(request: Request, id: int) -> NoticeChannel:
    return get_object_or_404(channels.channels_of(request.user), pk=id, kind=NoticeChannel.Kind.WEBHOOK)


class ChannelDetailView(APIView):
    @extend_schema(operation_id="notice_channel_get", summary="A webhook", responses=ChannelSchema)
    def get(self, request: Request, id: int) -> Response:
        return Response(ChannelSchema(channel_json(_hook(request, id))).data)

    @extend_schema(operation_id="notice_channel_update", summary="Change a webhook", request=ChannelRequest, responses=ChannelSchema)
    def patch(self, request: Request, id: int) -> Response:
        channel, changes = _hook(request, id), _changes(request.data)
        changes.pop("lab", None)
        return Response(ChannelSchema(channel_json(channels.webhook_save(by=request.user, channel=channel, changes=changes))).data)

    @extend_schema(operation_id="notice_channel_delete", summary="Delete a webhook", responses={204: None})
    def delete(self, request: Request, id: int) -> Response:
        channels.channel_delete(channel=_hook(request, id), by=request.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ChannelTestView(APIView):
    @extend_schema(
        operation_id="notice_channel_test",
        summary="Send a test message",
        description="At once; the answer says what became of it. At most five a minute.",
        request=None,
        responses=TestAnswer,
    )
    def post(self, request: Request, id: int) -> Response:
        done = channels.channel_test(channel=_hook(request, id), by=request.user)
        return Response(TestAnswer({"state": done.state, "status": done.status, "error": done.error}).data)
