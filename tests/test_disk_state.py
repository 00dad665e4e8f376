"""A control plane whose disk is full says which one, wherever it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import OperationalError
from django.test import Client

from jobs.alert_figures import figures
from nebulagrid.api import exception_handler
from nodes.alert_metrics import METRICS
from nodes.models import AlertRule
from quotas import disk_state
from quotas.disk import disk_of
from quotas.disk_state import disk_full, disk_states
from tests.factories import alert_rules_ship
from tests.smalldisk import bytes_fill, small_disk

Settings = Any


@pytest.fixture(autouse=True)
def looked_anew(settings: Settings, tmp_path: Path) -> Iterator[None]:
    for name in ("DATA_DIR", "LOG_DIR", "ARTIFACT_DIR"):
        setattr(settings, name, tmp_path / name.lower())
        getattr(settings, name).mkdir()
    disk_state.states_forget()
    yield
    disk_state.states_forget()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Callable[[Path], None]:
    """``full(folder)``: no file can be written there any more."""

    def fill(folder: Path) -> None:
        real = disk_state._write_problem
        monkeypatch.setattr(disk_state, "_write_problem", lambda path: "No space left on device" if path == folder else real(path))
        disk_state.states_forget()

    return fill


@pytest.mark.django_db
def test_the_health_check_fails_and_names_the_full_disk_but_not_its_path(settings: Settings, full: Callable[[Path], None]) -> None:
    assert Client().get("/healthz").json()["disk"] == "ok"
    full(settings.LOG_DIR)
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.json()["status"], answer.json()["disk"]) == (507, "unavailable", "full: output")
    assert str(settings.LOG_DIR) not in answer.content.decode()


@pytest.mark.django_db
def test_below_the_floor_it_fails_as_submits_do(settings: Settings) -> None:
    settings.DISK_FLOOR_MIB = disk_of(settings.DATA_DIR).free_mib + 1_000_000
    assert Client().get("/healthz").status_code == 507


def test_a_write_that_a_full_disk_refuses_is_answered_with_the_disk(settings: Settings, full: Callable[[Path], None]) -> None:
    error = OperationalError("database or disk is full")
    answer = exception_handler(error, {})
    assert answer is not None
    assert (answer.status_code, answer.data["code"]) == (503, "database_away")
    full(settings.DATA_DIR)
    answer = exception_handler(error, {})
    assert answer is not None
    assert (answer.status_code, answer.data["code"], answer["Retry-After"]) == (507, "disk_unwritable", "60")
    assert answer.data["message"] == (
        f"The control plane can't write to its disk at {settings.DATA_DIR}: No space left on device. "
        "Ask the administrators to look; nothing was taken."
    )


def test_one_look_serves_all_who_ask_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Path] = []
    monkeypatch.setattr(disk_state, "_write_problem", lambda folder: looks.append(folder))
    first = disk_states()
    assert disk_states() is first
    count = len(looks)
    assert count == len(set(looks)), "a folder that two things are in is tried once"
    disk_states(fresh=True)
    assert len(looks) == 2 * count


def test_a_look_leaves_nothing_behind(settings: Settings) -> None:
    disk_states(fresh=True)
    assert list(settings.DATA_DIR.iterdir()) == []


@pytest.mark.root
def test_a_disk_of_a_few_kib_is_full_and_well_again(settings: Settings, tmp_path: Path) -> None:
    settings.DISK_FLOOR_MIB = 0
    with small_disk(tmp_path / "small") as small:
        settings.LOG_DIR = small
        assert disk_full(fresh=True) is None
        fill = bytes_fill(small)
        found = disk_full(fresh=True)
        assert found is not None
        assert (found.place, found.problem, found.disk.free_mib) == ("output", "No space left on device", 0)
        fill.unlink()
        assert disk_full(fresh=True) is None


@pytest.mark.django_db
def test_the_alert_names_the_disk_with_its_numbers(settings: Settings, full: Callable[[Path], None]) -> None:
    from nodes.alert_metrics import pool_read

    alert_rules_ship()  # a test that empties the database takes them along
    found, names = figures(pool_read(), 1_800_000_000.0)
    assert found["control_disk"] == {"pool": 0.0}
    settings.DISK_FLOOR_MIB = disk_of(settings.DATA_DIR).free_mib // 2
    assert figures(pool_read(), 1_800_000_000.0)[0]["control_disk"] == {"pool": 1.0}
    settings.DISK_FLOOR_MIB = 256
    full(settings.ARTIFACT_DIR)
    found, names = figures(pool_read(), 1_800_000_000.0)
    assert found["control_disk"] == {"pool": 2.0}
    text = METRICS["control_disk"].sentence.format(**names["control_disk", "pool"])
    assert f"MiB are free at {settings.ARTIFACT_DIR} of the control plane; below 256 MiB" in text
    rule = AlertRule.objects.get(code="control-disk")
    assert (rule.metric, rule.op, rule.warning, rule.critical) == ("control_disk", "ge", 1, 2)


def test_a_database_elsewhere_is_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def places(**database: str) -> dict[str, Path]:
        monkeypatch.setitem(django_settings.DATABASES, "default", database)
        return disk_state.places()

    assert places(ENGINE="nebulagrid.sqlite3", NAME=str(tmp_path / "db" / "nebula.sqlite3"))["database"] == tmp_path / "db"
    assert "database" not in places(ENGINE="django.db.backends.postgresql", NAME="nebula")
