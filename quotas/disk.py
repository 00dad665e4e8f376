"""How much room the disks of the data folder have, and the floor below which nothing big is taken any more.

A control plane whose disk is full can do nothing: not end a job, not write that it ended. So some room is always left for that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext_noop

from quotas.errors import DomainError

MIB = 1024 * 1024
#: A disk can be out of files before it is out of bytes.
FILES_FLOOR = 1000


class DiskFull(DomainError):
    """A disk of the control plane has less room than always stays free. Nothing was taken; try again when there is room."""

    default_code = "disk_full"
    default_status = 507
    sentences = {
        "disk_full": gettext_noop(
            "The control plane's disk is full: {free_mib} MiB are free at {folder}, and {floor_mib} MiB always stay free. "
            "Ask the administrators to make room; nothing was taken."
        ),
        "disk_unwritable": gettext_noop(
            "The control plane can't write to its disk at {folder}: {problem}. Ask the administrators to look; nothing was taken."
        ),
        "disk_files": gettext_noop(
            "The control plane's disk has no room for more files: {files} are left at {folder}, and {floor} always stay free. "
            "Ask the administrators to make room; nothing was taken."
        ),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """``files``: how many more there can be; None = the file system sets no limit."""

    folder: str
    free_mib: int
    total_mib: int
    files: int | None

    @property
    def refusal(self) -> DiskFull | None:
        """Why nothing more is taken here; None = there is room."""
        if self.free_mib < settings.DISK_FLOOR_MIB:
            return DiskFull(params={"folder": self.folder, "free_mib": self.free_mib, "floor_mib": settings.DISK_FLOOR_MIB})
        if self.files is not None and settings.DISK_FLOOR_MIB and self.files < FILES_FLOOR:
            return DiskFull("disk_files", params={"folder": self.folder, "files": self.files, "floor": FILES_FLOOR})
        return None


def disk_of(folder: Path | str) -> Disk:
    """The disk of a folder, or of the nearest one above it that is there."""
    path = Path(folder)
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    files = found.f_favail if found.f_files else None
    return Disk(
        folder=str(folder),
        free_mib=found.f_bavail * found.f_frsize // MIB,
        total_mib=found.f_blocks * found.f_frsize // MIB,
        files=files,
    )


def disks() -> tuple[Disk, ...]:
    """Those of the data folder: database, output, artefacts. One for each folder, be they on one disk or on three."""
    return tuple(disk_of(folder) for folder in (settings.DATA_DIR, settings.LOG_DIR, settings.ARTIFACT_DIR))


def disk_check(folders: Iterable[Path | str]) -> None:
    """Raises DiskFull. Costs a system call a folder."""
    for folder in folders:
        if (refusal := disk_of(folder).refusal) is not None:
            raise refusal
