"""What an agent that starts says in its log of who jobs run as and what they can reach. (`doctor` says it at length: doctor_words.py.)"""

from __future__ import annotations

import logging

from agent.isolation import MASK_VARIABLE, Isolation
from agent.launch import MIN_UID

PROBLEMS = {
    "root_same": 'The agent runs as root with identity = "same", and no job runs as root: set identity to "mapped" or "shared".',
    "not_root": 'Only an agent that runs as root can give jobs accounts of their own: run it as root, or set identity to "same".',
    "job_account_missing": 'identity = "shared" needs job_account: the Unix account that all jobs run as.',
    "job_account_unknown": "There is no Unix account of the name that job_account gives.",
    "job_account_system": f"job_account is an account of the system: jobs run as accounts with a uid of at least {MIN_UID}.",
}


def isolation_lines(isolation: Isolation) -> list[tuple[int, str]]:
    """(level, text) for the log of an agent that starts."""
    info = isolation.info
    if not info.ready:
        return [(logging.ERROR, f"No job can be launched here. {PROBLEMS[info.problem or '']}")]
    who = f"Jobs run as {info.account or f'uid {info.uid}'}" if info.identity != "mapped" else "Each job runs as its owner's account"
    lines = [(logging.INFO, f"{who}; what closes this node's folders to them: {info.sandbox}.")]
    lines += [(logging.WARNING, f"A better sandbox does not work here ({text}).") for text in isolation.finding.refused]
    for paths, whose in ((isolation.places.control_exposed, "control plane's"), (isolation.places.agent_exposed, "agent's")):
        lines += [(logging.WARNING, f"Jobs can reach the {whose} folder {path}: it can't be hidden.") for path in paths]
    if info.open:
        level = logging.INFO if info.isolates_people else logging.WARNING
        lines.append((level, f"Open to jobs: {', '.join(info.open)}."))
    if isolation.masked:
        lines.append((logging.WARNING, f"{MASK_VARIABLE} is set: the sandbox does without {', '.join(isolation.masked)}."))
    return lines
