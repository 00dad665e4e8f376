"""Start one program: fork, session, group, output, identity, exec. Runs inside a shim.

The child is held on a pipe until started.json is on the disk, so that the user's code never runs unrecorded; if the
shim dies before that, the pipe closes and the child ends without having run anything. What goes wrong comes back
on a second pipe, which a successful exec closes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import signal

from agent import placed, procs, sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agent.cgroups import CgroupGroup, SessionGroup

#: Jobs never run as one of the machine's own accounts, whatever the control plane's map says.
MIN_UID = 1000
#: uid 0 can't be contained by anything that we could put around it.
ROOT_REFUSED = (
    "The agent of this node runs as root and the job has no Unix account: no job runs as root. Give its owner an account "
    '(identity = "mapped"), or all jobs one (identity = "shared" with job_account), in the configuration of the agent'
)
OOM_SCORE = "/proc/self/oom_score_adj"


class LaunchFailed(Exception):
    """``kind`` is a protocol.LaunchError, ``text`` one sentence for the user."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Child:
    """A program that is forked but not yet let go. ``errors`` turns readable when it has exec'd or failed."""

    def __init__(self, pid: int, start: int, go: int, errors: int) -> None:
        self.pid, self.start, self.errors, self._go = pid, start, errors, go

    def let_go(self) -> None:
        """Let the program run. A child that failed already has closed its end; the error pipe tells why."""
        with contextlib.suppress(OSError):
            os.write(self._go, b"g")
        os.close(self._go)

    def failure(self) -> LaunchFailed | None:
        """Blocks until the program has exec'd (None) or failed."""
        data = b""
        while chunk := os.read(self.errors, 65536):
            data += chunk
        os.close(self.errors)
        if not data:
            return None
        kind, text = json.loads(data)
        return LaunchFailed(kind, text)


def program_fork(
    *,
    order: dict[str, Any],
    group: CgroupGroup | SessionGroup,
    account: pwd.struct_passwd | None,
    output: int,
    oom_score: str | None,
    variables: dict[str, str] | None = None,
) -> Child:
    """Fork the program of ``order`` (spec.json); ``account`` None = it keeps our identity; ``variables``: those of its environment
    that no file has. Raises OSError when the fork fails."""
    go_read, go_write = os.pipe()
    errors_read, errors_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_write)
        try:
            _prepare_and_exec(order, group, account, output, go_read, oom_score, variables or {})
            kind, text = "internal", "exec returned"
        except LaunchFailed as failure:
            kind, text = failure.kind, failure.text
        except BaseException as error:  # whatever it is, it must reach the user and must not unwind into the shim's code
            kind, text = "internal", f"{type(error).__name__}: {error}"
        try:
            os.write(errors_write, json.dumps([kind, text]).encode())
        finally:
            os._exit(127)
    os.close(go_read)
    os.close(errors_write)
    stat = procs.process_stat(pid)  # ours and not reaped, so it is there
    return Child(pid, stat.start if stat else 0, go_write, errors_read)


def _prepare_and_exec(
    order: dict[str, Any],
    group: CgroupGroup | SessionGroup,
    account: pwd.struct_passwd | None,
    output: int,
    go: int,
    oom_score: str | None,
    variables: dict[str, str],
) -> None:
    spec = order["spec"]
    # 1. Own session, own group, and only then anything of the user's.
    os.setsid()
    try:
        group.join()
    except OSError as error:
        raise LaunchFailed("cgroup", f"The program could not enter its process group: {error}") from error
    if isinstance(order["group"].get("pids_max"), int) and order["group"]["kind"] == "none":
        _processes_limit(order["group"]["pids_max"], os.getuid() if account is None else account.pw_uid)
    if oom_score is not None:
        with contextlib.suppress(OSError):  # raising it is every process's right; only a missing /proc can refuse
            _oom_score_set(oom_score)
    # 2. Standard files. Everything else is close-on-exec.
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0, inheritable=True)
    os.dup2(output, 1, inheritable=True)
    os.dup2(output, 2, inheritable=True)
    # 3. Wait until the start is on record.
    if os.read(go, 1) != b"g":
        os._exit(127)
    # 4. What it is closed in, and its identity.
    closed_by = order.get("sandbox")
    try:
        prepared = sandbox.prepare(closed_by, output=output)
    except OSError as error:
        raise LaunchFailed("internal", f"The program could not be closed off: {error.strerror}") from error
    env: dict[str, str] = dict(order["env"])
    if account is not None:
        try:
            os.initgroups(account.pw_name, account.pw_gid)
            os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
            os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
        except OSError as error:
            raise LaunchFailed("user", f"Cannot become {account.pw_name}: {error}") from error
        own = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell}
        for name, value in own.items():
            if name not in spec.get("env", {}):
                env[name] = value  # not the agent's own
    procs.prctl(procs.PR_SET_NO_NEW_PRIVS, 1)
    try:
        sandbox.enter(closed_by, prepared)
    except OSError as error:
        raise LaunchFailed("internal", f"The program could not be closed off: {error.strerror}") from error
    # 5. Surroundings.
    os.umask(0o022)
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            with contextlib.suppress(OSError, ValueError):  # numbers that libc keeps for itself
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    workdir = spec.get("workdir")
    places = order.get("places") or ()
    if workdir is not None and (instead := placed.placed(workdir, places)) is not None:
        with contextlib.suppress(OSError):
            os.write(2, placed.note(workdir, instead))
        workdir = instead
    if workdir is None:
        workdir = env.get("HOME", "/")
        if not os.path.isdir(workdir):
            workdir = "/"
    try:
        os.chdir(workdir)
    except OSError as error:
        raise LaunchFailed("workdir", f"Cannot enter the working directory {workdir!r}: {error.strerror}") from error
    except ValueError as error:
        raise LaunchFailed("spec", f"The working directory {workdir!r} is not usable: {error}") from error
    _resume_check(env)
    env.update(variables)
    # 6. The program, looked up in the job's own PATH.
    argv: list[str] = list(spec["argv"])
    if argv and argv[0].startswith("/"):
        argv[0] = placed.placed(argv[0], places) or argv[0]
    try:
        _exec(argv, env)
    except (ValueError, UnicodeError, IndexError) as error:
        raise LaunchFailed("spec", f"The command or its environment cannot be passed on: {error}") from error
    except BlockingIOError as error:  # the account has more processes than it may: the node's state, not the command's fault
        raise LaunchFailed("internal", f"The job's account has too many processes on this node: {error.strerror}") from error
    except OSError as error:
        raise LaunchFailed("exec", f"{error.strerror}: {argv[0]!r}{_exec_hint(argv[0])}") from error


def _resume_check(env: dict[str, str]) -> None:
    """A later lap of a job that has saved nothing yet begins at the beginning. Asked here, as the job's own user and in
    its folder: a file server that doesn't answer holds up this rank and nobody else."""
    try:
        os.lstat(env.get("NEBULA_RESUME_FROM", "."))
    except (FileNotFoundError, NotADirectoryError):
        del env["NEBULA_RESUME_FROM"]
    except (OSError, ValueError):
        pass  # it may be there: the program will see


def _exec(argv: list[str], env: dict[str, str]) -> None:
    """As execvpe, PATH of ``env``; but that one imports a module on the way, and as another user we may read none."""
    program = argv[0]
    paths = [program] if "/" in program else [f"{folder or '.'}/{program}" for folder in env.get("PATH", os.defpath).split(":")]
    denied: OSError | None = None
    for path in paths:
        try:
            os.execve(path, argv, env)  # noqa: S606 - without a shell is the point
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            # A later folder may have one that we may run; a folder that we may not even look into has none for us.
            if path == program or os.path.exists(path):
                denied = error
    raise denied or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def account_find(name: str | None, *, min_uid: int = MIN_UID) -> pwd.struct_passwd | None:
    """The account to become; None = stay who we are, which root never does. Raises LaunchFailed("user")."""
    if name is None:
        if os.geteuid() == 0:
            raise LaunchFailed("user", ROOT_REFUSED)
        return None
    try:
        account = pwd.getpwnam(name)
    except (KeyError, ValueError) as error:
        raise LaunchFailed("user", f"There is no user {name!r} on this node") from error
    if account.pw_uid == os.geteuid() != 0:
        return None
    if os.geteuid() != 0:
        mine = _name(os.geteuid())
        raise LaunchFailed("user", f"The agent runs as {mine} and cannot become {name!r}; only an agent that runs as root can")
    min_uid = max(min_uid, 1)  # no job runs as root, whatever is configured
    if account.pw_uid < min_uid:
        raise LaunchFailed("user", f"{name!r} has uid {account.pw_uid}; jobs only run as users with uid {min_uid} and above")
    return account


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _exec_hint(program: str) -> str:
    """ENOENT for a file that exists means the interpreter in its first line."""
    if "/" in program and os.path.isfile(program):
        try:
            with open(program, "rb") as file:
                first = file.readline(256)
        except OSError:
            return ""
        if first.startswith(b"#!"):
            return f" (its interpreter is {first[2:].strip().decode(errors='replace')!r})"
    return ""


def _processes_limit(most: int, uid: int) -> None:
    """Where no cgroup counts a rank's processes: so many more than the job's account has now. The kernel counts by account, so this keeps
    a fork bomb from taking the whole machine down, and is no limit of the rank's own."""
    import resource  # only here

    wanted, hard = _threads_of(uid) + most, resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, wanted)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted, wanted))


def _threads_of(uid: int) -> int:
    """As the kernel counts them: by the real uid."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, KeyError, ValueError, IndexError), open(f"/proc/{name}/status", "rb") as file:
                found = dict(line.split(b":", 1) for line in file if line.startswith((b"Uid:", b"Threads:")))
                if int(found[b"Uid"].split()[0]) == uid:
                    total += int(found[b"Threads"])
    return total


def oom_score_lower() -> str | None:
    """Make the kernel prefer the program to its shim when memory runs out; the score for the program, which is never below 0: a job
    that inherits the protection of the agent's service would have the kernel kill everything else on the machine first."""
    try:
        with open(OOM_SCORE, encoding="ascii") as file:
            old = int(file.read())
    except (OSError, ValueError):
        return None
    with contextlib.suppress(OSError):  # a shim may protect itself only where it has the right to
        _oom_score_set(str(min(old, -500)))
    return str(max(0, old))


def _oom_score_set(value: str) -> None:
    with open(OOM_SCORE, "w", encoding="ascii") as file:
        file.write(value)
