"""/metrics: DCGM's names and labels, ours beside them, nothing for what is not told, and who may read it."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agent.protocol import GpuHealth, GpuProcess, GpuStatus, HostStatus
from jobs import counts, metrics
from jobs.lifecycle import JobState
from jobs.models import Job
from jobs.services.schedule import schedule_pass
from nodes import telemetry
from nodes.card_metrics import CARD_METRICS
from nodes.exposition import histogram, labels, metric
from nodes.models import Alert, AlertRule, HealthEvent
from quotas.models import Notice, NoticeDelivery
from tests.factories import alert_rules_ship, attempt_make, job_make, node_make, project_make, user_make

pytestmark = pytest.mark.django_db
LINE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')


def parse(text: str) -> dict[str, dict[str, float]]:
    """Name → labels → value. Fails on what is no line of the format, on a series that comes twice and on a metric in two places."""
    found: dict[str, dict[str, float]] = {}
    heads: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            heads.append(line.split()[2])
            continue
        if line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        assert match, line
        series = found.setdefault(match[1], {})
        assert match[2] not in series, line
        series[match[2] or ""] = float(match[3])
    assert len(heads) == len(set(heads))
    return found


def scrape() -> dict[str, dict[str, float]]:
    return parse(metrics.metrics_text(now=time.time()))


def tell(node: Any, *statuses: GpuStatus, ago: float = 0, **more: Any) -> None:
    telemetry.sync_store(node_id=node.pk, session="s", seq=1, at=time.time() - ago, statuses=statuses, **more)


# --- the format ---------------------------------------------------------------------------------------------------


def test_any_text_may_be_a_labels_value() -> None:
    text = 'a"b\\c\nd{}=☠,'
    line = metric("m", "gauge", "M.", [(labels(name=text), 1)])[-1]
    assert line == 'm{name="a\\"b\\\\c\\nd{}=☠,"} 1\n'
    assert LINE.fullmatch(line.rstrip("\n"))


def test_what_is_none_has_no_series_and_0_has_one() -> None:
    assert metric("m", "gauge", "M.", [("", None)]) == []
    assert metric("m", "gauge", "M.", [(labels(a=1), None), (labels(a=2), 0)])[2:] == ['m{a="2"} 0\n']


def test_a_histogram_counts_upwards() -> None:
    lines = histogram("h", "H.", (0.1, 1.0), (3, 0, 2), 7.5)
    assert lines[2:] == ['h_bucket{le="0.1"} 3\n', 'h_bucket{le="1"} 3\n', 'h_bucket{le="+Inf"} 5\n', "h_sum 7.5\n", "h_count 5\n"]


# --- what is told -------------------------------------------------------------------------------------------------


@pytest.mark.redis
def test_a_card_has_dcgms_series_with_its_job(live_redis: Any) -> None:
    node = node_make("node03", cards=1, mib=24_564)
    gpu = node.gpus.get()
    owner = user_make("eve@lab.example")
    attempt = attempt_make(job_make(owner, state=JobState.RUNNING, project=project_make("nlp")), gpus=(gpu,), mib=8192)
    HealthEvent.objects.create(node=node, gpu=gpu, session="s", eid=1, kind="xid", data={"xid": 13}, at=timezone.now() - timedelta(hours=3))
    HealthEvent.objects.create(node=node, gpu=gpu, session="s", eid=2, kind="xid", data={"xid": 31}, at=timezone.now() - timedelta(hours=2))
    status = GpuStatus(
        uuid=gpu.uuid,
        used_mib=9000,
        reserved_mib=500,
        util_pct=0,
        temp_c=61,
        power_w=250,
        core_mhz=2500,
        foreign_mib=700,
        throttle=("power_cap",),
    )
    facts = GpuHealth(uuid=gpu.uuid, energy_j=12, remap_failed=False, ecc_uncorrected=3)
    tell(node, status, health=(facts,), processes=[GpuProcess(uuid=gpu.uuid, pid=1, used_mib=8000, rank=attempt.ranks.get().key)])
    found = scrape()
    name = (
        f'gpu="0",UUID="{gpu.uuid}",device="nvidia0",modelName="NVIDIA GeForce RTX 4090",Hostname="node03",'
        f'job="{attempt.job_id}",user="eve@lab.example",project="nlp"'
    )
    expected = {
        "DCGM_FI_DEV_GPU_UTIL": 0,  # idle is told; not told would be no series
        "DCGM_FI_DEV_FB_USED": 9000,
        "DCGM_FI_DEV_FB_FREE": 24_564 - 9000 - 500,
        "DCGM_FI_DEV_FB_RESERVED": 500,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 250,
        "DCGM_FI_DEV_SM_CLOCK": 2500,
        "DCGM_FI_DEV_XID_ERRORS": 31,  # the last one
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 12_000,  # mJ
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 3,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
        "nebula_gpu_memory_held_bytes": 8192 * 2**20,
        "nebula_gpu_memory_foreign_bytes": 700 * 2**20,
        "nebula_gpu_slices": 1,
    }
    assert {metric: found[metric][name] for metric in expected} == expected
    for absent in ("DCGM_FI_DEV_FAN_SPEED", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"):
        assert absent not in found
    assert found["nebula_gpu_state"] == {f'{name},state="HEALTHY"': 1}
    assert found["nebula_gpu_throttled"] == {f'{name},reason="power_cap"': 1}
    of_job = f'job="{attempt.job_id}",user="eve@lab.example",project="nlp",rank="{attempt.job_id}.1.0",UUID="{gpu.uuid}"'
    assert found["nebula_job_gpu_memory_used_bytes"] == {of_job: 8000 * 2**20}
    assert found["nebula_job_gpu_memory_granted_bytes"] == {of_job: 8192 * 2**20}


@pytest.mark.redis
def test_parts_of_a_card_are_one_series_that_names_all_jobs(live_redis: Any) -> None:
    gpu = node_make(cards=1).gpus.get()
    first, second = (attempt_make(job_make(user_make(f"u{n}@lab.example"), state=JobState.RUNNING), gpus=(gpu,)) for n in (1, 2))
    (name,) = scrape()["nebula_gpu_slices"]
    assert f'job="{first.job_id},{second.job_id}",user="u1@lab.example,u2@lab.example"' in name


@pytest.mark.redis
def test_old_figures_are_not_told_as_new(live_redis: Any) -> None:
    node = node_make("node01", cards=1)
    tell(node, GpuStatus(uuid=node.gpus.get().uuid, util_pct=5), ago=20, host=HostStatus(cpu_pct=50))
    found = scrape()
    assert "DCGM_FI_DEV_GPU_UTIL" not in found
    assert "nebula_node_cpu_ratio" not in found
    assert found["nebula_node_silent_seconds"]['Hostname="node01"'] == pytest.approx(20, abs=2)


@pytest.mark.redis
def test_nodes_and_agents(live_redis: Any) -> None:
    node = node_make("node01", memory_mib=1000)
    node_make("node02", state="UNKNOWN", cordoned=True)
    node_make("node03", state="RETIRED")
    tell(node, host=HostStatus(cpu_pct=50, memory_mib=400, disk_free_mib=7))
    found = scrape()
    assert found["nebula_agents"]['state="READY"'] == 1
    assert found["nebula_agents"]['state="UNKNOWN"'] == 1
    assert found["nebula_agents"]['state="DOWN"'] == 0
    assert found["nebula_node_cpu_ratio"] == {'Hostname="node01"': 0.5}
    assert found["nebula_node_memory_used_bytes"] == {'Hostname="node01"': 400 * 2**20}
    assert found["nebula_node_memory_bytes"] == {'Hostname="node01"': 1000 * 2**20}
    assert found["nebula_node_cordoned"] == {'Hostname="node01"': 0, 'Hostname="node02"': 1}


@pytest.mark.redis
def test_the_queue_by_state_and_reason(live_redis: Any) -> None:
    now = timezone.now()
    job_make(wait_code="vram", queued_at=now - timedelta(seconds=90))
    job_make(wait_code="vram", queued_at=now - timedelta(seconds=30))
    job_make(held=True, queued_at=now - timedelta(days=9))  # on hold by somebody's wish: it does not wait for the pool
    job_make(state=JobState.FAILED, end_reason="node_lost")
    job_make(state=JobState.SUCCEEDED)
    found = scrape()
    assert found["nebula_jobs"] == {
        f'state="{state}"': float(state == "WAITING") * 3 for state in ("RUNNING", "STARTING", "STOPPING", "WAITING")
    }
    assert found["nebula_jobs_waiting"] == {'reason="held"': 1, 'reason="vram"': 2}
    assert found["nebula_queue_oldest_seconds"][""] == pytest.approx(90, abs=5)
    assert found["nebula_jobs_ended_total"] == {'state="CANCELLED"': 0, 'state="FAILED"': 1, 'state="SUCCEEDED"': 1}
    assert found["nebula_job_failures_total"] == {'reason="node_lost"': 1}


@pytest.mark.redis
def test_passes_are_counted_across_processes(live_redis: Any) -> None:
    schedule_pass()
    for seconds in (0.02, 0.05, 99):
        counts.pass_counted(seconds=seconds, parts_ms={"plan": 1000 * seconds}, started=2)
    found = scrape()
    assert found["nebula_schedule_attempts_duration_seconds_count"][""] == 4
    buckets = found["nebula_schedule_attempts_duration_seconds_bucket"]
    assert (buckets['le="10"'], buckets['le="+Inf"']) == (3, 4)
    assert list(buckets.values()) == sorted(buckets.values())
    assert found["nebula_schedule_part_seconds_total"]['part="plan"'] == pytest.approx(99.07, abs=0.5)
    assert found["nebula_jobs_started_total"][""] == 6


@pytest.mark.redis
def test_a_pass_that_fails_is_counted_and_not_hidden(live_redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.services.schedule.pass_run", lambda now: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        schedule_pass()
    assert scrape()["nebula_schedule_failures_total"][""] == 1


def test_without_redis_the_rest_is_told(no_redis: Any) -> None:
    node_make("node01", cards=1)
    found = scrape()
    assert found["nebula_redis_up"][""] == 0
    assert len(found["nebula_gpu_slices"]) == 1
    assert "nebula_schedule_attempts_duration_seconds_count" not in found


def test_open_alerts_and_messages_that_are_not_out_are_told(no_redis: Any) -> None:
    alert_rules_ship()
    rule = AlertRule.objects.get(code="hot")
    for n, fields in enumerate(({}, {"level": 2}, {"level": 2}, {"state": "RESOLVED", "resolved_at": timezone.now()})):
        Alert.objects.create(rule=rule, metric="temp_c", subject=f"gpu:{n}", **fields)
    notice = Notice.objects.create(user=user_make(), kind="test")
    for state in ("WAITING", "SENT", "FAILED"):
        NoticeDelivery.objects.create(notice=notice, state=state, created_at=timezone.now() - timedelta(seconds=90))
    found = scrape()
    assert found["nebula_alerts"] == {'rule="hot",level="warning"': 1, 'rule="hot",level="critical"': 2}
    assert found["nebula_notices_waiting"][""] == 1
    assert 90 <= found["nebula_notices_oldest_seconds"][""] < 100


@pytest.mark.redis
def test_the_number_of_queries_does_not_grow(live_redis: Any, django_assert_num_queries: Any) -> None:
    def fill(count: int) -> None:
        for _ in range(count):
            node = node_make(cards=2)
            gpu = node.gpus.first()
            attempt_make(gpus=(gpu,))
            HealthEvent.objects.create(node=node, gpu=gpu, session="s", eid=1, kind="xid", data={"xid": 13})
            tell(node, GpuStatus(uuid=gpu.uuid, util_pct=1), health=(GpuHealth(uuid=gpu.uuid, energy_j=1),))

    fill(1)
    with django_assert_num_queries(10):
        scrape()
    fill(4)
    with django_assert_num_queries(10):
        assert len(scrape()["nebula_gpu_slices"]) == 10


@pytest.mark.redis
def test_promtool_has_nothing_to_say(live_redis: Any) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (apt-get install prometheus)")
    node = node_make(cards=1)
    gpu = node.gpus.get()
    attempt_make(gpus=(gpu,))
    tell(
        node,
        GpuStatus(uuid=gpu.uuid, **dict.fromkeys(("used_mib", "util_pct", "temp_c", "power_w", "fan_pct", "core_mhz", "mem_mhz"), 1)),
        health=(GpuHealth(uuid=gpu.uuid, energy_j=1, pcie_replays=1),),
    )
    schedule_pass()
    done = subprocess.run(
        [promtool, "check", "metrics"], input=metrics.metrics_text(now=time.time()), capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert "error while linting" not in said, said
    # Of DCGM's names and of its label modelName it complains.
    assert [line for line in said.splitlines() if not line.startswith("DCGM_") and "label names should" not in line] == []


def test_a_4000_card_pool_has_25_series_a_card() -> None:
    assert len(CARD_METRICS) + 1 >= 25


# --- who may read it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"REMOTE_ADDR": "127.0.0.1"}, 403),  # every program of this machine has that address
        ({"REMOTE_ADDR": "::1"}, 403),
        ({"REMOTE_ADDR": "127.0.0.1", "headers": {"Authorization": "Bearer s3cret"}}, 200),
        ({"REMOTE_ADDR": ""}, 403),
        ({"REMOTE_ADDR": "10.1.2.3"}, 403),
        ({"REMOTE_ADDR": "10.1.2.3", "headers": {"Authorization": "Bearer s3cret"}}, 200),
        ({"REMOTE_ADDR": "10.1.2.3", "headers": {"Authorization": "Bearer wrong"}}, 403),
        ({"REMOTE_ADDR": "10.1.2.3", "headers": {"Authorization": "Bearer "}}, 403),
        ({"REMOTE_ADDR": "10.1.2.3", "headers": {"Authorization": "Bearer ☠"}}, 403),
        # A proxy of which nobody told us: its address says nothing about who asks.
        ({"REMOTE_ADDR": "127.0.0.1", "headers": {"X-Forwarded-For": "203.0.113.9"}}, 403),
        ({"REMOTE_ADDR": "10.1.2.3", "headers": {"X-Forwarded-For": "127.0.0.1"}}, 403),
    ],
)
def test_only_whom_the_settings_name(no_redis: Any, client: Client, settings: Any, given: dict[str, Any], status: int) -> None:
    settings.METRICS_TOKEN = "s3cret"
    answer = client.get("/metrics", **given)
    assert answer.status_code == status
    assert answer.headers["Content-Type"].startswith("text/plain")
    if status == 403:
        assert "NEBULA_METRICS_TOKEN" in answer.content.decode()


def test_the_token_is_made_at_the_first_start_and_is_nobody_elses_to_read(no_redis: Any, client: Client, settings: Any) -> None:
    path = settings.DATA_DIR / "metrics-token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_text().strip()) > 40
    assert client.get("/metrics", headers={"Authorization": f"Bearer {path.read_text().strip()}"}).status_code == 200


def test_names_of_people_and_projects_are_for_the_token_alone(no_redis: Any, client: Client, settings: Any) -> None:
    settings.METRICS_ALLOW = ["127.0.0.1", "::1"]
    job = attempt_make(gpus=(node_make(cards=1).gpus.get(),)).job
    opened = client.get("/metrics", REMOTE_ADDR="::ffff:127.0.0.1").content.decode()
    named = client.get("/metrics", headers={"Authorization": f"Bearer {settings.METRICS_TOKEN}"}).content.decode()
    for name in (job.owner.email, f'project="{job.project.name}"'):
        assert (name in opened, name in named) == (False, True)
    assert f'job="{job.pk}"' in opened


def test_networks_and_known_proxies_count(no_redis: Any, client: Client, settings: Any) -> None:
    settings.METRICS_ALLOW = ["10.1.0.0/16"]
    assert client.get("/metrics", REMOTE_ADDR="10.1.2.3").status_code == 200
    assert client.get("/metrics", REMOTE_ADDR="127.0.0.1").status_code == 403
    settings.TRUSTED_PROXIES = 1
    assert client.get("/metrics", REMOTE_ADDR="127.0.0.1", headers={"X-Forwarded-For": "203.0.113.9, 10.1.9.9"}).status_code == 200
    assert client.get("/metrics", REMOTE_ADDR="127.0.0.1", headers={"X-Forwarded-For": "10.1.9.9, 203.0.113.9"}).status_code == 403


def test_metrics_are_read_only(no_redis: Any, client: Client) -> None:
    assert client.post("/metrics").status_code == 405
    assert Job.objects.count() == 0
