"""docs/*.md as pages: what nebulagrid/docs_views.py shows and what the search looks through, from the folder that the server runs from.

Raw HTML in a page is shown as text; links between pages lead to their addresses here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.urls import reverse

NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
#: For people who run jobs first, then for those who run the pool; pages that are not named come last.
ORDER = (
    *("cli", "sdk", "lifecycle", "scheduling", "secrets", "quotas", "portal", "ci", "api"),
    *("install", "operations", "settings", "agent", "hardware", "health", "alerts", "telemetry", "audit", "security", "simulating"),
    *("architecture", "glossary"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with the text below it, up to the next one. ``anchor`` as on the page."""

    title: str
    anchor: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocPage:
    name: str
    title: str
    sections: tuple[Section, ...]


def page_names(folder: Path) -> list[str]:
    found = [path.stem for path in folder.glob("*.md") if NAME.fullmatch(path.stem)]
    return sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def page_read(folder: Path, name: str) -> DocPage | None:
    """None where there is no such page."""
    text = _text(folder, name)
    return None if text is None else _parsed(name, text)


def page_html(folder: Path, name: str) -> str | None:
    """The page's HTML, made anew when the file changed; None where there is no such page."""
    text = _text(folder, name)
    return None if text is None else _rendered(text, frozenset(page_names(folder)))


def pages_search(folder: Path, words: str, *, most: int) -> list[tuple[DocPage, Section]]:
    """Sections that have all the words, those with all in their titles first."""
    wanted = words.lower().split()
    found = []
    for place, name in enumerate(page_names(folder)):
        page = page_read(folder, name)
        for number, section in enumerate(page.sections if page is not None and wanted else ()):
            title = f"{section.title} {page.title if page is not None and number == 0 else ''}".lower()
            if all(word in title or word in section.text.lower() for word in wanted):
                found.append(((not all(word in title for word in wanted), place, number), page, section))
    return [(page, section) for _key, page, section in sorted(found, key=lambda row: row[0])[:most] if page is not None]


def anchor_of(title: str) -> str:
    """As GitHub makes it: ``What a job finds in its environment`` → ``what-a-job-finds-in-its-environment``."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def _text(folder: Path, name: str) -> str | None:
    if not NAME.fullmatch(name):
        return None
    try:
        return (folder / f"{name}.md").read_text(encoding="utf-8")
    except OSError:
        return None


@lru_cache(maxsize=64)
def _parsed(name: str, text: str) -> DocPage:
    sections: list[tuple[str, list[str]]] = [("", [])]
    is_code = False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        heading = None if is_code else re.fullmatch(r"#{1,4} (.+)", line)
        if heading is not None:
            sections.append((heading[1].replace("`", ""), []))
        else:
            sections[-1][1].append(line)
    found = tuple(Section(title=title, anchor=anchor_of(title), text="\n".join(lines)) for title, lines in sections if title)
    return DocPage(name=name, title=found[0].title if found else name, sections=found)


@lru_cache(maxsize=64)
def _rendered(text: str, names: frozenset[str]) -> str:
    # Here and not above: a process that shows no such page does without it.
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor_of(_plain(tokens[number + 1].children or ())))
        elif token.type == "table_open":
            token.attrSet("class", "table")
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _href(str(child.attrGet("href") or ""), names))
            elif child.type == "image":  # pictures of docs/ are not served
                child.type, child.tag, child.content = "text", "", _plain(child.children or ()) or child.content
    return str(parser.renderer.render(tokens, parser.options, {}))


def _plain(tokens: Sequence[Any]) -> str:
    return "".join(token.content for token in tokens if token.type in ("text", "code_inline"))


def _href(href: str, names: frozenset[str]) -> str:
    """A link between pages becomes the address here; one to a file that is not served, the page's own top."""
    target, hash_sign, anchor = href.partition("#")
    if not target or re.match(r"https?://", target):
        return href
    name = target.removesuffix(".md")
    return f"{reverse('docs-page', args=[name])}{hash_sign}{anchor}" if target.endswith(".md") and name in names else "#"
