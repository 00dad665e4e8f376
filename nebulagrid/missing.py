"""What a 404 says: which thing there is none of, by the names in the route that answered."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

_PART = re.compile(r"(?P<word>[\w-]+)/?<(?:\w+:)?(?P<name>\w+)>|(?P<stuck>[a-z]+)<(?:\w+:)?(?P<stuck_name>\w+)>")
NAME_MOST = 80

#: Word of the route before a name → sentence. What somebody may not see does not exist for them, and nothing here tells the two apart.
SAYS = {
    "nodes": gettext_lazy("There is no node %(name)s."),
    "gpus": gettext_lazy("There is no card %(name)s."),
    "gpu": gettext_lazy("There is no card gpu%(name)s on this node."),
    "incidents": gettext_lazy("There is no incident %(name)s."),
    "jobs": gettext_lazy("There is no job %(name)s that you may see."),
    "alerts": gettext_lazy("There is no alert %(name)s."),
    "mutes": gettext_lazy("There is no mute %(name)s."),
    "projects": gettext_lazy("There is no project %(name)s that you may see."),
    "commands": gettext_lazy("There is no command %(name)s of this node."),
    "tokens": gettext_lazy("There is no token %(name)s."),
    "secrets": gettext_lazy("There is no secret %(name)s."),
    "requests": gettext_lazy("There is no request %(name)s."),
    "notices": gettext_lazy("There is no notice %(name)s."),
    "channels": gettext_lazy("There is no way %(name)s."),
    "members": gettext_lazy("There is no member %(name)s."),
}


def missing_text(request: HttpRequest | Any) -> str:
    """One sentence. The last thing that the route names is the one that is missing, as far as anybody can tell from outside."""
    match = getattr(request, "resolver_match", None)
    if match is not None:
        for part in reversed(list(_PART.finditer(match.route or ""))):
            word, name = part["word"] or part["stuck"], part["name"] or part["stuck_name"]
            if word in SAYS and name in match.kwargs:
                text = "".join(char if char.isprintable() else "?" for char in str(match.kwargs[name]))
                return str(SAYS[word]) % {"name": text if len(text) <= NAME_MOST else text[:NAME_MOST] + "…"}
    return _("There is nothing at this address.")
