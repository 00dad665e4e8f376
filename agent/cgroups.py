"""Where a rank's processes are held together: cgroup v2, a v1 hierarchy, or no cgroup at all.

``layout_find`` looks once at what this machine lets us do (really doing it with a throw-away group) and says so;
``Layout.plan`` names the group of one rank as plain JSON, which the shim and every later agent read back. Our groups are
``nebulagrid/<agent id>/<rank>`` below the agent's own place. The id is unlike any other's (installation.py), so that two agents on
one machine never meet; a group that is there already is somebody else's, and left alone.

    v2      one group; killed through cgroup.kill, or frozen and killed where the kernel has no cgroup.kill
    hybrid  the same, plus groups in the v1 hierarchies of CONTROLLERS for their limits and counters
    v1      a freezer (or pids) group: freeze, kill all, thaw; plus the same groups
    none    no cgroup is writable: session, subreaper and a mark in the environment; no limit holds

Standard library only and few imports: every shim carries this module in its memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from agent import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

ROOT = "nebulagrid"
#: What limits a rank: v1 controller → a file and a value that only a group which really limits takes.
CONTROLLERS = {
    "memory": ("memory.limit_in_bytes", "1073741824"),
    "pids": ("pids.max", "1000"),
    "cpu": ("cpu.shares", "1024"),
    "devices": ("devices.deny", "c 1:8 m"),
}
#: Those of v2. (Its devices are limited by programs in the kernel; nothing here writes any.)
V2_CONTROLLERS = ("memory", "pids", "cpu")
#: A group inside a service's own that systemd puts the service into (DelegateSubgroup=): the groups of ranks lie beside it.
SUBGROUP = "agent"
_PERIOD_US = 100_000
#: The variable that marks every process of a rank; the only thread left to an orphan where there is no cgroup.
MARK = "NEBULA_RANK_MARK"


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _mounts() -> Iterator[tuple[str, str, str, frozenset[str]]]:
    """(type, root, mount point, options) of each cgroup mount."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                fields = left.split()
                yield kind, _unescape(fields[3]), _unescape(fields[4]), frozenset(options.split(","))


def _own_places() -> dict[str, str]:
    """Hierarchy ("" = v2, else a controller) → this process's directory in it. Empty when none is mounted."""
    paths: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for name in controllers.split(","):
                paths[name] = path
    found: dict[str, str] = {}
    for kind, root, point, options in _mounts():
        names = [""] if kind == "cgroup2" else [n for n in paths if n in options]
        for name in names:
            if name not in paths or name in found:
                continue
            path = paths[name]
            # In a container the mount shows a subtree, or a path that is not visible at all: then the mount is our place.
            below = path[len(root) :] if root != "/" and path.startswith(root) else path
            place = os.path.normpath(f"{point}/{below}")
            found[name] = place if os.path.isdir(place) else point
    return found


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _counter(path: str, key: str) -> int | None:
    """``key N`` in a file of such lines; None when there is no such file or key."""
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    except (OSError, ValueError):
        pass
    return None


def _is_usable(base: str, limit: tuple[str, str] | None = None) -> bool:
    """Whether a group can be made below ``base``, given a ``limit`` (file and value) and entered: tried with a child that ends at once."""
    probe = f"{base}/probe-{os.getpid()}"
    try:
        os.makedirs(base, exist_ok=True)
        os.mkdir(probe)
    except OSError:
        return False
    try:
        if limit is not None:
            _write(f"{probe}/{limit[0]}", limit[1])
        child = os.fork()
        if child == 0:
            try:
                _write(f"{probe}/cgroup.procs", "0")
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0
    except OSError:
        return False
    finally:
        _rmdir(probe)


def _usable_counters(base: dict[str, str], main: str) -> dict[str, str]:
    """The v1 hierarchies besides ``main`` that limit and count something for us."""
    return {name: base[name] for name in CONTROLLERS if name in base and name != main and _is_usable(base[name], CONTROLLERS[name])}


def _service_place(place: str) -> str:
    """The group that a service's ranks belong into: its own, or the one above where systemd put it into a group of its own inside.
    In v2 no process may be in a group whose children have limits."""
    above = os.path.dirname(place)
    try:
        with open(f"{above}/cgroup.procs", encoding="ascii") as file:
            is_free = os.path.basename(place) == SUBGROUP and not file.read(1)
    except OSError:
        is_free = False
    return above if is_free and os.access(above, os.W_OK) else place


def _rmdir(path: str) -> bool:
    # A group whose last process has just been reaped can be busy for a moment longer.
    for _ in range(20):
        try:
            os.rmdir(path)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            time.sleep(0.002)
    return False


class Layout:
    """What this machine allows. ``kind``: v2 | v1 | none; ``note`` says in a sentence what was found."""

    __slots__ = ("agent_id", "extra", "home", "kind", "main", "note")

    def __init__(self, agent_id: str, kind: str, main: str | None, extra: dict[str, str], note: str, home: str | None = None) -> None:
        self.agent_id, self.kind, self.main, self.extra, self.note = agent_id, kind, main, extra, note
        self.home = home  # the group that the agent itself is in, in the hierarchy that holds the ranks

    def plan(
        self,
        rank: str,
        *,
        pids_max: int | None = None,
        memory_mib: int | None = None,
        cpu_weight_milli: int | None = None,
        cpu_milli: int | None = None,
        denied: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The group of one rank as JSON. ``pids_max`` counts threads too; ``cpu_weight_milli``: its share of the processors where
        others want them, too; ``cpu_milli``: what it can't go beyond; ``denied``: devices such as "c 195:1" that it can't open.
        Limits hold where a controller is there (``limits``)."""
        return {
            "kind": self.kind,
            "main": f"{self.main}/{rank}" if self.main else None,
            "extra": {name: f"{base}/{rank}" for name, base in self.extra.items()},
            "mark": f"{MARK}={self.agent_id}:{rank}",
            "pids_max": pids_max,
            "memory_mib": memory_mib,
            "cpu_weight_milli": cpu_weight_milli,
            "cpu_milli": cpu_milli,
            "denied": list(denied),
        }

    def limits(self) -> dict[str, bool]:
        """Which limits of a rank hold here: memory, cpu, pids, devices."""
        return {name: self._has_controller(name) for name in CONTROLLERS}

    def _has_controller(self, name: str) -> bool:
        if self.main is None:
            return False
        if name in self.extra or (self.kind == "v1" and os.path.exists(f"{self.main}/{CONTROLLERS[name][0]}")):
            return True
        if name not in V2_CONTROLLERS:
            return False
        try:
            with open(f"{self.main}/cgroup.subtree_control", encoding="ascii") as file:
                return name in file.read().split()
        except OSError:
            return False

    def names(self) -> list[str]:
        """Every group that exists under this agent's name."""
        if self.main is None:
            return []
        try:
            return sorted(entry.name for entry in os.scandir(self.main) if entry.is_dir(follow_symlinks=False))
        except OSError:
            return []

    def remove(self) -> None:
        """Remove this agent's own directories if nothing is left in them. Never the one above: another agent of the
        machine may just be making its own in there."""
        for base in filter(None, (self.main, *self.extra.values())):
            with contextlib.suppress(OSError):
                os.rmdir(base)


def layout_find(agent_id: str, *, force: str | None = None) -> Layout:
    """Find the best way that really works here; ``force`` (v2, v1, none) looks at that one alone.

    Raises ValueError for an agent id that is no plain file name, OSError if the forced way does not work.
    """
    is_plain = all(c.isascii() and (c.isalnum() or c in "-_.") for c in agent_id)
    if not is_plain or not 0 < len(agent_id) <= 120 or agent_id.startswith("."):
        raise ValueError(f"The agent id {agent_id[:130]!r} must be 1 to 120 letters, digits, '-', '_' or '.'.")
    places = _own_places() if force != "none" else {}
    base = {name: f"{place}/{ROOT}/{agent_id}" for name, place in places.items()}
    if "" in places:
        base[""] = f"{_service_place(places[''])}/{ROOT}/{agent_id}"
    if force in (None, "v2") and "" in base and _is_usable(base[""]):
        _enable_controllers(base[""], ROOT)
        extra = _usable_counters(base, "")
        way = "cgroup.kill" if os.path.exists(f"{base['']}/cgroup.kill") else "freeze and kill"
        note = f"cgroup {'v2 with v1 controllers' if extra else 'v2'} at {base['']} ({way})"
        return Layout(agent_id, "v2", base[""], extra, note, home=places[""])
    if force in (None, "v1"):
        for name in ("freezer", "pids"):
            if name in base and _is_usable(base[name]):
                extra = _usable_counters(base, name)
                return Layout(agent_id, "v1", base[name], extra, f"cgroup v1 {name} at {base[name]}", home=places[name])
    if force in ("v1", "v2"):
        raise OSError(f"cgroup {force} was asked for, but no such group can be made and entered here.")
    return Layout(
        agent_id, "none", None, {}, "no writable cgroup: ranks are held together by session, subreaper and a mark in their environment"
    )


def _enable_controllers(base: str, root: str) -> None:
    """Best effort: without the controllers a v2 group still holds and kills, it only counts nothing."""
    try:
        with open(f"{base}/cgroup.controllers", encoding="ascii") as file:
            offered = set(file.read().split())
        with open(f"{base}/cgroup.subtree_control", encoding="ascii") as file:
            if set(V2_CONTROLLERS) <= offered & set(file.read().split()):
                return
    except OSError:
        return
    own = base[: base.rindex(f"/{root}/")]
    for folder in (own, f"{own}/{root}", base):
        for name in V2_CONTROLLERS:
            # Refused where the parent does not offer it, or (EBUSY) where processes live in that very group.
            with contextlib.suppress(OSError):
                _write(f"{folder}/cgroup.subtree_control", f"+{name}")


class CgroupGroup:
    """A rank's cgroup. Identity: the path, which is made once (O_EXCL) and never used again."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._main: str = plan["main"]
        self._extra: dict[str, str] = dict(plan["extra"])
        self._is_v2: bool = plan["kind"] == "v2"
        self._pids_max: int | None = plan.get("pids_max")
        self._memory_mib: int | None = plan.get("memory_mib")
        self._cpu_weight_milli: int | None = plan.get("cpu_weight_milli")
        self._cpu_milli: int | None = plan.get("cpu_milli")
        self._denied: list[str] = plan.get("denied") or []
        self.is_made = False  # by this very object: only then is all that is in it surely ours

    def create(self) -> None:
        """Raises FileExistsError when the group is there already, else OSError."""
        made: list[str] = []
        try:
            os.makedirs(os.path.dirname(self._main), exist_ok=True)
            os.mkdir(self._main)
            made.append(self._main)
            for name, path in list(self._extra.items()):
                try:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    os.mkdir(path)
                    made.append(path)
                except FileExistsError:
                    raise
                except OSError:
                    del self._extra[name]  # only its counters are lost
        except OSError:
            for path in made:
                _rmdir(path)
            raise
        self.is_made = True
        self._limits_set()

    def _limits_set(self) -> None:
        """What isn't there is not written: v1 and v2 have different files. Raises OSError for a limit that is refused."""
        if self._pids_max is not None:
            self._limit("pids", "pids.max", self._pids_max)
        if self._memory_mib is not None:
            size = self._memory_mib << 20
            self._limit("memory", "memory.max", size)
            self._limit("memory", "memory.swap.max", 0)
            self._limit("memory", "memory.limit_in_bytes", size)
            self._limit("memory", "memory.memsw.limit_in_bytes", size)  # after the one above, which it may not be below
        if self._cpu_weight_milli is not None:
            self._limit("cpu", "cpu.weight", min(10_000, max(1, self._cpu_weight_milli // 10)))
            self._limit("cpu", "cpu.shares", max(2, self._cpu_weight_milli * 1024 // 1000))
        if self._cpu_milli is not None:
            quota = max(1000, self._cpu_milli * _PERIOD_US // 1000)
            self._limit("cpu", "cpu.max", f"{quota} {_PERIOD_US}")
            self._limit("cpu", "cpu.cfs_quota_us", quota)
        if "devices" in self._extra:
            for device in self._denied:
                _write(f"{self._extra['devices']}/devices.deny", f"{device} rwm")

    def _limit(self, controller: str, name: str, value: int | str) -> None:
        path = f"{self._extra.get(controller, self._main)}/{name}"
        if os.path.exists(path):
            _write(path, str(value))

    def join(self) -> None:
        """Move the calling process in: from inside the child and before exec, so that nothing of it can stay outside."""
        for path in (self._main, *self._extra.values()):
            _write(f"{path}/cgroup.procs", "0")

    def pids(self) -> set[int]:
        """Every process in it, groups that the program made inside included."""
        found: set[int] = set()
        for folder, _, files in os.walk(self._main):
            if "cgroup.procs" in files:
                try:
                    with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
                        found.update(int(line) for line in file)
                except OSError:
                    continue
        found.discard(0)  # a process of another pid namespace
        return found

    def members(self) -> list[procs.Stat]:
        """Every process in it that still runs."""
        found = (procs.process_stat(pid) for pid in self.pids())
        return [s for s in found if s is not None and not s.is_dead]

    def populated(self) -> bool:
        if self._is_v2:
            return _counter(f"{self._main}/cgroup.events", "populated") == 1
        return bool(self.members())

    def kill(self) -> None:
        """SIGKILL to all at once. Never raises: what survives shows in ``populated``."""
        try:
            _write(f"{self._main}/cgroup.kill", "1")
            return
        except OSError:
            pass
        # Frozen first, so that a program that forks faster than we kill can't win.
        self._freeze(True)
        for stat in self.members():
            procs.signal_send(stat.pid, stat.start, signal.SIGKILL)
        self._freeze(False)

    def _freeze(self, on: bool) -> None:
        name, text = ("cgroup.freeze", "1" if on else "0") if self._is_v2 else ("freezer.state", "FROZEN" if on else "THAWED")
        try:
            _write(f"{self._main}/{name}", text)
            for _ in range(50 if on else 0):
                if self._is_v2:
                    if _counter(f"{self._main}/cgroup.events", "frozen") == 1:
                        return
                else:
                    with open(f"{self._main}/{name}", encoding="ascii") as file:
                        if file.read().strip() == text:
                            return
                time.sleep(0.002)
        except OSError:
            pass  # no freezer here: the caller's repeated kills have to do

    def remove(self) -> bool:
        """True when nothing of the group is left."""
        done = True
        for path in (self._main, *self._extra.values()):
            for folder, _, _ in os.walk(path, topdown=False):
                done = _rmdir(folder) and done
        return done

    def oom_kills(self) -> int:
        """Processes of this group that the kernel killed for memory; 0 where nobody counts."""
        found = _counter(f"{self._main}/memory.events", "oom_kill")
        if found is None and "memory" in self._extra:
            found = _counter(f"{self._extra['memory']}/memory.oom_control", "oom_kill")
        return found or 0

    def pids_refusals(self) -> int:
        """Forks refused because of the group's pids limit; 0 where nobody counts."""
        return _counter(f"{self._extra.get('pids', self._main)}/pids.events", "max") or 0


class SessionGroup:
    """Without cgroups: everything below the shim (a subreaper loses nobody), and once the shim is dead everything
    below the program, in its session, or with the rank's mark in its environment.

    What it cannot hold: a process that leaves the session and wipes its environment, and whose shim is then killed.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._mark: str = plan["mark"]
        self._shim: tuple[int, int] | None = None
        self._program: tuple[int, int] | None = None
        self.is_made = True  # what it finds bears its mark

    def know(self, *, shim: tuple[int, int] | None = None, program: tuple[int, int] | None = None) -> None:
        """Pid and start time of the shim that forked the program, and of the program."""
        self._shim, self._program = shim, program

    def create(self) -> None:
        pass

    def join(self) -> None:
        pass

    def members(self) -> list[procs.Stat]:
        table = list(procs.process_all())
        by_pid = {s.pid: s for s in table}
        shim = self._find(by_pid, self._shim)
        if shim is not None and not shim.is_dead:
            # The shim's own helpers stay in its session, which no program can enter.
            return [s for s in procs.descendants([shim.pid], table) if s.sid != shim.sid and not s.is_dead]
        program = self._find(by_pid, self._program)  # even a dead one still is the leader of its session
        session = program.pid if program is not None else -1
        roots = [s.pid for s in table if session in (s.pid, s.sid) or procs.has_mark(s.pid, self._mark)]
        found = {s.pid: s for s in procs.descendants(roots, table)}
        found.update((pid, by_pid[pid]) for pid in roots)
        # A shim that is being forked carries no mark, but the asking process might (an agent inside a job).
        found.pop(os.getpid(), None)
        return [s for s in found.values() if not s.is_dead]

    @staticmethod
    def _find(table: dict[int, procs.Stat], who: tuple[int, int] | None) -> procs.Stat | None:
        found = table.get(who[0]) if who else None
        return found if found is not None and who is not None and found.start == who[1] else None

    def pids(self) -> set[int]:
        return {s.pid for s in self.members()}

    def populated(self) -> bool:
        return bool(self.members())

    def kill(self) -> None:
        # Stopped first, until nobody new turns up, so that a program that forks faster than we kill can't win.
        seen: dict[int, int] = {}
        for _ in range(20):
            fresh = [s for s in self.members() if seen.get(s.pid) != s.start]
            for stat in fresh:
                procs.signal_send(stat.pid, stat.start, signal.SIGSTOP)
                seen[stat.pid] = stat.start
            if not fresh:
                break
        for pid, start in seen.items():
            procs.signal_send(pid, start, signal.SIGKILL)

    def remove(self) -> bool:
        return True

    def oom_kills(self) -> int:
        return 0

    def pids_refusals(self) -> int:
        return 0


def group_open(plan: dict[str, Any]) -> CgroupGroup | SessionGroup:
    """The group that a plan names."""
    return SessionGroup(plan) if plan["kind"] == "none" else CgroupGroup(plan)
