"""Numbers, times and names as people read them; icons and states that exist."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone, translation

from nodes import formats, icons, states
from nodes.models import GpuState, NodeState
from nodes.templatetags import nebula
from tests.po import ROOT

N = "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("mib", "text"), [(None, "n/a"), (0, "0 GiB"), (14_541, "14.2 GiB"), (24_576, "24 GiB"), (24_564, "24 GiB"), (1_536_000, "1,500 GiB")]
)
def test_memory_is_gib_with_one_decimal(mib: int | None, text: str) -> None:
    assert formats.gib(mib) == text.replace(" GiB", f"{N}GiB")


@pytest.mark.parametrize(
    ("seconds", "english", "chinese"),
    [
        (None, "n/a", "n/a"),
        (0, "0 s", "0 秒"),
        (0.084, "84 ms", "84 毫秒"),
        (42, "42 s", "42 秒"),
        (60, "1 min", "1 分"),
        (5940, "1 h 39 min", "1 小时 39 分"),
        (86_400 + 300, "1 d", "1 天"),  # 1 d 0 h 5 min: the hours are none, and minutes don't matter beside days
        (17 * 86_400 + 8 * 3600 + 59, "17 d 8 h", "17 天 8 小时"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float | None, english: str, chinese: str) -> None:
    assert formats.duration(seconds).replace(N, " ") == english
    with translation.override("zh-hans"):
        assert formats.duration(seconds).replace(N, " ") == chinese


def test_gpu_hours_never_break_at_their_hyphen() -> None:
    assert formats.gpu_hours(1374.5) == f"1,374.5{N}GPU\u2060-\u2060h"
    assert formats.gpu_hours(0.79) == f"0.79{N}GPU\u2060-\u2060h"
    assert formats.gpu_hours(2000) == f"2,000{N}GPU\u2060-\u2060h"
    with translation.override("zh-hans"):
        assert formats.gpu_hours(1374.5) == f"1,374.5{N}卡时"


def test_moments_are_told_in_the_active_zone() -> None:
    now = datetime(2026, 7, 14, 7, 4, tzinfo=UTC)
    with timezone.override("Asia/Shanghai"):
        assert formats.clock_text(datetime(2026, 7, 14, 4, 31, tzinfo=UTC), now=now) == "12:31"
        assert formats.clock_text(datetime(2026, 7, 13, 20, 0, tzinfo=UTC), now=now) == "04:00"  # still the same day there
        assert formats.clock_text(datetime(2026, 7, 9, 0, 51, tzinfo=UTC), now=now) == f"9{N}Jul, 08:51"
        assert formats.clock_text(datetime(2025, 7, 9, 0, 51, tzinfo=UTC), now=now) == f"9{N}Jul{N}2025, 08:51"
        assert formats.moment_title(datetime(2026, 7, 14, 4, 31, 4, tzinfo=UTC)) == "2026-07-14 12:31:04 CST"
        with translation.override("zh-hans"):
            assert formats.clock_text(datetime(2026, 7, 9, 0, 51, tzinfo=UTC), now=now) == f"7{N}月{N}9{N}日 08:51"


def test_a_moment_of_today_says_how_long_ago() -> None:
    at = timezone.now() - timedelta(hours=2, minutes=33)
    html = str(nebula.moment(at))
    assert f"2{N}h 33{N}min ago" in html
    assert 'data-time="ago"' in html
    assert f'datetime="{at.isoformat()}"' in html
    assert "ago" not in str(nebula.moment(timezone.now() - timedelta(days=3)))
    assert nebula.moment(None) == "never"


@pytest.mark.parametrize(
    ("model", "name", "short"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090", "4090"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX 4060 Laptop", "4060L"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", "H100"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB", "V100"),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc A770", "A770"),
        ("AMD Instinct MI300X", "MI300X", "MI300X"),
        ("Ascend 910B4", "Ascend 910B4", "910B4"),
        ("Intel Iris Xe", "Iris Xe", "Iris"),
        ("Simulated GPU", "Simulated GPU", "GPU"),
        ("", "", "GPU"),
    ],
)
def test_a_card_has_a_name_that_fits(model: str, name: str, short: str) -> None:
    assert (formats.model_name(model), formats.model_short(model)) == (name, short)


def test_every_icon_of_a_page_is_in_the_sprite(client: Client) -> None:
    asked = {
        name
        for path in (ROOT / "templates").rglob("*.html")
        for name in re.findall(r"{% icon [\"']([\w-]+)[\"']", path.read_text(encoding="utf-8"))
    }
    asked |= {look.icon for table in states.TABLES.values() for look in table.values()}
    assert asked - set(icons.ICONS) == set()
    answer = client.get(icons.sprite_url())
    text = answer.content.decode()
    assert {name for name in icons.ICONS if f'id="i-{name}"' not in text} == set()
    assert "immutable" in answer.headers["Cache-Control"]
    assert "<script" not in text


def test_every_state_has_a_look() -> None:
    from jobs.lifecycle import JobState, SliceState

    for kind, wanted in (("job", JobState), ("slice", SliceState), ("gpu", GpuState), ("node", NodeState)):
        assert {str(state.value) for state in wanted} - set(states.TABLES[kind]) == set()
    assert states.look("job", "FROM_THE_FUTURE").word == "FROM_THE_FUTURE"


def test_a_badge_escapes_what_it_is_given() -> None:
    assert "<b>" not in nebula.badge("job", "<b>", "<i>")
    assert "&lt;i&gt;" in nebula.badge("job", "RUNNING", "<i>")


def test_scripts_are_small_and_no_page_has_one_inline() -> None:
    long = {path.name: lines for path in (ROOT / "static" / "js").glob("*.js") if (lines := len(path.read_text().splitlines())) > 170}
    assert long == {}
    for path in (ROOT / "templates").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), path
        assert not re.search(r"\son\w+=", text), path
        assert not re.search(r"(?:src|href)=[\"']https?://", text), path


@pytest.mark.redis
@pytest.mark.django_db
def test_a_frame_is_sent_when_there_is_news_and_now_and_then(
    live_redis: Any, published: list[Any], monkeypatch: Any, django_capture_on_commit_callbacks: Any
) -> None:
    from jobs import ticker
    from tests.factories import gpu_make, node_make

    node = node_make("node01", cards=1)
    last = ticker._Last()
    with django_capture_on_commit_callbacks(execute=True):
        assert ticker.tick(last)
        assert not ticker.tick(last)  # this second's frame is sent, whoever sent it
        live_redis.delete(ticker.LEASE_KEY)
        assert not ticker.tick(last)  # nothing is new
        live_redis.delete(ticker.LEASE_KEY)
        gpu_make(node)
        assert ticker.tick(last)
        live_redis.delete(ticker.LEASE_KEY)
        monkeypatch.setattr(ticker, "QUIET_S", 0.0)
        assert ticker.tick(last)
    assert [group for group, _ in published] == ["live.pool"] * 3


@pytest.mark.django_db
def test_no_frame_is_made_while_redis_is_away(no_redis: None, published: list[Any], django_assert_num_queries: Any) -> None:
    from jobs import ticker

    with django_assert_num_queries(0):
        assert not ticker.tick(ticker._Last())
    assert published == []


def test_a_record_has_its_time_to_the_second() -> None:
    at = datetime(2026, 7, 14, 13, 18, 4, tzinfo=UTC)
    with timezone.override("Asia/Shanghai"):
        assert ">2026-07-14 21:18:04</time>" in nebula.stamp(at)
        assert "21:18:04 CST" in nebula.stamp(at)
