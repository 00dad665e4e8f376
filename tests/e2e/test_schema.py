"""The API under whatever its own description allows and forbids, as an ordinary user: never a 5xx, never another's data.

``NEBULA_SCHEMA_S`` = seconds to go on for; 45 in CI's soak, 600 before a release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.live.grid import Grid, wait_for

pytestmark = pytest.mark.soak
ROOT = Path(__file__).parents[2]
CANARY = "kanarienvogel"


@pytest.fixture
def users(shared_grid: Grid) -> dict[str, str]:
    script = (
        "from quotas.services import user_create; from quotas.tokens import token_create; import json\n"
        "users = {name: user_create(email=name + '@schema.example') for name in ('canaryowner', 'mallory')}\n"
        "print('TOKENS ' + json.dumps({name: token_create(user=user, name=name)[1] for name, user in users.items()}))"
    )
    out = shared_grid.manage("shell", "-v", "0", "-c", script)
    found: dict[str, str] = json.loads(out.split("TOKENS ")[1].splitlines()[0])
    return found


def test_a_user_gets_no_5xx_and_nothing_of_others(grid: Grid, users: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is a development package")
    seconds = int(os.environ.get("NEBULA_SCHEMA_S", "45"))
    job = _foreign_job(grid, users["canaryowner"])
    with grid.client() as admin:
        nodes = [node["name"] for node in admin.node_list()]
    config = tmp_path / "schemathesis.toml"
    config.write_text("")
    more = {
        "SCHEMATHESIS_HOOKS": "tests.e2e.schema_hooks",
        "SCHEMA_FOREIGN": f"{CANARY}|canaryowner@",
        "SCHEMA_IDS": f"{job},1,2,3",
        "SCHEMA_NAMES": ",".join(("canaryowner", "mallory", *nodes)),
        "PYTHONPATH": str(ROOT),
    }
    checks = "not_a_server_error,no_foreign_data,response_schema_conformance,content_type_conformance,ignored_auth"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{grid.profile().endpoint}/api/v1/schema"),
            *("--url", f"{grid.profile().endpoint}", "--header", f"Authorization: Bearer {users['mallory']}"),
            *("--checks", checks, "--phases", "examples,coverage,fuzzing", "--max-time", str(seconds), "--continue-on-failure"),
            *("--rate-limit", "auto", "--request-timeout", "30", "--seed", "7", "--suppress-health-check", "all", "--warnings", "off"),
            # A new password or token of one's own would end the run; the docs are HTML.
            *("--exclude-path", "/api/v1/docs", "--exclude-path", "/api/v1/schema", "--exclude-operation-id", "token_revoke"),
        ],
        cwd=tmp_path,
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=seconds + 240,
    )
    (tmp_path / "schemathesis.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-12_000:]
    assert "Tested: 0" not in done.stdout


def _foreign_job(grid: Grid, token: str) -> int:
    with grid.client(token) as owner:
        job: dict[str, Any] = dict(
            owner.job_submit(argv=["/bin/sh", "-c", f"echo {CANARY}"], gpu_mem="4G", name=f"{CANARY}-job", env={"NOTE": CANARY})
        )
        wait_for(lambda: owner.job_get(job["id"])["state"] == "SUCCEEDED", what="the foreign job is over")
    return int(job["id"])
