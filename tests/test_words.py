"""Every word of every page is there in Chinese."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from django.utils.translation.template import templatize

from tests.po import CONTEXT, LOCALE, PLURAL, ROOT, po_read

TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
#: Modules of pages; those of the API are in test_locale.py.
MODULES = [
    *(
        ROOT / "nodes" / f"{name}.py"
        for name in (
            "states",
            "event_words",
            "health_words",
            "health_views",
            "formats",
            "labels",
            "samples_api",
            "views",
            "templatetags/nebula",
        )
    ),
    *(
        ROOT / "quotas" / f"{name}.py"
        for name in ("audit", "audit_api", "audit_read", "audit_views", "secrets", "secrets_api", "secrets_views")
    ),
    *(
        ROOT / "jobs" / f"{name}.py"
        for name in (
            "asks",
            "curves",
            "heat",
            "metrics",
            "notices",
            "overview",
            "pool_pages",
            "sooner",
            "sooner_views",
            "waiting_page",
            "templatetags/asks",
        )
    ),
]
CALLS = {"_": 0, "gettext": 0, "gettext_lazy": 0, "gettext_noop": 0, "ngettext": 1, "pgettext": 2, "pgettext_lazy": 2, "npgettext": 3}


def msgid(name: str, words: list[str]) -> str:
    kind = CALLS[name]
    if kind == 3:
        return CONTEXT.join(words[:1]) + CONTEXT + PLURAL.join(words[1:3])
    return PLURAL.join(words[:2]) if kind == 1 else CONTEXT.join(words[:2]) if kind == 2 else words[0]


def words_of_module(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = getattr(getattr(node, "func", None), "id", "")
        if isinstance(node, ast.Call) and name in CALLS:
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if words:
                found.add(msgid(name, words))
    return found


def words_of_template(path: Path) -> set[str]:
    """As makemessages sees them: templatize() writes the template as calls of gettext."""
    text = templatize(path.read_text(encoding="utf-8"))
    found = set()
    for call in re.finditer(r"\b(_|n?p?gettext)\(((?:\s*u?(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\"\"\".*?\"\"\"),?)+)", text, re.S):
        words = [ast.literal_eval(piece) for piece in re.findall(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", call[2])]
        if words and words[0]:
            found.add(msgid(call[1], words))
    return found


@pytest.fixture(scope="module")
def chinese() -> dict[str, str]:
    return po_read((LOCALE / "zh_Hans" / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_word_of_a_template_is_translated(path: Path, chinese: dict[str, str]) -> None:
    assert {words for words in words_of_template(path) if not chinese.get(words)} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_word_of_a_page_is_translated(path: Path, chinese: dict[str, str]) -> None:
    assert {words for words in words_of_module(path) if not chinese.get(words)} == set()


def test_the_words_of_templates_are_found() -> None:
    # A reader of templates that finds nothing would call every page complete.
    found = words_of_template(ROOT / "templates" / "overview" / "_free.html")
    assert {"Free for you now", f"%(n)s waiting{PLURAL}%(n)s waiting"} <= found
