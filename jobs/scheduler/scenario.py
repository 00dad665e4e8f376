"""What a simulation is about: the jobs, the cluster, what ran before; and running it under a policy, a load and a seed.

Deterministic: a scenario, a policy, a load and a seed give the same numbers, digit by digit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobs.scheduler.clusters import Cluster, WorkloadError
from jobs.scheduler.measures import Judged, judge, judged_mean
from jobs.scheduler.never import never_reason
from jobs.scheduler.order import ORDERS
from jobs.scheduler.predict import Finished, History
from jobs.scheduler.runs import Ran, cards_by_node, offered_load, runs_of, weights_at
from jobs.scheduler.score import STRATEGIES
from jobs.scheduler.simulate import Arrival, simulate
from jobs.scheduler.types import Policy, Reason, Snapshot
from jobs.scheduler.workload import Workload

JITTER_S = 600.0  # replicas: each submit is moved by up to this, so that no verdict hangs on one lucky order of arrivals

#: The numbers of a policy that may be set, and the range of each.
SETTABLE: Mapping[str, tuple[float, float]] = {
    "age_fold_s": (1.0, math.inf),
    "borrow_s": (0.0, math.inf),
    "foreign_floor_mib": (0.0, math.inf),
    "half_life_s": (0.0, math.inf),
    "keeps_for_head": (0.0, 1.0),
    "limit_max_s": (1.0, math.inf),
    "load_power": (0.0, 100.0),
    "max_slices": (1.0, math.inf),
    "min_slice_mib": (1.0, math.inf),
    "patience_s": (1.0, math.inf),
    "short_floor_s": (1.0, math.inf),
    "slicing_rules": (0.0, 1.0),
    "trust": (0.0, math.inf),
    "trust_floor_s": (0.0, math.inf),
    "weight_per_card_hour": (0.0, math.inf),
    "weight_per_job": (0.0, math.inf),
    "weight_power": (0.0, 100.0),
    "whole_above": (0.01, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``cluster``: the nodes and what runs at ``cluster.now``, where the period begins; ``ends``: when that will have ended.

    ``earlier``: runs before the period, for past use; ``finished``: those that ended by themselves, in that order, for predictions.
    ``is_exact``: cards have thousandths instead of memory, and the slicing rules are off.
    """

    arrivals: tuple[Arrival, ...]
    cluster: Snapshot
    ends: Mapping[int, float] = field(default_factory=dict)
    earlier: tuple[Ran, ...] = ()
    finished: tuple[Finished, ...] = ()
    is_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``offered``: work that comes ÷ work that the cards can do meanwhile; None = all comes at once."""

    judged: Judged
    offered: float | None


def policy_set(policy: Policy, field_name: str, text: str) -> Policy:
    """The policy with another number. Raises WorkloadError for a field that has none, or a value out of range."""
    limits = SETTABLE.get(field_name)
    if limits is None:
        raise WorkloadError("setting_unknown", field=field_name[:60], known=", ".join(SETTABLE))
    least, most = limits
    try:
        value = {"true": 1.0, "false": 0.0}.get(text.strip().lower()) if text.strip().lower() in ("true", "false") else float(text)
    except ValueError:
        value = math.nan
    kind = type(getattr(policy, field_name))
    is_whole = kind in (int, bool)
    if value is None or not math.isfinite(value) or not least <= value <= most or (is_whole and value != int(value)):
        raise WorkloadError("setting_value", field=field_name, value=text[:60], least=f"{least:g}", most=f"{most:g}")
    return replace(policy, **{field_name: kind(value)})


def policy_named(policy: Policy, order: str) -> Policy:
    """The policy with another order. Raises WorkloadError for one that does not exist."""
    if order not in ORDERS:
        raise WorkloadError("order_unknown", name=order[:60], known=", ".join(ORDERS))
    return replace(policy, order=order)


def policy_placing(policy: Policy, strategy: str) -> Policy:
    """The policy with another strategy. Raises WorkloadError for one that does not exist."""
    if strategy not in STRATEGIES:
        raise WorkloadError("strategy_unknown", name=strategy[:60], known=", ".join(STRATEGIES))
    return replace(policy, strategy=strategy)


def arrivals_scaled(arrivals: Sequence[Arrival], load: float, since: float) -> tuple[Arrival, ...]:
    """``load`` times as many jobs an hour: the times between submits shrink (or grow), runtimes stay. What came before ``since`` stays."""

    def moved(at: float) -> float:
        return at if at <= since else since + (at - since) / load

    return tuple(replace(item, job=replace(item.job, submitted=moved(item.job.submitted))) for item in arrivals)


def arrivals_jittered(arrivals: Sequence[Arrival], seed: int, since: float) -> tuple[Arrival, ...]:
    """Each submit moved by up to ten minutes either way, but not to before ``since``; what came before that stays."""
    rng = random.Random(seed)
    found = []
    for item in arrivals:
        at = item.job.submitted
        shift = rng.uniform(-JITTER_S, JITTER_S)
        found.append(replace(item, job=replace(item.job, submitted=max(at + shift, since) if at > since else at)))
    return tuple(found)


def scenario_run(
    scenario: Scenario,
    policy: Policy,
    *,
    load: float = 1.0,
    seed: int = 0,
    replicas: int = 1,
    watch: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Simulate and judge. One replica: the jobs come when they came; several: jittered by seed, seed + 1 …, and means are told.

    ``watch`` is told how many jobs have come, of how many in all.
    """
    judged: list[Judged] = []
    offered: list[float] = []
    total = len(scenario.arrivals) * replicas
    for number in range(replicas):
        arrivals = arrivals_scaled(scenario.arrivals, load, scenario.cluster.now)
        if replicas > 1:
            arrivals = arrivals_jittered(arrivals, seed + number, scenario.cluster.now)
        outcome = _run(scenario, arrivals, policy, _counted(watch, len(scenario.arrivals) * number, total))
        judged.append(outcome.judged)
        offered += [] if outcome.offered is None else [outcome.offered]
    return Outcome(judged=judged_mean(judged), offered=math.fsum(offered) / len(offered) if offered else None)


def _counted(watch: Callable[[int, int], None] | None, before: int, total: int) -> Callable[[float, int], None] | None:
    if watch is None:
        return None
    tell = watch
    return lambda _now, came: tell(before + came, total)


def _run(scenario: Scenario, arrivals: tuple[Arrival, ...], policy: Policy, watch: Callable[[float, int], None] | None) -> Outcome:
    if scenario.is_exact:
        policy = replace(policy, slicing_rules=False)
    cluster = scenario.cluster
    usage, project_usage = weights_at(scenario.earlier, policy, cluster.now)
    trace = simulate(
        arrivals,
        replace(cluster, usage=usage, project_usage=project_usage),
        policy,
        history=History(scenario.finished),
        ends=scenario.ends,
        watch=watch,
    )
    runs = runs_of(trace, arrivals, cluster, policy)
    cards = cards_by_node(cluster)
    seconds = {arrival.job.id: arrival.seconds for arrival in arrivals}
    offered = offered_load(runs, seconds, sum(cards.values()))
    return Outcome(judged=judge([*running_before(scenario), *runs], cards, since=cluster.now), offered=offered)


def scenario_of(workload: Workload, cluster: Cluster) -> Scenario:
    """A workload from a file on an empty cluster; the period begins with the first submit."""
    first = min(arrival.job.submitted for arrival in workload.arrivals)
    return Scenario(arrivals=workload.arrivals, cluster=replace(cluster.snapshot, now=first), is_exact=cluster.is_exact)


def impossible_split(scenario: Scenario, policy: Policy) -> tuple[Scenario, list[tuple[int, Reason]]]:
    """(the scenario without the jobs that the cluster can never hold, those with the reason): they would wait for ever."""
    if scenario.is_exact:
        policy = replace(policy, slicing_rules=False)
    never = {
        request: never_reason(request, scenario.cluster.nodes, policy)
        for request in dict.fromkeys(item.job.request for item in scenario.arrivals)
    }
    out = [(item.job.id, reason) for item in scenario.arrivals if (reason := never[item.job.request]) is not None]
    kept = tuple(item for item in scenario.arrivals if never[item.job.request] is None)
    return replace(scenario, arrivals=kept), out


def running_before(scenario: Scenario) -> list[Ran]:
    """What ran when the period began: it takes room until it ends, and is not judged."""
    totals = {gpu.id: gpu.total_mib or 0 for node in scenario.cluster.nodes for gpu in node.gpus}
    place = {gpu.id: node.id for node in scenario.cluster.nodes for gpu in node.gpus}
    found = []
    for run in scenario.cluster.running:
        shares = [1.0 if part.exclusive or not totals.get(part.gpu) else part.mib / totals[part.gpu] for part in run.slices]
        found.append(
            Ran(
                job=run.job,
                user=run.user,
                project=run.project,
                submitted=run.started,
                start=run.started,
                end=scenario.ends[run.job],
                cards=math.fsum(shares),
                nodes=tuple(sorted({place[part.gpu] for part in run.slices if part.gpu in place} | set(run.nodes))),
                is_judged=False,
            )
        )
    return found
