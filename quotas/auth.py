"""Who calls the API: a token (``Authorization: Bearer ngt_…``, or a short JWT) or a browser session with its CSRF token."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from rest_framework import authentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from quotas.grants import Grant
from quotas.models import User
from quotas.tokens import credential_open


class TokenAuthentication(authentication.BaseAuthentication):
    """``request.auth`` becomes a Grant. Raises AuthenticationFailed (401) for a Bearer header that is no valid token or JWT: a wrong
    one never falls back to a session."""

    def authenticate(self, request: Request) -> tuple[User, Grant] | None:
        header = request.META.get("HTTP_AUTHORIZATION", "")
        scheme, _space, secret = header.partition(" ")
        if scheme.lower() != "bearer":
            return None
        found = credential_open(secret.strip())
        # One answer for unknown, expired, revoked and disabled: a guesser learns nothing.
        if found is None:
            raise AuthenticationFailed(_("The token is not valid: unknown, expired or revoked. Sign in again to get a new one."))
        return found

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="NebulaGrid"'


class SessionAuthentication(authentication.SessionAuthentication):
    """Django's session; writing needs the CSRF token. A disabled user is nobody."""

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="NebulaGrid"'


def second_factor_needed(user: Any) -> bool:
    """Whether this user signs in with a second factor, so that a password alone must not make a token. One SQL query."""
    from allauth.mfa.utils import is_mfa_enabled

    return bool(is_mfa_enabled(user))
