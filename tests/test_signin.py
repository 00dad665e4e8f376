"""Sign-in by a directory, through a provider, and by sign-up: each ready by settings, a wrong one told in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from nebulagrid import signin
from nebulagrid.access import rules_of
from quotas import ldap
from quotas.models import Project, User
from tests.factories import user_make
from tests.rest import no_redis  # noqa: F401
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")  # ldap3 uses old names of pyasn1
ROOT = Path(__file__).parents[1]
OIDC = {"OIDC_SERVER": "https://login.lab.example/realms/lab", "OIDC_CLIENT_ID": "nebulagrid", "OIDC_CLIENT_SECRET": "s3cret"}
LDAP = {"LDAP_URL": "ldaps://directory.lab.example", "LDAP_BASE": "dc=lab,dc=example"}


def env(values: dict[str, str]) -> Any:
    return lambda name, default="": values.get(name, default)


# --- settings ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_set_up_without_settings() -> None:
    assert signin.oidc_from(env({})) is None
    assert signin.ldap_from(env({})) is None
    assert signin.verification_from(env({}), has_mail=False, has_signup=False) == "none"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"OIDC_CLIENT_SECRET": ""}, "NEBULA_OIDC_CLIENT_SECRET"),
        ({"OIDC_SERVER": ""}, "NEBULA_OIDC_SERVER"),
        ({"OIDC_SERVER": "login.lab.example"}, "NEBULA_OIDC_SERVER"),
        ({"OIDC_SERVER": "http://login.lab.example"}, "plain HTTP"),
        ({"OIDC_SIGNUP": "perhaps"}, "NEBULA_OIDC_SIGNUP"),
    ],
)
def test_a_wrong_setting_of_a_provider_is_named(change: dict[str, str], names: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=names) as caught:
        signin.oidc_from(env(OIDC | change))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"LDAP_BASE": ""}, "NEBULA_LDAP_BASE"),
        ({"LDAP_URL": "https://x"}, "NEBULA_LDAP_URL"),
        ({"LDAP_FILTER": "(mail=lin@lab.example)"}, "NEBULA_LDAP_FILTER"),
        ({"LDAP_FILTER": "(mail={email}"}, "NEBULA_LDAP_FILTER"),
        ({"LDAP_BIND_DN": "cn=reader"}, "NEBULA_LDAP_BIND_PASSWORD"),
    ],
)
def test_a_wrong_setting_of_a_directory_is_named(change: dict[str, str], names: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=names):
        signin.ldap_from(env(LDAP | change))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signin, "find_spec", lambda name: None)
    with pytest.raises(ImproperlyConfigured, match="pip install ldap3"):
        signin.ldap_from(env(LDAP))


def test_nobody_signs_up_where_addresses_can_not_be_confirmed() -> None:
    with pytest.raises(ImproperlyConfigured, match="NEBULA_EMAIL_HOST"):
        signin.verification_from(env({}), has_mail=False, has_signup=True)
    with pytest.raises(ImproperlyConfigured, match="NEBULA_EMAIL_VERIFICATION"):
        signin.verification_from(env({"EMAIL_VERIFICATION": "none"}), has_mail=True, has_signup=True)
    assert signin.verification_from(env({}), has_mail=True, has_signup=True) == "mandatory"


def test_a_start_with_a_provider_has_its_button_and_a_row_for_each_route(tmp_path: Path) -> None:
    script = (
        "import os, json, django; os.environ['DJANGO_SETTINGS_MODULE'] = 'nebulagrid.settings'; django.setup()\n"
        "from django.core.management import call_command; call_command('check')\n"
        "from django.test import Client; from django.conf import settings; settings.ALLOWED_HOSTS = ['*']\n"
        "page = Client().get('/accounts/login/').content.decode()\n"
        "print(json.dumps({'button': 'Lab login' in page, 'to': '/accounts/sso/oidc/oidc/login/' in page}))\n"
    )
    more = {f"NEBULA_{name}": value for name, value in OIDC.items()} | {"NEBULA_OIDC_NAME": "Lab login", "NEBULA_DATA": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=os.environ | more, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"button": True, "to": True}
    assert rules_of("accounts/sso/oidc/(?P<provider_id>[^/]+)/login/callback/")


# --- a directory in memory -----------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """ldap3's own directory in memory, behind our real search and bind; answers with the filters that were asked."""
    import ldap3

    settings.LDAP = signin.ldap_from(env(LDAP | {"LDAP_BIND_DN": "cn=reader,dc=lab,dc=example", "LDAP_BIND_PASSWORD": "reads"}))
    settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, "quotas.ldap.LdapBackend"]
    server, asked = ldap3.Server("memory"), []

    def connection(dn: str, password: str) -> Any:
        found = ldap3.Connection(server, user=dn or None, password=password or None, client_strategy=ldap3.MOCK_SYNC)
        people = {"reader": "reads", "lin": "correct horse", "twin1": "twins", "twin2": "twins"}
        for name, secret in people.items():
            address = "twin@lab.example" if name.startswith("twin") else f"{name}@lab.example"
            entry = {
                "userPassword": secret,
                "mail": address,
                "givenName": name.title(),
                "sn": "Wang",
                "objectClass": "person",
                "uid": f"u{name}",
            }
            found.strategy.add_entry(f"cn={name},dc=lab,dc=example", entry)
        plain = found.search

        def search(base: str, query: str, **more: Any) -> Any:
            asked.append(query)
            return plain(base, query, **more)

        found.search = search
        return found if found.bind() else None

    monkeypatch.setattr(ldap, "connection_open", connection)
    return asked


def sign_in(email: str, password: str) -> bool:
    client = Client()
    client.post("/accounts/login/", {"login": email, "password": password})
    return client.get("/jobs/").status_code == 200


@pytest.mark.django_db
def test_who_is_in_the_directory_signs_in_and_gets_an_account(directory: list[str]) -> None:
    assert sign_in("Lin@lab.example", "correct horse")
    user = User.objects.get(email="lin@lab.example")
    assert (user.first_name, user.is_staff, user.has_usable_password()) == ("Lin", False, False)
    assert Project.objects.filter(personal_of=user).exists()
    assert sign_in("lin@lab.example", "correct horse")
    assert User.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("email", "password"),
    [
        ("lin@lab.example", "wrong"),
        ("lin@lab.example", ""),
        ("nobody@lab.example", "x"),
        ("twin@lab.example", "twins"),
        ("*@lab.example", "correct horse"),
    ],
)
def test_others_do_not(directory: list[str], email: str, password: str) -> None:
    assert not sign_in(email, password)
    assert not User.objects.exists()


@pytest.mark.django_db
def test_the_directory_names_the_unix_account_where_an_attribute_is_set(directory: list[str], settings: Any) -> None:
    assert sign_in("lin@lab.example", "correct horse")
    assert User.objects.get().unix_name == ""
    settings.LDAP = replace(settings.LDAP, unix_attribute="uid")
    assert sign_in("lin@lab.example", "correct horse")
    assert User.objects.get().unix_name == "ulin"
    # Somebody else has it already: nobody gets into another one's account by a directory.
    User.objects.update(unix_name="")
    user_make("other@lab.example", unix_name="ulin")
    assert sign_in("lin@lab.example", "correct horse")
    assert User.objects.get(email="lin@lab.example").unix_name == ""


@pytest.mark.parametrize("text", ["", "20000-29999", "1000-1000"])
def test_a_range_of_accounts_is_read(text: str) -> None:
    found = signin.unix_range_from(env({"UNIX_RANGE": text}))
    assert (found is None) == (text == "")
    assert found is None or (found.start >= 1000 and len(found) >= 1)


@pytest.mark.parametrize("text", ["0-100", "999-2000", "20000", "30000-20000", "x-y", "-5-10", "20000-99999999999"])
def test_a_range_that_holds_the_system_or_nothing_is_refused(text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="NEBULA_UNIX_RANGE"):
        signin.unix_range_from(env({"UNIX_RANGE": text}))


@pytest.mark.parametrize(("name", "text"), [("UNIX_PREFIX", "Root"), ("UNIX_PREFIX", "x" * 13), ("LDAP_UNIX_ATTRIBUTE", "u id")])
def test_names_that_can_not_be_are_refused(name: str, text: str) -> None:
    read = signin.unix_prefix_from if name == "UNIX_PREFIX" else signin.ldap_from
    with pytest.raises(ImproperlyConfigured, match=f"NEBULA_{name}"):
        read(env(LDAP | {name: text}))


@pytest.mark.django_db
def test_an_address_is_no_filter(directory: list[str]) -> None:
    ldap.entry_find("lin@lab.example)(|(mail=*", "correct horse")
    assert directory == ["(mail=lin@lab.example\\29\\28|\\28mail=\\2a)"]


@pytest.mark.django_db
def test_who_is_switched_off_here_stays_out(directory: list[str]) -> None:
    user_make("lin@lab.example", is_active=False)
    assert not sign_in("lin@lab.example", "correct horse")


@pytest.mark.django_db
def test_our_own_passwords_work_while_the_directory_is_away(settings: Any) -> None:
    settings.LDAP = signin.ldap_from(env({"LDAP_URL": "ldap://127.0.0.1:1", "LDAP_BASE": "dc=lab"}))
    settings.AUTHENTICATION_BACKENDS = [*settings.AUTHENTICATION_BACKENDS, "quotas.ldap.LdapBackend"]
    user_make("local@lab.example", password="correct horse")
    assert sign_in("local@lab.example", "correct horse")
    assert not sign_in("lin@lab.example", "correct horse")


# --- sign-up ---------------------------------------------------------------------------------------------------------------------

NEW = {"email": "new@lab.example", "password1": "correct-horse-9", "password2": "correct-horse-9"}


@pytest.mark.django_db
def test_nobody_signs_up_unless_it_is_set() -> None:
    Client().post("/accounts/signup/", NEW)
    assert not User.objects.exists()


@pytest.mark.django_db
def test_who_signs_up_confirms_the_address_before_coming_in(settings: Any) -> None:
    settings.SIGNUP, settings.ACCOUNT_EMAIL_VERIFICATION = ["lab.example"], "mandatory"
    client = Client()
    assert "lab.example" in client.post("/accounts/signup/", NEW | {"email": "new@evil.example"}).content.decode()
    assert not User.objects.exists()
    client.post("/accounts/signup/", NEW)
    user = User.objects.get(email="new@lab.example")
    assert Project.objects.filter(personal_of=user).exists()
    assert not sign_in("new@lab.example", NEW["password1"])
    link = next(word for word in mail.outbox[0].body.split() if "/accounts/confirm-email/" in word)
    client.post(link[link.index("/accounts/") :])
    assert sign_in("new@lab.example", NEW["password1"])


@pytest.mark.django_db
def test_accounts_that_an_admin_made_need_no_confirmation(settings: Any) -> None:
    settings.ACCOUNT_EMAIL_VERIFICATION = "mandatory"
    user_make("lin@lab.example", password="correct horse")
    assert sign_in("lin@lab.example", "correct horse")
