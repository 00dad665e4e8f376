"""How people may sign in besides with a password of ours: what NEBULA_OIDC_*, NEBULA_LDAP_* and NEBULA_SIGNUP ask for.

Read while settings are loaded, so nothing of Django is imported. What is wrong is one sentence that names the setting.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

Env = Callable[..., str]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _all_or_none(found: dict[str, str]) -> dict[str, str] | None:
    """Settings that belong together: all of them, or None if none is set. Raises ImproperlyConfigured for some."""
    if not any(found.values()):
        return None
    missing = [f"NEBULA_{name}" for name, value in found.items() if not value]
    if missing:
        there = next(f"NEBULA_{name}" for name, value in found.items() if value)
        raise ImproperlyConfigured(f"{there} is set, so {' and '.join(missing)} must be too: they belong together.")
    return found


def _needs(package: str, why: str) -> None:
    if find_spec(package) is None:
        raise ImproperlyConfigured(f"{why} needs the Python package {package}, which is not installed: pip install {package}")


# --- OIDC -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Oidc:
    """An OpenID Connect provider. ``server``: its issuer, below which /.well-known/openid-configuration lies."""

    server: str
    client_id: str
    client_secret: str = field(repr=False)
    name: str
    makes_accounts: bool


def oidc_from(env: Env) -> Oidc | None:
    """None without NEBULA_OIDC_*. Raises ImproperlyConfigured."""
    found = _all_or_none(
        {"OIDC_SERVER": env("OIDC_SERVER"), "OIDC_CLIENT_ID": env("OIDC_CLIENT_ID"), "OIDC_CLIENT_SECRET": env("OIDC_CLIENT_SECRET")}
    )
    if found is None:
        return None
    parts = urlsplit(found["OIDC_SERVER"])
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ImproperlyConfigured(
            f"NEBULA_OIDC_SERVER is {found['OIDC_SERVER']!r}; expected a URL such as https://login.example.org/realms/lab."
        )
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ImproperlyConfigured(
            f"NEBULA_OIDC_SERVER {found['OIDC_SERVER']} is plain HTTP; who listens could sign in as anybody. Use https://."
        )
    _needs("requests", "NEBULA_OIDC_SERVER")
    _needs("jwt", "NEBULA_OIDC_SERVER")
    text = env("OIDC_SIGNUP", "1")
    if text not in ("0", "1"):
        raise ImproperlyConfigured(f"NEBULA_OIDC_SIGNUP is {text!r}; expected 1 (make accounts at the first sign-in) or 0.")
    return Oidc(
        server=found["OIDC_SERVER"].rstrip("/"),
        client_id=found["OIDC_CLIENT_ID"],
        client_secret=found["OIDC_CLIENT_SECRET"],
        name=env("OIDC_NAME", "Single sign-on"),
        makes_accounts=text == "1",
    )


def oidc_provider(oidc: Oidc) -> dict[str, Any]:
    """As allauth wants it. An account of ours is found by its address only where the provider says that it is verified."""
    return {
        "APPS": [
            {
                "provider_id": "oidc",
                "name": oidc.name,
                "client_id": oidc.client_id,
                "secret": oidc.client_secret,
                "settings": {"server_url": oidc.server, "token_auth_method": "client_secret_basic", "oauth_pkce_enabled": True},
            }
        ],
        "OAUTH_PKCE_ENABLED": True,
        "EMAIL_AUTHENTICATION": True,
        "EMAIL_AUTHENTICATION_AUTO_CONNECT": True,
    }


# --- LDAP -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ldap:
    """A directory. ``filter`` has ``{email}``, which is put in escaped; ``bind_dn`` empty = the search is anonymous."""

    url: str
    base: str
    filter: str
    bind_dn: str
    bind_password: str = field(repr=False)
    ca_file: str
    unix_attribute: str = ""  # that has a person's Unix account, such as uid; empty = it is not read
    timeout_s: int = 5


def ldap_from(env: Env) -> Ldap | None:
    """None without NEBULA_LDAP_URL. Raises ImproperlyConfigured."""
    found = _all_or_none({"LDAP_URL": env("LDAP_URL"), "LDAP_BASE": env("LDAP_BASE")})
    if found is None:
        return None
    parts = urlsplit(found["LDAP_URL"])
    if parts.scheme not in ("ldaps", "ldap") or not parts.hostname:
        raise ImproperlyConfigured(
            f"NEBULA_LDAP_URL is {found['LDAP_URL']!r}; expected ldaps://directory.example.org, or ldap:// with StartTLS."
        )
    text = env("LDAP_FILTER", "(mail={email})")
    if "{email}" not in text or text.count("(") != text.count(")") or not text.startswith("("):
        raise ImproperlyConfigured(f"NEBULA_LDAP_FILTER is {text!r}; expected a filter with {{email}} in it, such as (mail={{email}}).")
    bind_dn, password = env("LDAP_BIND_DN"), env("LDAP_BIND_PASSWORD")
    if bool(bind_dn) != bool(password):
        raise ImproperlyConfigured("NEBULA_LDAP_BIND_DN and NEBULA_LDAP_BIND_PASSWORD belong together; one of them is not set.")
    _needs("ldap3", "NEBULA_LDAP_URL")
    return Ldap(
        url=found["LDAP_URL"],
        base=found["LDAP_BASE"],
        filter=text,
        bind_dn=bind_dn,
        bind_password=password,
        ca_file=env("LDAP_CA"),
        unix_attribute=_attribute_from(env),
    )


def _attribute_from(env: Env) -> str:
    text = env("LDAP_UNIX_ATTRIBUTE")
    if text and not re.fullmatch(r"[A-Za-z][A-Za-z0-9;-]{0,63}", text):
        raise ImproperlyConfigured(f"NEBULA_LDAP_UNIX_ATTRIBUTE is {text!r}; expected the name of an attribute such as uid.")
    return text


# --- Unix accounts ------------------------------------------------------------------------------------------------------


def unix_range_from(env: Env) -> range | None:
    """The numbers of accounts that are made on demand; None = none is made. Raises ImproperlyConfigured."""
    text = env("UNIX_RANGE").strip()
    if not text:
        return None
    first, dash, last = text.partition("-")
    if not (dash and first.isascii() and first.isdigit() and last.isascii() and last.isdigit() and 1000 <= int(first) <= int(last) < 2**31):
        raise ImproperlyConfigured(f"NEBULA_UNIX_RANGE is {text!r}; expected numbers of accounts from 1000 on, such as 20000-29999.")
    return range(int(first), int(last) + 1)


def unix_prefix_from(env: Env) -> str:
    """What the names of such accounts begin with. Raises ImproperlyConfigured."""
    text = env("UNIX_PREFIX", "nb-")
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,11}", text):
        raise ImproperlyConfigured(
            f"NEBULA_UNIX_PREFIX is {text!r}; expected up to 12 small letters, digits, - and _, a letter or _ first, such as nb-."
        )
    return text


# --- sign-up ------------------------------------------------------------------------------------------------------------


def verification_from(env: Env, *, has_mail: bool, has_signup: bool) -> str:
    """Whether an address must be confirmed. Raises ImproperlyConfigured where people sign up and it can't be."""
    text = env("EMAIL_VERIFICATION", "mandatory" if has_signup else "none")
    if text not in ("none", "optional", "mandatory"):
        raise ImproperlyConfigured(f"NEBULA_EMAIL_VERIFICATION is {text!r}; expected none, optional or mandatory.")
    if has_signup and text != "mandatory":
        raise ImproperlyConfigured("NEBULA_SIGNUP lets people sign up by themselves: NEBULA_EMAIL_VERIFICATION must be mandatory then.")
    if text == "mandatory" and not has_mail:
        why = "NEBULA_SIGNUP is set" if has_signup else "NEBULA_EMAIL_VERIFICATION is mandatory"
        raise ImproperlyConfigured(f"{why}, but without a mail server no address can be confirmed: set NEBULA_EMAIL_HOST.")
    return text
