"""The one door for words that a user reads: ``_("…")``. Language: NEBULA_LANG, else LC_ALL, LC_MESSAGES, LANG.

English is the source; ``locale/zh_CN`` holds Simplified Chinese. For English nothing is loaded: start-up time counts.
Variable parts go in by ``.format(...)`` after the look-up, never by an f-string inside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gettext import NullTranslations

LOCALE_DIR = Path(__file__).parent / "locale"
DOMAIN = "nebula"


def language_from(environ: Mapping[str, str]) -> str:
    """``"zh_CN"`` or ``"en"``. Every Chinese locale reads the Simplified catalogue: it is the only one there is."""
    for name in ("NEBULA_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = environ.get(name, "")
        if value:
            return "zh_CN" if value.lower().startswith("zh") else "en"
    return "en"


def catalogue(language: str) -> NullTranslations | None:
    """The translations of ``language``; None for English. A missing file means English, never a crash."""
    if language == "en":
        return None
    import gettext

    return gettext.translation(DOMAIN, localedir=str(LOCALE_DIR), languages=[language], fallback=True)


LANGUAGE = language_from(os.environ)
_catalogue = catalogue(LANGUAGE)


def _(text: str) -> str:
    """``text`` in the reader's language."""
    return text if _catalogue is None else _catalogue.gettext(text)


def labelled(label: str, text: str) -> str:
    """``label: text`` with the reader's colon; the label alone where there is no text."""
    return _("{label}: {text}").format(label=label, text=text) if text else label


def http_language() -> str:
    """Value for Accept-Language: the control plane words its reasons in the reader's language."""
    return "zh-hans" if LANGUAGE == "zh_CN" else "en"
