"""How much one person may change in a while, by pages and REST together."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from nebulagrid.writes import write_wait
from quotas.models import ApiToken
from quotas.secrets import SecretRefused, secret_set
from quotas.tokens import token_create, token_revoke
from tests.factories import user_make
from tests.rest import Api, no_redis  # noqa: F401

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def buckets(settings: Any, tmp_path: Any, no_write_bucket: None) -> None:
    settings.DATA_DIR, settings.SECRETS_KEY = tmp_path, []
    settings.THROTTLE_WRITE, settings.THROTTLE_WRITES_DAY = "5/600", "100/86400"


def test_the_sixth_write_is_a_429_that_says_when_and_others_are_not_held_up(settings: Any) -> None:
    lin, may = Api(user_make("lin@lab.example")), Api(user_make("may@lab.example"))
    answers = [lin.call("PUT", "/secrets/x", {"value": f"the value {number}"}) for number in range(6)]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200, 429]
    assert int(answers[-1].headers["Retry-After"]) > 60
    assert answers[-1].json()["code"] == "throttled"
    assert lin.call("GET", "/secrets/").status_code == 200
    assert may.call("PUT", "/secrets/x", {"value": "value of may"}).status_code == 201


def test_pages_and_rest_have_one_bucket_and_a_page_says_so_in_words(settings: Any) -> None:
    lin = user_make("lin@lab.example")
    for number in range(5):
        Api(lin).call("PUT", "/secrets/x", {"value": f"the value {number}"})
    browser = Client()
    browser.force_login(lin)
    answer = browser.post("/secrets/", {"name": "y", "value": "another value"})
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 60
    assert "Too many tries" in answer.content.decode()


def test_what_changes_nothing_and_what_has_its_own_bucket_is_not_counted(settings: Any) -> None:
    settings.THROTTLE_WRITE = "1/600"
    user = user_make()
    assert write_wait(user, "api/v1/jobs/", "GET") == 0
    assert [write_wait(user, "jobs/new/check/", "POST") for _ in range(3)] == [0, 0, 0]
    assert [write_wait(user, "jobs/new/", "POST") for _ in range(3)] == [0, 0, 0]
    assert write_wait(user, "secrets/", "POST") == 0
    assert write_wait(user, "secrets/", "POST") > 0


def test_a_day_has_a_bucket_too(settings: Any) -> None:
    settings.THROTTLE_WRITE, settings.THROTTLE_WRITES_DAY = "off", "2/86400"
    user = user_make()
    assert [write_wait(user, "secrets/", "POST") > 0 for _ in range(3)] == [False, False, True]


def test_values_that_were_replaced_are_kept_up_to_a_number(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quotas.secrets.REPLACED_MOST", 3)
    user = user_make()
    for number in range(4):
        secret_set(by=user, name="x", value=f"the value {number}")
    with pytest.raises(SecretRefused) as caught:
        secret_set(by=user, name="x", value="one more")
    assert (caught.value.code, caught.value.http_status) == ("secrets_fast", 429)
    assert "3" in caught.value.message


def test_tokens_have_a_limit_at_once_and_one_for_a_day(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.THROTTLE_WRITE = "off"
    monkeypatch.setattr("quotas.tokens.LIVE_MOST", 3)
    monkeypatch.setattr("quotas.tokens.DAY_MOST", 5)
    user = user_make()
    api = Api(user)  # with a token: the first
    tokens = [token_create(user=user, name=str(number))[0] for number in range(2)]
    answer = api.call("POST", "/tokens/", {"name": "x"})
    assert (answer.status_code, answer.json()["code"]) == (409, "tokens_many")
    for token in tokens:
        token_revoke(token=token)
        assert api.call("POST", "/tokens/", {"name": "x"}).status_code == 201
        token_revoke(token=ApiToken.objects.latest("pk"))
    answer = api.call("POST", "/tokens/", {"name": "x"})
    assert (answer.status_code, answer.json()["code"]) == (429, "tokens_day")
