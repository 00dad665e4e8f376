"""For schemathesis (tests/e2e/test_schema.py): ids that exist, and a check that no answer has another's data in it."""

from __future__ import annotations

import os

import schemathesis

FOREIGN = os.environ.get("SCHEMA_FOREIGN", "").split("|")
IDS = [int(text) for text in os.environ.get("SCHEMA_IDS", "1").split(",")]
NAMES = [text for text in os.environ.get("SCHEMA_NAMES", "").split(",") if text]


@schemathesis.hook
def map_path_parameters(context, path_parameters):  # type: ignore[no-untyped-def]
    """Half of the calls are for what is there: guessed ids never are."""
    if not isinstance(path_parameters, dict):
        return path_parameters
    for name in path_parameters:
        if name in ("id", "pk", "user") and hash(str(path_parameters[name])) % 2:
            path_parameters[name] = IDS[hash(str(path_parameters)) % len(IDS)]
        elif name == "name" and NAMES and hash(str(path_parameters[name])) % 2:
            path_parameters[name] = NAMES[hash(str(path_parameters)) % len(NAMES)]
    return path_parameters


@schemathesis.check
def no_foreign_data(ctx, response, case):  # type: ignore[no-untyped-def]
    text = response.content.decode("utf-8", "replace")
    found = [mark for mark in FOREIGN if mark and mark in text]
    assert not found, f"the answer tells {found} of another user"
