"""Sign-in for programs, and what the signed-in user is and may."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.contrib.auth import authenticate
from django.db.models import Q
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import generics, status
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quotas import selectors, services
from quotas.auth import second_factor_needed
from quotas.models import ApiToken, Membership, User
from quotas.serializers import ApiTokenSerializer, Me, TokenAnswer, TokenRequest
from quotas.throttles import AnonymousThrottle

TOKEN_TTL_S = 365 * 86_400


def quota_json(user: User) -> dict[str, Any]:
    """``mine`` of the usage and ``quota`` of me. One SELECT, more in the first call of a month."""
    return asdict(selectors.quota_view(user, now=timezone.now()))


class TokenView(APIView):
    # Credentials are in the body: neither a session nor an old token plays a part, so there is no CSRF to guard.
    authentication_classes = ()
    permission_classes = (AllowAny,)
    throttle_classes = (AnonymousThrottle,)

    def get_authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="NebulaGrid"'

    @extend_schema(
        operation_id="token_create",
        summary="Get a token",
        description="Trades e-mail address and password for an API token. At most 5 calls a minute from one address.",
        request=TokenRequest,
        responses={201: TokenAnswer},
        auth=[],
        examples=[OpenApiExample("Sign in", value={"email": "user@lab.example", "password": "…", "name": "laptop"}, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        body = TokenRequest(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = body.validated_data
        user = authenticate(request._request, email=wanted["email"].lower(), password=wanted["password"])
        if not isinstance(user, User) or not user.is_active:
            raise AuthenticationFailed(_("E-mail address and password don't match."), code="bad_credentials")
        if second_factor_needed(user):
            raise PermissionDenied(
                _("This account signs in with a second factor; a password alone makes no token."), code="second_factor_needed"
            )
        token, secret = services.token_create(user=user, name=wanted["name"], ttl_s=wanted.get("ttl_s") or TOKEN_TTL_S)
        answer = {"token": secret, "prefix": token.prefix, "expires_at": token.expires_at}
        return Response(TokenAnswer(answer).data, status=status.HTTP_201_CREATED)


class MeView(APIView):
    @extend_schema(operation_id="me", summary="Who am I", responses=Me)
    def get(self, request: Request) -> Response:
        user: User = request.user
        memberships = Membership.objects.filter(user=user, project__is_active=True).select_related("project").order_by("project__name")
        projects = [
            {"name": m.project.name, "title": m.project.title, "role": m.role, "is_personal": m.project.personal_of_id == user.pk}
            for m in memberships
        ]
        return Response(
            {
                "id": user.pk,
                "email": user.email,
                "is_staff": user.is_staff,
                "language": user.language,
                "zone": user.zone,
                "projects": projects,
                "quota": quota_json(user),
            }
        )


def _live_tokens(user: User) -> Any:
    return ApiToken.objects.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now()), user=user, revoked_at__isnull=True)


class TokenListView(generics.ListAPIView[ApiToken]):
    """My tokens that are good now; their secrets are not kept."""

    serializer_class = ApiTokenSerializer

    def get_queryset(self) -> Any:
        return _live_tokens(self.request.user).order_by("-id")

    @extend_schema(operation_id="token_list", summary="My tokens")
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)


class TokenDetailView(APIView):
    @extend_schema(
        operation_id="token_revoke", summary="Revoke a token", description="From now on it opens nothing.", responses={204: None}
    )
    def delete(self, request: Request, id: int) -> Response:
        services.token_revoke(token=get_object_or_404(_live_tokens(request.user), pk=id))
        return Response(status=status.HTTP_204_NO_CONTENT)
