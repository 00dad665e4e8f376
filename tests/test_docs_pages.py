"""The documentation as pages, the search, and pages that say what went wrong: they look like the rest and know the way out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from nebulagrid import handbook
from quotas.models import User
from tests.factories import gpu_make, job_make, node_make, project_make, user_make
from tests.rest import no_redis  # noqa: F401

DOCS = Path(__file__).parents[1] / "docs"


def signed_in(user: User | None = None) -> Client:
    client = Client()
    client.force_login(user or user_make())
    return client


# --- documentation ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_every_page_of_the_documentation_is_served_and_every_link_leads_somewhere() -> None:
    client = signed_in()
    names = handbook.page_names(DOCS)
    assert {"cli", "api", "settings", "agent"} <= set(names)
    anchors: dict[str, set[str]] = {}
    links: list[tuple[str, str, str]] = []
    for name in names:
        answer = client.get(f"/docs/{name}/")
        assert answer.status_code == 200, name
        html = answer.content.decode()
        body = html[html.index("<article") : html.index("</article>")]
        anchors[name] = set(re.findall(r' id="([^"]+)"', body))
        links += [(name, target, anchor) for target, anchor in re.findall(r'href="(?:/docs/([\w-]+)/)?#([^"]*)"', body) if target or anchor]
    gone = {(name, target, anchor) for name, target, anchor in links if anchor and anchor not in anchors[target or name]}
    assert gone == set()
    assert len(links) > 15


def test_what_a_page_says_is_text_and_not_markup(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# A <b>title</b>\n\n<script>x</script> [x](javascript:alert(1)) ![p](p.png)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    html = handbook.page_html(tmp_path, "a")
    assert html is not None
    assert "<script>" not in html
    assert "javascript:" not in html.replace("[x](javascript:alert(1))", "")
    assert "<img" not in html
    assert '<table class="table">' in html


@pytest.mark.parametrize("name", ["../settings", "nowhere", "a/b", "CLI", ""])
def test_a_page_that_is_none_is_none(name: str) -> None:
    assert handbook.page_html(DOCS, name) is None
    assert handbook.page_read(DOCS, name) is None


def test_a_search_finds_sections_titles_first() -> None:
    found = handbook.pages_search(DOCS, "exit codes", most=5)
    assert (found[0][0].name, found[0][1].title) == ("cli", "Exit codes")
    assert handbook.pages_search(DOCS, "zyzzyva", most=5) == []
    assert handbook.pages_search(DOCS, "  ", most=5) == []


def test_headings_in_code_are_no_sections(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\n```sh\n# not a heading\n```\n\n## B `c`\n")
    page = handbook.page_read(tmp_path, "a")
    assert page is not None
    assert [(section.title, section.anchor) for section in page.sections] == [("A", "a"), ("B c", "b-c")]


@pytest.mark.django_db
def test_the_documentation_is_linked_on_every_page() -> None:
    client = signed_in()
    for path in ("/", "/jobs/", "/docs/"):
        assert 'href="/docs/"' in client.get(path).content.decode(), path


# --- search ----------------------------------------------------------------------------------------------------------


class World:
    def __init__(self) -> None:
        self.lin, self.boss = user_make("lin@lab.example"), user_make("boss@lab.example", is_staff=True, is_superuser=True)
        node = node_make("orion01", hostname="orion01.lab")
        gpu_make(node, index=0, uuid="GPU-feedbeef-1", model="NVIDIA GeForce RTX 4090")
        project_make("orion-lab", members=(self.lin,))
        project_make("orion-secret")
        self.mine = job_make(self.lin, name="orion-train")
        self.other = job_make(user_make("orion.jones@lab.example"), name="orion-hidden")


@pytest.fixture
def world(db: Any) -> World:
    return World()


def hits(client: Client, text: str) -> list[str]:
    html = client.get("/search/", {"q": text}).content.decode()
    return re.findall(r'class="name"[^>]*href="(/[^"]*)"', html[html.index('id="main"') :])


def test_one_search_finds_jobs_nodes_cards_projects_and_documentation(world: World) -> None:
    client = signed_in(world.lin)
    assert hits(client, "orion") == [f"/jobs/{world.mine.pk}/", "/nodes/orion01/", "/projects/orion-lab/"]
    assert hits(client, "feedbeef") == ["/nodes/orion01/gpu0/"]
    assert hits(client, "orion01 gpu0") == hits(client, "ORION01:0") == ["/nodes/orion01/gpu0/"]
    assert "/docs/cli/#exit-codes" in hits(client, "exit codes")
    assert "Nothing has this in its name." in client.get("/search/", {"q": "zyzzyva"}).content.decode()


def test_what_one_may_not_see_is_not_found(world: World) -> None:
    found = hits(signed_in(world.lin), "orion")
    assert f"/jobs/{world.other.pk}/" not in found
    assert not any("/admin/" in path or "secret" in path for path in found)
    staff = hits(signed_in(world.boss), "orion")
    assert {f"/jobs/{world.other.pk}/", "/projects/orion-secret/", f"/admin/quotas/user/{world.other.owner_id}/change/"} <= set(staff)


def test_a_number_leads_straight_to_its_job(world: World) -> None:
    client = signed_in(world.lin)
    for text in (f"#{world.mine.pk}", str(world.mine.pk)):
        answer = client.get("/search/", {"q": text})
        assert (answer.status_code, answer["Location"]) == (302, f"/jobs/{world.mine.pk}/")
    assert client.get("/search/", {"q": f"#{world.other.pk}"}).status_code == 200


@pytest.mark.parametrize("text", ["", " ", "%", "'\"<script>", "x" * 5000, "9" * 30, "\u202e"])
def test_any_text_can_be_searched_for(world: World, text: str) -> None:
    answer = signed_in(world.lin).get("/search/", {"q": text})
    assert answer.status_code == 200
    assert "<script>x" not in answer.content.decode()


# --- what went wrong --------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "status"), [("/nodes/nowhere/", 404), ("/jobs/999999/", 404), ("/no/such/page/", 404), ("/audit/", 403)])
def test_a_page_that_is_not_there_looks_like_the_others_and_leads_out(path: str, status: int) -> None:
    answer = signed_in().get(path, headers={"Referer": "http://testserver/jobs/?state=FAILED"})
    html = answer.content.decode()
    assert answer.status_code == status
    assert 'id="nav"' in html  # the same navigation
    assert "gate-form" not in html
    assert '<a class="btn primary" href="/">' in html
    assert 'href="/jobs/?state=FAILED"' in html


@pytest.mark.django_db
@pytest.mark.parametrize(
    "referer", ["http://evil.example/x", "javascript:alert(1)", "http://testserver/nodes/nowhere/", "", "//evil.example/"]
)
def test_only_a_page_of_ours_is_gone_back_to(referer: str) -> None:
    html = signed_in().get("/nodes/nowhere/", headers={"Referer": referer}).content.decode()
    assert "Back to where you were" not in html


@pytest.mark.django_db
def test_who_is_not_signed_in_is_led_to_sign_in() -> None:
    html = Client().get("/no/such/page/").content.decode()
    assert "gate-form" in html
    assert 'href="/accounts/login/"' in html


@pytest.mark.django_db
def test_a_failure_looks_like_the_product_without_asking_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("bug")

    client = signed_in()
    client.raise_request_exception = False
    monkeypatch.setattr("jobs.overview._pieces", bug)
    answer = client.get("/")
    html = answer.content.decode()
    assert answer.status_code == 500
    assert "css/tokens" in html
    assert "css/base" in html
    assert "Try again" in html
    assert 'href="/"' in html
    assert "bug" not in html


@pytest.mark.django_db
def test_on_a_telephone_the_preview_stands_before_submit() -> None:
    html = signed_in().get("/jobs/new/").content.decode()
    assert html.index('id="command"') < html.index('id="verdict"') < html.index("Submit job")
