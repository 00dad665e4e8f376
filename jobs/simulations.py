"""From what was asked for to a report: which jobs, on which cards, under which policies; docs/simulating.md.

Reads the database for ``--last`` and for the installation's own cluster; opens no file. Raises WorkloadError for what can't be used.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from jobs.policy import policy_current
from jobs.replays import Replay, nodes_in_service, replay_read
from jobs.scheduler.clusters import Cluster, WorkloadError, cluster_preset, cluster_read
from jobs.scheduler.measures import judge
from jobs.scheduler.runs import cards_by_node
from jobs.scheduler.scenario import (
    Scenario,
    impossible_split,
    policy_named,
    policy_placing,
    policy_set,
    running_before,
    scenario_of,
    scenario_run,
)
from jobs.scheduler.synthetic import workload_make
from jobs.scheduler.types import Policy, Snapshot
from jobs.scheduler.workload import Workload, workload_read
from jobs.simulation_report import AtLoad, Column, Report

PRESET_NODES = 10
MOST_JOBS = 1_000_000
MOST_REPLICAS = 1_000
CURRENT = "current"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Jobs and cards; ``fields`` say where they are from, ``replay`` is there for the installation's own past on its own cards."""

    fields: Mapping[str, Any]
    scenario: Scenario
    users: Mapping[int, str]
    projects: Mapping[int, str]
    notes: Mapping[str, int] = field(default_factory=dict)
    replay: Replay | None = None


# Cards


def cluster_own() -> Cluster:
    """This installation's nodes as if all of them took work. Causes a few queries."""
    return Cluster(snapshot=Snapshot(now=0.0, nodes=nodes_in_service(Counter()), jobs=()))


def cluster_of(*, text: str | None, preset: str | None) -> Cluster:
    """``text``: a cluster file; ``preset``: ``abc`` or ``abc:20``; neither: this installation's."""
    if text is not None:
        cluster = cluster_read(text)
    elif preset is not None:
        name, _, nodes = preset.partition(":")
        cluster = cluster_preset(name, whole("--preset", nodes, least=1, most=100_000) if nodes else PRESET_NODES)
    else:
        cluster = cluster_own()
    if not any(node.gpus for node in cluster.snapshot.nodes):
        raise WorkloadError("no_cards", preset="abc")
    return cluster


# Jobs


def source_last(*, since: datetime, until: datetime, cluster: Cluster | None) -> Source:
    """The installation's own jobs of a period; ``cluster`` None = on its own cards."""
    replay = replay_read(since=since, until=until)
    fields = {"kind": "last", "since": since.isoformat(), "until": until.isoformat()}
    scenario = replay.scenario
    if cluster is not None:
        # Other cards: what ran at the beginning ran on none of them.
        others = replace(cluster.snapshot, now=scenario.cluster.now, mix=scenario.cluster.mix)
        scenario = replace(scenario, cluster=others, ends={}, is_exact=cluster.is_exact)
    elif not any(node.gpus for node in scenario.cluster.nodes):
        raise WorkloadError("no_cards", preset="abc")
    return Source(
        fields=fields,
        scenario=scenario,
        users=replay.users,
        projects=replay.projects,
        notes=replay.notes,
        replay=replay if cluster is None else None,
    )


def source_trace(lines: Iterable[str], *, name: str, cluster: Cluster, limits: bool) -> Source:
    """Jobs of a file, in one of the layouts of docs/simulating.md."""
    workload = workload_read(lines, cluster, limits=limits)
    return _source_of({"kind": "trace", "name": name}, workload, cluster)


def source_made(*, jobs: int, seed: int, cluster: Cluster) -> Source:
    """Made jobs that ask for as much as the cards can do (load 1)."""
    nodes = cluster.snapshot.nodes
    sizes = [gpu.nominal_mib or gpu.total_mib or 0 for node in nodes for gpu in node.gpus]
    arrivals = workload_make(
        jobs=jobs, cards=len(sizes), per_node=max(len(node.gpus) for node in nodes), seed=seed, card_mib=min(size for size in sizes if size)
    )
    users = {item.job.user: f"user-{item.job.user}" for item in arrivals}
    projects = {item.job.project: f"project-{item.job.project}" for item in arrivals}
    return _source_of({"kind": "generated"}, Workload(arrivals=tuple(arrivals), users=users, projects=projects), cluster)


def _source_of(fields: Mapping[str, Any], workload: Workload, cluster: Cluster) -> Source:
    return Source(fields=fields, scenario=scenario_of(workload, cluster), users=workload.users, projects=workload.projects)


# Policies


def policies_of(*, orders: Sequence[str], against: str, strategy: str | None, settings: Sequence[str]) -> list[tuple[str, Policy]]:
    """(name, policy) of each column; the first is the one that the others are compared with.

    ``strategy`` and ``settings`` change the others, not the first. Without ``orders`` they change the current policy.
    """
    current = policy_current()
    found = [(against, current if against == CURRENT else policy_named(current, against))]
    changed = [strategy] if strategy else []
    for order in orders or ([CURRENT] if strategy or settings else []):
        policy = current if order == CURRENT else policy_named(current, order)
        if strategy:
            policy = policy_placing(policy, strategy)
        for setting in settings:
            name, sign, number = setting.partition("=")
            if not sign:
                raise WorkloadError("setting_shape", value=setting[:60])
            policy = policy_set(policy, name.strip(), number)
        column = " ".join([order, *changed, *(setting.replace(" ", "") for setting in settings)])
        if column not in {name for name, _ in found}:
            found.append((column, policy))
    return found


def whole(option: str, text: str, *, least: int, most: int) -> int:
    """A whole number in its range."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise WorkloadError("option_number", option=option, value=text[:60], least=least, most=most)
    return value


def numbers_of(option: str, text: str, *, least: float, most: float, count: int | None = None) -> list[float]:
    """``0.7,0.85,1`` as numbers in their range; ``count`` of them, if told."""
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise WorkloadError("option_number", option=option, value=part.strip()[:60], least=f"{least:g}", most=f"{most:g}")
        found.append(value)
    if count is not None and len(found) != count:
        raise WorkloadError("option_count", option=option, value=text[:60], count=count)
    return found


# The run


def report_of(
    source: Source,
    policies: Sequence[tuple[str, Policy]],
    *,
    loads: Sequence[float],
    seed: int,
    replicas: int,
    watts: tuple[float, float] | None,
    watch: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Simulate each policy at each load. ``watch`` is told which it is at, and how many jobs have come, of how many."""
    scenario, never = impossible_split(source.scenario, policies[0][1])
    if not scenario.arrivals:
        raise WorkloadError("no_jobs")
    found = []
    for load in loads:
        columns = []
        if source.replay is not None and load == 1:
            columns.append(_recorded(source.replay, scenario))
        offered: float | None = None
        for at, (name, policy) in enumerate(policies):
            tell = _told(watch, name if len(loads) == 1 else f"{name} × {load:g}")
            outcome = scenario_run(scenario, policy, load=load, seed=seed, replicas=replicas, watch=tell)
            columns.append(Column(name=name, policy=policy, judged=outcome.judged))
            offered = outcome.offered if at == 0 else offered
        found.append(AtLoad(load=load, offered=offered, columns=tuple(columns), against=policies[0][0]))
    submits = [item.job.submitted for item in scenario.arrivals]
    counted = {"jobs": len(submits), "users": len({item.job.user for item in scenario.arrivals}), "span_s": max(submits) - min(submits)}
    cards = cards_by_node(scenario.cluster)
    return Report(
        source={**source.fields, **counted},
        cluster={"nodes": len(scenario.cluster.nodes), "cards": sum(cards.values())},
        seed=seed,
        replicas=replicas,
        loads=tuple(found),
        users=source.users,
        projects=source.projects,
        notes={**source.notes, **({"never_fits": len(never)} if never else {})},
        watts=watts,
    )


def _told(watch: Callable[[str, int, int], None] | None, name: str) -> Callable[[int, int], None] | None:
    if watch is None:
        return None
    tell = watch
    return lambda came, total: tell(name, came, total)


def _recorded(replay: Replay, scenario: Scenario) -> Column:
    """How it really went, for the jobs that are simulated."""
    kept = {item.job.id for item in scenario.arrivals}
    runs = [*running_before(scenario), *(run for run in replay.recorded if run.job in kept)]
    return Column(name="recorded", policy=None, judged=judge(runs, cards_by_node(scenario.cluster), since=scenario.cluster.now))
