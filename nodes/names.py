"""Names of nodes: one word, or several joined by dots as host names have them (``gpu01``, ``gpu01.lab.example.org``)."""

from __future__ import annotations

from django.core.validators import RegexValidator
from django.urls import register_converter
from django.utils.text import slugify
from django.utils.translation import gettext_lazy as _

NAME_MOST = 63
_WORD = "[-a-zA-Z0-9_]+"
NAME = rf"{_WORD}(?:\.{_WORD})*"
node_name_validate = RegexValidator(
    rf"\A{NAME}\Z",
    _("A node's name has letters, digits, - and _, in words joined by dots: gpu01 or gpu01.lab.example.org."),
    code="node_name",
)


class NodeNameConverter:
    """``<node:name>`` in addresses of pages."""

    regex = NAME

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


register_converter(NodeNameConverter, "node")


def name_of_host(text: str) -> str:
    """What a machine calls itself → a node name: ``gpu-3.lab.example`` → ``gpu-3``."""
    return slugify(text.split(".")[0])[:NAME_MOST].strip("-_") or "node"


def name_given(text: str) -> str:
    """What an admin calls a node, with its dots: ``GPU01.lab.example.`` → ``gpu01.lab.example``."""
    words = [slugify(word).strip("-_") for word in text.split(".")]
    return ".".join(word for word in words if word)[:NAME_MOST].strip("-_.") or "node"
