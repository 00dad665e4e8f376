"""Links by mail that decide one step of one request, for one person: signed, expiring, used once.

The link carries the step's nonce, and every step has a new one: once the request was decided by anybody, or passed on, or
withdrawn, no link of that step opens anything. GET only shows; a POST decides, so that a mail scanner that follows links does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.core import signing

from quotas.models import QuotaRequest, User
from quotas.requests import may_decide

SALT = "quotas.request.decide"
LIVES_S = 7 * 86_400


class BadLink(Exception):
    """The link is not ours, or too old, or its person may not decide any more."""


@dataclass(frozen=True, slots=True)
class Opened:
    """``is_open`` False: this step is over."""

    request: QuotaRequest
    user: User
    is_open: bool


def link_token(request: QuotaRequest, user: User) -> str:
    """For the address ``/quota/decide/TOKEN/``, sent to this person alone."""
    return signing.dumps([request.pk, user.pk, request.nonce], salt=SALT, compress=True)


def link_open(token: str) -> Opened:
    """Raises BadLink. Two queries, three for one who is no admin."""
    try:
        pk, user_pk, nonce = signing.loads(token[:400], salt=SALT, max_age=LIVES_S)
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise BadLink from error
    request = QuotaRequest.objects.select_related("by", "project", "quota__user", "quota__project", "decided_by").filter(pk=pk).first()
    user = User.objects.filter(pk=user_pk, is_active=True).first()
    if request is None or user is None:
        raise BadLink
    is_open = request.is_open and request.nonce == nonce
    if is_open and not may_decide(request, user):
        raise BadLink  # no admin or lead any more
    return Opened(request, user, is_open)
