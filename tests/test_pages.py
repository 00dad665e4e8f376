"""Sign-in, the account's pages, headers, health and the admin."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.core.management import call_command
from django.db import connection
from django.templatetags.static import static
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django.fixtures import Settings

from jobs.models import Job
from nodes.models import Node
from quotas.models import ApiToken, Quota, User
from quotas.tokens import token_create
from tests.factories import attempt_make, job_make, node_make, user_make
from tests.rest import no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse"
BACKEND = "allauth.account.auth_backends.AuthenticationBackend"
#: What the policy refuses, so that a page must not have it: inline scripts and handlers. (Data blocks are not scripts.)
INLINE = re.compile(
    rb"<script(?![^>]*\bsrc=)(?![^>]*type=\"(?:application|text)/(?:json|plain)\")[^>]*>|\son(?:click|load|error|change|submit)\s*=", re.I
)


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example", password=PASSWORD)


@pytest.fixture
def boss() -> User:
    return user_make("boss@lab.example", password=PASSWORD, is_superuser=True)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user, backend=BACKEND)
    return client


# --- sign-in ----------------------------------------------------------------------------------------------------------


def test_who_reads_chinese_is_greeted_in_chinese_after_signing_in_from_an_english_browser() -> None:
    user_make("chen@lab.example", password=PASSWORD, language="zh-hans")
    browser = Client(headers={"Accept-Language": "en"})
    page = browser.post("/accounts/login/", {"login": "chen@lab.example", "password": PASSWORD}, follow=True).content.decode()
    assert "成功登录。" in page
    assert "Successfully" not in page


def test_people_sign_in_with_their_address_and_out_again(lin: User) -> None:
    browser = Client()
    assert browser.get("/accounts/login/").status_code == 200
    answer = browser.post("/accounts/login/", {"login": "Lin@lab.example", "password": PASSWORD})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert browser.get("/").status_code == 200
    assert browser.post("/accounts/logout/").status_code == 302
    assert browser.get("/api/v1/me").status_code == 401


def test_a_wrong_password_says_so_beside_the_field(lin: User) -> None:
    answer = Client().post("/accounts/login/", {"login": "lin@lab.example", "password": "wrong"})
    assert answer.status_code == 200
    assert b'aria-invalid="true"' in answer.content
    assert b'role="alert"' in answer.content
    assert b"wrong" not in answer.content


def test_the_sixth_try_in_a_minute_is_refused_at_every_door(lin: User) -> None:
    wrong = {"login": "lin@lab.example", "password": "wrong"}
    assert [Client().post("/accounts/login/", wrong).status_code for _ in range(5)] == [200] * 5
    answer = Client().post("/accounts/login/", wrong | {"password": PASSWORD})
    assert (answer.status_code, "Retry-After" in answer) == (429, True)
    # The API's door counts in the same bucket, and the admin has none of its own.
    assert Client().post("/api/v1/token", {"email": "x@y.z", "password": "w"}, content_type="application/json").status_code == 429
    assert Client().post("/admin/login/", {"username": "lin@lab.example", "password": PASSWORD})["Location"].startswith("/accounts/login/")


def test_the_way_back_after_signing_in_stays_on_this_site(lin: User) -> None:
    for wanted, given in (("/admin/", "/admin/"), ("https://evil.example/", "/"), ("//evil.example/", "/")):
        answer = Client().post(f"/accounts/login/?next={wanted}", {"login": "lin@lab.example", "password": PASSWORD, "next": wanted})
        assert answer["Location"] == given


def test_nobody_makes_an_account_alone() -> None:
    body = {"email": "new@lab.example", "password1": "long enough 123", "password2": "long enough 123"}
    assert Client().get("/accounts/signup/").status_code == 200
    Client().post("/accounts/signup/", body)
    assert not User.objects.exists()


def test_a_disabled_user_does_not_come_in(lin: User) -> None:
    browser = signed_in(lin)
    User.objects.filter(pk=lin.pk).update(is_active=False)
    assert browser.get("/api/v1/me").status_code == 401
    assert browser.get("/").status_code == 302


def test_people_change_their_password(lin: User) -> None:
    browser = signed_in(lin)
    assert browser.get("/accounts/password/change/").status_code == 200
    answer = browser.post(
        "/accounts/password/change/", {"oldpassword": "no", "password1": "battery staple 9", "password2": "battery staple 9"}
    )
    assert b'aria-invalid="true"' in answer.content
    browser.post("/accounts/password/change/", {"oldpassword": PASSWORD, "password1": "battery staple 9", "password2": "battery staple 9"})
    lin.refresh_from_db()
    assert lin.check_password("battery staple 9")


def test_pages_speak_the_readers_language(lin: User) -> None:
    assert "登录" in Client().get("/accounts/login/", headers={"Accept-Language": "zh-CN"}).content.decode()
    assert "Sign in" in Client().get("/accounts/login/").content.decode()
    User.objects.filter(pk=lin.pk).update(language="zh-hans")
    assert "修改密码" in signed_in(lin).get("/accounts/password/change/").content.decode()
    browser = signed_in(lin)
    browser.post("/i18n/setlang/", {"language": "en"})
    assert "Change the password" in browser.get("/accounts/password/change/").content.decode()


# --- headers ----------------------------------------------------------------------------------------------------------

OPEN = ["/accounts/login/", "/accounts/signup/", "/accounts/password/reset/", "/api/v1/docs", "/nothing-here"]
SIGNED_IN = ["/", "/accounts/password/change/", "/accounts/logout/", "/account/", "/projects/", "/accounts/2fa/", "/accounts/sessions/"]


@pytest.mark.parametrize("path", OPEN + SIGNED_IN)
def test_pages_work_under_a_policy_without_inline_scripts(lin: User, path: str) -> None:
    answer = signed_in(lin).get(path) if path in SIGNED_IN else Client().get(path)
    assert answer.status_code == (404 if "nothing" in path else 200)
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe-eval" not in policy
    assert "frame-ancestors 'none'" in policy
    assert INLINE.search(answer.content) is None
    assert re.search(rb"<style\b", answer.content) is None
    assert b"//cdn" not in answer.content
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_the_pages_of_the_api_load_nothing_from_elsewhere() -> None:
    page = Client().get("/api/v1/docs").content.decode()
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert sources
    assert all(source.startswith("/") for source in sources)
    script = Client().get("/api/v1/docs?script=")
    assert script["Content-Type"].startswith("application/javascript")
    assert "/api/v1/schema" in script.content.decode()
    assert Client().get("/api/v1/schema").json()["openapi"].startswith("3.")


def test_only_the_admin_may_evaluate_its_own_expressions(boss: User) -> None:
    policy = signed_in(boss).get("/admin/")["Content-Security-Policy"]
    assert "script-src 'self' 'unsafe-eval';" in policy
    assert "'unsafe-inline'" in policy.split("style-src")[1]


@pytest.mark.parametrize("path", ["/api/v1/me", "/", "/jobs/", "/overview/pieces/", "/nodes/"])
def test_answers_that_differ_from_user_to_user_are_kept_by_no_cache(lin: User, path: str) -> None:
    assert signed_in(lin).get(path)["Cache-Control"] == "no-store"


def test_a_crash_is_a_500_in_the_one_shape_without_its_details(lin: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("jobs.api.job_detail", broken)
    browser = Client(raise_request_exception=False)
    browser.force_login(lin, backend=BACKEND)
    answer = browser.get(f"/api/v1/jobs/{job_make(lin).pk}")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert b"secret detail" not in answer.content


def test_a_busy_database_is_a_503_that_says_when_to_come_back(lin: User, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    def busy(*args: Any, **kwargs: Any) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr("jobs.api.job_detail", busy)
    answer = signed_in(lin).get(f"/api/v1/jobs/{job_make(lin).pk}")
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "database_away", "2")


# --- health -----------------------------------------------------------------------------------------------------------


def test_health_without_redis_is_still_health() -> None:
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "database": "ok", "redis": "away", "disk": "ok"})


@pytest.mark.redis
def test_health_with_all_parts(redis_url: str, settings: Settings) -> None:
    settings.LIVE_REDIS_URL = redis_url
    assert Client().get("/healthz").json() == {"status": "ok", "database": "ok", "redis": "ok", "disk": "ok"}


def test_health_without_a_database_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def cursor(self) -> None:
            raise RuntimeError("no database")

    monkeypatch.setattr("nebulagrid.api.connection", Broken())
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.json()["database"]) == (503, "away")


def test_a_browser_that_asks_for_the_old_icon_gets_ours() -> None:
    answer = Client().get("/favicon.ico")
    assert (answer.status_code, answer.headers["Location"]) == (302, static("img/mark.svg"))


# --- admin ------------------------------------------------------------------------------------------------------------

OURS = [model for model in admin.site._registry if model._meta.app_label in {"quotas", "nodes", "jobs"}]


def test_every_model_of_ours_is_in_the_admin() -> None:
    from django.apps import apps

    ours = {model for label in ("quotas", "nodes", "jobs") for model in apps.get_app_config(label).get_models()}
    curves = {"GpuSample", "NodeSample", "PoolSample", "RankSample"}  # millions of rows: shown as curves, and over REST
    audit = {"AuditEntry", "AuditLink", "AuditSegment", "Secret", "AppliedJob"}  # /audit/, /secrets/; nobody looks through others' secrets
    # On the job's page and the usage page; the installation's own name, which never changes; on a page of their own;
    # numbers that are never given out again, which nobody may change.
    numbers = {"JobFiles", "Installation", "RefusedSubmit", "IssuedAccount"}
    # A membership is edited inside its project, and an alert's page has its jobs.
    assert {model.__name__ for model in ours - set(OURS)} <= {"Membership", "AlertJob"} | curves | audit | numbers


def fill(count: int) -> None:
    for _ in range(count):
        node = node_make(cards=1)
        owner = user_make()
        token_create(user=owner, name="x")
        attempt_make(job_make(owner, state="RUNNING", epoch=1), gpus=(node.gpus.get(),))


def test_each_admin_list_opens_and_costs_the_same_for_3_and_for_12(boss: User) -> None:
    browser = signed_in(boss)

    def counts() -> dict[str, int]:
        found = {}
        for model in OURS:
            with CaptureQueriesContext(connection) as captured:
                answer = browser.get(f"/admin/{model._meta.app_label}/{model._meta.model_name}/")
            assert answer.status_code == 200, model
            found[model.__name__] = len(captured)
        return found

    fill(3)
    counts()  # what is asked for once, and kept, is asked for now
    few = counts()
    fill(9)
    assert {name: (few[name], count) for name, count in counts().items() if count > few[name]} == {}


@pytest.mark.parametrize("model", OURS, ids=lambda model: model.__name__)
def test_each_admin_page_of_a_row_opens_and_its_search_answers(boss: User, model: Any) -> None:
    fill(1)
    browser = signed_in(boss)
    base = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    if admin.site._registry[model].search_fields:
        assert browser.get(base, {"q": "x1"}).status_code == 200
    row = model.objects.first()
    if row is not None:
        assert browser.get(f"{base}{row.pk}/change/").status_code == 200


def test_no_is_no_fault_in_the_admin(boss: User) -> None:
    job = job_make(boss, held=False, queue="batch", qos="low", constraints={"labels": {"rack": "r2"}})
    page = signed_in(boss).get("/admin/jobs/job/").content.decode()
    assert 'title="no">–</span>' in page
    assert "bg-red" not in page.split("<table", 1)[1].split("</table>")[0]
    Job.objects.update(held=True)
    assert 'title="yes"' in signed_in(boss).get("/admin/jobs/job/").content.decode()
    assert "rack" in signed_in(boss).get(f"/admin/jobs/job/{job.pk}/change/").content.decode()
    index = signed_in(boss).get("/admin/").content.decode()
    assert all(heading in index for heading in ("Jobs", "Nodes", "People and quotas"))


def test_what_services_write_nobody_edits_in_the_admin(boss: User) -> None:
    fill(1)
    browser = signed_in(boss)
    for path in (
        "jobs/job",
        "jobs/attempt",
        "jobs/rank",
        "jobs/slice",
        "jobs/jobevent",
        "nodes/node",
        "nodes/gpu",
        "quotas/ledgerentry",
        "quotas/apitoken",
    ):
        assert browser.get(f"/admin/{path}/add/").status_code == 403, path
    job = Job.objects.get()
    assert browser.post(f"/admin/jobs/job/{job.pk}/change/", {"state": "SUCCEEDED"}).status_code == 403
    assert browser.post(f"/admin/jobs/job/{job.pk}/delete/", {"post": "yes"}).status_code == 403


def act(browser: Client, path: str, action: str, *rows: Any) -> None:
    answer = browser.post(path, {"action": action, "_selected_action": [row.pk for row in rows]}, follow=True)
    assert answer.status_code == 200


def test_actions_on_jobs_go_through_the_services(boss: User) -> None:
    waiting, done = job_make(), job_make(state="SUCCEEDED")
    browser = signed_in(boss)
    act(browser, "/admin/jobs/job/", "hold", waiting, done)
    waiting.refresh_from_db()
    assert (waiting.held, waiting.held_by) == (True, boss)
    act(browser, "/admin/jobs/job/", "release", waiting)
    act(browser, "/admin/jobs/job/", "cancel", waiting, done)
    waiting.refresh_from_db()
    done.refresh_from_db()
    assert (waiting.state, done.state) == ("CANCELLED", "SUCCEEDED")
    assert list(waiting.events.values_list("code", flat=True)) == ["submitted", "held", "released", "cancel_wanted", "cancelled"]


def test_nodes_are_drained_and_tokens_revoked_by_actions(boss: User) -> None:
    node, (token, _) = node_make(), token_create(user=boss, name="x")
    browser = signed_in(boss)
    act(browser, "/admin/nodes/node/", "cordon", node)
    assert Node.objects.get().cordoned
    act(browser, "/admin/nodes/node/", "resume", node)
    assert not Node.objects.get().cordoned
    act(browser, "/admin/quotas/apitoken/", "revoke", token)
    assert ApiToken.objects.get().revoked_at <= timezone.now()


def test_a_person_made_in_the_admin_can_work_at_once(boss: User) -> None:
    body = {"email": "New@Lab.Example", "password1": "long enough 123", "password2": "long enough 123", "usable_password": "true"}
    answer = signed_in(boss).post("/admin/quotas/user/add/", body)
    assert answer.status_code == 302, answer.content[:500]
    new = User.objects.get(email="new@lab.example")
    assert new.personal_project.members.get() == new
    assert new.quota.gpu_hours is not None


def test_editing_a_limit_leaves_the_counters_alone(boss: User, lin: User) -> None:
    browser = signed_in(boss)
    quota = Quota.objects.get(user=lin)
    page = f"/admin/quotas/quota/{quota.pk}/change/"
    browser.get(page)
    Quota.objects.filter(pk=quota.pk).update(active_jobs=3)  # jobs go on while the admin thinks
    assert browser.post(page, {"gpu_hours": "50", "max_active_jobs": "", "max_cards": "4"}).status_code == 302
    quota.refresh_from_db()
    assert (quota.gpu_hours, quota.max_cards, quota.active_jobs) == (50, 4, 3)


def test_the_values_of_an_environment_are_not_shown_to_admins(boss: User, lin: User) -> None:
    job = job_make(lin, env={"SECRET": "hunter2"})
    assert b"hunter2" not in signed_in(boss).get(f"/admin/jobs/job/{job.pk}/change/").content


def test_the_admin_is_closed_to_others(lin: User) -> None:
    assert signed_in(lin).get("/admin/").status_code in {302, 403}
    assert Client().get("/admin/")["Location"].startswith(("/admin/login/", "/accounts/login/"))


def test_migrations_are_complete() -> None:
    call_command("makemigrations", "--check", "--dry-run", "quotas", "nodes", "jobs", verbosity=0)


def test_limits_by_card_model_are_written_as_text_in_the_admin(boss: User) -> None:
    admin, user = signed_in(boss), user_make(quota={"model_caps": {"a100": 2}})
    page = f"/admin/quotas/quota/{user.quota.pk}/change/"
    assert 'value="a100:2"' in admin.get(page).content.decode()
    form = {"gpu_hours": "50", "max_active_jobs": "", "max_cards": ""}
    refused = admin.post(page, {**form, "model_caps": "a100"})
    assert refused.status_code == 200
    assert "a100 is no limit by card model" in refused.content.decode()
    assert admin.post(page, {**form, "model_caps": "A100:3, h100:1"}).status_code == 302
    user.quota.refresh_from_db()
    assert user.quota.model_caps == {"a100": 3, "h100": 1}
