"""The part of Level Zero's sysman interface (zes_api.h) that the Intel backend calls, for ctypes.

Every structure that the driver fills carries its type in ``stype``; a wrong one is refused.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_double, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

SUCCESS = 0
DEVICE_LOST = 0x70000001
DEVICE_REQUIRES_RESET = 0x70000006
INSUFFICIENT_PERMISSIONS = 0x70010000
DEPENDENCY_UNAVAILABLE = 0x70020000
UNINITIALIZED = 0x78000001

INTEGRATED = 1  # ze_device_property_flag_t
DEVICE_TYPE_GPU = 1
ENGINE_ALL, ENGINE_COMPUTE_ALL, ENGINE_3D_RENDER_COMPUTE_ALL, ENGINE_RENDER_ALL = 0, 1, 11, 12
TEMP_GLOBAL, TEMP_GPU = 0, 1
FREQ_GPU, FREQ_MEMORY = 0, 1
FAN_PERCENT = 1
RAS_CORRECTABLE, RAS_UNCORRECTABLE = 0, 1
#: zes_freq_throttle_reason_flag_t → our words.
THROTTLE = (
    (0x1, "power_cap"),
    (0x2, "power_cap"),
    (0x4, "current_limit"),
    (0x8, "hw_thermal"),
    (0x10, "power_brake"),
    (0x20, "app_clocks"),
    (0x40, "hw_slowdown"),
)


class Struct(ctypes.Structure):
    """``TYPE`` is the zes_structure_type_t of the structure."""

    TYPE = 0

    @classmethod
    def new(cls) -> Any:
        made = cls()
        made.stype = cls.TYPE
        return made


_HEAD: list[tuple[str, Any]] = [("stype", c_uint32), ("pNext", c_void_p)]
_PLACE: list[tuple[str, Any]] = [("type", c_uint32), ("on_subdevice", c_uint8), ("subdevice", c_uint32)]
TEXT = 64


class CoreProperties(Struct):
    """ze_device_properties_t, inside DeviceProperties."""

    TYPE = 0x3
    _fields_ = [
        *_HEAD,
        ("type", c_uint32),
        ("vendor", c_uint32),
        ("device", c_uint32),
        ("flags", c_uint32),
        ("subdevice", c_uint32),
        ("core_clock", c_uint32),
        ("max_alloc", c_uint64),
        ("max_contexts", c_uint32),
        ("max_priority", c_uint32),
        ("threads_per_eu", c_uint32),
        ("simd_width", c_uint32),
        ("eus_per_subslice", c_uint32),
        ("subslices_per_slice", c_uint32),
        ("slices", c_uint32),
        ("timer_resolution", c_uint64),
        ("timestamp_bits", c_uint32),
        ("kernel_timestamp_bits", c_uint32),
        ("uuid", c_uint8 * 16),
        ("name", c_char * 256),
    ]


class DeviceProperties(Struct):
    TYPE = 0x1
    _fields_ = [
        *_HEAD,
        ("core", CoreProperties),
        ("subdevices", c_uint32),
        ("serial", c_char * TEXT),
        ("board", c_char * TEXT),
        ("brand", c_char * TEXT),
        ("model", c_char * TEXT),
        ("vendor_name", c_char * TEXT),
        ("driver", c_char * TEXT),
    ]


class DeviceState(Struct):
    TYPE = 0x15
    _fields_ = [*_HEAD, ("reset", c_uint32), ("repaired", c_uint32)]


class PciAddress(ctypes.Structure):
    _fields_ = [("domain", c_uint32), ("bus", c_uint32), ("device", c_uint32), ("function", c_uint32)]


class PciSpeed(ctypes.Structure):
    _fields_ = [("gen", c_int32), ("width", c_int32), ("bandwidth", c_int64)]


class PciProperties(Struct):
    TYPE = 0x2
    _fields_ = [
        *_HEAD,
        ("address", PciAddress),
        ("speed", PciSpeed),
        ("has_bandwidth", c_uint8),
        ("has_packets", c_uint8),
        ("has_replays", c_uint8),
    ]


class PciState(Struct):
    TYPE = 0x17
    _fields_ = [*_HEAD, ("status", c_uint32), ("quality", c_uint32), ("stability", c_uint32), ("speed", PciSpeed)]


class MemProperties(Struct):
    TYPE = 0xB
    _fields_ = [
        *_HEAD,
        *_PLACE,
        ("location", c_uint32),
        ("physical", c_uint64),
        ("bus_width", c_int32),
        ("channels", c_int32),
    ]


class MemState(Struct):
    TYPE = 0x1E
    _fields_ = [*_HEAD, ("health", c_uint32), ("free", c_uint64), ("size", c_uint64)]


class EngineProperties(Struct):
    TYPE = 0x5
    _fields_ = [*_HEAD, *_PLACE]


class EngineStats(ctypes.Structure):
    """Microseconds."""

    _fields_ = [("active", c_uint64), ("timestamp", c_uint64)]


class TempProperties(Struct):
    TYPE = 0x14
    _fields_ = [
        *_HEAD,
        *_PLACE,
        ("max", c_double),
        ("critical", c_uint8),
        ("threshold1", c_uint8),
        ("threshold2", c_uint8),
    ]


class EnergyCounter(ctypes.Structure):
    """Microjoule, microseconds."""

    _fields_ = [("energy", c_uint64), ("timestamp", c_uint64)]


class FreqProperties(Struct):
    TYPE = 0x9
    _fields_ = [*_HEAD, *_PLACE, ("can_control", c_uint8), ("throttle_event", c_uint8), ("min", c_double), ("max", c_double)]


class FreqState(Struct):
    """MHz; below 0 is not told."""

    TYPE = 0x1B
    _fields_ = [
        *_HEAD,
        ("voltage", c_double),
        ("request", c_double),
        ("tdp", c_double),
        ("efficient", c_double),
        ("actual", c_double),
        ("throttle", c_uint32),
    ]


class ProcessState(Struct):
    TYPE = 0x16
    _fields_ = [*_HEAD, ("pid", c_uint32), ("mem", c_uint64), ("shared", c_uint64), ("engines", c_uint32)]


class RasProperties(Struct):
    TYPE = 0xF
    _fields_ = [*_HEAD, *_PLACE]


class RasState(Struct):
    TYPE = 0x22
    _fields_ = [*_HEAD, ("category", c_uint64 * 7)]


class Sysman:
    """The loader library, opened. Raises OSError when it cannot be loaded."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self._known: dict[str, Any] = {}

    def function(self, name: str) -> Any | None:
        """None where this loader does not have it."""
        if name not in self._known:
            found = getattr(self.library, name, None)
            if found is not None:
                found.restype = c_uint32
            self._known[name] = found
        return self._known[name]

    def call(self, name: str, *args: Any) -> int:
        """The result code; a function that is missing counts as not supported."""
        found = self.function(name)
        return 0x78000003 if found is None else int(found(*args))

    def handles(self, name: str, *args: Any) -> list[c_void_p]:
        """What an enumerating function gives: called for the count, then for the handles. Empty when it fails."""
        count = c_uint32(0)
        if self.call(name, *args, ctypes.byref(count), POINTER(c_void_p)()) != SUCCESS or not 0 < count.value < 4096:
            return []
        room = (c_void_p * count.value)()
        if self.call(name, *args, ctypes.byref(count), room) != SUCCESS:
            return []
        return [c_void_p(value) for value in room[: count.value] if value]
