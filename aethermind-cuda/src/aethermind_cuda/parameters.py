"""Kernel arguments in the driver's format: packed in one block of memory that can be copied and relocated."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from struct import pack_into, unpack_from
from typing import Any

from aethermind.hal.memory import align_up
from aethermind_cuda.launch import DeviceArray, TensorMap

__all__ = ["Parameters"]

_INT32 = range(-(2**31), 2**31)
_ALIGNMENT = 16
"""Alignment of every value: the maximum of kernel parameter types."""

_POINTER_BYTES = 8
_NUMBERS = "bBhHiIlLqQfd?"
"""`ctypes` type codes."""

_MAX_SIZE_ARGUMENT = 1 << 40
"""A larger 64-bit integer is not a size, so it may be an address."""


class _TensorMap(ctypes.Structure):
    """`TensorMap` of csrc/common/tensor_copy.cuh, and CUtensorMap of the driver."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


class Parameters:
    """A block of memory with pointers to the values, followed by the values; `address` is the address of the block.

    `values` are ctypes values of the types of the kernel's parameters. Raises TypeError or OverflowError for values
    that no kernel takes. `maps` are the tensor maps and their offsets in the block, which `relocated` fills.
    """

    __slots__ = ("_block", "_image", "_offsets", "_type", "address", "maps", "values")

    def __init__(self, arguments: Iterable[Any]) -> None:
        arguments = list(arguments)
        self.values = [_ctypes_value(argument) for argument in arguments]
        self._offsets: list[int] = []
        end = max(1, len(self.values)) * _POINTER_BYTES
        for value in self.values:
            begin = align_up(end, _ALIGNMENT)
            self._offsets.append(begin)
            end = begin + ctypes.sizeof(value)
        self.maps = [
            (offset, argument)
            for offset, argument in zip(self._offsets, arguments, strict=True)
            if isinstance(argument, TensorMap)
        ]
        image = bytearray(end)
        for offset, value in zip(self._offsets, self.values, strict=True):
            image[offset : offset + ctypes.sizeof(value)] = bytes(value)
        self._type = ctypes.c_char * end
        self._image = bytes(image)
        self._set_block(self._image)

    def _set_block(self, image: bytes) -> None:
        self._block = self._type.from_buffer_copy(image)
        self.address = address = ctypes.addressof(self._block)
        offsets = self._offsets
        pack_into(f"{len(offsets)}Q", self._block, 0, *[address + offset for offset in offsets])

    def pointers(self) -> list[tuple[int, int]] | None:
        """Offsets and values of the device pointers in the block, fields of structures among them.

        None if there may be other pointers: in arrays of other types, unions, bit fields, and integers that are too
        large for a size.
        """
        found: list[tuple[int, int]] = []
        for offset, value in zip(self._offsets, self.values, strict=True):
            if isinstance(value, _TensorMap):
                continue
            fields = _fields(value.__class__)
            if fields is None:
                return None
            for inner, is_pointer in fields:
                if is_pointer:
                    found.append((offset + inner, unpack_from("Q", self._image, offset + inner)[0]))
                elif not -_MAX_SIZE_ARGUMENT < unpack_from("q", self._image, offset + inner)[0] < _MAX_SIZE_ARGUMENT:
                    return None
        return found

    def relocated(self, pointers: Iterable[tuple[int, int]], maps: Iterable[tuple[int, bytes]] = ()) -> Parameters:
        """A copy with other device pointers and encoded tensor maps at these offsets of the block; `values` are shared
        with this one.
        """
        copy = object.__new__(type(self))
        copy.values, copy.maps, copy._offsets = self.values, self.maps, self._offsets
        copy._type, copy._image = self._type, self._image
        copy._set_block(self._image)
        for offset, pointer in pointers:
            pack_into("Q", copy._block, offset, pointer)
        for offset, encoded in maps:
            pack_into(f"{len(encoded)}s", copy._block, offset, encoded)
        return copy


def _ctypes_value(argument: Any) -> Any:
    """Convert an argument to the ctypes value of a kernel parameter."""
    if argument is None:
        return ctypes.c_void_p(0)
    if isinstance(argument, DeviceArray):
        return ctypes.c_void_p(argument.address)
    if isinstance(argument, TensorMap):
        return _TensorMap()
    if isinstance(argument, (bool, int)):
        if argument not in _INT32:
            raise OverflowError(f"A kernel's argument {argument} has more than 32 bits; pass it as Int64.")
        return ctypes.c_int32(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
        return argument
    raise TypeError(f"A kernel cannot take a {type(argument).__name__} as its argument.")


@cache
def _fields(kind: Any) -> tuple[tuple[int, bool], ...] | None:
    """Offsets of pointers (True) and of 64-bit integers (False); None for a type in which they cannot be found."""
    if issubclass(kind, ctypes.c_void_p):
        return ((0, True),)
    if issubclass(kind, ctypes._SimpleCData):
        if kind._type_ not in _NUMBERS:
            return None
        return ((0, False),) if kind._type_ not in "fd" and ctypes.sizeof(kind) == _POINTER_BYTES else ()
    if issubclass(kind, ctypes.Array) and issubclass(kind._type_, ctypes.c_void_p):
        return tuple((index * _POINTER_BYTES, True) for index in range(kind._length_))
    if not issubclass(kind, ctypes.Structure):
        return None
    found: list[tuple[int, bool]] = []
    for base in kind.__mro__:
        for name, inner, *bits in vars(base).get("_fields_", ()):
            fields = None if bits else _fields(inner)
            if fields is None:
                return None
            found.extend((getattr(base, name).offset + offset, is_pointer) for offset, is_pointer in fields)
    return tuple(found)
