"""Links into the submit form: each one fills in what it promises."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.test import Client

from jobs.submit_views import LINKED
from nodes import telemetry
from tests.factories import gpu_make, job_make, node_make, user_make

ROOT = Path(__file__).parents[2]
#: Parameters of the form's address that fill no field.
OTHERS = {"from", "instead"}
#: A link that a template writes: {{ new_url }}?name=… or {% url 'job-new' %}?name=…
WRITTEN = re.compile(r"(?:new_url \}\}|url 'job-new' %\})\?([^\"\s>]*)")
FIELD = r'<(?:input|select)[^>]*name="%s"[^>]*>'


def links_of(html: str) -> list[str]:
    return [unescape(found) for found in re.findall(r'href="(/jobs/new/\?[^"]*)"', html)]


def test_templates_name_only_what_the_form_takes() -> None:
    names: dict[str, str] = {}
    for path in sorted((ROOT / "templates").rglob("*.html")):
        for query in WRITTEN.findall(path.read_text(encoding="utf-8")):
            names |= {part.partition("=")[0]: path.name for part in query.replace("&amp;", "&").split("&") if "=" in part}
    assert {"gpu_mem", "from"} <= set(names)
    assert set(names) - set(LINKED) - OTHERS == set()


@pytest.mark.django_db
def test_a_size_on_the_overview_opens_the_form_with_that_memory(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "nodes_statuses", lambda node_ids, *, now=None: {})
    monkeypatch.setattr(telemetry, "nodes_last_seen", dict)
    monkeypatch.setattr(telemetry, "is_away", lambda: False)
    gpu_make(node_make("node01"))
    client.force_login(user_make())
    links = links_of(client.get("/").content.decode())
    assert len(links) == 7
    for link in links:
        form = client.get(link).content.decode()
        for name, value in parse_qsl(urlsplit(link).query):
            if name == "gpu_mem":
                field = re.search(FIELD % name, form)
                assert field is not None
                assert f'value="{value}"' in field.group(), link


@pytest.mark.django_db
def test_the_links_of_a_jobs_page_fill_the_form_from_it(client: Client) -> None:
    user = user_make()
    job = job_make(user, state="FAILED", name="resnet-50", gpu_mem_mib=8192)
    client.force_login(user)
    links = links_of(client.get(f"/jobs/{job.pk}/").content.decode())
    assert links
    for link in links:
        assert 'value="resnet-50"' in client.get(link).content.decode(), link
