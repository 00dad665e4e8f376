"""Output by offset, downloads and artefacts over REST."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from jobs import logs, output_api
from jobs.artifacts import artifact_path
from jobs.lifecycle import JobState, RankState
from jobs.models import Artifact, Attempt, Job, Rank
from jobs.output_api import utf8_window
from quotas.models import User
from quotas.tokens import token_create
from tests.factories import attempt_make, job_make, node_make, user_make
from tests.jobs.lab import Lab
from tests.rest import Api, is_error, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
TEXT = "epoch 1: loss 0.5 ☠\n训练 🎉\n"  # 1, 2, 3 and 4 byte characters
DATA = TEXT.encode()


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example")


@pytest.fixture
def api(lin: User) -> Api:
    return Api(lin)


@pytest.fixture
def job(lin: User) -> Job:
    job = job_make(lin, state=JobState.RUNNING, epoch=1)
    attempt_make(job)
    return job


def rank_of(job: Job) -> Rank:
    return Rank.objects.select_related("attempt").get(attempt__job=job, attempt__epoch=job.epoch)


def write(job: Job, data: bytes) -> None:
    key = rank_of(job).key
    logs.log_append(key, offset=logs.log_length(key), data=data)


def follow(api: Api, job: Job, limit: int) -> Iterator[dict]:
    offset = 0
    for _ in range(200):
        status, piece = api.get(f"/jobs/{job.pk}/logs", offset=offset, limit=limit)
        assert status == 200
        yield piece
        if piece["next_offset"] == offset:
            return
        offset = piece["next_offset"]
    raise AssertionError("reading the log does not end")


# --- by offset --------------------------------------------------------------------------------------------------------


def test_a_job_that_has_not_started_has_an_empty_log(api: Api, lin: User) -> None:
    job = job_make(lin)
    empty = {"job": job.pk, "attempt": None, "rank": 0, "offset": 0, "next_offset": 0, "length": 0, "text": ""}
    assert api.get(f"/jobs/{job.pk}/logs") == (200, {**empty, "is_complete": False})
    assert api.get(f"/jobs/{job.pk}/logs", offset=50, tail=10)[0] == 200
    cancelled = job_make(lin, state=JobState.CANCELLED)
    assert api.get(f"/jobs/{cancelled.pk}/logs")[1]["is_complete"] is True


@pytest.mark.parametrize("limit", [4, 5, 7, 1000])
def test_pieces_join_to_the_whole_and_split_no_character(api: Api, job: Job, limit: int) -> None:
    write(job, DATA)
    pieces = list(follow(api, job, limit))
    assert "".join(piece["text"] for piece in pieces) == TEXT
    assert not any("\ufffd" in piece["text"] for piece in pieces)
    assert pieces[-1]["next_offset"] == len(DATA)
    assert not any(piece["is_complete"] for piece in pieces)  # it still runs


def test_half_a_character_at_the_end_waits_for_its_other_half(api: Api, job: Job) -> None:
    write(job, b"ab\xe2\x98")
    piece = api.get(f"/jobs/{job.pk}/logs")[1]
    assert (piece["text"], piece["next_offset"], piece["length"]) == ("ab", 2, 4)
    assert api.get(f"/jobs/{job.pk}/logs", offset=2)[1]["next_offset"] == 2
    write(job, b"\xa0!")
    assert api.get(f"/jobs/{job.pk}/logs", offset=2)[1]["text"] == "☠!"


def test_what_is_no_utf8_is_replaced_and_the_offsets_stay_true(api: Api, job: Job) -> None:
    write(job, b"a\xff\xfeb\x00\x1b[31m")
    piece = api.get(f"/jobs/{job.pk}/logs")[1]
    assert piece["text"] == "a\ufffd\ufffdb\x00\x1b[31m"
    assert piece["next_offset"] == piece["length"] == 10


def test_a_log_is_complete_when_its_attempt_is_over_and_all_is_read(api: Api, job: Job) -> None:
    write(job, b"abcdef\xe2")
    Attempt.objects.filter(job=job).update(ended_at=timezone.now())
    first = api.get(f"/jobs/{job.pk}/logs", limit=4)[1]
    assert (first["is_complete"], first["text"]) == (False, "abcd")
    last = api.get(f"/jobs/{job.pk}/logs", offset=4)[1]
    assert (last["is_complete"], last["text"], last["next_offset"]) == (True, "ef\ufffd", 7)


def test_a_rank_that_exited_is_complete_once_its_last_byte_is_here(api: Api, job: Job) -> None:
    write(job, b"abc")
    Rank.objects.filter(attempt__job=job).update(observed=RankState.EXITED, final_log_offset=6)
    assert api.get(f"/jobs/{job.pk}/logs")[1]["is_complete"] is False
    write(job, b"def")
    assert api.get(f"/jobs/{job.pk}/logs")[1]["is_complete"] is True


def test_the_tail_begins_at_a_whole_character(api: Api, job: Job) -> None:
    write(job, "☠☠☠".encode())
    for size, text, offset in ((3, "☠", 6), (4, "☠", 6), (5, "☠", 6), (6, "☠☠", 3), (100, "☠☠☠", 0), (0, "", 9)):
        piece = api.get(f"/jobs/{job.pk}/logs", tail=size)[1]
        assert (piece["text"], piece["offset"], piece["next_offset"]) == (text, offset, 9)


def test_an_offset_past_the_end_answers_with_the_end(api: Api, job: Job) -> None:
    write(job, b"abc")
    piece = api.get(f"/jobs/{job.pk}/logs", offset=10**15)[1]
    assert (piece["offset"], piece["next_offset"], piece["text"]) == (3, 3, "")


def test_an_older_attempt_is_read_by_its_number(api: Api, job: Job) -> None:
    write(job, b"first")
    Attempt.objects.filter(job=job).update(ended_at=timezone.now())
    Job.objects.filter(pk=job.pk).update(epoch=2)
    job.refresh_from_db()
    attempt_make(job)
    write(job, b"second")
    assert api.get(f"/jobs/{job.pk}/logs")[1]["text"] == "second"
    piece = api.get(f"/jobs/{job.pk}/logs", attempt=1)[1]
    assert (piece["text"], piece["attempt"], piece["is_complete"]) == ("first", 1, True)


@pytest.mark.parametrize("query", [{"attempt": 7}, {"rank": 1}, {"attempt": 2**31 - 1, "rank": 5}])
def test_an_attempt_or_rank_that_is_not_there_is_a_404(api: Api, job: Job, query: dict[str, int]) -> None:
    for path in ("logs", "logs/download"):
        status, error = api.get(f"/jobs/{job.pk}/{path}", **query)
        assert (status, is_error(error)) == (404, True)


@pytest.mark.parametrize("name", ["offset", "limit", "tail", "rank", "attempt"])
@pytest.mark.parametrize("value", ["-1", "x", "1.5", "9" * 40, ""])
def test_a_number_that_is_none_is_a_400(api: Api, job: Job, name: str, value: str) -> None:
    status, error = api.get(f"/jobs/{job.pk}/logs", **{name: value})
    assert (status, is_error(error), list(error["fields"])) == (400, True, [name])


def test_a_limit_has_its_limits(api: Api, job: Job) -> None:
    for limit in (0, 3, 1_048_577):
        assert api.get(f"/jobs/{job.pk}/logs", limit=limit)[0] == 400


@given(data=st.binary(max_size=80) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace")), step=st.integers(4, 9))
def test_windows_of_any_bytes_join_to_what_one_reading_gives(data: bytes, step: int) -> None:
    text, at = "", 0
    while at < len(data):
        piece = data[at : at + step]
        is_end = at + len(piece) >= len(data)
        _, said, left = utf8_window(piece, is_end=is_end)
        assert len(piece) > left, "no progress"
        text, at = text + said, at + len(piece) - left
    assert text == data.decode("utf-8", "replace")


# --- downloads --------------------------------------------------------------------------------------------------------


def test_a_download_is_the_bytes_as_they_are(api: Api, job: Job) -> None:
    data = DATA * 20_000 + b"\xff\x00"  # several chunks
    write(job, data)
    answer = api.call("GET", f"/jobs/{job.pk}/logs/download")
    assert b"".join(answer.streaming_content) == data  # type: ignore[attr-defined]
    assert answer["Content-Disposition"] == f'attachment; filename="job-{job.pk}-1-0.log"'
    assert answer["Content-Length"] == str(len(data))
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_a_job_without_output_downloads_as_an_empty_file(api: Api, lin: User, job: Job) -> None:
    for one in (job, job_make(lin)):
        answer = api.call("GET", f"/jobs/{one.pk}/logs/download")
        assert (answer.status_code, b"".join(answer), answer["Content-Disposition"][:10]) == (200, b"", "attachment")


@pytest.mark.django_db(transaction=True)
def test_a_download_streams_under_asgi(lin: User, job: Job) -> None:
    write(job, DATA * 20_000)
    secret = token_create(user=lin, name="test")[1]

    async def read() -> tuple[int, bytes]:
        path, headers = f"/api/v1/jobs/{job.pk}/logs/download", {"Authorization": f"Bearer {secret}"}
        answer = await AsyncClient().get(path, headers=headers)
        assert answer.is_async  # a plain iterator would be read into memory as a whole
        chunks = [chunk async for chunk in answer.streaming_content]
        assert max(map(len, chunks)) <= 262_144
        return answer.status_code, b"".join(chunks)

    assert async_to_sync(read)() == (200, DATA * 20_000)


# --- artefacts --------------------------------------------------------------------------------------------------------


def leave(job: Job, name: str, data: bytes) -> None:
    rank = rank_of(job)
    Artifact.objects.create(rank=rank, name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    path = artifact_path(rank.key, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.bin", "模型 ☠.pt", "a'b\".txt", "..", "%2e", "a b+c&d=e?f#g", "x" * 255])
def test_an_artefact_comes_back_under_its_own_name(api: Api, job: Job, name: str) -> None:
    from urllib.parse import quote

    leave(job, name, b"\x00data\xff")
    (row,) = api.get(f"/jobs/{job.pk}/artifacts")[1]["results"]
    assert (row["name"], row["rank"], row["attempt"], row["size"]) == (name, 0, 1, 6)
    assert row["sha256"] == hashlib.sha256(b"\x00data\xff").hexdigest()
    answer = api.call("GET", f"/jobs/{job.pk}/artifacts/0/{quote(name, safe='')}")
    assert answer.status_code == 200
    assert b"".join(answer.streaming_content) == b"\x00data\xff"  # type: ignore[attr-defined]
    assert answer["Content-Disposition"].startswith("attachment")
    assert answer["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize("path", ["0/none", "1/model.bin", "0/..%2F..%2Fsecret", "0/%2Fetc%2Fpasswd", "0/a%00b", "0/" + "x" * 5000])
def test_an_artefact_that_is_not_there_is_a_404(api: Api, job: Job, path: str) -> None:
    leave(job, "model.bin", b"x")
    answer = api.call("GET", f"/jobs/{job.pk}/artifacts/{path}")
    assert answer.status_code in {400, 404}


def test_output_asked_for_in_the_moment_of_placement_is_empty_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    lab.node("n1", 24564)
    job = lab.submit(gpu_mem_mib=4096)
    rank_find = output_api.rank_find

    def placed_meanwhile(**asked: Any) -> Rank | None:
        rank = rank_find(**asked)
        if Job.objects.get(pk=job.pk).state == JobState.WAITING:
            lab.schedule()
        return rank

    monkeypatch.setattr(output_api, "rank_find", placed_meanwhile)
    status, piece = Api(job.owner).get(f"/jobs/{job.pk}/logs")
    assert (status, piece["attempt"], piece["text"], piece["is_complete"]) == (200, 1, "", False)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 200),
        ({"attempt": 1}, 200),  # it may be the next one
        ({"rank": 1}, 200),
        ({"attempt": 2}, 404),
        ({"rank": 2}, 404),  # of two nodes there are ranks 0 and 1
    ],
)
def test_what_may_still_come_is_empty_and_what_can_not_is_a_404(lin: User, api: Api, query: dict[str, int], status: int) -> None:
    job = job_make(lin, nodes=2, gpu_count=2)
    for path in ("logs", "logs/download"):
        answer = api.call("GET", f"/jobs/{job.pk}/{path}?{urlencode(query)}")
        assert answer.status_code == status, path


def test_a_final_job_has_no_next_attempt(lin: User, api: Api) -> None:
    lab = Lab()
    lab.node("n1", 24564)
    job = lab.submit(owner=lin, gpu_mem_mib=4096)
    lab.schedule()
    lab.report(job, "RUNNING")
    assert api.get(f"/jobs/{job.pk}/logs", attempt=2)[0] == 200
    lab.exit(job)
    assert api.get(f"/jobs/{job.pk}/logs", attempt=2)[0] == 404


def test_a_row_whose_file_is_gone_is_a_404(api: Api, job: Job) -> None:
    leave(job, "model.bin", b"x")
    artifact_path(rank_of(job).key, "model.bin").unlink()
    assert api.call("GET", f"/jobs/{job.pk}/artifacts/0/model.bin").status_code == 404


def test_the_latest_attempts_file_is_given_first(api: Api, job: Job) -> None:
    leave(job, "ckpt", b"old")
    Attempt.objects.filter(job=job).update(ended_at=timezone.now())
    Job.objects.filter(pk=job.pk).update(epoch=2)
    job.refresh_from_db()
    attempt_make(job, node=node_make())
    leave(job, "ckpt", b"new")
    assert [row["attempt"] for row in api.get(f"/jobs/{job.pk}/artifacts")[1]["results"]] == [2, 1]
    assert [row["attempt"] for row in api.get(f"/jobs/{job.pk}/artifacts", attempt=1)[1]["results"]] == [1]
    path = f"/jobs/{job.pk}/artifacts/0/ckpt"
    assert b"".join(api.call("GET", path).streaming_content) == b"new"  # type: ignore[attr-defined]
    assert b"".join(api.call("GET", path + "?attempt=1").streaming_content) == b"old"  # type: ignore[attr-defined]
