from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rank_lab import Lab


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
