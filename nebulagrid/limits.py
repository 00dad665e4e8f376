"""What one connection, and all of them together, may take of the web process: NEBULA_WEB_*.

Read while settings are loaded, so nothing of Django is imported. What is wrong is one sentence that names the setting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from django.core.exceptions import ImproperlyConfigured

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Field names are those of the settings. Seconds may be fractions in tests."""

    header_bytes: int = 32 * 1024
    headers: int = 100
    header_s: float = 10
    body_s: float = 20
    body_rate: int = 4096
    idle_s: float = 20
    stall_s: float = 30
    frame_bytes: int = 64 * 1024
    connections: int = 2000
    connections_each: int = 256
    bodies_mib: int = 4096


#: The least and the most of each.
RANGES: dict[str, tuple[int, int]] = {
    "header_bytes": (4096, MIB),
    "headers": (20, 1000),
    "header_s": (1, 600),
    "body_s": (1, 3600),
    "body_rate": (1, 64 * MIB),
    "idle_s": (1, 3600),
    "stall_s": (1, 3600),
    "frame_bytes": (1024, 16 * MIB),
    "connections": (16, 100_000),
    "connections_each": (0, 100_000),
    "bodies_mib": (16, 1_048_576),
}


def limits_from(env_int: Callable[[str, int], int], *, is_proxied: bool) -> Limits:
    """NEBULA_WEB_HEADER_BYTES and so on. Raises ImproperlyConfigured."""
    found: dict[str, int] = {}
    for field in fields(Limits):
        name, default = f"WEB_{field.name.upper()}", int(field.default)  # type: ignore[call-overload]
        if field.name == "connections_each" and is_proxied:
            default = 0
        value, (least, most) = env_int(name, default), RANGES[field.name]
        if not least <= value <= most:
            raise ImproperlyConfigured(f"NEBULA_{name} is {value}; expected {least} to {most}.")
        found[field.name] = value
    return Limits(**found)
