"""Code, environment and interpreter where the accounts can read them, when they can't where they are (below /root, say).

    <state>/code/python-HASH/          the interpreter with its library
    <state>/code/env-HASH/             what is installed in the virtual environment
    <state>/code/NAME-HASH/            the checkout, with a .venv of its own that points to both

All of it is root's and written by nobody else. Files are hard links where that is possible, else copies; nothing is done where the
hashes are the same. What no process uses any more is removed. Only what the project consists of is taken, by name: no data, no keys, no
.git.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nebulagrid.rooted.accounts import Account, as_account, unreadable
from nebulagrid.rooted.errors import RootedError
from nebulagrid.rooted.layout import place_name

#: What the project consists of, at the top of the checkout.
FOLDERS = (
    "agent", "bench", "client", "dblib", "deploy", "docs", "examples", "jobs", "nebulagrid", "nebulagrid_client", "nodes", "quotas",
    "static", "templates",
)  # fmt: skip
FILES = ("manage.py", "pyproject.toml", "requirements.txt", "README.md", "CHANGELOG.md", "LICENSE", "Makefile")
#: Nothing of these names or endings is taken from the folders above: they are where people leave what is theirs.
CLOSED = (".pem", ".key", ".env", ".sqlite3", ".sqlite3-wal", ".credential", ".token", ".password")
#: Of the interpreter: tests, editors and what only compilers of extensions need.
_LEAN = frozenset({"__pycache__", "test", "tests", "idlelib", "turtledemo", "ensurepip", "site-packages", "dist-packages"})
_MARK = ".placed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where this process runs from."""

    checkout: Path
    prefix: Path  # the virtual environment
    base: Path  # the interpreter's own prefix
    version: str  # "3.11"

    @classmethod
    def of_this_process(cls, checkout: Path) -> Source:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls(checkout=checkout, prefix=Path(sys.prefix).absolute(), base=Path(os.path.realpath(sys.base_prefix)), version=version)

    @property
    def site(self) -> Path:
        return Path("lib") / f"python{self.version}" / "site-packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where processes start from. ``moves``: (what can't be reached, where it is placed)."""

    code: Path
    python: Path
    moves: tuple[tuple[Path, Path], ...] = ()


def place_find(source: Source, accounts: list[Account], state: Callable[[], Path], say: Callable[[str], None]) -> Place:
    """Where all ``accounts`` can read the code; placed there if need be. Raises RootedError."""
    here = Place(code=source.checkout, python=source.prefix / "bin" / "python")
    blocked = [path for account in accounts for path in unreadable(account, _needed(source))]
    if not blocked:
        return here
    try:
        place, is_new = _place(source, state() / "code", is_base_open=not any(path.is_relative_to(source.base) for path in blocked))
    except OSError as error:
        raise RootedError(f"The code can't be placed where {accounts[0].name} can read it: {error.strerror} ({error.filename}).") from error
    if is_new:
        say(f"{accounts[0].name} can't read {blocked[0]}: code and environment are placed in {place.code}")
        for account in accounts:
            _try(account, place)
    return place


def _needed(source: Source) -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    found = [
        source.checkout, source.checkout / "manage.py", source.checkout / "nebulagrid" / "settings.py", source.checkout / "templates",
        source.prefix, source.prefix / "bin" / "python", source.prefix / "pyvenv.cfg", source.prefix / source.site,
        source.prefix / source.site / "django" / "__init__.py", source.base, library, library / "os.py",
        Path(os.path.realpath(sys.executable)),
    ]  # fmt: skip
    return [path for path in found if os.path.lexists(path)]


def _try(account: Account, place: Place) -> None:
    """Raises RootedError where the placed code does not run as that account."""

    def run() -> bytes:
        argv = [str(place.python), "-c", "import django, agent.main, client.sdk"]
        done = subprocess.run(argv, cwd=place.code, env={"PATH": os.defpath}, capture_output=True, text=True, check=False)
        return b"" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1].encode()

    if problem := as_account(account, run):
        raise RootedError(
            f"What is placed in {place.code} does not run as {account.name}: {problem.decode()}. Put checkout and interpreter where every "
            "account can read them, /opt say."
        )


# --- placing --------------------------------------------------------------------------------------------------------


def _place(source: Source, root: Path, *, is_base_open: bool) -> tuple[Place, bool]:
    if source.prefix == source.base:
        raise RootedError(
            f"The interpreter {sys.executable} can't be read by other accounts, and it is no virtual environment, which could be placed "
            "elsewhere: start with make run, or install into .venv."
        )
    root.mkdir(parents=True, exist_ok=True, mode=0o755)
    for folder in (root, root.parent):
        folder.chmod(0o755)
    lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in root.glob(".*.part"):
            shutil.rmtree(left)
        base = source.base
        if not is_base_open:
            base = root / f"python-{_hash(_base_marks(source))}"
            _once(base, lambda part: _base_fill(source, part))
        env = root / f"env-{_hash(_env_marks(source))}"
        _once(env, lambda part: _env_fill(source, part))
        name = place_name(source.checkout)
        code = root / f"{name}-{_hash([*_code_marks(source), str(base), str(env)])}"
        older = _others(root, name, code)
        is_new = _once(code, lambda part: _code_fill(source, part, code=code, base=base, env=env, older=older))
        if is_new:
            _clean(root, name, keep={code, base, env})
    finally:
        os.close(lock)
    python = code / ".venv" / "bin" / "python"
    moves = [(source.prefix, code / ".venv"), (source.checkout, code)]
    return Place(code=code, python=python, moves=tuple(moves)), is_new


def _once(target: Path, fill: Callable[[Path], None]) -> bool:
    """Made beside it and renamed when it is whole; False where it is there already."""
    if (target / _MARK).exists():
        return False
    part = target.with_name(f".{target.name}.part")
    if target.exists():
        shutil.rmtree(target)
    part.mkdir(mode=0o755)
    fill(part)
    if not (part / _MARK).exists():
        (part / _MARK).write_text("{}")
    for folder, _, _ in os.walk(part):
        Path(folder).chmod(0o755)
    part.rename(target)
    return True


def _hash(marks: list[str]) -> str:
    return hashlib.sha256("\0".join(marks).encode(errors="surrogateescape")).hexdigest()[:12]


def _mark(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return f"{path} -"
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _base_marks(source: Source) -> list[str]:
    library = source.base / "lib" / f"python{source.version}"
    paths = [
        Path(os.path.realpath(sys.executable)),
        library,
        library / "os.py",
        library / "lib-dynload",
        *sorted((source.base / "lib").glob("libpython*")),
    ]
    return [sys.version, *map(_mark, paths)]


def _env_marks(source: Source) -> list[str]:
    """What pip changes whenever it changes anything."""
    site = source.prefix / source.site
    return [_mark(path) for path in [*sorted(site.iterdir()), *sorted(site.glob("*.dist-info/RECORD"))] if path.name != "__pycache__"]


def _code_marks(source: Source) -> list[str]:
    return [f"{_mark(path)} {path.stat().st_mode & 0o111}" for path, _ in code_files(source.checkout)] + [
        _mark(path) for path in sorted((source.prefix / "bin").iterdir())
    ]


def code_files(checkout: Path) -> Iterator[tuple[Path, Path]]:
    """(file, its path in the checkout) of all that is placed, by name."""
    is_open = bool((checkout / "manage.py").stat().st_mode & 0o004)
    for name in FILES:
        path = checkout / name
        if path.is_file() and not path.is_symlink():
            yield path, Path(name)
    for folder in FOLDERS:
        for place, folders, names in os.walk(checkout / folder):
            folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
            for name in sorted(names):
                path = Path(place) / name
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode) or name.startswith(".") or name.endswith(CLOSED):
                    continue
                # Where the others are open to everybody, one that is closed was closed for a reason.
                if is_open and not found.st_mode & 0o004:
                    continue
                yield path, path.relative_to(checkout)


# --- filling --------------------------------------------------------------------------------------------------------


def _lay(source: Path, target: Path, *, is_copy: bool = False) -> None:
    """A link where the file is root's and open to be read, else a copy that is."""
    found = source.stat()
    if not is_copy and found.st_uid == 0 and found.st_mode & 0o004 and not found.st_mode & 0o022:
        with contextlib.suppress(OSError):
            os.link(os.path.realpath(source), target)
            return
    shutil.copy2(source, target)
    target.chmod(0o755 if found.st_mode & 0o111 else 0o644)
    os.chown(target, 0, 0)


def _lay_tree(source: Path, target: Path, skip: Callable[[Path], bool]) -> None:
    for place, folders, names in os.walk(source):
        here = target / Path(place).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in [*folders]:
            path = Path(place) / name
            if skip(path) or path.is_symlink():
                folders.remove(name)
                if path.is_symlink() and not skip(path):
                    (here / name).symlink_to(path.readlink())
        for name in names:
            path = Path(place) / name
            if skip(path):
                continue
            if path.is_symlink() and not path.readlink().is_absolute():
                (here / name).symlink_to(path.readlink())
            elif path.is_file():
                _lay(path, here / name)


def _base_fill(source: Source, part: Path) -> None:
    library = source.base / "lib" / f"python{source.version}"
    config = next((path for path in library.glob("config-*") if path.is_dir()), None)
    (part / "lib").mkdir()
    _lay_tree(library, part / "lib" / library.name, lambda path: path.name in _LEAN or path == config or path.suffix in (".a", ".exe"))
    for path in sorted((source.base / "lib").glob("libpython*.so*")):
        if path.is_symlink():
            (part / "lib" / path.name).symlink_to(path.readlink())
        else:
            _lay(path, part / "lib" / path.name)
    (part / "bin").mkdir()
    program = part / "bin" / f"python{source.version}"
    _lay(Path(os.path.realpath(sys.executable)), program, is_copy=True)
    _library_path_turn(program, str(source.base / "lib"))


def _library_path_turn(program: Path, folder: str) -> None:
    """An interpreter that was built with its library beside it looks for that by its full path: let it look beside itself."""
    data, new = program.read_bytes(), b"$ORIGIN/../lib"
    for old in dict.fromkeys((folder.encode(), str(Path(sys.base_prefix) / "lib").encode())):
        at = data.find(old + b"\0")
        if at >= 0 and len(new) <= len(old):
            data = data.replace(old + b"\0", new.ljust(len(old), b"\0") + b"\0")
    program.write_bytes(data)


def _env_fill(source: Source, part: Path) -> None:
    site = source.prefix / source.site
    own = os.fsencode(source.checkout)

    def skip(path: Path) -> bool:
        if path.parent != site or path.suffix not in (".pth", ".py"):
            return False
        # What makes the checkout importable names its old place.
        return path.name.startswith("__editable__") or (path.suffix == ".pth" and own in path.read_bytes())

    _lay_tree(site, part / source.site, skip)
    # The checkout that this environment is in, whichever that is.
    text = "import os, sys; sys.path.append(os.path.dirname(sys.prefix))\n"
    (part / source.site / "nebulagrid_placed.pth").write_text(text)


def _code_fill(source: Source, part: Path, *, code: Path, base: Path, env: Path, older: list[Path]) -> None:
    for path, name in code_files(source.checkout):
        target = part / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _lay(path, target, is_copy=True)
    for folder in [*older, source.checkout]:
        _compiled_take(folder, part)
    bin_dir = part / ".venv" / "bin"
    bin_dir.mkdir(parents=True)
    (part / ".venv" / "lib").symlink_to(env / "lib")
    (part / ".venv" / "lib64").symlink_to("lib")
    program = f"python{source.version}"
    (part / ".venv" / "pyvenv.cfg").write_text(
        f"home = {base}/bin\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
    )
    (bin_dir / program).symlink_to(base / "bin" / program if base != source.base else os.path.realpath(sys.executable))
    for name in ("python", "python3"):
        (bin_dir / name).symlink_to(program)
    old, new = os.fsencode(source.prefix), os.fsencode(code / ".venv")
    for path in sorted((source.prefix / "bin").iterdir()):
        if path.is_symlink() or not path.is_file() or os.path.lexists(bin_dir / path.name):
            continue
        with path.open("rb") as file:
            is_script = file.read(2) == b"#!"
        if is_script:
            (bin_dir / path.name).write_bytes(path.read_bytes().replace(old, new))
            (bin_dir / path.name).chmod(0o755)
        elif path.stat().st_mode & 0o111:
            _lay(path, bin_dir / path.name)
    # A run as another account can't keep what it compiles. -I: root imports nothing from where it was started.
    python = [str(bin_dir / program), "-I", "-m", "compileall", "-q", "-s", str(part), "-p", str(code)]
    folders = [str(part / name) for name in FOLDERS if (part / name).is_dir()]
    subprocess.run([*python, *folders], check=False, capture_output=True, cwd="/")
    (part / _MARK).write_text(json.dumps({"needs": [base.name, env.name]}))


def _compiled_take(folder: Path, part: Path) -> None:
    """What is compiled already, of files that are the same by size and time: compiling all of it takes seconds."""
    for name in FOLDERS:
        for cache in (folder / name).rglob("__pycache__"):
            target = part / cache.relative_to(folder)
            if not target.parent.is_dir():
                continue
            target.mkdir(exist_ok=True)
            for path in cache.glob("*.pyc"):
                if path.is_file() and not path.is_symlink() and path.lstat().st_uid == 0 and not (target / path.name).exists():
                    shutil.copy2(path, target / path.name)


# --- removing -------------------------------------------------------------------------------------------------------


def _others(root: Path, name: str, code: Path) -> list[Path]:
    found = [path for path in root.glob(f"{name}-*") if path != code and (path / _MARK).exists()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:1]


def _clean(root: Path, name: str, *, keep: set[Path]) -> None:
    """Earlier places of this checkout that no process uses, then what none of those that are left needs."""
    used = _used(root)
    for path in root.glob(f"{name}-*"):
        if path not in keep and path.name not in used:
            shutil.rmtree(path, ignore_errors=True)
    needed = used | {path.name for path in keep}
    for mark in root.glob(f"*/{_MARK}"):
        with contextlib.suppress(OSError, ValueError):
            needed |= set(json.loads(mark.read_text()).get("needs", ()))
    for path in [*root.glob("python-*"), *root.glob("env-*")]:
        if path.name not in needed:
            shutil.rmtree(path, ignore_errors=True)


def _used(root: Path) -> set[str]:
    """Names in ``root`` that a process of this machine has its program, its folder or its command line in."""
    found: set[str] = set()
    inside = f"{root}/"
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        texts: list[str] = []
        for link in ("cwd", "exe"):
            with contextlib.suppress(OSError):
                texts.append(str((process / link).readlink()))
        with contextlib.suppress(OSError):
            texts += (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        for text in texts:
            if inside in text:
                found.add(text.split(inside, 1)[1].split("/", 1)[0])
    return found
