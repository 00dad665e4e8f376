"""Projects and their members: lead, user, viewer. A project that is no person's own always has a lead."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from quotas.audit import audit
from quotas.errors import BadValue, ProjectRefused
from quotas.models import ApiToken, Membership, Project, User
from quotas.tokens import token_revoke, tokens_live


def user_by_email(email: str) -> User:
    """Raises BadValue (no_such_user | user_inactive)."""
    user = User.objects.filter(email=email.strip().lower()).first()
    if user is None:
        raise BadValue("no_such_user", params={"field": "email", "email": email.strip()[:254]})
    if not user.is_active:
        raise BadValue("user_inactive", params={"field": "email", "email": user.email})
    return user


def project_create(*, name: str, title: str, lead: User, by: User) -> Project:
    """A project with its first lead. ``name`` is a slug already. Raises ProjectRefused (project_there)."""
    try:
        with transaction.atomic():
            project = Project.objects.create(name=name, title=title[:120])
            Membership.objects.create(project=project, user=lead, role=Membership.Role.LEAD)
            audit(by, "project.created", f"project {name}", {"title": title[:120], "lead": lead.email})
    except IntegrityError as error:
        raise ProjectRefused("project_there", params={"project": name}) from error
    return project


def project_change(*, project: Project, by: User, title: str | None = None, is_active: bool | None = None) -> Project:
    """``None`` leaves as it is. Under a project that is not active nothing new is submitted; what is there goes on."""
    changes: dict[str, Any] = {}
    if title is not None and title[:120] != project.title:
        changes["title"] = title[:120]
    if is_active is not None and is_active != project.is_active:
        changes["is_active"] = is_active
    if changes:
        with transaction.atomic():
            Project.objects.filter(pk=project.pk).update(**changes)
            audit(by, "project.changed", f"project {project.name}", changes)
        project.refresh_from_db()
    return project


def member_add(*, project: Project, user: User, role: str, by: User) -> Membership:
    """Raises ProjectRefused (personal_project | member_there)."""
    _shared(project)
    try:
        with transaction.atomic():
            member = Membership.objects.create(project=project, user=user, role=role)
            audit(by, "member.added", f"project {project.name}", {"member": user.email, "role": role})
    except IntegrityError as error:
        raise ProjectRefused("member_there", params={"project": project.name, "member": user.email}) from error
    return member


def member_change(*, member: Membership, role: str, by: User) -> Membership:
    """Raises ProjectRefused (personal_project | last_lead)."""
    _shared(member.project)
    with transaction.atomic():
        _lead_stays(member, becomes=role)
        if Membership.objects.filter(pk=member.pk).exclude(role=role).update(role=role):
            params = {"member": member.user.email, "role": role, "was": member.role}
            audit(by, "member.changed", f"project {member.project.name}", params)
            if role == Membership.Role.VIEWER:
                _tokens_end(member, by=by)
    member.refresh_from_db()
    return member


def member_remove(*, member: Membership, by: User) -> None:
    """What runs of the member's jobs goes on; the tokens made for the project end. Raises ProjectRefused (personal_project | last_lead)."""
    _shared(member.project)
    with transaction.atomic():
        _lead_stays(member, becomes="")
        _tokens_end(member, by=by)
        Membership.objects.filter(pk=member.pk).delete()
        audit(by, "member.removed", f"project {member.project.name}", {"member": member.user.email, "role": member.role})


def _tokens_end(member: Membership, *, by: User) -> None:
    for token in tokens_live(ApiToken.objects.filter(user=member.user_id, project=member.project_id)).select_related("user"):
        token_revoke(token=token, by=by)


def _shared(project: Project) -> None:
    if project.personal_of_id is not None:
        raise ProjectRefused("personal_project", params={"project": project.name})


def _lead_stays(member: Membership, *, becomes: str) -> None:
    """Locks the project's row, so that two leads who make each other users at once don't both succeed."""
    if becomes == Membership.Role.LEAD:
        return
    Project.objects.select_for_update().get(pk=member.project_id)
    leads = Membership.objects.filter(project=member.project_id, role=Membership.Role.LEAD)
    if leads.filter(pk=member.pk).exists() and not leads.exclude(pk=member.pk).exists():
        raise ProjectRefused("last_lead", params={"project": member.project.name, "member": member.user.email})
