"""Secrets between quotas and ranks: which ones a job gets, their values on the way to a node, and what masks its output."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.utils import timezone

from agent.protocol import CommandResult, SecretRef
from jobs.models import Job, Rank
from jobs.parsing import secret_split
from nodes.models import AgentCommand, Node
from quotas.masking import Masks
from quotas.secret_masks import masks_for
from quotas.secrets import KeyMissing, secret_values, secrets_find

log = logging.getLogger(__name__)


def refs_find(texts: Sequence[str], *, owner: int, project: int) -> tuple[SecretRef, ...]:
    """What a job of this owner and project asks for, as it is now. At most two queries. A secret that is nobody's gets number 0, and so
    does a project's where the owner may not submit any more: who was taken out gets no value, whatever of his still waits."""
    asked = [secret_split(text) for text in texts]
    of_both = secrets_find(user=owner, project=project, names={name for name, _, of_project in asked if not of_project})
    of_it = secrets_find(user=owner, project=project, names={name for name, _, of_project in asked if of_project}, of_project=True)
    found = {False: of_both, True: of_it}
    return tuple(SecretRef(name=name, env=variable, id=found[of_project].get(name, 0)) for name, variable, of_project in asked)


def secret_refs(job: Job) -> tuple[SecretRef, ...]:
    """``refs_find`` of a job. What is gone meanwhile has number 0: the node says so."""
    return refs_find(job.secrets or (), owner=job.owner_id, project=job.project_id)


def _ids(spec: Mapping[str, Any] | None) -> tuple[int, ...]:
    return tuple(sorted({int(ref.get("id", 0)) for ref in (spec or {}).get("secrets", ())} - {0}))


def values_for(specs: Mapping[int, Any]) -> dict[int, dict[str, str]]:
    """Rank → name → value, for ranks whose spec is on its way. No query where no spec names a secret.

    What can't be opened is left out, so that the rank fails with a sentence; the other ranks of the node must not wait for it.
    """
    wanted = {rank: spec["secrets"] for rank, spec in specs.items() if spec.get("secrets")}
    if not wanted:
        return {}
    ids, now = {ref.get("id", 0) for refs in wanted.values() for ref in refs}, timezone.now()
    try:
        values = secret_values(ids, now=now)
    except KeyMissing as error:
        log.error("secrets of ranks %s can't be given out: %s", sorted(wanted), error.__doc__)
        values = {}
        for number in ids:  # one that can't be opened is nobody else's trouble
            with contextlib.suppress(KeyMissing):
                values |= secret_values([number], now=now)
    return {rank: {ref["name"]: values[ref["id"]] for ref in refs if ref.get("id") in values} for rank, refs in wanted.items()}


def masks_of(spec: Mapping[str, Any] | None) -> Masks | None:
    """What masks the output of a rank with this spec; None = nothing. Raises KeyMissing."""
    ids = _ids(spec)
    return masks_for(ids) if ids else None


def results_masked(node: Node, results: Sequence[CommandResult]) -> tuple[CommandResult, ...]:
    """Answers of a node, with the secrets of the rank whose output a ``tail`` brought masked. One query where there are answers."""
    cids = [result.cid for result in results if 0 < result.cid < 2**63]
    tails = dict(AgentCommand.objects.filter(pk__in=cids, node=node, verb="tail").values_list("pk", "args"))
    if not tails:
        return tuple(results)
    keys = {cid: str(args.get("rank", "")) for cid, args in tails.items()}
    specs = dict(Rank.objects.filter(key__in=keys.values(), node=node).values_list("key", "spec"))
    found: list[CommandResult] = []
    for result in results:
        try:
            masks = masks_of(specs.get(keys.get(result.cid, "")))
            found.append(result if masks is None else replace(result, text=masks.text(result.text)))
        except KeyMissing:
            found.append(replace(result, text="The output can't be shown: the key of the secrets is missing."))
    return tuple(found)


def ids_in_use() -> set[int]:
    """The secrets that ranks of today may still print. One query, of those ranks alone."""
    return {number for spec in Rank.objects.filter(is_forgotten=False).values_list("spec", flat=True) for number in _ids(spec)}
