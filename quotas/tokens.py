"""API tokens and the short JWTs made from them: make, revoke, and tell who comes with one.

A token is looked up by the SHA-256 of its 256-bit secret, so timing tells nothing of use. A JWT (D18) is signed with HS256 and a key
of its own made from the installation's, lives at most 15 minutes, and names user and groups for whoever reads it; what its bearer
may is read from the database at each use, and it ends with what it was made from: the token, or the password of then.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from quotas.audit import audit
from quotas.errors import BadValue
from quotas.grants import ALL_SCOPES, Grant, Scope, scopes_of, scopes_text
from quotas.models import ApiToken, Membership, Project, User

TOKEN_PREFIX = "ngt_"  # noqa: S105 -- how a token begins, so that people and secret scanners know one
#: A token's last use is written at most this often: reading a page must not cost a write.
LAST_USED_EVERY_S = 60
#: Of one user: tokens that are good at once, and tokens made within a day, the revoked ones included.
LIVE_MOST, DAY_MOST = 100, 200
JWT_MOST_S = 900
JWT_LEEWAY_S = 5
JWT_MAX = 4096
JWT_AUDIENCE = "nebulagrid-api"
#: Roles that submit to a project.
ACTS = (Membership.Role.LEAD, Membership.Role.USER)

# --- making and revoking --------------------------------------------------------------------------------------------


def token_create(
    *,
    user: User,
    name: str,
    ttl_s: int | None = None,
    scopes: Iterable[str] = ALL_SCOPES,
    project: Project | None = None,
    now: datetime | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its secret, which is shown once and never stored. ``ttl_s`` None = does not expire.

    Raises BadValue: tokens_many or tokens_day where there are too many, token_ttl if ``ttl_s`` is not positive, token_scopes if there
    is none or an unknown one, token_project if the user may not submit to the project.
    """
    wanted = list(scopes)
    if not wanted or set(wanted) - set(ALL_SCOPES):
        raise BadValue("token_scopes", params={"scopes": ", ".join(wanted) or "–", "known": ", ".join(ALL_SCOPES)})
    if ttl_s is not None and ttl_s <= 0:
        raise BadValue("token_ttl", params={"ttl_s": ttl_s})
    if project is not None and Scope.MANAGE in wanted:
        raise BadValue("token_project_scope")
    if project is not None and not _may_act_for(user, project):
        raise BadValue("token_project", params={"project": project.name})
    now = now or timezone.now()
    mine = ApiToken.objects.filter(user=user)
    if (count := tokens_live(mine, now=now).count()) >= LIVE_MOST:
        raise BadValue("tokens_many", 409, {"count": count, "most": LIVE_MOST})
    if (count := mine.filter(created_at__gt=now - timedelta(days=1)).count()) >= DAY_MOST:
        raise BadValue("tokens_day", 429, {"count": count, "most": DAY_MOST})
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        token = ApiToken.objects.create(
            user=user,
            project=project,
            name=name[:80],
            scopes=scopes_text(wanted),
            prefix=secret[:12],
            token_sha256=_sha256(secret),
            created_at=now,
            expires_at=now + timedelta(seconds=ttl_s) if ttl_s is not None else None,
        )
        params = {"name": token.name, "expires_at": token.expires_at, "scopes": token.scopes}
        audit(user, "token.created", f"token {token.prefix}", params | ({"project": project.name} if project else {}), now=now)
    return token, secret


def ttl_within(grant: Grant | None, ttl_s: int, *, now: datetime | None = None) -> int:
    """``ttl_s``, or less: no longer than what came with ``grant`` lives itself. One query for a token."""
    maker = ApiToken.objects.filter(pk=grant.token, expires_at__isnull=False).first() if grant is not None and grant.token else None
    if maker is None or maker.expires_at is None:
        return ttl_s
    return max(1, min(ttl_s, int((maker.expires_at - (now or timezone.now())).total_seconds())))


def _may_act_for(user: User, project: Project) -> bool:
    return project.is_active and Membership.objects.filter(user=user, project=project, role__in=ACTS).exists()


@transaction.atomic
def token_revoke(*, token: ApiToken, by: User | None = None, now: datetime | None = None) -> None:
    """From now on the token opens nothing, nor do JWTs made from it. Idempotent: the first time stays."""
    if ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=now or timezone.now()):
        audit(by or token.user, "token.revoked", f"token {token.prefix}", {"name": token.name, "owner": token.user.email}, now=now)
    token.refresh_from_db(fields=("revoked_at",))


def tokens_live(tokens: QuerySet[ApiToken], *, now: datetime | None = None) -> QuerySet[ApiToken]:
    """Those that are good now."""
    return tokens.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now or timezone.now()), revoked_at__isnull=True)


# --- who comes ------------------------------------------------------------------------------------------------------


def credential_open(secret: str, *, now: datetime | None = None) -> tuple[User, Grant] | None:
    """Who bears this token or JWT, and what it is good for; None if it opens nothing. One SELECT, a JWT two at most."""
    if not secret.isascii() or "\0" in secret:
        return None
    if secret.startswith(TOKEN_PREFIX) and len(secret) <= 200:
        return _token_open(ApiToken.objects.filter(token_sha256=_sha256(secret)), now=now or timezone.now())
    if secret.count(".") == 2 and len(secret) <= JWT_MAX:
        return _jwt_open(secret, now=now or timezone.now())
    return None


def token_authenticate(secret: str, *, now: datetime | None = None) -> User | None:
    """Whose token this is, if it may read; None if unknown, expired, revoked, or the user is inactive."""
    found = credential_open(secret, now=now)
    return found[0] if found is not None and Scope.READ in found[1].scopes else None


def _token_open(tokens: QuerySet[ApiToken], *, now: datetime) -> tuple[User, Grant] | None:
    # A project's token ends with its maker's place there, by whatever door that was taken away.
    place = Membership.objects.filter(user=OuterRef("user"), project=OuterRef("project"), role__in=ACTS)
    tokens = tokens.filter(Q(project__isnull=True) | Exists(place))
    # With the personal project: a submit asks for it next.
    token = next(iter(tokens.select_related("user__personal_project").order_by()), None)  # unique; `first` would sort
    if (
        token is None
        or token.revoked_at is not None
        or (token.expires_at is not None and token.expires_at <= now)
        or not token.user.is_active
    ):
        return None
    before = now - timedelta(seconds=LAST_USED_EVERY_S)
    if token.last_used_at is None or token.last_used_at <= before:
        ApiToken.objects.filter(Q(last_used_at__isnull=True) | Q(last_used_at__lte=before), pk=token.pk).update(last_used_at=now)
    user = token.user
    user.confined_to = token.project_id
    return user, Grant(scopes=scopes_of(token.scopes), project=token.project_id, token=token.pk)


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# --- short JWTs -----------------------------------------------------------------------------------------------------


def _jwt_key() -> bytes:
    """Of no other use than this, so that nothing else that the installation signs can pass for a JWT."""
    return hmac.digest(settings.SECRET_KEY.encode(), b"nebulagrid jwt hs256", "sha256")


def _password_mark(user: User) -> str:
    """Changes with the password, and tells nothing of it."""
    return str(user.get_session_auth_hash())[:32]


def jwt_create(
    *, user: User, grant: Grant | None, scopes: Iterable[str] | None = None, ttl_s: int = JWT_MOST_S, now: datetime | None = None
) -> tuple[str, datetime, frozenset[str]]:
    """A JWT for who came in by ``grant`` (None = a session): (text, when it expires, its scopes). It never has more than the grant.

    Raises BadValue: jwt_ttl unless 1 ≤ ``ttl_s`` ≤ 900; token_scopes for one that the grant lacks; jwt_from_jwt.
    """
    import jwt

    if grant is not None and grant.is_jwt:
        raise BadValue("jwt_from_jwt", 403)  # else it would live for ever
    if not 1 <= ttl_s <= JWT_MOST_S:
        raise BadValue("jwt_ttl", params={"ttl_s": ttl_s, "most_s": JWT_MOST_S})
    has = frozenset(ALL_SCOPES) if grant is None else grant.scopes
    wanted = has if scopes is None else frozenset(scopes)
    if not wanted or wanted - has:
        raise BadValue("token_scopes", params={"scopes": ", ".join(sorted(wanted)) or "–", "known": ", ".join(sorted(has))})
    now = now or timezone.now()
    expires = now + timedelta(seconds=ttl_s)
    groups = Membership.objects.filter(user=user, project__is_active=True).order_by("project__name")
    if user.confined_to is not None:
        groups = groups.filter(project_id=user.confined_to)
    claims: dict[str, Any] = {
        "iss": settings.BASE_URL,
        "aud": JWT_AUDIENCE,
        "sub": str(user.pk),
        "email": user.email,
        "groups": list(groups.values_list("project__name", flat=True)),
        "scope": scopes_text(wanted),
        "iat": int(now.timestamp()),
        "exp": int(expires.timestamp()),
        "jti": uuid.uuid4().hex,
    }
    claims |= {"pwd": _password_mark(user)} if grant is None or grant.token is None else {"tid": grant.token}
    return jwt.encode(claims, _jwt_key(), algorithm="HS256"), expires, wanted


def _jwt_open(text: str, *, now: datetime) -> tuple[User, Grant] | None:
    import jwt

    try:
        # The algorithm is ours, whatever the text says of itself; times are judged below, by the clock that was handed in.
        claims = jwt.decode(
            text,
            _jwt_key(),
            algorithms=["HS256"],
            audience=JWT_AUDIENCE,
            issuer=settings.BASE_URL,
            options={"require": ["exp", "iat", "sub", "aud", "iss"], "verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )
        issued, expires, user_id = int(claims["iat"]), int(claims["exp"]), int(claims["sub"])
        token_id = int(claims["tid"]) if "tid" in claims else None
        scopes = scopes_of(str(claims.get("scope", "")))
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        return None
    at = now.timestamp()
    if at >= expires or issued > at + JWT_LEEWAY_S or expires - issued > JWT_MOST_S:
        return None
    if token_id is not None:
        found = _token_open(ApiToken.objects.filter(pk=token_id, user_id=user_id), now=now)
        if found is None:
            return None
        user, grant = found
        return user, Grant(scopes=scopes & grant.scopes, project=grant.project, token=token_id, is_jwt=True)
    owner = User.objects.select_related("personal_project").filter(pk=user_id, is_active=True).first()
    if owner is None or not hmac.compare_digest(str(claims.get("pwd", "")), _password_mark(owner)):
        return None
    return owner, Grant(scopes=scopes, is_jwt=True)
