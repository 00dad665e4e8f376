"""A fake control plane, a client of it, and nebula-ctl run in this process with its own profile."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from client import ctl
from client.profile import Profile, profile_save
from client.sdk import NebulaClient
from client.testing import FakeApi
from client.transport import HttpxTransport, StdlibTransport, endpoint_parse
from tests.waiting import PATIENCE_S


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as fake:
        yield fake


class Clock:
    """Time that passes only by sleeping. ``on_sleep`` runs at each sleep: the world moves while we wait."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        self.on_sleep()

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["stdlib", "httpx"])
def client(request: pytest.FixtureRequest, api: FakeApi, clock: Clock) -> Iterator[NebulaClient]:
    random.seed(1)
    kind = {"stdlib": StdlibTransport, "httpx": HttpxTransport}[request.param]
    transport = kind(endpoint_parse(api.url), timeout_s=PATIENCE_S, ca_file=None)
    with NebulaClient(api.url, api.token, transport=transport, sleep=clock.sleep, clock=clock.clock) as made:
        yield made


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Ctl = Callable[..., Ran]


@pytest.fixture
def profile(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profile.json"
    profile_save(path, Profile(endpoint=api.url, token=api.token))
    monkeypatch.setenv("NEBULA_CONFIG", str(path))
    for name in ("NEBULA_ENDPOINT", "NEBULA_TOKEN", "NEBULA_TOKEN_FILE", "NEBULA_CA_FILE", "NEBULA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return path


@pytest.fixture
def nebula(profile: Path, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """``nebula("submit", "--", "true")`` → exit code and what was printed."""

    def run(*argv: str) -> Ran:
        capsys.readouterr()
        code = int(ctl.run(argv))
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Ran(code, out, err)

    return run
