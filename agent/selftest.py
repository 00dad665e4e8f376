"""`python -m agent.selftest`: is this card well? A child of its own, so that a card that hangs takes nobody with it.

The memory that it is given is written with patterns and read back; then, if asked, the card is kept busy for a while and left to
cool down. It prints one JSON object: {"result": passed | failed | impossible, "mib", "errors", "max_temp_c", "took_s", "text"}.
Without NVIDIA's driver library (other vendors, no driver) the answer is *impossible*: a person has to look.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

MIB = 1 << 20
CHUNK_MIB = 256
PATTERNS = (0x00000000, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA)
#: Hotter than this under load is a fault of the cooling; warmer than WARM_C at the end of the rest as well.
HOT_C, WARM_C = 95, 85
REST_S = 20.0


class CardError(RuntimeError):
    """The card did not do what it was told."""


class Memory(Protocol):
    """A card's memory, as the test needs it. All calls may raise CardError."""

    def take(self, mib: int) -> int:
        """A handle for a piece of memory."""

    def fill(self, piece: int, word: int, mib: int) -> None: ...

    def read(self, piece: int, mib: int) -> bytes: ...

    def close(self) -> None: ...


def memory_test(memory: Memory, mib: int) -> tuple[list[tuple[int, int]], int]:
    """(pieces as handle and MiB, wrong words in the first bad one). Takes as much of ``mib`` as there is, in pieces, and writes each
    pattern to all of it before any is read back: a cell that spoils another one is found so."""
    pieces: list[tuple[int, int]] = []
    left = mib
    while left > 0:
        size = min(CHUNK_MIB, left)
        try:
            pieces.append((memory.take(size), size))
        except CardError:
            if not pieces:
                raise
            break  # somebody took the rest meanwhile
        left -= size
    for pattern in PATTERNS:
        for piece, size in pieces:
            memory.fill(piece, pattern, size)
        word = pattern.to_bytes(4, "little")
        for piece, size in pieces:
            found = memory.read(piece, size)
            if found != word * (size * MIB // 4):
                # One piece tells enough; counting them all could take longer than the test.
                return pieces, sum(found[i : i + 4] != word for i in range(0, len(found), 4))
    return pieces, 0


def heat(
    memory: Memory, piece: int, mib: int, *, seconds: float, temperature: Callable[[], int | None], rest_s: float = REST_S
) -> list[int]:
    """Keep the memory busy for ``seconds``, then rest; the temperatures that were told on the way, the last one after the rest."""
    told: list[int] = []
    end = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < end:
        for _ in range(32):
            memory.fill(piece, PATTERNS[turn % len(PATTERNS)], mib)
            turn += 1
        value = temperature()
        told += [] if value is None else [value]
    until = time.monotonic() + (rest_s if told else 0.0)
    while told and time.monotonic() < until and told[-1] > told[0]:
        time.sleep(1.0)
        value = temperature()
        told += [] if value is None else [value]
    return told


def run(memory: Memory, *, mib: int, heat_s: float, temperature: Callable[[], int | None], rest_s: float = REST_S) -> dict[str, Any]:
    """The whole test as its report."""
    began = time.monotonic()
    report: dict[str, Any] = {"result": "passed"}
    try:
        pieces, wrong = memory_test(memory, mib)
        tested = sum(size for _, size in pieces)
        report |= {"mib": tested, "errors": wrong}
        temps = []
        if heat_s > 0 and pieces and not wrong:
            temps = heat(memory, *pieces[0], seconds=heat_s, temperature=temperature, rest_s=rest_s)
        if temps:
            report |= {"max_temp_c": max(temps), "end_temp_c": temps[-1]}
        if wrong:
            report |= {"result": "failed", "text": f"{wrong} words of {tested} MiB did not hold what was written."}
        elif temps and (max(temps) >= HOT_C or temps[-1] >= WARM_C):
            report |= {"result": "failed", "text": f"It got {max(temps)} °C hot and was {temps[-1]} °C after a rest."}
    except CardError as error:
        report |= {"result": "failed", "text": str(error)}
    finally:
        with contextlib.suppress(CardError):
            memory.close()
    return report | {"took_s": round(time.monotonic() - began, 1)}


# --- NVIDIA ---------------------------------------------------------------------------------------------------------


class CudaMemory:
    """The few calls of libcuda that it takes. Raises OSError without the library, CardError when the card refuses."""

    def __init__(self, uuid: str, library: str = "libcuda.so.1") -> None:
        self._cuda = ctypes.CDLL(library)
        self._pieces: list[int] = []
        self._context = ctypes.c_void_p()
        self._ask("cuInit", 0)
        device = self._device(uuid)
        self._ask("cuCtxCreate_v2", ctypes.byref(self._context), 0, device)

    def _ask(self, call: str, *args: Any) -> None:
        code = getattr(self._cuda, call)(*args)
        if code:
            text = ctypes.c_char_p()
            with contextlib.suppress(AttributeError):
                self._cuda.cuGetErrorString(code, ctypes.byref(text))
            raise CardError(f"{call}: {(text.value or b'').decode(errors='replace') or code}")

    def _device(self, uuid: str) -> ctypes.c_int:
        wanted = bytes.fromhex(uuid.removeprefix("GPU-").removeprefix("MIG-").replace("-", ""))
        count = ctypes.c_int()
        self._ask("cuDeviceGetCount", ctypes.byref(count))
        for index in range(count.value):
            device, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            self._ask("cuDeviceGet", ctypes.byref(device), index)
            self._ask("cuDeviceGetUuid", ctypes.byref(found), device)
            if bytes(found) == wanted:
                return device
        raise CardError(f"The driver does not offer the card {uuid}.")

    def take(self, mib: int) -> int:
        piece = ctypes.c_uint64()
        self._ask("cuMemAlloc_v2", ctypes.byref(piece), ctypes.c_size_t(mib * MIB))
        self._pieces.append(piece.value)
        return piece.value

    def fill(self, piece: int, word: int, mib: int) -> None:
        self._ask("cuMemsetD32_v2", ctypes.c_uint64(piece), ctypes.c_uint(word), ctypes.c_size_t(mib * MIB // 4))
        self._ask("cuCtxSynchronize")

    def read(self, piece: int, mib: int) -> bytes:
        target = ctypes.create_string_buffer(mib * MIB)
        self._ask("cuMemcpyDtoH_v2", target, ctypes.c_uint64(piece), ctypes.c_size_t(mib * MIB))
        return target.raw

    def close(self) -> None:
        for piece in self._pieces:
            self._ask("cuMemFree_v2", ctypes.c_uint64(piece))
        self._ask("cuCtxDestroy_v2", self._context)


def _temperature_of(uuid: str) -> Callable[[], int | None]:
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    except Exception:  # whatever it raises: a card that does not tell its temperature is tested without
        return lambda: None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Test a card's memory and cooling.")
    parser.add_argument("--gpu", required=True)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--heat-s", type=float, default=0.0)
    args = parser.parse_args(argv)
    try:
        memory = CudaMemory(args.gpu)
    except OSError as error:
        report: dict[str, Any] = {"result": "impossible", "text": f"No CUDA driver library on this node: {error}."}
    except ValueError:
        report = {"result": "impossible", "text": f"{args.gpu} is no card of CUDA."}
    except CardError as error:
        report = {"result": "failed", "text": str(error)}
    else:
        report = run(memory, mib=args.mib, heat_s=args.heat_s, temperature=_temperature_of(args.gpu))
    print(json.dumps(report))  # noqa: T201 - this is its answer
    return 0 if report["result"] == "passed" else 1


if __name__ == "__main__":
    sys.exit(main())
