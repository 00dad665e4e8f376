"""`manage.py up` by root: prepares as the control plane's account, then becomes the supervisor, which stays root for the agent's sake.

1. Two accounts, a layout of folders, what an earlier start as root left, code that the accounts can read.
2. `manage.py up` in a process of the control plane's account does all that needs the database; root answers it over a socket and writes
   what is root's: password, profile, the agents' configurations.
3. The supervisor starts Redis, web, worker and beat as that account, and the agents as root, who give each job the account of jobs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from nebulagrid.embedded import die_with_parent
from nebulagrid.reach import reach_find, reach_lines
from nebulagrid.rooted.accounts import Account, as_account, control_account, job_account
from nebulagrid.rooted.entry import CHECKOUT, owner_of
from nebulagrid.rooted.errors import RootedError
from nebulagrid.rooted.handover import hand_over
from nebulagrid.rooted.layout import Layout, layout_find, layout_make, owner_check, state_folder
from nebulagrid.rooted.line import VARIABLE, Prepared, serve
from nebulagrid.rooted.placement import Place, Source, place_find
from nebulagrid.rooted.surroundings import environment
from nebulagrid.startfiles import OwnFiles, agent_read, agent_write
from nebulagrid.supervisor import ChildSpec, Plan, leftovers_wait


def say(text: str) -> None:
    print(f"      {text}", flush=True)  # noqa: T201


class RootsFiles(OwnFiles):
    """What is root's: at the top of the layout, and the agents' folders."""

    def __init__(self, layout: Layout, *, named: str | None) -> None:
        super().__init__(layout.top, named=named)
        self._agents = layout.agents

    def agent_read(self, name: str) -> dict[str, Any]:
        return agent_read(self._agents / name)

    def agent_write(self, name: str, values: Any, credential: str | None) -> Path:
        return agent_write(self._agents / name, values, credential)


def up(argv: list[str], top: Path) -> int:
    """The exit status of a start that was refused; else this process becomes the supervisor. Raises RootedError."""
    os.umask(0o022)
    # 1. Accounts, folders, code.
    control = control_account()
    as_account(control, bytes)
    jobs = None if "--no-agent" in argv else job_account(control=control)
    if jobs is not None:
        as_account(jobs, bytes)
    layout = layout_find(top)
    if owner_of(top) is not None:
        owner_check(layout, control)
    layout_make(layout, control)
    lock = _lock(layout)
    (layout.run / "ready").unlink(missing_ok=True)
    leftovers_wait(layout.run, say=say)
    hand_over(layout, control, say)
    if layout.is_moved:
        say(f"{control.name} and jobs can't get to {layout.top}, or others than root could move it: the data are in {layout.base}")
    accounts = [control] if jobs is None else [control, jobs]
    place = place_find(Source.of_this_process(CHECKOUT), accounts, state_folder, say)
    # 2. The database, as its account.
    prepared = _prepare(argv, layout, control, jobs, place)
    if isinstance(prepared, int):
        return prepared
    # 3. All of it.
    return _become(layout, control, place, prepared, lock)


def _lock(layout: Layout) -> int:
    lock = os.open(layout.run / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode().strip() or "unknown"
        raise RootedError(f"Another `up` (process {owner}) uses {layout.top}; stop it, or set NEBULA_DATA to another folder.") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def agent_values(layout: Layout, jobs: Account | None, place: Place) -> dict[str, str]:
    """What root decides of each agent's configuration."""
    values = {
        "identity": "shared",
        "job_account": jobs.name if jobs else "",
        "jobs_dir": str(layout.jobs / "{name}"),  # one agent a folder
        "hidden_dirs": ":".join(map(str, [layout.control, layout.jobs, *([layout.top] if layout.is_moved else [])])),
    }
    if place.moves:
        values["code_from"] = ":".join(str(old) for old, _ in place.moves)
        values["code_at"] = ":".join(str(new) for _, new in place.moves)
    return values


def _prepare(argv: list[str], layout: Layout, control: Account, jobs: Account | None, place: Place) -> Prepared | int:
    ours, theirs = socket.socketpair()
    env = environment(control, os.environ, data=layout.control)
    words = _scenario_checked(argv[1:], env)
    with theirs:
        child = subprocess.Popen(
            [str(place.python), "manage.py", *words],
            cwd=place.code,
            env={**env, VARIABLE: str(theirs.fileno())},
            user=control.uid,
            group=control.gid,
            extra_groups=list(control.groups),
            pass_fds=[theirs.fileno()],
            preexec_fn=die_with_parent(signal.SIGTERM),
        )
    # Whoever stops us stops the child; its end is seen here.
    before = signal.signal(signal.SIGINT, lambda number, frame: child.send_signal(number))
    files = RootsFiles(layout, named=os.environ.get("NEBULA_CONFIG"))
    extra = {"folder": str(Path.cwd()), "bin": str(Path(sys.prefix) / "bin")}
    with ours:
        prepared = serve(ours, files, agent_values=agent_values(layout, jobs, place), hello=extra)
    code = child.wait()
    signal.signal(signal.SIGINT, before)
    if code != 0 or prepared is None or prepared.lock < 0:
        return 128 - code if code < 0 else code or 1
    return prepared


def _scenario_checked(words: list[str], env: dict[str, str]) -> list[str]:
    """``--scenario`` by its full path: the agent, which is root, reads it, and the control plane's account may not be able to.

    ``--web-port`` becomes a setting here, since all processes must agree about it."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith(("--scenario=", "--web-port=")) else [word])]
    for at, word in enumerate(words[:-1]):
        if word == "--scenario":
            path = str(Path.cwd() / words[at + 1])
            try:
                json.loads(Path(path).read_text())
            except (OSError, ValueError) as error:
                raise RootedError(f"--scenario {words[at + 1]} can't be used: {error}") from error
            words[at + 1] = path
        elif word == "--web-port":
            env["NEBULA_PORT"] = words[at + 1]
    return words


def _become(layout: Layout, control: Account, place: Place, prepared: Prepared, lock: int) -> NoReturn:
    children = [
        ChildSpec(**{**child, "account": control.to_json(), "cwd": str(place.code)})  # who it runs as is not the other side's to say
        for child in prepared.children
    ]
    agents = [
        ChildSpec(
            name=name,
            argv=[str(place.python), "-m", "agent.main", "run", "--config", str(layout.agents / name / "agent.toml")],
            env={"PYTHONUNBUFFERED": "1"},
            clean=True,
            stage=2,
            cwd=str(place.code),
        )
        for name in prepared.agents
    ]
    ready = prepared.ready
    if agents:
        allowed = os.environ.get("NEBULA_ALLOW_UNISOLATED", "").lower() in ("1", "true", "yes")
        found = reach_find(place.python, layout.agents / prepared.agents[0] / "agent.toml", place.code)
        ready = [*ready[:-1], *reach_lines(found, allowed=allowed), ""]
    plan = Plan(
        run_dir=str(layout.run),
        lock_fd=lock,
        also_fds=[prepared.lock],
        children=[*children, *agents],
        ready=ready,
        ready_file=str(layout.run / "ready"),
    )
    path = layout.run / "plan.json"
    aside = path.with_suffix(".new")
    with contextlib.suppress(FileNotFoundError):
        aside.unlink()
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(plan.to_json())
    aside.replace(path)
    os.umask(0o077)
    os.chdir(place.code)
    for fd in (lock, prepared.lock):
        os.set_inheritable(fd, True)
    sys.stdout.flush()
    os.execv(place.python, [str(place.python), "-m", "nebulagrid.supervisor", str(path)])  # noqa: S606
