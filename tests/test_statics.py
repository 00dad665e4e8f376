"""Static files are served as they were at the start, and kept by browsers for as long as they stay so."""

from __future__ import annotations

import ast
import asyncio
import base64
import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nebulagrid import statics
from nebulagrid.handler import PooledHandler
from tests.test_handler import get


@pytest.fixture
def source(settings: Any, tmp_path: Path) -> Iterator[Path]:
    """A project of two files that import each other."""
    folder = tmp_path / "source"
    (folder / "js").mkdir(parents=True)
    (folder / "js" / "a.js").write_text('import "./b.js";')
    (folder / "js" / "b.js").write_text("1;")
    settings.STATICFILES_DIRS = [folder]
    settings.STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
    from django.contrib.staticfiles import finders

    finders.get_finder.cache_clear()
    yield folder
    finders.get_finder.cache_clear()


def test_a_start_without_a_change_copies_nothing(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    version = statics.static_collect(root)
    copied = root / version / "js" / "a.js"
    assert copied.read_text() == 'import "./b.js";'
    before = copied.stat().st_ino, copied.stat().st_mtime_ns
    os.utime(source / "js" / "a.js")  # touched, not changed
    assert statics.static_collect(root) == version
    assert (copied.stat().st_ino, copied.stat().st_mtime_ns) == before


def test_a_change_makes_a_version_beside_the_one_in_use(source: Path, tmp_path: Path) -> None:
    root, versions = tmp_path / "root", []
    (root / "css").mkdir(parents=True)  # of somebody's collectstatic
    for number in range(4):
        (source / "js" / "b.js").write_text(f"{number};")
        versions.append(statics.static_collect(root))
        assert (root / versions[-1] / "js" / "b.js").read_text() == f"{number};"
    assert len(set(versions)) == 4
    assert {path.name for path in root.iterdir()} == {"css", *versions[-2:]}
    assert (root / versions[-2] / "js" / "b.js").read_text() == "2;"


def test_half_a_copy_is_never_served(source: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    version = statics.static_collect(root)
    (root / version).rename(root / f".{version}.new")  # as after a crash, with a file too many
    (root / f".{version}.new" / "left.js").write_text("x")
    assert statics.static_collect(root) == version
    assert {path.name for path in root.iterdir()} == {version}
    assert not (root / version / "left.js").exists()


def fetched(handler: PooledHandler, path: str) -> tuple[int, dict[str, str], bytes]:
    """In a thread: a browser test before this one leaves its loop running in ours."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(get(handler, path))).result()


def test_a_changed_source_does_not_reach_a_running_server(source: Path, settings: Any, tmp_path: Path) -> None:
    settings.STATIC_ROOT = tmp_path / "root"
    settings.STATIC_ROOT.mkdir()
    version = statics.static_collect(settings.STATIC_ROOT)
    settings.SERVESTATIC_USE_FINDERS = False
    handler = PooledHandler()
    (source / "js" / "b.js").write_text("something much longer;")
    status, headers, body = fetched(handler, f"/static/{version}/js/b.js")
    assert (status, body, headers["content-length"]) == (200, b"1;", "2")
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert fetched(handler, "/static/js/b.js")[0] == 404


def test_plotly_comes_from_its_package_and_nothing_else_of_it() -> None:
    from django.contrib.staticfiles import finders

    found = finders.find("plotly/plotly.min.js")
    assert Path(str(found)).stat().st_size > 1_000_000
    assert finders.find("plotly/widgetbundle.js") is None
    assert finders.find("plotly/../plotly.min.js") is None


def test_the_pages_policy_knows_the_style_elements_that_plotly_makes() -> None:
    from django.contrib.staticfiles import finders

    from nebulagrid.middleware import CSP

    script = Path(str(finders.find("plotly/plotly.min.js"))).read_text(encoding="utf-8")
    maps = re.search(r"createElement\(\"style\"\);e\.id=\"\w+\",e\.textContent=('(?:[^'\\]|\\.)*')", script)
    assert maps is not None, "plotly makes its style elements in another way now: look at the browser's console"
    for style in ("", ast.literal_eval(maps[1])):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in CSP
