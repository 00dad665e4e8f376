"""A disk of a few hundred KiB, or of a few files, that a test can fill to the last of them. Needs root, and the right to mount."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until


@contextlib.contextmanager
def small_disk(folder: Path, *, kib: int = 512, files: int = 0) -> Iterator[Path]:
    """``folder`` with room for ``kib`` KiB, and for ``files`` files and folders (0 = as many as fit)."""
    folder.mkdir(exist_ok=True)
    options = f"size={kib}k" + (f",nr_inodes={files}" if files else "")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        # What ended a moment ago may still stand in it.
        wait_until(lambda: subprocess.run(["umount", str(folder)], check=False, capture_output=True).returncode == 0, "an unmounted folder")


def bytes_fill(folder: Path) -> Path:
    """Use up all the room of the disk that ``folder`` is on; the file that has it."""
    path = folder / "fill"
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    return path


def files_fill(folder: Path) -> Path:
    """Make files until no more can be made; the folder that has them."""
    path = folder / "many"
    path.mkdir()
    with contextlib.suppress(OSError):
        for number in range(1_000_000):
            (path / str(number)).touch()
    return path
