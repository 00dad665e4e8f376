"""nebula-ctl projects and tokens, against the API itself: its answers go straight from Django's test client to the command line."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from client import ctl
from client.commands import common
from client.errors import ExitCode
from client.profile import Profile, profile_save
from client.sdk import NebulaClient
from client.transport import Response, Stream
from jobs.models import JobFiles
from quotas.models import ApiToken, Membership, Quota, User
from quotas.services import quota_for
from quotas.tokens import credential_open, token_create
from tests.factories import job_make, user_make
from tests.rest import no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


class InProcess:
    """A Transport (client/transport.py) without a network."""

    def request(self, *, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        answer = Client(raise_request_exception=False).generic(
            method, path, body or b"", content_type="application/json", headers=dict(headers)
        )
        return Response(answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, answer.content)

    @contextmanager
    def stream(self, **asked: Any) -> Iterator[Stream]:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def lin() -> User:
    return user_make("lin@lab.example", is_staff=True)


Ctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(lin: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctl:
    monkeypatch.setattr(common, "client_for", lambda endpoint, token, **more: NebulaClient(endpoint, token, transport=InProcess()))
    monkeypatch.setenv("NEBULA_CONFIG", str(tmp_path / "profile.json"))
    monkeypatch.setenv("COLUMNS", "160")
    profile_save(
        tmp_path / "profile.json", Profile(endpoint="http://127.0.0.1:1", token=token_create(user=lin, name="cli")[1], ca_file=None)
    )

    def carry_out(*argv: str) -> tuple[int, str, str]:
        code = int(ctl.run(argv))
        told = capsys.readouterr()
        return code, told.out, told.err

    return carry_out


def test_a_project_is_made_and_its_members_are_kept(run: Ctl) -> None:
    user_make("chen@lab.example")
    assert run("projects", "create", "vision", "--title", "Vision group")[0] == ExitCode.OK
    assert "viewer" in run("projects", "add", "vision", "chen@lab.example", "--role", "viewer")[1]
    assert "chen@lab.example  user" in run("projects", "role", "vision", "Chen@lab.example", "user")[1]
    listed = json.loads(run("projects", "list", "--json")[1])
    assert [(item["name"], item["role"], item["members_count"]) for item in listed if not item["is_personal"]] == [("vision", "lead", 2)]
    assert run("projects", "remove", "vision", "chen@lab.example")[0] == ExitCode.OK
    assert list(Membership.objects.filter(project__name="vision").values_list("user__email", flat=True)) == ["lin@lab.example"]
    assert "no member" in run("projects", "remove", "vision", "chen@lab.example")[2]
    assert "only lead" in run("projects", "role", "vision", "lin@lab.example", "viewer")[2]
    assert run("projects", "add", "vision", "x@lab.example", "--role", "king")[0] == ExitCode.USAGE


def test_a_token_is_made_listed_and_revoked(run: Ctl, lin: User, tmp_path: Path) -> None:
    run("projects", "create", "vision")
    code, out, _err = run("tokens", "create", "ci", "--project", "vision", "--scope", "read", "--days", "7")
    secret = out.split()[-1]
    found = credential_open(secret)
    assert code == ExitCode.OK
    assert found is not None
    assert (found[0], found[1].scopes, found[0].confined_to is not None) == (lin, {"read"}, True)
    listed = run("tokens", "list")[1]
    assert secret[:12] in listed
    assert secret not in listed
    assert run("tokens", "revoke", secret[:12])[0] == ExitCode.OK
    assert credential_open(secret) is None
    assert "no token" in run("tokens", "revoke", "999999")[2]
    file = tmp_path / "token"
    out = run("tokens", "create", "file", "--token-file", str(file), "--json")[1]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().strip() not in out
    assert ApiToken.objects.get(name="file").scopes == "read submit"


def test_a_short_token_is_handed_on(lin: User) -> None:
    with NebulaClient("http://127.0.0.1:1", token_create(user=lin, name="x", scopes=["read"])[1], transport=InProcess()) as nebula:
        made = nebula.token_jwt(ttl_s=60)
        assert made["scopes"] == ["read"]
        assert nebula.project_list()[0]["is_personal"]
    with NebulaClient("http://127.0.0.1:1", made["token"], transport=InProcess()) as nebula:
        assert nebula.me()["email"] == "lin@lab.example"


def test_usage_storage_shows_use_against_the_limits(run: Ctl, lin: User) -> None:
    mib = 1024 * 1024
    job = job_make(lin)
    JobFiles.objects.create(job=job, owner=lin, project=job.project, bytes=3 * mib, count=2, log_bytes=mib)
    quota_for(lin)
    Quota.objects.filter(user=lin).update(max_storage_mib=8)
    code, out, _err = run("usage", "--storage")
    assert code == ExitCode.OK
    for part in ("3.0 MiB in 2 files", "4.0 MiB of 8.0 MiB", "of 16.0 MiB", "MiB free of"):
        assert part in out
    assert json.loads(run("usage", "--storage", "--json")[1])["mine"]["file_bytes"] == 3 * mib
