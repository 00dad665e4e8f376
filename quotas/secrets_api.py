"""Secrets over REST: names are read, values only written."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quotas.models import Project, Secret, User
from quotas.secrets import project_for, secret_delete, secret_json, secret_set, secrets_of
from quotas.serializers import InputSerializer, StrictChar


class SecretSchema(serializers.Serializer[Any]):
    name = serializers.CharField()
    project = serializers.CharField(allow_null=True, help_text="null = one's own.")
    set_at = serializers.DateTimeField()
    set_by = serializers.CharField(allow_null=True)
    used_at = serializers.DateTimeField(allow_null=True, help_text="When a job last got it.")


class SecretRequest(InputSerializer):
    value = StrictChar(help_text="8 characters to 32 KiB. Never shown again.", style={"input_type": "password"})
    project = StrictChar(required=False, allow_null=True, max_length=60, help_text="Of a project that one leads; default: one's own.")


EXAMPLE = OpenApiExample(
    "Of a project",
    value={"name": "hf-token", "project": "vision", "set_at": "2026-03-31T08:00:00Z", "set_by": "li@lab.example", "used_at": None},
    response_only=True,
)
_PROJECT = OpenApiParameter("project", str, description="Of a project that one leads; default: one's own.")


def _project(user: User, name: str | None) -> Project | None:
    return project_for(user, name) if name else None


class SecretListView(generics.GenericAPIView[Secret]):
    @extend_schema(
        operation_id="secret_list",
        summary="Secrets that my jobs may use",
        description="Mine and those of my projects, by name. Values are never shown.",
        responses=SecretSchema(many=True),
        examples=[EXAMPLE],
    )
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(secrets_of(request.user))
        return self.get_paginated_response([SecretSchema(secret_json(secret)).data for secret in page or []])


class SecretDetailView(APIView):
    @extend_schema(
        operation_id="secret_set",
        summary="Set a secret",
        description="201 for a new one, 200 for a new value. Jobs that run keep the value that they have; later ones get the new one.",
        request=SecretRequest,
        responses={201: SecretSchema, 200: OpenApiResponse(SecretSchema, "A new value of a secret that was there.")},
        examples=[OpenApiExample("Mine", value={"value": "hf_xxxxxxxxxxxxxxxx"}, request_only=True), EXAMPLE],
    )
    def put(self, request: Request, name: str) -> Response:
        body = SecretRequest(data=request.data)
        body.is_valid(raise_exception=True)
        asked = body.validated_data
        secret, is_new = secret_set(by=request.user, name=name, value=asked["value"], project=_project(request.user, asked.get("project")))
        answer = SecretSchema(secret_json(secret)).data
        return Response(answer, status=status.HTTP_201_CREATED if is_new else status.HTTP_200_OK)

    @extend_schema(
        operation_id="secret_delete",
        summary="Delete a secret",
        description="No job gets it from now on. A job that waits for it fails when it starts, with a sentence.",
        parameters=[_PROJECT],
        responses={204: None},
    )
    def delete(self, request: Request, name: str) -> Response:
        text = request.query_params.get("project")
        if text is not None and not text:
            raise serializers.ValidationError({"project": [_("Leave it out, or name a project.")]})
        secret_delete(by=request.user, name=name, project=_project(request.user, text))
        return Response(status=status.HTTP_204_NO_CONTENT)
