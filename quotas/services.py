"""Writes to people, projects and quotas.

Counters of a quota move by conditional UPDATE only: two requests at once can't both take the last place, on SQLite
and PostgreSQL alike. Rows are taken in one order, user before project, so that two transactions never wait for each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import DatabaseError, IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest
from django.utils import timezone
from django.utils.text import slugify

from quotas import calendar
from quotas.audit import audit
from quotas.errors import BadValue, QuotaExceeded
from quotas.models import Membership, Project, Quota, QuotaRequest, User

#: Limits with what is granted on top, as SQL: active jobs, GPU-seconds this month.
JOBS_LIMIT = F("max_active_jobs") + F("extra_active_jobs")
HOURS_LIMIT_S = F("gpu_hours") * 3600.0 + F("extra_gpu_hours") * 3600.0  # each by itself: PostgreSQL's integers end at 2^31
#: The same without what runs and is not charged yet: what may be charged before the limit is reached.
HOURS_LEFT_S = HOURS_LIMIT_S - F("live_gpu_s")

# --- quota rows -------------------------------------------------------------------------------------------------


def quota_for(user: User | int, *, now: datetime | None = None) -> Quota:
    """The user's quota, made at first sight (two at once make one), with the counter of the current month."""
    limits = {"gpu_hours": settings.DEFAULT_GPU_HOURS, "max_active_jobs": settings.DEFAULT_ACTIVE_JOBS or None}
    limits |= {"max_storage_mib": settings.DEFAULT_STORAGE_MIB or None}
    quota, _ = Quota.objects.get_or_create(user_id=_pk(user), defaults={**limits, "period_start": calendar.month_of(now or timezone.now())})
    return _quota_rolled(quota, now=now or timezone.now())


def quota_for_project(project: Project | int, *, now: datetime | None = None) -> Quota | None:
    """The project's quota, or None: a project without a row has no limit of its own."""
    quota = Quota.objects.filter(project_id=_pk(project)).first()
    return _quota_rolled(quota, now=now or timezone.now()) if quota else None


def quota_roll(rows: QuerySet[Quota], *, now: datetime) -> int:
    """Start the counter of a new month where the row still has an older one. Never moves a row back."""
    month = calendar.month_of(now)
    return rows.filter(Q(period_start__isnull=True) | Q(period_start__lt=month)).update(
        used_gpu_s=0.0, live_gpu_s=0.0, told_pct=0, period_start=month, updated_at=now
    )


def _quota_rolled(quota: Quota, *, now: datetime) -> Quota:
    month = calendar.month_of(now)
    is_old = quota.period_start is None or quota.period_start < month
    if is_old:
        quota_roll(Quota.objects.filter(pk=quota.pk), now=now)
    if quota.extras_until is not None and quota.extras_until <= now:
        extras_refresh(quota.pk, now=now)
        is_old = True
    if is_old:
        quota.refresh_from_db()
    return quota


def extras_refresh(quota_id: int, *, now: datetime) -> None:
    """What is granted on top, from the grants in force at ``now``; the others are marked as ended. Idempotent. A few statements."""
    with transaction.atomic(savepoint=False):
        Quota.objects.select_for_update().filter(pk=quota_id).values_list("pk").first()
        QuotaRequest.objects.filter(quota_id=quota_id, state=QuotaRequest.State.APPROVED, granted_until__lte=now).update(
            state=QuotaRequest.State.ENDED
        )
        extra: Counter[str] = Counter()
        by_model: Counter[str] = Counter()
        until: datetime | None = None
        grants = QuotaRequest.objects.filter(quota_id=quota_id, state=QuotaRequest.State.APPROVED)
        for what, model, amount, ends in grants.values_list("what", "model", "granted_amount", "granted_until"):
            if what == QuotaRequest.What.MODEL_CARDS:
                by_model[model] += amount or 0
            else:
                extra[what] += amount or 0
            until = ends if until is None or (ends is not None and ends < until) else until
        Quota.objects.filter(pk=quota_id).update(
            extra_gpu_hours=extra[QuotaRequest.What.GPU_HOURS],
            extra_active_jobs=extra[QuotaRequest.What.ACTIVE_JOBS],
            extra_cards=extra[QuotaRequest.What.CARDS],
            extra_model_cards=dict(by_model),
            extras_until=until,
            told_pct=0,  # of another limit nobody was told yet
            updated_at=now,
        )


# --- what is held against a quota ---------------------------------------------------------------------------------


def quota_job_admit(
    *,
    user: int,
    project: int | None = None,
    now: datetime,
    is_forced: bool = False,
    judge: Callable[[Quota], QuotaExceeded | None] | None = None,
) -> None:
    """Count one more active job against the user and the project. Call inside the transaction that inserts the job.
    ``is_forced`` counts whatever the limit: the job is there already. ``judge`` may refuse for a limit that only the caller can
    judge, such as one by card model.

    Two statements. Raises QuotaExceeded (what = gpu_hours | active_jobs, or the judge's); nothing is counted then.
    """
    with transaction.atomic(savepoint=False):
        rows = _quotas_lock(user=user, project=project, now=now)
        refusal = None
        if not is_forced:
            refusal = next((error for quota in rows if (error := refusal_of(quota, now=now) or (judge(quota) if judge else None))), None)
        if refusal is None:
            admitted = Quota.objects.filter(pk__in=[quota.pk for quota in rows])
            if not is_forced:
                admitted = admitted.filter(Q(gpu_hours__isnull=True) | Q(used_gpu_s__lt=HOURS_LEFT_S))
                admitted = admitted.filter(Q(max_active_jobs__isnull=True) | Q(active_jobs__lt=JOBS_LIMIT))
            if admitted.update(active_jobs=F("active_jobs") + 1) != len(rows):
                raise DatabaseError("a quota is not as it was locked")
    if refusal is not None:
        raise refusal


def _quotas_lock(*, user: int, project: int | None, now: datetime) -> list[Quota]:
    """The rows that count for this user and project, locked, the user's first, with the counters of this month. One query, but
    where a user has none yet or a month is new."""
    whose = Q(user_id=user) if project is None else Q(user_id=user) | Q(project_id=project)
    query = Quota.objects.select_for_update().filter(whose).order_by(F("project_id").asc(nulls_first=True))
    rows = list(query)
    if not rows or rows[0].user_id is None:
        quota_for(user, now=now)
        rows = list(query)
    return [_quota_rolled(quota, now=now) for quota in rows]


def quota_jobs_done(owners: Iterable[tuple[int, int | None]]) -> None:
    """``quota_job_done`` for many jobs, as (user id, project id) pairs. Rows are taken in id order, users before projects."""
    pairs = list(owners)
    if len(pairs) == 1:
        quota_job_done(user=pairs[0][0], project=pairs[0][1])
        return
    users = Counter(user for user, _ in pairs)
    projects = Counter(project for _, project in pairs if project is not None)
    for user in sorted(users):
        Quota.objects.filter(user_id=user).update(active_jobs=Greatest(F("active_jobs") - users[user], 0))
    for project in sorted(projects):
        Quota.objects.filter(project_id=project).update(active_jobs=Greatest(F("active_jobs") - projects[project], 0))


def quota_job_done(*, user: User | int, project: Project | int | None = None, count: int = 1) -> None:
    """Give back ``count`` active jobs. Call in the transaction that moves the job to its final state."""
    if count > 0:
        # Never under 0: a counter that an admin corrected while jobs ran must not turn the last end into an error.
        whose = Q(user_id=_pk(user)) if project is None else Q(user_id=_pk(user)) | Q(project_id=_pk(project))
        Quota.objects.filter(whose).update(active_jobs=Greatest(F("active_jobs") - count, 0))


def cards_hold(*, user: int, project: int | None = None, n: int, now: datetime) -> None:
    """Count ``n`` more held cards whatever the limit: they are in use already. A pass asks ``Counters`` instead. Call inside the
    transaction that takes the slices."""
    rows = _quotas_lock(user=user, project=project, now=now)
    Quota.objects.filter(pk__in=[quota.pk for quota in rows]).update(held_cards=F("held_cards") + n)


def owner_of(quota: Quota) -> str:
    """Whom a message names. Causes a SQL query unless the owner is loaded."""
    return quota.user.email if quota.user is not None else str(quota.project)


def refusal_of(quota: Quota, *, now: datetime) -> QuotaExceeded | None:
    """Why this row admits no more jobs, or None. Reads the row as loaded."""
    hours, jobs = quota.gpu_hours_limit, quota.active_jobs_limit
    if hours is not None and quota.spent_gpu_s >= hours * 3600.0 and quota.period_start == calendar.month_of(now):
        return _exceeded("gpu_hours", quota, used=round(quota.spent_gpu_s / 3600, 2), limit=hours, resets_at=calendar.resets_at(now))
    if jobs is not None and quota.active_jobs >= jobs:
        return _exceeded("active_jobs", quota, used=quota.active_jobs, limit=jobs)
    return None


def _exceeded(what: str, quota: Quota, *, used: float, limit: int | None, resets_at: datetime | None = None) -> QuotaExceeded:
    return QuotaExceeded(
        params={
            "what": what,
            "used": used,
            "limit": limit or 0,
            "resets_at": resets_at.isoformat() if resets_at else None,
            "owner": owner_of(quota),
        }
    )


def _pk(thing: User | Project | int) -> int:
    return thing if isinstance(thing, int) else thing.pk


# --- people and projects --------------------------------------------------------------------------------------------


@transaction.atomic
def user_create(*, email: str, password: str | None = None, is_staff: bool = False, is_superuser: bool = False, **extra: Any) -> User:
    """A user with a personal project and a quota. Raises BadValue if the address is taken."""
    if User.objects.filter(email__iexact=email).exists():
        raise BadValue("email_taken", params={"email": email})
    user = User.objects.create_user(email, password, is_staff=is_staff or is_superuser, is_superuser=is_superuser, **extra)
    user_provision(user=user)
    address_confirm(user=user)
    audit(None, "user.created", f"user {user.email}", {"is_staff": user.is_staff})
    return user


def address_confirm(*, user: User) -> None:
    """Who makes or changes an account for somebody vouches for the address: it needs no mail with a link any more. Idempotent."""
    from allauth.account.models import EmailAddress

    EmailAddress.objects.filter(user=user).exclude(email=user.email).delete()
    EmailAddress.objects.update_or_create(user=user, email=user.email, defaults={"verified": True, "primary": True})


def user_provision(*, user: User) -> None:
    """Personal project and quota of a user who came by another door (sign-up, admin, createsuperuser). Idempotent."""
    project_personal(user)
    quota_for(user)


def project_personal(user: User) -> Project:
    """The user's own project, made at first sight. Named after the e-mail's local part, with a number where taken."""
    known: Project | None = user._state.fields_cache.get("personal_project")
    found = known if known is not None and not known._state.adding else Project.objects.filter(personal_of=user).first()
    if found:
        return found
    base = slugify(re.sub(r"[._+@]+", "-", user.email.split("@")[0]))[:50].strip("-_") or "user"
    for number in range(1, 10_000):
        name = base if number == 1 else f"{base}-{number}"
        if number > 1 and Project.objects.filter(name=name).exists():
            continue
        try:
            with transaction.atomic():
                project = Project.objects.create(name=name, title=user.get_full_name()[:120], personal_of=user)
                Membership.objects.create(project=project, user=user, role=Membership.Role.LEAD)
                return project
        except IntegrityError:
            # The name is taken, or this user's project was made by someone else meanwhile.
            if found := Project.objects.filter(personal_of=user).first():
                return found
    raise BadValue("project_name_taken", params={"name": base})
