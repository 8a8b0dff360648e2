"""Weights on the device: each parameter once in each layout that kernels need, shared by all plans of a model.

A *constant* is a parameter in one layout (`plan.Constant`). Its layout is row-major, or that of a kernel's pack.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from aethermind.dispatch.kernel import Pack
from aethermind.errors import CheckpointError, InvalidArgumentError, OutOfMemoryError
from aethermind.graph.plan import Constant, Place, Plan
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId
from aethermind.hal.dtype import DType
from aethermind.hal.mapped import drop_mapped_pages
from aethermind.hal.memory import Buffer, MemoryKind
from aethermind.hal.tensor import Tensor
from aethermind.ops.dims import resolve
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import QuantizedWeight, WeightFormat, one_level_format, without_super_blocks

__all__ = [
    "ADJACENT_ALIGNMENT",
    "BusyTracker",
    "ConstantStore",
    "PackedConstant",
    "PackedWeightCache",
    "allocation_sizes",
    "constant_bytes",
    "has_codes_of",
]

Array = Any

ADJACENT_ALIGNMENT = 256
"""Constants that are to be adjacent in memory share an allocation if their sizes are multiples of this, in bytes."""


class PackedConstant(NamedTuple):
    """A constant in a kernel's layout: `nbytes` bytes into which `pack` packs a parameter of this type."""

    constant: Constant
    pack: Pack
    type: TensorType
    nbytes: int


class BusyTracker:
    """Tracks whether plans run, so that background work can wait until none does. Mutable.

    The thread that runs a model's plans enters it for each run; any thread may read `idle_s`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_running = 0
        self._last_end = clock()

    def __enter__(self) -> None:
        self._num_running += 1

    def __exit__(self, *error: object) -> None:
        # The time first: a thread that reads `idle_s` between the two statements must not see a long idle time.
        self._last_end = self._clock()
        self._num_running -= 1

    @property
    def idle_s(self) -> float:
        """Seconds since the last run ended, or since the tracker was made; 0 during a run."""
        return 0.0 if self._num_running else self._clock() - self._last_end


class PackedWeightCache(Protocol):
    """A cache of packed constants, which an earlier process may have written."""

    def find(self, wanted: Mapping[str, PackedConstant]) -> Mapping[str, Array]:
        """Return the cached ones of the wanted constants by key: uint8 [nbytes] at addresses divisible by ALIGNMENT.

        The arrays keep their memory alive. On a miss the mapping is empty.
        """
        ...

    def keep(self, wanted: Mapping[str, PackedConstant], packed: Mapping[str, Tensor], activity: BusyTracker) -> None:
        """Write constants that were not found to the cache, in the background while `activity` is idle.

        The contents of the tensors must not change.
        """
        ...

    def finish(self) -> None:
        """Write what is not written yet, now, and drop all references to tensors."""
        ...


class ConstantStore:
    """Loads parameters on demand, in the layouts that plans need, and holds them.

    `read(name, format)` returns a parameter for a constant in this weight format, None for a dense one: the
    checkpoint's array (in any floating dtype, possibly memory-mapped), or a QuantizedWeight. If the format cannot reuse
    the integer codes of a stored quantised weight, it may return the weight's values as floats. A parameter that the
    device can read in place, in its dtype and layout, is not copied, and neither is a packed one that `cache` finds.

    On a device with memory of its own, the row-major constants that one step reads first are adjacent in memory, in the
    order of its inputs, if their sizes are multiples of ADJACENT_ALIGNMENT: a kernel may read the weights of q, k and v
    as one matrix. Constants in a pack with `Pack.is_adjacent` are adjacent in the same way.
    """

    def __init__(
        self,
        backend: Backend,
        device: DeviceId,
        read: Callable[[str, WeightFormat | None], Array | QuantizedWeight],
        types: Mapping[str, TensorType],
        cache: PackedWeightCache | None = None,
        shared: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`shared` are constants of another store, by key, which are not loaded again."""
        self._backend = backend
        self._device = device
        self._read = read
        self._types = types
        self._cache = cache
        self.activity = BusyTracker()
        """Tracks the runs of all plans that read these weights."""
        self._shared = dict(shared or {})
        self._tensors = dict(self._shared)
        self._packed: set[str] = set()
        self._from_cache: set[str] = set()
        self._preallocated: dict[str, Buffer] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of all constants but the shared ones, copied or read in place; a parameter in two layouts counts
        twice.
        """
        return sum(tensor.nbytes for key, tensor in self._tensors.items() if key not in self._shared)

    @property
    def packed_bytes(self) -> int:
        """The bytes of the constants that are in a kernel's layout."""
        return sum(self._tensors[key].nbytes for key in self._packed)

    @property
    def found_bytes(self) -> int:
        """The bytes of packed constants that were found in the cache: they use no memory of the device's allocator."""
        return sum(self._tensors[key].nbytes for key in self._from_cache)

    def preallocate(self, plan: Plan) -> None:
        """Allocate memory for a plan's packed constants and prefault it in the background, before `load`."""
        sizes = {key: constant.nbytes for key, constant in self._map_cached(plan).items()}
        if buffers := self._backend.allocator.alloc_ahead([*sizes.values()]):
            self._preallocated = dict(zip(sizes, buffers, strict=True))

    def load(self, plan: Plan, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Load every constant of a plan; `on_progress(done, total)` counts constants.

        If the packed constants need more memory than is free, OutOfMemoryError before anything is read.
        """
        uncached = self._map_cached(plan)
        self._check_free(sum(constant.nbytes for key, constant in uncached.items() if key not in self._preallocated))
        packs = plan.packs()
        missing = [key for key in plan.constants if key not in self._tensors]
        groups = self._groups(plan, {*missing})
        for done, key in enumerate(missing):
            constant = plan.constants[key]
            pack = packs[constant.pack] if constant.pack else None
            try:
                self._tensors[key] = self._load_one(key, constant, pack, groups.get(key))
            except InvalidArgumentError as error:
                raise CheckpointError(f"Weight {constant.parameter!r} cannot be loaded. {error}") from error
            if constant.pack:
                self._packed.add(key)
            if on_progress:
                on_progress(done + 1, len(missing))
        if self._cache is not None and uncached:
            self._cache.keep(uncached, {key: self._tensors[key] for key in uncached}, self.activity)

    def finish(self) -> None:
        """Have the cache drop its references to the constants, so that they are freed with the last plan."""
        if self._cache is not None:
            self._cache.finish()

    def address(self, key: str) -> int:
        """Return the device address of a loaded constant."""
        return self._tensors[key].address

    def tensor(self, key: str) -> Tensor:
        """Return a loaded constant; a packed one is a tensor of bytes."""
        return self._tensors[key]

    def update_rows(self, parameter: str, begin: int, rows: Array, whole: Array) -> None:
        """Overwrite rows of a parameter that no kernel packs, from row `begin` on; `whole` is the parameter after that.

        No run of a plan may read the rows meanwhile. Does nothing for a parameter that no plan has loaded.
        """
        tensor = self._tensors.get(parameter)
        if tensor is None:
            return
        if tensor.buffer.is_host_accessible:
            tensor.numpy()[begin : begin + len(rows)] = rows
        else:
            self._backend.transfer.copy(tensor, Tensor.of_numpy(whole, self._device))

    def _check_free(self, nbytes: int) -> None:
        """Raise OutOfMemoryError if less is free: loading would fail after minutes, or the system kill the process."""
        free = self._backend.free_memory()
        if free is not None and nbytes > free:
            raise OutOfMemoryError(
                f"The model's weights need {nbytes / 2**30:.2f} GiB on {self._device}, and {free / 2**30:.2f} GiB are "
                "free. Choose a smaller model, pass --quantization int8 or int4 for smaller weights, or close other "
                "programs."
            )

    def _map_cached(self, plan: Plan) -> dict[str, PackedConstant]:
        """Use the packed constants of a plan that are in the cache; return those that have to be packed, by key."""
        packs = plan.packs()
        missing = {
            key: PackedConstant(constant, pack, type, pack.nbytes(resolve(type.shape, {}), type.dtype))
            for key, constant in plan.constants.items()
            if constant.pack is not None and key not in self._tensors
            for pack, type in [(packs[constant.pack], self._types[constant.parameter])]
        }
        for key, array in (self._cache.find(missing) if self._cache is not None and missing else {}).items():
            nbytes = missing.pop(key).nbytes
            buffer = Buffer(self._device, array.ctypes.data, nbytes, is_host_accessible=True, owner=array)
            tensor = Tensor.of(buffer, DType.UINT8, (nbytes,))
            self._packed.add(key)
            if (
                self._backend.allocator.places_weights
            ):  # the pages of a mapped file are on the node that read them first
                self._tensors[key] = self._copy_to_weight_memory(tensor)
                drop_mapped_pages(array)
            else:
                self._tensors[key] = tensor
                self._from_cache.add(key)
        return missing

    def _copy_to_weight_memory(self, mapped: Tensor) -> Tensor:
        """Return a copy of a packed weight in memory that the allocator places for weights."""
        copy = Tensor.of(self._backend.allocator.alloc_weight(mapped.nbytes), mapped.dtype, mapped.shape)
        self._backend.transfer.copy(copy, mapped)
        return copy

    def _groups(self, plan: Plan, missing: Collection[str]) -> dict[str, _Group]:
        """Return the groups of missing constants that are to be adjacent, by the keys of their members."""
        if self._backend.capabilities.is_host_accessible:
            return {}
        groups: dict[str, _Group] = {}
        for sizes in _adjacent_groups(plan, self._types, missing):
            groups |= dict.fromkeys(sizes, _Group(sizes, self._backend))
        return groups

    def _load_one(self, key: str, constant: Constant, pack: Pack | None, group: _Group | None) -> Tensor:
        type, format = self._types[constant.parameter], constant.weight_format
        original = self._read(constant.parameter, format)
        if pack is not None:
            buffer = self._preallocated.pop(key, None)
            packed = self._packed_tensor(pack, _pack_input(original, type.dtype, format), type, buffer, key, group)
            _drop_pages(original)
            return packed
        array = _row_major(original, type.dtype) if format is None else _dequantized(original, format)
        source = Tensor.of_numpy(array, self._device)
        if format is not None:
            _drop_pages(original)
        if self._backend.capabilities.is_host_accessible:
            return source
        destination = self._copy_to_device(source) if group is None else group.place(key, source)
        _drop_pages(original)
        return destination

    def _packed_tensor(
        self,
        pack: Pack,
        source: Array | QuantizedWeight,
        type: TensorType,
        buffer: Buffer | None,
        key: str,
        group: _Group | None,
    ) -> Tensor:
        """Return a weight packed by `pack`, which runs on the device if it can, else on the host.

        `buffer` is preallocated memory for the packed weight, if there is any.
        """
        nbytes = pack.nbytes(resolve(type.shape, {}), type.dtype)
        is_in_place = self._backend.capabilities.is_host_accessible
        if pack.pack_on_device is not None and not is_in_place and not isinstance(source, QuantizedWeight):
            if group is None:
                destination = Tensor.of(self._backend.allocator.alloc(nbytes), DType.UINT8, (nbytes,))
            else:
                destination = group.reserve(key, DType.UINT8, (nbytes,))
            pack.pack_on_device(self._backend, source, destination)
            return destination
        if buffer is None:
            allocator = self._backend.allocator
            buffer = allocator.alloc_weight(nbytes) if is_in_place else allocator.alloc(nbytes, MemoryKind.HOST)
        pack.pack(source, buffer.address)
        packed = Tensor.of(buffer, DType.UINT8, (nbytes,))
        if is_in_place:
            return packed
        return self._copy_to_device(packed) if group is None else group.place(key, packed)

    def _copy_to_device(self, source: Tensor) -> Tensor:
        """Return a copy in newly allocated device memory."""
        destination = Tensor.of(self._backend.allocator.alloc(source.nbytes), source.dtype, source.shape)
        self._backend.transfer.copy(destination, source)
        return destination


class _Group:
    """Several constants that are adjacent in one allocation, which is made when the first of them is loaded.

    `sizes` are their bytes by key, in the order in memory.
    """

    def __init__(self, sizes: Mapping[str, int], backend: Backend) -> None:
        ends = [*accumulate(sizes.values())]
        self._offsets = dict(zip(sizes, [0, *ends], strict=False))
        self._nbytes = ends[-1]
        self._backend = backend
        self._buffer: Buffer | None = None

    def reserve(self, key: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor of a constant in the allocation, whose contents are not yet written."""
        if self._buffer is None:
            self._buffer = self._backend.allocator.alloc(self._nbytes)
        return Tensor.of(self._buffer, dtype, shape, self._offsets[key])

    def place(self, key: str, source: Tensor) -> Tensor:
        """Copy a constant into the allocation; return the copy."""
        destination = self.reserve(key, source.dtype, source.shape)
        self._backend.transfer.copy(destination, source)
        return destination


def constant_bytes(plan: Plan, types: Mapping[str, TensorType]) -> int:
    """Return `ConstantStore.nbytes` as it will be once a plan is loaded."""
    return sum(constant_sizes(plan, types).values())


def allocation_sizes(plans: Sequence[Plan], types: Mapping[str, TensorType], shared: Collection[str] = ()) -> list[int]:
    """Return the sizes in bytes of the allocations for plans that one store loads in this order.

    The device has memory of its own. The constants of `shared` parameters belong to another store, and are left out.
    """
    loaded = {key for plan in plans for key, constant in plan.constants.items() if constant.parameter in shared}
    allocations: list[int] = []
    for plan in plans:
        sizes = {key: nbytes for key, nbytes in constant_sizes(plan, types).items() if key not in loaded}
        loaded |= sizes.keys()
        for group in _adjacent_groups(plan, types, set(sizes)):
            allocations.append(sum(sizes.pop(key) for key in group))
        allocations += sizes.values()
    return allocations


def constant_sizes(plan: Plan, types: Mapping[str, TensorType]) -> dict[str, int]:
    """Return the bytes of each constant of a plan by key, in its layout."""
    packs = plan.packs()
    sizes = {}
    for key, (name, pack_name, format) in plan.constants.items():
        type = types[name]
        if pack_name:
            sizes[key] = packs[pack_name].nbytes(resolve(type.shape, {}), type.dtype)
        else:
            sizes[key] = (type if format is None else TensorType(DType.FLOAT32, type.shape)).nbytes({})
    return sizes


def _adjacent_groups(plan: Plan, types: Mapping[str, TensorType], missing: Collection[str]) -> list[dict[str, int]]:
    """Return groups of missing constants that share an allocation: their bytes by key, in their order in memory."""
    groups: list[dict[str, int]] = []
    grouped: set[str] = set()
    all_sizes, packs = constant_sizes(plan, types), plan.packs()
    for step in plan.steps:
        sizes: dict[str, int] = {}
        for operand in step.inputs:
            if operand is None or operand.place is not Place.CONSTANT:
                continue
            if operand.name not in missing or operand.name in grouped:
                continue
            _, pack, format = plan.constants[operand.name]
            nbytes = all_sizes[operand.name]
            is_adjacent = packs[pack].is_adjacent if pack else format is None
            if is_adjacent and nbytes and nbytes % ADJACENT_ALIGNMENT == 0:
                sizes[operand.name] = nbytes
        if len(sizes) > 1:
            groups.append(sizes)
            grouped |= sizes.keys()
    return groups


def _pack_input(source: Array | QuantizedWeight, dtype: DType, format: WeightFormat | None) -> Array | QuantizedWeight:
    """Return a weight as a pack takes it (see `dispatch.kernel.Pack`).

    A pack that quantises takes the values in the checkpoint's float dtype, not rounded to `dtype`.
    """
    if format is None:
        return _row_major(source, dtype)
    if isinstance(source, QuantizedWeight):
        return _in_format(source, format)
    stored_dtype = DType.of_numpy(source.dtype)
    return _row_major(source, stored_dtype if stored_dtype in _QUANTIZABLE else DType.FLOAT32)


def _in_format(source: QuantizedWeight, format: WeightFormat) -> Array | QuantizedWeight:
    """Return the weight in a format, if its integer codes can be reused there; else its values as floats."""
    if not has_codes_of(source.format, format):
        return source.format.dequantize(source)
    return source if source.format == format else without_super_blocks(source)


def has_codes_of(stored: WeightFormat, format: WeightFormat) -> bool:
    """Whether a weight that is stored in one format has the same integer codes in another format."""
    return stored == format or (bool(stored.super_block_size) and one_level_format(stored) == format)


_QUANTIZABLE = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def _dequantized(source: Array | QuantizedWeight, format: WeightFormat) -> Array:
    """Return a weight as float32, rounded to what `format` can represent, for kernels that have no pack for it."""
    from aethermind.ops.quantization import fake_quantize

    if not isinstance(source, QuantizedWeight):
        return fake_quantize(format, source)
    values = source.format.dequantize(source)
    return values if source.format == format else fake_quantize(format, values)


def _row_major(source: Array | QuantizedWeight, dtype: DType) -> Array:
    """Return the array itself if it is row-major, aligned and of this dtype; else a copy that is."""
    import numpy as np

    if isinstance(source, QuantizedWeight):
        return source.format.dequantize(source, dtype.numpy)
    try:
        with np.errstate(over="raise"):
            return np.require(source, dtype.numpy, ["C_CONTIGUOUS", "ALIGNED"])
    except FloatingPointError:
        raise InvalidArgumentError(f"It has values beyond {dtype}; pass bfloat16 or float32 as dtype.") from None


def _drop_pages(source: Array | QuantizedWeight) -> None:
    """Release the pages of the mapped file that a weight was read from."""
    arrays = (source.codes, source.scales, source.zeros) if isinstance(source, QuantizedWeight) else (source,)
    for array in arrays:
        if array is not None:
            drop_mapped_pages(array)
