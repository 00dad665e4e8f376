"""Addresses of the API as early drafts had them: /v1/…, moved for good below /api/v1/."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from jobs.models import Job
from quotas.tokens import token_create
from tests.factories import job_make, user_make


@pytest.mark.parametrize(
    ("method", "path", "target"),
    [
        ("POST", "/v1/jobs/submit", "/api/v1/jobs/submit"),
        ("GET", "/v1/jobs/7/logs?offset=3&tail=9", "/api/v1/jobs/7/logs?offset=3&tail=9"),
        ("GET", "/v1/resources/usage", "/api/v1/resources/usage"),
        ("DELETE", "/v1/tokens/3", "/api/v1/tokens/3"),
        ("GET", "/v1/", "/api/v1/"),
    ],
)
def test_each_is_moved_with_its_method(client: Client, method: str, path: str, target: str) -> None:
    answer = client.generic(method, path)
    assert (answer.status_code, answer.headers["Location"]) == (308, target)


@pytest.mark.parametrize("path", ["/v1//evil.example/x", "/v1/\\evil.example", "/v1/../../evil", "/v1/javascript:x"])
def test_no_address_leads_elsewhere(client: Client, path: str) -> None:
    assert client.get(path).headers["Location"].startswith("/api/v1/")


def test_a_line_break_in_an_address_is_no_address(client: Client) -> None:
    assert client.get("/v1/%0d%0aX-Evil:%201").status_code == 404


@pytest.mark.django_db
def test_a_submit_arrives_with_its_body_and_its_token() -> None:
    user = user_make()
    headers = {"Authorization": f"Bearer {token_create(user=user, name='t')[1]}"}
    body = json.dumps({"argv": ["true"], "gpu_count": 0})
    answer = Client().post("/v1/jobs/submit", body, content_type="application/json", headers=headers, follow=True)
    assert answer.status_code == 201
    assert Job.objects.get().owner == user


@pytest.mark.django_db
def test_without_a_token_it_is_closed_there_as_here() -> None:
    assert Client().get(f"/v1/jobs/{job_make().pk}/logs", follow=True).status_code == 401
