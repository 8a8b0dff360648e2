"""The runtime's library through ctypes: device memory, and launches."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from tests.cuda.emulator.builder import build_runtime, source_line

__all__ = ["EmulationError", "KernelEntry", "allocate", "copy", "fill", "free", "launch"]

FROM_DEVICE, TO_DEVICE = 1, 2
ALIGNMENT = 256
"""What every allocation of a device begins at."""


class EmulationError(Exception):
    """A kernel did what it must not do; the message names kernel, block, thread and line."""


class KernelEntry(ctypes.Structure):
    """`EmulatorKernel` of runtime/api.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("entry", ctypes.c_void_p),
        ("num_parameters", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_int)),
        ("alignments", ctypes.POINTER(ctypes.c_int)),
        ("kinds", ctypes.c_char_p),
        ("max_threads", ctypes.c_int),
        ("cluster", ctypes.c_int),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.POINTER(KernelEntry)),
        ("dynamic_shared", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_nbytes", ctypes.c_uint),
        ("seed", ctypes.c_uint64),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("message", ctypes.c_char_p),
        ("message_nbytes", ctypes.c_size_t),
    ]


@cache
def runtime() -> Any:
    """The library, loaded once."""
    library = ctypes.CDLL(str(build_runtime()))
    library.emulator_allocate.restype = ctypes.c_size_t
    library.emulator_allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p]
    library.emulator_free.argtypes = [ctypes.c_size_t]
    library.emulator_copy.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    library.emulator_fill.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint32]
    library.emulator_launch.argtypes = [ctypes.POINTER(_Launch)]
    return library


def allocate(nbytes: int, name: str = "memory", alignment: int = ALIGNMENT) -> int:
    """Device memory full of garbage; MemoryError when there is none."""
    address: int = runtime().emulator_allocate(nbytes, alignment, name.encode())
    if address == 0:
        raise MemoryError
    return address


def free(address: int) -> None:
    """Give it back."""
    if runtime().emulator_free(address):
        raise EmulationError(f"{address:#x} is freed, which is not the beginning of device memory.")


def copy(destination: int, source: int, nbytes: int, kind: int) -> None:
    """Move bytes; `kind` is the sum of FROM_DEVICE and TO_DEVICE."""
    if runtime().emulator_copy(destination, source, nbytes, kind):
        raise EmulationError(f"A copy of {nbytes} bytes from {source:#x} to {destination:#x} leaves device memory.")


def fill(address: int, nbytes: int, width: int, value: int) -> None:
    """Set units of `width` bytes."""
    if runtime().emulator_fill(address, nbytes, width, value):
        raise EmulationError(f"{nbytes} bytes at {address:#x} are filled, which are not device memory.")


def launch(
    library: Any,
    entry: KernelEntry,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
    arguments: Any,
    seed: int,
) -> None:
    """Run a kernel to its end. `arguments` is a `void**`: the address of each argument."""
    message = ctypes.create_string_buffer(4096)
    dynamic = ctypes.addressof(ctypes.c_char.in_dll(library, "aether_dynamic_shared"))
    request = _Launch(
        ctypes.pointer(entry),
        dynamic,
        (ctypes.c_uint * 3)(*grid),
        (ctypes.c_uint * 3)(*block),
        shared,
        seed,
        ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p)),
        ctypes.cast(message, ctypes.c_char_p),
        len(message),
    )
    if runtime().emulator_launch(request):
        said = re.sub(r"<(\S+)\+(0x\w+)>", lambda m: source_line(m[1], int(m[2], 16)), message.value.decode())
        raise EmulationError(re.sub(r"/\S*/([\w.]+:\d+)", r"\1", said))
