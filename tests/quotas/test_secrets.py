"""Secrets: sealed, never read back, given to whom they belong, and taken out of what jobs print."""

from __future__ import annotations

import base64
import json
import stat
from datetime import timedelta
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from quotas.masking import Masks
from quotas.models import AuditEntry, Membership, Secret
from quotas.secret_masks import masks_for, secrets_weigh
from quotas.secrets import (
    KeyMissing,
    SecretRefused,
    keys_rotate,
    secret_delete,
    secret_set,
    secret_values,
    secrets_find,
    secrets_of,
    secrets_purge,
)
from quotas.services import project_personal
from tests.factories import project_make, user_make
from tests.rest import Api, no_redis  # noqa: F401
from tests.threads import in_threads

VALUE = "hf_Zk3-canary/Ω+42 7"


# --- masking --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelled",
    [
        VALUE,
        f"token={VALUE}\n",
        base64.b64encode(VALUE.encode()).decode(),
        base64.b64encode(f"user:{VALUE}".encode()).decode(),
        base64.b64encode(f"x{VALUE}yz".encode()).decode(),
        base64.b64encode(f"ab{VALUE}".encode()).decode(),
        base64.urlsafe_b64encode(f"??{VALUE}".encode()).decode(),
        VALUE.encode().hex(),
        VALUE.encode().hex().upper(),
        quote(VALUE),
        quote(VALUE, safe=""),
        json.dumps({"token": VALUE}),
        json.dumps({"token": VALUE}, ensure_ascii=False),
        repr({"token": VALUE}),
    ],
)
def test_every_usual_spelling_is_masked_and_keeps_its_length(spelled):
    data = f"before {spelled} after".encode()
    masked = Masks([VALUE]).take(data, is_last=True)
    assert len(masked) == len(data)
    assert (masked[:7], masked[-6:]) == (b"before ", b" after")
    for piece in (VALUE.encode(), b"canary", VALUE.encode().hex().encode(), base64.b64encode(VALUE.encode())[4:-4]):
        assert piece not in masked
    assert masked.count(b"*") >= len(VALUE) - 2


def test_each_line_of_a_key_file_is_masked():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----"
    assert Masks([key]).text("  | kqhkiG9w0BAQEF |") == "  | ************** |"


def test_short_lines_do_not_take_the_log_with_them():
    assert Masks(["one\ntwo\nthree and more"]).text("one two") == "one two"


def test_what_is_no_secret_is_left_as_it_is():
    data = bytes(range(256)) * 40
    assert Masks([VALUE]).take(data, is_last=True) == data
    assert not Masks([])


@pytest.mark.parametrize("cut", range(1, len(VALUE.encode())))
def test_a_value_cut_by_two_chunks_is_held_back_until_its_end_has_come(cut):
    masks, raw = Masks([VALUE]), f"a {VALUE} b".encode()
    first = masks.take(raw[: 2 + cut], is_last=False)
    assert first == b"a "
    assert masks.take(raw[len(first) :], is_last=False) == b"*" * len(VALUE.encode()) + b" b"


def test_an_end_that_only_looks_like_one_is_taken_when_nothing_follows():
    masks = Masks([VALUE])
    assert masks.take(b"path hf_", is_last=False) == b"path "
    assert masks.take(b"hf_", is_last=True) == b"hf_"


PARTS = st.lists(
    st.sampled_from([VALUE, VALUE[:5], VALUE[3:], "abababab", "abab", "b", "x", "\n", VALUE.encode().hex(), "日志"]), max_size=12
)


@hypothesis_settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the strategy
@given(parts=PARTS, sizes=st.lists(st.integers(1, 17), min_size=1, max_size=8))
def test_chunks_of_any_size_give_the_same_as_the_whole_and_no_value(parts, sizes):
    """Two values that overlap themselves and each other, chunks as they come."""
    masks = Masks([VALUE, "abababab", "babababa1"])
    data = "".join(parts).encode()
    out, at, number = b"", 0, 0
    while at < len(data):
        end = min(len(data), at + sizes[number % len(sizes)] + (number // 50))
        while True:  # the shipper sends what is there; a server that takes nothing waits for more
            took = masks.take(data[at:end], is_last=end == len(data))
            if took or end == len(data):
                break
            end = min(len(data), end + 1)
        out, at, number = out + took, at + len(took), number + 1
    assert out == masks.take(data, is_last=True)
    assert len(out) == len(data)
    for value in (VALUE.encode(), b"abababab", VALUE.encode().hex().encode()):
        assert value not in out


# --- keeping --------------------------------------------------------------------------------------------------------

db = pytest.mark.django_db


@pytest.fixture
def key(settings, tmp_path) -> Path:
    settings.DATA_DIR, settings.SECRETS_KEY = tmp_path, []
    masks_for.cache_clear()
    return tmp_path / "secrets-key"


@db
def test_a_value_is_sealed_and_comes_back_for_a_job_alone(key):
    user = user_make()
    secret, is_new = secret_set(by=user, name="hf", value=VALUE)
    assert is_new
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    row = json.dumps(list(Secret.objects.values()), default=str)
    assert VALUE not in row
    assert base64.b64encode(VALUE.encode()).decode() not in row
    assert secret_values([secret.pk]) == {secret.pk: VALUE}


@db
def test_a_new_value_is_a_new_row_and_the_old_one_masks_until_no_job_has_it(key):
    user, now = user_make(), timezone.now()
    old, _ = secret_set(by=user, name="hf", value="the old value")
    new, is_new = secret_set(by=user, name="hf", value="the new value", now=now)
    assert not is_new
    assert secrets_find(user=user.pk, project=0, names=["hf"]) == {"hf": new.pk}
    assert masks_for((old.pk,)).text("the old value") == "*" * 13
    later = now + timedelta(days=1)
    assert secrets_purge(used=[old.pk], now=later) == 0
    assert secrets_purge(used=[], now=now) == 0  # a job may have got it a moment ago
    assert secrets_purge(used=[], now=later) == 1
    assert list(Secret.objects.values_list("pk", flat=True)) == [new.pk]


@db
def test_a_sealed_value_moved_to_another_row_opens_nothing(key):
    mine, _ = secret_set(by=user_make(), name="hf", value=VALUE)
    other, _ = secret_set(by=user_make(), name="hf", value="of somebody else")
    Secret.objects.filter(pk=other.pk).update(sealed=mine.sealed)
    with pytest.raises(KeyMissing):
        secret_values([other.pk])


@db
def test_another_key_opens_nothing_and_tells_no_value(key):
    secret, _ = secret_set(by=user_make(), name="hf", value=VALUE)
    key.unlink()
    with pytest.raises(KeyMissing) as error:
        secret_values([secret.pk])
    assert VALUE not in repr(error.value)


@db
def test_rotation_seals_everything_anew_and_the_second_one_drops_the_first_key(key):
    user = user_make()
    secret, _ = secret_set(by=user, name="hf", value=VALUE)
    first, sealed = key.read_text().split(), Secret.objects.get().sealed
    out = StringIO()
    call_command("secrets_rotate", stdout=out)
    assert "1 values" in out.getvalue()
    assert key.read_text().split()[1:] == first
    assert Secret.objects.get().sealed != sealed
    keys_rotate(by="test")
    assert first[0] not in key.read_text()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert secret_values([secret.pk]) == {secret.pk: VALUE}
    assert AuditEntry.objects.filter(action="secret.rotated").count() == 2


@db
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("1hf", VALUE, "secret_name"),
        ("../x", VALUE, "secret_name"),
        ("", VALUE, "secret_name"),
        ("n" * 65, VALUE, "secret_name"),
        ("hf", "short", "secret_short"),
        ("hf", "  padded   ", "secret_short"),
        ("hf", "x" * 32_769, "secret_long"),
        ("hf", "nul\0inside it", "secret_nul"),
        ("hf", "line 1234\n" * 2_001, "secret_lines"),
    ],
)
def test_what_can_not_be_given_or_masked_is_refused_in_words(key, name, value, code):
    with pytest.raises(SecretRefused) as error:
        secret_set(by=user_make(), name=name, value=value)
    assert error.value.code == code
    assert len(error.value.message) > 20
    assert not value.strip() or value.strip() not in error.value.message


@pytest.mark.django_db(transaction=True)
def test_many_who_set_one_name_at_once_leave_one_live_row(key):
    user = user_make()
    answers = in_threads(6, lambda number: secret_set(by=user, name="hf", value=f"value number {number}"))
    assert sum(isinstance(answer, tuple) for answer in answers) >= 1
    assert Secret.objects.filter(replaced_at=None).count() == 1


# --- whose ----------------------------------------------------------------------------------------------------------


@db
def test_members_use_a_projects_secret_leads_set_it_viewers_and_strangers_do_neither(key):
    lead, member, viewer, stranger = (user_make(f"{name}@lab.example") for name in ("lead", "member", "viewer", "stranger"))
    project = project_make("vision", members=(member,))
    Membership.objects.create(project=project, user=lead, role=Membership.Role.LEAD)
    Membership.objects.create(project=project, user=viewer, role=Membership.Role.VIEWER)
    body = {"value": VALUE, "project": "vision"}
    status = {user.email: Api(user).call("PUT", "/secrets/hf", body).status_code for user in (member, viewer, stranger, lead)}
    assert status == {"member@lab.example": 404, "viewer@lab.example": 404, "stranger@lab.example": 404, "lead@lab.example": 201}
    assert [[s.name for s in secrets_of(user)] for user in (lead, member, viewer, stranger)] == [["hf"], ["hf"], [], []]
    assert Api(member).call("DELETE", "/secrets/hf?project=vision").status_code == 404
    assert Api(lead).call("DELETE", "/secrets/hf?project=vision").status_code == 204


@db
def test_who_was_taken_out_of_a_project_gets_none_of_its_secrets(key):
    member = user_make()
    project = project_make("vision", members=(member,))
    theirs, _ = secret_set(by=user_make(is_staff=True), name="hf", value=VALUE, project=project)
    place = Membership.objects.filter(user=member, project=project)
    for role, found in ((Membership.Role.USER, {"hf": theirs.pk}), (Membership.Role.VIEWER, {})):
        place.update(role=role)
        for of_project in (False, True):
            assert secrets_find(user=member.pk, project=project.pk, names=["hf"], of_project=of_project) == found
    place.delete()
    assert secrets_find(user=member.pk, project=project.pk, names=["hf"]) == {}
    mine, _ = secret_set(by=member, name="hf", value="my own one")
    assert secrets_find(user=member.pk, project=project.pk, names=["hf"]) == {"hf": mine.pk}
    assert secrets_find(user=member.pk, project=project.pk, names=["hf"], of_project=True) == {}


@db
def test_ones_own_secret_goes_before_the_projects(key):
    user = user_make()
    project = project_make("vision", members=(user,), role=Membership.Role.LEAD)
    secret_set(by=user, name="hf", value="of the project", project=project)
    secret_set(by=user, name="other", value="of the project", project=project)
    mine, _ = secret_set(by=user, name="hf", value="my own one")
    found = secrets_find(user=user.pk, project=project.pk, names=["hf", "other", "missing"])
    assert found["hf"] == mine.pk
    assert set(found) == {"hf", "other"}


@db
def test_the_api_and_the_audit_log_show_names_and_never_a_value(key):
    user = user_make()
    api = Api(user)
    first = api.call("PUT", "/secrets/hf-token", {"value": VALUE})
    again = api.call("PUT", "/secrets/hf-token", {"value": VALUE + "!"})
    shown = api.call("GET", "/secrets/")
    assert (first.status_code, again.status_code) == (201, 200)
    row = json.loads(shown.content)["results"][0]
    assert {"name": "hf-token", "project": None, "set_by": user.email, "used_at": None}.items() <= row.items()
    entries = json.dumps(list(AuditEntry.objects.values("action", "target", "params")))
    for text in (first.content, again.content, shown.content, entries.encode()):
        assert VALUE.encode() not in text
        assert b"canary" not in text
    assert api.call("DELETE", "/secrets/hf-token").status_code == 204
    assert api.call("DELETE", "/secrets/hf-token").status_code == 404


@db
def test_a_wrong_field_is_told_without_the_value(key):
    answer = Api(user_make()).call("PUT", "/secrets/hf", {"value": [VALUE], "extra": VALUE})
    assert answer.status_code == 400
    assert b"canary" not in answer.content


@db
@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_page_sets_and_deletes_and_sends_nothing_back(key, language):
    user = user_make()
    browser = Client(headers={"Accept-Language": language})
    browser.force_login(user)
    assert browser.post("/secrets/", {"name": "hf-token", "value": VALUE}).status_code == 302
    assert 'name="id"' not in browser.get("/secrets/").content.decode()  # the question takes nothing of the page's own into its fields
    assert browser.post("/secrets/", {"name": "hf token", "value": VALUE}).status_code == 400
    refused = browser.post("/secrets/", {"name": "hf token", "value": VALUE}).content.decode()
    page = browser.get("/secrets/").content.decode()
    assert "hf-token" in page
    assert "canary" not in page + refused
    assert secret_values([Secret.objects.get().pk]) == {Secret.objects.get().pk: VALUE}
    assert browser.post("/secrets/hf-token/delete/").status_code == 302
    assert not secrets_of(user).exists()


@db
def test_the_line_breaks_of_a_text_area_are_those_of_the_file(key):
    user = user_make()
    browser = Client()
    browser.force_login(user)
    browser.post("/secrets/", {"name": "key", "value": "line one\r\nline two\r\n"})
    assert list(secret_values([Secret.objects.get().pk]).values()) == ["line one\nline two\n"]


# --- in a submit ----------------------------------------------------------------------------------------------------


@db
def test_a_job_names_secrets_and_one_that_is_nobodys_is_refused(key):
    user = user_make()
    secret_set(by=user, name="hf", value=VALUE)
    api = Api(user)
    body = {"argv": ["true"], "gpu_count": 0, "hold": True}
    status, job = api.post("/jobs/submit", {**body, "secrets": ["hf=HF_TOKEN", "hf"]})
    assert status == 201
    assert job["secrets"] == ["hf", "hf=HF_TOKEN"]
    for wrong, code in (
        (["nope"], "nope"),
        (["hf", "project/hf=HF_TOKEN"], "hf would have two values"),
        (["hf=CUDA_VISIBLE_DEVICES"], "CUDA_VISIBLE_DEVICES"),
        (["hf=NEBULA_X"], "NEBULA_X"),
        (["a b"], "a b"),
        (["hf=X", "hf2=X"], "$X"),
    ):
        status, error = api.post("/jobs/submit", {**body, "secrets": wrong})
        assert status == 400
        assert code in error["fields"]["secrets"][0]


@db
def test_more_secrets_than_can_be_masked_are_refused_at_submit_with_the_numbers(key, monkeypatch):
    user = user_make()
    for number in range(12):
        secret_set(by=user, name=f"s{number}", value="\n".join(f"{number} {line:08d}" for line in range(1_900)))
    body = {"argv": ["true"], "gpu_count": 0, "hold": True}
    status, error = Api(user).post("/jobs/submit", {**body, "secrets": [f"s{number}" for number in range(12)]})
    assert status == 400
    assert "22800 lines" in error["fields"]["secrets"][0]
    assert "20000" in error["fields"]["secrets"][0]
    ids = sorted(Secret.objects.values_list("pk", flat=True))
    secrets_weigh(ids[:10])
    monkeypatch.setattr("quotas.secret_masks.BYTES_MOST", 1000)
    with pytest.raises(SecretRefused) as refused:
        secrets_weigh(ids[:10])
    assert refused.value.code == "secrets_bytes"


@db
def test_values_that_became_too_many_after_the_submit_mask_everything(key, monkeypatch):
    secret, _ = secret_set(by=user_make(), name="hf", value="line number 1\nline number 2\n")
    monkeypatch.setattr("quotas.secret_masks.LINES_MOST", 1)
    assert masks_for((secret.pk,)).text("any other text") == "*" * 14


@db
def test_what_masks_is_kept_up_to_a_size(key, monkeypatch):
    user = user_make()
    ids = [secret_set(by=user, name=f"s{number}", value=f"value number {number}")[0].pk for number in range(3)]
    first = masks_for((ids[0],))
    assert masks_for((ids[0],)) is first
    monkeypatch.setattr("quotas.secret_masks.KEPT_MOST", first.weight + 1)
    masks_for((ids[1],))
    assert masks_for((ids[0],)) is not first


@db
def test_a_clone_keeps_the_names(key):
    from jobs.bodies import body_of
    from jobs.clone import initial_from
    from tests.factories import job_make

    user = user_make()
    job = job_make(user, project=project_personal(user), secrets=["hf", "hf=HF_TOKEN"])
    assert body_of(job, reader=user)["secrets"] == ["hf", "hf=HF_TOKEN"]
    assert initial_from(job, reader=user)[0]["secrets"] == "hf hf=HF_TOKEN"


@db
def test_a_deleted_secret_is_no_longer_found(key):
    user = user_make()
    secret_set(by=user, name="hf", value=VALUE)
    secret_delete(by=user, name="hf")
    assert secrets_find(user=user.pk, project=0, names=["hf"]) == {}
