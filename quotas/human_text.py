"""Text that people read: what it may be made of, wherever it comes from.

Control characters move a terminal's cursor and ring its bell; direction marks make a line say something else than it does. Neither is
part of any language's text: Arabic and Hebrew letters, emoji and joined signs are, and pass. Pure.
"""

from __future__ import annotations

import re

#: Control characters but tab and line breaks; marks that turn the direction of text; line and paragraph separators; annotations.
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]")
#: The same in bytes of JSON, as an escape or as it is in UTF-8: most bodies have none, and are not looked through any further.
UNSEEN_JSON = re.compile(rb"\\[ubf]|\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xef\xbf[\xb9-\xbb]")

#: Fields that hold data for programs, whatever is in them: they are shown in a way of their own, or not at all.
DATA_FIELDS = frozenset(
    {
        *("argv", "command", "env", "workdir", "checkpoint", "target"),  # of jobs
        *("value", "secret", "url", "template"),  # of secrets and webhooks
        *("password", "password1", "password2", "oldpassword", "new_password1", "new_password2", "old_password"),
    }
)


def is_seen(text: str) -> bool:
    """Whether a reader sees all that is in the text."""
    return UNSEEN.search(text) is None


def text_shown(text: str) -> str:
    """For what a machine or a directory says, and can't be asked to say differently: what is not seen becomes a sign that is."""
    return UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)
