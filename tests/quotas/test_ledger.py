"""A slice is charged once, for the time it was ACTIVE, by its share of the card."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import DatabaseError, transaction

from quotas.counters import Counters
from quotas.ledger import Charge, charge
from quotas.models import LedgerEntry, Quota
from quotas.services import quota_for, quota_roll
from tests.factories import project_make, user_make
from tests.threads import in_threads

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 10, 8, tzinfo=UTC)


def charge_of(user, project, *, slice_id=1, share=1.0, start=START, seconds=3600.0) -> bool:
    of_user, of_project = (thing if isinstance(thing, int) else thing.pk for thing in (user, project))
    one = Charge(
        slice_id=slice_id,
        job_id=7,
        user=of_user,
        project=of_project,
        gpu_model="RTX 4090",
        share=share,
        mib=24_564,
        started_at=start,
        ended_at=start + timedelta(seconds=seconds),
    )
    with transaction.atomic():
        counters = Counters(users=[of_user], projects=[of_project])
        new = charge([one], counters)
        assert counters.save()
    return new == [slice_id]


def used(user) -> float:
    return Quota.objects.get(user=user).used_gpu_s


def at_month(user, month: date) -> None:
    Quota.objects.filter(user=user).update(period_start=month)


@pytest.fixture
def user():
    user = user_make()
    at_month(user, date(2026, 3, 1))
    return user


def test_a_slice_costs_its_share(user):
    assert charge_of(user, project_make(), share=0.25, seconds=600)
    entry = LedgerEntry.objects.get()
    assert (entry.seconds, entry.gpu_seconds) == (600, 150)
    assert used(user) == 150


def test_many_slices_are_charged_at_once_each_to_its_owner_and_only_the_new_ones(user):
    other, project = user_make(), project_make()
    at_month(other, date(2026, 3, 1))
    charge_of(user, project, slice_id=2)
    owners = {1: user, 2: user, 3: other}
    charges = [
        Charge(
            slice_id=n, job_id=n, user=owner.pk, project=project.pk, gpu_model="A", share=0.5, mib=1, started_at=START,
            ended_at=START + timedelta(seconds=100 * n),
        )
        for n, owner in owners.items()
    ]  # fmt: skip
    with transaction.atomic():
        counters = Counters(users=[user.pk, other.pk], projects=[project.pk])
        assert charge(charges, counters) == [1, 3]
        assert counters.save()
    assert [used(user), used(other)] == [3600 + 50, 150]


def test_a_repeat_charges_nothing(user):
    project = project_make()
    assert charge_of(user, project) is True
    assert charge_of(user, project, seconds=7200) is False
    assert LedgerEntry.objects.get().gpu_seconds == 3600
    assert used(user) == 3600


@pytest.mark.django_db(transaction=True)
def test_threads_that_charge_one_slice_charge_it_once():
    user, project = user_make(), project_make()
    at_month(user, date(2026, 3, 1))
    answers = in_threads(6, lambda _: charge_of(user.pk, project.pk))
    assert sorted(answers) == [False] * 5 + [True]
    assert used(user) == 3600


def test_the_charge_is_taken_back_with_the_callers_transaction(user):
    project = project_make()
    with transaction.atomic():
        charge_of(user, project)
        assert used(user) == 3600
        transaction.set_rollback(True)
    assert not LedgerEntry.objects.exists()
    assert used(user) == 0


def test_a_clock_that_was_set_back_charges_zero(user):
    assert charge_of(user, project_make(), seconds=-5)
    assert LedgerEntry.objects.get().gpu_seconds == 0
    assert used(user) == 0


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_outside_0_1_is_refused(user, share):
    with pytest.raises(ValueError, match="0–1"):
        charge_of(user, project_make(), share=share)


def test_a_month_end_in_shanghai_splits_the_hour(user, settings):
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    # 23:30 on 31 March to 00:30 on 1 April, local time.
    charge_of(user, project_make(), start=datetime(2026, 3, 31, 15, 30, tzinfo=UTC))
    quota = Quota.objects.get(user=user)
    assert (quota.period_start, quota.used_gpu_s) == (date(2026, 4, 1), 1800)
    assert LedgerEntry.objects.get().gpu_seconds == 3600


def test_a_late_charge_of_last_month_adds_nothing_to_this_one(user):
    at_month(user, date(2026, 4, 1))
    charge_of(user, project_make())
    assert (used(user), LedgerEntry.objects.get().gpu_seconds) == (0, 3600)


def test_the_projects_quota_is_charged_too(user):
    project = project_make()
    Quota.objects.create(project=project, period_start=date(2026, 3, 1))
    charge_of(user, project)
    assert [used(user), Quota.objects.get(project=project).used_gpu_s] == [3600, 3600]


def test_the_first_charge_of_a_month_starts_the_counter_anew(user):
    Quota.objects.filter(user=user).update(used_gpu_s=99, period_start=date(2026, 2, 1))
    charge_of(user, project_make())
    assert used(user) == 3600


def test_a_roll_happens_once(user):
    rows = Quota.objects.filter(user=user)
    later = datetime(2026, 4, 2, tzinfo=UTC)
    assert [quota_roll(rows, now=later), quota_roll(rows, now=later)] == [1, 0]
    assert quota_for(user, now=later).period_start == date(2026, 4, 1)


def test_the_database_refuses_to_change_a_charge(user):
    charge_of(user, project_make())
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        LedgerEntry.objects.update(gpu_seconds=0)
