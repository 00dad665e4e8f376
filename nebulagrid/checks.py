"""Is this installation set up sanely? `manage.py check --deploy` says what to do about each finding."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connection

#: On SQLite one writer works at a time; 84–145 agent reports a second were measured, a node sends one each 5 s.
SQLITE_NODES = 100


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@register(Tags.security)
def check_data_folder(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """The data folder holds job output, keys and the database: nobody else may read it."""
    try:
        found = settings.DATA_DIR.stat()
    except FileNotFoundError:
        return []
    problems: list[CheckMessage] = []
    if found.st_mode & 0o077:
        problems.append(
            Warning(
                f"{settings.DATA_DIR} has mode {found.st_mode & 0o777:04o}: other users of this machine can look into it.",
                hint=f"chmod 700 {settings.DATA_DIR}",
                id="nebulagrid.W001",
            )
        )
    if found.st_uid != os.getuid() and os.getuid() != 0:
        problems.append(
            Error(
                f"{settings.DATA_DIR} belongs to user {found.st_uid}, this process runs as {os.getuid()}.",
                hint="Run as the owner, or set NEBULA_DATA to a folder of your own.",
                id="nebulagrid.E001",
            )
        )
    return problems


@register(Tags.security)
def check_secret_key(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    if len(settings.SECRET_KEY) < 32:
        return [
            Error(
                f"NEBULA_SECRET_KEY has {len(settings.SECRET_KEY)} characters; sessions could be forged.",
                hint="Use at least 50 random characters, or leave it unset: one is then made in the data folder.",
                id="nebulagrid.E002",
            )
        ]
    return []


@register(Tags.security)
def check_transport(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Credentials travel in each request: plain HTTP is for loopback only."""
    problems: list[CheckMessage] = []
    base = urlsplit(settings.BASE_URL)
    if base.scheme not in ("http", "https") or not base.hostname:
        problems.append(
            Error(f"NEBULA_BASE_URL is {settings.BASE_URL!r}; expected a URL such as https://grid.example.org.", id="nebulagrid.E003")
        )
    elif base.scheme == "http" and not is_loopback(base.hostname):
        problems.append(
            Error(
                f"NEBULA_BASE_URL {settings.BASE_URL} is plain HTTP beyond loopback: passwords and tokens would travel in the clear.",
                hint="Serve HTTPS (NEBULA_TLS_CERT and NEBULA_TLS_KEY, or a proxy in front) and use an https:// URL.",
                id="nebulagrid.E004",
            )
        )
    if not is_loopback(settings.BIND) and not settings.TLS_CERT:
        problems.append(
            Error(
                f"NEBULA_BIND {settings.BIND} listens beyond this machine without TLS.",
                hint="Set NEBULA_TLS_CERT and NEBULA_TLS_KEY, or bind to 127.0.0.1 behind a proxy that speaks HTTPS.",
                id="nebulagrid.E005",
            )
        )
    if bool(settings.TLS_CERT) != bool(settings.TLS_KEY):
        problems.append(Error("NEBULA_TLS_CERT and NEBULA_TLS_KEY belong together; one of them is not set.", id="nebulagrid.E006"))
    return problems


@register()
def check_policy(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """A policy that no pass could work with would leave every job waiting."""
    from jobs.policy import PolicyError, policy_current

    try:
        policy_current()
    except PolicyError as error:
        return [Error(str(error), hint="docs/settings.md, Scheduling.", id="nebulagrid.E007")]
    wishes = {name.removeprefix("NEBULA_").removesuffix("_FILE") for name in os.environ if name.startswith("NEBULA_POLICY_")}
    return [
        Warning(f"NEBULA_{name} is no setting: nothing reads it.", hint="docs/settings.md, Scheduling.", id="nebulagrid.W007")
        for name in sorted(wishes)
        if not hasattr(settings, name)
    ]


@register(Tags.security)
def check_access(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """Each route has a row in the authorisation table. What has none is refused to everybody; here one hears of it before that."""
    from django.urls import get_resolver

    from nebulagrid.access import CATCH_ALL, routes_mounted, rules_of

    return [
        Error(f"The route {route} has no row in the authorisation table.", hint="nebulagrid/access.py", id="nebulagrid.E008")
        for route, _view in routes_mounted(get_resolver().url_patterns)
        if route != CATCH_ALL and not rules_of(route)
    ]


@register()
def check_idle(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    from jobs.idle import queues_read

    try:
        queues_read(settings.IDLE_QUEUES)
    except ValueError as error:
        return [Error(str(error), hint="docs/scheduling.md, Jobs that do nothing.", id="nebulagrid.E020")]
    return []


@register(Tags.security, deploy=True)
def check_debug(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.DEBUG:
        return [Warning("NEBULA_DEBUG is on: error pages show settings and source.", hint="Unset NEBULA_DEBUG.", id="nebulagrid.W002")]
    return []


@register(Tags.database, deploy=True)
def check_database_size(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """SQLite serves a small site well; a large one needs PostgreSQL. Causes a SQL query."""
    from nodes.models import Node

    if connection.vendor != "sqlite":
        return []
    try:
        nodes = Node.objects.count()
    except DatabaseError:
        return []  # not migrated yet
    if nodes > SQLITE_NODES:
        return [
            Warning(
                f"{nodes} nodes report to an SQLite database; it is meant for at most {SQLITE_NODES}.",
                hint="Move to PostgreSQL: set NEBULA_DATABASE_URL (docs/operations.md).",
                id="nebulagrid.W003",
            )
        ]
    return []
