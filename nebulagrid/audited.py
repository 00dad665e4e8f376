"""What of it is written down: every route that changes something, with the audit action that it leaves, or why it leaves none.

``-events``  the job's own events tell it (an owner's work on a job of his own); another's is ``job.…`` in the audit log
``-agent``   what an agent reports; its ranks, samples and health events tell it
``-reads``   it changes nothing: a check, an estimate, a question
``-own``     one's own language, read marks, a test message: nothing that anybody would ask about later
``-step``    a step of a sign-in; its end is signin.done or signin.failed

A route that changes something and has no row fails tests/test_audited.py, which also calls each and looks for the entry.
"""

from __future__ import annotations

from functools import cache

# fmt: off
TABLE = """
# actions                                methods        route
-events,job.cancelled                    POST           jobs/cancel/
-events                                  POST           jobs/new/
-reads                                   POST           jobs/new/sooner/
-reads                                   POST           jobs/new/check/
-reads                                   POST,PUT,PATCH,DELETE ^v1/(?P<rest>.*)$
node.commanded                           POST           jobs/<int:id>/diagnose/
-events,job.cancelled                    POST           jobs/<int:id>/cancel/
-events,job.held                         POST           jobs/<int:id>/hold/
-events,job.released                     POST           jobs/<int:id>/release/
-events,job.renewed                      POST           jobs/<int:id>/renew/
-events,job.files_removed                POST           jobs/<int:id>/files/remove/
incident.noted,incident.closed           POST           incidents/<int:pk>/write/
alert.acknowledged                       POST           alerts/<int:id>/acknowledge/
alert.acknowledged                       POST           alerts/<int:id>/reopen/
alert.muted                              POST           alerts/mutes/
alert.unmuted                            POST           alerts/mutes/<int:id>/lift/
-own                                     POST           notices/read/
notice.changed                           POST           notices/channels/
webhook.changed                          POST           notices/channels/new/
webhook.changed                          POST           notices/channels/<int:id>/
webhook.changed                          POST           notices/channels/<int:id>/delete/
-own                                     POST           notices/channels/<int:id>/test/
-own                                     POST           notices/channels/email/test/
secret.set                               POST           secrets/
secret.deleted                           POST           secrets/<str:name>/delete/
quota.requested                          POST           quota/requests/new/
quota.approved,quota.denied,quota.withdrawn POST        quota/requests/<int:id>/
quota.approved,quota.denied              POST           quota/approvals/
quota.approved,quota.denied              POST           quota/decide/<str:token>/
node.drained                             POST           nodes/<node:name>/drain/
node.session_confirmed,node.inventory_confirmed POST           nodes/<node:name>/confirm/
node.labelled                            POST           nodes/<node:name>/labels/
node.resumed                             POST           nodes/<node:name>/resume/
node.commanded                           POST           nodes/<node:name>/inspect/
node.commanded                           POST           nodes/<node:name>/commands/
card.isolated,card.maintained,card.tested,card.reset,card.returned POST nodes/<node:name>/gpu<int:index>/act/<slug:action>/
-own                                     POST           i18n/setlang/
signin.done,signin.failed                POST           accounts/login/
signin.ended                             POST           accounts/logout/
user.created                             POST           accounts/signup/
-step                                    POST           accounts/reauthenticate/
-step                                    POST           accounts/reauthenticate/code/
-step                                    POST           accounts/reauthenticate/code/confirm/
-step                                    POST           accounts/login/code/confirm/
user.changed                             POST           accounts/email/
user.changed                             POST           accounts/confirm-email/(?P<key>[-:\\w]+)/$
password.changed                         POST           accounts/password/change/
password.changed                         POST           accounts/password/set/
signin.done,signin.failed                POST           accounts/2fa/authenticate/
-step                                    POST           accounts/2fa/reauthenticate/
mfa.changed                              POST           accounts/2fa/totp/activate/
mfa.changed                              POST           accounts/2fa/totp/deactivate/
mfa.changed                              POST           accounts/2fa/recovery-codes/generate/
session.ended                            POST           accounts/sessions/
user.created                             POST           accounts/sso/signup/
-step                                    POST           accounts/sso/
-step                                    POST           accounts/sso/oidc/(?P<provider_id>[^/]+)/login/
user.changed                             POST           account/
token.created                            POST           account/tokens/new/
token.revoked                            POST           account/tokens/<int:id>/revoke/
project.created                          POST           projects/new/
project.changed,member.added,member.changed,member.removed POST projects/<slug:name>/act/
-step                                    POST           accounts/password/reset/
password.changed                         POST           accounts/password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$
admin.added,admin.changed,admin.deleted  POST           admin/*
node.enrolled                            POST           api/agent/v1/enroll
-agent                                   POST           api/agent/v1/credential
-agent                                   POST           api/agent/v1/sync
-agent                                   PUT            api/agent/v1/logs/<str:rank>
-agent                                   PUT            api/agent/v1/artifacts/<str:rank>/<str:name>
token.created,signin.failed              POST           api/v1/token
-step                                    POST           api/v1/token/jwt
token.created                            POST           api/v1/tokens/
token.revoked                            DELETE         api/v1/tokens/<int:id>
project.created                          POST           api/v1/projects/
project.changed                          PATCH          api/v1/projects/<str:name>
member.added                             POST           api/v1/projects/<str:name>/members
member.changed                           PATCH          api/v1/projects/<str:name>/members/<int:user>
member.removed                           DELETE         api/v1/projects/<str:name>/members/<int:user>
token.revoked                            DELETE         api/v1/projects/<str:name>/tokens/<int:id>
secret.set                               PUT            api/v1/secrets/<str:name>
secret.deleted                           DELETE         api/v1/secrets/<str:name>
node.token                               POST           api/v1/nodes/enroll-token
node.labelled                            PATCH          api/v1/nodes/<str:name>
node.drained                             POST           api/v1/nodes/<str:name>/drain
node.session_confirmed,node.inventory_confirmed POST           api/v1/nodes/<str:name>/confirm
node.resumed                             POST           api/v1/nodes/<str:name>/resume
node.commanded                           POST           api/v1/nodes/<str:name>/commands
node.commanded                           POST           api/v1/nodes/<str:name>/inspections
node.drill                               POST           api/v1/nodes/<str:name>/drill
card.isolated,card.maintained,card.tested,card.reset,card.returned POST api/v1/gpus/<str:uuid>/act
incident.noted                           POST           api/v1/incidents/<int:id>/notes
incident.closed                          POST           api/v1/incidents/<int:id>/close
alert.acknowledged                       POST           api/v1/alerts/<int:id>/acknowledge
alert.acknowledged                       POST           api/v1/alerts/<int:id>/reopen
alert.muted                              POST           api/v1/alerts/mutes/
alert.unmuted                            POST           api/v1/alerts/mutes/<int:id>/lift
-own                                     POST           api/v1/notices/read
webhook.changed                          POST           api/v1/notices/channels/
notice.changed                           PATCH          api/v1/notices/channels/email
webhook.changed                          PATCH,DELETE   api/v1/notices/channels/<int:id>
-own                                     POST           api/v1/notices/channels/<int:id>/test
-events                                  POST           api/v1/jobs/submit
-events                                  POST           api/v1/jobs/apply
-reads                                   POST           api/v1/jobs/estimate
-events,job.cancelled                    POST           api/v1/jobs/<int:id>/cancel
-events,job.held                         POST           api/v1/jobs/<int:id>/hold
-events,job.released                     POST           api/v1/jobs/<int:id>/release
-events,job.renewed                      POST           api/v1/jobs/<int:id>/renew
-events,job.files_removed                DELETE         api/v1/jobs/<int:id>/artifacts
-events                                  POST           api/v1/jobs/<int:id>/clone
node.commanded                           POST           api/v1/jobs/<int:id>/diagnose
quota.requested                          POST           api/v1/quota/requests/
quota.approved,quota.denied              POST           api/v1/quota/requests/<int:id>/decide
quota.withdrawn                          POST           api/v1/quota/requests/<int:id>/withdraw
"""
# fmt: on
REASONS = frozenset({"-events", "-agent", "-reads", "-own", "-step"})


@cache
def audited() -> dict[tuple[str, str], tuple[str, ...]]:
    """(method, route) → its actions, and why not. Raises ValueError for a row that is there twice."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in TABLE.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        actions, methods, route = line.split()
        for method in methods.split(","):
            if (method, route) in found:
                raise ValueError(f"nebulagrid/audited.py has {method} {route} twice.")
            found[method, route] = tuple(actions.split(","))
    return found
