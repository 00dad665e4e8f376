"""What was done by whom: ``audit(actor, action, target, params)``, one call in the transaction that does it.

An entry is one INSERT and waits for nobody. The chain of hashes over the entries is made in batches by ``audit_chain`` (upkeep,
every 30 s): hashing at once would make every two privileged actions wait for each other. quotas/audit_check.py finds what was
changed, taken out or put in since; quotas/audit_segments.py removes what is old, and proves what it removed. Values of secrets,
tokens and passwords never come here; callers give names and numbers.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import Exists, Max, OuterRef
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext_noop

from quotas.models import AuditEntry, AuditLink
from quotas.sql import rows_insert
from quotas.throttles import client_address

log = logging.getLogger(__name__)

#: Every action there is → what a page calls it. An action that is not here can't be written down.
ACTIONS: dict[str, str] = {
    "signin.done": gettext_noop("signed in"),
    "signin.failed": gettext_noop("sign-in failed"),
    "signin.ended": gettext_noop("signed out"),
    "password.changed": gettext_noop("password changed"),
    "mfa.changed": gettext_noop("second factor changed"),
    "user.created": gettext_noop("user made"),
    "user.invited": gettext_noop("link for a first password sent"),
    "user.changed": gettext_noop("user changed"),
    "user.unix_name": gettext_noop("Unix account of a user set"),
    "user.switched_off": gettext_noop("user switched off"),
    "user.switched_on": gettext_noop("user switched on"),
    "session.ended": gettext_noop("sessions ended"),
    "project.created": gettext_noop("project made"),
    "project.changed": gettext_noop("project changed"),
    "member.added": gettext_noop("member added"),
    "member.changed": gettext_noop("member's role changed"),
    "member.removed": gettext_noop("member removed"),
    "token.created": gettext_noop("token made"),
    "token.revoked": gettext_noop("token revoked"),
    "quota.changed": gettext_noop("quota changed"),
    "quota.requested": gettext_noop("more quota asked for"),
    "quota.approved": gettext_noop("quota request approved"),
    "quota.denied": gettext_noop("quota request denied"),
    "quota.withdrawn": gettext_noop("quota request withdrawn"),
    "quota.ended": gettext_noop("granted quota ended early"),
    "price.changed": gettext_noop("price changed"),
    "secret.set": gettext_noop("secret set"),
    "secret.deleted": gettext_noop("secret deleted"),
    "secret.rotated": gettext_noop("encryption of secrets renewed"),
    "job.cancelled": gettext_noop("another's job cancelled"),
    "job.held": gettext_noop("another's job held"),
    "job.renewed": gettext_noop("another's job renewed"),
    "job.files_removed": gettext_noop("files of another's job removed"),
    "job.released": gettext_noop("another's job released"),
    "node.token": gettext_noop("enrolment token made"),
    "node.enrolled": gettext_noop("node enrolled"),
    "node.drained": gettext_noop("node drained"),
    "node.resumed": gettext_noop("node resumed"),
    "node.labelled": gettext_noop("node labelled"),
    "node.inventory_confirmed": gettext_noop("cards of a node confirmed"),
    "node.credential": gettext_noop("credential of a node exchanged"),
    "node.session_confirmed": gettext_noop("new agent of a node confirmed"),
    "node.retired": gettext_noop("node retired"),
    "node.lost": gettext_noop("node declared lost"),
    "node.commanded": gettext_noop("command sent to a node"),
    "node.drill": gettext_noop("drill started"),
    "card.isolated": gettext_noop("card isolated"),
    "card.maintained": gettext_noop("card put into maintenance"),
    "card.tested": gettext_noop("self-test ordered"),
    "card.reset": gettext_noop("reset ordered"),
    "card.returned": gettext_noop("card returned"),
    "incident.noted": gettext_noop("incident noted"),
    "incident.closed": gettext_noop("incident closed"),
    "alert.acknowledged": gettext_noop("alert acknowledged"),
    "alert.muted": gettext_noop("alert muted"),
    "alert.unmuted": gettext_noop("alert unmuted"),
    "notice.changed": gettext_noop("notice rule changed"),
    "webhook.changed": gettext_noop("webhook changed"),
    "audit.removed": gettext_noop("old part of the audit log removed"),
    "audit.exported": gettext_noop("audit log exported"),
    "backup.made": gettext_noop("backup made"),
    "backup.restored": gettext_noop("backup restored"),
    "admin.added": gettext_noop("added in the administration"),
    "admin.changed": gettext_noop("changed in the administration"),
    "admin.deleted": gettext_noop("deleted in the administration"),
}

#: An entry that has no link after so long was not forgotten by a slow worker.
LINKED_WITHIN = timedelta(minutes=10)
#: Ids may be committed out of order on PostgreSQL: so far behind the last link entries without one are looked for.
LOOK_BACK = 10_000
BATCH = 1_000
FIRST_HASH = "0" * 64

# --- writing ------------------------------------------------------------------------------------------------------

_request: ContextVar[HttpRequest | None] = ContextVar("audit_request", default=None)


def request_known(get_response: Callable[[HttpRequest], HttpResponseBase]) -> Callable[[HttpRequest], HttpResponseBase]:
    """Middleware: entries of this request know its address and how it signed in."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        mark = _request.set(request)
        try:
            return get_response(request)
        finally:
            _request.reset(mark)

    return answer


def audit(
    actor: AbstractBaseUser | str | None,
    action: str,
    target: str = "",
    params: Mapping[str, Any] | None = None,
    *,
    now: datetime | None = None,
) -> None:
    """Writes one entry. Call inside the transaction that does what is told. One INSERT.

    ``actor``: a user, or who else did it ("node gpu-3", "command line"); None = the system by itself.
    ``target``: kind and name, such as "node gpu-3" or "job 42". ``params``: names and numbers, never a secret value.
    Raises ValueError for an action that ACTIONS does not have.
    """
    if action not in ACTIONS:
        raise ValueError(f"{action!r} is no audit action; quotas.audit.ACTIONS names them")
    request = _request.get()
    via, address = _way(request)
    row = {
        "at": now or timezone.now(),
        "actor_id": actor.pk if isinstance(actor, AbstractBaseUser) else None,
        "actor": (actor.get_username() if isinstance(actor, AbstractBaseUser) else actor or "system")[:254],
        "via": via,
        "address": address,
        "action": action,
        "target": target[:200].replace("\0", ""),
        "params": _plain(dict(params or {})),
    }
    with transaction.atomic(savepoint=False):
        rows_insert(AuditEntry, [row])


def _way(request: HttpRequest | None) -> tuple[str, str]:
    """(by way of, address) of the request that is being answered."""
    if request is None:
        return "", ""
    scheme, _space, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() == "bearer":
        # As much of a token as its list shows; of anything else nothing.
        secret = secret.strip()
        via = f"token {secret[:12]}" if secret.startswith("ngt_") and secret.isascii() else "token"
    elif scheme.lower() == "node":
        via = "node"
    else:
        via = str(getattr(request, "audit_via", "session"))
    return via, client_address(request)[:45]


def _plain(value: Any) -> Any:
    """As JSON that comes back from every database as it went in: times as text, floats rounded, no NUL."""
    if isinstance(value, Mapping):
        return {str(key)[:60]: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, float):
        return round(value, 6) if abs(value) < 1e12 else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return text.replace("\0", "")[:2000]


def command_line() -> str:
    """Who runs a management command, as an actor."""
    try:
        return f"command line ({getpass.getuser()})"
    except (KeyError, OSError):  # a user id without a name
        return "command line"


# --- the chain ------------------------------------------------------------------------------------------------------


def entry_hash(before: str, entry: AuditEntry) -> str:
    """SHA-256 over the link before and all columns of the entry, as hex."""
    body = {
        "id": entry.pk,
        "at": entry.at.isoformat(timespec="microseconds"),
        "actor_id": entry.actor_id,
        "actor": entry.actor,
        "via": entry.via,
        "address": entry.address,
        "action": entry.action,
        "target": entry.target,
        "params": entry.params,
    }
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def audit_chain() -> int:
    """Links the entries that have no link yet; returns how many. One query where there are none.

    Two at once: the second meets the first one's numbers, is taken back whole, and leaves the rest to the next call.
    """
    linked = 0
    while True:
        try:
            with transaction.atomic():
                count = _chain_batch()
        except IntegrityError:
            return linked
        linked += count
        if count < BATCH:
            return linked


def _chain_batch() -> int:
    high = AuditLink.objects.aggregate(high=Max("entry_id"))["high"] or 0
    link = AuditLink.objects.filter(entry_id=OuterRef("pk"))
    entries = list(AuditEntry.objects.filter(~Exists(link), pk__gt=high - LOOK_BACK).order_by("pk")[:BATCH])
    if not entries:
        return 0
    last = AuditLink.objects.order_by("-seq").first()
    seq, digest = (last.seq, last.hash) if last is not None else (0, FIRST_HASH)
    links = []
    for entry in entries:
        seq, digest = seq + 1, entry_hash(digest, entry)
        links.append(AuditLink(seq=seq, entry=entry, hash=digest))
    AuditLink.objects.bulk_create(links)
    return len(links)
