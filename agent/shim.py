"""One small process per rank. It starts the program, outlives the agent, stops the program politely when told to,
kills what is left of it and writes down how it ended.

A shim is a fork of the zygote. It sleeps in sigtimedwait and wakes for a child's end, for SIGUSR2 (an order came) or
for its next deadline, at the latest every second. Files are the truth (see rankdir); the datagram to the agent is
only a hint that there is something new to read.

If a shim is killed, a replacement adopts its rank: no longer the program's parent, it watches the group and learns the
exit code from the zygote, to whom the program was re-parented, or from nobody (exit_unknown).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time

from agent import cgroups, jobdir, launch, outfile, procs, rankdir, secretdir
from agent.stopping import Checkpoint, Stop, stop_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_WAKE = {signal.SIGCHLD, signal.SIGUSR2}
#: An adopted program is nobody's child here: its end is looked for, not signalled.
_ADOPTED_TICK_S = 0.2
_TICK_S = 1.0
#: While a program prints faster than the disk should have to hold.
_FLOOD_TICK_S = 0.05
#: How long the zygote may take to write down the code of a program that has just ended.
_CODE_WAIT_S = 20.0


def shim_run(path: str, *, adopt: bool) -> NoReturn:
    """Be the shim of the rank in directory ``path``. Called in a fresh fork of the zygote; never returns."""
    status = 1
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAKE)
        procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 1)
        procs.process_title("nebula-shim")
        _stdio_detach(path)
        # From here on "." is this very directory, even if another one should appear under its name.
        os.chdir(path)
        shim = Shim()
        if shim.adopt() if adopt else shim.start():
            shim.watch()
        status = 0
    except FileNotFoundError as error:
        status = 0 if not os.path.exists(path) else status  # forgotten meanwhile
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
    except BaseException:
        import traceback  # only a shim that breaks needs it

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
    raise AssertionError("unreachable")


def _stdio_detach(path: str) -> None:
    """No descriptor of the agent's may stay open in a process that outlives it."""
    null = os.open("/dev/null", os.O_RDWR)
    try:
        own = os.open(f"{path}/shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        own = null
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(own, 2)
    for fd in {null, own} - {0, 1, 2}:
        os.close(fd)


class Shim:
    def __init__(self) -> None:
        order = rankdir.file_read(".", rankdir.SPEC)
        if order is None:
            raise FileNotFoundError("spec.json is missing")
        self.order: dict[str, Any] = order
        self.spec: dict[str, Any] = order["spec"]
        self.rank: str = order["rank"]
        self.group = cgroups.group_open(order["group"])
        self.claim: int | None = None  # an open descriptor; the claim ends with this process
        self.me = (os.getpid(), self._start(os.getpid()))
        self.pid = 0  # the program
        self.start_time = 0
        self.adopted = False
        self.limit_at: float | None = None
        self.began_at = self.ran_s = 0.0
        self.stop: Stop | None = None
        self.main_ended = False
        self.status: int | None = None  # as waitpid gives it; None = nobody saw it
        self.code_expected = False
        self.output: outfile.OutputFile | None = None
        self.is_flooding = False

    @staticmethod
    def _start(pid: int) -> int:
        stat = procs.process_stat(pid)
        return stat.start if stat else 0

    # --- beginnings -------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Start the program. False: there is nothing to watch."""
        self.claim = rankdir.claim_create(".")
        if self.claim is None:
            return False  # another shim has it
        if stop_order(".") is not None:
            secretdir.remove(self.order.get("secrets"))
            rankdir.exit_write(".", cause="never_started", code=None, signal=None, detail="The stop came before the start.")
            self.notify("exited")
            return False
        try:
            self._start_program()
        except launch.LaunchFailed as failure:
            if self.group.is_made:
                self.group.kill()
                self.group.remove()
            secretdir.remove(self.order.get("secrets"))
            rankdir.file_write(".", rankdir.LAUNCH, {"kind": failure.kind, "text": failure.text}, durable=True)
            self.notify("failed")
            return False
        self.notify("running")
        return True

    def _start_program(self) -> None:
        account = launch.account_find(self.spec.get("unix_user") or self.order.get("account"), min_uid=self.order["min_uid"])
        try:
            self.group.create()
        except FileExistsError as error:
            raise launch.LaunchFailed("cgroup", f"The process group of this rank exists already: {error.filename}") from error
        except OSError as error:
            raise launch.LaunchFailed("cgroup", f"The process group could not be made: {error}") from error
        try:
            variables = secretdir.variables_take(self.order)
        except (OSError, ValueError) as error:
            raise launch.LaunchFailed("internal", f"The secrets of this rank are not there: {type(error).__name__}") from None
        try:
            output = os.open(rankdir.OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            jobdir.make(self.order["folder"], account)
            if account is not None:
                # It may open its output anew, by /dev/stdout; everything else here stays ours, and so does the way to it.
                os.fchown(output, account.pw_uid, account.pw_gid)
                secretdir.hand_over(self.order, account)
            oom_score = launch.oom_score_lower()
            child = launch.program_fork(
                order=self.order, group=self.group, account=account, output=output, oom_score=oom_score, variables=variables
            )
            del variables
            self.output = outfile.OutputFile(output, self.spec.get("log_cap_mib"))
        except OSError as error:
            raise launch.LaunchFailed("internal", f"The program could not be forked: {error}") from error
        self.pid, self.start_time = child.pid, child.start
        self._know()
        self.began_at = procs.boottime()
        limit = self.spec.get("time_limit_s")
        self.limit_at = None if limit is None else self.began_at + limit
        try:
            self._started_write()
        except OSError as error:
            procs.signal_send(child.pid, child.start, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            raise launch.LaunchFailed("internal", f"The start could not be written down: {error}") from error
        child.let_go()
        # A working directory or a program on a dead file server can block for ever: a stop must get through.
        while not select.select([child.errors], [], [], _TICK_S)[0]:
            order = stop_order(".")
            if order is not None:
                self.stop = Stop(self.group, {**order, "grace_s": 0}, lead_s=0.0, checkpoint=self._checkpoint())
                procs.signal_send(child.pid, child.start, signal.SIGKILL)
                os.close(child.errors)
                return
        failure = child.failure()
        if failure is not None:
            os.waitpid(child.pid, 0)
            raise failure

    def _started_write(self) -> None:
        started = {
            "pid": self.pid,
            "start": self.start_time,
            "boot_id": self.order["boot_id"],
            "group": self.order["group"],
            "shim": {"pid": self.me[0], "start": self.me[1]},
            "started_at": time.time(),
            "began_at": self.began_at,
            "limit_at": self.limit_at,
        }
        rankdir.file_write(".", rankdir.STARTED, started, durable=True)

    def adopt(self) -> bool:
        """Take over from a dead shim. False: there is nothing to watch."""
        self.claim = rankdir.claim_inherit(".", wait_s=0.5)
        started = rankdir.file_read(".", rankdir.STARTED)
        if self.claim is None or started is None or os.path.isfile(rankdir.EXIT) or os.path.isfile(rankdir.LAUNCH):
            return False
        self.adopted = True
        self.pid, self.start_time = started["pid"], started["start"]
        self.limit_at, self.began_at = started["limit_at"], started["began_at"]
        self._know()
        self.output = outfile.OutputFile.open(rankdir.OUTPUT, self.spec.get("log_cap_mib"))
        # The zygote, our parent, is its parent too if it lived when the old shim died: then it will tell the code.
        stat = procs.process_stat(self.pid)
        self.code_expected = stat is not None and stat.start == self.start_time and stat.ppid == os.getppid()
        self.stop = Stop.resume(self.group, lead_s=self.order["term_lead_s"], checkpoint=self._checkpoint())
        return True

    def _know(self) -> None:
        if isinstance(self.group, cgroups.SessionGroup):
            self.group.know(shim=None if self.adopted else self.me, program=(self.pid, self.start_time))

    def _checkpoint(self) -> Checkpoint:
        path = self.spec.get("checkpoint")
        return Checkpoint(None if path is None else os.path.join(self.spec.get("workdir") or "/", path))

    # --- the watch --------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Until the program has ended, then write down how."""
        while True:
            self._reap()
            self.is_flooding = self.output is not None and self.output.trim()
            now = procs.boottime()
            if self.stop is None and not self.main_ended:
                self._stop_if_due(now)
            if self.stop is None:
                if self.main_ended:
                    break
            elif self.stop.step(now, main_ended=self.main_ended):
                break
            self._sleep(now)
        self._finish()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.pid and not self.adopted:
                self.main_ended, self.status = True, status
        if self.adopted and not self.main_ended:
            self.main_ended = not procs.is_alive(self.pid, self.start_time)

    def _stop_if_due(self, now: float) -> None:
        order = stop_order(".")
        grace_s = self.spec.get("grace_s", 30)
        if order is None and self.limit_at is not None and now >= self.limit_at:
            detail = f"The time limit of {self.spec['time_limit_s']} s is over."
            order = {"cause": "time_limit", "reason": detail, "grace_s": grace_s, "at": now}
        lease_at = self._lease_at()
        if order is None and lease_at is not None and now >= lease_at:
            order = {"cause": "lease_expired", "reason": "The control plane was silent for too long.", "grace_s": grace_s, "at": now}
        if order is None:
            return
        self.stop = Stop(self.group, order, lead_s=self.order["term_lead_s"], checkpoint=self._checkpoint())
        self._reap()
        if self.main_ended or not self.stop.begin(now):
            self.stop = None  # the program was faster: its end is its own

    def _lease_at(self) -> float | None:
        """When the node must stop this rank by itself (boot time); None = never. The agent notes each answered sync."""
        changed = rankdir.file_read(".", rankdir.LEASE)
        lease_s = changed["lease_s"] if changed else self.order.get("lease_s")
        if lease_s is None:
            return None
        try:
            with open(f"../{rankdir.RENEWED}", encoding="ascii") as file:
                renewed = float(file.read())
        except (OSError, ValueError):
            renewed = 0.0
        return max(renewed, self.began_at) + float(lease_s)

    def _sleep(self, now: float) -> None:
        wait = _FLOOD_TICK_S if self.is_flooding else _ADOPTED_TICK_S if self.adopted else _TICK_S
        if self.stop is not None:
            wait = min(wait, self.stop.next_look_s(now))
        elif self.limit_at is not None:
            wait = min(wait, max(0.0, self.limit_at - now))
        signal.sigtimedwait(_WAKE, wait)

    # --- the end ----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self.ran_s = round(procs.boottime() - self.began_at, 3)
        left = self._clear_away()
        if self.output is not None:
            self.output.trim(is_end=True)
        secretdir.remove(self.order.get("secrets"))
        if self.adopted:
            self._code_learn()
        cause, detail = self._cause()
        if left:
            note = f"{left} processes did not end when killed."
            detail = f"{detail} {note}" if detail else note
        code = number = None
        if self.status is not None:
            if os.WIFSIGNALED(self.status):
                number = os.WTERMSIG(self.status)
            else:
                code = os.WEXITSTATUS(self.status)
        seen = self.stop is not None and self.stop.checkpoint.changed()
        while True:
            try:
                rankdir.exit_write(".", cause=cause, code=code, signal=number, detail=detail, checkpoint_seen=seen, ran_s=self.ran_s)
                break
            except FileNotFoundError:
                raise  # forgotten meanwhile
            except OSError:
                # The disk is full, by this very program perhaps. Nobody but us knows how it ended, so we wait.
                time.sleep(_TICK_S)
        self.notify("exited")
        if not left:
            self.group.remove()

    def _clear_away(self) -> int:
        """Kill what the program left behind. How many processes even that did not end."""
        end = time.monotonic() + self.order["kill_wait_s"]
        while self.group.populated():
            self.group.kill()
            self._reap()
            if time.monotonic() > end:
                return len(self.group.members())
            signal.sigtimedwait(_WAKE, 0.01)
        self._reap()
        return 0

    def _code_learn(self) -> None:
        """Have the zygote tell the exit code, if it can: not for ever, but as long as it may only be slow."""
        zygote = os.getppid()
        end = time.monotonic() + (_CODE_WAIT_S if self.code_expected else 0.0)
        while True:
            is_over = time.monotonic() >= end or os.getppid() != zygote
            found = rankdir.file_read(".", rankdir.CODE)
            if found is not None and found["pid"] == self.pid:
                self.status = found["status"]
                if self.stop is None and (ended := found.get("ended_at")) is not None:
                    self.ran_s = round(min(self.ran_s, max(0.0, ended - self.began_at)), 3)  # the zygote saw it before we did
                return
            if is_over:
                return
            time.sleep(0.01)

    def _cause(self) -> tuple[str, str | None]:
        if self.stop is not None:
            return self.stop.cause, self.stop.reason
        if self.status is None:
            return "exit_unknown", "The program ended while nobody could see how."
        if self.status != 0:
            killed = self.group.oom_kills()
            if killed:
                return "host_memory", f"The kernel killed {killed} processes of this rank for memory."
            refused = self.group.pids_refusals()
            if refused:
                limit = self.order["group"]["pids_max"]
                return "pids_limit", f"{refused} forks were refused: the rank reached its limit of {limit} processes and threads."
        return "exited", None

    def notify(self, what: str) -> None:
        """Tell the agent to look, if there is one."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            # Twenty launches at once can fill the queue of an agent that is busy for a moment.
            line.settimeout(0.3)
            with contextlib.suppress(OSError):  # it looks by itself every second, and at its next start
                line.sendto(f"{self.rank} {what}".encode(), f"../{rankdir.NOTIFY}")
