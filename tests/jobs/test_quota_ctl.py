"""nebula-ctl quota, usage and clone against the real API, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from client import ctl
from client.commands import common
from client.profile import Profile, profile_save
from client.sdk import NebulaClient
from client.transport import Response, Stream
from jobs.models import Job
from quotas import calendar
from quotas.models import JobUse, QuotaRequest, User
from quotas.requests import request_approve
from quotas.tokens import token_create
from tests.factories import user_make
from tests.jobs.lab import Lab
from tests.rest import no_redis  # noqa: F401

pytestmark = pytest.mark.django_db
URL = "http://127.0.0.1:8000"


class InProcess:
    """A transport whose other end is Django in this process."""

    def request(self, *, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        given = {name: value for name, value in headers.items() if name.lower() not in ("content-length", "accept-encoding")}
        answer = Client(headers=given, raise_request_exception=False).generic(method, path, body or b"", content_type="application/json")
        content = answer.getvalue() if answer.streaming else answer.content
        return Response(answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, content)

    @contextlib.contextmanager
    def stream(self, *, path: str, headers: Mapping[str, str], method: str = "GET", body: bytes | None = None) -> Iterator[Stream]:
        found = self.request(method=method, path=path, headers=headers, body=body)
        yield Stream(found.status, found.headers, iter([found.body]))

    def close(self) -> None:
        return None


@pytest.fixture
def lin() -> User:
    month = calendar.month_of(timezone.now())
    return user_make("lin@lab.example", quota={"gpu_hours": 5, "used_gpu_s": 4.5 * 3600, "period_start": month, "model_caps": {"a100": 2}})


@pytest.fixture
def nebula(lin: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    path = tmp_path / "profile.json"
    secret = token_create(user=lin, name="test")[1]
    profile_save(path, Profile(endpoint=URL, token=secret))
    monkeypatch.setenv("NEBULA_CONFIG", str(path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(common, "client_for", lambda endpoint, token, *, ca_file: NebulaClient(URL, token, transport=InProcess()))

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = int(ctl.run(argv))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.mark.usefixtures("mid_month")
def test_limits_are_shown_and_more_is_asked_for(nebula: Callable[..., Any], lin: User, settings: Any) -> None:
    settings.INSTALLATION_ZONE = "Asia/Shanghai"
    code, out, _err = nebula("quota", "show")
    assert code == 0
    assert "4.5 of 5" in out
    assert "(Asia/Shanghai)" in out
    assert "a100 at once" in out
    code, out, _err = nebula("quota", "ask", "gpu_hours", "10", "--why", "Twelve more runs for the rebuttal.")
    request = QuotaRequest.objects.get()
    assert (code, out) == (0, f"Request {request.pk} (+10 GPU-hours a month) is with the admins now.\n")
    assert nebula("quota", "ask", "model_cards:a100", "1", "--why", "Long-context evaluation, one more card.")[0] == 0
    request_approve(request=request, by=user_make(is_staff=True), now=timezone.now())
    out = nebula("quota", "requests")[1]
    assert "approved" in out
    assert "+1 card of a100 at once" in out
    assert "4.5 of 15" in nebula("quota", "show")[1]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("quota", "ask", "gpu_hours", "10"), "Add --why TEXT"),
        (("quota", "ask", "sunshine", "10", "--why", "Because of the reasons."), "what:"),
        (("quota", "ask", "cards", "1", "--why", "Because of the reasons."), "no such limit"),
        (("usage", "--month", "July"), "month: Must be a month such as 2026-07."),
    ],
)
def test_a_wrong_question_is_answered_in_a_sentence(nebula: Callable[..., Any], argv: tuple[str, ...], said: str) -> None:
    code, out, err = nebula(*argv)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.usefixtures("mid_month")
def test_usage_is_a_table_or_a_file_of_exact_figures(nebula: Callable[..., Any], lin: User) -> None:
    assert "Nothing was charged in" in nebula("usage")[1]
    lab = Lab()
    lab.node("n1", 24_576)
    job = lab.submit(owner=lin, now=lab.now)
    lab.schedule(lab.now)
    lab.report(job, "RUNNING")
    lab.later(1800)
    lab.exit(job)
    month = f"{calendar.month_of(lab.now):%Y-%m}"
    out = nebula("usage", "--month", month)[1]
    assert "RTX 4090" in out
    assert "0.50" in out
    rows = nebula("usage", "--month", month, "--csv")[1].splitlines()
    assert rows[0].startswith("month,user,project,gpu_model,")
    assert ",1800,0.5,43200," in rows[1]  # 24 GB × 1800 s


def test_a_clone_says_what_earlier_runs_peaked_at_and_takes_it(nebula: Callable[..., Any], lin: User) -> None:
    lab = Lab()
    lab.node("n1", 24_576)
    job = lab.submit(owner=lin, gpu_mem_mib=20_480)
    for number in range(3):
        JobUse.objects.create(
            job_id=1000 + number, user=lin, project=job.project, name=job.name, is_success=True, cards=1, asked_mib=20_480,
            peak_mib=4500, is_shared=False, gpu_s=60, ended_at=timezone.now(),
        )  # fmt: skip
    code, out, err = nebula("clone", str(job.pk))
    assert code == 0
    assert "peaked at 4.4 GiB" in err
    assert "--right-size" in err
    first = Job.objects.latest("pk")
    assert (out, first.gpu_mem_mib) == (f"Job {first.pk} is submitted, like job {job.pk}.\n", 20_480)
    assert nebula("clone", str(job.pk), "--right-size", "--time", "1:00:00", "--name", "small")[0] == 0
    small = Job.objects.latest("pk")
    assert (small.gpu_mem_mib, small.time_limit_s, small.name) == (6 * 1024, 3600, "small")
    code, out, _err = nebula("clone", str(job.pk), "--show")
    assert (code, '"gpu_mem": "20G"' in out, Job.objects.count()) == (0, True, 3)
    assert nebula("clone", "999999")[0] != 0
