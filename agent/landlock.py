"""Landlock, by system call: a domain that only scopes signals, and one with rights on files.

The list of rights is an allow-list, and a right on a folder holds for all below it. So everything beside the hidden folders is listed,
one rule for each neighbour on the way down; what is created later beside a hidden folder can't be read by the program, and the program
can't create anything directly in a folder on that way. Listing folders is not handled, or ``ls ~`` would break; neither are calls on
devices, or a graphics card would. What no version covers: stat, chmod, sockets by their path; version 1 and 2: truncate; before 6: signals.

Standard library only and few imports: every shim carries this module in its memory.
"""

from __future__ import annotations

import ctypes
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION_ASKED, _PATH_BENEATH, _SCOPE_SIGNAL = 1, 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE = 1 << 13, 1 << 14
#: From EXECUTE to MAKE_SYM, without READ_DIR.
_FIRST = ((1 << 13) - 1) & ~READ_DIR
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
#: What programs may do with our code.
_READ = EXECUTE | READ_FILE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _call(number: int, *args: Any) -> int:
    result = int(_libc.syscall(number, *args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result


def version() -> int:
    """Landlock's version (ABI) in this kernel; 0 = none, or switched off."""
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_ASKED))
    except OSError:
        return 0


def _ruleset(fs: int, scoped: int, *, abi: int) -> int:
    # Older kernels know a shorter structure: 8 bytes at first, 16 with rights on ports.
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    attributes = _Ruleset(fs, 0, scoped if abi >= 6 else 0)
    return _call(_CREATE, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))


def enter(ruleset: int) -> None:
    """For this process and all that come from it, for good."""
    try:
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def scope_only() -> int:
    """A domain of one's own that handles no file: no signal leaves it, and nobody in it can trace a process outside. Version 6."""
    return _ruleset(0, _SCOPE_SIGNAL, abi=6)


def rights_of(abi: int) -> int:
    """Every right on files that is handled at this version."""
    return _FIRST | (REFER if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0)


def files_list(plan: dict[str, Any], *, output: int | None) -> int:
    """A domain with rights on files: everything but the hidden folders, code read-only, the rank's own folders whole."""
    abi: int = plan["abi"]
    rights = rights_of(abi)
    ruleset = _ruleset(rights, _SCOPE_SIGNAL if plan["scope"] else 0, abi=abi)
    hidden, code = set(plan["hidden"]), set(plan["readonly"])
    on_the_way = {parent for path in hidden | code for parent in _parents(path)}
    _walk(ruleset, "/", rights, hidden=hidden, code=code, on_the_way=on_the_way)
    for path in plan["keep"]:
        _allow(ruleset, path, rights)
    if output is not None:
        # Programs open it anew by /dev/stdout.
        _add(ruleset, output, rights & _OF_FILES)
    return ruleset


def _parents(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/", *("/" + "/".join(parts[:i]) for i in range(1, len(parts)))]


def _walk(ruleset: int, folder: str, rights: int, *, hidden: Collection[str], code: Collection[str], on_the_way: Collection[str]) -> None:
    try:
        names = os.listdir(folder)
    except OSError:
        return  # nothing of it can be read by this account anyway
    for name in names:
        path = f"{folder.rstrip('/')}/{name}"
        if path in hidden:
            continue
        allowed = rights & _READ if path in code else rights
        if path in on_the_way:
            _walk(ruleset, path, allowed, hidden=hidden, code=code, on_the_way=on_the_way)
        else:
            _allow(ruleset, path, allowed)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return  # gone, or not for this account
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISLNK(mode):  # a link's target is listed under its own name
            _add(ruleset, fd, rights if stat.S_ISDIR(mode) else rights & _OF_FILES)
    finally:
        os.close(fd)


def _add(ruleset: int, fd: int, rights: int) -> None:
    rule = _Beneath(rights, fd)
    _call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
