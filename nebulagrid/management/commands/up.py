"""One command starts the whole control plane and an agent for this machine, and keeps them running.

This process prepares everything with Django loaded, then becomes `nebulagrid.supervisor` (exec, same process id), which
stays small. Its lock on the data folder goes along as an open descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import pwd
import secrets
import socket
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, SystemCheckError
from django.db import DatabaseError, connections

from agent.config import file_write_private
from client.errors import ProfileError
from client.profile import Profile, profile_read, profile_save
from nebulagrid.checks import is_loopback
from nebulagrid.demo import FOLDER, lab_nodes
from nebulagrid.reach import reach_find, reach_lines
from nebulagrid.rooted.line import RootFiles
from nebulagrid.startagents import agent_provide, agents_provide, jobs_root
from nebulagrid.startfiles import OwnFiles, StartFiles
from nebulagrid.startplan import ADMIN_EMAIL, StartError, control_children, ready_lines
from nebulagrid.supervisor import ChildSpec, Plan, leftovers_wait, port_free
from nebulagrid.tls import ca_find

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
        self.files: StartFiles = RootFiles.from_environment() or OwnFiles(settings.DATA_DIR, named=os.environ.get("NEBULA_CONFIG"))
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
        try:
            agent_configs = self._agents(count=agents, scenario=scenario, demo=demo)
        except (StartError, OSError) as error:
            raise CommandError(str(error), returncode=2) from error
        people = self._demo_people() if demo else []
        self._step(6, "starting Redis, web server, worker and beat" + (", then the agent" if agents else ""))
        try:
            children = control_children()
        except StartError as error:
            raise CommandError(str(error), returncode=2) from error
        if demo:
            children.append(self._feeder())
        ready = ready_lines(self.files, profile, password_note=password_note, people=people)
        self._become(lock, children, agent_configs, ready)

    def _step(self, number: int, text: str) -> None:
        self.stdout.write(f"[{number}/{STEPS}] {text}")

    def _scenario(self, path: str | None) -> Path | None:
        if path is None:
            return None
        found = Path(path).resolve()
        if isinstance(self.files, RootFiles):
            return found  # looked at by root, whose it may be
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
        for name, path in (("NEBULA_TLS_CERT", settings.TLS_CERT), ("NEBULA_TLS_KEY", settings.TLS_KEY)):
            if path and not os.access(path, os.R_OK):
                who = pwd.getpwuid(os.getuid()).pw_name if isinstance(self.files, RootFiles) else "this account"
                raise CommandError(f"{name} names {path}, which {who} can't read; the web server runs as that one.", returncode=2)
        if not port_may_be_bound(settings.PORT):
            raise CommandError(
                f"Port {settings.PORT} is for root alone, and the web server never runs as root: set NEBULA_PORT to one above 1023 and "
                "put a proxy in front, or let others use it (sysctl net.ipv4.ip_unprivileged_port_start).",
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

        path = self.files.password_path
        if User.objects.filter(is_superuser=True, is_active=True).exists():
            return f"password: in {path}" if self.files.has_password() else "password: as you set it (manage.py changepassword)"
        password = secrets.token_urlsafe(12)
        self.files.password_write(password + "\n")
        user_create(email=ADMIN_EMAIL, password=password, is_staff=True, is_superuser=True)
        return f"password: {password}   (shown once; also in {path})"

    def _profile(self) -> Path:
        """The profile that `nebula-ctl` reads: URL and a token of the administrator. A working one is left alone, and so is one
        that NEBULA_CONFIG names and that is another installation's."""
        named = self.files.profile_path(named=True)
        if named is not None and named != self.files.profile_path(named=False):
            other = self.files.profile_read(named=True).get("endpoint")
            if not other or other.rstrip("/") == settings.BASE_URL:
                return self._profile_provide(named=True)
            self.stdout.write(f"      NEBULA_CONFIG names {named}, a profile for {other}: it is left alone")
        return self._profile_provide(named=False)

    def _profile_provide(self, *, named: bool) -> Path:
        from quotas.models import User
        from quotas.tokens import token_authenticate, token_create

        admin = User.objects.filter(is_superuser=True, is_active=True).order_by("pk")[0]
        token = self.files.profile_read(named=named).get("token")
        if not token or token_authenticate(token) is None:
            _, token = token_create(user=admin, name=f"make run on {socket.gethostname()}")
        ca_file = ca_find(tls_ca=settings.TLS_CA, tls_cert=settings.TLS_CERT)
        profile = {"endpoint": settings.BASE_URL, "token": token, "ca_file": str(ca_file) if ca_file else None}
        self.files.profile_write(profile, named=named)
        path = self.files.profile_path(named=named)
        return path if path is not None else settings.DATA_DIR / "cli.json"

    # --- the children ---------------------------------------------------------------------------------------------

    def _agents(self, *, count: int, scenario: Path | None, demo: list[tuple[str, Path]]) -> dict[str, Path]:
        """Name of each agent's process → its configuration."""

        def say(text: str) -> None:
            self.stdout.write(f"      {text}")

        if count:
            with contextlib.suppress(OSError):  # root has made it, where root started this
                jobs_root(settings.DATA_DIR).mkdir(mode=0o711, exist_ok=True)
        if demo:
            return {
                f"agent-{node}": agent_provide(self.files, f"agent-{node}", node=node, simulated=True, scenario=cards, say=say)
                for node, cards in demo
            }
        return agents_provide(self.files, count=count, scenario=scenario, say=say)

    @staticmethod
    def _agent_children(configs: dict[str, Path]) -> list[ChildSpec]:
        # clean: a job must not find the control plane's keys in the environment that it came from.
        return [
            ChildSpec(
                name=name,
                argv=[sys.executable, "-m", "agent.main", "run", "--config", str(config)],
                env={"PYTHONUNBUFFERED": "1"},
                clean=True,
                stage=2,
            )
            for name, config in configs.items()
        ]

    @staticmethod
    def _feeder() -> ChildSpec:
        """It submits the demo's jobs."""
        argv = [sys.executable, "-m", "nebulagrid.demo.feeder", str(settings.DATA_DIR)]
        return ChildSpec(name="feeder", argv=argv, env={"PYTHONUNBUFFERED": "1"}, clean=True, stage=3)

    def _demo_people(self) -> list[str]:
        """What to print of them."""
        from nebulagrid.demo.people import people_provide

        ca_file = ca_find(tls_ca=settings.TLS_CA, tls_cert=settings.TLS_CERT)
        people = people_provide(data=settings.DATA_DIR, endpoint=settings.BASE_URL, ca_file=str(ca_file) if ca_file else None)
        if isinstance(self.files, RootFiles):
            self._demo_admin(ca_file)
        width = max(len(person.email) for person, _ in people)
        return [f"            {person.email:<{width}}  password: {password}" for person, password in people]

    @staticmethod
    def _demo_admin(ca_file: Path | None) -> None:
        """The administrator's profile is root's, and the feeder is not: it has one of its own."""
        from quotas.models import User
        from quotas.tokens import token_authenticate, token_create

        path = settings.DATA_DIR / FOLDER / "admin.json"
        with contextlib.suppress(ProfileError):
            if (token := profile_read(path).get("token")) and token_authenticate(token) is not None:
                return
        admin = User.objects.filter(is_superuser=True, is_active=True).order_by("pk")[0]
        _, token = token_create(user=admin, name="make demo")
        profile_save(path, Profile(endpoint=settings.BASE_URL, token=token, ca_file=str(ca_file) if ca_file else None))

    # --- the end --------------------------------------------------------------------------------------------------

    def _become(self, lock: int, children: list[ChildSpec], agents: dict[str, Path], ready: list[str]) -> NoReturn:
        connections.close_all()
        sys.stdout.flush()
        if isinstance(self.files, RootFiles):
            given = [child_given(child) for child in children]
            self.files.finish(children=given, agents=list(agents), ready=ready, lock=lock)
            sys.exit(0)
        if agents:
            found = reach_find(Path(sys.executable), next(iter(agents.values())), settings.BASE_DIR)
            ready = [*ready[:-1], *reach_lines(found, allowed=settings.ALLOW_UNISOLATED), ""]
        plan = Plan(
            run_dir=str(settings.RUN_DIR),
            lock_fd=lock,
            children=[*children, *self._agent_children(agents)],
            ready=ready,
            ready_file=str(settings.RUN_DIR / "ready"),
        )
        path = settings.RUN_DIR / "plan.json"
        file_write_private(path, plan.to_json())
        os.set_inheritable(lock, True)
        os.execv(sys.executable, [sys.executable, "-m", "nebulagrid.supervisor", str(path)])  # noqa: S606


def port_may_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            return False
        except OSError:
            return True  # in use, say
    return True


def child_given(child: ChildSpec) -> dict[str, Any]:
    """For root, who starts it: with the whole of its environment, since root's own is another one."""
    return {**asdict(child), "env": child.environ(), "is_whole_env": True}
