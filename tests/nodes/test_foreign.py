"""Processes on pooled cards that no job owns: shown, told of once an episode to whoever runs them, never stopped, never charged."""

from __future__ import annotations

import time

import pytest
from django.test import Client

from agent.protocol import GpuProcess, GpuStatus
from nodes import telemetry
from nodes.foreign import foreign_rows
from nodes.models import Gpu, HealthEvent, Node
from nodes.trends import trends_tick
from quotas.models import LedgerEntry, Notice, User
from quotas.notify import message_of
from tests.factories import gpu_make, node_make, user_make

pytestmark = [pytest.mark.django_db, pytest.mark.redis]
BEGAN = 1_800_000_000.0


@pytest.fixture
def gpu(live_redis) -> Gpu:
    return node_make("n1", cards=2).gpus.get(index=0)


def ghost(gpu: Gpu, mib: int | None = 12_000, *, pid: int = 4711, user: str | None = "mallory", rank: str | None = None) -> GpuProcess:
    return GpuProcess(uuid=gpu.uuid, pid=pid, used_mib=mib, user=user, command="<b>mine</b>", rank=rank)


def look(node: Node, turn: int, *processes: GpuProcess) -> None:
    now = BEGAN + 30 * turn
    telemetry.sync_store(node_id=node.pk, session="s", seq=turn, at=now, statuses=[], processes=processes)
    trends_tick(now=now)


def told() -> list[tuple[str, str]]:
    return [(notice.user.email, notice.kind) for notice in Notice.objects.select_related("user").order_by("pk")]


def test_each_card_remembers_a_process_once(gpu):
    own, small = ghost(gpu, 4000, pid=1, rank="1.1.0"), ghost(gpu, 200, pid=2)
    for turn in range(3):
        look(gpu.node, turn, ghost(gpu), own, small)
    assert list(HealthEvent.objects.values_list("kind", "data__used_mib")) == [("foreign", 12_000)]
    look(gpu.node, 3, own, ghost(gpu, 900, pid=2))  # what was small has grown
    assert list(HealthEvent.objects.order_by("pk").values_list("data__used_mib", flat=True)) == [12_000, 900]
    assert not LedgerEntry.objects.exists()


def test_whoever_runs_it_is_told_politely_once_for_all_their_processes(gpu):
    user_make("mal@lab.example", unix_name="mallory")
    user_make("boss@lab.example", is_staff=True)
    other = gpu.node.gpus.get(index=1)
    for turn in range(4):
        look(gpu.node, turn, ghost(gpu), ghost(other, 20_000, pid=4712))
    assert told() == [("mal@lab.example", "foreign_yours")]
    (notice,) = Notice.objects.all()
    assert notice.params == {
        "node": "n1",
        "user": "mallory",
        "command": "<b>mine</b>",
        "pid": 4712,  # the largest
        "cards": [0, 1],
        "used_mib": 32_000,
    }
    assert notice.path == "/nodes/n1/"


def test_staff_are_told_where_nobody_has_that_name(gpu):
    user_make("lin@lab.example", unix_name="lin")
    user_make("boss@lab.example", is_staff=True)
    look(gpu.node, 0, ghost(gpu), ghost(gpu, pid=5, user=None))
    assert told() == [("boss@lab.example", "foreign_unknown")] * 2


def test_an_episode_ends_after_ten_minutes_without_and_a_restart_within_them_is_the_same(gpu):
    user_make("mal@lab.example", unix_name="mallory")
    look(gpu.node, 0, ghost(gpu))
    look(gpu.node, 1)
    look(gpu.node, 15, ghost(gpu, pid=99))
    assert len(told()) == 1
    for turn in range(16, 37):
        look(gpu.node, turn)
    look(gpu.node, 37, ghost(gpu, pid=100))
    assert len(told()) == 2


def test_a_node_that_is_silent_ends_no_episode(gpu):
    user_make("mal@lab.example", unix_name="mallory")
    look(gpu.node, 0, ghost(gpu))
    telemetry.node_forget(gpu.node_id)
    for turn in range(1, 60):
        trends_tick(now=BEGAN + 30 * turn)
    look(gpu.node, 60, ghost(gpu))
    assert len(told()) == 1


def test_memory_that_is_not_told_accuses_nobody(gpu):
    user_make("mal@lab.example", unix_name="mallory")
    look(gpu.node, 0, ghost(gpu, None))
    assert told() == []
    assert not HealthEvent.objects.exists()


def test_on_a_machine_that_only_reports_nothing_is_foreign(gpu):
    user_make("boss@lab.example", is_staff=True)
    Node.objects.update(is_metrics_only=True)
    look(gpu.node, 0, ghost(gpu))
    assert told() == []


@pytest.mark.parametrize(("language", "words"), [("en", "Nothing is charged and nothing is stopped"), ("zh-hans", "不计费")])
def test_the_notice_says_what_where_and_that_nothing_is_lost(gpu, language, words):
    user_make("mal@lab.example", unix_name="mallory", language=language)
    look(gpu.node, 0, ghost(gpu))
    text = message_of(Notice.objects.get(), user=User.objects.get(email="mal@lab.example")).text
    assert words in text
    assert "11.7\N{NO-BREAK SPACE}GiB" in text
    assert "gpu0" in text


def test_pages_show_who_uses_a_card_without_a_job_and_markup_stays_text(live_redis):
    gpu = node_make("n2").gpus.create(uuid="GPU-n2-0", index=0, model="RTX 4090", vendor="nvidia", total_mib=24_564)
    gpu_make(gpu.node, index=1)
    now = time.time()
    ghost = GpuProcess(uuid=gpu.uuid, pid=4711, used_mib=12_288, user="mallory", command="<b>mine</b>")
    telemetry.sync_store(node_id=gpu.node_id, session="s", seq=1, at=now, statuses=[GpuStatus(uuid=gpu.uuid)], processes=(ghost,))
    trends_tick(now=now)
    (row,) = foreign_rows([gpu])
    assert (row["user"], row["mib"], round(row["since"].timestamp())) == ("mallory", 12_288, round(now))
    client = Client()
    client.force_login(user_make())
    for address in ("/nodes/n2/", "/nodes/n2/gpu0/"):
        page = client.get(address).content.decode()
        assert "mallory" in page
        assert "&lt;b&gt;mine&lt;/b&gt;" in page
        assert "processes that no job owns" in page
    assert "mallory" not in client.get("/nodes/n2/gpu1/").content.decode()
