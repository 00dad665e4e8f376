"""What others than our services do: sign-ins by Django and allauth, and every change in the administration.

The administration writes its own log through ``LogEntry.objects.log_actions``, whichever page or bulk action it is and of whichever
package; each entry there becomes one of ours in the same transaction.
"""

from __future__ import annotations

import json
from functools import wraps
from typing import Any

from allauth.account.signals import (
    email_changed,
    email_confirmed,
    password_changed,
    password_reset,
    password_set,
    user_signed_up,
)
from allauth.mfa.signals import authenticator_added, authenticator_removed, authenticator_reset
from django.contrib.admin.models import ADDITION, CHANGE, LogEntryManager
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed

from quotas.audit import audit
from quotas.models import User

_ADMIN = {ADDITION: "admin.added", CHANGE: "admin.changed"}


def _signed_in(sender: Any, request: Any, user: Any, **more: Any) -> None:
    audit(user, "signin.done")


def _signed_out(sender: Any, request: Any, user: Any, **more: Any) -> None:
    if user is not None:
        audit(user, "signin.ended")


def _sign_in_failed(sender: Any, credentials: dict[str, Any], **more: Any) -> None:
    # What was typed is told only if it is somebody's address: people type passwords into the wrong field.
    email = str(credentials.get("email") or credentials.get("username") or "").lower()[:254]
    known = User.objects.filter(email=email).first() if email and "\0" not in email else None
    audit("unknown", "signin.failed", f"user {known.email}" if known is not None else "")


def _password_changed(sender: Any, request: Any, user: Any, **more: Any) -> None:
    audit(user, "password.changed")


def _mfa_changed(sender: Any, request: Any, user: Any, authenticator: Any, signal: Any, **more: Any) -> None:
    what = {authenticator_added: "added", authenticator_removed: "removed"}.get(signal, "renewed")
    audit(user, "mfa.changed", "", {"what": what, "kind": str(authenticator.type)})


def _email_confirmed(sender: Any, request: Any, email_address: Any, **more: Any) -> None:
    audit(email_address.user, "user.changed", f"user {email_address.user.email}", {"what": "e-mail confirmed"})


def _signed_up(sender: Any, request: Any, user: Any, **more: Any) -> None:
    audit(user, "user.created", f"user {user.email}", {"what": "signed up"})


def _email_changed(sender: Any, request: Any, user: Any, **more: Any) -> None:
    audit(user, "user.changed", f"user {user.email}", {"what": "e-mail"})


def _log_actions_audited(original: Any) -> Any:
    @wraps(original)
    def log_actions(self: Any, user_id: int, queryset: Any, action_flag: int, *args: Any, **kwargs: Any) -> Any:
        things = list(queryset)
        made = original(self, user_id, things, action_flag, *args, **kwargs)
        actor = User.objects.filter(pk=user_id).first()
        for thing, entry in zip(things, made if isinstance(made, list) else [made], strict=True):
            params = {"name": entry.object_repr, "what": _told(entry.change_message)}
            audit(actor, _ADMIN.get(action_flag, "admin.deleted"), f"{thing._meta.model_name} {thing.pk}", params)
        return made

    log_actions.is_audited = True  # type: ignore[attr-defined]
    return log_actions


def _told(message: str) -> Any:
    """The administration's list of what was changed, in no language; or its text."""
    try:
        return json.loads(message)
    except ValueError:
        return message


def connect() -> None:
    """Once, when the apps are ready. A second call changes nothing."""
    user_logged_in.connect(_signed_in, dispatch_uid="audit")
    user_logged_out.connect(_signed_out, dispatch_uid="audit")
    user_login_failed.connect(_sign_in_failed, dispatch_uid="audit")
    for signal in (password_set, password_changed, password_reset):
        signal.connect(_password_changed, dispatch_uid="audit")
    for signal in (authenticator_added, authenticator_removed, authenticator_reset):
        signal.connect(_mfa_changed, dispatch_uid="audit")
    email_changed.connect(_email_changed, dispatch_uid="audit")
    email_confirmed.connect(_email_confirmed, dispatch_uid="audit")
    user_signed_up.connect(_signed_up, dispatch_uid="audit")
    if not hasattr(LogEntryManager.log_actions, "is_audited"):
        LogEntryManager.log_actions = _log_actions_audited(LogEntryManager.log_actions)  # type: ignore[method-assign]
