"""NVIDIA cards through NVML. Runs in the probe's child process, where a call that never returns harms nobody.

Every getter is guarded on its own: what a card does not support is None, a card that is lost has `error="lost"`, and the
others stay complete. Values follow NVML: https://docs.nvidia.com/deploy/nvml-api/. What is read from where: docs/hardware.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.backends.base import BackendError, Cards, Complaints, HardwareEvent, Placed, Sanity, bus_slot, describe, host_memory_mib
from agent.backends.kernel_log import KernelLog, XidLine
from agent.backends.nvml_gpm import TensorUse
from agent.backends.nvml_health import MIB, health_read, throttle_read
from agent.backends.nvml_lib import Nvml, explain, nvml_present, versions_differ
from agent.backends.nvml_topology import Place, links_find, text
from agent.protocol import GpuHealth, GpuInfo, GpuProcess, GpuStatus, LinkInfo

__all__ = ["NvmlBackend", "nvml_present"]

log = logging.getLogger("nebula-agent")

#: Boards whose memory is the host's: NVML answers NOT_SUPPORTED for it, and /proc/meminfo is the truth.
UNIFIED_NAMES = ("GB10", "Thor", "Orin", "Tegra")
#: A card that does not answer, or a number of cards that changed, is looked at again so often at most.
LOOK_AGAIN_S = 30.0
#: The same XID of the same card, told by NVML and by the kernel's log within so long, is one event.
SAME_S = 5.0
#: NVML tells the number, the kernel's log the process that did it. Where both are heard, the number waits so long for the words.
WORDS_S = 0.3
_WHOLE = 0xFFFFFFFF  # NVML's "no MIG instance"


@dataclass(slots=True)
class _Card:
    handle: Any
    info: GpuInfo
    parent: _Card | None = None  # of a MIG part
    instance: tuple[int, int] | None = None  # (GPU instance, compute instance) of a MIG part
    used_at: int = 0  # NVML's time of the last use of a process that was read
    memory_v2: bool = True
    temperature_v: bool = True
    tensor: TensorUse | None = None


class NvmlBackend:
    name = "nvml"

    def __init__(self, *, xid_wait_ms: int = 1000, kernel_log: str | None = None, root: str = "/", driver_model: bool = False) -> None:
        """``xid_wait_ms``: how long one wait for an event lasts; `cleanup` waits for its end. ``kernel_log``: the file of
        the kernel's messages, None = not read. ``root``: where /sys and /proc are. ``driver_model``: ask for Windows' own."""
        self.sanity, self._complaints = Sanity(), Complaints(log)
        self._xid_wait_ms, self._kernel_log_path, self._root = xid_wait_ms, kernel_log, root
        self._driver_model = driver_model
        self._nvml: Nvml | None = None
        self._cards: list[_Card] = []
        self._count = 0  # that NVML named at the last look
        self._unread = 0  # of them could not be read
        self._looked_at = float("-inf")
        self._by_slot: dict[tuple[int, int, int], str] = {}  # of all cards ever seen: a lost one is named by its place
        self._links: tuple[LinkInfo, ...] = ()
        self._driver: str | None = None
        self._cuda: str | None = None
        self._differs = False
        self._events: deque[HardwareEvent] = deque(maxlen=1000)
        self._heard: dict[tuple[str | None, int], tuple[str, float]] = {}
        self._held: dict[tuple[str | None, int], tuple[HardwareEvent, threading.Timer]] = {}
        self._lock = threading.Lock()
        self._waiter: _XidWaiter | None = None
        self._kernel_log: KernelLog | None = None
        #: Called from a waiting thread when an event came in; the probe's child sends it at once.
        self.on_event: Callable[[], None] = lambda: None

    # --- opening ----------------------------------------------------------------------------------------------

    def initialize(self) -> None:
        self.cleanup()
        if self._kernel_log_path is not None:
            # Before NVML is opened: the log is what tells why it doesn't.
            self._kernel_log = KernelLog(self._kernel_said, self._kernel_log_path, around=self._kernel_around)
        nvml = Nvml.open()
        self._nvml = nvml
        self._driver = nvml.ask_any("nvmlSystemGetDriverVersion")
        cuda = nvml.ask_any("nvmlSystemGetCudaDriverVersion")
        self._cuda = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
        self._enumerate(nvml)

    def _enumerate(self, nvml: Nvml) -> None:
        raw = nvml.raw
        self._stop_waiting()
        self._samples_free()
        self._looked_at = time.monotonic()
        self._differs = versions_differ(self._root)
        cards: list[_Card] = []
        parts: list[_Card] = []
        self._count, self._unread = nvml.ask_any("nvmlDeviceGetCount") or 0, 0
        for index in range(self._count):
            try:
                handle = raw.nvmlDeviceGetHandleByIndex(index)
                info = self._info(nvml, handle, index)
            except Exception as error:  # NVML's own, and whatever else one card makes of a call
                if not isinstance(error, raw.NVMLError):
                    self._complaints.make(f"Card {index} cannot be opened.", error)
                self._unread += 1
                self._events.append(HardwareEvent(kind="card_unreadable", data={"index": index, "error": str(error)}, at=time.time()))
                continue
            if info is None:
                continue
            card = _Card(handle, info, tensor=TensorUse(nvml, handle))
            cards.append(card)
            parts += self._mig_parts(nvml, card)
            slot = bus_slot(info.pci_bus_id)
            if slot is not None:
                self._by_slot[slot] = info.uuid
        try:
            self._links = tuple(links_find(nvml, [Place(c.handle, c.info.uuid, c.info.pci_bus_id) for c in cards]))
        except Exception as error:  # the cards are there, whatever is between them
            self._complaints.make("The way between the cards cannot be read.", error)
            self._links = ()
        # Parts come after the cards, whose index is their place among the cards.
        self._cards = [*cards, *(replace(p, info=replace(p.info, index=self._count + i)) for i, p in enumerate(parts))]
        handles = {c.info.uuid: c.handle for c in cards}
        if handles:
            self._waiter = _XidWaiter(raw, handles, self._nvml_said, self._xid_wait_ms)

    def _info(self, nvml: Nvml, handle: Any, index: int) -> GpuInfo | None:
        uuid = nvml.ask("nvmlDeviceGetUUID", handle)
        if not uuid:
            return None  # a card without a name cannot be given to anybody
        model = nvml.ask("nvmlDeviceGetName", handle) or "NVIDIA GPU"
        total, _used, _reserved = self._memory(nvml, _Card(handle, GpuInfo(uuid=uuid, index=index, model=model, vendor="nvidia")))
        unified = False
        if total is None and any(name in model for name in UNIFIED_NAMES):
            total, unified = host_memory_mib(), True
        capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
        pci = nvml.ask("nvmlDeviceGetPciInfo", handle)
        bus = text(pci.busId) if pci is not None else None
        mig = nvml.ask("nvmlDeviceGetMigMode", handle)
        return self.sanity.info(
            GpuInfo(
                uuid=uuid,
                index=index,
                model=model,
                vendor="nvidia",
                # A card that is cut into MIG parts takes no work itself: its parts are what there is to give.
                total_mib=None if mig is not None and mig[0] == 1 else total,
                compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
                pci_bus_id=bus,
                pcie_gen=nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
                pcie_width=nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
                numa=_numa(self._root, bus, nvml.ask("nvmlDeviceGetNumaNodeId", handle)),
                unified=unified,
            )
        )

    def _mig_parts(self, nvml: Nvml, card: _Card) -> list[_Card]:
        """The MIG parts of a card; empty where it is not cut."""
        mig = nvml.ask_any("nvmlDeviceGetMigMode", card.handle)
        if mig is None or mig[0] != 1:
            return []
        parts: list[_Card] = []
        for number in range(nvml.ask_any("nvmlDeviceGetMaxMigDeviceCount", card.handle) or 0):
            handle = nvml.ask_any("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, number)
            uuid = nvml.ask_any("nvmlDeviceGetUUID", handle) if handle is not None else None
            if not uuid:
                continue  # numbers of parts have gaps
            name = nvml.ask_any("nvmlDeviceGetName", handle) or ""
            instances = nvml.ask_any("nvmlDeviceGetGpuInstanceId", handle), nvml.ask_any("nvmlDeviceGetComputeInstanceId", handle)
            info = replace(
                card.info,
                uuid=uuid,
                total_mib=self._memory(nvml, _Card(handle, card.info))[0],
                parent=card.info.uuid,
                # "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
                profile=name.rpartition(" MIG ")[2] or None if " MIG " in name else None,
            )
            instance = None if None in instances else (int(instances[0]), int(instances[1]))
            parts.append(_Card(handle, self.sanity.info(info), parent=card, instance=instance))
        return parts

    # --- reading ----------------------------------------------------------------------------------------------

    def inventory(self) -> Cards:
        return Cards(
            gpus=tuple(c.info for c in self._cards),
            links=self._links,
            driver_version=self._driver,
            cuda_version=self._cuda,
            backends=(self.name,),
            advice=("driver_mismatch",) if self._differs else (),
        )

    def _open(self) -> Nvml:
        if self._nvml is None:
            raise BackendError("NVML is not open.", "nvml_error")
        return self._nvml

    def get_status(self) -> list[GpuStatus]:
        nvml = self._open()
        try:
            count = nvml.raw.nvmlDeviceGetCount()
        except nvml.raw.NVMLError as error:
            raise explain(nvml.raw, error) from error
        again = self._unread and time.monotonic() - self._looked_at >= LOOK_AGAIN_S
        if count != self._count or again:
            self._enumerate(nvml)
        found: dict[str, GpuStatus] = {}
        for card in self._cards:
            found[card.info.uuid] = self._status(nvml, card, found)
        return list(found.values())

    def _status(self, nvml: Nvml, card: _Card, whole: dict[str, GpuStatus]) -> GpuStatus:
        uuid = card.info.uuid
        try:
            if card.parent is not None:
                return self._part_status(nvml, card, whole[card.parent.info.uuid])
            return self.sanity.sane(self._card_status(nvml, card))
        except nvml.raw.NVMLError as error:
            return GpuStatus(uuid=uuid, error="reset_required" if error.value == nvml.raw.NVML_ERROR_RESET_REQUIRED else "lost")
        except Exception as error:  # whatever one card makes of a call, the others are told
            self._complaints.make(f"Card {uuid} cannot be read.", error)
            return GpuStatus(uuid=uuid, error="unreadable")

    def _card_status(self, nvml: Nvml, card: _Card) -> GpuStatus:
        raw, handle = nvml.raw, card.handle
        _total, used, reserved = self._memory(nvml, card)
        rates = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
        power_mw = nvml.ask("nvmlDeviceGetPowerUsage", handle)
        return GpuStatus(
            uuid=card.info.uuid,
            used_mib=used,
            reserved_mib=reserved,
            util_pct=None if rates is None else rates.gpu,
            mem_util_pct=None if rates is None else rates.memory,
            tensor_pct=card.tensor.read() if card.tensor is not None else None,
            temp_c=self._temperature(nvml, card),
            power_w=None if power_mw is None else power_mw // 1000,
            fan_pct=nvml.ask("nvmlDeviceGetFanSpeed", handle),
            core_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, raw.NVML_CLOCK_SM),
            mem_mhz=nvml.ask("nvmlDeviceGetClockInfo", handle, raw.NVML_CLOCK_MEM),
            throttle=throttle_read(nvml, handle),
        )

    def _part_status(self, nvml: Nvml, part: _Card, whole: GpuStatus) -> GpuStatus:
        """A MIG part has memory of its own; heat and clocks are the card's. Power and fan are told with the card alone,
        so that sums are right; use is not told by NVML for a part."""
        if whole.error is not None:
            return GpuStatus(uuid=part.info.uuid, error=whole.error)
        _total, used, reserved = self._memory(nvml, part)
        mine = GpuStatus(uuid=part.info.uuid, used_mib=used, reserved_mib=reserved)
        return replace(self.sanity.sane(mine), temp_c=whole.temp_c, core_mhz=whole.core_mhz, mem_mhz=whole.mem_mhz, throttle=whole.throttle)

    def get_health(self) -> list[GpuHealth]:
        nvml = self._open()
        self._differs = versions_differ(self._root)
        found: list[GpuHealth] = []
        for card in self._cards:
            if card.parent is not None:
                continue  # it is the card that ages, not its parts
            try:
                found.append(self.sanity.healthy(health_read(nvml, card.handle, card.info.uuid, driver_model=self._driver_model)))
            except nvml.raw.NVMLError:
                continue  # its status says that it is lost
            except Exception as error:
                self._complaints.make(f"The slow facts of card {card.info.uuid} cannot be read.", error)
        return found

    def _memory(self, nvml: Nvml, card: _Card) -> tuple[int | None, int | None, int | None]:
        """(total, used, reserved) in MiB. Version 2 keeps the driver's own share apart; version 1 counts it as used."""
        if card.memory_v2:
            found = nvml.ask("nvmlDeviceGetMemoryInfo", card.handle, nvml.raw.nvmlMemory_v2)
            if found is not None and found.total:
                return found.total // MIB, found.used // MIB, found.reserved // MIB
        found = nvml.ask("nvmlDeviceGetMemoryInfo", card.handle)
        if found is None or not found.total:
            return None, None, None  # 0 MiB in all is a driver that does not tell
        card.memory_v2 = False
        return found.total // MIB, found.used // MIB, None

    def _temperature(self, nvml: Nvml, card: _Card) -> int | None:
        sensor = nvml.raw.NVML_TEMPERATURE_GPU
        if card.temperature_v:
            value = nvml.ask("nvmlDeviceGetTemperatureV", card.handle, sensor)
            if value is not None:
                return int(value)
        # The older call; deprecated, but all that drivers before R560 have.
        value = nvml.ask("nvmlDeviceGetTemperature", card.handle, sensor)
        if value is not None:
            card.temperature_v = False
        return value if value is None else int(value)

    def get_process_list(self) -> list[GpuProcess] | None:
        """Compute and graphics processes; None when no card tells (WSL, some vGPUs). Costs a driver lock, about 5 ms."""
        nvml = self._open()
        found: dict[tuple[str, int], int | None] = {}
        use: dict[str, dict[int, int | None] | None] = {}
        tells = not self._cards
        cut = {c.parent.info.uuid for c in self._cards if c.parent is not None}
        for card in self._cards:
            if card.info.uuid in cut:
                continue  # its processes are listed with its parts
            use[card.info.uuid] = self._process_use(nvml, card)
            for kind in ("Compute", "Graphics"):
                listed = nvml.processes(kind, card.handle)
                if listed is None:
                    continue
                tells = True
                for process in listed:
                    key = (card.info.uuid, int(process.pid))
                    used = None if process.usedGpuMemory is None else int(process.usedGpuMemory) // MIB
                    found[key] = max((v for v in (found.get(key), used) if v is not None), default=None)
        if not tells:
            return None
        told = (GpuProcess(uuid=uuid, pid=pid, used_mib=used, util_pct=_use_of(use.get(uuid), pid)) for (uuid, pid), used in found.items())
        return [describe(process) for process in told]

    def _process_use(self, nvml: Nvml, card: _Card) -> dict[int, int | None] | None:
        """pid → mean use in % since the last look, None where that can't be true; who is not in it ran no kernel. None where the card
        does not tell (MIG parts, vGPUs, before Maxwell)."""
        raw = nvml.raw
        if card.parent is not None:
            return None
        try:
            samples = raw.nvmlDeviceGetProcessUtilization(card.handle, card.used_at)
        except raw.NVMLError as error:
            # Nobody did anything: an error by NVML's counting.
            return {} if error.value in (raw.NVML_ERROR_NOT_FOUND, raw.NVML_SUCCESS) else None
        except AttributeError:
            return None  # a pynvml that does not know the call
        found: dict[int, list[int]] = {}
        for sample in samples:
            value = self.sanity.value("util_pct", int(sample.smUtil), uuid=card.info.uuid)
            if int(sample.timeStamp) > card.used_at:
                found.setdefault(int(sample.pid), []).extend([] if value is None else [value])
        card.used_at = max((int(sample.timeStamp) for sample in samples), default=card.used_at)
        return {pid: round(sum(values) / len(values)) if values else None for pid, values in found.items()}

    def placed(self, ranks: Sequence[Placed]) -> None:
        return

    # --- events -----------------------------------------------------------------------------------------------

    def events(self) -> list[HardwareEvent]:
        found = self.sanity.events()
        with contextlib.suppress(IndexError):  # three threads may come here at once
            while True:
                found.append(self._events.popleft())
        return found

    def _nvml_said(self, uuid: str | None, xid: int, instance: tuple[int, int]) -> None:
        if _WHOLE not in instance:
            uuid = next((c.info.uuid for c in self._cards if c.parent and c.parent.info.uuid == uuid and c.instance == instance), uuid)
        self._xid(uuid, xid, "nvml", {})

    def _kernel_said(self, line: XidLine) -> None:
        uuid = self._by_slot.get(line.slot) if line.slot is not None else None
        self._xid(uuid, line.xid, "kernel_log", {"text": line.text})

    def _kernel_around(self, slot: tuple[int, int, int], lines: tuple[str, ...]) -> None:
        uuid = self._by_slot.get(slot)
        if uuid is not None and lines:
            self._events.append(HardwareEvent(kind="kernel_log", gpu=uuid, data={"lines": list(lines)}, at=time.time()))
            self.on_event()

    def _xid(self, uuid: str | None, xid: int, source: str, more: dict[str, Any]) -> None:
        """Both sources tell most XIDs; the two of a pair are one event. A MIG part and its card count as one."""
        whole = next((c.info.parent for c in self._cards if c.info.uuid == uuid and c.info.parent), uuid)
        key, now = (whole, xid), time.monotonic()
        event = HardwareEvent(kind="xid", gpu=uuid, data={"xid": xid, **more}, at=time.time())
        with self._lock:
            before = self._heard.get(key)
            if before is not None and before[0] != source and now - before[1] < SAME_S:
                held = self._held.pop(key, None) if source == "kernel_log" else None
                if held is None:
                    return
                held[1].cancel()
                event = replace(held[0], data={**held[0].data, **more})  # NVML's word which part it is, the kernel's who did it
            else:
                self._heard[key] = (source, now)
                if source == "nvml" and key not in self._held and self._kernel_log is not None and self._kernel_log.readable:
                    timer = threading.Timer(WORDS_S, self._release, [key])
                    timer.daemon = True
                    self._held[key] = (event, timer)
                    timer.start()
                    return
        self._tell_xid(event)

    def _release(self, key: tuple[str | None, int]) -> None:
        """The kernel's log had nothing to say of it."""
        with self._lock:
            held = self._held.pop(key, None)
        if held is not None:
            self._tell_xid(held[0])

    def _tell_xid(self, event: HardwareEvent) -> None:
        self._events.append(event)
        self.on_event()

    def _stop_waiting(self) -> None:
        if self._waiter is not None:
            self._waiter.stop()
            self._waiter = None

    def _samples_free(self) -> None:
        for card in self._cards:
            if card.tensor is not None:
                card.tensor.close()

    def cleanup(self) -> None:
        self._stop_waiting()
        self._samples_free()
        for key, (_event, timer) in list(self._held.items()):
            timer.cancel()
            self._release(key)
        if self._kernel_log is not None:
            self._kernel_log.stop()
            self._kernel_log = None
        nvml, self._nvml = self._nvml, None
        self._cards, self._links, self._count = [], (), 0
        if nvml is not None:
            with contextlib.suppress(nvml.raw.NVMLError):
                nvml.raw.nvmlShutdown()


class _XidWaiter:
    """One thread in NVML's event wait. Events of cards that don't support them simply never come."""

    def __init__(self, raw: Any, handles: dict[str, Any], tell: Callable[[str | None, int, tuple[int, int]], None], wait_ms: int) -> None:
        self._nv, self._tell, self._wait_ms = raw, tell, wait_ms
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._uuids: dict[int | None, str] = {}
        try:
            self._set = raw.nvmlEventSetCreate()
        except raw.NVMLError:
            return
        for uuid, handle in handles.items():
            with contextlib.suppress(raw.NVMLError):
                raw.nvmlDeviceRegisterEvents(handle, raw.nvmlEventTypeXidCriticalError, self._set)
                self._uuids[_address(handle)] = uuid
        if self._uuids:
            self._thread = threading.Thread(target=self._wait, name="xid", daemon=True)
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
                instance = (int(data.gpuInstanceId), int(data.computeInstanceId))
                try:
                    self._tell(self._uuids.get(_address(data.device)), int(data.eventData), instance)
                except Exception:  # the next XID must be heard, whatever became of this one
                    log.exception("XID %s of a card could not be told.", data.eventData)

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=3.0)
            if self._thread.is_alive():
                return  # stuck in the driver: freeing the set under it would crash
        if hasattr(self, "_set"):
            with contextlib.suppress(self._nv.NVMLError):
                self._nv.nvmlEventSetFree(self._set)


def _use_of(use: dict[int, int | None] | None, pid: int) -> int | None:
    return None if use is None else use.get(pid, 0)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _numa(root: str, pci_bus_id: str | None, told: int | None) -> int | None:
    slot = bus_slot(pci_bus_id)
    if slot is not None:
        with contextlib.suppress(OSError, ValueError):
            node = int(Path(root, "sys/bus/pci/devices", "{:04x}:{:02x}:{:02x}.0".format(*slot), "numa_node").read_text())
            return node if node >= 0 else None
    return told if told is not None and 0 <= told < 4096 else None
