"""Reads .po files and writes .mo files with the standard library alone: gettext's tools are not on every machine.

``python -m tests.po`` compiles every catalogue of the pages and the API anew.
"""

from __future__ import annotations

import ast
import re
import struct
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCALE = ROOT / "nebulagrid" / "locale"
CONTEXT, PLURAL = "\x04", "\x00"  # as in .mo files

#: msgid (with its context in front, its plural behind) → translation (plural forms joined by NUL)
Catalogue = dict[str, str]


def po_read(text: str) -> Catalogue:
    """Raises ValueError for a line that is none of a .po file's."""
    found: Catalogue = {}
    entry: dict[str, str] = {}
    field = ""

    def close() -> None:
        if "msgid" in entry and any(key.startswith("msgstr") for key in entry):
            key = entry["msgid"]
            if "msgctxt" in entry:
                key = entry["msgctxt"] + CONTEXT + key
            if "msgid_plural" in entry:
                key += PLURAL + entry["msgid_plural"]
            found[key] = PLURAL.join(entry[name] for name in sorted(entry) if name.startswith("msgstr"))
        entry.clear()

    for line in (*text.splitlines(), ""):
        line = line.strip()
        if not line:
            close()
        elif line.startswith("#"):
            continue
        elif line.startswith('"'):
            entry[field] += ast.literal_eval(line)
        elif match := re.fullmatch(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?) (".*")', line):
            field = match[1]
            if field in {"msgctxt", "msgid"} and "msgstr" in "".join(entry):
                close()
            entry[field] = ast.literal_eval(match[2])
        else:
            raise ValueError(f"not a line of a .po file: {line[:80]}")
    return found


def mo_bytes(catalogue: Catalogue) -> bytes:
    """The catalogue as gettext reads it; what has no translation is left out."""
    pairs = sorted((key, value) for key, value in catalogue.items() if value)
    keys = [key.encode() for key, _ in pairs]
    values = [value.encode() for _, value in pairs]
    count, offset = len(pairs), 28 + 16 * len(pairs)
    tables: list[int] = []
    blob = b""
    for texts in (keys, values):
        for text in texts:
            tables += [len(text), offset + len(blob)]
            blob += text + b"\0"
    return (
        struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 28 + 16 * count) + struct.pack(f"<{len(tables)}I", *tables) + blob
    )


def compile_all() -> None:
    for path in LOCALE.rglob("*.po"):
        path.with_suffix(".mo").write_bytes(mo_bytes(po_read(path.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    compile_all()
