"""Sign-in through another's (NEBULA_OIDC_*). Imported only where that is set up."""

from __future__ import annotations

from typing import Any

from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.http import HttpRequest

from quotas.services import user_provision


class SocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        """Whom the provider knows may have an account, unless NEBULA_OIDC_SIGNUP is 0: then an admin makes it first."""
        return bool(settings.OIDC.makes_accounts)

    def save_user(self, request: HttpRequest, sociallogin: Any, form: Any = None) -> Any:
        user = super().save_user(request, sociallogin, form)
        user_provision(user=user)
        return user
