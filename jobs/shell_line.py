"""What was typed into the form, as a line for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from jobs.clone import env_is_secret
from jobs.parsing import Unreadable, command_split

#: The API's field → the option.
_OPTIONS = (
    *(("name", "--name"), ("gpu_count", "--gpu-count"), ("gpu_mem", "--gpu-mem"), ("nodes", "--nodes"), ("time", "--time")),
    *(("cpus", "--cpus"), ("host_mem", "--mem"), ("project", "--project"), ("workdir", "--workdir"), ("checkpoint", "--checkpoint")),
    *(("grace_s", "--grace"), ("queue", "--queue"), ("qos", "--qos"), ("priority", "--priority"), ("on_node_loss", "--on-node-loss")),
)


def command_line(body: Mapping[str, Any]) -> str:
    """The ``nebula-ctl submit`` line of a body, to paste into a shell. Secrets are named, and taken from that shell."""
    words = ["nebula-ctl", "submit"]
    for field, option in _OPTIONS:
        value = body.get(field)
        if value is not None and (field, value) not in {("gpu_count", 1), ("nodes", 1), ("priority", 0), ("on_node_loss", "hold")}:
            text = str(value)
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    for field, value in (body.get("constraints") or {}).items():
        if field == "labels":
            words += [word for key, text in value.items() for word in ("--label", f"{key}={text}")]
        else:
            words += [f"--{field.removesuffix('_min')}", str(value)]
    for name, value in (body.get("env") or {}).items():
        words += ["--env", name if env_is_secret(name, value) else f"{name}={value}"]
    words += [word for text in body.get("secrets") or () for word in ("--secret", text)]
    if body.get("requeue") is False:
        words.append("--no-requeue")
    words += [f"--{field}" for field in ("exclusive", "hold") if body.get(field)]
    return f"{shlex.join(words)} -- {_program(body)}"


def _program(body: Mapping[str, Any]) -> str:
    """Quoted anew where it can be read: a shell would expand what the form takes as it is ($x, *)."""
    if "argv" in body:
        return shlex.join(body["argv"])
    text = str(body.get("command", ""))
    try:
        return shlex.join(command_split(text))
    except Unreadable:
        return text.strip()
