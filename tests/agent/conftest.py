from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent import level_zero_lab, nvml_lab
from tests.agent.rank_lab import Lab


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our small NVML library, compiled once; skips, aloud, where there is no gcc."""
    return nvml_lab.library_build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def ze_loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our small Level Zero loader, likewise."""
    return level_zero_lab.loader_build(tmp_path_factory.mktemp("ze"))


@pytest.fixture(params=[None, "none"], ids=["cgroup", "no-cgroup"])
def kind(request: pytest.FixtureRequest) -> str | None:
    """Every test of ranks runs with the best that this machine has, and without cgroups."""
    return request.param


@pytest.fixture
def new_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """``new_lab("name", **settings)``: an agent's ranks in a directory of that name."""
    labs: list[Lab] = []

    def make(name: str = "agent", **settings: Any) -> Lab:
        lab = Lab(tmp_path / name, **settings)
        labs.append(lab)
        return lab

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def lab(new_lab: Callable[..., Lab], kind: str | None) -> Lab:
    return new_lab(cgroup=kind)


@pytest.fixture
def plain(new_lab: Callable[..., Lab]) -> Lab:
    """For what does not depend on how the processes of a rank are held together."""
    return new_lab()
