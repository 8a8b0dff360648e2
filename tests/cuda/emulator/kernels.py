"""Kernels as functions of NumPy arrays."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.cuda.emulator import memory
from tests.cuda.emulator.builder import CSRC, build_kernels
from tests.cuda.emulator.memory import EmulationError

__all__ = ["Kernel", "Kernels", "Offset", "Parameter", "TiledMatrix", "compile_kernels", "tensor_map"]

_SCALARS = {("i", 1): np.int8, ("i", 2): np.int16, ("i", 4): np.int32, ("i", 8): np.int64} | {
    ("f", 4): np.float32,
    ("f", 8): np.float64,
}


@dataclass(frozen=True)
class Offset:
    """An array that lies `nbytes` behind a boundary of 256 bytes, as a view into a larger tensor may."""

    array: Any
    nbytes: int


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: `kind` is p or c (a pointer, c to const), i, f, or s (a structure)."""

    name: str
    kind: str
    size: int


class TiledMatrix:
    """A matrix of which a kernel copies tiles: an argument for a tensor map."""

    def __init__(self, array: Any, box_rows: int) -> None:
        self.array = array
        self.box_rows = box_rows


def tensor_map(address: int, rows: int, columns: int, box_rows: int) -> bytes:
    """`TileMap` of include/emulation_runtime.h, in the size of a CUtensorMap."""
    assert not (address | 2 * columns) % 16, f"{address:#x} and rows of {2 * columns} bytes are no multiples of 16"
    assert 0 < box_rows <= 256, f"boxes of {box_rows} rows"
    return struct.pack("Q3qi", address, rows, columns, 2 * columns, box_rows).ljust(128, b"\0")


class Kernel:
    """One kernel. See the package for how to call it."""

    def __init__(self, library: Any, entry: memory.KernelEntry, names: Sequence[str]) -> None:
        self.name = entry.name.decode()
        self.max_threads = int(entry.max_threads)
        kinds = (entry.kinds or b"").decode()
        if len(names) != len(kinds):
            names = [f"argument {i}" for i in range(len(kinds))]
        self.parameters = [
            Parameter(name, kind, entry.sizes[i]) for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
        ]
        self._library = library
        self._entry = entry

    def __call__(
        self,
        *arguments: Any,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        shared: int = 0,
        seeds: Sequence[int] = (0, 1),
    ) -> None:
        """Run it once for each seed; EmulationError when it misbehaves or the results are not the same bits."""
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, not {len(arguments)}")
        results: list[list[bytes]] = []
        with ExitStack() as stack:
            placed: dict[int, _Placed] = {}
            values = [
                self._value(one, value, placed, stack) for one, value in zip(self.parameters, arguments, strict=True)
            ]
            for seed in seeds:
                for one in placed.values():
                    one.upload()
                self.launch(values, _three(grid), _three(block), shared, seed)
                results.append([one.download() for one in placed.values()])
        self._compare(results, seeds, list(placed.values()))
        for one, content in zip(placed.values(), results[-1], strict=True):
            if one.is_written:
                one.array[...] = np.frombuffer(content, one.array.dtype).reshape(one.array.shape)

    def launch(self, values: Sequence[Any], grid: Sequence[int], block: Sequence[int], shared: int, seed: int) -> None:
        """Run it with ctypes values, pointers being device addresses."""
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        self.launch_packed(ctypes.addressof(pointers), grid, block, shared, seed)

    def launch_packed(self, packed: int, grid: Sequence[int], block: Sequence[int], shared: int, seed: int) -> None:
        """Run it with the address of a `void**` as the driver takes it."""
        memory.launch(self._library, self._entry, grid, block, shared, packed, seed)

    def taken_from(self, packed: int) -> list[Any]:
        """Values for `launch` out of the `void**` at an address, each as large as its parameter."""
        pointers = ctypes.cast(packed, ctypes.POINTER(ctypes.c_void_p))
        contents = (ctypes.string_at(pointers[i], one.size) for i, one in enumerate(self.parameters))
        return [(ctypes.c_char * len(content)).from_buffer_copy(content) for content in contents]

    def _value(self, parameter: Parameter, value: Any, placed: dict[int, _Placed], stack: ExitStack) -> Any:
        if parameter.kind in "pc":
            if value is None:
                return ctypes.c_void_p(0)
            one = self._place(parameter, value, placed, stack)
            one.is_written |= parameter.kind == "p"
            return ctypes.c_void_p(one.address)
        if isinstance(value, TiledMatrix):
            at = self._place(parameter, value.array, placed, stack).address
            value = tensor_map(at, *value.array.shape, value.box_rows)
        scalar = _SCALARS.get((parameter.kind, parameter.size))
        content = bytes(value) if scalar is None else np.asarray(value).astype(scalar, casting="same_kind").tobytes()
        if len(content) != parameter.size:
            raise TypeError(f"{self.name}: {parameter.name} has {parameter.size} bytes, not {len(content)}")
        return (ctypes.c_char * len(content)).from_buffer_copy(content)

    def _place(self, parameter: Parameter, value: Any, placed: dict[int, _Placed], stack: ExitStack) -> _Placed:
        array, offset = (value.array, value.nbytes) if isinstance(value, Offset) else (value, 0)
        if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
            raise TypeError(f"{self.name}: {parameter.name} is a pointer and wants a contiguous array")
        if id(array) not in placed:
            placed[id(array)] = stack.enter_context(_placed(array, offset, parameter.name))
        return placed[id(array)]

    def _compare(self, results: list[list[bytes]], seeds: Sequence[int], placed: list[_Placed]) -> None:
        for seed, contents in zip(seeds[1:], results[1:], strict=True):
            for one, first, other in zip(placed, results[0], contents, strict=True):
                if first != other:
                    raise EmulationError(
                        f"{self.name}: `{one.name}` depends on the order of threads: "
                        f"seeds {seeds[0]} and {seed} give different bits."
                    )


class Kernels:
    """The kernels of one source, as attributes and by name."""

    def __init__(self, source: Path, defines: Sequence[str] = ()) -> None:
        path, parameters = build_kernels(source, defines)
        memory.runtime()
        library = ctypes.CDLL(str(path))
        table = (memory.KernelEntry * (len(parameters) + 1)).in_dll(library, "emulator_kernels")
        self._kernels = {
            (kernel := Kernel(library, entry, parameters[entry.name.decode()])).name: kernel
            for entry in table
            if entry.name is not None
        }

    def __getattr__(self, name: str) -> Kernel:
        try:
            return self._kernels[name]
        except KeyError:
            raise AttributeError(f"no kernel {name}; there are {', '.join(self._kernels)}") from None

    def __getitem__(self, name: str) -> Kernel:
        return self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)


def compile_kernels(source: str | Path, defines: Sequence[str] = ()) -> Kernels:
    """The kernels of a source in aethermind-cuda/csrc (`"rms_norm.cu"`), or of any other by its path."""
    return _compiled(CSRC / source, tuple(defines))


@cache
def _compiled(source: Path, defines: tuple[str, ...]) -> Kernels:
    return Kernels(source, defines)


class _Placed:
    """An array in device memory."""

    def __init__(self, array: Any, address: int, name: str) -> None:
        self.array = array
        self.address = address
        self.name = name
        self.is_written = False
        self._content = array.tobytes()

    def upload(self) -> None:
        source = ctypes.create_string_buffer(self._content, len(self._content))
        memory.copy(self.address, ctypes.addressof(source), len(self._content), memory.TO_DEVICE)

    def download(self) -> bytes:
        target = ctypes.create_string_buffer(max(len(self._content), 1))
        memory.copy(ctypes.addressof(target), self.address, len(self._content), memory.FROM_DEVICE)
        return target.raw[: len(self._content)]


@contextmanager
def _placed(array: Any, offset: int, name: str) -> Iterator[_Placed]:
    address = memory.allocate(array.nbytes + offset, name)
    try:
        yield _Placed(array, address + offset, name)
    finally:
        memory.free(address)


def _three(size: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return sizes + (1,) * (3 - len(sizes))
