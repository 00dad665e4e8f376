"""``manage.py demo_clean`` by root: the demo's agents and jobs are not the control plane's account's, so root ends them itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nebulagrid.demo import FOLDER
from nebulagrid.demo.clean import DemoError, demo_stop
from nebulagrid.rooted.entry import owner_of
from nebulagrid.rooted.errors import RootedError
from nebulagrid.rooted.layout import layout_find


def clean(top: Path) -> int:
    """Raises RootedError."""
    owner = owner_of(top)
    if owner is not None:
        raise RootedError(f"{top} belongs to {owner.name}: remove the demo as that account.")
    layout = layout_find(top)
    if not os.path.lexists(layout.control / FOLDER / "feeder.json"):
        raise RootedError(f"There is no demo in {top}; nothing was removed.")
    try:
        count = demo_stop(agents=layout.agents, lock=layout.run / "up.lock", name=str(top))
    except DemoError as error:
        raise RootedError(str(error)) from error
    for folder in dict.fromkeys((layout.base, layout.top)):
        shutil.rmtree(folder, ignore_errors=False)
    print(f"{count} jobs ended, {top} removed.")  # noqa: T201
    return 0
