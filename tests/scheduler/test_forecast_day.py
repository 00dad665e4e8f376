"""Forecasts under the default policy, while short jobs go on coming: right on the average, though none of them is right to the minute."""

from __future__ import annotations

import pytest

from jobs.scheduler import Policy
from tests.scheduler.days import told_and_expected


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_forecasts_of_steady_days_are_unbiased() -> None:
    """Runtimes are known. 60 moments of 30 days; the true wait is a mean over four futures each, and waits count up to two hours."""
    told, blind, true = told_and_expected(seeds=range(1, 31), policy=Policy(), futures=4, past=4, most_s=7_200.0)
    assert told == pytest.approx(true, rel=0.1)
    assert blind < 0.8 * true  # who expects nothing to come tells too early a time
