"""NVIDIA cards through NVML. Runs in the probe's child process, where a call that never returns harms nobody.

Every getter is guarded on its own: what a card does not support is None, a card that is lost has `error="lost"`, and the
others stay complete. Values follow NVML: https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.backends.base import BackendError, Cards, HardwareEvent, Placed, Sanity
from agent.protocol import GpuInfo, GpuProcess, GpuStatus, LinkInfo

MIB = 1024 * 1024
#: Boards whose memory is the host's: NVML answers NOT_SUPPORTED for it, and /proc/meminfo is the truth.
UNIFIED_NAMES = ("GB10", "Thor", "Orin", "Tegra")
_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_DIRS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib", "/usr/local/lib")
_NVLINKS_MAX = 18  # NVML_NVLINK_MAX_LINKS


def nvml_present() -> bool:
    """Whether an NVML library lies where the loader looks; loads nothing."""
    dirs = [d for d in os.environ.get("LD_LIBRARY_PATH", "").split(":") if d]
    return any(os.path.exists(os.path.join(d, _LIBRARY)) for d in (*dirs, *_LIBRARY_DIRS))


@dataclass(slots=True)
class _Card:
    handle: Any
    info: GpuInfo
    memory_v2: bool = True
    temperature_v: bool = True


class NvmlBackend:
    name = "nvml"

    def __init__(self, *, xid_wait_ms: int = 1000) -> None:
        """``xid_wait_ms``: how long one wait for an event lasts; `cleanup` waits for its end."""
        self.sanity = Sanity()
        self._xid_wait_ms = xid_wait_ms
        self._nv: Any = None
        self._cards: list[_Card] = []
        self._links: tuple[LinkInfo, ...] = ()
        self._driver: str | None = None
        self._cuda: str | None = None
        self._events: deque[HardwareEvent] = deque(maxlen=1000)
        self._waiter: _XidWaiter | None = None
        #: Called from the waiting thread when an event came in; the probe's child sends it at once.
        self.on_event: Callable[[], None] = lambda: None

    # --- opening ----------------------------------------------------------------------------------------------

    def initialize(self) -> None:
        self.cleanup()
        try:
            import pynvml
        except ImportError as error:
            raise BackendError('The Python package nvidia-ml-py is missing; install it or set backend = "none".', "no_library") from error
        try:
            # Flag 1 = NVML_INIT_FLAG_NO_GPUS: no card yet is not an error, cards may appear later.
            pynvml.nvmlInitWithFlags(1)
        except pynvml.NVMLError as error:
            raise self._explain(pynvml, error) from error
        self._nv = pynvml
        self._driver = self._try(pynvml.nvmlSystemGetDriverVersion)
        cuda = self._try(pynvml.nvmlSystemGetCudaDriverVersion)
        self._cuda = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
        self._enumerate()

    @staticmethod
    def _explain(nv: Any, error: Any) -> BackendError:
        code = error.value
        if code == nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return BackendError(
                "Driver and NVML library differ in version (driver mismatch): reboot the node. Running jobs go on.", "driver_mismatch"
            )
        if code == nv.NVML_ERROR_LIBRARY_NOT_FOUND:
            return BackendError(f'{_LIBRARY} was not found: install the NVIDIA driver or set backend = "none".', "no_library")
        if code == nv.NVML_ERROR_DRIVER_NOT_LOADED:
            return BackendError("The NVIDIA driver is not loaded: `modprobe nvidia` or reboot the node.", "driver_not_loaded")
        if code == nv.NVML_ERROR_NO_PERMISSION:
            return BackendError("This user may not open the NVIDIA devices: check the mode of /dev/nvidia*.", "no_permission")
        return BackendError(f"NVML cannot be opened: {error}.", "nvml_error")

    def _try(self, call: Callable[..., Any], *args: Any) -> Any:
        """The call's value, or None where this card or driver does not tell. A lost card is raised on."""
        nv = self._nv
        try:
            return call(*args)
        except nv.NVMLError as error:
            if error.value in (nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_RESET_REQUIRED):
                raise
            return None
        except (UnicodeDecodeError, ValueError, AttributeError):
            return None

    def _enumerate(self) -> None:
        nv = self._nv
        self._stop_waiting()
        cards: list[_Card] = []
        for index in range(self._try(nv.nvmlDeviceGetCount) or 0):
            try:
                handle = nv.nvmlDeviceGetHandleByIndex(index)
                info = self._info(handle, index)
            except nv.NVMLError as error:
                self._events.append(HardwareEvent(kind="card_unreadable", data={"index": index, "error": str(error)}, at=time.time()))
                continue
            if info is not None:
                cards.append(_Card(handle, info))
        self._cards = cards
        self._links = tuple(self._find_links())
        self._start_waiting()

    def _info(self, handle: Any, index: int) -> GpuInfo | None:
        nv = self._nv
        uuid = self._try(nv.nvmlDeviceGetUUID, handle)
        if not uuid:
            return None  # a card without a name cannot be given to anybody
        model = self._try(nv.nvmlDeviceGetName, handle) or "NVIDIA GPU"
        total, _used, _reserved = self._memory(_Card(handle, GpuInfo(uuid=uuid, index=index, model=model, vendor="nvidia")))
        unified = False
        if total is None and any(name in model for name in UNIFIED_NAMES):
            total, unified = _host_memory_mib(), True
        capability = self._try(nv.nvmlDeviceGetCudaComputeCapability, handle)
        pci = self._try(nv.nvmlDeviceGetPciInfo, handle)
        bus = _text(pci.busId) if pci is not None else None
        return GpuInfo(
            uuid=uuid,
            index=index,
            model=model,
            vendor="nvidia",
            total_mib=total,
            compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
            pci_bus_id=bus,
            pcie_gen=self._try(nv.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            pcie_width=self._try(nv.nvmlDeviceGetMaxPcieLinkWidth, handle),
            numa=_numa(bus, self._try(nv.nvmlDeviceGetNumaNodeId, handle)),
            unified=unified,
        )

    def _find_links(self) -> list[LinkInfo]:
        nv = self._nv
        kinds = {
            nv.NVML_TOPOLOGY_INTERNAL: "pcie_switch",
            nv.NVML_TOPOLOGY_SINGLE: "pcie_switch",
            nv.NVML_TOPOLOGY_MULTIPLE: "pcie_switch",
            nv.NVML_TOPOLOGY_HOSTBRIDGE: "pcie_host",
            nv.NVML_TOPOLOGY_NODE: "numa",
            nv.NVML_TOPOLOGY_SYSTEM: "system",
        }
        lanes = self._nvlinks()
        links: list[LinkInfo] = []
        for i, a in enumerate(self._cards):
            for b in self._cards[i + 1 :]:
                pair = (a.info.uuid, b.info.uuid)
                if lanes.get(pair):
                    links.append(LinkInfo(a=pair[0], b=pair[1], kind="nvlink", count=lanes[pair]))
                    continue
                level = self._guard_lost(nv.nvmlDeviceGetTopologyCommonAncestor, a.handle, b.handle)
                kind: Any = kinds.get(level)
                if kind is not None:
                    links.append(LinkInfo(a=pair[0], b=pair[1], kind=kind))
        return links

    def _nvlinks(self) -> dict[tuple[str, str], int]:
        """(uuid, uuid) in index order → active NVLink lanes that end at each other, or meet in an NVSwitch."""
        nv = self._nv
        by_bus = {_bus(c.info.pci_bus_id): c.info.uuid for c in self._cards if c.info.pci_bus_id}
        order = [c.info.uuid for c in self._cards]
        lanes: dict[tuple[str, str], int] = {}
        switched: dict[str, int] = {}
        for card in self._cards:
            for link in range(_NVLINKS_MAX):
                if not self._guard_lost(nv.nvmlDeviceGetNvLinkState, card.handle, link):
                    continue
                remote = self._guard_lost(nv.nvmlDeviceGetNvLinkRemotePciInfo, card.handle, link)
                other = by_bus.get(_bus(_text(remote.busId))) if remote is not None else None
                if other is None:
                    if remote is not None:
                        switched[card.info.uuid] = switched.get(card.info.uuid, 0) + 1
                elif order.index(card.info.uuid) < order.index(other):
                    pair = (card.info.uuid, other)
                    lanes[pair] = lanes.get(pair, 0) + 1
        for i, a in enumerate(order):
            for b in order[i + 1 :]:
                if a in switched and b in switched:
                    lanes[a, b] = min(switched[a], switched[b])
        return lanes

    def _guard_lost(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._try(call, *args)
        except self._nv.NVMLError:
            return None

    # --- reading ----------------------------------------------------------------------------------------------

    def inventory(self) -> Cards:
        return Cards(gpus=tuple(c.info for c in self._cards), links=self._links, driver_version=self._driver, cuda_version=self._cuda)

    def get_status(self) -> list[GpuStatus]:
        nv = self._nv
        if nv is None:
            raise BackendError("NVML is not open.", "nvml_error")
        try:
            count = nv.nvmlDeviceGetCount()
        except nv.NVMLError as error:
            raise self._explain(nv, error) from error
        if count != len(self._cards):
            self._enumerate()
        return [self._status(card) for card in self._cards]

    def _status(self, card: _Card) -> GpuStatus:
        nv, handle, uuid = self._nv, card.handle, card.info.uuid
        try:
            _total, used, reserved = self._memory(card)
            rates = self._try(nv.nvmlDeviceGetUtilizationRates, handle)
            power_mw = self._try(nv.nvmlDeviceGetPowerUsage, handle)
            return self.sanity.sane(
                GpuStatus(
                    uuid=uuid,
                    used_mib=used,
                    reserved_mib=reserved,
                    util_pct=None if rates is None else rates.gpu,
                    mem_util_pct=None if rates is None else rates.memory,
                    temp_c=self._temperature(card),
                    power_w=None if power_mw is None else power_mw // 1000,
                    fan_pct=self._try(nv.nvmlDeviceGetFanSpeed, handle),
                    core_mhz=self._try(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_SM),
                    mem_mhz=self._try(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_MEM),
                )
            )
        except nv.NVMLError as error:
            return GpuStatus(uuid=uuid, error="reset_required" if error.value == nv.NVML_ERROR_RESET_REQUIRED else "lost")

    def _memory(self, card: _Card) -> tuple[int | None, int | None, int | None]:
        """(total, used, reserved) in MiB. Version 2 keeps the driver's own share apart; version 1 counts it as used."""
        nv = self._nv
        if card.memory_v2:
            found = self._try(nv.nvmlDeviceGetMemoryInfo, card.handle, nv.nvmlMemory_v2)
            if found is not None:
                return found.total // MIB, found.used // MIB, found.reserved // MIB
        found = self._try(nv.nvmlDeviceGetMemoryInfo, card.handle)
        if found is None:
            return None, None, None
        card.memory_v2 = False
        return found.total // MIB, found.used // MIB, None

    def _temperature(self, card: _Card) -> int | None:
        nv = self._nv
        if card.temperature_v:
            value = self._try(nv.nvmlDeviceGetTemperatureV, card.handle, nv.NVML_TEMPERATURE_GPU)
            if value is not None:
                return int(value)
        # The older call; deprecated, but all that drivers before R560 have.
        value = self._try(nv.nvmlDeviceGetTemperature, card.handle, nv.NVML_TEMPERATURE_GPU)
        if value is not None:
            card.temperature_v = False
        return value if value is None else int(value)

    def get_process_list(self) -> list[GpuProcess] | None:
        """Compute and graphics processes; None when no card tells (WSL, some vGPUs). Costs a driver lock, about 5 ms."""
        nv = self._nv
        found: dict[tuple[str, int], int | None] = {}
        tells = not self._cards
        for card in self._cards:
            for call in (nv.nvmlDeviceGetComputeRunningProcesses, nv.nvmlDeviceGetGraphicsRunningProcesses):
                listed = self._guard_lost(call, card.handle)
                if listed is None:
                    continue
                tells = True
                for process in listed:
                    key = (card.info.uuid, int(process.pid))
                    used = None if process.usedGpuMemory is None else int(process.usedGpuMemory) // MIB
                    found[key] = max((v for v in (found.get(key), used) if v is not None), default=None)
        if not tells:
            return None
        return [describe(GpuProcess(uuid=uuid, pid=pid, used_mib=used)) for (uuid, pid), used in found.items()]

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    # --- events -----------------------------------------------------------------------------------------------

    def events(self) -> list[HardwareEvent]:
        found: list[HardwareEvent] = []
        while self._events:
            found.append(self._events.popleft())
        return found

    def _event(self, event: HardwareEvent) -> None:
        self._events.append(event)
        self.on_event()

    def _start_waiting(self) -> None:
        if self._cards:
            self._waiter = _XidWaiter(self._nv, {c.info.uuid: c.handle for c in self._cards}, self._event, self._xid_wait_ms)

    def _stop_waiting(self) -> None:
        if self._waiter is not None:
            self._waiter.stop()
            self._waiter = None

    def cleanup(self) -> None:
        self._stop_waiting()
        nv, self._nv = self._nv, None
        self._cards, self._links = [], ()
        if nv is not None:
            with contextlib.suppress(nv.NVMLError):
                nv.nvmlShutdown()


class _XidWaiter:
    """One thread in NVML's event wait. Events of cards that don't support them simply never come."""

    def __init__(self, nv: Any, handles: dict[str, Any], tell: Callable[[HardwareEvent], None], wait_ms: int) -> None:
        self._nv, self._tell, self._wait_ms = nv, tell, wait_ms
        self._stopping = threading.Event()
        try:
            self._set = nv.nvmlEventSetCreate()
        except nv.NVMLError:
            return
        self._uuids: dict[int | None, str] = {}
        for uuid, handle in handles.items():
            with contextlib.suppress(nv.NVMLError):
                nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, self._set)
                self._uuids[_address(handle)] = uuid
        self._thread = threading.Thread(target=self._wait, name="xid", daemon=True)
        if self._uuids:
            self._thread.start()

    def _wait(self) -> None:
        nv = self._nv
        while not self._stopping.is_set():
            try:
                data = nv.nvmlEventSetWait(self._set, self._wait_ms)
            except nv.NVMLError as error:
                if error.value != nv.NVML_ERROR_TIMEOUT:
                    self._stopping.wait(1.0)  # GPU_IS_LOST comes back at once, for ever
                continue
            if data.eventType == nv.nvmlEventTypeXidCriticalError:
                uuid = self._uuids.get(_address(data.device))
                self._tell(HardwareEvent(kind="xid", gpu=uuid, data={"xid": int(data.eventData)}, at=time.time()))

    def stop(self) -> None:
        self._stopping.set()
        thread = getattr(self, "_thread", None)
        if thread is not None and thread.ident is not None:
            thread.join(timeout=3.0)
            if thread.is_alive():
                return  # stuck in the driver: freeing the set under it would crash
        if hasattr(self, "_set"):
            with contextlib.suppress(self._nv.NVMLError):
                self._nv.nvmlEventSetFree(self._set)


# --- small helpers --------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def _address(handle: Any) -> int | None:
    import ctypes

    return ctypes.cast(handle, ctypes.c_void_p).value


def _bus(pci_bus_id: str | None) -> str:
    """The same card's id is written with a domain of 4 or 8 digits in different calls."""
    return (pci_bus_id or "").upper()[-12:]


def _numa(pci_bus_id: str | None, told: int | None) -> int | None:
    if pci_bus_id:
        domain, _, rest = pci_bus_id.partition(":")
        try:
            node = int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}".lower(), "numa_node").read_text())
            return node if node >= 0 else None
        except (OSError, ValueError):
            pass
    return told if told is not None and told >= 0 else None


def _host_memory_mib() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) // 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def describe(process: GpuProcess) -> GpuProcess:
    """Add user and program name from /proc. The arguments stay out: they may hold secrets."""
    try:
        base = Path("/proc", str(process.pid))
        uid = base.stat().st_uid
        command = base.joinpath("comm").read_text().strip()
    except OSError:
        return process
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return replace(process, user=user, command=command)
