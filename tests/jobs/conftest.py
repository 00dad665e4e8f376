from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from tests.nodes.conftest import no_redis  # noqa: F401
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, settings: Settings) -> None:
    """Logs and artefacts of a test are its own: job ids repeat from test to test."""
    settings.LOG_DIR = tmp_path / "logs"
    settings.ARTIFACT_DIR = tmp_path / "artifacts"
    settings.RUN_DIR = tmp_path / "run"


@pytest.fixture(autouse=True)
def patient_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a budget cuts off depends on how busy this machine is. (The cut itself is tested with a clock of ticks.)"""
    for name in ("jobs.whatif.BUDGET_S", "jobs.whatif.INLINE_S", "jobs.whatif.QUEUE_S", "jobs.forecaster.BUDGET_S"):
        monkeypatch.setattr(name, PATIENCE_S)
