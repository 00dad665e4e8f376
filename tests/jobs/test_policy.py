"""The policy that an administrator sets."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks
from pytest_django.fixtures import Settings

from jobs.policy import PolicyError, policy_current
from jobs.scheduler import Policy, Queue


def test_without_settings_it_is_the_cores_own() -> None:
    assert policy_current() == Policy()


def test_settings_change_it(settings: Settings) -> None:
    settings.POLICY_ORDER = "capacity"
    settings.POLICY_BORROW_S = 60.0
    settings.POLICY_QUEUES = '{"night": {"guaranteed": 0.25, "most": 0.5}, "day": {"guaranteed": 0.75}}'
    settings.POLICY_QOS = '{"urgent": 1000}'
    policy = policy_current()
    assert (policy.order, policy.borrow_s, policy.qos) == ("capacity", 60.0, (("urgent", 1000),))
    assert policy.queues == (Queue(name="night", guaranteed=0.25, most=0.5), Queue(name="day", guaranteed=0.75, most=1.0))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ORDER", "fairest", "NEBULA_POLICY_ORDER is 'fairest'; expected one of fair, fifo, priority, drf, capacity."),
        ("STRATEGY", "tight", "expected one of default,"),
        ("HALF_LIFE_S", -1.0, "NEBULA_POLICY_HALF_LIFE_S is -1.0; expected a number from 0 up."),
        ("LOAD_POWER", float("nan"), "expected a number from 0 up"),
        ("PATIENCE_S", 0.0, "expected a number above 0"),
        ("MAX_SLICES", 0, "expected a number above 0"),
        ("WHOLE_ABOVE", 1.5, "expected a share of a card above 0, at most 1"),
        ("QUEUES", "batch", "NEBULA_POLICY_QUEUES is not JSON"),
        ("QUEUES", "{}", "must map names"),
        ("QUEUES", '{"a": 0.5}', "queue 'a' needs guaranteed"),
        ("QUEUES", '{"a": {"guaranteed": 0.5, "max": 1}}', "queue 'a' needs guaranteed, and may have most"),
        ("QUEUES", '{"a": {"guaranteed": 0.5, "most": 0.2}}', "has guaranteed 0.5 and most 0.2"),
        ("QUEUES", '{"a": {"guaranteed": 0.7}, "b": {"guaranteed": 0.6}}', "guarantees 1.3 of the cards"),
        ("QOS", '{"high": "100"}', "'high' is '100'; expected a whole number"),
        ("QOS", '["high"]', "must map names"),
    ],
)
def test_what_is_no_policy_stops_the_start_with_one_sentence(settings: Settings, name: str, value: object, says: str) -> None:
    setattr(settings, f"POLICY_{name}", value)
    with pytest.raises(PolicyError) as caught:
        policy_current()
    assert says in str(caught.value)
    assert str(caught.value).count("\n") == 0
    assert [error.id for error in run_checks() if error.id == "nebulagrid.E007"] == ["nebulagrid.E007"]


def test_a_setting_of_the_policy_that_nothing_reads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEBULA_POLICY_BOROW_S", "60")
    monkeypatch.setenv("NEBULA_POLICY_TRUST", "3")
    monkeypatch.setenv("NEBULA_POLICY_QOS_FILE", "/run/secrets/qos")
    assert [warning.msg for warning in run_checks() if warning.id == "nebulagrid.W007"] == [
        "NEBULA_POLICY_BOROW_S is no setting: nothing reads it."
    ]
