"""Publishing from synchronous code: after the commit, through one connection, and never to the caller's cost."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
import redis
from channels.layers import channel_layers, get_channel_layer
from django.db import transaction

from nodes import live, tasks, telemetry
from tests.waiting import PATIENCE_S, until, wait_until


@pytest.fixture
def layer_redis(redis_url, settings):
    """The production channel layer on an empty Redis."""
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [f"{redis_url}?db=2"]}}
    }
    live.close()
    client = redis.Redis.from_url(f"{redis_url}?db=2")
    yield client
    live.close()
    channel_layers.backends.clear()
    client.close()


async def received(group: str, act) -> dict:
    """The next message of a group, after ``act`` ran in another thread as synchronous code does."""
    layer = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(group, channel)
    await asyncio.to_thread(act)
    message = await asyncio.wait_for(layer.receive(channel), PATIENCE_S)
    await layer.group_discard(group, channel)
    await layer.flush()
    return message


@pytest.mark.redis
async def test_a_payload_arrives_as_ready_text(layer_redis):
    message = await received(live.group_of("job.42"), lambda: live.publish("job.42", {"state": "RUNNING"}))
    assert message == {"type": "live.message", "text": '{"topic":"job.42","state":"RUNNING"}'}


@pytest.mark.redis
async def test_a_nudge_reaches_the_agents_group_by_task_too(layer_redis):
    for act in (lambda: live.nudge_node(7), lambda: tasks.node_nudge(7)):
        assert await received(live.agent_group(7), act) == {"type": "agent.sync"}


@pytest.mark.redis
async def test_many_messages_do_not_open_a_connection_each(layer_redis):
    def connections() -> int:
        return layer_redis.info("stats")["total_connections_received"]

    before = connections()

    def many() -> None:
        for number in range(200):
            live.publish("pool", {"number": number})

    await received(live.group_of("pool"), many)
    await until(lambda: live._publisher.sent >= 200, "200 messages sent")
    assert live._publisher.sent == 200
    assert connections() - before < 10


def test_with_redis_away_publishing_costs_nothing_and_raises_nothing(settings, tmp_path):
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [f"unix://{tmp_path}/none.sock?db=2"]}}
    }
    live.close()
    for number in range(live.QUEUE_MAX + 500):
        live.publish("pool", {"number": number})
    live.nudge_node(1)
    wait_until(lambda: live._publisher.dropped > 0, "messages dropped")
    assert live._publisher.sent == 0
    thread = live._publisher.thread
    live.close()
    wait_until(lambda: not thread.is_alive(), "the publisher's end")  # a closing process does not wait for it for ever


class BreakingLayer:
    """Its connection breaks at the very moment in which the publisher is stopped."""

    async def group_send(self, group: str, message: dict) -> None:
        asyncio.get_running_loop().stop()
        raise ConnectionError("broken")


def test_a_send_that_fails_as_the_publisher_is_stopped_does_not_keep_it(monkeypatch):
    """Asked to end then, asyncio.wait_for answers with the failure: the sending goes on if it is not asked again."""
    monkeypatch.setattr(live, "get_channel_layer", BreakingLayer)
    live.close()
    live.nudge_node(1)
    thread, live._publisher = live._publisher.thread, None
    wait_until(lambda: not thread.is_alive(), "the publisher's end")


@pytest.mark.django_db
def test_it_waits_for_the_commit(published, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        live.publish("job.1", {})
        live.nudge_node(1)
        assert published == []
    assert [group for group, _ in published] == ["live.job.1", "agent.1"]


@pytest.mark.django_db
def test_what_was_rolled_back_is_not_told(published, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        with transaction.atomic():
            live.publish("job.1", {})
            transaction.set_rollback(True)
        live.publish("job.2", {})
    assert [json.loads(message["text"])["topic"] for _, message in published] == ["job.2"]


@pytest.mark.parametrize(("topic", "payload"), [("job", {}), ("job.1.2", {}), ("secret.1", {}), ("pool", {"x": object()})])
def test_what_is_no_topic_or_no_json_is_logged_not_raised(published, caplog, topic, payload):
    live.publish(topic, payload)
    assert published == []
    assert len(caplog.records) == 1


# --- Redis for the latest ---------------------------------------------------------------------------------------------


def test_an_absent_redis_is_left_alone_for_a_while(no_redis, monkeypatch):
    asked = []
    assert telemetry.ask(lambda c: c.ping(), "away") == "away"
    assert telemetry.client() is None
    assert telemetry.ask(lambda c: asked.append(c), "away") == "away"
    assert asked == []
    monkeypatch.setattr(telemetry, "_rest_until", time.monotonic() - 0.001)
    assert telemetry.client() is not None


@pytest.mark.redis
def test_a_restarted_redis_is_found_again_with_the_old_connections(live_redis):
    assert not telemetry.is_away()
    live_redis.client_kill_filter(skipme=True, _type="normal")  # what a restart does to a pooled connection
    assert not telemetry.is_away()


@pytest.mark.redis
def test_a_redis_that_hangs_is_not_waited_for(live_redis, monkeypatch):
    monkeypatch.setattr(telemetry, "ANSWER_S", 0.3)
    assert telemetry.nodes_last_seen() == {}
    live_redis.execute_command("CLIENT", "PAUSE", "800")
    # Waiting for the pause to end would give the answer of an empty Redis, {}.
    assert telemetry.nodes_last_seen() is None
    live_redis.ping()


@pytest.mark.redis
def test_what_another_version_wrote_is_skipped(live_redis):
    live_redis.hset("nebula:seen", mapping={"1": "junk", "x": "1.0 s 1", "2": "5.000 s 3"})
    live_redis.set("nebula:gpus:1", "not json")
    assert telemetry.nodes_last_seen() == {2: telemetry.Seen(at=5.0, session="s", seq=3)}
    assert telemetry.nodes_statuses([1, 2]) == {}


@pytest.mark.redis
def test_a_node_that_left_is_forgotten(live_redis):
    telemetry.sync_store(node_id=5, session="s", seq=1, at=1.0, statuses=())
    telemetry.node_forget(5)
    assert live_redis.keys("*") == []


def test_one_client_serves_all_threads(no_redis):
    found = []
    threads = [threading.Thread(target=lambda: found.append(telemetry.client())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(client) for client in found}) == 1
