from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from tests.nodes.conftest import live_redis, no_redis  # noqa: F401


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, settings: Settings) -> None:
    """Logs and artefacts of a test are its own: job ids repeat from test to test."""
    settings.LOG_DIR = tmp_path / "logs"
    settings.ARTIFACT_DIR = tmp_path / "artifacts"
    settings.RUN_DIR = tmp_path / "run"
