"""The files in deploy/ for Prometheus and Grafana: they ask for what /metrics tells, and promtool takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "nebulagrid.rules.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "nebulagrid.json").read_text(encoding="utf-8"))
NAME = re.compile(r"\b(?:DCGM_FI_DEV|nebula)_\w+")


def told() -> set[str]:
    """All names that the code writes."""
    source = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("nodes/card_metrics.py", "jobs/metrics.py"))
    names = set(re.findall(r'"((?:DCGM_FI_DEV|nebula)_\w+)"', source))
    assert len(names) > 45, "the pattern no longer finds the names"
    return names | {f"{name}{end}" for name in names if name.endswith("_seconds") for end in ("_bucket", "_count", "_sum")}


def expressions() -> list[str]:
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    return [*rules, *targets]


def test_rules_and_dashboard_ask_for_what_is_told() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(asked) > 20
    assert asked - told() == set()


def test_each_metric_is_documented() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
    whole = {name for name in told() if not name.endswith(("_bucket", "_count", "_sum"))}
    assert {name for name in whole if f"`{name}`" not in page and f"`{name.removeprefix('DCGM_FI_DEV')}`" not in page} == set()


def test_each_alert_says_how_bad_it_is_and_what_it_is_about() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]


def test_panels_do_not_overlap_and_name_the_chosen_source() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert not cells & places, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        places |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize(
    "words",
    [("check", "rules", RULES.name), ("check", "config", "prometheus.yml"), ("test", "rules", "nebulagrid.test.yml")],
    ids=lambda words: " ".join(words),
)
def test_promtool_takes_the_files(words: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (apt-get install prometheus)")
    done = subprocess.run([promtool, *words], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
