"""What of the bytes that jobs make is kept: limits of a job, a person and a project, what is told, and what is removed after a time."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone, translation

from agent.protocol import ExitInfo, Observed
from jobs import logs
from jobs.artifacts import artifact_path
from jobs.invariants import logs_are_whole
from jobs.models import Artifact, Job, JobEvent, JobFiles, Rank
from jobs.services import files
from jobs.services.files import MIB, kept_by, log_bytes_measure, over_forget
from jobs.services.retention import retention_forget, retention_run
from jobs.services.schedule import pass_run
from quotas import disk
from quotas.models import AuditEntry, Notice, Quota
from tests.factories import node_make, user_make
from tests.jobs.lab import Lab
from tests.jobs.test_agent_api import AgentClient
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
PAGE = "/api/agent/v1/artifacts"


class World:
    """A job that runs on one node, and its agent."""

    def __init__(self) -> None:
        self.agent = AgentClient(node_make("n1", cards=1))
        self.lab = Lab()
        self.owner = self.lab.user()
        self.job = self.lab.submit(owner=self.owner, argv=("true",))
        pass_run()
        self.rank = Rank.objects.get()

    def put(self, name: str, data: bytes) -> tuple[int, dict[str, Any]]:
        answer = self.agent.http.put(f"{PAGE}/{self.rank.key}/{name}", data=data, content_type="application/octet-stream")
        return answer.status_code, answer.json()

    def end(self, *, days_ago: int = 0) -> None:
        at = logs.log_length(self.rank.key)
        self.agent.sync()
        ended = Observed(
            rank=self.rank.key, epoch=1, state="EXITED", exit=ExitInfo(cause="exited", code=0), released=True, final_log_offset=at
        )
        self.agent.sync(ended)
        Job.objects.filter(pk=self.job.pk).update(ended_at=timezone.now() - timedelta(days=days_ago))
        self.job.refresh_from_db()

    @property
    def kept(self) -> JobFiles:
        return JobFiles.objects.get(pk=self.job.pk)


@pytest.fixture
def world(settings: Any, tmp_path: Any) -> Iterator[World]:
    settings.LOG_DIR, settings.ARTIFACT_DIR = tmp_path / "logs", tmp_path / "artifacts"
    settings.ARTIFACTS_JOB_MIB, settings.ARTIFACTS_JOB_FILES = 0, 0
    over_forget()
    retention_forget()
    yield World()
    over_forget()
    retention_forget()


def test_files_are_counted_by_what_was_uploaded_also_when_one_comes_again(world: World) -> None:
    assert world.put("a.bin", b"x" * 1000)[0] == 201
    assert world.put("b.bin", bytes(5000))[0] == 201  # without content on the node's disk: it counts all the same
    assert world.put("a.bin", b"y" * 300)[0] == 201
    assert (world.kept.bytes, world.kept.count) == (5300, 2)
    assert artifact_path(world.rank.key, "a.bin").read_bytes() == b"y" * 300
    assert kept_by(world.owner, None).bytes == 5300


def test_a_file_beyond_the_jobs_limit_is_not_taken_smaller_ones_are_and_the_job_is_told(world: World, settings: Any) -> None:
    settings.ARTIFACTS_JOB_MIB = 1
    assert world.put("a.bin", bytes(MIB - 10))[0] == 201
    status, error = world.put("big.bin", bytes(100))
    assert (status, error["code"]) == (413, "files_job_bytes")
    assert "1 MiB" in error["message"]
    assert world.put("small.bin", bytes(10))[0] == 201
    world.put("big.bin", bytes(100))  # an agent that asks again
    assert list(Artifact.objects.values_list("name", flat=True)) == ["a.bin", "small.bin"]
    assert not artifact_path(world.rank.key, "big.bin").exists()
    assert len(list(artifact_path(world.rank.key, "a.bin").parent.iterdir())) == 2  # nothing is left aside
    assert world.kept.refused_count == 1
    assert JobEvent.objects.filter(job=world.job, code="files_refused").count() == 1
    assert Notice.objects.filter(user=world.owner, kind="files_refused").count() == 1
    assert Job.objects.get(pk=world.job.pk).end_reason == ""  # it goes on
    kept = Api(world.owner).get(f"/jobs/{world.job.pk}")[1]["kept"]
    assert [(one["name"], one["size"], one["code"]) for one in kept["refused"]] == [("big.bin", 100, "files_job_bytes")]
    settings.ARTIFACTS_JOB_MIB = 2
    assert world.put("big.bin", bytes(100))[0] == 201
    assert (world.kept.refused, world.kept.refused_count) == ([], 0)


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_page_says_which_files_are_missing_and_why(world: World, settings: Any, language: str) -> None:
    settings.ARTIFACTS_JOB_FILES = 1
    world.put("a.bin", b"x")
    for number in range(files.REFUSED_NAMED + 3):
        assert world.put(f"<b>{number}<b>", b"x")[1]["code"] == "files_job_count"
    browser = Client(headers={"Accept-Language": language})
    browser.force_login(world.owner)
    page = browser.get(f"/jobs/{world.job.pk}/files/").content.decode()
    with translation.override(language):
        assert files.FilesRefused("files_job_count", params={"used": 1}).message in page
    assert "&lt;b&gt;0&lt;b&gt;" in page
    assert f"&lt;b&gt;{files.REFUSED_NAMED}&lt;b&gt;" not in page
    assert ("3 more files are not kept." if language == "en" else "另有 3 个文件未保留。") in page
    assert "files_refused" not in browser.get(f"/jobs/{world.job.pk}/events/").content.decode()


def test_a_file_is_refused_before_it_is_read_where_its_length_tells(world: World, settings: Any, monkeypatch: Any) -> None:
    settings.ARTIFACT_CAP_MIB = 1
    monkeypatch.setattr("jobs.artifact_api._receive", pytest.fail)
    status, error = world.put("large.bin", bytes(MIB + 1))
    assert (status, error["code"]) == (413, "file_large")
    assert world.kept.refused[0]["name"] == "large.bin"


def test_an_agent_asks_whether_there_is_room_before_it_sends_a_large_file(world: World, settings: Any) -> None:
    settings.ARTIFACTS_JOB_MIB = 1

    def ask(name: str, size: object) -> int:
        return world.agent.http.put(f"{PAGE}/{world.rank.key}/{name}?size={size}").status_code

    assert ask("fits.bin", MIB) == 204
    assert not Artifact.objects.exists()
    assert not JobFiles.objects.exists()
    assert ask("sparse.bin", 1024 * MIB + 1) == 413
    assert [(one["name"], one["size"]) for one in world.kept.refused] == [("sparse.bin", 1024 * MIB + 1)]
    assert ask("x", "many") == 204  # what is no number tells nothing


def test_a_persons_limit_counts_the_files_and_output_of_all_jobs(world: World) -> None:
    Quota.objects.filter(user=world.owner).update(max_storage_mib=1)
    other = world.lab.submit(owner=world.owner, argv=("true",))
    JobFiles.objects.create(job=other, owner=world.owner, project=other.project, bytes=MIB // 2, log_bytes=MIB // 4)
    assert world.put("a.bin", bytes(MIB // 4))[0] == 201
    status, error = world.put("b.bin", b"x")
    assert (status, error["code"]) == (413, "files_owner")
    for part in (world.owner.email, "1 MiB", "administrator"):
        assert part in error["message"]
    JobFiles.objects.filter(job=other).update(bytes=0)
    assert world.put("b.bin", b"x")[0] == 201


def test_a_projects_limit_holds_for_all_its_members(world: World) -> None:
    Quota.objects.create(project=world.job.project, max_storage_mib=1, gpu_hours=None)
    assert world.put("a.bin", bytes(MIB))[0] == 201
    status, error = world.put("b.bin", b"x")
    assert (status, error["code"]) == (413, "files_owner")
    assert world.job.project.name in error["message"]


def test_output_of_who_is_over_the_limit_is_cut_but_for_its_first_mebibyte(world: World) -> None:
    Quota.objects.filter(user=world.owner).update(max_storage_mib=1)
    key = world.rank.key
    assert world.agent.log(key, 0, b"x" * MIB)[0] == 200
    log_bytes_measure(now=timezone.now())
    assert world.kept.log_bytes == MIB
    assert world.agent.log(key, MIB, b"y" * 100)[1] == {"length": MIB + 100}  # the limit is reached, and not passed
    log_bytes_measure(now=timezone.now())
    over_forget()
    status, answer = world.agent.log(key, MIB + 100, b"z" * 100)
    assert (status, answer["capped"]) == (200, True)
    tail = logs.log_read(key, offset=MIB + 100, limit=1000).decode()
    assert "z" not in tail.split("[")[0]
    assert world.owner.email in tail
    assert "1 MiB" in tail


def test_below_the_floor_of_the_disk_neither_files_nor_output_are_taken_and_the_disk_is_named(world: World, settings: Any) -> None:
    settings.DISK_FLOOR_MIB = 10**9
    status, error = world.put("a.bin", b"x")
    assert (status, error["code"]) == (507, "disk_full")
    assert str(settings.ARTIFACT_DIR) in error["message"]
    status, error = world.agent.log(world.rank.key, 0, b"x")
    assert (status, error["code"]) == (507, "disk_full")
    assert str(settings.LOG_DIR) in error["message"]
    settings.DISK_FLOOR_MIB = 0
    assert world.put("a.bin", b"x")[0] == 201


def test_a_disk_that_fills_up_while_a_file_comes_ends_it(world: World, settings: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("jobs.artifact_api.LOOK_EVERY", MIB)
    settings.DISK_FLOOR_MIB = 100
    free = iter([1000, 1000, 99])
    monkeypatch.setattr(
        disk.os, "statvfs", lambda path: SimpleNamespace(f_bavail=next(free, 99), f_frsize=MIB, f_blocks=1000, f_files=0, f_favail=0)
    )
    status, error = world.put("a.bin", bytes(4 * MIB))
    assert (status, error["code"]) == (507, "disk_full")
    assert list(artifact_path(world.rank.key, "a.bin").parent.iterdir()) == []


def test_use_against_the_limits_is_told_by_rest_and_on_the_usage_page(world: World) -> None:
    Quota.objects.filter(user=world.owner).update(max_storage_mib=4)
    world.put("a.bin", bytes(MIB))
    status, told = Api(world.owner).get("/usage/storage")
    assert status == 200
    assert told["mine"] == {"file_bytes": MIB, "file_count": 1, "log_bytes": 0, "limit_bytes": 4 * MIB}
    assert told["job_text"]["bytes"] == Job.objects.get(pk=world.job.pk).text_bytes > 0
    assert told["disks"] == []
    assert len(Api(user_make(is_staff=True)).get("/usage/storage")[1]["disks"]) == 3
    for language, words in (("en", "Files and output kept"), ("zh-hans", "保留的文件与输出")):
        browser = Client(headers={"Accept-Language": language})
        browser.force_login(world.owner)
        page = browser.get("/usage/").content.decode()
        assert words in page
        assert "25.0%" in page  # 1 of 4 MiB, as a bar


# --- removed ----------------------------------------------------------------------------------------------------------


def test_files_of_jobs_that_ended_long_ago_are_removed_and_the_page_says_so(world: World, settings: Any) -> None:
    world.put("a.bin", bytes(1000))
    world.agent.log(world.rank.key, 0, b"output\n")
    world.end(days_ago=91)
    log_bytes_write = {world.job.pk: (world.owner.pk, world.job.project_id, 7)}
    files.log_bytes_write(log_bytes_write)
    assert retention_run(now=timezone.now()) == 0  # kept for ever, where nothing is set
    retention_forget()
    settings.KEEP_ARTIFACTS_DAYS = 90
    assert retention_run(now=timezone.now()) == 1
    assert not artifact_path(world.rank.key, "a.bin").exists()
    assert not Artifact.objects.exists()
    assert kept_by(world.owner, None).file_bytes == 0
    assert JobEvent.objects.get(code="files_removed").params == {"days": 90, "count": 1}
    browser = Client()
    browser.force_login(world.owner)
    assert "They were removed on" in browser.get(f"/jobs/{world.job.pk}/files/").content.decode()
    assert "90 days after its end" in browser.get(f"/jobs/{world.job.pk}/events/").content.decode()
    assert logs.log_length(world.rank.key) == 7  # output has a time of its own


def test_output_is_removed_after_its_own_time_and_asking_for_it_says_when(world: World, settings: Any) -> None:
    world.agent.log(world.rank.key, 0, b"output\n")
    world.end(days_ago=11)
    files.log_bytes_write({world.job.pk: (world.owner.pk, world.job.project_id, 7)})
    settings.KEEP_LOGS_DAYS = 10
    assert retention_run(now=timezone.now()) == 1
    assert logs.log_length(world.rank.key) == 0
    api = Api(world.owner)
    for path in ("logs", "logs/download"):
        answer = api.call("GET", f"/jobs/{world.job.pk}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (410, "log_removed")
        assert "10 days" in answer.json()["message"]
    browser = Client()
    browser.force_login(world.owner)
    assert "It was removed on" in browser.get(f"/jobs/{world.job.pk}/log/").content.decode()
    assert logs_are_whole(timezone.now()) == []  # what was removed on purpose is not missing
    log_bytes_measure(now=timezone.now())
    assert world.kept.logs_removed_at is not None


def test_what_ended_lately_stays_and_the_page_says_until_when(world: World, settings: Any) -> None:
    world.put("a.bin", b"x")
    world.end(days_ago=5)
    settings.KEEP_ARTIFACTS_DAYS = 90
    assert retention_run(now=timezone.now()) == 0
    browser = Client()
    browser.force_login(world.owner)
    until = (timezone.now() + timedelta(days=85)).strftime("%Y-%m-%d")
    assert f"Kept until {until}." in browser.get(f"/jobs/{world.job.pk}/files/").content.decode()


def test_a_step_that_was_broken_off_is_done_once_more(world: World, settings: Any, monkeypatch: Any) -> None:
    world.put("a.bin", b"x")
    world.end(days_ago=100)
    settings.KEEP_ARTIFACTS_DAYS = 90
    monkeypatch.setattr("jobs.services.retention.event_add", lambda *args, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        retention_run(now=timezone.now())
    assert Artifact.objects.exists()  # the row is there though its bytes are gone
    monkeypatch.undo()
    settings.KEEP_ARTIFACTS_DAYS = 90
    assert retention_run(now=timezone.now()) == 1
    assert not Artifact.objects.exists()


def stuck(path: Any, ignore_errors: bool = False) -> None:
    """A file system that was mounted read-only."""
    if not ignore_errors:
        raise OSError(errno.EROFS, "Read-only file system", str(path))


def test_what_the_disk_does_not_let_go_of_is_still_counted_and_removed_by_a_later_step(
    world: World, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.put("a.bin", b"x" * 100)
    world.agent.log(world.rank.key, 0, b"output\n")
    world.end(days_ago=100)
    files.log_bytes_write({world.job.pk: (world.owner.pk, world.job.project_id, 7)})
    settings.KEEP_ARTIFACTS_DAYS = settings.KEEP_LOGS_DAYS = 90
    with monkeypatch.context() as patch:
        patch.setattr("jobs.services.retention.shutil.rmtree", stuck)
        assert retention_run(now=timezone.now()) == 0
        answer = Api(world.owner).call("DELETE", f"/jobs/{world.job.pk}/artifacts")
    assert caplog.text.count("Read-only file system") == 3
    assert (answer.status_code, answer.json()["code"]) == (503, "files_remain")
    assert f"#{world.job.pk}" in answer.json()["message"]
    assert (world.kept.bytes, world.kept.count, world.kept.log_bytes) == (100, 1, 7)
    assert (world.kept.files_removed_at, world.kept.logs_removed_at) == (None, None)
    assert Artifact.objects.count() == 1
    assert not JobEvent.objects.filter(code__in=("files_removed", "logs_removed")).exists()
    retention_forget()
    assert retention_run(now=timezone.now()) == 2
    assert (world.kept.bytes, world.kept.count, world.kept.log_bytes) == (0, 0, 0)


def test_an_owner_makes_room_by_removing_the_files_of_a_job_that_has_ended(world: World) -> None:
    world.put("a.bin", b"x" * 100)
    api = Api(world.owner)
    assert api.call("DELETE", f"/jobs/{world.job.pk}/artifacts").status_code == 409
    world.end()
    assert Api(user_make()).call("DELETE", f"/jobs/{world.job.pk}/artifacts").status_code == 404
    assert api.call("DELETE", f"/jobs/{world.job.pk}/artifacts").status_code == 204
    assert not AuditEntry.objects.filter(action="job.files_removed").exists()  # it was one's own
    assert api.call("DELETE", f"/jobs/{world.job.pk}/artifacts").status_code == 204
    assert not artifact_path(world.rank.key, "a.bin").exists()
    assert kept_by(world.owner, None).bytes == 0
    browser = Client()
    browser.force_login(world.owner)
    assert browser.post(f"/jobs/{world.job.pk}/files/remove/").status_code == 302
