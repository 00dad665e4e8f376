"""Who may call what: one table for pages, REST, agents and sockets. What has no row is refused (nebulagrid/gate.py).

``who``     anyone | user (signed in) | staff | node (an agent with its credential, which the view checks) | nobody (a package has it,
            we do not offer it)
``object``  what of the address must be the caller's: ``job.see`` owner, members of its project, staff; ``job.output`` owner, staff;
            ``job.change`` owner, leads of its project, staff; ``project.see`` members, staff; ``project.lead`` leads, staff;
            ``quota.see`` a request for more of one's own, of projects that one leads, staff all; ``quota.decide`` one whose step is
            the caller's to decide; ``alert.see`` an alert about one's own job, staff all; ``own`` the view looks among the
            caller's own alone; ``node.own`` the node's own rank. What one may not see does not exist: 404.
``scope``   what a token must be good for: read | submit | manage. A browser's session is good for all.
``token``   ``any`` = project tokens too, ``own`` = personal ones alone, ``no`` = a password or a session, never a token.

A route is spelled as the resolver tells it (``request.resolver_match.route``); one ending in ``*`` stands for all below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any


class Who(StrEnum):
    ANYONE = "anyone"
    USER = "user"
    STAFF = "staff"
    NODE = "node"
    NOBODY = "nobody"


class Thing(StrEnum):
    NONE = "-"
    OWN = "own"
    JOB_SEE = "job.see"
    JOB_OUTPUT = "job.output"
    JOB_CHANGE = "job.change"
    PROJECT_SEE = "project.see"
    PROJECT_LEAD = "project.lead"
    QUOTA_SEE = "quota.see"
    QUOTA_DECIDE = "quota.decide"
    ALERT_SEE = "alert.see"
    NODE_OWN = "node.own"


class Tokens(StrEnum):
    ANY = "any"
    OWN = "own"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    who: Who
    thing: Thing
    scope: str
    token: Tokens


# fmt: off
PAGES = """
# methods    who     object        route
GET          user    -             |
GET          user    -             overview/pieces/
GET          user    -             cells/
GET          user    -             cells/heat/
GET          user    -             cells/users/
GET          user    -             search/
GET          user    -             docs/
GET          user    -             docs/<slug:name>/
GET          user    -             jobs/refused/
GET          user    -             jobs/
GET          user    -             jobs/newer/
GET          user    -             jobs/starts/
GET          user    -             jobs/rows/
GET,POST     user    own           jobs/cancel/
GET,POST     user    -             jobs/new/
POST         user    -             jobs/new/sooner/
POST         user    -             jobs/new/check/
GET          user    job.see       jobs/<int:id>/
GET          user    job.output    jobs/<int:id>/log/
GET          user    job.see       jobs/<int:id>/events/
GET          user    job.see       jobs/<int:id>/curves/
GET          user    job.see       jobs/<int:id>/curves/data/
GET          user    job.output    jobs/<int:id>/files/
POST         user    job.output    jobs/<int:id>/files/remove/
GET,POST     user    job.output    jobs/<int:id>/diagnose/
GET          user    job.see       jobs/<int:id>/request/
GET          user    job.see       jobs/<int:id>/row/
GET          user    job.see       jobs/<int:id>/start/
GET          user    job.see       jobs/<int:id>/sooner/
GET          user    job.see       jobs/<int:id>/live/
GET          user    job.see       jobs/<int:id>/cards/
GET,POST     user    job.change    jobs/<int:id>/cancel/
GET,POST     user    job.change    jobs/<int:id>/hold/
POST         user    job.change    jobs/<int:id>/release/
POST         user    job.change    jobs/<int:id>/renew/
GET          user    -             incidents/
GET          user    -             incidents/<int:pk>/
POST         staff   -             incidents/<int:pk>/write/
GET          user    -             alerts/
GET          user    alert.see     alerts/<int:id>/
POST         staff   -             alerts/<int:id>/acknowledge/
POST         staff   -             alerts/<int:id>/reopen/
GET,POST     staff   -             alerts/mutes/
POST         staff   -             alerts/mutes/<int:id>/lift/
GET          user    own           notices/
GET          user    own           notices/bell/
POST         user    own           notices/read/
GET          user    own           notices/<int:id>/
GET,POST     user    own           notices/channels/
GET,POST     user    own           notices/channels/new/
GET,POST     user    own           notices/channels/<int:id>/
POST         user    own           notices/channels/<int:id>/delete/
POST         user    own           notices/channels/<int:id>/test/
POST         user    own           notices/channels/email/test/
GET          staff   -             audit/
GET,POST     user    own           secrets/
POST         user    own           secrets/<str:name>/delete/
GET          user    -             quota/
POST         user    own           quota/requests/new/
GET,POST     user    quota.see     quota/requests/<int:id>/
GET,POST     user    own           quota/approvals/
GET,POST     anyone  -             quota/decide/<str:token>/
GET          user    own           usage/
GET          user    own           usage/statement.csv
GET          user    -             nodes/
GET          user    -             nodes/<node:name>/
GET          user    -             nodes/<node:name>/curves/
GET          user    -             nodes/<node:name>/gpu<int:index>/
GET          user    -             nodes/<node:name>/gpu<int:index>/curves/
GET          staff   -             nodes/add/new/
GET,POST     staff   -             nodes/<node:name>/drain/
POST         staff   -             nodes/<node:name>/confirm/
GET,POST     staff   -             nodes/<node:name>/labels/
POST         staff   -             nodes/<node:name>/resume/
POST         staff   -             nodes/<node:name>/inspect/
GET,POST     staff   -             nodes/<node:name>/commands/
GET,POST     staff   -             nodes/<node:name>/gpu<int:index>/act/<slug:action>/
GET          anyone  -             favicon.ico
GET          anyone  -             icons.svg
GET          anyone  -             healthz
GET          anyone  -             metrics
GET          anyone  -             install.sh
GET          anyone  -             install.json
GET          anyone  -             ca.pem
GET          anyone  -             dist/
GET          anyone  -             dist/<str:name>
POST         anyone  -             i18n/setlang/
GET,POST     anyone  -             accounts/login/
GET,POST     anyone  -             accounts/logout/
GET          anyone  -             accounts/inactive/
GET,POST     anyone  -             accounts/signup/
GET          anyone  -             accounts/invitation/<str:token>/
GET,POST     user    own           accounts/reauthenticate/
GET,POST     nobody  -             accounts/reauthenticate/code/
GET,POST     nobody  -             accounts/reauthenticate/code/confirm/
GET,POST     nobody  -             accounts/login/code/confirm/
GET,POST     nobody  -             accounts/email/
GET          anyone  -             accounts/confirm-email/
GET,POST     anyone  -             accounts/confirm-email/(?P<key>[-:\\w]+)/$
GET,POST     user    own           accounts/password/change/
GET,POST     user    own           accounts/password/set/
GET          user    own           accounts/2fa/
GET,POST     anyone  -             accounts/2fa/authenticate/
GET,POST     user    own           accounts/2fa/reauthenticate/
GET,POST     user    own           accounts/2fa/totp/activate/
GET,POST     user    own           accounts/2fa/totp/deactivate/
GET          user    own           accounts/2fa/recovery-codes/
GET,POST     user    own           accounts/2fa/recovery-codes/generate/
GET          user    own           accounts/2fa/recovery-codes/download/
GET,POST     user    own           accounts/sessions/
GET          anyone  -             accounts/sso/login/cancelled/
GET          anyone  -             accounts/sso/login/error/
GET,POST     anyone  -             accounts/sso/signup/
GET,POST     nobody  -             accounts/sso/
GET,POST     anyone  -             accounts/sso/oidc/(?P<provider_id>[^/]+)/login/
GET          anyone  -             accounts/sso/oidc/(?P<provider_id>[^/]+)/login/callback/
GET,POST     user    own           account/
POST         user    own           account/tokens/new/
POST         user    own           account/tokens/<int:id>/revoke/
GET          user    own           projects/
POST         staff   -             projects/new/
GET          user    project.see   projects/<slug:name>/
POST         user    project.lead  projects/<slug:name>/act/
GET,POST     anyone  -             accounts/password/reset/
GET          anyone  -             accounts/password/reset/done/
GET,POST     anyone  -             accounts/password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$
GET          anyone  -             accounts/password/reset/key/done/
GET,POST     staff   -             admin/*
GET,POST,PUT,PATCH,DELETE anyone - ^v1/(?P<rest>.*)$
"""

API = """
# methods    who     object        scope   token  route below api/v1/
POST         anyone  -             manage  no     token
GET          user    -             read    any    me
POST         user    -             read    any    token/jwt
GET          user    own           read    own    tokens/
POST         user    own           manage  own    tokens/
DELETE       user    own           manage  own    tokens/<int:id>
GET          user    -             read    any    projects/
POST         staff   -             manage  own    projects/
GET          user    project.see   read    any    projects/<str:name>
PATCH        user    project.lead  manage  own    projects/<str:name>
POST         user    project.lead  manage  own    projects/<str:name>/members
PATCH        user    project.lead  manage  own    projects/<str:name>/members/<int:user>
DELETE       user    project.lead  manage  own    projects/<str:name>/members/<int:user>
GET          user    project.lead  manage  own    projects/<str:name>/tokens
DELETE       user    project.lead  manage  own    projects/<str:name>/tokens/<int:id>
GET          user    own           read    any    secrets/
PUT          user    own           manage  own    secrets/<str:name>
DELETE       user    own           manage  own    secrets/<str:name>
GET          staff   -             manage  own    audit/
GET          staff   -             manage  own    audit/export
GET          user    -             read    any    nodes/
POST         staff   -             manage  own    nodes/enroll-token
GET          user    -             read    any    nodes/<str:name>
PATCH        staff   -             manage  own    nodes/<str:name>
POST         staff   -             manage  own    nodes/<str:name>/drain
POST         staff   -             manage  own    nodes/<str:name>/confirm
POST         staff   -             manage  own    nodes/<str:name>/resume
POST         staff   -             manage  own    nodes/<str:name>/commands
GET          staff   -             read    own    nodes/<str:name>/commands/<int:id>
GET          user    -             read    any    nodes/<str:name>/samples
GET          user    -             read    any    nodes/<str:name>/inspections
POST         staff   -             manage  own    nodes/<str:name>/inspections
POST         staff   -             manage  own    nodes/<str:name>/drill
GET          user    -             read    any    gpus/
GET          user    -             read    any    gpus/<str:uuid>/health
POST         staff   -             manage  own    gpus/<str:uuid>/act
GET          user    -             read    any    gpus/<str:uuid>/samples
GET          user    -             read    any    pool/samples
GET          user    -             read    any    incidents/
GET          user    -             read    any    incidents/<int:id>
POST         staff   -             manage  own    incidents/<int:id>/notes
POST         staff   -             manage  own    incidents/<int:id>/close
GET          user    -             read    own    alerts/
GET          user    -             read    own    alerts/rules
GET          user    alert.see     read    own    alerts/<int:id>
POST         staff   -             manage  own    alerts/<int:id>/acknowledge
POST         staff   -             manage  own    alerts/<int:id>/reopen
GET          staff   -             read    own    alerts/mutes/
POST         staff   -             manage  own    alerts/mutes/
POST         staff   -             manage  own    alerts/mutes/<int:id>/lift
GET          user    own           read    own    notices/
POST         user    own           manage  own    notices/read
GET          user    own           read    own    notices/channels/
POST         user    own           manage  own    notices/channels/
PATCH        user    own           manage  own    notices/channels/email
GET          user    own           read    own    notices/channels/<int:id>
PATCH        user    own           manage  own    notices/channels/<int:id>
DELETE       user    own           manage  own    notices/channels/<int:id>
POST         user    own           manage  own    notices/channels/<int:id>/test
GET          user    -             read    any    jobs/
POST         user    -             submit  any    jobs/submit
GET          user    -             read    any    jobs/refused
POST         user    -             submit  any    jobs/apply
POST         user    -             read    any    jobs/estimate
GET          user    job.see       read    any    jobs/<int:id>
GET          user    job.see       read    any    jobs/<int:id>/wait
POST         user    job.change    submit  any    jobs/<int:id>/cancel
POST         user    job.change    submit  any    jobs/<int:id>/hold
POST         user    job.change    submit  any    jobs/<int:id>/release
POST         user    job.change    submit  any    jobs/<int:id>/renew
GET          user    job.see       read    any    jobs/<int:id>/why
GET          user    job.see       read    any    jobs/<int:id>/alternatives
GET          user    job.see       read    any    jobs/<int:id>/clone
POST         user    job.see       submit  any    jobs/<int:id>/clone
GET          user    job.see       read    any    jobs/<int:id>/events
GET          user    job.see       read    any    jobs/<int:id>/samples
GET          user    job.output    read    any    jobs/<int:id>/logs
GET          user    job.output    read    any    jobs/<int:id>/logs/download
GET          user    job.output    read    any    jobs/<int:id>/diagnose
POST         user    job.output    manage  own    jobs/<int:id>/diagnose
GET          user    job.output    read    any    jobs/<int:id>/artifacts
DELETE       user    job.output    submit  any    jobs/<int:id>/artifacts
GET          user    job.output    read    any    jobs/<int:id>/artifacts/<int:rank>/<path:name>
GET          user    -             read    any    resources/usage
GET          user    -             read    own    quota
GET          user    own           read    own    quota/requests/
POST         user    own           manage  own    quota/requests/
GET          user    quota.see     read    own    quota/requests/<int:id>
POST         user    quota.decide  manage  own    quota/requests/<int:id>/decide
POST         user    own           manage  own    quota/requests/<int:id>/withdraw
GET          user    own           read    own    usage/statement
GET          user    own           read    own    usage/storage
GET          user    own           read    own    usage/statement.csv
GET          anyone  -             read    any    schema
GET          anyone  -             read    any    docs
"""

AGENTS = """
# methods    who     object        route below api/agent/v1/
POST         anyone  -             enroll
POST         node    -             credential
POST         node    -             sync
PUT          node    node.own      logs/<str:rank>
PUT          node    node.own      artifacts/<str:rank>/<str:name>
"""

#: Groups that a person's socket may join, by the word before the dot. An agent's own group comes with its credential.
SOCKETS = """
# who     object     topic
user      -          pool
user      own        user
user      job.see    job
staff     -          node
"""
# fmt: on

#: Routes that are mounted only where NEBULA_OIDC_* is set.
OPTIONAL = "accounts/sso/"
#: Whatever has no view: the API's own 404, for all methods.
CATCH_ALL = "^api/"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def routes_mounted(patterns: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """(route, view) of all that is mounted, routes spelled as the resolver tells them."""
    for pattern in patterns:
        here = str(pattern.pattern)
        route = before + (here.removeprefix("^") if before else here)
        if hasattr(pattern, "url_patterns"):
            yield from routes_mounted(pattern.url_patterns, route)
        else:
            yield route, pattern.callback


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


@cache
def rules() -> dict[str, dict[str, Rule]]:
    """Route → method → rule. Raises ValueError for a row that is not understood or there twice."""
    found: dict[str, dict[str, Rule]] = {}

    def add(methods: str, route: str, rule: Rule) -> None:
        for method in methods.split(","):
            if method not in METHODS or method in found.setdefault(route, {}):
                raise ValueError(f"The authorisation table has {method} {route} twice, or that is no method.")
            found[route][method] = rule

    for prefix, text in (("", PAGES), ("api/agent/v1/", AGENTS)):
        for methods, who, thing, route in _lines(text):
            add(methods, prefix + route.replace("|", ""), Rule(who=Who(who), thing=Thing(thing), scope="", token=Tokens.NO))
    for methods, who, thing, scope, token, route in _lines(API):
        if scope not in ("read", "submit", "manage"):
            raise ValueError(f"The authorisation table has the scope {scope!r} at {route}; there are read, submit and manage.")
        add(methods, f"api/v1/{route}", Rule(who=Who(who), thing=Thing(thing), scope=scope, token=Tokens(token)))
    return found


@cache
def sockets() -> dict[str, Rule]:
    """The word before a topic's dot → rule."""
    rows = _lines(SOCKETS)
    return {topic: Rule(who=Who(who), thing=Thing(thing), scope="read", token=Tokens.ANY) for who, thing, topic in rows}


@cache
def rules_of(route: str) -> dict[str, Rule]:
    """The rules of a route, by method; empty = there is no row, and nobody may."""
    exact = rules().get(route)
    if exact is not None:
        return exact
    for known, found in rules().items():
        if known.endswith("*") and route.startswith(known[:-1]):
            return found
    return {}


def rule_for(route: str, method: str) -> Rule | None:
    """HEAD counts as GET. OPTIONS, which tells about a route, is for whoever may do the first thing there."""
    found = rules_of(route)
    if method == "OPTIONS":
        return next(iter(found.values()), None)
    return found.get("GET" if method == "HEAD" else method)
