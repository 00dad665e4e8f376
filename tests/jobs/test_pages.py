"""The job list and a job's page, as a browser without scripts gets them."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django.fixtures import Settings

from jobs import logs
from jobs.models import Artifact, Job, JobEvent, Rank, Slice
from jobs.page_data import command_text
from quotas.models import User
from tests.factories import attempt_make, gpu_make, job_make, node_make, project_make, user_make

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
HTMX = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def no_redis(settings: Settings) -> None:
    settings.LIVE_REDIS_URL = "unix:///nonexistent/redis.sock"


def browser(user: User | None, *, language: str = "en") -> Client:
    client = Client(headers={"Accept-Language": language})
    if user is not None:
        client.force_login(user)
    return client


def text_of(client: Client, path: str, *, status: int = 200, **more: Any) -> str:
    answer = client.get(path, **more)
    assert answer.status_code == status, answer.content.decode()[:500]
    return answer.content.decode()


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example")


@pytest.fixture
def staff() -> User:
    return user_make("root@lab.example", is_staff=True)


def running(owner: User, **fields: Any) -> Job:
    job = job_make(owner, state="RUNNING", epoch=1, started_at=timezone.now() - timedelta(minutes=5), **fields)
    job.submitted_at = job.queued_at = timezone.now() - timedelta(minutes=6)
    job.save(update_fields=["submitted_at", "queued_at"])
    attempt_make(job, gpus=(gpu_make(node_make("node03"), index=3),), at=timezone.now() - timedelta(minutes=5))
    JobEvent.objects.create(job=job, code="placed", from_state="WAITING", to_state="STARTING", epoch=1, params={"nodes": ["node03"]})
    JobEvent.objects.create(job=job, code="running", from_state="STARTING", to_state="RUNNING", epoch=1)
    return job


# --- who may see what ---------------------------------------------------------------------------------------------

PAGES = [
    "/jobs/{id}/",
    "/jobs/{id}/log/",
    "/jobs/{id}/events/",
    "/jobs/{id}/files/",
    "/jobs/{id}/request/",
    "/jobs/{id}/cancel/",
    "/jobs/{id}/hold/",
]
PIECES = ["/jobs/{id}/row/", "/jobs/{id}/live/", "/jobs/{id}/cards/"]


@pytest.mark.parametrize("path", PAGES)
def test_each_page_of_a_job_works_for_its_owner_and_staff_in_both_languages(path: str, lin: User, staff: User) -> None:
    job = running(lin, name="my-job")
    for user in (lin, staff):
        for language in ("en", "zh-hans"):
            assert "#" + str(job.pk) in text_of(browser(user, language=language), path.format(id=job.pk))


@pytest.mark.parametrize("path", PIECES)
def test_a_piece_is_a_piece_for_htmx_and_the_page_for_anybody_else(path: str, lin: User) -> None:
    job = running(lin)
    piece = text_of(browser(lin), path.format(id=job.pk), headers=HTMX)
    assert "<html" not in piece
    assert "node03 gpu3" in piece
    assert browser(lin).get(path.format(id=job.pk)).headers["Location"] == f"/jobs/{job.pk}/"


@pytest.mark.parametrize("path", ["/jobs/?state=running", "/nodes/", "/nodes/node03/"])
def test_on_the_way_back_in_the_history_htmx_gets_the_whole_page(path: str, lin: User) -> None:
    running(lin)
    assert "<html" not in text_of(browser(lin), path, headers=HTMX)
    assert "<html" in text_of(browser(lin), path, headers=HTMX | {"HX-History-Restore-Request": "true"})


def test_a_reason_with_a_nul_is_refused(lin: User) -> None:
    job = job_make(lin)
    answer = browser(lin).post(f"/jobs/{job.pk}/hold/", {"why": "a\0b"})
    job.refresh_from_db()
    assert (answer.status_code, job.held) == (400, False)


@pytest.mark.parametrize("path", [*PAGES, *PIECES])
def test_a_stranger_gets_the_404_of_a_job_that_is_not_there(path: str, lin: User) -> None:
    job = running(lin, name="secret-name")
    stranger = browser(user_make())
    for id in (job.pk, 999_999, 10**30):
        answer = stranger.get(path.format(id=id), headers=HTMX)
        assert answer.status_code == 404
        assert "secret-name" not in answer.content.decode()


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/new/", "/jobs/1/", "/jobs/1/live/"])
def test_without_a_sign_in_the_way_leads_there(path: str) -> None:
    assert browser(None).get(path).headers["Location"].startswith("/accounts/login/")


@pytest.mark.parametrize("act", ["cancel", "hold", "release"])
def test_a_stranger_can_do_nothing(act: str, lin: User) -> None:
    job = job_make(lin)
    assert browser(user_make()).post(f"/jobs/{job.pk}/{act}/").status_code == 404
    job.refresh_from_db()
    assert (job.state, job.held, job.want_cancel) == ("WAITING", False, False)


def test_a_post_without_a_csrf_token_is_refused(lin: User) -> None:
    job = job_make(lin)
    client = Client(enforce_csrf_checks=True)
    client.force_login(lin)
    assert client.post(f"/jobs/{job.pk}/cancel/").status_code == 403
    assert client.post("/jobs/new/").status_code == 403


def test_what_changes_something_takes_no_get(lin: User) -> None:
    job = job_make(lin, held=True, wait_code="held")
    assert browser(lin).get(f"/jobs/{job.pk}/release/").status_code == 405
    assert browser(lin).get("/jobs/new/check/").status_code == 405


# --- the list -----------------------------------------------------------------------------------------------------


def names(page: str, *jobs: Job) -> list[str]:
    """Which of the jobs are on the page, in its order."""
    return [job.name for job in sorted(jobs, key=lambda job: page.find(f'id="job-{job.pk}"')) if f'id="job-{job.pk}"' in page]


def test_the_list_has_the_newest_first_and_only_what_one_may_see(lin: User, staff: User) -> None:
    first, second, other = job_make(lin, name="first"), job_make(lin, name="second"), job_make(name="other")
    assert names(text_of(browser(lin), "/jobs/"), first, second, other) == ["second", "first"]
    assert names(text_of(browser(staff), "/jobs/"), first, second, other) == ["other", "second", "first"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=waiting", ["c", "a"]),
        ("state=held", ["c"]),
        ("state=running", ["b"]),
        ("state=failed", []),
        ("state=nonsense", ["c", "b", "a"]),
        ("q=B", ["b"]),
        ("q=%23{a}", ["a"]),
        ("q={a}", ["a"]),
        ("q=99999999999999999999999999", []),
        ("project=nlp", ["b"]),
        ("project=nlp&state=waiting", []),
        ("page=77", ["c", "b", "a"]),
        ("page=x", ["c", "b", "a"]),
    ],
)
def test_the_list_can_be_narrowed(query: str, expected: list[str], lin: User) -> None:
    nlp = project_make("nlp", members=(lin,))
    a = job_make(lin, name="a")
    b = running(lin, name="b", project=nlp)
    c = job_make(lin, name="c", held=True, wait_code="held")
    assert names(text_of(browser(lin), f"/jobs/?{query.format(a=a.pk)}"), a, b, c) == expected


def test_staff_may_look_at_their_own_only(staff: User) -> None:
    own, other = job_make(staff, name="own"), job_make(name="other")
    assert names(text_of(browser(staff), "/jobs/?mine=1"), own, other) == ["own"]


def test_a_long_list_has_pages(lin: User) -> None:
    jobs = [job_make(lin, name=f"n{i}") for i in range(53)]
    page = text_of(browser(lin), "/jobs/")
    assert len(names(page, *jobs)) == 50
    assert 'href="?page=2"' in page
    rest = text_of(browser(lin), "/jobs/?page=2")
    assert names(rest, *jobs) == ["n2", "n1", "n0"]


def test_an_empty_list_says_what_could_start_and_how(lin: User) -> None:
    gpu_make(node_make("node01"))  # 24 GiB: four slices of 4 GiB
    page = text_of(browser(lin), "/jobs/")
    assert "4 jobs of 4\N{NO-BREAK SPACE}GiB could start this second." in page
    assert "nebula-ctl submit" in page
    assert "No job matches." in text_of(browser(lin), "/jobs/?q=nothing")


def test_the_queries_of_a_list_do_not_grow_with_it(lin: User) -> None:
    def count() -> int:
        client = browser(lin)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            text_of(client, "/jobs/")
        return len(queries)

    running(lin)
    few = count()
    for number in range(12):
        job = job_make(lin, state="RUNNING", epoch=1, started_at=timezone.now())
        attempt_make(job, gpus=(gpu_make(node_make(f"n{number}")),))
        job_make(lin)
    assert count() == few <= 12


def test_rows_that_changed_before_the_socket_was_there_are_fetched(lin: User) -> None:
    same, changed, other = job_make(lin), running(lin), job_make()
    page = text_of(browser(lin), "/jobs/")
    assert f"row={same.pk}-WAITING&amp;" in page
    query = f"row={same.pk}-WAITING&row={changed.pk}-WAITING&row={other.pk}-RUNNING&row=x&row=1-<b>"
    rows = text_of(browser(lin), f"/jobs/rows/?{query}", headers=HTMX)
    assert rows.count("<tr") == 1
    assert f'id="job-{changed.pk}"' in rows
    assert 'hx-swap-oob="true"' in rows


def test_new_jobs_are_told_not_pushed(lin: User) -> None:
    old = job_make(lin)
    job_make(lin)
    job_make(lin)
    job_make()  # another's
    assert "2 new jobs" in text_of(browser(lin), f"/jobs/newer/?after={old.pk}")
    assert "new job" not in text_of(browser(lin), "/jobs/newer/?after=999999")
    assert text_of(browser(lin), "/jobs/newer/?after=x")


def test_several_jobs_are_cancelled_at_once_but_only_ones_own_that_live(lin: User) -> None:
    waiting, live, over, other = job_make(lin), running(lin), job_make(lin, state="SUCCEEDED"), job_make()
    ids = {"id": [job.pk for job in (waiting, live, over, other)]}
    asked = text_of(browser(lin), f"/jobs/cancel/?id={waiting.pk}&id={live.pk}&id={over.pk}&id={other.pk}&id=x&id=-1")
    assert "Cancel 2 jobs?" in asked
    assert other.name not in asked
    assert browser(lin).post("/jobs/cancel/", ids).headers["Location"] == "/jobs/"
    states = {job.pk: job for job in Job.objects.all()}
    assert (states[waiting.pk].state, states[live.pk].state) == ("CANCELLED", "STOPPING")
    assert (states[over.pk].state, states[other.pk].state) == ("SUCCEEDED", "WAITING")


# --- a job's page -------------------------------------------------------------------------------------------------


def test_a_running_job_says_where_for_how_long_and_with_what(lin: User) -> None:
    job = running(lin, name="train", time_limit_s=7200, gpu_mem_mib=4096)
    page = text_of(browser(lin), f"/jobs/{job.pk}/")
    for words in ("Runs on", "node03 gpu3", "RTX 4090", "5\N{NO-BREAK SPACE}min", "2:00:00", "4\N{NO-BREAK SPACE}GiB", "Attempt 1"):
        assert words in page, words
    assert f'data-url="/api/v1/jobs/{job.pk}/logs"' in page
    assert 'data-live="1"' in page


def test_a_waiting_job_says_why_its_place_and_what_each_node_lacks(lin: User, settings: Settings) -> None:
    settings.POLICY_ORDER = "fifo"
    busy = gpu_make(node_make("node01"))
    attempt_make(job_make(state="RUNNING", epoch=1), gpus=(busy,), exclusive=True)
    job_make()  # before it
    params = {"needed_mib": 16384, "count": 1, "largest_free_mib": 0, "node": "node01", "gpu": 0}
    job = job_make(lin, gpu_mem_mib=16_384, wait_code="gpu_memory", wait_params=params)
    page = text_of(browser(lin), f"/jobs/{job.pk}/")
    assert "Needs 16 GiB on one GPU; all that are large enough are in use." in page
    assert "Place 2 in the queue: 1 job goes before it." in page
    assert "Node by node" in page
    assert "data-log " not in page  # nothing has run yet


def test_a_job_over_its_limit_of_cards_is_told_so_at_each_node() -> None:
    node_make("node01", cards=2)
    owner = user_make("limited@lab.example", quota={"max_cards": 1})
    job = job_make(owner, gpu_count=2, wait_code="cards_exceeded", wait_params={"needed": 2, "room": 1})
    page = text_of(browser(owner), f"/jobs/{job.pk}/")
    assert "Has room now; the limit on cards held at once leaves 1, and this job asks for 2." in page
    assert "jobs ahead" not in page


def test_a_held_job_was_not_just_checked(lin: User) -> None:
    job = job_make(lin, held=True, wait_code="held", wait_at=timezone.now())
    assert "Checked" not in text_of(browser(lin), f"/jobs/{job.pk}/")


def test_a_job_of_two_nodes_names_both(lin: User) -> None:
    cards = [gpu_make(node_make(f"node0{number}"), index=number) for number in (1, 2, 3)]
    for count in (2, 3):
        first = attempt_make(job_make(lin, state="RUNNING", epoch=1), gpus=cards[:1], mib=4096).ranks.get()
        for index in range(1, count):
            rank = Rank.objects.create(attempt=first.attempt, node=cards[index].node, index=index, key=f"{first.key}+{index}", spec={})
            Slice.objects.create(rank=rank, gpu=cards[index], position=0, mib=4096, share=0.2, state="ACTIVE")
    page = text_of(browser(lin), "/jobs/")
    assert "node01 gpu1; node02 gpu2<" in page
    assert "node01 gpu1; node02 gpu2 and 1 more" in page


def test_a_waiting_job_is_told_what_would_start_sooner(lin: User) -> None:
    gpu = gpu_make(node_make("node01"))
    attempt_make(job_make(state="RUNNING", epoch=1), gpus=(gpu,), mib=12_000)
    job = job_make(lin, gpu_mem_mib=20_480, wait_code="gpu_memory", wait_params={})
    assert f'data-stream="/jobs/{job.pk}/sooner/"' in text_of(browser(lin), f"/jobs/{job.pk}/")
    page = text_of(browser(lin), f"/jobs/{job.pk}/sooner/")
    # 24,564 − 12,000 = 12,564 MiB are free, so that 12 GiB start; 20 GiB take the whole card.
    assert "12\N{NO-BREAK SPACE}GiB a card instead of 20\N{NO-BREAK SPACE}GiB" in page
    assert f"/jobs/new/?from=job:{job.pk}&amp;instead=1&amp;gpu_mem=12&amp;mem_unit=G" in page


def test_a_failed_job_says_how(lin: User) -> None:
    job = job_make(lin, state="FAILED", end_reason="nonzero_exit", end_params={"exit_code": 3}, exit_code=3, epoch=1)
    assert "The program ended with exit code 3." in text_of(browser(lin), f"/jobs/{job.pk}/")


def test_the_queries_of_a_page_do_not_grow_with_its_history(lin: User) -> None:
    job = running(lin)

    def count(path: str) -> int:
        client = browser(lin)
        with CaptureQueriesContext(connection) as queries:
            text_of(client, path)
        return len(queries)

    paths = [f"/jobs/{job.pk}/", f"/jobs/{job.pk}/events/", f"/jobs/{job.pk}/files/"]
    rank = job.attempts.get().ranks.get()
    Artifact.objects.create(rank=rank, name="f", size=1, sha256="0" * 64)
    few = [count(path) for path in paths]
    for number in range(20):
        JobEvent.objects.create(job=job, code="node_silent", params={"node": "node03"}, epoch=1, by=lin)
        Artifact.objects.create(rank=rank, name=f"f{number}", size=1, sha256="0" * 64)
    assert [count(path) for path in paths] == few
    assert max(few) <= 19


def test_events_and_files_are_listed(lin: User) -> None:
    job = running(lin)
    Artifact.objects.create(rank=job.attempts.get().ranks.get(), name=EVIL, size=2048, sha256="0" * 64)
    assert "A place was found. On: node03." in text_of(browser(lin), f"/jobs/{job.pk}/events/")
    files = text_of(browser(lin), f"/jobs/{job.pk}/files/")
    assert "2\N{NO-BREAK SPACE}KiB" in files
    assert f"/api/v1/jobs/{job.pk}/artifacts/0/" in files
    assert EVIL not in files


def test_each_attempt_and_rank_has_its_log(lin: User) -> None:
    job = running(lin)
    page = text_of(browser(lin), f"/jobs/{job.pk}/log/?attempt=1&rank=0")
    assert 'data-attempt="1" data-rank="0"' in page
    # What isn't there falls back on what is.
    assert 'data-attempt="1" data-rank="0"' in text_of(browser(lin), f"/jobs/{job.pk}/log/?attempt=9&rank=x")


def test_a_page_that_waited_gets_the_log_when_the_job_starts(lin: User) -> None:
    job = running(lin)
    piece = text_of(browser(lin), f"/jobs/{job.pk}/live/?tab=log&epoch=0", headers=HTMX)
    assert 'id="job-log" hx-swap-oob="true"' in piece
    assert "data-log " in piece
    assert 'id="job-source"' in text_of(browser(lin), f"/jobs/{job.pk}/live/?tab=log&epoch=0&state=WAITING", headers=HTMX)
    same = text_of(browser(lin), f"/jobs/{job.pk}/live/?tab=log&epoch=1&state=RUNNING", headers=HTMX)
    assert 'id="job-source"' not in same
    assert 'id="job-log"' not in same  # the log that is being read stays


def test_what_users_and_nodes_write_is_text(lin: User) -> None:
    job = running(lin, name=EVIL, held_why=EVIL, argv=["sh", "-c", EVIL], env={"A": EVIL}, workdir=f"/{EVIL}")
    gpu = job.attempts.get().ranks.get().slices.get().gpu
    type(gpu).objects.filter(pk=gpu.pk).update(model=EVIL)
    logs.log_append(f"{job.pk}.1.0", offset=0, data=EVIL.encode())
    waiting = job_make(lin, name=EVIL, held=True, held_why=EVIL, wait_code="held", wait_params={"by": EVIL, "why": EVIL})
    paths = ["/jobs/", *(path.format(id=id) for path in PAGES for id in (job.pk, waiting.pk)), f"/jobs/new/?from=job:{job.pk}"]
    paths += [f"/jobs/cancel/?id={job.pk}&id={waiting.pk}", f"/jobs/?q={EVIL}&project={EVIL}"]
    for path in paths:
        page = text_of(browser(lin), path)
        assert "<script>alert" not in page, path
        assert "<img" not in page, path


def test_signs_of_all_kinds_are_shown(lin: User) -> None:
    job = running(lin, name="☠ 医学问答 🚀 \u202egnp")
    assert "☠ 医学问答 🚀" in text_of(browser(lin), f"/jobs/{job.pk}/")


def test_secrets_are_not_on_the_page(lin: User, staff: User) -> None:
    job = running(lin, env={"HF_TOKEN": "hf_very_secret", "OMP_NUM_THREADS": "4", "DB": "postgres://u:pw_secret@host/db"})
    own = text_of(browser(lin), f"/jobs/{job.pk}/request/")
    assert "OMP_NUM_THREADS" in own
    assert "hf_very_secret" not in own
    assert "pw_secret" not in own
    assert "HF_TOKEN" in own
    staffs = text_of(browser(staff), f"/jobs/{job.pk}/request/")
    assert "<bdi>4</bdi>" not in staffs  # the values of the environment are the owner's alone


# --- actions --------------------------------------------------------------------------------------------------------


def test_a_cancel_is_asked_first_and_says_what_is_lost(lin: User) -> None:
    job = running(lin)
    asked = text_of(browser(lin), f"/jobs/{job.pk}/cancel/")
    assert f"Cancel #{job.pk}?" in asked
    assert "It has run for" in asked
    assert "no work is lost" in text_of(browser(lin), f"/jobs/{job_make(lin).pk}/cancel/")
    job.refresh_from_db()
    assert not job.want_cancel
    dialog = text_of(browser(lin), f"/jobs/{job.pk}/cancel/", headers=HTMX)
    assert dialog.lstrip().startswith("<dialog")


def test_a_cancel_is_done_by_post_and_leads_back(lin: User) -> None:
    job = running(lin)
    assert browser(lin).post(f"/jobs/{job.pk}/cancel/").headers["Location"] == f"/jobs/{job.pk}/"
    job.refresh_from_db()
    assert (job.want_cancel, job.state, job.cancel_by) == (True, "STOPPING", lin)
    assert "Cancelling" in text_of(browser(lin), f"/jobs/{job.pk}/")


def test_with_htmx_the_page_changes_in_place(lin: User) -> None:
    job = job_make(lin)
    answer = browser(lin).post(f"/jobs/{job.pk}/cancel/", headers=HTMX)
    assert answer.headers["HX-Trigger-After-Swap"] == "dialog:close"
    assert 'id="job-head" hx-swap-oob="true"' in answer.content.decode()
    assert "Cancelled" in answer.content.decode()


def test_a_hold_keeps_its_reason_and_a_release_takes_it_off(lin: User) -> None:
    job = job_make(lin)
    browser(lin).post(f"/jobs/{job.pk}/hold/", {"why": "  waits for data  "})
    job.refresh_from_db()
    assert (job.held, job.held_why, job.held_by) == (True, "waits for data", lin)
    page = text_of(browser(lin), f"/jobs/{job.pk}/")
    assert "Held by lin@lab.example: waits for data" in page
    assert "Release" in page
    browser(lin).post(f"/jobs/{job.pk}/release/")
    job.refresh_from_db()
    assert not job.held


def test_what_is_not_possible_is_said(lin: User) -> None:
    over = job_make(lin, state="SUCCEEDED", end_reason="completed")
    client = browser(lin)
    assert client.post(f"/jobs/{over.pk}/cancel/").headers["Location"] == f"/jobs/{over.pk}/"
    assert "can&#x27;t be cancelled" in text_of(client, f"/jobs/{over.pk}/")
    answer = client.post(f"/jobs/{over.pk}/hold/", headers=HTMX)
    assert answer.headers["HX-Retarget"] == "#dialog"
    assert "can&#x27;t be held" in answer.content.decode()


def test_of_a_command_of_very_many_words_only_what_is_shown_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    quoted: list[str] = []
    monkeypatch.setattr("jobs.page_data.shlex.quote", lambda word: quoted.append(word) or word)
    shown = command_text(["w"] * 60_000 + ["x" * 100_000])
    assert shown == ("w " * 1000)[:2000]
    assert len(quoted) <= 1001
    assert len(command_text(["x" * 100_000])) == 2000
    monkeypatch.undo()
    assert command_text(["sh", "-c", "echo 'a b'"]) == shlex.join(["sh", "-c", "echo 'a b'"])
