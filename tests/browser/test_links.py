"""Links that reach people by mail and by notices, followed to their end in a real browser: by somebody who is not signed in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from bench.live.grid import Grid, wait_for
from tests.browser.conftest import context_new

EMAIL, PASSWORD = "vera@lab.example", "correct horse 2"
MAKE = f"""
from quotas.models import User
from quotas.services import user_create
user = User.objects.filter(email='{EMAIL}').first() or user_create(email='{EMAIL}', password='{PASSWORD}')
user.set_password('{PASSWORD}')
user.save()
"""


def shell(grid: Grid, code: str) -> str:
    return grid.manage("shell", "-v", "0", "-c", code).strip().splitlines()[-1]


@pytest.fixture
def vera(grid: Grid) -> int:
    return int(shell(grid, MAKE + "print(user.pk)"))


@pytest.fixture
def nobody(browser: Browser, grid: Grid) -> Iterator[BrowserContext]:
    """A browser that has never been here."""
    context = context_new(browser, base_url=grid.url, locale="en-GB")
    yield context
    context.close()


def signed_in_at(page: Page, path: str) -> None:
    """The link asks who it is, and leads on to where it points."""
    page.goto(path)
    expect(page).to_have_url(re.compile(r"/accounts/login/\?next="))
    page.fill("#id_login", EMAIL)
    page.fill("#id_password", PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url(lambda url: urlsplit(url).path == path)  # the page to sign in at names it, too, behind its own


@pytest.mark.parametrize(("act", "state"), [("Approve", "approved"), ("Decline", "declined")])
def test_a_quota_request_is_decided_by_the_link_alone(grid: Grid, vera: int, nobody: BrowserContext, act: str, state: str) -> None:
    pk, path = shell(
        grid,
        MAKE + "from quotas.requests import request_make; from quotas.links import link_token; from django.utils import timezone\n"
        "from quotas.models import QuotaRequest\n"
        "QuotaRequest.objects.filter(by=user).exclude(state__in=['approved', 'declined']).update(state='withdrawn')\n"
        "row = request_make(by=user, what='gpu_hours', amount=5, why='A paper is due in three weeks.', now=timezone.now())\n"
        "boss = User.objects.filter(is_superuser=True).order_by('pk')[0]\n"
        "print(row.pk, f'/quota/decide/{link_token(row, boss)}/')",
    ).split()
    page = nobody.new_page()
    page.goto(path)
    expect(page.get_by_text("A paper is due in three weeks.")).to_be_visible()
    page.get_by_role("button", name=act, exact=True).click()
    expect(page.get_by_text("Decided.")).to_be_visible()
    assert shell(grid, f"from quotas.models import QuotaRequest; print(QuotaRequest.objects.get(pk={pk}).state)") == state


def test_a_forgotten_password_is_set_anew_and_signs_in(grid: Grid, vera: int, nobody: BrowserContext) -> None:
    page = nobody.new_page()
    page.goto("/accounts/password/reset/")
    page.fill("input[name=email]", EMAIL)
    page.press("input[name=email]", "Enter")
    page.wait_for_url("**/accounts/password/reset/done/")
    # Without a mail server the mail is in the control plane's output.
    found = wait_for(lambda: re.findall(r"(/accounts/password/reset/key/\S+/)", grid.output.read_text()), what="the mail")
    page.goto(found[-1])
    page.fill("input[name=password1]", "a long new word 7")
    page.fill("input[name=password2]", "a long new word 7")
    page.press("input[name=password2]", "Enter")
    page.wait_for_url(f"{grid.url}/")
    page.goto("/account/")
    expect(page.get_by_text(EMAIL).first).to_be_visible()


def test_an_invitation_leads_to_a_first_password(grid: Grid, nobody: BrowserContext) -> None:
    path = shell(
        grid,
        "from quotas.models import User; from quotas.services import user_create; from quotas.invitations import invitation_url\n"
        "User.objects.filter(email='new@lab.example').update(is_active=False, email='gone@lab.example')\n"
        "user = user_create(email='new@lab.example')\n"
        "user.set_unusable_password(); user.save()\n"
        "print(invitation_url(user))",
    )
    page = nobody.new_page()
    page.goto(path)
    page.fill("input[name=password1]", "a long new word 7")
    page.fill("input[name=password2]", "a long new word 7")
    page.press("input[name=password2]", "Enter")
    page.wait_for_url(f"{grid.url}/")
    page.goto(path)
    expect(page.get_by_role("heading", name="This invitation is over")).to_be_visible()


def test_every_other_link_leads_through_the_sign_in_to_its_page(grid: Grid, vera: int, browser: Browser) -> None:
    job, node, alert = shell(
        grid,
        MAKE + "from jobs.models import Job; from nodes.models import Alert, Node\n"
        "user.is_staff = True; user.save()\n"
        "rows = [Job.objects.order_by('pk').first(), Node.objects.order_by('pk').first(), Alert.objects.order_by('pk').first()]\n"
        "print(rows[0].pk if rows[0] else 0, rows[1].name, rows[2].pk if rows[2] else 0)",
    ).split()
    # As notices and mails write them (quotas.notify, path=…): jobs and their renewal, alerts, nodes, quotas, what is mailed at all.
    paths = ["/jobs/", f"/nodes/{node}/", "/quota/", "/notices/", "/notices/channels/", "/alerts/"]
    paths += [f"/jobs/{job}/"] if job != "0" else []
    paths += [f"/alerts/{alert}/"] if alert != "0" else []
    for path in paths:
        context = context_new(browser, base_url=grid.url, locale="en-GB")
        try:
            page = context.new_page()
            signed_in_at(page, path)
            expect(page.locator("h1").first).to_be_visible()
        finally:
            context.close()


def test_what_is_mailed_is_switched_off_where_each_mail_says(grid: Grid, vera: int, nobody: BrowserContext) -> None:
    page = nobody.new_page()
    signed_in_at(page, "/notices/channels/")
    box = page.locator("input[name=is_active]").first
    box.uncheck()
    page.get_by_role("button", name="Save").first.click()
    page.wait_for_load_state()
    expect(page.locator("input[name=is_active]").first).not_to_be_checked()
