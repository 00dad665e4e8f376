"""Secrets on the server's side of a rank: which value travels when, and what is taken out of what comes back."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from agent.protocol import CommandResult, Observed
from jobs import logs
from jobs.job_secrets import ids_in_use, values_for
from jobs.models import Job, Rank
from jobs.services.schedule import pass_run
from jobs.services.upkeep import secrets_prune
from nodes.models import AgentCommand
from nodes.services import command_create
from quotas.models import Secret
from quotas.secret_masks import masks_for
from quotas.secrets import secret_delete, secret_set
from tests.factories import node_make
from tests.jobs.lab import Lab
from tests.jobs.test_agent_api import AgentClient

pytestmark = pytest.mark.django_db
VALUE = "canary-7Zq9kX wren"


@pytest.fixture
def agent(settings: Any, tmp_path: Path) -> AgentClient:
    settings.DATA_DIR, settings.LOG_DIR, settings.SECRETS_KEY = tmp_path, tmp_path / "logs", []
    masks_for.cache_clear()
    return AgentClient(node_make("n1", cards=1))


def placed(agent: AgentClient, *names: str) -> tuple[Job, Rank]:
    lab = Lab()
    owner = lab.user()
    secret_set(by=owner, name="token", value=VALUE)
    job = lab.submit(owner=owner, secrets=names or ("token=TOKEN",))
    pass_run()
    return job, Rank.objects.get()


def order_of(answer: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    (order,) = answer[1]["desired"]
    return order


def test_the_value_travels_with_the_spec_and_only_until_the_agent_has_it(agent: AgentClient) -> None:
    _job, rank = placed(agent)
    order = order_of(agent.sync())
    assert order["secrets"] == {"token": VALUE}
    assert order["spec"]["secrets"] == [{"name": "token", "env": "TOKEN", "id": Secret.objects.get().pk}]
    assert Secret.objects.get().used_at is not None
    assert VALUE not in json.dumps(rank.spec)
    running = Observed(rank=rank.key, epoch=1, state="RUNNING", started_at=1.0)
    assert "secrets" not in order_of(agent.sync(running))


def test_the_value_of_the_placement_counts_not_a_later_one(agent: AgentClient) -> None:
    job, _rank = placed(agent)
    secret_set(by=job.owner, name="token", value="another value")
    assert order_of(agent.sync())["secrets"] == {"token": VALUE}


def test_a_secret_that_is_deleted_before_the_placement_is_left_out(agent: AgentClient) -> None:
    lab = Lab()
    owner = lab.user()
    secret_set(by=owner, name="token", value=VALUE)
    lab.submit(owner=owner, secrets=("token",))
    secret_delete(by=owner, name="token")
    pass_run()
    assert "secrets" not in order_of(agent.sync())


def test_without_the_key_the_rank_is_ordered_without_values_and_other_ranks_go_on(agent: AgentClient, tmp_path: Path) -> None:
    placed(agent)
    (tmp_path / "secrets-key").unlink()
    assert "secrets" not in order_of(agent.sync())


def test_one_value_that_can_not_be_opened_keeps_no_other_from_its_rank(agent: AgentClient) -> None:
    owner = Lab().user()
    bad, _ = secret_set(by=owner, name="bad", value=VALUE)
    good, _ = secret_set(by=owner, name="good", value=VALUE)
    Secret.objects.filter(pk=bad.pk).update(sealed="of a key that is lost")
    specs = {n: {"secrets": [{"name": one.name, "env": None, "id": one.pk}]} for n, one in enumerate((bad, good))}
    assert values_for(specs) == {0: {}, 1: {"good": VALUE}}


def test_output_is_masked_as_it_comes_in_over_the_border_of_two_chunks(agent: AgentClient) -> None:
    _job, rank = placed(agent)
    raw = f"key {VALUE}\nlast {VALUE[:3]}".encode()
    assert agent.log(rank.key, 0, raw[:10]) == (200, {"length": 4})
    assert agent.log(rank.key, 4, raw[4:]) == (200, {"length": len(raw) - 3})
    assert agent.log(rank.key, len(raw) - 3, raw[-3:]) == (200, {"length": len(raw) - 3})
    assert agent.log(rank.key, f"{len(raw) - 3}&end=1", raw[-3:]) == (200, {"length": len(raw)})
    assert logs.log_read(rank.key, offset=0, limit=999) == f"key {'*' * len(VALUE)}\nlast {VALUE[:3]}".encode()


def test_output_that_can_not_be_masked_is_not_taken(agent: AgentClient, tmp_path: Path) -> None:
    _job, rank = placed(agent)
    (tmp_path / "secrets-key").unlink()
    status, answer = agent.log(rank.key, 0, VALUE.encode())
    assert (status, answer["code"]) == (500, "secrets_key")
    assert logs.log_length(rank.key) == 0


def test_a_tail_that_staff_asked_for_is_masked_too(agent: AgentClient) -> None:
    _job, rank = placed(agent)
    tail = command_create(node=agent.node, verb="tail", args={"rank": rank.key})
    agent.sync(results=(CommandResult(cid=tail.pk, ok=True, text=f"it said {VALUE}"),))
    assert AgentCommand.objects.get().text == f"it said {'*' * len(VALUE)}"


def test_a_replaced_value_is_kept_while_a_rank_may_print_it(agent: AgentClient) -> None:
    job, rank = placed(agent)
    old = Secret.objects.get()
    secret_delete(by=job.owner, name="token")
    assert ids_in_use() == {old.pk}
    later = timezone.now() + timedelta(days=1)
    secrets_prune(now=later)
    assert Secret.objects.filter(pk=old.pk).exists()
    Rank.objects.filter(pk=rank.pk).update(is_forgotten=True)
    secrets_prune(now=later + timedelta(hours=1))
    assert not Secret.objects.exists()
