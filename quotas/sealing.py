"""Short secrets at rest, such as a webhook's address: sealed with the installation's key, so that a copy of the database alone
tells none. A new NEBULA_SECRET_KEY opens none of the old ones: they are to be entered anew."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

PURPOSE = b"nebulagrid.notice-channels.v1"


@functools.lru_cache(maxsize=4)
def _fernet(key: str) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hmac.new(key.encode(), PURPOSE, hashlib.sha256).digest()))


def seal(text: str) -> str:
    """Empty stays empty."""
    return _fernet(settings.SECRET_KEY).encrypt(text.encode()).decode() if text else ""


def unseal(sealed: str) -> str | None:
    """What was sealed; None if the installation's key is another one now."""
    if not sealed:
        return ""
    try:
        return _fernet(settings.SECRET_KEY).decrypt(sealed.encode()).decode()
    except (InvalidToken, ValueError):
        return None
