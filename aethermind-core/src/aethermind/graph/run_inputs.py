"""The inputs of a plan's runs: host arrays, and their upload to devices with memory of their own."""

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
    """Place inputs of these sizes in one buffer: one behind the other, each at a multiple of ALIGNMENT."""
    places, end = {}, 0
    for name, type in types.items():
        places[name] = ByteRange(align_up(end, ALIGNMENT), type.nbytes(sizes))
        end = sum(places[name])
    return places


class Inputs(Protocol):
    """The inputs of one plan."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Flat host arrays of the largest sizes; a run reads their beginnings."""

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers, on the device and on the host."""

    def addresses(self) -> dict[str, int]:
        """Return the device addresses by name, the same in all runs, or that of a shared buffer under the name ""."""

    def tensor(self, name: str, symbols: tuple[int, ...]) -> Tensor:
        """Return an input on the device, as a run with these symbols reads it."""

    def upload(self, symbols: tuple[int, ...], stream: Stream, late: str | None = None) -> None:
        """Enqueue the upload of all inputs but `late` on `stream`."""

    def upload_late(self, late: str, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue the upload of the input that the last `upload` left out."""


class SharedInputs:
    """The inputs of a device in host memory, which reads the arrays that the host writes."""

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

    A run's inputs are gathered in one of two page-locked staging buffers, alternately, so `arrays` may be written again
    as soon as `upload` has returned. Where the backend `packs_inputs` they are packed in the device buffer and uploaded
    in one copy; otherwise each has a fixed place and is copied separately.
    """

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self._plan = plan
        self._transfer = backend.transfer
        self._host = _flat_tensors(plan, backend, MemoryKind.HOST)
        self.arrays: Mapping[str, Array] = {name: tensor.numpy() for name, tensor in self._host.items()}
        greatest = place_inputs(plan.inputs, plan.symbols)
        self._fixed = None if backend.capabilities.packs_inputs else greatest
        self._span = backend.allocator.alloc(max((sum(place) for place in greatest.values()), default=0))
        self._staging, self._other_staging = _Staging(backend), _Staging(backend)
        self._places: OrderedDict[tuple[int, ...], dict[str, ByteRange]] = OrderedDict()

    @property
    def nbytes(self) -> int:
        staged = self._staging.buffer.nbytes + self._other_staging.buffer.nbytes
        return self._span.nbytes + sum(tensor.nbytes for tensor in self._host.values()) + staged

    def addresses(self) -> dict[str, int]:
        base = self._span.address
        return {"": base} if self._fixed is None else {name: base + place.begin for name, place in self._fixed.items()}

    def tensor(self, name: str, symbols: tuple[int, ...]) -> Tensor:
        type = self._plan.inputs[name]
        return Tensor.of(
            self._span, type.dtype, resolve(type.shape, self._sizes(symbols)), self._places_of(symbols)[name].begin
        )

    def upload(self, symbols: tuple[int, ...], stream: Stream, late: str | None = None) -> None:
        self._staging, self._other_staging = self._other_staging, self._staging
        places = self._places_of(symbols)
        self._staging.prepare(max((sum(place) for place in places.values()), default=0))
        self._copy({name: place for name, place in places.items() if name != late}, stream)

    def upload_late(self, late: str, symbols: tuple[int, ...], stream: Stream) -> None:
        self._copy({late: self._places_of(symbols)[late]}, stream)

    def _copy(self, places: Mapping[str, ByteRange], stream: Stream) -> None:
        """Gather inputs in the staging buffer and copy them, adjacent ones in one copy."""
        staging = self._staging
        base = staging.buffer.address
        for name, (begin, nbytes) in places.items():
            ctypes.memmove(base + begin, self._host[name].address, nbytes)
        for begin, nbytes in _joined(places.values()):
            source, destination = (
                Tensor.of(buffer, DType.UINT8, (nbytes,), begin) for buffer in (staging.buffer, self._span)
            )
            self._transfer.copy_async(destination, source, stream)
        staging.copied.record(stream)

    def _places_of(self, symbols: tuple[int, ...]) -> dict[str, ByteRange]:
        """Return the places of inputs, cached, because decode steps of one size follow each other."""
        places = self._places.get(symbols)
        if places is None:
            sizes = self._sizes(symbols)
            places = place_inputs(self._plan.inputs, sizes)
            if self._fixed is not None:
                places = {name: ByteRange(self._fixed[name].begin, place.nbytes) for name, place in places.items()}
            self._places[symbols] = places
            if len(self._places) > _MAX_CACHED_SIZES:
                self._places.popitem(last=False)
        return places

    def _sizes(self, symbols: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self._plan.symbols, symbols, strict=True))


class _Staging:
    """A page-locked staging buffer for the inputs of one run, as large as the largest so far."""

    def __init__(self, backend: Backend) -> None:
        self._allocator = backend.allocator
        self.buffer = self._allocator.alloc(_FIRST_STAGING_BYTES, MemoryKind.PINNED)
        self.copied = backend.events.create()

    def prepare(self, nbytes: int) -> None:
        """Wait until the contents were copied, and grow to `nbytes`. Failed copies are reported by their runs."""
        with suppress(DeviceError):
            self.copied.synchronize()
        if nbytes > self.buffer.nbytes:
            self.buffer = self._allocator.alloc(1 << (nbytes - 1).bit_length(), MemoryKind.PINNED)


def _joined(places: Iterable[ByteRange]) -> list[ByteRange]:
    """Merge ranges with no more than alignment between them; empty ones are dropped."""
    joined: list[ByteRange] = []
    for place in places:
        if not place.nbytes:
            continue
        if joined and align_up(sum(joined[-1]), ALIGNMENT) == place.begin:
            begin = joined.pop().begin
            place = ByteRange(begin, sum(place) - begin)
        joined.append(place)
    return joined


def _flat_tensors(plan: Plan, backend: Backend, kind: MemoryKind) -> dict[str, Tensor]:
    """Allocate a flat tensor for each input, of its largest size."""
    tensors = {}
    for name, type in plan.inputs.items():
        count = num_elements(resolve(type.shape, plan.symbols))
        buffer = backend.allocator.alloc(count * type.dtype.itemsize, kind)
        tensors[name] = Tensor.of(buffer, type.dtype, (count,))
    return tensors
