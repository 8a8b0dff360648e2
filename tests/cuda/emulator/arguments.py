"""Arguments of launches, compared with what the kernel's own source declares."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from tests.cuda.emulator.kernels import Kernel

from aethermind_cuda.parameters import Parameters

__all__ = ["JudgedParameters", "check_arguments"]


class JudgedParameters(Parameters):
    """Packed arguments that remember what they were: the driver sees no more than an address of addresses."""

    known: ClassVar[WeakValueDictionary[int, JudgedParameters]] = WeakValueDictionary()

    def _set_block(self, image: bytes) -> None:
        super()._set_block(image)
        self.known[self.address] = self


def check_arguments(kernel: Kernel, address: int) -> None:
    """AssertionError unless number, kinds and sizes of the arguments at an address are those of the parameters."""
    values = JudgedParameters.known[address].values
    takes = [f"{one.name}: {one.kind}{one.size}" for one in kernel.parameters]
    gets = [f"{type(value).__name__} of {ctypes.sizeof(value)} bytes" for value in values]
    assert len(takes) == len(gets), f"{kernel.name} takes {takes} and gets {gets}"
    for one, value, got in zip(kernel.parameters, values, gets, strict=True):
        is_right = _kind_of(value) == one.kind.replace("c", "p") and ctypes.sizeof(value) == one.size
        assert is_right, f"{kernel.name} takes {one.name} as {one.kind}{one.size} and gets a {got}"


def _kind_of(value: Any) -> str:
    if isinstance(value, ctypes.c_void_p):
        return "p"
    if isinstance(value, (ctypes.c_float, ctypes.c_double)):
        return "f"
    return "i" if isinstance(value, ctypes._SimpleCData) else "s"
