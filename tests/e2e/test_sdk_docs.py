"""The examples of docs/sdk.md on the running control plane, as they stand there."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

from bench.live.grid import ROOT, Grid
from client.sdk import NebulaClient

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def carried_out(block: str, grid: Grid) -> tuple[str, dict[str, Any]]:
    """What it prints, and its names."""
    names: dict[str, Any] = {"token": grid.profile().token}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(block.replace("https://nebula.lab.example", grid.url).replace("/data/me", str(ROOT)), names)
    return out.getvalue(), names


def test_every_example_runs(grid: Grid, client: NebulaClient) -> None:
    assert len(BLOCKS) == 3
    first, _ = carried_out(BLOCKS[0].replace('"train.py"', '"-c", "print(\'loss 0.1\')"'), grid)
    assert first == "loss 0.1\nSUCCEEDED\n"
    second, names = carried_out(BLOCKS[1], grid)
    assert names["ended"]["state"] == "SUCCEEDED"
    assert second == "report.txt b'ready\\n'\n"
    client.secret_delete("hf-token")
    carried_out(BLOCKS[2], grid)  # against the fake that ships with the client
