"""Past use that fades: from the ledger, whoever reads it, whenever it began to."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from quotas.counters import Counters
from quotas.ledger import Charge, charge
from quotas.models import LedgerEntry, User
from quotas.services import project_personal
from quotas.usage import CardHours, card_hours_left, usage_forget
from tests.factories import user_make

pytestmark = pytest.mark.django_db

WEEK = 7 * 86_400.0


def use(user: User, *, end: datetime, hours: float, share: float = 1.0, number: int) -> None:
    project = project_personal(user)
    begin = end - timedelta(hours=hours)
    one = Charge(
        slice_id=number,
        job_id=number,
        user=user.pk,
        project=project.pk,
        gpu_model="RTX 4090",
        share=share,
        mib=4096,
        started_at=begin,
        ended_at=end,
    )
    counters = Counters(users=[user.pk], projects=[project.pk])
    assert charge([one], counters) == [number]
    assert counters.save()


def test_half_of_it_is_left_after_a_half_life() -> None:
    now, user = timezone.now(), user_make()
    use(user, end=now, hours=10, share=0.5, number=1)
    fresh = card_hours_left(now=now, half_life_s=WEEK)[0][user.pk]
    assert fresh == pytest.approx(5 * 0.98, rel=0.01), "five card-hours, of which the first have begun to fade"
    week = card_hours_left(now=now + timedelta(days=7), half_life_s=WEEK)
    assert week[0][user.pk] == pytest.approx(fresh / 2)
    assert week[1][project_personal(user).pk] == pytest.approx(fresh / 2)


def test_without_a_half_life_nothing_is_forgotten() -> None:
    now, user = timezone.now(), user_make()
    use(user, end=now - timedelta(days=400), hours=10, number=1)
    assert card_hours_left(now=now, half_life_s=0)[0] == {user.pk: pytest.approx(10)}


def test_who_used_nothing_is_left_out() -> None:
    user_make()
    assert card_hours_left(now=timezone.now(), half_life_s=WEEK) == ({}, {})


@pytest.mark.parametrize("half_life_s", [WEEK, 86_400.0, 0.0])
def test_a_process_that_begins_later_knows_the_same(half_life_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quotas.usage.GAPS_MAX", 8)  # all but the last four entries come from the aggregate
    rng, start, users = random.Random(3), timezone.now() - timedelta(days=20), [user_make() for _ in range(3)]
    old = CardHours(half_life_s)
    now = start
    for number in range(1, 40):
        now += timedelta(hours=rng.random() * 12)
        use(rng.choice(users), end=now, hours=rng.random() * 30, share=rng.choice([0.25, 1.0]), number=number)
        seen = old.read(now)
    new = CardHours(half_life_s).read(now)
    for mine, theirs in zip(seen, new, strict=True):
        assert mine.keys() == theirs.keys()
        assert [mine[key] for key in sorted(mine)] == pytest.approx([theirs[key] for key in sorted(mine)], rel=1e-6)


def test_a_charge_that_is_committed_behind_a_later_one_counts_once() -> None:
    now, user = timezone.now(), user_make()
    known = CardHours(WEEK)
    known.read(now)
    use(user, end=now, hours=1, number=1)
    late = LedgerEntry.objects.get(slice_id=1)
    row = {field.attname: getattr(late, field.attname) for field in LedgerEntry._meta.fields}
    one = known.read(now)[0][user.pk]
    LedgerEntry.objects.create(**row | {"id": row["id"] + 5, "slice_id": 5})
    assert known.read(now)[0][user.pk] == pytest.approx(2 * one)
    LedgerEntry.objects.create(**row | {"id": row["id"] + 3, "slice_id": 3})  # its transaction began first
    for _ in range(2):
        assert known.read(now)[0][user.pk] == pytest.approx(3 * one)


def test_a_read_costs_one_query(django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    now, user = timezone.now(), user_make()
    use(user, end=now, hours=1, number=1)
    usage_forget()
    card_hours_left(now=now, half_life_s=WEEK)
    use(user, end=now, hours=1, number=2)
    with django_assert_num_queries(1):
        card_hours_left(now=now, half_life_s=WEEK)
