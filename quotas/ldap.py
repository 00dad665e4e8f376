"""Sign-in by a directory (NEBULA_LDAP_*): the entry is searched by address, then the password is tried on it.

Needs the package ldap3, which only installations with a directory have. The directory says who somebody is, and nothing more: what
he may is ours. Without an answer from it, passwords of our own still work.
"""

from __future__ import annotations

import logging
import ssl
from typing import Any

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.http import HttpRequest

from quotas.models import User
from quotas.services import user_create
from quotas.unix_accounts import UnixNameRefused, unix_name_set

log = logging.getLogger(__name__)


class LdapBackend(ModelBackend):
    """Asked after our own passwords. Makes the account at the first sign-in."""

    def authenticate(
        self, request: HttpRequest | None, email: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        # An empty password is an anonymous bind, which every directory allows: it would let in whoever knows an address.
        if settings.LDAP is None or not email or not password or "\0" in email or "\0" in password or len(password) > 1000:
            return None
        address = email.strip().lower()
        try:
            validate_email(address)
        except ValidationError:
            return None
        found = entry_find(address, password)
        if found is None:
            return None
        user = User.objects.filter(email=address).first()
        if user is None:
            user = user_create(email=address, first_name=found.get("givenName", "")[:150], last_name=found.get("sn", "")[:150])
        _unix_name_take(user, found.get(settings.LDAP.unix_attribute, "") if settings.LDAP.unix_attribute else "")
        return user if self.user_can_authenticate(user) else None


def connection_open(dn: str, password: str) -> Any:
    """A connection that is bound as ``dn`` (empty = anonymously), or None if it may not. Raises LDAPException."""
    import ldap3

    place = settings.LDAP
    tls = ldap3.Tls(validate=ssl.CERT_REQUIRED, ca_certs_file=place.ca_file or None)
    server = ldap3.Server(place.url, tls=tls, connect_timeout=place.timeout_s, get_info=ldap3.NONE)
    connection = ldap3.Connection(
        server, user=dn or None, password=password or None, receive_timeout=place.timeout_s, read_only=True, raise_exceptions=False
    )
    try:
        connection.open()
    except ldap3.core.exceptions.LDAPException:
        if connection.socket is not None:
            connection.socket.close()
        raise
    if not place.url.startswith("ldaps://") and not connection.start_tls():
        log.error("the directory %s does not speak TLS: nobody signs in by it", place.url)
        return None
    return connection if connection.bind() else None


def entry_find(address: str, password: str) -> dict[str, str] | None:
    """Names of the one entry with this address and password; None if there is none, or more than one. Never raises."""
    from ldap3.core.exceptions import LDAPException
    from ldap3.utils.conv import escape_filter_chars

    place = settings.LDAP
    try:
        searching = connection_open(place.bind_dn, place.bind_password)
        if searching is None:
            log.error("the directory %s refuses NEBULA_LDAP_BIND_DN", place.url)
            return None
        try:
            query = place.filter.replace("{email}", escape_filter_chars(address))
            searching.search(place.base, query, attributes=[*_attributes()], size_limit=2)
            entries = [entry for entry in searching.response or [] if entry.get("type") == "searchResEntry"]
        finally:
            searching.unbind()
        if len(entries) != 1:
            if entries:
                log.error("the directory has more than one entry for %s: nobody signs in by it", address)
            return None
        as_person = connection_open(entries[0]["dn"], password)
        if as_person is None:
            return None
        as_person.unbind()
    except LDAPException as error:
        log.error("the directory %s does not answer: %s", place.url, error)
        return None
    return {name: _first(entries[0]["attributes"].get(name)) for name in _attributes()}


def _attributes() -> tuple[str, ...]:
    extra = settings.LDAP.unix_attribute
    return ("givenName", "sn", extra) if extra else ("givenName", "sn")


def _unix_name_take(user: User, name: str) -> None:
    """Take over the account that the directory names. One that it no longer names stays; an administrator takes it away."""
    if not name:
        return
    try:
        unix_name_set(user, name, how="ldap")
    except UnixNameRefused as error:
        log.error("the directory names the Unix account %r of %s, which can't be used: %s", name[:60], user.email, error)


def _first(value: Any) -> str:
    value = value[0] if isinstance(value, list | tuple) and value else value
    return str(value) if isinstance(value, str) else ""
