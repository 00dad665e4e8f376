"""Static files as they were when the control plane started.

The pages' files are copied to ``STATIC_ROOT/<version>/``, and pages name them by ``/static/<version>/…``: an upgrade in place
never mixes with a server that still runs, and a browser keeps a file for a year. The version is a hash of all files, so a start
without a change copies nothing. Relative addresses (``import "./cells.js"``, ``url(…)``) stay within their version.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import MutableMapping
from pathlib import Path

_VERSION = re.compile(r"[0-9a-f]{12}")
_VERSIONED = re.compile(r"^/static/[0-9a-f]{12}/")
#: The version before stays: pages that are open while a new one starts still ask for its files.
KEPT = 2


def static_collect(root: Path) -> str:
    """Copy what the finders find, if that changed, and say its version. Reads all files (15 MB: 0.1 s)."""
    from django.contrib.staticfiles.finders import get_finders

    # 1. What there is; the first finder that has a name wins, as in Django.
    found: dict[str, bytes] = {}
    for finder in get_finders():
        for name, storage in finder.list([]):
            prefix = getattr(storage, "prefix", None)  # as collectstatic does it
            found.setdefault((f"{prefix}/{name}" if prefix else name).replace("\\", "/"), Path(storage.path(name)).read_bytes())
    whole = hashlib.sha256()
    for name in sorted(found):
        whole.update(f"{name}\0{hashlib.sha256(found[name]).hexdigest()}\n".encode())
    version = whole.hexdigest()[:12]
    # 2. A copy becomes visible whole or not at all.
    target = root / version
    if not target.is_dir():
        aside = root / f".{version}.new"
        shutil.rmtree(aside, ignore_errors=True)
        for name, content in found.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for path in (aside, *aside.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)  # a web server in front may be another user
        aside.rename(target)
    target.touch()
    # 3. Versions that nobody asks for any more.
    versions = [path for path in root.iterdir() if path.is_dir() and _VERSION.fullmatch(path.name)]
    for old in sorted(versions, key=lambda path: path.stat().st_mtime_ns, reverse=True)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return version


def cache_headers(headers: MutableMapping[str, str], path: str, url: str) -> None:
    """What has its version in its address never changes."""
    if _VERSIONED.match(url):
        headers["Cache-Control"] = "public, max-age=31536000, immutable"
