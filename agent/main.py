"""`nebula-agent run | status | doctor | enroll`."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.config import BACKENDS, Config, ConfigError, config_load, config_path, config_text, file_write_private, values_read
from agent.credential import Credential
from agent.http import Endpoint, EndpointError, HttpClient, Unreachable, endpoint_parse

if TYPE_CHECKING:
    from agent.isolation import Isolation
    from agent.probe import Probe
    from agent.protocol import EnrolAnswer
    from agent.ranks import RankProcesses
    from agent.store import Store
    from agent.ws import Listener

log = logging.getLogger("nebula-agent")

EXIT_CONFIG = 2
#: As a shell has it for SIGPIPE; nebula-ctl answers the same.
EXIT_PIPE_CLOSED = 141


class Quit(Exception):
    """Ends the command with one sentence on stderr."""

    def __init__(self, text: str, code: int = EXIT_CONFIG) -> None:
        super().__init__(text)
        self.code = code


def say(text: str) -> None:
    print(text)  # noqa: T201 - this is the command's output


def agent_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("nebulagrid-agent")
    except metadata.PackageNotFoundError:
        return "0+source"


# --- run ------------------------------------------------------------------------------------------------------


def command_run(args: argparse.Namespace) -> int:
    """Run the agent in the foreground. Ranks outlive it."""
    config = _config(args)
    _logging(args.verbose, config.log_format)
    credential = _credential(config)
    _data_dir(config)
    lock = _lock(config)
    try:
        if config.mode == "metrics" or os.name == "nt":
            return _report(config, credential)
        from agent.isolation import isolation_find
        from agent.procs import boot_id

        # The sandbox is tried and the zygote is started in here, before threads, the store and the hardware layer.
        try:
            isolation = isolation_find(config)
            processes = processes_open(config, closed_by=isolation.finding.plan)
        except (OSError, ValueError) as error:
            raise Quit(f"Ranks cannot be kept in {config.data_dir}: {error}.") from error
        try:
            return _run(config, credential, processes, boot_id(), isolation)
        finally:
            processes.close()
    finally:
        os.close(lock)


def processes_open(config: Config, *, closed_by: Mapping[str, Any] | None = None) -> RankProcesses:
    """The ranks of this node, with the limits and the folders that the configuration sets. Raises OSError, ValueError."""
    from agent import host
    from agent.isolation import jobs_dir_of
    from agent.ranks import RankProcesses

    memory_mib = host.memory_mib()
    return RankProcesses(
        config.data_dir,
        shared_name(config),
        pids_max=config.pids_max,
        memory_mib=None if memory_mib is None else memory_mib * config.memory_default_pct // 100,
        jobs_dir=jobs_dir_of(config),
        job_account=config.job_account if config.identity == "shared" else None,
        places=config.code_places,
        closed_by=closed_by,
    )


def store_open(path: Path, *, wait_s: float = 5.0) -> Store:
    """The store, once its disk has room for it. A damaged one is put aside: what is here is then taken in from the ranks' own files.

    Raises Quit for one that can't be used.
    """
    from agent.store import Store, StoreCorrupt, StoreError, StoreUnwritable

    is_told = False
    while True:
        try:
            return Store(path)
        except StoreCorrupt as error:
            aside = f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
            log.error("%s It is put aside (%s.%s); ranks that are here are taken in from their own files.", error, path.name, aside)
            try:
                for suffix in ("", "-wal", "-shm"):
                    old = Path(f"{path}{suffix}")
                    if old.exists():
                        old.rename(f"{path}.{aside}{suffix}")
            except OSError as trouble:
                raise Quit(f"{error} It cannot be put aside: {trouble.strerror}.", 1) from error
        except StoreUnwritable as error:
            if error.kind != "full":
                raise Quit(str(error), 1) from error
            if not is_told:
                log.error("%s The agent waits for that; what runs here goes on.", error)
            is_told = True
            time.sleep(wait_s)
        except StoreError as error:
            raise Quit(str(error), 1) from error


def shared_name(config: Config) -> str:
    """What this agent calls its cgroups, and whatever else it shares with all programs of the machine."""
    from agent.installation import name_of

    return f"{config.installation or name_of(config.data_dir)}-{config.agent_id}"


def _run(config: Config, credential: Credential, processes: Any, boot_id: str, isolation: Isolation) -> int:
    from agent.isolation_words import isolation_lines
    from agent.runner import Runner

    probe, backend = _probe(config)
    config = replace(config, backend=backend)
    store = store_open(config.data_dir / "agent.db")
    for level, text in isolation_lines(isolation):
        log.log(level, text)
    log.info("Node %d (%s), %s, %s backend.", config.node_id, config.name, config.endpoint.url, backend)
    if backend == "none":
        log.info('No GPU is used on this node: it takes CPU jobs. For two simulated cards set backend = "simulated".')
    runner = Runner(
        config=config,
        version=agent_version(),
        boot_id=boot_id,
        store=store,
        processes=processes,
        probe=probe,
        connect=lambda: _client(config, lambda: credential.header),
        listener=_listener(config, credential),
        credential=credential,
        has_cgroups=processes.layout.kind != "none",
        isolation=replace(isolation.info, limits=processes.layout.limits()),
    )
    try:
        return runner.run()
    finally:
        store.close()


def _report(config: Config, credential: Credential) -> int:
    """The agent of a node that only reports."""
    from agent.reporter import Reporter

    # Nothing may run here that this agent then would not know of.
    if any((config.data_dir / "ranks").glob("*")):
        raise Quit(
            f'{config.data_dir} still holds ranks of jobs. Drain the node and let them end in mode = "jobs", or name another data_dir.', 1
        )
    probe, backend = _probe(config)
    config = replace(config, backend=backend)
    store = store_open(config.data_dir / "agent.db")
    log.info("Node %d (%s), %s, %s backend. It only reports.", config.node_id, config.name, config.endpoint.url, backend)
    reporter = Reporter(
        config=config,
        version=agent_version(),
        store=store,
        probe=probe,
        client=_client(config, lambda: credential.header),
        listener=_listener(config, credential),
        credential=credential,
        extra_advice=_windows_advice if os.name == "nt" else tuple,
    )
    try:
        return reporter.run()
    finally:
        store.close()


def _windows_advice() -> tuple[str, ...]:
    from agent import windows

    return windows.advice(windows.display_problems())


def _probe(config: Config) -> tuple[Probe, str]:
    """The probe and the name of what it reads."""
    from agent.backends.base import BackendError, NoBackend
    from agent.backends.choose import backends_present
    from agent.probe import ChildProbe, InlineProbe

    # The child reads it; so it does where the file says it and not the environment.
    os.environ["NEBULA_AGENT_DRIVER_MODEL"] = config.driver_model

    names = [config.backend]
    if config.backend == "auto":
        names = backends_present() or ["none"]
    if len(names) > 1:
        from agent.probe_group import ProbeGroup

        return ProbeGroup([(name, ChildProbe(name)) for name in names]), "+".join(names)
    backend = names[0]
    if backend == "none":
        return InlineProbe(NoBackend()), backend
    if backend != "simulated":
        if os.name == "nt":
            from agent.probe_thread import ThreadProbe

            return ThreadProbe(backend), backend
        return ChildProbe(backend), backend
    from agent.backends.simulated import SimulatedBackend

    simulated = SimulatedBackend(config.scenario, salt=f"node/{config.node_id}")
    try:
        simulated.initialize()
    except BackendError as error:
        raise Quit(str(error)) from error
    return InlineProbe(simulated), backend


def _client(config: Config, auth: Callable[[], str] | None) -> HttpClient:
    return HttpClient(
        config.endpoint,
        authorization=auth,
        ca_file=str(config.ca_file) if config.ca_file else None,
        pin_sha256=config.pin_sha256,
    )


def _listener(config: Config, credential: Credential) -> Callable[[Callable[[], None]], Listener]:
    def make(wake: Callable[[], None]) -> Listener:
        from agent.ws import Listener

        return Listener(
            config.endpoint,
            authorization=lambda: credential.header,
            wake=wake,
            ca_file=str(config.ca_file) if config.ca_file else None,
            pin_sha256=config.pin_sha256,
        )

    return make


def _config(args: argparse.Namespace) -> Config:
    try:
        return config_load(config_path(args.config))
    except ConfigError as error:
        raise Quit(str(error)) from error


def _credential(config: Config) -> Credential:
    try:
        return Credential(config.credential_file, config.node_id)
    except EndpointError as error:
        raise Quit(str(error)) from error


def _data_dir(config: Config) -> None:
    try:
        config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(config.data_dir, os.W_OK | os.X_OK):
            raise PermissionError(13, "it is not writable for this user")
    except OSError as error:
        raise Quit(f"The data directory {config.data_dir} cannot be used: {error.strerror}. Set data_dir or NEBULA_AGENT_DATA.") from error


def _lock(config: Config) -> int:
    """Hold the data directory. The descriptor is not inherited, so the lock ends with this process, whatever lives on."""
    path = config.data_dir / "agent.lock"
    if sys.platform == "win32":
        return _lock_windows(path)
    import fcntl

    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise Quit(f"Another agent (process {other or 'unknown'}) runs on {config.data_dir}; two would start jobs twice.", 1) from None
    # Over what is there: a full disk takes that. The lock is what counts.
    with contextlib.suppress(OSError):
        os.pwrite(fd, f"{os.getpid():<20}\n".encode(), 0)
    return fd


def _lock_windows(path: Path) -> int:
    import msvcrt

    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # A byte far behind the number: what is locked can't be read there.
        os.lseek(fd, 1 << 20, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        os.close(fd)
        raise Quit(f"Another agent runs on {path.parent}.", 1) from None
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _logging(verbose: bool, log_format: str) -> None:
    from agent.jsonlog import JsonLines

    # Under systemd the journal adds the time by itself.
    stamp = "" if "JOURNAL_STREAM" in os.environ else "%(asctime)s "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines("agent") if log_format == "json" else logging.Formatter(f"{stamp}%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    logging.getLogger("websocket").setLevel(logging.CRITICAL)


# --- enroll ---------------------------------------------------------------------------------------------------


def command_enroll(args: argparse.Namespace) -> int:
    """Trade a one-use token for this node's credential, and write the configuration."""
    from agent.protocol import EnrolAnswer, EnrolRequest, ProtocolError

    token = _token(args)
    path = config_path(args.config)
    try:
        endpoint = endpoint_parse(args.endpoint)
        values = values_read(path, {}, must_exist=False)
        client = HttpClient(endpoint, ca_file=args.ca_file, pin_sha256=args.pin_sha256)
    except (EndpointError, ConfigError) as error:
        raise Quit(str(error)) from error
    import socket

    from agent.enrol_identity import IdentityError, identity_values

    try:
        values |= identity_values(values, identity=args.identity, job_account=args.job_account, mode=args.mode or values.get("mode"))
    except IdentityError as error:
        raise Quit(str(error)) from error
    request = EnrolRequest(token=token, hostname=socket.gethostname(), name=args.name, agent_version=agent_version())
    _writable(path)  # a token has one use: find out before it is spent
    try:
        answer = client.request_json("POST", "/api/agent/v1/enroll", request.to_json())
    except Unreachable as error:
        raise Quit(f"{error}.", 1) from error
    finally:
        client.close()
    if answer.status not in (200, 201):
        hint = " Tokens have one use and live for at most an hour; ask for a new one." if answer.status in (400, 401, 403, 404, 410) else ""
        raise Quit(f"The control plane did not enrol this node ({answer.status}): {answer.error_text()}{hint}", 1)
    try:
        node = EnrolAnswer.from_json(answer.json())
    except (ValueError, ProtocolError) as error:
        raise Quit(f"{endpoint.url} answered something that is no enrolment: {error}.", 1) from error
    _enrolled(args, path, endpoint, values, node)
    say(f"This node is {node.name} (id {node.node_id}). Start it with: nebula-agent run --config {path}")
    return 0


def _enrolled(args: argparse.Namespace, path: Path, endpoint: Endpoint, values: dict[str, Any], node: EnrolAnswer) -> None:
    from agent.installation import name_make

    credential_file = path.parent / "agent.credential"
    for key, value in (("ca_file", args.ca_file), ("data_dir", args.data_dir), ("scenario", args.scenario)):
        if value is not None:
            values[key] = str(Path(value).absolute())
    for key in ("pin_sha256", "backend", "mode"):
        if getattr(args, key) is not None:
            values[key] = getattr(args, key)
    values.update(
        endpoint=endpoint.url,
        node_id=node.node_id,
        name=node.name,
        credential_file=str(credential_file.absolute()),
        installation=name_make(node.installation, values.get("installation")),
    )
    file_write_private(credential_file, node.credential + "\n")
    file_write_private(path, config_text(values))


def _writable(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(13, "it is not writable for this user")
    except OSError as error:
        raise Quit(f"The configuration cannot be written to {path.parent}: {error.strerror}. Name another file with --config.") from error


def _token(args: argparse.Namespace) -> str:
    if args.token is not None:
        print("Warning: a token on the command line is seen by every user of this machine; use --token-file.", file=sys.stderr)  # noqa: T201
        text = str(args.token)
    elif args.token_file == "-":  # noqa: S105 - a file name
        text = sys.stdin.readline()
    elif args.token_file is not None:
        try:
            text = Path(args.token_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Quit(f"The token file {args.token_file} cannot be read: {error}.") from error
    else:
        raise Quit("Give the token with --token-file FILE, or --token-file - to read it from standard input.")
    text = text.strip()
    if not text:
        raise Quit("The token is empty.")
    return text


# --- status ---------------------------------------------------------------------------------------------------


def command_status(args: argparse.Namespace) -> int:
    """Show node, control plane, cards and ranks. Exit status 1 when no agent runs."""
    from agent.status import status_collect, status_lines

    found = status_collect(_config(args))
    if args.json:
        say(json.dumps(found, indent=2))
    else:
        for line in status_lines(found, now=time.time()):
            say(line)
    return 0 if found["running"] else 1


# --- doctor ---------------------------------------------------------------------------------------------------


def command_doctor(args: argparse.Namespace) -> int:
    """Look at driver, cards, clock, disk and the rest, and say what is to be put right. Exit status 1 when a check failed."""
    from agent.doctor import examine

    config, config_error = None, None
    path = config_path(args.config)
    if path.exists() or args.config is not None or "NEBULA_AGENT_NODE_ID" in os.environ:
        try:
            config = config_load(path)
        except ConfigError as error:
            config_error = str(error)
    text, code = examine(config, config_error=config_error, as_json=args.json)
    say(text)
    return code


# --- the command line -----------------------------------------------------------------------------------------


def parser_make() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nebula-agent", description="NebulaGrid's agent: runs this node's share of the jobs.")
    parser.add_argument("--version", action="version", version=agent_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, function: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=(function.__doc__ or "").splitlines()[0], description=function.__doc__)
        sub.add_argument("--config", metavar="FILE", help="configuration (NEBULA_AGENT_CONFIG, /etc/nebulagrid/agent.toml)")
        sub.set_defaults(function=function)
        return sub

    run = add("run", command_run)
    run.add_argument("-v", "--verbose", action="store_true", help="log debug messages too")
    status = add("status", command_status)
    status.add_argument("--json", action="store_true", help="for programs")
    doctor = add("doctor", command_doctor)
    doctor.add_argument("--json", action="store_true", help="for programs")
    enroll = add("enroll", command_enroll)
    enroll.add_argument("--endpoint", required=True, metavar="URL", help="the control plane, https://HOST[:PORT]")
    enroll.add_argument("--token-file", metavar="FILE", help="file with the one-use token; - reads standard input")
    enroll.add_argument("--token", help="the token itself (others can see it: prefer --token-file)")
    enroll.add_argument("--name", help="name of this node (its host name)")
    enroll.add_argument("--data-dir", metavar="DIR", help="where the agent keeps its store and its ranks")
    enroll.add_argument("--backend", choices=BACKENDS, help="kind of hardware (auto)")
    enroll.add_argument("--mode", choices=("jobs", "metrics"), help="metrics: the node only reports, nothing is launched on it")
    enroll.add_argument("--identity", choices=("same", "shared", "mapped"), help="who jobs run as (as root: shared)")
    enroll.add_argument("--job-account", metavar="NAME", help="with --identity shared: the account of all jobs (nebulagrid-jobs)")
    enroll.add_argument("--scenario", metavar="FILE", help="scenario of the simulated backend")
    enroll.add_argument("--ca-file", metavar="FILE", help="the control plane's own CA")
    enroll.add_argument("--pin-sha256", metavar="HEX", help="SHA-256 of the control plane's certificate")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a sign gets \\u…: a card's name must not end the command.
        getattr(stream, "reconfigure", lambda **_more: None)(errors="backslashreplace")
    try:
        args = parser_make().parse_args(argv)
        code = int(args.function(args))
        sys.stdout.flush()
        return code
    except Quit as quitting:
        print(f"nebula-agent: {quitting}", file=sys.stderr)  # noqa: T201
        return quitting.code
    except BrokenPipeError:
        # The reader (head, less) has enough. Without this Python complains of what is still buffered when it exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
