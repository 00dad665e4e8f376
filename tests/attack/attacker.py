"""A job that tries the doors of the node that it runs on. One JSON line: attack → what came of it ("open", or why not).

Runs as the job of a plain account would, with the standard library and the kernel alone. ``sys.argv[1]``: JSON with the places and process
numbers that the test knows; a real attacker would guess them.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long

NEWNS, NEWUSER = 0x20000, 0x10000000
BIND, REC, MOVE, PRIVATE = 0x1000, 0x4000, 0x2000, 0x40000
#: The same numbers on every architecture.
OPEN_TREE, MOVE_MOUNT, PIDFD_SEND_SIGNAL, PIDFD_OPEN, PIDFD_GETFD = 428, 429, 424, 434, 438
ATTACH, SEIZE, DETACH = 16, 0x4206, 17

Attack = Callable[[], object]
ATTACKS: dict[str, Attack] = {}
T: dict[str, Any] = {}


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def read(path: str) -> None:
    with open(path, "rb") as file:
        file.read(64)


def in_a_child(function: Attack) -> None:
    """What changes the process for good."""
    pipe_read, pipe_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "open"
        try:
            function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(pipe_write, text.encode())
        os._exit(0)
    os.close(pipe_write)
    text = os.read(pipe_read, 4096).decode()
    os.close(pipe_read)
    os.waitpid(pid, 0)
    if text != "open":
        raise PermissionError(text)


def own_namespace(function: Attack) -> None:
    """As the master of a user and mount namespace of one's own."""

    def entered() -> None:
        uid, gid = os.geteuid(), os.getegid()
        checked(libc.unshare(NEWUSER | NEWNS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        function()

    in_a_child(entered)


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    checked(libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), None))


# --- files -------------------------------------------------------------------------------------------------------------------


def files() -> None:
    for name, path in T["files"].items():
        ATTACKS[f"read {name}"] = lambda path=path: read(path)
    target = T["files"]["agent.credential"]
    data, folder = T["agent_data"], T["own"]
    ATTACKS["read it through /proc/self/root"] = lambda: read(f"/proc/self/root{target}")
    ATTACKS["read it through a link of one's own"] = lambda: through_a_link(target, f"{folder}/tmp/link")
    ATTACKS["hard link it to one's own folder"] = lambda: os.link(target, f"{folder}/artifacts/stolen")
    ATTACKS["move it to one's own folder"] = lambda: moved(T["files"]["spare"], f"{folder}/artifacts/moved")
    ATTACKS["truncate"] = lambda: os.truncate(T["files"]["spare-2"], 1)
    ATTACKS["remove a file"] = lambda: os.unlink(T["files"]["spare-3"])
    ATTACKS["plant a file with the agent"] = lambda: open(f"{data}/planted", "x").close()
    ATTACKS["plant a rank with the agent"] = lambda: os.mkdir(f"{data}/ranks/7.7.7")
    ATTACKS["plant a link with the agent"] = lambda: os.symlink("/etc/passwd", f"{data}/planted-link")
    ATTACKS["rename the agent's folder of ranks"] = lambda: there_and_back(f"{data}/ranks", f"{data}/ranks-gone")
    above = os.path.dirname(T["control_data"])
    ATTACKS["move the folder above both away"] = lambda: there_and_back(above, f"{above}-moved")
    ATTACKS["plant a file with the control plane"] = lambda: open(f"{T['control_data']}/planted", "x").close()
    ATTACKS["list"] = lambda: saw(T["names"], os.listdir(T["control_data"]))
    ATTACKS["stat"] = lambda: os.stat(target)
    ATTACKS["change a mode"] = lambda: os.chmod(T["files"]["spare-4"], 0o644)
    ATTACKS["change a time"] = lambda: os.utime(T["files"]["spare-4"])
    ATTACKS["watch"] = lambda: checked(libc.inotify_add_watch(libc.inotify_init1(os.O_CLOEXEC), os.path.dirname(target).encode(), 0x100))
    ATTACKS["connect to Redis"] = lambda: connect(T["redis"], socket.SOCK_STREAM)
    ATTACKS["connect to a terminal of the account"] = lambda: connect(T["tmux"], socket.SOCK_STREAM)
    ATTACKS["send hints to the agent"] = lambda: connect(f"{data}/ranks/.notify", socket.SOCK_DGRAM)
    ATTACKS["change the agent's code"] = lambda: os.close(os.open(T["code"], os.O_WRONLY))
    ATTACKS["plant code beside the agent's"] = lambda: planted(os.path.join(os.path.dirname(T["code"]), "_planted_by_a_job.py"))
    ATTACKS["open by handle"] = lambda: by_handle(T["files"]["agent.credential"])
    # Another job.
    other = T["other"]
    ATTACKS["read another job's artefact"] = lambda: read(f"{other}/artifacts/model")
    ATTACKS["read another job's temporary file"] = lambda: read(f"{other}/tmp/scratch")
    ATTACKS["read another job's secret"] = lambda: read(f"{T['other_secrets']}/token")
    ATTACKS["read another job's output"] = lambda: read(f"{data}/ranks/{T['other_rank']}/output.log")
    ATTACKS["read another job's environment on the disk"] = lambda: read(f"{data}/ranks/{T['other_rank']}/spec.json")
    ATTACKS["plant a file with another job"] = lambda: open(f"{other}/artifacts/planted", "x").close()
    ATTACKS["link another job's artefact"] = lambda: os.link(f"{other}/artifacts/model", f"{folder}/artifacts/model")
    ATTACKS["stat another job's folder"] = lambda: os.stat(f"{other}/artifacts")
    ATTACKS["read one's own order"] = lambda: read(f"{data}/ranks/{T['rank']}/spec.json")
    ATTACKS["plant a file with one's own order"] = lambda: open(f"{data}/ranks/{T['rank']}/planted", "x").close()


def through_a_link(target: str, link: str) -> None:
    os.symlink(target, link)
    read(link)


def moved(path: str, target: str) -> None:
    os.rename(path, target)


def there_and_back(path: str, other: str) -> None:
    os.rename(path, other)
    os.rename(other, path)


def saw(names: list[str], listed: list[str]) -> None:
    if not set(names) & set(listed):
        raise PermissionError("an empty folder")


def planted(path: str) -> None:
    open(path, "x").close()
    os.unlink(path)


def connect(path: str, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as line:
        line.connect(path)


def by_handle(path: str) -> None:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + b"\0" * 128)
    mount_id = ctypes.c_int()
    checked(libc.name_to_handle_at(-100, path.encode(), handle, ctypes.byref(mount_id), 0))
    root = os.open("/", os.O_RDONLY)
    os.close(checked(libc.open_by_handle_at(root, handle, os.O_RDONLY)))


# --- processes ---------------------------------------------------------------------------------------------------------------


def processes() -> None:
    for who, pid in T["pids"].items():
        for name in ("environ", "maps", "auxv"):
            ATTACKS[f"read {name} of {who}"] = lambda pid=pid, name=name: read(f"/proc/{pid}/{name}")
        ATTACKS[f"open the memory of {who}"] = lambda pid=pid: os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        ATTACKS[f"read where the files of {who} are"] = lambda pid=pid: os.readlink(f"/proc/{pid}/fd/0")
        ATTACKS[f"enter the root of {who}"] = lambda pid=pid: os.listdir(f"/proc/{pid}/root/")
        ATTACKS[f"enter the folder of {who}"] = lambda pid=pid: os.listdir(f"/proc/{pid}/cwd/")
        ATTACKS[f"read the program of {who}"] = lambda pid=pid: os.readlink(f"/proc/{pid}/exe")
        ATTACKS[f"attach to {who}"] = lambda pid=pid: attach(pid, ATTACH)
        ATTACKS[f"seize {who}"] = lambda pid=pid: attach(pid, SEIZE)
        ATTACKS[f"copy the memory of {who}"] = lambda pid=pid: copied(pid)
        ATTACKS[f"take a file of {who}"] = lambda pid=pid: taken(pid)
        ATTACKS[f"enter the namespaces of {who}"] = lambda pid=pid: in_a_child(lambda: enter(pid))
        ATTACKS[f"enter the namespaces of {who} by pidfd"] = lambda pid=pid: in_a_child(lambda: enter_by_pidfd(pid))
        ATTACKS[f"signal {who}"] = lambda pid=pid: os.kill(pid, signal.SIGCONT)
        ATTACKS[f"signal {who} by pidfd"] = lambda pid=pid: by_pidfd(pid)
        ATTACKS[f"signal a thread of {who}"] = lambda pid=pid: checked(libc.syscall(T["tgkill"], pid, pid, 0))
        ATTACKS[f"queue a signal to {who}"] = lambda pid=pid: checked(libc.sigqueue(pid, 0, None))
        ATTACKS[f"have a file signal {who}"] = lambda pid=pid: by_file(pid)
        ATTACKS[f"signal all of the group of {who}"] = lambda pid=pid: os.killpg(os.getpgid(pid), signal.SIGCONT)
        ATTACKS[f"limit {who}"] = lambda pid=pid: limited(pid)
        ATTACKS[f"slow {who} down"] = lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))


def attach(pid: int, how: int) -> None:
    def tried() -> None:
        checked(libc.ptrace(how, pid, None, None))
        with contextlib.suppress(OSError):
            if how == ATTACH:
                os.waitpid(pid, 0)
            libc.ptrace(DETACH, pid, None, None)

    in_a_child(tried)


class Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def copied(pid: int) -> None:
    # Any address will do: rights are looked at before it is (EFAULT would mean that only the guess was wrong).
    buffer = ctypes.create_string_buffer(8)
    local, remote = Vector(ctypes.addressof(buffer), 8), Vector(0x1000, 8)
    if libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) < 0:
        code = ctypes.get_errno()
        if code != 14:
            raise OSError(code, os.strerror(code))


def taken(pid: int) -> None:
    handle = checked(libc.syscall(PIDFD_OPEN, pid, 0))
    os.close(checked(libc.syscall(PIDFD_GETFD, handle, 0, 0)))


def enter(pid: int) -> None:
    with open(f"/proc/{pid}/ns/mnt") as file:
        if T["same_namespace"] and os.fstat(file.fileno()).st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            raise PermissionError("it is one's own")
        checked(libc.setns(file.fileno(), NEWNS))


def enter_by_pidfd(pid: int) -> None:
    handle = checked(libc.syscall(PIDFD_OPEN, pid, 0))
    checked(libc.setns(handle, NEWUSER | NEWNS))


def by_pidfd(pid: int) -> None:
    handle = checked(libc.syscall(PIDFD_OPEN, pid, 0))
    checked(libc.syscall(PIDFD_SEND_SIGNAL, handle, signal.SIGCONT, None, 0))


def by_file(pid: int) -> None:
    """The kernel sends what the owner of a file asked for. Nobody is told whether it was delivered, so a handler looks."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        fcntl.fcntl(mine, fcntl.F_SETOWN, pid)
        fcntl.fcntl(mine, 10, signal.SIGCONT)  # F_SETSIG
        fcntl.fcntl(mine, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        theirs.send(b"x")
    raise PermissionError("it can't be told; the kernel checks it as any other signal")


def limited(pid: int) -> None:
    limits = array.array("Q", [0, 0])
    address, _ = limits.buffer_info()
    checked(libc.prlimit(pid, 7, None, ctypes.c_void_p(address)))  # RLIMIT_NOFILE, as it is
    checked(libc.prlimit(pid, 7, ctypes.c_void_p(address), None))


# --- namespaces --------------------------------------------------------------------------------------------------------------


def namespaces() -> None:
    hidden, target, folder = T["control_data"], T["files"]["cli.json"], T["own"]
    inside = os.path.relpath(target, hidden)

    def unmounted() -> None:
        checked(libc.umount2(hidden.encode(), 2))
        read(target)

    def bound(flags: int) -> Attack:
        def tried() -> None:
            place = f"{folder}/tmp/bound"
            os.makedirs(place, exist_ok=True)
            mount("/", "/", None, REC | PRIVATE)
            mount(os.path.dirname(hidden), place, None, flags)
            read(f"{place}/{os.path.basename(hidden)}/{inside}")

        return tried

    def moved_away() -> None:
        place = f"{folder}/tmp/moved-away"
        os.makedirs(place, exist_ok=True)
        mount("/", "/", None, REC | PRIVATE)
        mount(hidden, place, None, MOVE)
        read(target)

    def cloned() -> None:
        tree = checked(libc.syscall(OPEN_TREE, -100, os.path.dirname(hidden).encode(), 1))  # OPEN_TREE_CLONE, without what is below
        fd = os.open(f"{os.path.basename(hidden)}/{inside}", os.O_RDONLY, dir_fd=tree)
        os.close(fd)

    def remounted() -> None:
        code = os.path.dirname(os.path.dirname(T["code"]))
        checked(libc.mount(None, code.encode(), None, ctypes.c_ulong(0x20 | BIND), None))
        planted(f"{code}/_planted_by_a_job")

    def chrooted() -> None:
        os.chroot(folder)
        os.chdir("../../../../../../../../..")
        os.chroot(".")
        read(target)

    ATTACKS["unmount the empty folder"] = unmounted
    ATTACKS["unmount it as master of one's own namespace"] = lambda: own_namespace(unmounted)
    ATTACKS["bind the folder above elsewhere"] = lambda: own_namespace(bound(BIND))
    ATTACKS["bind the folder above and all below elsewhere"] = lambda: own_namespace(bound(BIND | REC))
    ATTACKS["move the empty folder away"] = lambda: own_namespace(moved_away)
    ATTACKS["clone the tree above"] = lambda: own_namespace(cloned)
    ATTACKS["make our code writable"] = lambda: own_namespace(remounted)
    ATTACKS["leave by chroot"] = lambda: own_namespace(chrooted)
    ATTACKS["read as a thread"] = lambda: by_thread(target)
    ATTACKS["read after exec"] = lambda: by_exec(target)


def by_thread(path: str) -> None:
    errors: list[OSError] = []

    def tried() -> None:
        try:
            read(path)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=tried)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def by_exec(path: str) -> None:
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", 'cat "$0" >/dev/null 2>&1', path], dict(os.environ))
    if os.waitpid(pid, 0)[1]:
        raise PermissionError("cat could not")


def main() -> None:
    given = sorted(os.listdir("/proc/self/fd"), key=int)[:-1]
    T.update(json.loads(sys.argv[1]))
    T["pids"]["shim"] = os.getppid()
    files()
    processes()
    namespaces()
    found: dict[str, str] = {}
    for name, attack in ATTACKS.items():
        try:
            attack()
            found[name] = "open"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    # What it holds by birth.
    found["files that it was given"] = " ".join(given)
    found["secrets that it sees in memory"] = " ".join(name for _, names, _ in os.walk(T["memory"]) for name in names)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
