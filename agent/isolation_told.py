"""``python -m agent.isolation_told CONFIG``: what jobs could reach under an agent with this configuration, as one JSON object.

Asked by `manage.py up`, so that it can say so before the agent has started. Trying the sandbox needs a process of one thread.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agent.config import ConfigError, config_load
from agent.isolation import isolation_find
from agent.isolation_words import PROBLEMS


def main(argv: list[str]) -> int:
    try:
        isolation = isolation_find(config_load(Path(argv[0])))
    except (ConfigError, OSError, ValueError, IndexError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    info = isolation.info
    told = {
        "account": info.account,
        "uid": info.uid,
        "identity": info.identity,
        "sandbox": info.sandbox,
        "open": list(info.open),
        "ready": info.ready,
        "problem": PROBLEMS.get(info.problem or "", info.problem),
        "isolates_people": info.isolates_people,
        "refused": list(isolation.finding.refused),
    }
    print(json.dumps(told))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
