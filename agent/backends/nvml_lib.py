"""NVML as the backend asks it: a call's value, or None where this card or driver does not tell."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from agent.backends.base import BackendError

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/lib",
)


def library_find() -> str | None:
    """The path of the NVML library that the loader would take; loads nothing."""
    dirs = [d for d in os.environ.get("LD_LIBRARY_PATH", "").split(":") if d]
    return next((path for d in (*dirs, *LIBRARY_DIRS) if os.path.exists(path := os.path.join(d, LIBRARY))), None)


def nvml_present() -> bool:
    """Whether an NVML library lies where the loader looks; loads nothing."""
    return library_find() is not None


def library_version() -> str | None:
    """The version of the library on disk, from the file that its name points to: ``libnvidia-ml.so.570.86.10``."""
    path = library_find()
    found = re.fullmatch(r"libnvidia-ml\.so\.(\d+\.\d[\d.]*)", os.path.basename(os.path.realpath(path))) if path else None
    return found[1] if found else None


def module_version(root: str = "/") -> str | None:
    """The version of the kernel module that is loaded."""
    try:
        return Path(root, "sys/module/nvidia/version").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        pass
    try:
        text = Path(root, "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d[\d.]*)", text)
    return found[1] if found else None


def versions_differ(root: str = "/") -> bool:
    """The library on disk is not the loaded module's: an upgrade without a reboot.

    A process that opened NVML before the upgrade goes on with the old library, so nothing fails here; but every program
    that is started now fails. Hence the look at the files.
    """
    library, module = library_version(), module_version(root)
    return library is not None and module is not None and library != module


class Nvml:
    """An open NVML. ``raw`` is the pynvml module."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._lost = (raw.NVML_ERROR_GPU_IS_LOST, raw.NVML_ERROR_RESET_REQUIRED)
        # Raised instead of an NVMLError, and no kind of it, where the library lacks the newest version of a call.
        self._older: type[Exception] = getattr(raw, "NVMLLibraryMismatchError", AttributeError)

    @classmethod
    def open(cls) -> Nvml:
        """Raises BackendError, which says why and what to do."""
        try:
            import pynvml
        except ImportError as error:
            raise BackendError('The Python package nvidia-ml-py is missing; install it or set backend = "none".', "no_library") from error
        try:
            # Flag 1 = NVML_INIT_FLAG_NO_GPUS: no card yet is not an error, cards may appear later.
            pynvml.nvmlInitWithFlags(1)
        except pynvml.NVMLError as error:
            raise explain(pynvml, error) from error
        return cls(pynvml)

    def ask(self, call: str, *args: Any) -> Any:
        """The call's value, or None where this card or driver does not tell. Raises NVMLError for a lost card."""
        try:
            return getattr(self.raw, call)(*args)
        except self.raw.NVMLError as error:
            if error.value in self._lost:
                raise
            return None
        except (UnicodeDecodeError, ValueError, AttributeError, self._older):
            return None  # a name that is no text, or a pynvml or a library that does not know the call

    def processes(self, kind: str, handle: Any) -> list[Any] | None:
        """The processes of a card, ``kind`` Compute or Graphics; None where it does not tell. Drivers before R510 know the
        second version of the call only, which tells the same."""
        for version in ("", "_v2"):
            found: list[Any] | None = self.ask_any(f"nvmlDeviceGet{kind}RunningProcesses{version}", handle)
            if found is not None:
                return found
        return None

    def ask_any(self, call: str, *args: Any) -> Any:
        """The same where a lost card is nothing special: None."""
        try:
            return self.ask(call, *args)
        except self.raw.NVMLError:
            return None


def explain(nv: Any, error: Any) -> BackendError:
    """What keeps NVML shut, and what to do."""
    code = error.value
    if code == nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return BackendError(
            "Driver and NVML library differ in version (driver mismatch): reboot the node. Running jobs go on.", "driver_mismatch"
        )
    if code == nv.NVML_ERROR_LIBRARY_NOT_FOUND:
        return BackendError(f'{LIBRARY} was not found: install the NVIDIA driver or set backend = "none".', "no_library")
    if code == nv.NVML_ERROR_DRIVER_NOT_LOADED:
        return BackendError("The NVIDIA driver is not loaded: `modprobe nvidia` or reboot the node.", "driver_not_loaded")
    if code == nv.NVML_ERROR_NO_PERMISSION:
        return BackendError("This user may not open the NVIDIA devices: check the mode of /dev/nvidia*.", "no_permission")
    return BackendError(f"NVML cannot be opened: {error}.", "nvml_error")
