"""Documentation that can't rot: every setting, endpoint and command is described, every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from jobs.scheduler.compare import Change
from jobs.scheduler.measures import Measures, OwnerMeasures
from jobs.scheduler.workload import FULL
from nebulagrid.limits import Limits
from nebulagrid.rooted.accounts import CONTROL_VARIABLE, JOB_VARIABLE

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    source = "".join((ROOT / "nebulagrid" / name).read_text(encoding="utf-8") for name in ("settings.py", "signin.py"))
    used = {f"NEBULA_{name}" for name in re.findall(r'\benv(?:_int|_bool|_list|_float)?\(\s*"([A-Z_]+)"', source)}
    used |= {CONTROL_VARIABLE, JOB_VARIABLE}
    used |= {f"NEBULA_WEB_{field.name.upper()}" for field in fields(Limits)}
    assert len(used) > 20, "the pattern no longer finds the settings"
    page = text_of("settings.md")
    rows = {
        name for line in page.splitlines() if line.startswith("| `NEBULA_") for name in re.findall(r"NEBULA_[A-Z_]+", line.split("|")[1])
    }
    assert used - rows - {"NEBULA_ROLE"} == set(), "not in docs/settings.md"
    assert rows - used == set(), "in docs/settings.md, but no setting"


def test_documented_defaults_are_the_defaults() -> None:
    source = (ROOT / "nebulagrid" / "settings.py").read_text(encoding="utf-8")
    defaults = dict(re.findall(r'\benv_int\(\s*"([A-Z_]+)", (\d+)\)', source))
    assert len(defaults) > 8
    defaults |= {f"WEB_{field.name.upper()}": str(field.default) for field in fields(Limits) if field.name != "connections_each"}
    rows = {
        line.split("|")[1].strip(): line.split("|")[2].strip()
        for line in text_of("settings.md").splitlines()
        if line.startswith("| `NEBULA_")
    }
    assert {name: rows[f"`NEBULA_{name}`"] for name in defaults} == {name: f"`{value}`" for name, value in defaults.items()}


def api_routes() -> set[str]:
    """Every path below /api/v1/ with its parameters as {name}."""
    found: set[str] = set()

    def walk(patterns: list[Any], before: str) -> None:
        for item in patterns:
            here = before + str(item.pattern)
            if isinstance(item, URLResolver):
                walk(item.url_patterns, here)
            elif isinstance(item, URLPattern) and here.startswith("api/v1/"):
                found.add("/" + re.sub(r"<(?:\w+:)?(\w+)>", "{}", here))

    walk(get_resolver().url_patterns, "")
    return found


def test_every_endpoint_is_documented() -> None:
    routes = api_routes()
    assert len(routes) > 15
    page = re.sub(r"\{\w+\}", "{}", text_of("api.md")).replace("/api/v1", "")
    missing = {
        route for route in routes if route.removeprefix("/api/v1") not in page and route.removeprefix("/api/v1").rstrip("/") not in page
    }
    assert missing == set()


@pytest.mark.parametrize(("program", "page"), [("nebula-ctl", "cli.md"), ("nebula-agent", "agent.md")])
def test_every_command_is_documented(program: str, page: str) -> None:
    text = text_of(page)
    for command in commands_of(program):
        assert f"{program} {command}" in text or f"`{command}`" in text, f"{program} {command} is not in docs/{page}"


def commands_of(program: str) -> list[str]:
    if program == "nebula-agent":
        done = subprocess.run([sys.executable, "-m", "agent.main", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        found = re.findall(r"^    ([a-z]+) ", done.stdout, re.MULTILINE)
    else:
        from client.ctl import COMMANDS

        found = [" ".join(words) for words in COMMANDS]
    assert len(found) >= 3, "the commands were not found"
    return found


def test_options_of_up_are_documented() -> None:
    source = (ROOT / "nebulagrid" / "management" / "commands" / "up.py").read_text(encoding="utf-8")
    for option in re.findall(r'add_argument\("(--[a-z-]+)"', source):
        assert f"`{option}" in text_of("operations.md"), option


def test_options_and_figures_of_simulate_are_documented() -> None:
    page = text_of("simulating.md")
    source = (ROOT / "nebulagrid" / "management" / "commands" / "simulate.py").read_text(encoding="utf-8")
    options = re.findall(r'add_argument\("(--[a-z-]+)"', source)
    assert len(options) > 15
    assert [option for option in options if f"`{option}" not in page] == []
    named = [item.name for kind in (Measures, OwnerMeasures, Change) for item in fields(kind)]
    assert [name for name in (*named, *FULL) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor and file.suffix == ".md":
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{page.name}: {target}"


def test_the_example_of_the_readme_is_what_up_prints() -> None:
    line = "nebula-ctl submit --name hello --gpu-mem 4G -- .venv/bin/python examples/train_digits.py"
    assert line in (ROOT / "README.md").read_text(encoding="utf-8")
    assert line in (ROOT / "nebulagrid" / "startplan.py").read_text(encoding="utf-8")
