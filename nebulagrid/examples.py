"""An example for each operation of the OpenAPI document: real answers of a small lab, kept in api_examples.json.

tests/test_openapi.py asks every route and compares; ``NEBULA_WRITE_EXAMPLES=1 pytest tests/test_openapi.py`` writes the file anew.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("api_examples.json")
PREFIX = "/api/v1/"
#: What the lab can't be asked for as it stands, and what answers alike.
ALIKE = {
    "POST jobs/{id}/hold": "GET jobs/{id}",
    "POST jobs/{id}/release": "GET jobs/{id}",
    "POST jobs/{id}/renew": "GET jobs/{id}",
    "POST incidents/{id}/close": "GET incidents/{id}",
    "POST alerts/{id}/reopen": "GET alerts/{id}",
}
#: For which the lab would have to wait.
BY_HAND: dict[str, Any] = {
    "GET jobs/{id}/alternatives": {
        "status": 200,
        "response": [
            {
                "text": "12 GiB a card instead of 16 GiB",
                "set": {"gpu_mem": "12G", "gpu_mem_mib": None},
                "p50": "2026-03-31T08:00:00Z",
                "p90": "2026-03-31T08:05:00Z",
                "start": "Starts now.",
                "place": "node03 gpu1",
                "command": "nebula-ctl submit --gpu-mem 12G -- true",
            }
        ],
    }
}


@cache
def examples() -> dict[str, Any]:
    """``GET jobs/{id}`` → {"request"?, "status", "response"?}."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found | BY_HAND


def examples_fill(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Postprocessing hook: gives an operation that has none of its own what the lab answered."""
    known = examples()
    for path, methods in result.get("paths", {}).items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path.removeprefix(PREFIX)}"
            found = known.get(ALIKE.get(name, name))
            if found is None:
                continue
            if "request" in found:
                _put(operation.get("requestBody", {}).get("content", {}), found["request"])
            if "response" in found:
                _put(operation["responses"].get(str(found["status"]), {}).get("content", {}), found["response"])
    return result


def _put(content: dict[str, Any], example: Any) -> None:
    for media in content.values():
        if "example" not in media and "examples" not in media:
            media["example"] = example
