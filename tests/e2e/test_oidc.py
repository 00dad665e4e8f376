"""Sign-in through an OpenID Connect provider: a small one in this process, and our whole side of it in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

pytestmark = pytest.mark.soak
ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, json, django
os.environ["DJANGO_SETTINGS_MODULE"] = "nebulagrid.settings"
django.setup()
from urllib.parse import parse_qs, urlsplit
from django.conf import settings
from django.core.management import call_command
from django.test import Client
settings.ALLOWED_HOSTS = ["*"]
call_command("migrate", verbosity=0)
from quotas.models import Project, User
from quotas.services import user_create
known = user_create(email="known@lab.example", password="correct horse")

def sign_in(code, state=None):
    client = Client()
    there = client.post("/accounts/sso/oidc/oidc/login/?process=login")
    asked = parse_qs(urlsplit(there["Location"]).query)
    assert asked["code_challenge_method"] == ["S256"], asked
    client.get("/accounts/sso/oidc/oidc/login/callback/", {"code": code, "state": state or asked["state"][0]})
    return client.get("/jobs/").status_code == 200

found = {
    "new": sign_in("new"), "again": sign_in("new"), "known": sign_in("known"), "unverified": sign_in("unverified"),
    "refused": sign_in("refused"), "forged": sign_in("new", state="forged"),
}
new = User.objects.get(email="new@lab.example")
found |= {"users": User.objects.count(), "project": Project.objects.filter(personal_of=new).exists(), "staff": new.is_staff,
          "same": User.objects.filter(email="known@lab.example").count() == 1}
User.objects.filter(pk=new.pk).update(is_active=False)
found["off"] = sign_in("new")
print(json.dumps(found))
"""


class Provider(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _say(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        base = f"http://127.0.0.1:{self.server.server_address[1]}"
        if self.path.endswith("/.well-known/openid-configuration"):
            self._say({"issuer": base, **{f"{name}_endpoint": f"{base}/{name}" for name in ("authorization", "token", "userinfo")}})
            return
        who = self.headers["Authorization"].removeprefix("Bearer ")
        address = "known" if who == "unverified" else who
        self._say({"sub": who, "email": f"{address}@lab.example", "email_verified": who != "unverified", "given_name": who.title()})

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        code = body["code"][0]
        if code == "refused" or "code_verifier" not in body:
            self._say({"error": "invalid_grant"}, 400)
            return
        self._say({"access_token": code, "token_type": "bearer", "expires_in": 60})


@pytest.fixture
def provider() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_who_the_provider_knows_signs_in_and_an_unverified_address_takes_no_account_over(provider: str, tmp_path: Path) -> None:
    more = {"NEBULA_OIDC_SERVER": provider, "NEBULA_OIDC_CLIENT_ID": "nebulagrid", "NEBULA_OIDC_CLIENT_SECRET": "s3cret"}
    env = os.environ | more | {"NEBULA_DATA": str(tmp_path), "NEBULA_THROTTLE_ANONYMOUS": "off"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "new": True, "again": True, "known": True, "unverified": False, "refused": False, "forged": False,
        "users": 2, "project": True, "staff": False, "same": True, "off": False,
    }  # fmt: skip
