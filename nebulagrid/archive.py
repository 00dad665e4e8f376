"""A backup file: one gzip-compressed tar of what an installation can't make again, with a manifest as its last member.

Members: ``database.sqlite3`` or ``database.jsonl``, ``logs/…``, ``artifacts/…`` (if wanted), ``secrets/…``, ``manifest.json``.
The manifest names every member with its size and SHA-256. A file that was cut has none and is refused; so is one in
which anything differs. Nothing outside the staging folder is ever written while reading.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

FORMAT = 1
MANIFEST = "manifest.json"
CHUNK = 1 << 20


class ArchiveError(Exception):
    """The backup file can't be made or used."""


@dataclass(kw_only=True)
class Manifest:
    made_at: str  # ISO time
    host: str
    version: str
    vendor: str  # of the database it was made from
    database: str  # name of its member
    migrations: dict[str, list[str]]
    has_artifacts: bool
    format: int = FORMAT
    members: dict[str, dict[str, Any]] = field(default_factory=dict)  # name → {"size", "sha256"}

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        try:
            values = json.loads(text)
            if values.get("format") != FORMAT:
                raise ArchiveError(f"The backup has format {values.get('format')}; this version reads {FORMAT}.")
            return cls(**values)
        except (ValueError, TypeError, AttributeError) as error:
            raise ArchiveError("The backup's manifest can't be read.") from error


# --- writing ------------------------------------------------------------------------------------------------------


class _Counting:
    """Reads at most ``size`` bytes, and fills up with NUL what a file that shrank meanwhile lacks."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left, self.sha256 = file, size, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        data += bytes(wanted - len(data)) if len(data) < wanted else b""
        self._left -= len(data)
        self.sha256.update(data)
        return data


class ArchiveWriter:
    """Writes beside ``path`` with mode 0600 and renames in the end: a backup is there whole or not at all.

    With ``descriptor`` the file is another one's, who has opened it and gives it its name."""

    def __init__(self, path: Path, manifest: Manifest, *, descriptor: int | None = None) -> None:
        self.path, self.manifest = path, manifest
        self.bytes = 0  # once it is whole
        self._aside: Path | None = None
        if descriptor is None:
            self._aside = path.with_name(f".{path.name}.{os.getpid()}.part")
            descriptor = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz", compresslevel=3, format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, name: str, source: Path) -> bool:
        """A file as long as it is now; it may grow meanwhile. False if it is gone."""
        try:
            file = source.open("rb")
        except FileNotFoundError:
            return False
        with file:
            found = os.fstat(file.fileno())
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = found.st_size, int(found.st_mtime), 0o600
            reader = _Counting(file, found.st_size)
            self._tar.addfile(entry, reader)  # type: ignore[arg-type]
        self.manifest.members[name] = {"size": found.st_size, "sha256": reader.sha256.hexdigest()}
        return True

    def add_tree(self, prefix: str, folder: Path) -> int:
        """All plain files below ``folder``; how many."""
        count = 0
        for place, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path = Path(place) / name
                if path.is_file() and not path.is_symlink():
                    count += self.add(f"{prefix}/{path.relative_to(folder).as_posix()}", path)
        return count

    def finish(self) -> None:
        data = self.manifest.to_json().encode()
        entry = tarfile.TarInfo(MANIFEST)
        entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
        self._tar.addfile(entry, io.BytesIO(data))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.bytes = os.fstat(self._file.fileno()).st_size
        self._file.close()
        if self._aside is None:
            return
        self._aside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def abandon(self) -> None:
        self._file.close()
        if self._aside is not None:
            self._aside.unlink(missing_ok=True)


def backup_path(text: str, *, now: datetime) -> Path:
    """The file to write: ``text``, or in that folder one with the time in its name. Makes the folder."""
    path = Path(text).absolute()
    if path.is_dir() or text.endswith("/"):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path /= f"nebulagrid-{now:%Y%m%d-%H%M%S}.tar.gz"
    return path


# --- reading ------------------------------------------------------------------------------------------------------


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for entry in tar:
        parts = PurePosixPath(entry.name).parts
        if not entry.isreg() or not parts or entry.name.startswith("/") or ".." in parts or "\\" in entry.name:
            raise ArchiveError(f"The backup holds {entry.name[:100]!r}, which no backup of ours does.")
        yield entry


def archive_unpack(path: Path, staging: Path, *, descriptor: int | None = None) -> Manifest:
    """Everything into ``staging`` (made here, 0700), verified. Raises ArchiveError; the staging folder is removed then.

    ``descriptor``: the file, opened by one who may."""
    staging.mkdir(mode=0o700)
    try:
        found, manifest = _unpack(path, staging, descriptor)
        if manifest is None:
            raise ArchiveError(f"{path} is not whole: it has no manifest. Was it cut?")
        if found != manifest.members:
            wrong = sorted(name for name in {*found, *manifest.members} if found.get(name) != manifest.members.get(name))
            raise ArchiveError(f"{path} is damaged: {len(wrong)} files differ from its manifest, {wrong[0]} among them.")
        return manifest
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _unpack(path: Path, staging: Path, descriptor: int | None) -> tuple[dict[str, dict[str, Any]], Manifest | None]:
    found: dict[str, dict[str, Any]] = {}
    manifest = None
    try:
        with (
            open(path if descriptor is None else descriptor, "rb") as file,
            gzip.open(file) as raw,
            tarfile.open(fileobj=raw, mode="r|") as tar,
        ):
            for entry in _members(tar):
                source = tar.extractfile(entry)
                if source is None:
                    raise ArchiveError(f"The backup's {entry.name} can't be read.")
                if entry.name == MANIFEST:
                    manifest = Manifest.from_json(source.read(64 << 20))
                    continue
                target = staging / entry.name
                target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                digest = hashlib.sha256()
                with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    while chunk := source.read(CHUNK):
                        digest.update(chunk)
                        file.write(chunk)
                found[entry.name] = {"size": entry.size, "sha256": digest.hexdigest()}
            while raw.read(CHUNK):  # to the end, where gzip keeps its own sum
                pass
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ArchiveError(f"{path} can't be read as a backup: {error}.") from error
    return found, manifest
