"""nebula-ctl drill: what it refuses before anything is thrown. The chain itself is tested on a real grid (tests/e2e)."""

from __future__ import annotations

import pytest

from client.testing import FakeApi
from tests.client.conftest import Ctl


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["drill", "boom", "node01"], "'boom' is no fault for a drill; write xid and its number, such as xid79."),
        (["drill", "xid79", "node01", "--gpu", "7"], "node01 has no card 7."),
    ],
)
def test_a_drill_that_makes_no_sense_is_refused(nebula: Ctl, api: FakeApi, argv: list[str], said: str) -> None:
    api.node_add("node01", "RTX 4090")
    done = nebula(*argv)
    assert done.code == 2
    assert said in done.err
