"""The first page: what it says, to whom, and at what cost."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from client.output import overview as command_line_overview
from jobs import cells, heat
from jobs.lifecycle import JobState, SliceState
from jobs.models import Job
from nodes import services, telemetry
from nodes.models import Gpu, Node
from tests.factories import attempt_make, gpu_make, job_make, node_make, user_make

pytestmark = pytest.mark.django_db


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, dict[str, Any]]]:
    """What the agents said last: node id → card UUID → status; no Redis is needed."""
    said: dict[int, dict[str, dict[str, Any]]] = {}
    empty = dict.fromkeys(("used_mib", "util_pct", "temp_c", "power_w"))

    def statuses(node_ids: Any, *, now: float | None = None) -> dict[int, dict[str, dict[str, Any]]]:
        return {
            pk: {uuid: {**empty, "foreign_mib": 0, "stale": False, **s} for uuid, s in said[pk].items()} for pk in node_ids if pk in said
        }

    monkeypatch.setattr(telemetry, "nodes_statuses", statuses)
    monkeypatch.setattr(telemetry, "nodes_last_seen", dict)
    monkeypatch.setattr(telemetry, "is_away", lambda: False)
    return said


def page(client: Client, user: Any, path: str = "/", **extra: Any) -> str:
    client.force_login(user)
    answer = client.get(path, **extra)
    assert answer.status_code == 200, answer.status_code
    return str(answer.content.decode())


def rungs(html: str) -> list[str]:
    """What stands over the ladder's rungs, from the smallest size to the largest."""
    ladder = html[html.index('class="ladder"') : html.index('class="facts')]
    return re.findall(r'class="col[^"]*">([^<]*)<', ladder)


def cell(html: str, name: str) -> str:
    return next(found for found in re.findall(r'<a class="gpu".*?</a>', html) if f'data-name="{name}' in found)


def test_a_stranger_is_sent_to_sign_in(client: Client) -> None:
    for path in ("/", "/overview/pieces/", "/cells/", "/cells/heat/"):
        answer = client.get(path)
        assert answer.status_code == 302
        assert answer.headers["Location"].startswith("/accounts/login/")


def test_it_works_without_a_node_and_without_a_job(client: Client, told: Any) -> None:
    html = page(client, user_make())
    assert "No machine has joined yet." in html
    assert "No jobs yet." in html
    assert "Nobody waits." in html
    assert "Add a machine" not in html
    assert "Add a machine" in page(client, user_make(is_staff=True))


def test_the_ladder_counts_what_the_scheduler_would_start(client: Client, told: Any) -> None:
    node_make("node01", cards=2)  # two cards of 24 GiB, four slices each at most
    # 4 GiB: 4 a card = 8; 8: 3 a card = 6 (the last one shrinks); 12 = half: 2 a card = 4; above half: whole cards.
    assert rungs(page(client, user_make())) == ["8", "6", "4", "2", "2", "–", "–"]


def test_what_is_kept_for_waiting_jobs_is_not_free(client: Client, told: Any) -> None:
    node_make("node01", cards=2)
    job_make(gpu_count=2, gpu_mem_mib=None)  # takes both cards in the next pass
    assert rungs(page(client, user_make())) == ["0", "0", "0", "0", "0", "–", "–"]


def test_the_readers_own_limits_are_taken_off(client: Client, told: Any) -> None:
    node_make("node01", cards=2)
    assert rungs(page(client, user_make(quota={"max_cards": 3})))[:4] == ["3", "3", "3", "2"]
    html = page(client, user_make(quota={"gpu_hours": 1, "used_gpu_s": 3600.0}))
    assert rungs(html)[:5] == ["0"] * 5
    assert "1.0 of 1 GPU-hours are used" in html


def test_overview_api_command_line_and_node_pages_count_alike(client: Client, told: Any) -> None:
    plain, _drained, cut = node_make("node01", cards=3), node_make("node02", cards=1, cordoned=True), node_make("node03")
    ghost, whole, _idle = plain.gpus.order_by("index")
    told[plain.pk] = {ghost.uuid: {"foreign_mib": 3212}}
    attempt_make(job_make(state=JobState.RUNNING), gpus=(whole,), mib=4096, exclusive=True)
    gpu_make(cut, state="MISSING")
    # node01: ghost use and a job, one idle; out of service: node02's card, node03's. Free: 24,564 − 3,212 and 24,564 MiB.
    user = user_make(is_staff=True)
    client.force_login(user)
    usage = client.get("/api/v1/resources/usage").json()
    assert usage["gpus"] == {"total": 5, "idle": 1, "busy": 2, "maintenance": 2, "ghost": 1}
    assert usage["vram"] == {"total_mib": 5 * 24_564, "free_mib": 24_564 - 3212 + 24_564}
    assert "GPUs: 5 (1 idle, 2 busy, 2 maintenance)" in command_line_overview(usage, None)
    assert "<b>44.8\xa0GiB</b> free of 120\xa0GiB" in page(client, user)
    assert "2 busy, 1 idle<" in page(client, user, "/nodes/node01/")
    assert "0 busy, 0 idle, 1 out of service" in page(client, user, "/nodes/node02/")
    nodes = page(client, user, "/nodes/")
    for text in ("44.8\xa0GiB free of 72\xa0GiB", "0\xa0GiB free of 24\xa0GiB"):  # of node01; of each of the others
        assert text in nodes


def test_the_table_of_cards_tells_health_and_drain(client: Client, told: Any) -> None:
    drained = node_make("node02", cordoned=True)
    gpu_make(drained)
    gpu_make(drained, index=1, state="ISOLATED")
    told[drained.pk] = {gpu.uuid: {} for gpu in drained.gpus.all()}
    html = page(client, user_make(), "/?cards=table")
    rows = [re.findall(r'data-state="(\w+)"', row) for row in re.findall(r"<tr data-i.*?</tr>", html, re.DOTALL)]
    assert rows == [["HEALTHY", "CORDONED"], ["ISOLATED", "CORDONED"]]


def test_every_whole_card_is_named(client: Client, told: Any) -> None:
    for index, model in enumerate(("RTX 4090", "RTX 4060 Laptop", "Arc A770", "RTX 5070 Laptop", "A100 80GB PCIe")):
        gpu_make(node_make(f"node0{index}"), model=model, mib=8188)
    html = page(client, user_make())
    facts = html[html.index("Whole cards") :]
    assert [model for model in ("4090", "4060", "A770", "5070", "A100") if model not in facts[: facts.index("</div>")]] == []


def test_a_cell_says_all_of_a_card(client: Client, told: Any) -> None:
    user = user_make()
    node = node_make("node04")
    gpu = gpu_make(node, uuid="GPU-a")
    told[node.pk] = {"GPU-a": {"used_mib": 15_721, "util_pct": 55, "temp_c": 85, "power_w": 266, "foreign_mib": 1400}}
    job = job_make(user, state=JobState.RUNNING)
    attempt_make(job, gpus=(gpu,), mib=8192)
    attempt_make(job_make(state=JobState.RUNNING), gpus=(gpu,), mib=8192)
    found = cell(page(client, user), "node04 gpu0")
    # 15721 / 24564 = 64 %; 24564 - 2 × 8192 - 1400 = 6780 MiB = 6.6 GiB; 64 / 5 = step 13
    who = f"{user.email}: {job.name} #{job.pk}"
    assert f'aria-label="node04 gpu0, RTX 4090, {who}, memory 64%, use 55%, 85\xa0°C, 6.6\xa0GiB free, hot, ghost use"' in found
    assert 'data-h="13"' in found
    assert 'href="/nodes/node04/gpu0/"' in found
    assert re.findall(r'<i(?: data-k="(\w+)")? style="--w:([\d.]+)%">', found) == [("mine", "33.3"), ("", "33.3"), ("ghost", "5.7")]
    assert 'data-h="17"' in cell(page(client, user, "/?metric=temp"), "node04 gpu0")  # (85 - 30) / 65 × 20 = 16.9


def test_not_told_is_not_zero(client: Client, told: Any) -> None:
    node = node_make("node02")
    gpu_make(node, uuid="GPU-a")
    told[node.pk] = {"GPU-a": {"util_pct": 0}}
    found = cell(page(client, user_make()), "node02 gpu0")
    assert "data-off" in found
    assert "data-h" not in found
    assert "memory n/a, use 0%" in found
    assert 'data-h="0"' in cell(page(client, user_make(), "/?metric=use"), "node02 gpu0")


def test_silence_and_loss_are_marked(client: Client, told: Any) -> None:
    node = node_make("node02", state="UNKNOWN", last_seen_at=timezone.now() - timedelta(seconds=42))
    gpu_make(node, uuid="GPU-a")
    gpu_make(node, uuid="GPU-b", state="MISSING")
    gpu_make(node, uuid="GPU-c", state="SUSPECT", is_simulated=True)
    told[node.pk] = {uuid: {"used_mib": 2456, "stale": True} for uuid in ("GPU-a", "GPU-b", "GPU-c")}
    html = page(client, user_make())
    assert re.search(r"silent 4\d\xa0s", html)
    assert "data-stale" in cell(html, "node02 gpu0")
    gone = cell(html, "node02 gpu1")
    assert "data-off" in gone
    assert "missing" in gone
    assert "GiB free" not in gone
    suspect = cell(html, "node02 gpu2")
    assert 'data-tone="warn"' in suspect
    assert "suspect, stale, simulated" in suspect
    assert "node02 is silent" in html


def test_a_quarantined_slice_is_shown_as_such(client: Client, told: Any) -> None:
    gpu = gpu_make(node_make("node01"), uuid="GPU-a")
    attempt_make(job_make(state=JobState.RUNNING), gpus=(gpu,), mib=8192, slices=SliceState.QUARANTINED)
    html = page(client, user_make())
    assert 'data-k="quar" style="--w:33.3%"' in cell(html, "node01 gpu0")
    assert "1 piece of memory is set aside" in html


def test_others_jobs_keep_their_names(client: Client, told: Any) -> None:
    me, other = user_make(), user_make("other@lab.example")
    job_make(other, name="secret-plan", wait_code="no_node")
    job_make(me, name="mine-to-see", wait_code="no_node")
    html = page(client, me)
    assert "mine-to-see" in html
    assert "secret-plan" not in html
    assert "other@lab.example" not in html
    assert "No node has joined yet." in html  # why it waits is nobody's secret
    assert "secret-plan" in page(client, user_make(is_staff=True))


def test_others_business_stays_theirs(client: Client, told: Any) -> None:
    other = user_make("other@lab.example")
    job_make(other, held=True, wait_code="held", wait_params={"by": "other@lab.example", "why": "secret-reason"})
    job_make(other, wait_code="quota_exceeded", wait_params={"what": "gpu_hours", "used": 12.5, "limit": 10})
    html = page(client, user_make())
    assert "other@lab.example" not in html
    assert "secret-reason" not in html
    assert "12.5" not in html
    assert "Held." in html
    assert "Its owner&#x27;s quota leaves no room for it now." in html
    assert "secret-reason" in page(client, other)


def test_the_queue_is_in_the_order_in_which_it_is_served(client: Client, told: Any) -> None:
    staff = user_make(is_staff=True)
    now = timezone.now()
    job_make(name="held", held=True, submitted_at=now - timedelta(hours=3))
    job_make(name="late", submitted_at=now)
    job_make(name="early", submitted_at=now - timedelta(hours=1))
    job_make(name="urgent", priority=5, submitted_at=now)
    html = page(client, staff)
    queue = html[html.index('id="queue"') : html.index('id="mine"')]
    assert re.findall(r"<bdi>(held|late|early|urgent)</bdi>", queue) == ["urgent", "early", "late", "held"]


def test_names_are_text(client: Client, told: Any) -> None:
    user = user_make()
    job_make(user, name="<script>alert(1)</script>")
    html = page(client, user)
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_my_jobs_begin_with_those_that_run(client: Client, told: Any) -> None:
    user = user_make()
    job_make(user, name="done", state=JobState.SUCCEEDED, started_at=timezone.now() - timedelta(hours=1))
    job_make(user, name="waits")
    gpu = gpu_make(node_make("node01"))
    started = timezone.now() - timedelta(minutes=30)
    attempt_make(job_make(user, name="runs", state=JobState.RUNNING, time_limit_s=3600, started_at=started), gpus=(gpu,))
    html = page(client, user)
    mine = html[html.index('id="mine"') : html.index('id="notices"')]
    assert re.findall(r"<bdi>(done|waits|runs)</bdi>", mine) == ["runs", "waits", "done"]
    assert "node01 gpu0" in mine
    assert "--w:50%" in mine


def test_pieces_are_swapped_by_their_ids(client: Client, told: Any) -> None:
    html = page(client, user_make(), "/overview/pieces/")
    assert sorted(re.findall(r'id="(\w[\w-]*)"[^>]*hx-swap-oob="true"', html)) == ["free", "mine", "nav-count", "notices", "queue"]
    assert "<html" not in html


def test_a_frame_has_one_value_a_card_in_a_fixed_order(client: Client, told: Any) -> None:
    second = node_make("node02", cards=1)
    first = node_make("node01", cards=2)
    client.force_login(user_make())
    frame = client.get("/cells/").json()
    assert [len(frame[key]) for key in "mutwrks"] == [3] * 7
    assert frame["n"] == ["READY", "READY"]
    picture = cells.picture_read()
    assert frame["v"] == picture.version
    assert [(card.node, card.index) for card in picture.cards] == [("node01", 0), ("node01", 1), ("node02", 0)]
    gpu_make(first, index=7)
    assert cells.picture_read().version != picture.version
    Node.objects.filter(pk=second.pk).update(state="UNKNOWN")  # a state is no part of the layout
    Gpu.objects.filter(index=7).delete()
    assert cells.picture_read().version == picture.version


def test_a_frame_names_nobody(told: Any) -> None:
    user = user_make()
    gpu = gpu_make(node_make("node01"))
    attempt_make(job_make(user, state=JobState.RUNNING), gpus=(gpu,), mib=8192)
    [strip] = cells.picture_read().frame["s"]
    assert strip == f"333:{cells.owner_sign(user.pk)}"
    assert cells.owner_sign(user.pk) != cells.owner_sign(user.pk + 1)
    assert str(user.pk) != cells.owner_sign(user.pk)


def test_the_table_has_the_same_figures(client: Client, told: Any) -> None:
    node = node_make("node01")
    gpu_make(node, uuid="GPU-a")
    told[node.pk] = {"GPU-a": {"used_mib": 12_282, "util_pct": 40, "temp_c": 61}}
    html = page(client, user_make(), "/?cards=table")
    row = html[html.index('<tr data-i="0"') :]
    assert '<span data-fig="m">50%</span>' in row
    assert 'data-fig="u">40%<' in row
    assert 'data-fig="t">61&nbsp;°C<' in row
    assert 'data-fig="w">n/a<' in row


def test_many_cards_are_drawn_small(client: Client, told: Any) -> None:
    for number in range(5):
        node_make(f"node{number}", cards=13)
    html = page(client, user_make())
    assert heat.TIGHT_ABOVE < 65
    assert 'class="panel-b heat tight"' in html
    assert html.count('class="gpu"') == 65


def test_it_speaks_chinese(client: Client, told: Any) -> None:
    node_make("node01", cards=1)
    html = page(client, user_make(language="zh-hans"))
    assert 'lang="zh-Hans"' in html
    assert "你现在可用" in html
    assert "Free for you now" not in html
    assert "卡时" in html


def test_the_chosen_theme_is_there_before_any_script(client: Client, told: Any) -> None:
    client.cookies["theme"] = "dark"
    assert '<html lang="en" data-theme="dark">' in page(client, user_make())
    client.cookies["theme"] = '"><script>'
    assert '<html lang="en">' in page(client, user_make())


@pytest.mark.usefixtures("mid_month")
def test_times_are_in_the_readers_zone(client: Client, told: Any) -> None:
    def zone_told(user: Any) -> str:
        job_make(user)
        found = re.search(r'title="\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (\w+)"', page(client, user, "/jobs/"))
        return found.group(1) if found else ""

    assert zone_told(user_make(zone="Asia/Shanghai")) == "CST"
    client.cookies["zone"] = "Asia%2FTokyo"
    assert zone_told(user_make()) == "JST"
    client.cookies["zone"] = "../../etc/passwd"
    assert zone_told(user_make()) == "UTC"


def test_the_month_starts_anew_in_the_installations_zone_whoever_reads(client: Client, told: Any) -> None:
    for zone in ("Asia/Shanghai", "America/Sao_Paulo"):
        assert re.search(r"left until 1\xa0\w+\xa0\d+, 00:00 UTC", page(client, user_make(zone=zone)))


def test_the_number_of_queries_does_not_grow(client: Client, told: Any, django_assert_max_num_queries: Any) -> None:
    user = user_make(is_staff=True)
    client.force_login(user)

    def queries() -> int:
        with django_assert_max_num_queries(60) as counted:
            assert client.get("/").status_code == 200
        return len(counted)

    def grow() -> None:
        node = node_make(cards=3)
        job_make(user)
        job_make(user, state=JobState.FAILED, end_reason="nonzero_exit")
        attempt_make(job_make(user, state=JobState.RUNNING), gpus=(node.gpus.first(),))

    grow()
    few = queries()
    for _ in range(4):
        grow()
    assert queries() <= few
    assert Job.objects.count() == 15


def test_a_drain_is_a_notice(client: Client, told: Any) -> None:
    node = node_make("node03", cards=1)
    services.node_cordon(node=node, by=None, reason="driver <b>upgrade</b>")
    html = page(client, user_make())
    assert "node03 takes no new work" in html
    assert "driver &lt;b&gt;upgrade" in html
