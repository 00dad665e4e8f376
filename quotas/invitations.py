"""Links by mail with which somebody sets the first password of an account that an administrator made.

A link is signed, lives for a week, and is used up with the first password or sign-in: it carries a mark of the account's state. GET only
leads to the form, so that a mail scanner that follows links uses nothing up.
"""

from __future__ import annotations

import hashlib

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import translation
from django.views.decorators.http import require_safe

from quotas.audit import audit
from quotas.models import User

SALT = "quotas.invitation"
LIVES_S = 7 * 86_400


class BadInvitation(Exception):
    """The link is not ours, too old, or used up."""


def _mark(user: User) -> str:
    return hashlib.sha256(f"{user.password}{user.last_login}{user.email}".encode()).hexdigest()[:16]


def invitation_url(user: User) -> str:
    token = signing.dumps([user.pk, _mark(user)], salt=SALT)
    return f"{settings.BASE_URL}{reverse('invitation', args=[token])}"


def invitation_open(token: str) -> User:
    """Raises BadInvitation. One query."""
    try:
        pk, mark = signing.loads(token[:400], salt=SALT, max_age=LIVES_S)
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise BadInvitation from error
    user = User.objects.filter(pk=pk, is_active=True).first()
    if user is None or mark != _mark(user):
        raise BadInvitation
    return user


def can_be_invited(user: User) -> bool:
    """Somebody who has never signed in and has no password yet."""
    return bool(settings.EMAIL_HOST) and user.is_active and user.last_login is None and not user.has_usable_password()


def invite(*, user: User, by: User) -> None:
    """Sends the mail; call it when the account is committed."""
    from allauth.account.adapter import get_adapter

    with translation.override(user.language or settings.LANGUAGE_CODE):
        get_adapter().send_mail("account/email/invitation", user.email, {"user": user, "url": invitation_url(user), "by": by.email})
    audit(by, "user.invited", f"user {user.email}")


@require_safe
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """Leads to the form for a new password, with a key that is good for this account's present state only."""
    from allauth.account.forms import default_token_generator
    from allauth.account.utils import user_pk_to_url_str

    try:
        user = invitation_open(token)
    except BadInvitation:
        return render(request, "account/invitation_over.html", status=410)
    answer = HttpResponseRedirect(
        reverse(
            "account_reset_password_from_key", kwargs={"uidb36": user_pk_to_url_str(user), "key": default_token_generator.make_token(user)}
        )
    )
    answer["Cache-Control"] = "no-store"
    return answer
