"""Why a program ended, in its own last words: on the page of a failed job, beside its exit code."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest
from django.test import Client

from jobs import logs
from jobs.last_lines import LINE_MOST, LINES_MOST, last_lines
from jobs.models import Job
from tests.factories import project_make, user_make
from tests.jobs.lab import Lab

FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'


@pytest.mark.parametrize(
    ("tail", "lines"),
    [
        ("", []),
        ("\n\n", []),
        ("one\ntwo\nthree\nfour\n\n", ["two", "three", "four"]),
        (FRAMES + "ValueError: bad shape (3, 4)\n", ["ValueError: bad shape (3, 4)"]),
        (FRAMES + "ValueError: bad\nbye\n\nshutting down\nworker 1 ended\n", ["ValueError: bad", "bye"]),
        # Of several the last one; a message of several lines goes on up to a blank one.
        (
            FRAMES + "KeyError: 'a'\n\nDuring handling of …\n\n" + FRAMES + "RuntimeError: b\n  detail\n",
            ["RuntimeError: b", "  detail".strip()],
        ),
        # As torchrun and pytest have it: indented or behind other output.
        ("  Traceback (most recent call last):\n    File 'x'\n  OSError: gone\n", ["OSError: gone"]),
        # Cut in the middle of its frames: then the end of the output.
        (FRAMES, ["Traceback (most recent call last):", 'File "train.py", line 7, in <module>', "main()"]),
        ("10%\r50%\r100%\nKilled\n", ["100%", "Killed"]),
        ("\x1b[31mError:\x1b[0m no such file\n", ["Error: no such file"]),
        ("a\x00b\n", ["a\N{REPLACEMENT CHARACTER}b"]),
        ("x" * 1000, ["x" * (LINE_MOST - 1) + "…"]),
    ],
)
def test_the_line_that_says_why(tail: str, lines: list[str]) -> None:
    assert last_lines(tail) == lines


@pytest.mark.parametrize(
    "text", ["Traceback (most recent call last):\n" * 2000, "\x1b[" * 32_000, "\r" * 65_000, " \n" * 32_000, "Traceback " * 6000]
)
def test_no_text_makes_it_slow_or_long(text: str) -> None:
    begin = process_time()
    found = last_lines(text[-65_536:])
    assert process_time() - begin < 5  # a thousand times what it takes; a quadratic reading takes minutes
    assert len(found) <= LINES_MOST
    assert all(len(line) <= LINE_MOST for line in found)


def failed(output: bytes, **request: Any) -> tuple[Lab, Job]:
    lab = Lab()
    lab.node("n1", 24564)
    job = lab.submit(gpu_mem_mib=4096, **request)
    lab.schedule()
    lab.report(job, "RUNNING")
    logs.log_append(lab.rank(job).key, offset=0, data=output)
    lab.exit(job, 1)
    return lab, job


@pytest.mark.django_db
def test_the_page_of_a_failed_job_says_why_and_offers_to_run_it_again(client: Client) -> None:
    _lab, job = failed((FRAMES + "ValueError: <b>bad</b> shape\n").encode())
    client.force_login(job.owner)
    page = client.get(f"/jobs/{job.pk}/events/").content.decode()
    assert "ValueError: &lt;b&gt;bad&lt;/b&gt; shape" in page
    assert page.index("end-note") < page.index("ValueError: ")
    assert f'/jobs/new/?from=job:{job.pk}"' in page
    assert "Run again" in page
    # Kept once: the output may go, or grow to anything, and nothing is read any more.
    job.refresh_from_db()
    assert job.end_known == {"last": ["ValueError: <b>bad</b> shape"]}


@pytest.mark.django_db
def test_who_may_not_read_the_output_sees_none_of_it(client: Client) -> None:
    lin, mate = user_make(), user_make()
    _lab, job = failed(b"my secret plan failed\n", owner=lin, project=project_make("nlp", members=(lin, mate)))
    client.force_login(mate)
    answer = client.get(f"/jobs/{job.pk}/events/")
    assert answer.status_code == 200
    assert "my secret plan" not in answer.content.decode()


@pytest.mark.django_db
def test_a_known_error_is_told_with_its_way_out_instead(client: Client) -> None:
    _lab, job = failed(b"ModuleNotFoundError: No module named 'torch'\n")
    client.force_login(job.owner)
    page = client.get(f"/jobs/{job.pk}/events/").content.decode()
    assert page.count("No module named &#x27;torch&#x27;") == 1


@pytest.mark.django_db
def test_a_running_job_is_cloned_and_not_run_again(client: Client) -> None:
    lab = Lab()
    lab.node("n1", 24564)
    job = lab.submit(gpu_mem_mib=4096)
    client.force_login(job.owner)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "Clone" in page
    assert "Run again" not in page
