"""The Chinese words are there, say the same numbers, and are compiled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from gettext import GNUTranslations
from io import BytesIO
from pathlib import Path

import pytest
from django.contrib import admin
from django.utils import translation
from django.utils.functional import Promise
from django.utils.translation import trans_real

from tests.po import CONTEXT, LOCALE, PLURAL, ROOT, mo_bytes, po_read

CATALOGUES = sorted(LOCALE.rglob("*.po"))
CALLS = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "pgettext"}
#: Where sentences for people come from. Names of models and fields in the admin have a test of their own.
SOURCES = [
    *sorted((ROOT / "jobs" / "wording").glob("*.py")),
    *(ROOT / name for name in ("jobs/refusals.py", "jobs/api.py", "jobs/output_api.py", "jobs/parameters.py")),
    *(ROOT / name for name in ("jobs/serializers.py", "nodes/wording.py", "nodes/errors.py", "nodes/serializers.py")),
    *(ROOT / name for name in ("quotas/api.py", "quotas/auth.py", "quotas/errors.py", "quotas/serializers.py")),
    *(ROOT / name for name in ("quotas/account_views.py", "quotas/project_views.py", "quotas/adapters.py")),
    *(ROOT / name for name in ("quotas/notify.py", "quotas/deliver.py", "quotas/webhooks.py")),
    *(
        ROOT / name
        for name in (
            "nodes/alert_metrics.py",
            "nodes/alert_words.py",
            "nodes/alert_views.py",
            "quotas/channels.py",
            "quotas/notice_views.py",
        )
    ),
    *(ROOT / name for name in ("nebulagrid/api.py", "nebulagrid/gate.py", "nebulagrid/wire.py")),
]


def words_of(path: Path) -> set[str]:
    """The msgids that a module asks for, as a catalogue has them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = getattr(getattr(node, "func", None), "id", "")
        if isinstance(node, ast.Call) and name in CALLS and node.args:
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if name == "pgettext":
                found.add(CONTEXT.join(words[:2]))
            elif name == "ngettext":
                found.add(PLURAL.join(words[:2]))
            elif words:
                found.add(words[0])
    return found


def numbers_of(text: str) -> set[str]:
    return set(re.findall(r"%\((\w+)\)|(?<!%)\{(\w+)\}", text))


def words_in(compiled: bytes) -> dict[object, str]:
    """The pairs of a .mo file, without its header."""
    found = dict(GNUTranslations(BytesIO(compiled))._catalog)  # type: ignore[attr-defined]
    found.pop("", None)
    return found


@pytest.fixture(scope="module")
def chinese() -> dict[str, str]:
    return po_read((LOCALE / "zh_Hans" / "LC_MESSAGES" / "django.po").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_sentence_for_people_is_translated(path: Path, chinese: dict[str, str]) -> None:
    assert {words for words in words_of(path) if not chinese.get(words)} == set()


def test_the_administration_has_names_for_all_that_it_shows(chinese: dict[str, str]) -> None:
    missing = set()
    for model in admin.site._registry:
        meta = model._meta
        if meta.app_label not in {"jobs", "nodes", "quotas"}:
            continue
        names = [meta.verbose_name, meta.verbose_name_plural] if isinstance(meta.verbose_name, Promise) else []
        names += [field.verbose_name for field in meta.fields] + [field.help_text for field in meta.fields]
        with translation.override("zh-hans"):
            missing |= {str(name) for name in names if isinstance(name, Promise) and str(name) not in chinese.values()}
    # Django's own words come from its own catalogue.
    assert {name for name in missing if name.isascii()} == set()


def test_a_translation_has_no_number_that_its_source_lacks(chinese: dict[str, str]) -> None:
    odd = [key for key, value in chinese.items() if key and not numbers_of(value) <= numbers_of(key)]
    assert odd == []


def test_a_translation_leaves_no_number_out(chinese: dict[str, str]) -> None:
    # Of a plural's two sources either may be the one that it follows.
    odd = [key for key, value in chinese.items() if key and value and not numbers_of(key.split(PLURAL)[0]) <= numbers_of(value)]
    assert odd == []


#: A western sign at the end of a Chinese word, where a sentence ends or goes on.
WESTERN_STOP = re.compile(r"[\u4e00-\u9fff）」”][.,;!?](?=\s|$)")
COMMAND_LINE = ROOT / "client" / "locale" / "zh_CN" / "LC_MESSAGES" / "nebula.po"
OURS = [LOCALE / "zh_Hans" / "LC_MESSAGES" / "django.po", COMMAND_LINE]


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_a_sentence_ends_with_a_chinese_stop(path: Path) -> None:
    pairs = po_read(path.read_text(encoding="utf-8")).items()
    endless = [
        key
        for key, value in pairs
        if key.split(PLURAL)[0].rstrip().endswith((".", "!", "?"))
        and re.search("[\u4e00-\u9fff]", value)
        and not value.split(PLURAL)[0].rstrip().endswith(("。", "！", "？", "…", "：", "”", "）"))
    ]
    assert endless == []


def test_no_chinese_word_has_a_western_stop_whoever_wrote_it() -> None:
    """All catalogues together, as Django reads them: what a package got wrong is put right in ours."""
    catalogue = trans_real.translation("zh-hans")._catalog  # type: ignore[attr-defined]
    texts = {str(catalogue[key]) for key in {key for key, _text in catalogue.items()}}
    texts |= set(po_read(COMMAND_LINE.read_text(encoding="utf-8")).values())
    assert len(texts) > 2000
    assert {text for text in texts if WESTERN_STOP.search(text)} == set()


def test_the_administration_speaks_chinese_in_the_plural_too() -> None:
    with translation.override("zh-hans"):
        names = {
            str(name)
            for model in admin.site._registry
            if model._meta.app_label in {"jobs", "nodes", "quotas"}
            for name in (model._meta.verbose_name, model._meta.verbose_name_plural)
        }
    assert {name for name in names if not re.search("[\u4e00-\u9fff]", name)} <= {"rank"}  # a word of the trade (docs/glossary.md)


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.parts[-3])
def test_the_compiled_catalogue_is_up_to_date(path: Path) -> None:
    # What is read counts, not the bytes: msgfmt adds a table of hashes that tests.po leaves out.
    compiled = path.with_suffix(".mo")
    wanted = mo_bytes(po_read(path.read_text(encoding="utf-8")))
    assert words_in(compiled.read_bytes()) == words_in(wanted), f"{compiled} is old; run: python -m tests.po"


def test_the_compiler_writes_what_gettext_reads() -> None:
    text = 'msgid ""\nmsgstr "Plural-Forms: nplurals=1; plural=0;\\n"\n\n'
    text += 'msgid "a"\nmsgstr ""\n"x\\"y"\n\nmsgctxt "c"\nmsgid "a"\nmsgstr "z"\n\n'
    text += 'msgid "one"\nmsgid_plural "many"\nmsgstr[0] "n"\n'
    words = GNUTranslations(BytesIO(mo_bytes(po_read(text))))
    assert (words.gettext("a"), words.pgettext("c", "a"), words.ngettext("one", "many", 5)) == ('x"y', "z", "n")


def _at_import(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that translate while their module is imported, in whatever language that happens in."""
    eager = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "django.utils.translation"
        for alias in node.names
        if alias.name in ("gettext", "ngettext", "pgettext", "npgettext")
    }

    def look(node: ast.AST) -> Iterator[ast.Call]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Lambda):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                # Its body runs later; its defaults and decorators don't.
                for early in (*child.decorator_list, *child.args.defaults, *filter(None, child.args.kw_defaults)):
                    yield from look(ast.Expression(early))
                continue
            if isinstance(child, ast.Call) and getattr(child.func, "id", "") in eager:
                yield child
            yield from look(child)

    return look(tree)


def test_nothing_is_translated_at_import() -> None:
    eager = ast.parse('from django.utils.translation import gettext as _\nclass A:\n    said = {"x": _("word")}\n')
    assert len(list(_at_import(eager))) == 1
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for room in ("jobs", "nodes", "quotas", "nebulagrid")
        for path in sorted((ROOT / room).rglob("*.py"))
        for call in _at_import(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
