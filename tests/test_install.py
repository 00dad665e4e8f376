"""The installer as a file, and what the control plane serves to a machine that has no credential yet."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from django.test import Client

from nebulagrid.dist import agent_wheel, dist_folder
from nebulagrid.tls import TlsError, TlsFiles, ca_find, ca_make, ca_sha256, server_make

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "deploy" / "install.sh"
#: Whatever the script might call to change anything or to ask anybody.
PROGRAMS = (
    "awk", "cat", "chmod", "cp", "curl", "cut", "date", "df", "dirname", "grep", "id", "ln", "mkdir", "mktemp", "mv", "python3", "readlink",
    "rm", "rmdir", "sed", "setsid", "sha256sum", "sleep", "stat", "stty", "systemctl", "tr", "uname", "wc",
)  # fmt: skip


class Stubs:
    """A PATH on which every program only writes down that it was called."""

    def __init__(self, folder: Path) -> None:
        self.path, self.called = folder / "bin", folder / "called"
        self.path.mkdir()
        for name in PROGRAMS:
            stub = self.path / name
            stub.write_text(f'#!/bin/sh\necho "{name}" >>"{self.called}"\n')
            stub.chmod(0o755)

    def run(self, shell: str, script: bytes, *args: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([shell, "-s", "--", *args], input=script, env={"PATH": str(self.path)}, capture_output=True, check=False)


ARGS = ("--controller-endpoint", "https://127.0.0.1:1", "--token-file", "/dev/null")


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
def test_a_cut_download_does_nothing(shell: str, tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    script = SCRIPT.read_bytes()
    stubs.run(shell, script, *ARGS)
    assert "id" in stubs.called.read_text().split(), "the whole script called nothing: this test could not fail"
    stubs.called.unlink()
    complete = len(script) - 2  # from here on only blanks are missing
    at = sorted(i for i in {*range(0, len(script), 1024), *(i + 1 for i, byte in enumerate(script) if byte == 10)} if i < complete)
    # The last line, at every byte: there a shorter command would be a complete one.
    last = script.rstrip(b"\n").rindex(b"\n")
    for length in [*at, *range(last, complete)]:
        stubs.run(shell, script[:length], *ARGS)
        assert not stubs.called.exists(), f"cut at byte {length} it called {stubs.called.read_text().split()}"


def test_the_unit_file_is_the_one_that_the_installer_writes() -> None:
    printed = subprocess.run(["/bin/sh", str(SCRIPT), "--print-unit"], capture_output=True, text=True, check=True)
    assert printed.stdout == (ROOT / "deploy" / "nebula-agent.service").read_text()
    assert "\nKillMode=process\n" in printed.stdout


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--controller-endpoint", "http://grid.lab", "--user"), "plain http"),
        (("--controller-endpoint", "https://grid.lab; reboot", "--user"), "is not a URL"),
        (("--controller-endpoint", "https://grid.lab", "--ca-sha256", "abc", "--user"), "64 hexadecimal digits"),
        (("--controller-endpoint", "https://grid.lab", "--prefix", "/opt/$(reboot)"), "can't be used"),
        (("--controller-endpoint", "https://grid.lab", "--prefix", "opt"), "absolute path"),
        (("--controller-endpoint",), "needs a value"),
        (("--frobnicate",), "not an option"),
        (("--controller-endpoint", "https://grid.lab", "--python", "/bin/false", "--user"), "not Python 3.11"),
        (("--controller-endpoint", "https://127.0.0.1:1", "--user", "--token-file", "/nowhere"), "/nowhere can't be read"),
        (("--controller-endpoint", "https://127.0.0.1:1", "--user", "--token-file", "/dev/null"), "the token is empty"),
    ],
)
def test_a_bad_wish_ends_in_one_sentence_and_nothing_else(args: tuple[str, ...], word: str, tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path)}
    ran = subprocess.run(["/bin/sh", str(SCRIPT), *args], capture_output=True, text=True, env=env, check=False)
    assert ran.returncode != 0
    assert word in ran.stderr
    assert list(tmp_path.iterdir()) == []


def without_home(tmp_path: Path, *args: str, getent: str) -> subprocess.CompletedProcess[str]:
    """The installer for the present user in an environment without HOME; ``getent`` is what the password database answers."""
    stub = tmp_path / "bin" / "getent"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\n{getent}\n")
    stub.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name != "HOME"} | {"PATH": f"{stub.parent}:{os.environ['PATH']}"}
    argv = ["/bin/sh", str(SCRIPT), "--user", "--controller-endpoint", "https://127.0.0.1:1", "--token-file", "/nowhere", *args]
    return subprocess.run(argv, capture_output=True, text=True, env=env, check=False)


def test_without_home_it_takes_the_accounts_folder(tmp_path: Path) -> None:
    ran = without_home(tmp_path, getent=f"echo u:x:1000:1000::{tmp_path}/home:/bin/sh")
    assert "/nowhere can't be read" in ran.stderr  # the next thing that it looks at
    assert "HOME" not in ran.stderr


def test_without_any_home_it_says_what_to_give(tmp_path: Path) -> None:
    ran = without_home(tmp_path, getent="exit 2")
    assert ran.returncode != 0
    assert ran.stderr.strip() == (
        "nebulagrid: --user installs below your home, and HOME is not set: set it, or give --prefix, --config-dir and --data-dir"
    )
    folders = [f"--{name}={tmp_path}/{name}" for name in ("prefix", "config-dir", "data-dir")]
    (tmp_path / "bin").rename(tmp_path / "old")
    assert "/nowhere can't be read" in without_home(tmp_path, *folders, getent="exit 2").stderr


# --- nothing that another user could replace is run ----------------------------------------------------------------


def planted(folder: Path, witness: Path) -> None:
    """What another user leaves in a folder that everybody may write to, in the hope that root starts the installer there."""
    folder.mkdir()
    folder.chmod(0o777)
    for name in ("venv", "ensurepip", "pip", "sitecustomize", "json", "re"):
        (folder / f"{name}.py").write_text(f"open({str(witness)!r}, 'a').write(__name__)\n")


def test_a_folder_full_of_traps_is_no_place_that_programs_are_found_in(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    planted(tmp_path / "open", witness)
    args = ["--user", "--controller-endpoint", "https://127.0.0.1:1", "--token", "x"]
    env = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path / "open")}
    argv = ["/bin/sh", str(SCRIPT), *args]
    ran = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path / "open", env=env, check=False)
    assert "fetching the agent" in ran.stdout, ran.stderr  # it came past all that it looks at before
    assert not witness.exists(), witness.read_text()


@pytest.mark.parametrize("option", ["--prefix", "--config-dir", "--data-dir"])
def test_folders_that_others_may_replace_are_refused(option: str, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    args = ["--user", "--controller-endpoint", "https://127.0.0.1:1", "--token", "x", option, str(tmp_path / "open" / "below" / "it")]
    env = {**os.environ, "HOME": str(tmp_path / "home")}
    ran = subprocess.run(["/bin/sh", str(SCRIPT), *args], capture_output=True, text=True, env=env, check=False)
    assert ran.returncode == 1
    assert f"everybody may write to {tmp_path / 'open'}" in ran.stderr
    (tmp_path / "open").chmod(0o1777)  # as /tmp has it: nobody replaces what is another's there
    ran = subprocess.run(["/bin/sh", str(SCRIPT), *args], capture_output=True, text=True, env=env, check=False)
    assert "fetching the agent" in ran.stdout, ran.stderr


@pytest.mark.parametrize("is_swapped", [False, True])
def test_the_line_runs_the_very_bytes_that_it_has_checked(is_swapped: bool, tmp_path: Path) -> None:
    from client.commands.pool import _join_line

    script = SCRIPT.read_bytes()
    assert script.endswith(b"\n"), "a shell takes all newlines off the end"
    assert not script.endswith(b"\n\n"), "a shell takes all newlines off the end"
    served = tmp_path / "served"
    served.write_bytes(script.replace(b"--help shows all options", b"--help shows n0thing") if is_swapped else script)
    curl = tmp_path / "bin" / "curl"
    curl.parent.mkdir()
    curl.write_text(f'#!/bin/sh\ncat "{served}"\n')
    curl.chmod(0o755)
    facts = {"ca_sha256": None, "install_sha256": hashlib.sha256(script).hexdigest()}
    line = _join_line("https://grid.lab", facts, "n1").removeprefix("sudo ") + " --frobnicate <<<nge_x"
    env = {**os.environ, "PATH": f"{curl.parent}:{os.environ['PATH']}"}
    ran = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert ran.returncode == 1
    wanted = "nebulagrid: nothing was installed" if is_swapped else "nebulagrid: '--frobnicate' is not an option; --help shows all"
    assert ran.stderr.strip() == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "served"], "it is in no file"


@pytest.mark.django_db
def test_a_machine_without_credential_gets_installer_and_wheels(client: Client) -> None:
    script = client.get("/install.sh")
    assert script.status_code == 200
    assert script.content == SCRIPT.read_bytes()
    facts = client.get("/install.json").json()
    assert facts["install_sha256"] == hashlib.sha256(script.content).hexdigest()
    assert facts["ca_sha256"] is None
    listed = dict(reversed(line.split("  ")) for line in client.get("/dist/").content.decode().splitlines())
    agents = [name for name in listed if name.startswith("nebulagrid_agent-")]
    assert len(agents) == 1
    assert {name.split("-")[0] for name in listed} >= {"nvidia_ml_py", "websocket_client", "rich"}
    served = b"".join(client.get(f"/dist/{agents[0]}").streaming_content)  # type: ignore[arg-type]
    assert hashlib.sha256(served).hexdigest() == listed[agents[0]]


@pytest.mark.parametrize("path", ["/dist/nothing.whl", "/dist/..%2Fsecret-key", "/ca.pem"])
def test_what_is_not_there_is_not_found(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", ["/install.sh", "/install.json", "/ca.pem", "/dist/"])
def test_nothing_is_posted_to_the_installer(client: Client, path: str) -> None:
    assert client.post(path).status_code == 405


def test_the_wheel_is_the_same_each_time_and_holds_no_server(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    first, second = agent_wheel(ROOT, one), agent_wheel(ROOT, two)
    assert first.read_bytes() == second.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {"agent/py.typed", "client/locale/zh_CN/LC_MESSAGES/nebula.mo", "client/data/digits.csv.gz"} <= names
    assert {name for name in tops if not name.endswith(".dist-info")} == {"agent", "client", "nebulagrid_client"}


def test_an_old_installation_s_wheels_go(tmp_path: Path) -> None:
    (tmp_path / "0123").mkdir()
    (tmp_path / "0123" / "old.whl").touch()
    folder = dist_folder(ROOT, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_our_own_ca_signs_names_and_addresses_and_keeps_its_keys_to_itself(tmp_path: Path, settings: object) -> None:
    files, now = TlsFiles(folder=tmp_path / "tls"), datetime.now(UTC)
    ca_make(files, now=now)
    server_make(files, hosts=["grid.lab", "10.0.0.1", "::1"], now=now)
    chain = x509.load_pem_x509_certificates(files.cert.read_bytes())
    names = chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["grid.lab"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    chain[0].verify_directly_issued_by(chain[1])
    assert {path.stat().st_mode & 0o777 for path in (files.key, files.ca_key)} == {0o600}
    assert chain[0].not_valid_after_utc < now + timedelta(days=826)
    assert ca_sha256(files.ca) == hashlib.sha256(files.ca.read_bytes()).hexdigest()


def test_which_file_verifies_us(tmp_path: Path) -> None:
    files, now = TlsFiles(folder=tmp_path), datetime.now(UTC)
    ca_make(files, now=now)
    server_make(files, hosts=["grid.lab"], now=now)
    assert ca_find(tls_ca=str(files.ca), tls_cert=str(files.cert)) == files.ca.resolve()
    assert ca_find(tls_ca="", tls_cert=str(files.cert)) is None, "somebody else's certificate is verified by the system"
    assert ca_find(tls_ca="", tls_cert=str(files.ca)) == files.ca.resolve(), "a self-signed one verifies itself"
    assert ca_find(tls_ca="", tls_cert="") is None


@pytest.mark.parametrize("host", ["", "grid lab", "-grid", "grid;lab", "x" * 300])
def test_a_certificate_for_what_is_no_name_is_refused(host: str, tmp_path: Path) -> None:
    files, now = TlsFiles(folder=tmp_path), datetime.now(UTC)
    ca_make(files, now=now)
    with pytest.raises(TlsError, match="host name"):
        server_make(files, hosts=[host], now=now)
    assert not files.cert.exists()
