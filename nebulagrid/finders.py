"""Static files that come from a package which is no Django app."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage


class PlotlyFinder(BaseFinder):
    """``plotly/plotly.min.js`` out of the installed package, and nothing else of it; the package itself is not imported."""

    NAME = "plotly.min.js"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        spec = find_spec("plotly")
        root = Path(spec.origin).parent / "package_data" if spec is not None and spec.origin else Path("/nonexistent")
        self.storage = FileSystemStorage(root)
        self.storage.prefix = "plotly"  # type: ignore[attr-defined]

    def check(self, **kwargs: Any) -> list[Any]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        found = [self.storage.path(self.NAME)] if path == f"plotly/{self.NAME}" and self.storage.exists(self.NAME) else []
        return found if find_all else found[0] if found else []

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[Any]:
        if self.storage.exists(self.NAME):
            yield self.NAME, self.storage
