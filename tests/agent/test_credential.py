"""The agent's side of an exchange: nothing is lost wherever it is broken off."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from agent.credential import Credential
from agent.http import EndpointError

OLD = "o" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "agent.credential"
    found.write_text(OLD + "\n")
    found.chmod(0o600)
    return found


def shown(credential: Credential) -> str:
    return credential.header.partition(":")[2]


def test_the_new_one_is_kept_before_it_is_told_and_shown_after_it_was_taken(path: Path) -> None:
    credential = Credential(path, 7)
    told = credential.exchange_begin()
    assert shown(credential) == OLD
    assert shown(Credential(path, 7)) == OLD  # killed here: the old one is still good
    credential.exchange_end()
    new = shown(credential)
    assert hashlib.sha256(new.encode()).hexdigest() == told
    assert shown(Credential(path, 7)) == new
    assert credential.header.startswith("Node 7:")
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0
    assert sorted(file.name for file in path.parent.iterdir()) == ["agent.credential", "agent.credential.previous"]


def test_a_control_plane_of_an_older_backup_is_shown_the_one_of_before(path: Path) -> None:
    credential = Credential(path, 7)
    credential.exchange_begin()
    credential.exchange_end()
    new = shown(credential)
    again = Credential(path, 7)
    assert again.refused()
    assert shown(again) == OLD
    again.taken()
    assert path.read_text().strip() == OLD
    assert again.refused()  # and back, where that is refused as well
    assert shown(again) == new


def test_without_one_of_before_there_is_nothing_to_try(path: Path) -> None:
    assert not Credential(path, 7).refused()


def test_an_end_without_a_begin_changes_nothing(path: Path) -> None:
    credential = Credential(path, 7)
    credential.exchange_end()
    assert (shown(credential), path.read_text().strip()) == (OLD, OLD)


def test_one_that_others_may_read_is_refused(path: Path) -> None:
    path.chmod(0o644)
    with pytest.raises(EndpointError, match="chmod 600"):
        Credential(path, 7)
