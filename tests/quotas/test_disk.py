"""The floor below which a disk of the control plane takes nothing big any more."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from quotas import disk
from quotas.disk import DiskFull, disk_check, disk_of


@pytest.fixture
def free(monkeypatch, settings):
    settings.DISK_FLOOR_MIB = 256

    def put(*, free_mib: int, files: int = 1_000_000, has_files: bool = True) -> None:
        found = SimpleNamespace(
            f_bavail=free_mib * 256, f_frsize=4096, f_blocks=1024 * 256, f_files=5_000_000 if has_files else 0, f_favail=files
        )
        monkeypatch.setattr(disk.os, "statvfs", lambda path: found)

    return put


def test_above_the_floor_everything_is_taken(free, tmp_path):
    free(free_mib=256)
    disk_check([tmp_path])
    assert disk_of(tmp_path).total_mib == 1024


def test_below_it_the_refusal_names_the_disk_the_numbers_and_the_way_out(free, tmp_path):
    free(free_mib=255)
    with pytest.raises(DiskFull) as caught:
        disk_check([tmp_path / "artifacts"])
    assert caught.value.http_status == 507
    for part in (str(tmp_path / "artifacts"), "255 MiB", "256 MiB", "administrators"):
        assert part in caught.value.message


def test_a_disk_without_room_for_files_is_full_as_well(free, tmp_path):
    free(free_mib=900, files=12)
    with pytest.raises(DiskFull) as caught:
        disk_check([tmp_path])
    assert caught.value.code == "disk_files"
    free(free_mib=900, files=0, has_files=False)  # a file system that counts none
    disk_check([tmp_path])


def test_a_floor_of_0_is_none(free, settings, tmp_path):
    free(free_mib=0, files=0)
    settings.DISK_FLOOR_MIB = 0
    disk_check([tmp_path])


def test_the_disk_of_a_folder_that_is_not_there_yet_is_that_of_the_one_above(tmp_path):
    assert disk_of(tmp_path / "a" / "b").total_mib == disk_of(tmp_path).total_mib > 0
