"""The inputs of a plan's runs: host arrays, and their upload to devices with memory of their own.

`symbols` are the sizes of a run's symbolic dims, in the order of `plan.symbols`; `sizes` maps their names to them.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from aethermind.errors import DeviceError
from aethermind.graph.plan import Plan
from aethermind.hal.backend import Backend
from aethermind.hal.dtype import DType
from aethermind.hal.memory import ALIGNMENT, MemoryKind, align_up
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor, num_elements
from aethermind.ops.dims import resolve
from aethermind.ops.schema import TensorType

__all__ = ["ByteRange", "CopiedInputs", "Inputs", "SharedInputs", "place_inputs"]

_FIRST_STAGING_BYTES = 1 << 16
_MAX_CACHED_SIZES = 64

Array = Any


class ByteRange(NamedTuple):
    """A range of bytes in a buffer."""

    begin: int
    nbytes: int


def place_inputs(types: Mapping[str, TensorType], sizes: Mapping[str, int]) -> dict[str, ByteRange]:
    """Place inputs of these sizes in one buffer: one after another, each at a multiple of ALIGNMENT."""
    ranges, end = {}, 0
    for name, type in types.items():
        ranges[name] = ByteRange(align_up(end, ALIGNMENT), type.nbytes(sizes))
        end = sum(ranges[name])
    return ranges


class Inputs(Protocol):
    """The inputs of one plan."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """One-dimensional host arrays of the largest sizes, by name; a run reads their first elements."""

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers, on the device and on the host."""

    def addresses(self) -> dict[str, int]:
        """Return the device address of each input by name, the same in all runs.

        If all inputs are packed into one buffer, the only address is that of the buffer, under the name "".
        """

    def tensor(self, name: str, symbols: tuple[int, ...]) -> Tensor:
        """Return an input on the device, as a run with these symbols reads it."""

    def upload(self, symbols: tuple[int, ...], stream: Stream, late: str | None = None) -> None:
        """Enqueue the upload of all inputs on `stream`, except the one called `late`."""

    def upload_late(self, late: str, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue the upload of the input `late`, which the last call of `upload` left out."""


class SharedInputs:
    """The inputs of a device that reads host memory: it reads the arrays that the host writes, without a copy."""

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self._tensors = _flat_tensors(plan, backend, MemoryKind.DEVICE)
        self._shapes = plan.inputs
        self._symbols = tuple(plan.symbols)
        self.arrays: Mapping[str, Array] = {name: tensor.numpy() for name, tensor in self._tensors.items()}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def addresses(self) -> dict[str, int]:
        return {name: tensor.address for name, tensor in self._tensors.items()}

    def tensor(self, name: str, symbols: tuple[int, ...]) -> Tensor:
        shape = resolve(self._shapes[name].shape, dict(zip(self._symbols, symbols, strict=True)))
        return Tensor.of(self._tensors[name].buffer, self._tensors[name].dtype, shape)

    def upload(self, symbols: tuple[int, ...], stream: Stream, late: str | None = None) -> None: ...

    def upload_late(self, late: str, symbols: tuple[int, ...], stream: Stream) -> None: ...


class CopiedInputs:
    """The inputs of a device with memory of its own: one device buffer, uploaded from page-locked memory.

    `upload` copies a run's inputs to one of two page-locked staging buffers, alternately, so `arrays` may be written
    again as soon as it has returned. If the backend `packs_inputs`, they are packed in the device buffer and uploaded
    in one copy; otherwise each has a fixed offset and is copied separately.
    """

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self._plan = plan
        self._transfer = backend.transfer
        self._host = _flat_tensors(plan, backend, MemoryKind.HOST)
        self.arrays: Mapping[str, Array] = {name: tensor.numpy() for name, tensor in self._host.items()}
        max_ranges = place_inputs(plan.inputs, plan.symbols)
        self._fixed_ranges = None if backend.capabilities.packs_inputs else max_ranges
        self._device_buffer = backend.allocator.alloc(max((sum(each) for each in max_ranges.values()), default=0))
        self._staging, self._other_staging = _Staging(backend), _Staging(backend)
        self._ranges: OrderedDict[tuple[int, ...], dict[str, ByteRange]] = OrderedDict()

    @property
    def nbytes(self) -> int:
        staged = self._staging.buffer.nbytes + self._other_staging.buffer.nbytes
        return self._device_buffer.nbytes + sum(tensor.nbytes for tensor in self._host.values()) + staged

    def addresses(self) -> dict[str, int]:
        base = self._device_buffer.address
        if self._fixed_ranges is None:
            return {"": base}
        return {name: base + each.begin for name, each in self._fixed_ranges.items()}

    def tensor(self, name: str, symbols: tuple[int, ...]) -> Tensor:
        type, offset_bytes = self._plan.inputs[name], self._ranges_of(symbols)[name].begin
        return Tensor.of(self._device_buffer, type.dtype, resolve(type.shape, self._sizes(symbols)), offset_bytes)

    def upload(self, symbols: tuple[int, ...], stream: Stream, late: str | None = None) -> None:
        self._staging, self._other_staging = self._other_staging, self._staging
        ranges = self._ranges_of(symbols)
        self._staging.prepare(max((sum(each) for each in ranges.values()), default=0))
        self._copy({name: each for name, each in ranges.items() if name != late}, stream)

    def upload_late(self, late: str, symbols: tuple[int, ...], stream: Stream) -> None:
        self._copy({late: self._ranges_of(symbols)[late]}, stream)

    def _copy(self, ranges: Mapping[str, ByteRange], stream: Stream) -> None:
        """Gather inputs in the staging buffer and copy them to the device, adjacent ones in one copy."""
        staging = self._staging
        base = staging.buffer.address
        for name, (begin, nbytes) in ranges.items():
            ctypes.memmove(base + begin, self._host[name].address, nbytes)
        for begin, nbytes in _merge_adjacent(ranges.values()):
            source, destination = (
                Tensor.of(buffer, DType.UINT8, (nbytes,), begin) for buffer in (staging.buffer, self._device_buffer)
            )
            self._transfer.copy_async(destination, source, stream)
        staging.copied.record(stream)

    def _ranges_of(self, symbols: tuple[int, ...]) -> dict[str, ByteRange]:
        """Return the range of each input in the device buffer, cached: decode steps of one size follow each other."""
        ranges = self._ranges.get(symbols)
        if ranges is None:
            ranges = place_inputs(self._plan.inputs, self._sizes(symbols))
            if self._fixed_ranges is not None:
                fixed = self._fixed_ranges
                ranges = {name: ByteRange(fixed[name].begin, each.nbytes) for name, each in ranges.items()}
            self._ranges[symbols] = ranges
            if len(self._ranges) > _MAX_CACHED_SIZES:
                self._ranges.popitem(last=False)
        return ranges

    def _sizes(self, symbols: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self._plan.symbols, symbols, strict=True))


class _Staging:
    """A page-locked staging buffer for the inputs of one run; it grows to the largest so far.

    The event `copied` occurs when the device has copied the contents.
    """

    def __init__(self, backend: Backend) -> None:
        self._allocator = backend.allocator
        self.buffer = self._allocator.alloc(_FIRST_STAGING_BYTES, MemoryKind.PINNED)
        self.copied = backend.events.create()

    def prepare(self, nbytes: int) -> None:
        """Wait until the device has copied the contents, and grow to `nbytes`.

        A failed copy is not reported here: the run that needed it fails.
        """
        with suppress(DeviceError):
            self.copied.synchronize()
        if nbytes > self.buffer.nbytes:
            self.buffer = self._allocator.alloc(1 << (nbytes - 1).bit_length(), MemoryKind.PINNED)


def _merge_adjacent(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Merge ranges with only alignment padding between them; drop empty ones."""
    merged: list[ByteRange] = []
    for begin, nbytes in ranges:
        if not nbytes:
            continue
        if merged and align_up(sum(merged[-1]), ALIGNMENT) == begin:
            first = merged.pop().begin
            merged.append(ByteRange(first, begin + nbytes - first))
        else:
            merged.append(ByteRange(begin, nbytes))
    return merged


def _flat_tensors(plan: Plan, backend: Backend, kind: MemoryKind) -> dict[str, Tensor]:
    """Allocate a one-dimensional tensor for each input, of its largest size."""
    tensors = {}
    for name, type in plan.inputs.items():
        count = num_elements(resolve(type.shape, plan.symbols))
        buffer = backend.allocator.alloc(count * type.dtype.itemsize, kind)
        tensors[name] = Tensor.of(buffer, type.dtype, (count,))
    return tensors
