"""The file that holds the token."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from client.errors import ProfileError
from client.profile import Profile, profile_is_exposed, profile_load, profile_path, profile_read, profile_remove, profile_save, secret_write

KEPT = Profile(endpoint="https://lab.example", token="ngt_x", ca_file='/a "b"/ü.pem')


@pytest.mark.parametrize("name", ["profile.json", "profile.toml", "deep/er/profile"])
def test_what_is_saved_is_read_again_and_only_by_its_owner(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.umask(old := os.umask(0))
    try:
        os.umask(0)
        profile_save(path, KEPT)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert profile_load(str(path), {}) == KEPT
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_toml_form_is_toml(tmp_path: Path) -> None:
    profile_save(tmp_path / "p.toml", KEPT)
    assert tomllib.loads((tmp_path / "p.toml").read_text())["ca_file"] == KEPT.ca_file


def test_saving_narrows_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{}")
    path.chmod(0o644)
    assert profile_is_exposed(path)
    profile_save(path, KEPT)
    assert not profile_is_exposed(path)


def test_a_failed_save_leaves_the_old_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.json"
    profile_save(path, KEPT)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ProfileError, match="No space left"):
        profile_save(path, Profile(endpoint="https://other", token="ngt_y"))
    assert profile_load(str(path), {}) == KEPT
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_a_linked_profile_stays_a_link_and_a_device_stays_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    profile_save(tmp_path / "link", KEPT)
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProfileError, match="not a regular file"):
        secret_write(tmp_path / "pipe", "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_the_path_is_the_option_then_the_variable_then_the_users_own() -> None:
    assert profile_path("a", {"NEBULA_CONFIG": "b"}) == Path("a")
    assert profile_path(None, {"NEBULA_CONFIG": "b"}) == Path("b")
    assert profile_path(None, {"XDG_CONFIG_HOME": "/x"}) == Path("/x/nebulagrid/profile.json")
    assert profile_path(None, {}) == Path.home() / ".config/nebulagrid/profile.json"


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    profile_save(path, KEPT)
    (tmp_path / "token").write_text("ngt_file\n")
    other = {"NEBULA_CONFIG": str(path), "NEBULA_ENDPOINT": "https://other", "NEBULA_TOKEN": "ngt_env"}
    assert profile_load(None, other) == Profile(endpoint="https://other", token="ngt_env")
    assert profile_load(None, {"NEBULA_CONFIG": str(path), "NEBULA_TOKEN_FILE": str(tmp_path / "token")}).token == "ngt_file"


def test_one_variable_can_not_send_the_kept_token_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    profile_save(path, KEPT)
    with pytest.raises(ProfileError, match="set NEBULA_TOKEN too") as caught:
        profile_load(None, {"NEBULA_CONFIG": str(path), "NEBULA_ENDPOINT": "https://evil.example"})
    assert caught.value.code == "token_for_other_endpoint"
    assert profile_load(None, {"NEBULA_CONFIG": str(path), "NEBULA_ENDPOINT": "https://lab.example/"}).token == "ngt_x"


@pytest.mark.parametrize("text", ["{", "endpoint = ", '{"endpoint": 1}', '{"token": ["a"]}'])
def test_a_broken_file_is_told_with_the_way_out(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        profile_read(path)
    assert str(path) in caught.value.message


def test_an_unreadable_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="directory"):
        profile_read(tmp_path)
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="UTF-8"):
        profile_read(tmp_path / "b")


def test_without_a_profile_one_is_not_signed_in(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="nebula-ctl login") as caught:
        profile_load(str(tmp_path / "none"), {})
    assert caught.value.code == "not_signed_in"
    assert profile_remove(tmp_path / "none") is False


def test_a_profile_does_not_print_its_token() -> None:
    assert "ngt_x" not in repr(KEPT)


def test_a_profile_written_by_hand_in_toml_is_read(tmp_path: Path) -> None:
    (tmp_path / "p").write_text('endpoint = "http://127.0.0.1:8000"\ntoken = "ngt_x"\n')
    assert profile_load(str(tmp_path / "p"), {}) == Profile(endpoint="http://127.0.0.1:8000", token="ngt_x")
    (tmp_path / "p").write_text(json.dumps({"endpoint": "http://127.0.0.1:8000", "token": "ngt_y", "later": 1}))
    assert profile_load(str(tmp_path / "p"), {}).token == "ngt_y"
