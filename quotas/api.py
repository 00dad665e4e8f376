"""Sign-in for programs, and what the signed-in user is and may."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.contrib.auth import authenticate
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext as _
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import generics, status
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied, Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quotas import selectors, tokens
from quotas.auth import second_factor_needed
from quotas.errors import BadValue
from quotas.grants import Grant, scopes_text
from quotas.guesses import TooManyGuesses, guess_begin
from quotas.models import ApiToken, Membership, User
from quotas.serializers import ApiTokenSerializer, JwtAnswer, JwtRequest, Me, TokenAnswer, TokenNew, TokenRequest
from quotas.throttles import AnonymousThrottle

TOKEN_TTL_S = 365 * 86_400


def quota_json(user: User) -> dict[str, Any]:
    """``mine`` of the usage and ``quota`` of me. One SELECT, more in the first call of a month."""
    return asdict(selectors.quota_view(user, now=timezone.now()))


class TokenView(APIView):
    # Credentials are in the body: neither a session nor an old token plays a part, so there is no CSRF to guard.
    authentication_classes = ()
    throttle_classes = (AnonymousThrottle,)

    def get_authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="NebulaGrid"'

    @extend_schema(
        operation_id="token_create",
        summary="Get a token",
        description=(
            "Trades e-mail address and password for an API token. At most 5 calls a minute from one address, and so many wrong passwords "
            "of one account from all addresses together."
        ),
        request=TokenRequest,
        responses={201: TokenAnswer},
        auth=[],
        examples=[OpenApiExample("Sign in", value={"email": "user@lab.example", "password": "…", "name": "laptop"}, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        body = TokenRequest(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = body.validated_data
        try:
            guess = guess_begin(request._request, wanted["email"])
        except TooManyGuesses as error:
            raise Throttled(wait=error.wait_s) from error
        user = authenticate(request._request, email=wanted["email"].lower(), password=wanted["password"])
        if not isinstance(user, User) or not user.is_active:
            raise AuthenticationFailed(_("E-mail address and password don't match."), code="bad_credentials")
        guess.succeeded()
        if second_factor_needed(user):
            raise PermissionDenied(
                _("This account signs in with a second factor; a password alone makes no token."), code="second_factor_needed"
            )
        token, secret = tokens.token_create(
            user=user, name=wanted["name"], ttl_s=wanted.get("ttl_s") or TOKEN_TTL_S, scopes=wanted["scopes"]
        )
        return Response(token_answer(token, secret), status=status.HTTP_201_CREATED)


def token_answer(token: ApiToken, secret: str) -> dict[str, Any]:
    """What its maker reads once."""
    project = token.project.name if token.project is not None else None
    return dict(
        TokenAnswer(
            {
                "id": token.pk,
                "token": secret,
                "prefix": token.prefix,
                "expires_at": token.expires_at,
                "scopes": token.scopes.split(),
                "project": project,
            }
        ).data
    )


class JwtView(APIView):
    @extend_schema(
        operation_id="token_jwt",
        summary="Get a short JWT",
        description=(
            "For handing on to a program that runs for minutes. HS256, at most 900 s; it names user and groups, never has more scopes than "
            "what asks for it, and ends with that: with the token when it is revoked, with the session's password when it is changed. What "
            "its bearer may is read from the database at each use."
        ),
        request=JwtRequest,
        responses={201: JwtAnswer},
        examples=[OpenApiExample("For one step of a pipeline", value={"ttl_s": 300, "scopes": ["read"]}, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        body = JwtRequest(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = body.validated_data
        grant = request.auth if isinstance(request.auth, Grant) else None
        text, expires_at, scopes = tokens.jwt_create(user=request.user, grant=grant, scopes=wanted.get("scopes"), ttl_s=wanted["ttl_s"])
        answer = {"token": text, "expires_at": expires_at, "scopes": scopes_text(scopes).split()}
        return Response(JwtAnswer(answer).data, status=status.HTTP_201_CREATED)


class MeView(APIView):
    @extend_schema(operation_id="me", summary="Who am I", responses=Me)
    def get(self, request: Request) -> Response:
        user: User = request.user
        memberships = Membership.objects.filter(user=user, project__is_active=True).select_related("project").order_by("project__name")
        if user.confined_to is not None:
            memberships = memberships.filter(project_id=user.confined_to)
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


class TokenListView(generics.ListCreateAPIView[ApiToken]):
    """My tokens that are good now, those for projects too; their secrets are not kept."""

    serializer_class = ApiTokenSerializer

    def get_queryset(self) -> Any:
        return tokens.tokens_live(ApiToken.objects.filter(user=self.request.user)).select_related("project").order_by("-id")

    @extend_schema(operation_id="token_list", summary="My tokens")
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request)

    @extend_schema(
        operation_id="token_add",
        summary="Make a token",
        description=(
            "A personal one, or with `project` one that is confined to what is that project's: it reads and submits there and nowhere "
            "else, and ends with the account that made it. The secret is shown once. No token makes one with more scopes than its own, or "
            "one that lives longer than itself; a short JWT makes none."
        ),
        request=TokenNew,
        responses={201: TokenAnswer},
        examples=[
            OpenApiExample(
                "For CI of a project",
                value={"name": "ci", "project": "vision", "scopes": ["read", "submit"], "ttl_s": 7_776_000},
                request_only=True,
            )
        ],
    )
    def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        body = TokenNew(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = body.validated_data
        grant, project = request.auth if isinstance(request.auth, Grant) else None, None
        if grant is not None and grant.is_jwt:
            raise BadValue("jwt_from_jwt", 403)  # what ends within minutes must not leave something behind that doesn't
        if wanted.get("project"):
            project = selectors.projects_to_submit(request.user).filter(name=wanted["project"]).first()
            if project is None:
                raise BadValue("token_project", params={"project": wanted["project"]})
        if grant is not None and (more := set(wanted["scopes"]) - grant.scopes):
            text = _("This token lacks the scope %(scope)s, so it can't give it on.") % {"scope": ", ".join(sorted(more))}
            raise PermissionDenied(text, code="scope_missing")
        ttl_s = tokens.ttl_within(grant, wanted.get("ttl_s") or TOKEN_TTL_S)
        token, secret = tokens.token_create(user=request.user, name=wanted["name"], ttl_s=ttl_s, scopes=wanted["scopes"], project=project)
        return Response(token_answer(token, secret), status=status.HTTP_201_CREATED)


class TokenDetailView(APIView):
    @extend_schema(
        operation_id="token_revoke", summary="Revoke a token", description="From now on it opens nothing.", responses={204: None}
    )
    def delete(self, request: Request, id: int) -> Response:
        token = get_object_or_404(tokens.tokens_live(ApiToken.objects.filter(user=request.user)), pk=id)
        tokens.token_revoke(token=token)
        return Response(status=status.HTTP_204_NO_CONTENT)
