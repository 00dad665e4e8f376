"""Samples: what a tick keeps, what a roll-up makes of it, what goes."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.protocol import GpuProcess, GpuStatus, HostStatus
from nodes import samples, telemetry
from nodes.models import GpuSample, Level, NodeSample, PoolSample, RankSample
from nodes.sample_sql import figures_of, rows_read
from tests.factories import gpu_make, node_make

pytestmark = pytest.mark.django_db
NOON = 1_773_576_000  # 2026-03-15 12:00 UTC, the begin of an hour


class Lab:
    """What nodes told last, instead of Redis."""

    def __init__(self) -> None:
        self.latest: dict[int, telemetry.Latest] = {}
        self.listed: dict[int, tuple[float, list[dict[str, Any]]]] = {}

    def tell(self, node, *statuses: GpuStatus, at: float, host: HostStatus | None = None, processes=None) -> None:
        self.latest[node.pk] = telemetry.Latest(
            at=at, gpus={status.uuid: status.to_json() for status in statuses}, host=host.to_json() if host else None
        )
        if processes is not None:
            self.listed[node.pk] = (at, [process.to_json() for process in processes])


@pytest.fixture
def lab(monkeypatch) -> Lab:
    lab = Lab()
    monkeypatch.setattr(telemetry, "nodes_latest", lambda ids: {pk: lab.latest[pk] for pk in ids if pk in lab.latest})
    monkeypatch.setattr(telemetry, "nodes_processes", lambda ids: {pk: lab.listed[pk] for pk in ids if pk in lab.listed})
    monkeypatch.setattr(telemetry, "ask", lambda command, default: True)
    return lab


def raw(gpu, at: int, **figures) -> GpuSample:
    return GpuSample.objects.create(gpu=gpu, at=at, **figures)


# --- taking -------------------------------------------------------------------------------------------------------


def test_a_tick_keeps_what_each_card_told_and_leaves_the_rest_null(lab):
    node = node_make(cards=2)
    first, second = node.gpus.order_by("index")
    lab.tell(node, GpuStatus(uuid=first.uuid, util_pct=0, used_mib=500, temp_c=40), GpuStatus(uuid=second.uuid, power_w=61), at=NOON + 5)
    assert samples.samples_tick(now=NOON + 7) == 2
    kept = GpuSample.objects.get(gpu=first)
    assert (kept.level, kept.at, kept.n) == (Level.RAW, NOON, 1)
    assert (kept.util_pct, kept.used_mib, kept.temp_c, kept.power_w, kept.fan_pct) == (0, 500, 40, None, None)
    other = GpuSample.objects.get(gpu=second)
    assert (other.util_pct, other.power_w) == (None, 61)  # not told is not 0


def test_a_step_has_one_sample_however_often_and_late_the_tick_comes(lab):
    node = node_make(cards=1)
    uuid = node.gpus.get().uuid
    for second in (0, 4, 29.9):
        lab.tell(node, GpuStatus(uuid=uuid, util_pct=round(second)), at=NOON + second)
        samples.samples_tick(now=NOON + second)
    assert list(GpuSample.objects.values_list("at", "util_pct")) == [(NOON, 0)]
    lab.tell(node, GpuStatus(uuid=uuid, util_pct=70), at=NOON + 30)
    samples.samples_tick(now=NOON + 31)
    assert list(GpuSample.objects.order_by("at").values_list("at", "util_pct")) == [(NOON, 0), (NOON + 30, 70)]


def test_an_hour_has_120_samples(lab):
    node = node_make(cards=1)
    uuid = node.gpus.get().uuid
    for second in range(0, 3600, 7):  # a beat that comes when it can
        lab.tell(node, GpuStatus(uuid=uuid, util_pct=1), at=NOON + second)
        samples.samples_take(at=(NOON + second) // 30 * 30, now=NOON + second)
    assert GpuSample.objects.filter(at__gte=NOON, at__lt=NOON + 3600).count() == 120


def test_a_silent_node_and_a_card_that_tells_nothing_leave_gaps(lab):
    node, silent = node_make(cards=2), node_make(cards=1)
    lost, dumb = node.gpus.order_by("index")
    lab.tell(node, GpuStatus(uuid=lost.uuid, error="lost"), GpuStatus(uuid=dumb.uuid), at=NOON)
    lab.tell(silent, GpuStatus(uuid=silent.gpus.get().uuid, util_pct=99), at=NOON - 15)
    assert samples.samples_tick(now=NOON + 1) == 0
    assert not GpuSample.objects.exists()
    assert not NodeSample.objects.filter(node=silent).exists()


def test_a_node_can_not_write_another_ones_cards(lab):
    mine, theirs = node_make(cards=1), node_make(cards=1)
    lab.tell(mine, GpuStatus(uuid=theirs.gpus.get().uuid, util_pct=5), GpuStatus(uuid="GPU-unknown", util_pct=5), at=NOON)
    samples.samples_tick(now=NOON)
    assert not GpuSample.objects.exists()


@pytest.mark.parametrize("value", [-1, 2**31, 10**30, float("nan"), float("inf"), "12", True, None, [1]])
def test_a_value_that_can_not_be_true_is_null_and_harms_no_other(lab, value):
    node = node_make(cards=1)
    uuid = node.gpus.get().uuid
    lab.latest[node.pk] = telemetry.Latest(at=NOON, gpus={uuid: {"power_w": value, "util_pct": 200, "temp_c": 51}})
    assert samples.samples_tick(now=NOON) == 1
    kept = GpuSample.objects.get()
    assert (kept.power_w, kept.util_pct, kept.temp_c) == (None, None, 51)


def test_throttling_counts_only_where_it_is_told():
    assert samples.card_figures({"temp_c": 1})[-1] is None
    assert samples.card_figures({"temp_c": 1, "throttle": []})[-1] == 0
    assert samples.card_figures({"temp_c": 1, "throttle": ["hw_thermal"]})[-1] == 100


def test_nodes_and_the_pool_are_kept_too(lab):
    node = node_make(cards=3)
    a, b, c = node.gpus.order_by("index")
    type(a).objects.filter(pk=a.pk).update(live_slices=1, held_mib=8000)
    lab.tell(
        node,
        GpuStatus(uuid=a.uuid, util_pct=90, used_mib=8000, power_w=200),
        GpuStatus(uuid=b.uuid, util_pct=10, used_mib=1000),
        GpuStatus(uuid=c.uuid, error="lost"),
        at=NOON,
        host=HostStatus(cpu_pct=12, memory_mib=4000, disk_free_mib=90_000),
    )
    samples.samples_tick(now=NOON)
    of_node = NodeSample.objects.get()
    assert (of_node.cpu_pct, of_node.memory_mib, of_node.disk_free_mib) == (12, 4000, 90_000)
    assert (of_node.util_pct, of_node.used_mib, of_node.power_w) == (50, 9000, 200)  # (90 + 10) / 2; the lost one does not count
    pool = PoolSample.objects.get()
    assert (pool.cards, pool.told, pool.busy, pool.held_mib, pool.total_mib) == (3, 2, 1, 8000, 3 * 24_564)
    assert (pool.util_pct, pool.power_w) == (50, 200)


def test_the_use_of_a_ranks_processes_is_kept_by_card_and_rolled_up(lab):
    node = node_make(cards=1)
    gpu = node.gpus.get()
    processes = [
        GpuProcess(uuid=gpu.uuid, pid=1, used_mib=1000, util_pct=70, rank="42.1.0"),
        GpuProcess(uuid=gpu.uuid, pid=2, used_mib=500, util_pct=50, rank="42.1.0"),  # at the same time
        GpuProcess(uuid=gpu.uuid, pid=4, util_pct=9, rank="43.1.0"),  # its memory is not told
        GpuProcess(uuid=gpu.uuid, pid=5, used_mib=7, rank="44.1.0"),
        GpuProcess(uuid=gpu.uuid, pid=6, used_mib=7, util_pct=2**32 - 1, rank="45.1.0"),
    ]
    lab.tell(node, GpuStatus(uuid=gpu.uuid, used_mib=8600), at=NOON, processes=processes)
    samples.samples_tick(now=NOON)
    rows = {row.rank: (row.used_mib, row.util_pct) for row in RankSample.objects.all()}
    assert rows == {"42.1.0": (1500, 100), "43.1.0": (None, 9), "44.1.0": (7, None), "45.1.0": (7, None)}
    samples.samples_roll(now=NOON + 120)
    assert RankSample.objects.get(rank="43.1.0", level=Level.MINUTE).util_pct == 9


def test_the_memory_of_a_ranks_processes_is_kept_by_card(lab):
    node = node_make(cards=1)
    gpu = node.gpus.get()
    processes = [
        GpuProcess(uuid=gpu.uuid, pid=1, used_mib=1000, rank="42.1.0"),
        GpuProcess(uuid=gpu.uuid, pid=2, used_mib=500, rank="42.1.0"),
        GpuProcess(uuid=gpu.uuid, pid=3, used_mib=7000),  # nobody's
        GpuProcess(uuid=gpu.uuid, pid=4, used_mib=100, rank="43.1.0"),
        GpuProcess(uuid=gpu.uuid, pid=5, rank="43.1.0"),  # not told: the sum would be wrong
    ]
    lab.tell(node, GpuStatus(uuid=gpu.uuid, used_mib=8600), at=NOON, processes=processes)
    samples.samples_tick(now=NOON)
    assert list(RankSample.objects.values_list("rank", "gpu_id", "used_mib")) == [("42.1.0", gpu.pk, 1500)]
    samples.samples_take(at=NOON + 60, now=NOON + 60)  # the list is 60 s old by now
    assert RankSample.objects.count() == 1


@pytest.mark.redis
def test_through_redis_a_tick_takes_what_a_sync_left(live_redis):
    node = node_make(cards=1)
    gpu = node.gpus.get()
    told = {"host": HostStatus(cpu_pct=3), "processes": [GpuProcess(uuid=gpu.uuid, pid=9, used_mib=77, rank="1.1.0")]}
    telemetry.sync_store(node_id=node.pk, session="s", seq=1, at=NOON, statuses=[GpuStatus(uuid=gpu.uuid, util_pct=8)], **told)
    assert samples.samples_tick(now=NOON + 1) == 1
    assert samples.samples_tick(now=NOON + 2) == 0  # another worker, the same step
    assert GpuSample.objects.get().util_pct == 8
    assert NodeSample.objects.get().cpu_pct == 3
    assert RankSample.objects.get().used_mib == 77


@pytest.mark.redis
def test_a_tick_that_failed_is_made_up_for_within_its_step(live_redis, monkeypatch):
    node = node_make(cards=1)
    telemetry.sync_store(node_id=node.pk, session="s", seq=1, at=NOON, statuses=[GpuStatus(uuid=node.gpus.get().uuid, util_pct=8)])
    with monkeypatch.context() as patch:
        patch.setattr(samples, "samples_take", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            samples.samples_tick(now=NOON + 1)
    assert samples.samples_tick(now=NOON + 6) == 1


def test_without_redis_nothing_is_taken_and_nothing_breaks(no_redis):
    node_make(cards=1)
    assert samples.samples_tick(now=NOON) == 0


def test_a_tick_costs_the_same_number_of_statements_for_any_number_of_cards(lab):
    def statements(now: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            samples.samples_tick(now=now)
        return len(queries)

    def tell(at: int) -> None:
        for node in nodes:
            cards = list(node.gpus.all())
            ranks = [GpuProcess(uuid=gpu.uuid, pid=gpu.pk, used_mib=1, rank=f"{gpu.pk}.1.0") for gpu in cards]
            lab.tell(node, *(GpuStatus(uuid=gpu.uuid, util_pct=1) for gpu in cards), at=at, processes=ranks)

    nodes = [node_make(cards=1)]
    tell(NOON)
    few = statements(NOON)
    nodes += [node_make(cards=8) for _ in range(9)]
    tell(NOON + 30)
    assert statements(NOON + 30) == few
    assert GpuSample.objects.filter(at=NOON + 30).count() == 73


# --- rolling up ---------------------------------------------------------------------------------------------------


def test_a_minute_is_mean_and_extremes_and_leaves_out_what_was_not_told():
    gpu = gpu_make()
    raw(gpu, NOON, util_pct=10, temp_c=50, core_mhz=2000)
    raw(gpu, NOON + 30, util_pct=31, temp_c=None, core_mhz=900)
    samples.samples_roll(now=NOON + 60)
    minute = GpuSample.objects.get(level=Level.MINUTE)
    assert (minute.at, minute.n) == (NOON, 2)
    assert minute.util_pct in (20, 21)  # 20.5
    assert (minute.util_min_pct, minute.util_max_pct) == (10, 31)
    assert (minute.temp_c, minute.temp_max_c) == (50, 50)  # of the one that told it
    assert (minute.core_mhz, minute.core_min_mhz) == (1450, 900)
    assert (minute.power_w, minute.power_max_w) == (None, None)


def test_an_hour_weighs_its_minutes_and_keeps_their_extremes():
    gpu = gpu_make()
    GpuSample.objects.create(gpu=gpu, level=Level.MINUTE, at=NOON, n=2, util_pct=80, util_max_pct=99, util_min_pct=60)
    GpuSample.objects.create(gpu=gpu, level=Level.MINUTE, at=NOON + 60, n=1, util_pct=20, util_max_pct=20, util_min_pct=20)
    samples.samples_roll(now=NOON + 3600)
    hour = GpuSample.objects.get(level=Level.HOUR)
    assert (hour.util_pct, hour.util_max_pct, hour.util_min_pct, hour.n) == (60, 99, 20, 3)  # (2 × 80 + 20) / 3


def test_only_steps_that_are_over_are_rolled_up_and_only_once():
    gpu = gpu_make()
    raw(gpu, NOON, util_pct=10)
    samples.samples_roll(now=NOON + 59)
    assert not GpuSample.objects.exclude(level=Level.RAW).exists()
    for _ in range(2):
        samples.samples_roll(now=NOON + 61)
    assert GpuSample.objects.filter(level=Level.MINUTE).count() == 1
    assert not GpuSample.objects.filter(level=Level.HOUR).exists()


def test_a_pause_of_the_worker_is_made_up_for():
    gpu = gpu_make()
    for minute in range(125):
        raw(gpu, NOON + 60 * minute, util_pct=minute % 100)
    samples.samples_roll(now=NOON + 125 * 60)
    assert GpuSample.objects.filter(level=Level.MINUTE).count() == 125
    assert list(GpuSample.objects.filter(level=Level.HOUR).order_by("at").values_list("at", "n")) == [(NOON, 60), (NOON + 3600, 60)]


def test_a_roll_up_and_a_query_put_figures_together_by_the_same_rule():
    gpu = gpu_make()
    for minute, (n, figures) in enumerate(
        ((2, {"util_pct": 11, "temp_c": 70}), (1, {"util_pct": 90}), (2, {"power_w": 333, "temp_c": 71}))
    ):
        GpuSample.objects.create(gpu=gpu, level=Level.MINUTE, at=NOON + 60 * minute, n=n, **figures)
    figures = figures_of(GpuSample)
    (read,) = rows_read(GpuSample.objects.filter(gpu=gpu), figures=figures, step_s=3600, by=("gpu_id",))
    samples.samples_roll(now=NOON + 3600)
    rolled = GpuSample.objects.get(level=Level.HOUR)
    assert read[:3] == (gpu.pk, NOON, 5)
    for figure, value in zip(figures, read[3:], strict=True):
        kept = getattr(rolled, figure)
        assert (kept is None) == (value is None), figure
        assert kept is None or abs(kept - value) <= 0.5, figure


# --- throwing away ------------------------------------------------------------------------------------------------


def test_each_level_goes_when_its_time_is_over(settings):
    settings.SAMPLE_KEEP_HOURS, settings.SAMPLE_MINUTES_KEEP_DAYS, settings.SAMPLE_HOURS_KEEP_DAYS = 2, 1, 10
    gpu = gpu_make()
    for level, kept in ((Level.RAW, 2 * 3600), (Level.MINUTE, 86_400), (Level.HOUR, 864_000)):
        for age in (kept - 1, kept + 1):
            GpuSample.objects.create(gpu=gpu, level=level, at=NOON - age)
    assert samples.samples_prune(now=NOON) == 3
    left = {level: NOON - at for level, at in GpuSample.objects.values_list("level", "at")}
    assert left == {Level.RAW: 7199, Level.MINUTE: 86_399, Level.HOUR: 863_999}


def test_a_backlog_goes_a_little_at_a_time(settings):
    settings.SAMPLE_KEEP_HOURS = 2
    gpu = gpu_make()
    old = NOON - 2 * 3600 - 1000 * 30
    GpuSample.objects.bulk_create(GpuSample(gpu=gpu, at=old + 30 * step) for step in range(100))
    assert samples.samples_prune(now=NOON) == samples.PRUNE_STEPS
    assert GpuSample.objects.count() == 90
