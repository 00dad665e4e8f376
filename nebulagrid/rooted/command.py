"""``manage.py COMMAND`` by root: as the account that the data belong to, so that no file of root's gets among them.

Files that root names on the command line are root's: they are opened here, and handed over open.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from nebulagrid.archive import backup_path
from nebulagrid.embedded import die_with_parent
from nebulagrid.rooted.accounts import Account, as_account, control_account
from nebulagrid.rooted.entry import CHECKOUT, owner_of
from nebulagrid.rooted.errors import RootedError
from nebulagrid.rooted.handover import hand_over
from nebulagrid.rooted.layout import layout_find, layout_make, state_folder
from nebulagrid.rooted.placement import Place, Source, place_find
from nebulagrid.rooted.surroundings import environment

#: Options of commands that name files to read and to write.
_READS = {"simulate": ("--trace", "--cluster")}
_WRITES = {"simulate": ("--export", "--export-cluster")}


def say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


def run(command: str, argv: list[str], top: Path) -> int:
    """Its exit status. Raises RootedError."""
    account, data = _whose(top)
    place = place_find(Source.of_this_process(CHECKOUT), [account], state_folder, say)
    env = environment(account, os.environ, data=data)

    def start(words: list[str], descriptors: tuple[int, ...]) -> int:
        return _run(place, account, env, words, descriptors)

    words = argv[1:]
    if command == "backup":
        return _backup(words, start)
    if command == "restore":
        return _restore(words, start)
    return _with_files(command, words, account, start)


def _whose(top: Path) -> tuple[Account, Path]:
    owner = owner_of(top)
    if owner is not None:
        return owner, top
    account = control_account()
    as_account(account, bytes)
    layout = layout_find(top)
    layout_make(layout, account)
    hand_over(layout, account, say)
    return account, layout.control


def _run(place: Place, account: Account, env: dict[str, str], words: list[str], descriptors: tuple[int, ...]) -> int:
    child = subprocess.Popen(
        [str(place.python), "manage.py", *words],
        cwd=place.code,
        env=env,
        user=account.uid,
        group=account.gid,
        extra_groups=list(account.groups),
        pass_fds=descriptors,
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
    # Ctrl-C reaches both; it is the child's to answer.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    try:
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - code if code < 0 else code


Start = Callable[[list[str], tuple[int, ...]], int]


def _position(words: list[str]) -> int | None:
    """Where the command's one file stands among its words."""
    return next((at for at in range(1, len(words)) if not words[at].startswith("-")), None)


def _backup(words: list[str], start: Start) -> int:
    """The file is root's, 0600; the account writes into it while it has no name yet that anybody looks for."""
    at = _position(words)
    if at is None:
        return start(words, ())
    path = backup_path(words[at], now=datetime.now(UTC))
    if path.exists():
        raise RootedError(f"{path} is there already; a backup is never written over another.")
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RootedError(f"No backup was made: {error.strerror} ({aside}).") from error
    try:
        code = start([*words[:at], str(path), *words[at + 1 :], "--descriptor", str(descriptor)], (descriptor,))
        if code == 0:
            os.fsync(descriptor)
            aside.rename(path)
        return code
    finally:
        os.close(descriptor)
        aside.unlink(missing_ok=True)


def _restore(words: list[str], start: Start) -> int:
    at = _position(words)
    if at is None:
        return start(words, ())
    try:
        descriptor = os.open(words[at], os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RootedError(f"{words[at]} can't be read: {error.strerror}.") from error
    try:
        return start([*words, "--descriptor", str(descriptor)], (descriptor,))
    finally:
        os.close(descriptor)


def _with_files(command: str, words: list[str], account: Account, start: Start) -> int:
    """Files to read go through memory and files to write through a folder of the account's: root's own may be closed to it."""
    handed: list[int] = []
    written: list[tuple[Path, Path]] = []
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") and "=" in word else [word])]
    folder = Path(tempfile.mkdtemp(prefix="nebula-export-"))
    try:
        os.chown(folder, account.uid, account.gid)
        for at, word in enumerate(words[:-1]):
            path = Path(words[at + 1]).absolute()
            if word in _READS.get(command, ()) and path.is_file():
                descriptor = os.memfd_create(path.name)
                with os.fdopen(os.dup(descriptor), "wb") as file:
                    file.write(path.read_bytes())
                os.fchmod(descriptor, 0o444)
                handed.append(descriptor)
                words[at + 1] = f"/proc/self/fd/{descriptor}"
            elif word in _WRITES.get(command, ()):
                if path.exists():
                    raise RootedError(f"{path} is there already; nothing is written over it.")
                written.append((folder / path.name, path))
                words[at + 1] = str(folder / path.name)
        code = start(words, tuple(handed))
        for source, target in written if code == 0 else []:
            _take(source, target, account)
        return code
    finally:
        for descriptor in handed:
            os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _take(source: Path, target: Path, account: Account) -> None:
    """A copy of what the account has written, and of nothing else that it may have put there."""
    try:
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid != account.uid:
                raise RootedError(f"{target} was not written: {source} is not the account's own file.")
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
                shutil.copyfileobj(file, out)
    except OSError as error:
        raise RootedError(f"{target} can't be written: {error.strerror}.") from error
