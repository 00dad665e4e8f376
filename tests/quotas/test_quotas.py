"""Limits: one place too few is refused, however many ask at once; a month is a month of the installation's zone."""

from __future__ import annotations

import contextlib
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quotas import calendar
from quotas.counters import Counters
from quotas.errors import QuotaExceeded
from quotas.models import Project, Quota, User
from quotas.selectors import cards_room, projects_over_limit, quota_view, standing_of, users_over_limit
from quotas.services import cards_hold, quota_for, quota_job_admit, quota_job_done, quota_jobs_done
from tests.factories import project_make, user_make
from tests.threads import in_threads

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


def admit(user: User, project: Project | None = None, *, now: datetime | None = None) -> None:
    quota_job_admit(user=user.pk, project=project.pk if project else None, now=now or timezone.now())


@pytest.mark.django_db(transaction=True)
def test_it_admits_exactly_ten_of_a_hundred_at_limit_ten():
    user = user_make(quota={"max_active_jobs": 10})

    def submit(number: int) -> int:
        admitted = 0
        for _ in range(10):
            with contextlib.suppress(QuotaExceeded):
                admit(user)
                admitted += 1
        return admitted

    answers = in_threads(10, submit)
    assert [a for a in answers if not isinstance(a, int)] == []
    assert sum(answers) == 10
    assert Quota.objects.get(user=user).active_jobs == 10


def test_an_admission_is_two_statements(django_assert_num_queries):
    user, project = user_make(), project_make()
    Quota.objects.create(project=project, period_start=calendar.month_of(timezone.now()))
    admit(user)
    with django_assert_num_queries(2):
        admit(user, project)


@pytest.mark.django_db(transaction=True)
def test_threads_that_ask_first_make_one_quota_row():
    user = User.objects.create_user("new@lab.example")
    answers = in_threads(8, lambda _: quota_for(user.pk).pk)
    assert len(set(answers)) == 1
    assert Quota.objects.filter(user=user).count() == 1


def test_a_refused_project_leaves_the_user_uncounted():
    user, project = user_make(), project_make()
    Quota.objects.create(project=project, gpu_hours=None, max_active_jobs=0)
    with pytest.raises(QuotaExceeded) as caught:
        admit(user, project)
    assert caught.value.params["owner"] == project.name
    assert quota_for(user).active_jobs == 0


def test_a_project_without_a_row_has_no_limit_of_its_own():
    user, project = user_make(), project_make()
    admit(user, project)
    assert quota_for(user).active_jobs == 1
    assert not Quota.objects.filter(project=project).exists()


def test_a_refusal_at_the_gpu_hours_says_used_limit_and_when_it_resets(settings):
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    user = user_make(quota={"gpu_hours": 5, "used_gpu_s": 5 * 3600, "period_start": date(2026, 3, 1)})
    with pytest.raises(QuotaExceeded) as caught:
        admit(user, now=NOW)
    error = caught.value
    assert (error.code, error.http_status) == ("quota_exceeded", 403)
    assert (error.used, error.limit, error.resets_at) == (5.0, 5.0, "2026-04-01T00:00:00+08:00")
    assert "5.0 of 5" in error.message
    assert user.email in error.message


def test_one_second_below_the_gpu_hours_is_admitted():
    user = user_make(quota={"gpu_hours": 5, "used_gpu_s": 5 * 3600 - 1, "period_start": date(2026, 3, 1)})
    admit(user, now=NOW)


def test_no_limit_of_gpu_hours_admits_any_use():
    user = user_make(quota={"gpu_hours": None, "used_gpu_s": 9e9, "period_start": date(2026, 3, 1)})
    admit(user, now=NOW)


def test_the_month_begins_at_local_midnight(settings):
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    user = user_make(quota={"gpu_hours": 5, "used_gpu_s": 5 * 3600, "period_start": date(2026, 3, 1)})
    before = datetime(2026, 3, 31, 15, 59, 59, tzinfo=UTC)  # 23:59:59 in Shanghai
    with pytest.raises(QuotaExceeded):
        admit(user, now=before)
    admit(user, now=before + timedelta(seconds=1))
    quota = Quota.objects.get(user=user)
    assert (quota.used_gpu_s, quota.period_start, quota.active_jobs) == (0, date(2026, 4, 1), 1)


def test_a_request_of_last_month_does_not_move_the_counter_back():
    user = user_make(quota={"used_gpu_s": 7, "period_start": date(2026, 4, 1)})
    assert quota_for(user, now=NOW).used_gpu_s == 7
    assert Quota.objects.get(user=user).period_start == date(2026, 4, 1)


@pytest.mark.parametrize(("month", "following"), [(date(2026, 12, 1), date(2027, 1, 1)), (date(2026, 1, 1), date(2026, 2, 1))])
def test_the_month_after_december_is_january(month, following):
    assert calendar.month_next(month) == following


def test_done_gives_the_place_back_but_never_goes_below_zero():
    user = user_make(quota={"max_active_jobs": 1})
    admit(user)
    quota_job_done(user=user)
    quota_job_done(user=user)
    assert quota_for(user).active_jobs == 0
    admit(user)


def test_many_ends_at_once_give_back_each_owners_own_places():
    one, two, project = user_make(), user_make(), project_make()
    Quota.objects.create(project=project, active_jobs=3)
    Quota.objects.filter(user=one).update(active_jobs=5)
    Quota.objects.filter(user=two).update(active_jobs=1)
    quota_jobs_done([(one.pk, project.pk), (one.pk, None), (two.pk, project.pk)])
    assert [quota_for(one).active_jobs, quota_for(two).active_jobs, Quota.objects.get(project=project).active_jobs] == [3, 0, 1]


def cards_take(user: User, *counts: int, project: Project | None = None) -> list[bool]:
    with transaction.atomic():
        count = Counters(users=[user.pk], projects=[project.pk] if project else [])
        answers = [count.cards_take(user=user.pk, project=project.pk if project else 0, n=n) for n in counts]
        assert count.save()
    return answers


def test_cards_are_held_up_to_the_limit_and_come_back():
    user = user_make(quota={"max_cards": 4})
    assert cards_take(user, 3) == [True]
    assert cards_room(users=[user.pk], projects=[]) == ({user.pk: 1}, {})
    assert cards_take(user, 2, 1, 1) == [False, True, False]
    with transaction.atomic():
        count = Counters(users=[user.pk], projects=[])
        count.cards_release(user=user.pk, project=0, n=4)
        assert count.save()
    assert quota_for(user).held_cards == 0


def test_a_refused_project_holds_no_card_of_the_user():
    user, project = user_make(), project_make()
    Quota.objects.create(project=project, max_cards=2)
    assert cards_take(user, 2, 1, project=project) == [True, False]
    assert [quota_for(user).held_cards, Quota.objects.get(project=project).held_cards] == [2, 2]


def test_who_has_no_quota_row_yet_gets_one_when_cards_are_counted():
    user = User.objects.create_user("new@lab.example")
    assert cards_take(user, 2) == [True]
    assert Quota.objects.get(user=user).held_cards == 2


def test_a_count_that_another_one_made_untrue_is_not_saved():
    user = user_make(quota={"max_cards": 4})
    with transaction.atomic():
        count = Counters(users=[user.pk], projects=[])
        assert count.cards_take(user=user.pk, project=0, n=3)
        Quota.objects.filter(user=user).update(held_cards=2)
        assert not count.save()
    assert quota_for(user).held_cards == 2


def test_what_is_given_back_never_falls_below_zero_and_each_owner_gets_its_own():
    one, two, project = user_make(quota={"active_jobs": 2, "held_cards": 5}), user_make(), project_make()
    Quota.objects.create(project=project, active_jobs=3, held_cards=1, max_cards=0)  # a limit that was lowered meanwhile
    with transaction.atomic():
        count = Counters(users=[one.pk, two.pk], projects=[project.pk])
        count.cards_release(user=one.pk, project=project.pk, n=3)
        for user in (one, one, two):
            count.job_done(user=user.pk, project=project.pk)
        assert count.save()
    assert list(Quota.objects.order_by("pk").values_list("active_jobs", "held_cards")) == [(0, 2), (0, 0), (0, 0)]


def test_cards_in_use_are_counted_whatever_the_limit():
    user = user_make(quota={"max_cards": 1})
    cards_hold(user=user.pk, n=2, now=NOW)
    assert quota_for(user).held_cards == 2


def test_a_hold_is_taken_back_with_its_transaction():
    user = user_make(quota={"max_cards": 4})
    with transaction.atomic():
        assert cards_take(user, 4) == [True]
        assert quota_for(user).held_cards == 4
        transaction.set_rollback(True)
    assert quota_for(user).held_cards == 0


def test_those_over_the_limit_are_named_in_one_query_and_only_for_this_month():
    now = timezone.now()
    month = calendar.month_of(now)
    over = user_make(quota={"gpu_hours": 1, "used_gpu_s": 3600, "period_start": month})
    under = user_make(quota={"gpu_hours": 1, "used_gpu_s": 3599, "period_start": month})
    last_month = user_make(quota={"gpu_hours": 1, "used_gpu_s": 3600, "period_start": month - timedelta(days=1)})
    free = user_make(quota={"gpu_hours": None, "used_gpu_s": 1e9, "period_start": month})
    project = project_make()
    Quota.objects.create(project=project, gpu_hours=0, period_start=month)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        found = users_over_limit([over.pk, under.pk, last_month.pk, free.pk], now=now)
    assert len(queries) == 1
    assert found == {
        over.pk: {"what": "gpu_hours", "used": 1.0, "limit": 1, "resets_at": calendar.resets_at(now).isoformat(), "owner": over.email}
    }
    assert list(projects_over_limit([project.pk], now=now)) == [project.pk]


def test_what_limits_the_owners_of_waiting_jobs_is_read_in_one_query():
    now = timezone.now()
    month = calendar.month_of(now)
    spent = user_make(quota={"gpu_hours": 1, "used_gpu_s": 3600, "period_start": month, "max_cards": 3, "held_cards": 1})
    full = user_make(quota={"max_active_jobs": 1, "active_jobs": 1, "max_cards": 2, "held_cards": 5})  # its jobs are counted already
    free = user_make()
    project, other = project_make(), project_make()
    Quota.objects.create(project=project, gpu_hours=0, period_start=month)
    Quota.objects.create(project=other, gpu_hours=None, max_cards=4)
    with CaptureQueriesContext(connection) as queries:
        found = standing_of(users=[spent.pk, full.pk, free.pk], projects=[project.pk, other.pk], now=now)
    assert len(queries) == 1
    assert found.over_users == users_over_limit([spent.pk], now=now)
    assert found.over_projects == projects_over_limit([project.pk], now=now)
    assert (found.room_users, found.room_projects) == ({spent.pk: 2, full.pk: 0}, {other.pk: 4})


def test_the_view_shows_hours_and_none_for_no_limit():
    user = user_make(
        quota={"gpu_hours": None, "used_gpu_s": 1800, "period_start": date(2026, 3, 1), "max_cards": 2, "max_active_jobs": None}
    )
    view = quota_view(user, now=NOW)
    assert (view.gpu_hours, view.used_gpu_hours, view.max_cards, view.max_active_jobs) == (None, 0.5, 2, None)
    assert view.resets_at == datetime(2026, 4, 1, tzinfo=UTC)


def test_a_new_users_quota_is_the_settings(settings):
    settings.DEFAULT_GPU_HOURS = 12
    assert quota_for(user_make()).gpu_hours == 12
