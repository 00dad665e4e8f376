"""The agent's side of its ranks: asks the zygote for shims, hears of changes, stops, adopts, forgets.

Nothing here waits. What happens to a rank is written down by its shim (see rankdir); this module learns of it through
one epoll descriptor: a datagram from the shim (a hint), the shim's pidfd (it ended), the zygote's socket. Whatever was
missed is found by looking at the files, which ``poll`` does for ranks that need it once a second: call it at least so often.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent import cgroups, jobdir, launch, procs, rankdir, sandbox, secretdir
from agent.processes import RankState, Recoverable
from agent.protocol import ExitCause, ExitInfo, ProtocolError, RankId, RankSpec, rank_parts
from agent.recovery import final_read, launch_failed, rank_examine, running_state
from agent.removals import Removals
from agent.zygotes import ZygoteLink

log = logging.getLogger(__name__)

_WAKE = signal.SIGUSR2
_LOOK_S = 1.0
#: For so long the kernel stays quick after an entry into a cgroup.
_WARM_S = 0.02
#: Shims of one rank that die are replaced at once this often, then only once in _LOOK_S, and at last not at all.
_QUICK_ADOPTIONS = 3
_MOST_ADOPTIONS = 20
#: A shim that has not ended its rank so long after the last moment of a stop is replaced.
_OVERDUE_S = 10.0


@dataclass(slots=True)
class _Held:
    """A rank whose directory is ours. ``told``: the last state given out by ``poll`` or ``recover``."""

    rank: RankId
    path: str
    group: cgroups.CgroupGroup | cgroups.SessionGroup
    told: RankState
    shim: tuple[int, int] | None = None
    pidfd: int | None = None
    asked_at: float | None = None  # monotonic; a shim was asked for and has not been named yet
    adopting: bool = False  # what was asked for: a replacement, not a first start
    adoptions: int = 0
    adopt_at: float | None = None
    starting_since: float = 0.0
    stop_by: float | None = None  # boot time; a stop was ordered, and by then all of it should be over
    secrets: str | None = None  # the folder with their values

    @property
    def is_final(self) -> bool:
        return self.told.state in ("EXITED", "LAUNCH_FAILED")


class RankProcesses:
    """See processes.Processes, which this class is. One thread only."""

    def __init__(
        self,
        data: Path,
        agent_id: str,
        *,
        cgroup: str | None = None,
        boot_id: str | None = None,
        term_lead_s: float = 2.0,
        kill_wait_s: float = 5.0,
        pids_max: int | None = None,
        memory_mib: int | None = None,
        min_uid: int = launch.MIN_UID,
        secrets_in: str | None = "",
        jobs_dir: Path | None = None,
        job_account: str | None = None,
        places: Sequence[tuple[Path, Path]] = (),
        closed_by: Mapping[str, Any] | None = None,
    ) -> None:
        """``data``: the agent's directory, ranks live in ``data/ranks``. ``agent_id``: names this agent's groups, stable over restarts
        and different for each agent of a machine. ``cgroup``: None = the best that works, else v2, v1 or none. ``pids_max``: processes
        and threads of one rank, at most half of what the machine can have. ``memory_mib``: of a rank that asked for none; None = no limit.
        ``secrets_in``: where values of secrets are while a rank lives, "" = in memory if the machine can, None = below ``jobs_dir``.
        ``jobs_dir``: where the folders of the jobs themselves are, None = beside ``data``. ``job_account``: who all jobs run as.
        ``places``: (what jobs can't reach, where it is placed for them).
        ``closed_by``: what they are closed in (sandbox_probe.Finding.plan).

        Raises OSError when the directory cannot be used or the forced kind of cgroup does not work here.
        """
        self.root = data.absolute() / "ranks"
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for gone in self.root.glob(".gone-*"):
            shutil.rmtree(gone, ignore_errors=True)  # an earlier agent was forgetting it when it ended
        self.boot_id = boot_id or procs.boot_id()
        self.layout = cgroups.layout_find(agent_id, force=cgroup)
        log.info("Ranks are held by %s.", self.layout.note)
        self._term_lead_s, self._kill_wait_s, self._min_uid = term_lead_s, kill_wait_s, min_uid
        half = _half_of_all_pids()
        self._pids_max = min(filter(None, (pids_max, half)), default=None)
        self._memory_mib = memory_mib
        wanted = jobs_dir.absolute() if jobs_dir is not None else Path(jobdir.root_beside(str(data.absolute())))
        # A sandbox covers folders by the names that no link leads through.
        self.jobs_dir = Path(os.path.realpath(wanted.parent), wanted.name)
        jobdir.root_make(str(self.jobs_dir), is_root=os.geteuid() == 0)
        self._places = tuple(places)
        self._job_account, self._closed_by = job_account, dict(closed_by) if closed_by is not None else None
        self._prefix = secretdir.prefix_of(agent_id)
        self._secret_places = self._secrets_prepare(secrets_in)
        self._removals = Removals()
        self._held: dict[RankId, _Held] = {}
        self._changes: list[RankState] = []
        self._pidfds: dict[int, _Held] = {}
        self._looked_at = self._warmed_at = 0.0
        self._epoll = select.epoll()
        self._hints = self._hints_bind()
        self._epoll.register(self._hints, select.EPOLLIN)
        self._zygote = ZygoteLink()
        self._epoll.register(self._zygote.fileno(), select.EPOLLIN)

    def _hints_bind(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        # By way of a descriptor: a socket's path may have 107 bytes, a data directory more.
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            (self.root / rankdir.NOTIFY).unlink(missing_ok=True)
            line.bind(f"/proc/self/fd/{folder}/{rankdir.NOTIFY}")
            os.chmod(self.root / rankdir.NOTIFY, 0o600)
        finally:
            os.close(folder)
        return line

    def _secrets_prepare(self, place: str | None) -> list[str]:
        """The parents of secrets' folders, the best first."""
        memory = secretdir.memory_folder() if place == "" else place
        found: list[str] = []
        is_root = os.geteuid() == 0
        # Rights on files can't hide one folder of /dev/shm and let programs create others beside it.
        if memory is not None and not (place == "" and self._closed_by is not None and self._closed_by["kind"] == "landlock"):
            path = secretdir.parent_path(memory, self._prefix, str(self.root))
            try:
                for folder in (secretdir.top_path(memory), path):
                    secretdir.parent_make(folder, is_root=is_root)
                found.append(path)
            except OSError as error:
                log.warning("Secrets can't be kept in memory: %s", error.strerror)
        beside = f"{self.jobs_dir}/{secretdir.BESIDE}"
        secretdir.parent_make(beside, is_root=is_root)
        return [*found, beside]

    def close(self) -> None:
        for held in self._held.values():
            self._unwatch(held)
        self._zygote.close()
        self._hints.close()
        self._epoll.close()
        if all(held.is_final for held in self._held.values()):
            self.layout.remove()  # a shim that is being forked now would miss it
            for parent in self._secret_places:
                with contextlib.suppress(OSError):
                    os.rmdir(parent)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def rank_dir(self, rank: RankId) -> Path:
        rank_parts(rank)  # a name from outside never becomes a path unchecked
        return self.root / rank

    def job_dir(self, rank: RankId) -> Path:
        """The folder that is the job's own."""
        rank_parts(rank)
        return self.jobs_dir / rank

    def artifacts_dir(self, rank: RankId) -> Path:
        """$NEBULA_ARTIFACTS. A rank that an older agent started has it in the rank's directory."""
        older = self.rank_dir(rank) / jobdir.ARTIFACTS
        return older if older.is_dir() else self.job_dir(rank) / jobdir.ARTIFACTS

    # --- orders -----------------------------------------------------------------------------------------------

    def warm(self) -> None:
        """A start may come within the next 20 ms: call it when the control plane says "sync now". It saves 6 to 12 ms
        where entering a cgroup is slow after a pause; quick, and harmless if nothing comes."""
        now = time.monotonic()
        if self.layout.home is not None and now - self._warmed_at > _WARM_S:
            self._warmed_at = now
            self._zygote.warm(self.layout.home)

    def start(
        self,
        rank: RankId,
        spec: RankSpec,
        env: Mapping[str, str],
        *,
        lease_s: int | None = None,
        secrets: Mapping[str, str] | None = None,
        denied: Sequence[str] = (),
    ) -> None:
        """Ask for a shim. The program gets ``env`` plus the rank's mark and, if it is not there, NEBULA_ARTIFACTS."""
        path, folder = str(self.rank_dir(rank)), str(self.job_dir(rank))
        plan = self.layout.plan(
            rank,
            pids_max=self._pids_max,
            memory_mib=spec.memory_mib or self._memory_mib,
            cpu_weight_milli=spec.cpu_milli or 1000 * max(1, len({grant.uuid for grant in spec.gpus})),
            cpu_milli=spec.cpu_milli,
            denied=denied,
        )
        held = _Held(rank, path, cgroups.group_open(plan), RankState(rank=rank, state="PREPARING"))
        if rank in self._held:
            return  # RUN twice changes nothing
        self.warm()
        self._held[rank] = held
        full = {"NEBULA_ARTIFACTS": f"{folder}/{jobdir.ARTIFACTS}", **env, cgroups.MARK: plan["mark"].partition("=")[2]}
        order: dict[str, Any] = {
            "rank": rank,
            "boot_id": self.boot_id,
            "spec": spec.to_json(),
            "env": full,
            "group": plan,
            "lease_s": lease_s,
            "term_lead_s": self._term_lead_s,
            "kill_wait_s": self._kill_wait_s,
            "min_uid": self._min_uid,
            "folder": folder,
            "account": self._job_account,
            "places": [[str(old), str(new)] for old, new in self._places],
        }
        try:
            os.mkdir(path, 0o700)
            if spec.secrets:
                held.secrets = order["secrets"] = self._secrets_write(rank, spec, secrets or {})
                if any(ref.env is None for ref in spec.secrets):
                    full[secretdir.VARIABLE] = held.secrets
            if self._closed_by is not None:
                keep = [folder, held.secrets] if held.secrets is not None else [folder]
                order["sandbox"] = sandbox.plan_of_rank(self._closed_by, keep=keep)
            rankdir.file_write(path, rankdir.SPEC, order)
        except FileExistsError:
            self._tell(held, launch_failed(rank, "internal", f"The directory {path} exists already; a rank is started only once."))
            return
        except (OSError, ValueError) as error:
            self._tell(held, launch_failed(rank, "internal", f"The rank's directory could not be made: {error}"))
            return
        held.starting_since = time.monotonic()
        self._ask(held, adopt=False)

    def _secrets_write(self, rank: RankId, spec: RankSpec, values: Mapping[str, str]) -> str:
        """In memory where that is possible. Raises OSError, ValueError; neither tells a value."""
        for parent in self._secret_places[:-1]:
            try:
                return secretdir.write(parent, "", rank, spec.secrets, values)
            except OSError as error:
                log.warning("Secrets of rank %s can't be kept in %s: %s.", rank, parent, error.strerror)
        return secretdir.write(self._secret_places[-1], "", rank, spec.secrets, values)

    def stop(self, rank: RankId, *, grace_s: float, cause: ExitCause = "stopped", reason: str | None = None) -> None:
        """Of two stops the earlier deadline counts, and the cause of the first."""
        held = self._held.get(rank)
        if held is None or held.is_final:
            return
        now = procs.boottime()
        stop_by = now + grace_s + self._kill_wait_s + _OVERDUE_S
        held.stop_by = stop_by if held.stop_by is None else min(stop_by, held.stop_by)
        old = rankdir.file_read(held.path, rankdir.STOP)
        if old is not None:
            if old["at"] + old["grace_s"] <= now + grace_s:
                return
            cause, reason = old["cause"], old.get("reason")
        try:
            rankdir.file_write(held.path, rankdir.STOP, {"cause": cause, "reason": reason, "grace_s": grace_s, "at": now})
        except OSError as error:
            log.error("The order to stop rank %s cannot be written (%s); it is killed instead.", rank, error)
            self._group(held).kill()
            return
        if held.shim is not None:
            procs.signal_send(*held.shim, _WAKE)

    def kill(self, rank: RankId) -> None:
        held = self._held.get(rank)
        if held is not None:
            if held.is_final:
                self._group(held).kill()
            else:
                self.stop(rank, grace_s=0.0)

    def lease_set(self, rank: RankId, lease_s: int | None) -> None:
        """Change a rank's lease; None = none. The shim counts it, so it holds while no agent runs."""
        held = self._held.get(rank)
        if held is not None and not held.is_final:
            try:
                rankdir.file_write(held.path, rankdir.LEASE, {"lease_s": lease_s})
            except FileNotFoundError:
                pass  # the job removed its directory: `poll` will say so
            except OSError as error:
                log.error("The changed lease of rank %s cannot be written (%s); the one before holds.", rank, error.strerror)

    def lease_renew(self, sent_at: float) -> None:
        """A sync was answered. ``sent_at``: when it was sent, in CLOCK_BOOTTIME seconds (procs.boottime).

        Written over what is there, in one write of one length: a full disk takes it, and a rank whose control plane answers is not
        stopped because it couldn't be noted.
        """
        try:
            fd = os.open(self.root / rankdir.RENEWED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, f"{sent_at:019.3f}\n".encode(), 0)
            finally:
                os.close(fd)
        except OSError as error:
            log.error("That the control plane answered cannot be noted (%s); ranks with a lease may be stopped by it.", error.strerror)

    def forget(self, rank: RankId) -> None:
        path = self.rank_dir(rank)
        held = self._held.pop(rank, None)
        if held is not None:
            self._unwatch(held)
        self._group_of(rank, held).remove()
        # The job's folder first, and only renamed: what is in it may take minutes to remove.
        folder = jobdir.put_away(str(self.jobs_dir), rank)
        if folder is not None:
            self._removals.add(folder)
        # Renamed first: a directory that is half removed when the power fails is no rank any more.
        gone = self.root / f".gone-{rank}"
        try:
            shutil.rmtree(gone, ignore_errors=True)
            path.rename(gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)

    # --- questions --------------------------------------------------------------------------------------------

    def pids(self, rank: RankId) -> frozenset[int]:
        held = self._held.get(rank)
        return frozenset(self._group(held).pids()) if held is not None else frozenset()

    def owners(self) -> dict[int, RankId]:
        """Process id → rank, for everything that runs here."""
        return {pid: rank for rank in self._held for pid in self.pids(rank)}

    def tree_gone(self, rank: RankId) -> bool:
        held = self._held.get(rank)
        if held is None:
            return not self._group_of(rank, None).populated()
        return held.is_final and not self._group(held).populated()

    def _group(self, held: _Held) -> cgroups.CgroupGroup | cgroups.SessionGroup:
        if isinstance(held.group, cgroups.SessionGroup):
            started = rankdir.file_read(held.path, rankdir.STARTED)
            program = (started["pid"], started["start"]) if started else None
            # Only the shim that forked the program is above it.
            held.group.know(shim=(started["shim"]["pid"], started["shim"]["start"]) if started else held.shim, program=program)
        return held.group

    def _group_of(self, rank: RankId, held: _Held | None) -> cgroups.CgroupGroup | cgroups.SessionGroup:
        if held is not None:
            return self._group(held)
        order = rankdir.file_read(str(self.rank_dir(rank)), rankdir.SPEC)
        return cgroups.group_open(order["group"] if order else self.layout.plan(rank))

    # --- what happens -----------------------------------------------------------------------------------------

    def poll(self) -> list[RankState]:
        for fd, _ in self._epoll.poll(0):
            if fd == self._hints.fileno():
                self._hints_read()
            elif fd == self._zygote.fileno():
                self._zygote_read()
            elif fd in self._pidfds:
                held = self._pidfds[fd]
                self._unwatch(held)
                self._refresh(held, is_alive=False)
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._look(now)
        found, self._changes = self._changes, []
        return found

    def _hints_read(self) -> None:
        while True:
            try:
                text = self._hints.recv(256).decode(errors="replace")
            except BlockingIOError:
                return
            rank, _, what = text.partition(" ")
            held = self._held.get(rank)
            if held is not None and not held.is_final:
                self._refresh(held, is_running=what == "running")

    def _zygote_read(self) -> None:
        answers = self._zygote.read()
        for answer in answers or ():
            held = self._held.get(answer.rank)
            if held is None or held.is_final:
                continue
            held.asked_at = None
            if answer.shim is None:
                self._shim_refused(held, answer.error or "unknown")
            else:
                self._watch(held, answer.shim)
        if answers is None:
            log.warning("The zygote ended; a new one is started. Running ranks are not touched.")
            self._epoll_forget(self._zygote.fileno())
            self._zygote.restart()
            self._epoll.register(self._zygote.fileno(), select.EPOLLIN)
            # What it had not answered may or may not have happened. Asking again is harmless: only one shim gets the claim.
            for held in self._held.values():
                if held.asked_at is not None and not held.is_final:
                    self._ask(held, adopt=held.adopting)

    def _epoll_forget(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    def _ask(self, held: _Held, *, adopt: bool) -> None:
        held.asked_at, held.adopting = time.monotonic(), adopt
        self._zygote.ask("adopt" if adopt else "launch", rank=held.rank, path=held.path)

    def _shim_refused(self, held: _Held, text: str) -> None:
        if held.adopting:
            held.adopt_at = time.monotonic() + _LOOK_S
        else:
            self._never_started(held, text)

    def _watch(self, held: _Held, shim: tuple[int, int]) -> None:
        """Hear of this shim's end."""
        self._unwatch(held)
        held.shim = shim
        try:
            fd = procs.pidfd_open(*shim)
        except OSError:
            return  # no pidfds on this kernel: `_look` asks the claim once a second
        if fd is None:
            self._refresh(held, is_alive=False)
            return
        held.pidfd = fd
        self._pidfds[fd] = held
        self._epoll.register(fd, select.EPOLLIN)
        if os.path.exists(f"{held.path}/{rankdir.STOP}"):
            procs.signal_send(*shim, _WAKE)  # the order may have come while nobody was there to be woken

    def _unwatch(self, held: _Held) -> None:
        if held.pidfd is not None:
            self._epoll_forget(held.pidfd)
            del self._pidfds[held.pidfd]
            os.close(held.pidfd)
            held.pidfd = None
        held.shim = None

    def _look(self, now: float) -> None:
        for held in list(self._held.values()):
            if held.is_final:
                continue
            self._mind_shim(held)
            if held.adopt_at is not None and now >= held.adopt_at:
                held.adopt_at = None
                self._ask(held, adopt=True)
            elif held.pidfd is None and held.asked_at is None and held.adopt_at is None:
                is_alive = rankdir.claim_held(held.path) is True
                owner = rankdir.claim_owner(held.path) if is_alive and held.shim is None else None
                if owner is not None:
                    self._watch(held, owner)
                self._refresh(held, is_alive=is_alive)
            elif held.told.state == "PREPARING" and now - held.starting_since > _LOOK_S:
                self._refresh(held)

    def _mind_shim(self, held: _Held) -> None:
        """See to it that a shim which was halted, or hangs, keeps nobody from ending its rank."""
        if held.shim is None:
            return
        stat = procs.process_stat(held.shim[0])
        if stat is None or stat.start != held.shim[1]:
            return
        if stat.state in "Tt":
            log.warning("The shim of rank %s was halted; it goes on.", held.rank)
            procs.signal_send(*held.shim, signal.SIGCONT)
        elif held.stop_by is not None and procs.boottime() > held.stop_by and self._group(held).populated():
            # Its replacement reads the order and finds it overdue.
            log.error("Rank %s should have ended by now; what is left of it is killed, and its shim is replaced.", held.rank)
            held.stop_by = procs.boottime() + _OVERDUE_S
            self._group(held).kill()
            procs.signal_send(*held.shim, signal.SIGKILL)

    def _tell(self, held: _Held, state: RankState) -> None:
        if state != held.told:
            held.told = state
            self._changes.append(state)
        if held.is_final:
            held.asked_at = held.adopt_at = None
            secretdir.remove(held.secrets)
            held.secrets = None

    def _refresh(self, held: _Held, *, is_running: bool = False, is_alive: bool = True) -> None:
        """Read what the shim has written. ``is_running``: it has just said so; ``is_alive`` False: it is dead."""
        if held.is_final:
            return
        final = final_read(held.rank, held.path)
        if final is not None:
            self._tell(held, final)
            return
        started = rankdir.file_read(held.path, rankdir.STARTED)
        # started.json is there a moment before the exec; a second later a program that could not start would have said so.
        if started is not None and (is_running or held.told.state == "RUNNING" or time.monotonic() - held.starting_since > _LOOK_S):
            self._tell(held, running_state(held.rank, started))
        if not is_alive:
            self._shim_lost(held, started is not None)

    def _shim_lost(self, held: _Held, was_started: bool) -> None:
        """The shim that we watched is dead and has not said how the rank ended."""
        if rankdir.claim_held(held.path):
            # Another one has the rank (two were asked for, one got it).
            owner = rankdir.claim_owner(held.path)
            if owner is not None and owner != held.shim:
                self._watch(held, owner)
            return
        if was_started or held.told.state == "RUNNING":
            held.adoptions += 1
            if not was_started or held.adoptions > _MOST_ADOPTIONS:
                self._lost(held, "files were removed while it ran" if not was_started else "shims were killed again and again")
                return
            log.warning("The shim of rank %s is dead; it gets a new one.", held.rank)
            if held.adoptions > _QUICK_ADOPTIONS:
                held.adopt_at = time.monotonic() + _LOOK_S
            else:
                self._ask(held, adopt=True)
        else:
            self._never_started(held, "The shim died before the program was started")

    def _lost(self, held: _Held, text: str) -> None:
        """It ran, nobody minds it and no shim could: end it. How the program ended, or would have, nobody knows."""
        log.error("Rank %s is given up: its %s.", held.rank, text)
        group, began = self._group(held), held.told.began_s
        # What lives until this kill has run until now; of what was gone already nobody knows when it ended.
        ran_s = round(procs.boottime() - began, 3) if began is not None and group.populated() else None
        group.kill()
        end = ExitInfo(cause="exit_unknown", detail=f"The rank's {text}.", ran_s=ran_s)
        with contextlib.suppress(OSError):  # no directory
            rankdir.exit_write(held.path, cause=end.cause, code=None, signal=None, detail=end.detail, ran_s=ran_s)
        self._tell(held, RankState(rank=held.rank, state="EXITED", exit=end, started_at=held.told.started_at))

    def _never_started(self, held: _Held, text: str) -> None:
        """Make sure that nothing of it can run any more, and say so."""
        try:
            if not rankdir.claim_block(held.path) and rankdir.claim_held(held.path):
                return
            group = self._group(held)
            group.kill()
            group.remove()
            rankdir.file_write(held.path, rankdir.LAUNCH, {"kind": "internal", "text": text}, durable=True)
        except OSError as error:
            text = f"{text} ({error})"
        self._tell(held, launch_failed(held.rank, "internal", text))

    # --- after a restart --------------------------------------------------------------------------------------

    def recover(self, rows: Sequence[Recoverable]) -> list[RankState]:
        """The table of lifecycle.md. A rank that never ran is EXITED(never_started): it may safely run elsewhere."""
        states = [self._recover_one(row) for row in rows]
        # The shims of other ranks, which nobody told of, keep what they have; those ended that are not here.
        living = [rank for rank, held in self._held.items() if not held.is_final]
        living += self.strangers()
        secretdir.sweep(secretdir.memory_folder(), self._prefix, living)  # as older agents named them
        for parent in self._secret_places:
            secretdir.sweep(parent, "", living)
        here = [entry.name for entry in os.scandir(self.root)]
        for folder in jobdir.orphans(str(self.jobs_dir), [*here, *living]):
            self._removals.add(folder)
        return states

    def _recover_one(self, row: Recoverable) -> RankState:
        path = str(self.rank_dir(row.rank))
        order = rankdir.file_read(path, rankdir.SPEC)
        plan = order["group"] if order else self.layout.plan(row.rank)
        held = _Held(row.rank, path, cgroups.group_open(plan), RankState(rank=row.rank, state="PREPARING"))
        held.secrets = order.get("secrets") if order else None
        held.starting_since = time.monotonic()
        self._held[row.rank] = held
        found = rank_examine(row.rank, path, self._group(held), row_boot_id=row.boot_id, boot_id=self.boot_id)
        held.told = found.state
        if found.shim is not None:
            self._watch(held, found.shim)
        elif found.needs_shim:
            log.warning("Rank %s runs without its shim; it gets a new one.", held.rank)
            self._ask(held, adopt=True)
        return found.state

    def kept(self) -> list[RankId]:
        """Ranks that have a directory here."""
        return sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False) and _is_rank(entry.name))

    def strangers(self) -> list[RankId]:
        """Ranks that live here under our name and are not held: call it after ``recover``. Nothing is done to them."""
        found = []
        for name in sorted({*self.layout.names(), *(e.name for e in os.scandir(self.root) if e.is_dir(follow_symlinks=False))}):
            try:
                rank_parts(name)
            except ProtocolError:
                continue
            if name not in self._held and (rankdir.claim_held(str(self.root / name)) or self._group_of(name, None).populated()):
                found.append(name)
        return found

    def stranger_kill(self, rank: RankId) -> None:
        """Kill a rank that ``strangers`` named, its whole tree at once; ``forget`` then removes what is left."""
        path = str(self.rank_dir(rank))
        with contextlib.suppress(OSError):  # no directory, or no room in it
            rankdir.file_write(path, rankdir.STOP, {"cause": "stopped", "reason": "stranger", "grace_s": 0, "at": procs.boottime()})
        self._group_of(rank, None).kill()


def _half_of_all_pids() -> int | None:
    """One rank may not take every process id of the machine. Threads count too, hence no smaller number."""
    found = []
    for name in ("kernel/pid_max", "kernel/threads-max"):
        try:
            found.append(int(Path("/proc/sys", name).read_text()))
        except (OSError, ValueError):
            continue
    return min(found) // 2 if found else None


def _is_rank(name: str) -> bool:
    try:
        rank_parts(name)
    except ProtocolError:
        return False
    return True
