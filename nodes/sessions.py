"""Which agent speaks for a node: the one of before after a restart, or somebody else. Pure; no clock, no rows.

An agent has a session for each of its starts. With the first sync of a session it sends the hash of a secret that it keeps in its
store, and the secrets of its earlier sessions. Who knows the secret of the node's present session has that agent's store, and is its
successor: a restart is taken at once. Whoever comes without it, with a copied configuration and credential say, has to wait until
the agent of before is silent, and until somebody has looked at the machine if jobs of ours may still run there: a second agent that
is believed would have the same jobs run twice, or have them called dead while they run.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

#: Of a sync; an agent keeps fewer.
PROOFS_MOST = 8


class Verdict(StrEnum):
    TAKE = "take"
    TAKE_UNPROVEN = "take_unproven"  # it may be another machine; staff are told
    BUSY = "session_busy"  # the agent of before is at work: come again
    UNCONFIRMED = "session_unconfirmed"  # it is silent, but jobs may still run there: somebody has to look


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The node's present session. ``silent_s`` None = nobody knows when it was heard of; ``holds_jobs``: something of ours may run."""

    boot_id: str
    proof_sha256: str  # "" = of an agent that can't prove anything (an older version)
    silent_s: float | None
    holds_jobs: bool


def proof_sha256(proof: str) -> str:
    return hashlib.sha256(proof.encode()).hexdigest()


def session_judge(known: Known, *, boot_id: str, proofs: Sequence[str], is_confirmed: bool, unknown_after_s: float) -> Verdict:
    """What becomes of a new session of a node that has one."""
    if is_confirmed:
        return Verdict.TAKE
    is_proven = known.proof_sha256 != "" and any(
        hmac.compare_digest(proof_sha256(proof), known.proof_sha256) for proof in proofs[:PROOFS_MOST]
    )
    # A machine that was started anew has been silent for a moment. One that has not, and has a copy of the store, is a copied machine.
    if is_proven and (boot_id == known.boot_id or not known.holds_jobs):
        return Verdict.TAKE
    if known.silent_s is not None and known.silent_s < unknown_after_s:
        return Verdict.BUSY
    if is_proven or known.proof_sha256 == "":
        return Verdict.TAKE
    return Verdict.UNCONFIRMED if known.holds_jobs else Verdict.TAKE_UNPROVEN
