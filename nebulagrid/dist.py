"""What a machine needs to join, made from what runs here: the agent's wheel from the source tree, and the wheels of its
dependencies packed again from this installation's own packages.

No build tool and no package index is asked, so that a machine which reaches neither can install. What does not fit there
(a compiled package for another Python or processor) its own index must give.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

#: Packages of the agent's wheel; what of them is no Python is listed in pyproject.toml.
PACKAGES = ("agent", "client", "nebulagrid_client")
#: Notes of the installer about this machine; a wheel has none of them.
NOT_PACKED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
_DATE = (1980, 1, 1, 0, 0, 0)  # the same sources make the same bytes
_lock = threading.Lock()


class DistError(RuntimeError):
    """The files for joining machines can't be made."""


def wheel_write(path: Path, files: Mapping[str, bytes], *, dist_info: str) -> None:
    """A wheel of these files, with its RECORD."""
    rows = io.StringIO()
    record = csv.writer(rows, lineterminator="\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
            record.writerow([name, f"sha256={digest}", len(files[name])])
            archive.writestr(_entry(name), files[name])
        record.writerow([f"{dist_info}/RECORD", "", ""])
        archive.writestr(_entry(f"{dist_info}/RECORD"), rows.getvalue())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o100644 << 16
    return entry


def agent_files(root: Path) -> dict[str, bytes]:
    """The files of the agent and the client, by their name in the wheel. Raises OSError, KeyError, TOMLDecodeError."""
    data = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    found: dict[str, bytes] = {}
    for package in PACKAGES:
        folder = root / package
        for path in (*folder.rglob("*.py"), *(path for pattern in data.get(package, ()) for path in folder.glob(pattern))):
            if "__pycache__" not in path.parts and path.is_file():
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def agent_wheel(root: Path, folder: Path) -> Path:
    """Builds nebulagrid-agent from ``root``. Raises DistError."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        name, version = re.sub(r"[-_.]+", "_", project["name"]), project["version"]
        files = agent_files(root)
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise DistError(f"The agent's sources in {root} can't be read: {error}.") from error
    if "agent/main.py" not in files:
        raise DistError(f"{root} holds no agent.")
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {version}", f"Summary: {project['description']}"]
    lines += [f"Requires-Python: {project['requires-python']}", *(f"Requires-Dist: {need}" for need in project["dependencies"])]
    scripts = "".join(f"{command} = {target}\n" for command, target in sorted(project["scripts"].items()))
    files |= {
        f"{info}/METADATA": "\n".join([*lines, "", ""]).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: nebulagrid\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{scripts}".encode(),
        f"{info}/top_level.txt": "\n".join([*PACKAGES, ""]).encode(),
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    wheel_write(path, files, dist_info=info)
    return path


def dependencies(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Those of ``names`` (requirement lines) that are installed here, with all that they need in turn."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        try:
            need = Requirement(waiting.pop())
        except InvalidRequirement:
            continue
        key = re.sub(r"[-_.]+", "-", need.name).lower()
        if key in found or (need.marker is not None and not need.marker.evaluate({"extra": ""})):
            continue
        try:
            found[key] = metadata.distribution(need.name)
        except metadata.PackageNotFoundError:
            continue
        waiting += found[key].requires or []
    return dict(sorted(found.items()))


def repack(installed: metadata.Distribution, folder: Path) -> Path | None:
    """The wheel that this package came from, made again from its files; None if it isn't whole (an editable install).

    One with compiled parts keeps its tags: pip on a machine of another kind passes it over.
    """
    tags = [tag.split("-") for tag in re.findall(r"^Tag:\s*(\S+-\S+-\S+)\s*$", installed.read_text("WHEEL") or "", re.MULTILINE)]
    if not tags or installed.files is None:
        return None
    files: dict[str, bytes] = {}
    info = ""
    for entry in installed.files:
        parts = entry.parts
        if ".." in parts or entry.is_absolute() or "__pycache__" in parts or entry.suffix == ".pyc":
            continue
        if parts[0].endswith(".dist-info"):
            info = parts[0]
            if len(parts) == 2 and parts[1] in NOT_PACKED:
                continue
        try:
            files[entry.as_posix()] = Path(str(entry.locate())).read_bytes()
        except OSError:
            return None
    if not info:
        return None
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    path = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    wheel_write(path, files, dist_info=info)
    return path


def _key(root: Path, needed: Mapping[str, metadata.Distribution]) -> str:
    digest = hashlib.sha256((root / "pyproject.toml").read_bytes())
    for name, data in sorted(agent_files(root).items()):
        digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    digest.update(json.dumps({name: found.version for name, found in needed.items()}).encode())
    digest.update(sys.version.encode())
    return digest.hexdigest()[:16]


@functools.cache
def dist_folder(root: Path, cache: Path) -> Path:
    """The folder with all wheels, built at the first call of an installation. Raises DistError.

    Cached for the life of the process: it runs the very sources that it packs.
    """
    with _lock:
        try:
            project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            needed = dependencies(project["dependencies"])
            folder = cache / _key(root, needed)
            if folder.is_dir():
                return folder
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = Path(tempfile.mkdtemp(dir=cache, prefix=".new-"))
            try:
                agent_wheel(root, aside)
                for installed in needed.values():
                    repack(installed, aside)
                try:
                    aside.rename(folder)
                except OSError:
                    if not folder.is_dir():  # another process was first
                        raise
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
            raise DistError(f"The agent's wheel can't be made in {cache}: {error}.") from error
        for old in cache.iterdir():
            if old != folder and not old.name.startswith(".new-"):
                shutil.rmtree(old, ignore_errors=True)
        return folder


def dist_index(folder: Path) -> str:
    """One line a file, as sha256sum writes them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.glob("*.whl")))


def install_script(root: Path) -> bytes:
    """deploy/install.sh as it is served. Raises DistError."""
    try:
        return (root / "deploy" / "install.sh").read_bytes()
    except OSError as error:
        raise DistError(f"deploy/install.sh can't be read: {os.strerror(error.errno or 0)}.") from error
