"""The memory of a KV cache's blocks and state slots, and copies of them: within it, to swap space and back.

A *staging* area is host memory through which blocks are read and written, for files and for KV stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from aethermind.cache.serialization import BlockTensor
from aethermind.cache.swap_store import BlockMover
from aethermind.engine.kv_memory.swap_stream import SwapStream, contiguous_runs, copy_blocks
from aethermind.engine.loading.kv_plan import find_swap_device
from aethermind.errors import CacheContentError
from aethermind.hal.device import DeviceId
from aethermind.hal.memory import ALIGNMENT, MemoryKind, align_up
from aethermind.hal.stream import Event, Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer
from aethermind.ops.dims import resolve
from aethermind.ops.schema import TensorType
from aethermind.runtime import OpenDevice

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["KVMemory", "MemoryContents", "StagingBlocks"]


class StagingBlocks(BlockMover, Protocol):
    """Staging blocks in host memory, whose bytes can be read and written between a move out and a move in."""

    def rows(self) -> dict[str, Any]:
        """Return the bytes of each tensor as a view, uint8 [num_blocks, bytes of a block]."""
        ...


class KVMemory:
    """The keys and values of all layers on one device, with the scales of a quantised cache, and recurrent states.

    A tensor of keys, values or scales is [num_blocks, …]: block *b* of the cache is row *b* of all of these. A tensor
    of recurrent states is [num_slots, …] (see `cache.recurrent_states`).
    """

    def __init__(
        self,
        types: Mapping[str, TensorType],
        opened: OpenDevice,
        state_names: Iterable[str] = (),
        swap_device: DeviceId | None = None,
    ) -> None:
        """Allocate memory; `state_names` are the tensors of recurrent states among `types`.

        Swapped blocks and states are in the memory of `swap_device`, or without one in host memory.
        """
        allocator = opened.backend.allocator
        self.tensors = {
            name: Tensor.of(allocator.alloc(type.nbytes({})), type.dtype, resolve(type.shape, {}))
            for name, type in types.items()
        }
        self.state_tensors = {name: self.tensors[name] for name in state_names}
        """The tensors of recurrent states; none for most models."""
        self.block_tensors = {name: each for name, each in self.tensors.items() if name not in self.state_tensors}
        """The tensors of blocks."""
        # Pages of the first block are committed first: the first step writes it, while a user waits.
        first_block = max((tensor.nbytes // max(1, tensor.shape[0]) for tensor in self.tensors.values()), default=0)
        allocator.make_ready([tensor.buffer for tensor in self.tensors.values()], first_block)
        self._opened = opened
        self._swap_device = swap_device
        self._swaps: SwapStream | None = None
        self._states_copied: Event | None = None
        self._host_states: Mapping[str, Tensor] = {}

    @classmethod
    def of(cls, compiled: CompiledModel) -> Self:
        """Allocate memory for the blocks and state slots of a compiled model."""
        types = {value.name: value.type for value in compiled.step.graph.states}
        opened, name = compiled.open_device, compiled.config.swap_device
        swap_device = None if name is None else find_swap_device(opened, name)
        memory = cls(types, opened, compiled.cache_spec.state_shapes, swap_device)
        memory.alloc_host_states(compiled.cache_spec.num_host_slots)
        return memory

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Enqueue copies of blocks, (source, destination) each, on the device's default stream."""
        runs = ((source, destination, 1) for source, destination in copies)
        copy_blocks(self._opened.backend.transfer, self.block_tensors, self.block_tensors, runs, self._default_stream)

    def discard_blocks(self, blocks: Sequence[int]) -> int:
        """Return the memory of free blocks to the system, until steps write them again; returns the bytes in whole
        pages.

        `blocks` are in ascending order. Call this while no step is in flight.
        """
        discard, num_bytes = self._opened.backend.allocator.discard, 0
        for first, _, count in contiguous_runs(blocks, blocks):
            for tensor in self.block_tensors.values():
                row_bytes = tensor.nbytes // tensor.shape[0]
                num_bytes += discard(tensor.buffer, tensor.offset_bytes + first * row_bytes, count * row_bytes)
        return num_bytes

    def alloc_host_states(self, num_slots: int) -> None:
        """Allocate state slots in swap space, numbered after the device's; OutOfMemoryError if memory is short."""
        if num_slots:
            self._host_states = self._alloc_swap_rows(num_slots, self.state_tensors)

    def copy_states(self, copies: list[tuple[int, int]]) -> None:
        """Enqueue copies of state slots, (source, destination) each, and clear the list.

        Slots numbered after those of the device are in swap space. Call this before a graph runs, with
        `KVCache.state_copies`.
        """
        for copy in copies:
            (sources, source), (destinations, destination) = map(self._locate_state, copy)
            run = (source, destination, 1)
            copy_blocks(self._opened.backend.transfer, sources, destinations, [run], self._default_stream)
        if copies and self._states_copied is not None:
            self._states_copied.record(self._default_stream)
        copies.clear()

    def _locate_state(self, slot: int) -> tuple[Mapping[str, Tensor], int]:
        """Return the tensors that hold a state slot, and its row in them."""
        num_slots = next(tensor.shape[0] for tensor in self.state_tensors.values())
        return (self.state_tensors, slot) if slot < num_slots else (self._host_states, slot - num_slots)

    def save_states(self, slots: Sequence[int]) -> Callable[[], None]:
        """Copy the recurrent states in `slots` to host memory; returns a function that writes them back.

        For a step that runs several times, because each run advances the states.
        """
        if not self.state_tensors or not slots:
            return lambda: None
        host = self.alloc_staging_states(len(slots))
        host.move_out(slots, range(len(slots)))
        return lambda: host.move_in(range(len(slots)), slots)

    @property
    def state_types(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of one sequence's state, by tensor of recurrent states."""
        return {name: (tensor.dtype.label, tensor.shape[1:]) for name, tensor in self.state_tensors.items()}

    def alloc_staging_states(self, num_slots: int, *, has_own_stream: bool = False) -> StagingBlocks:
        """Allocate a staging area for the states of `num_slots` slots, as `alloc_staging_blocks` does for blocks.

        With `has_own_stream` moves wait for the copies of states so far. The slots may not be written meanwhile.
        """
        backend, stream = self._opened.backend, self._default_stream
        before_move: Callable[[Stream], None] = self._make_wait
        if has_own_stream:
            self._states_copied = copied = backend.events.create()
            copied.record(stream)
            before_move, stream = lambda own: own.wait_event(copied), backend.streams.create(self._opened.device.index)
        on_host = self._alloc_rows(num_slots, self.state_tensors)
        return _HostBlocks(backend.transfer, self.state_tensors, on_host, stream, before_move)

    @property
    def block_types(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of one block by tensor, with the heads of all ranks."""
        return {name: (tensor.dtype.label, tensor.shape[1:]) for name, tensor in self.block_tensors.items()}

    def alloc_swap_blocks(self, num_blocks: int) -> BlockMover:
        """Allocate swap space in host memory for `num_blocks` blocks; OutOfMemoryError if memory is short."""
        return self.alloc_staging_blocks(num_blocks)

    def alloc_staging_blocks(self, num_blocks: int, *, has_own_stream: bool = False) -> StagingBlocks:
        """Allocate a staging area for `num_blocks` blocks in this process; OutOfMemoryError if memory is short.

        Moves wait for the steps before them. With `has_own_stream` they run concurrently with steps, in the calling
        thread, and only for blocks that no step writes.
        """
        backend, index = self._opened.backend, self._opened.device.index
        stream = backend.streams.create(index) if has_own_stream else self._default_stream
        return _HostBlocks(
            backend.transfer,
            self.block_tensors,
            self._alloc_rows(num_blocks, self.block_tensors),
            stream,
            self._make_wait,
        )

    def swap_stream(self, num_blocks: int, on_moved: Callable[[int, float], None]) -> SwapStream | None:
        """Create a mover that swaps blocks concurrently with steps, with swap space for `num_blocks` blocks.

        None for a device in host memory, where copies and steps would compete for the same cores and memory bus.
        """
        if self._opened.backend.capabilities.is_host_accessible:
            return None
        self._swaps = SwapStream(
            self._opened, self.block_tensors, self._alloc_swap_rows(num_blocks, self.block_tensors), on_moved
        )
        return self._swaps

    @property
    def overlaps_swaps_with_steps(self) -> bool:
        """Whether there is a `swap_stream`."""
        return self._swaps is not None

    def wait_for_swaps(self, blocks: Callable[[], Set[int]] | None = None) -> None:
        """Make the default stream wait for swaps in flight: those of `blocks()`, or all."""
        if self._swaps is None or not self._swaps.is_busy:
            return
        self._swaps.collect_finished()
        self._swaps.make_wait(self._default_stream, None if blocks is None else blocks())

    def _make_wait(self, stream: Stream) -> None:
        if self._swaps is not None:
            self._swaps.make_wait(stream)

    def _alloc_swap_rows(self, num_rows: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._swap_device is None:
            return self._alloc_rows(num_rows, tensors)
        with self._opened.backend.devices.use(self._swap_device.index):
            return self._alloc_rows(num_rows, tensors, MemoryKind.DEVICE)

    def _alloc_rows(
        self, num_rows: int, tensors: Mapping[str, Tensor], kind: MemoryKind = MemoryKind.PINNED
    ) -> dict[str, Tensor]:
        """Allocate `num_rows` rows of each of `tensors`, with the same layout, in one buffer; in host memory by
        default.

        The memory is written at once, so that its pages are committed and the first move is as fast as later ones.
        """
        if not tensors:  # a model without attention has no blocks
            return {}
        sizes = [tensor.nbytes // tensor.shape[0] * num_rows for tensor in tensors.values()]
        starts = list(accumulate((align_up(size, ALIGNMENT) for size in sizes), initial=0))
        backend = self._opened.backend
        buffer = backend.allocator.alloc(starts[-1], kind)
        on_host = {
            name: Tensor.of(buffer, tensor.dtype, (num_rows, *tensor.shape[1:]), start)
            for (name, tensor), start in zip(tensors.items(), starts[:-1], strict=True)
        }
        for tensor in on_host.values():
            backend.transfer.fill(tensor, 0)
        return on_host

    @property
    def _default_stream(self) -> Stream:
        return self._opened.backend.streams.default(self._opened.device.index)


class _HostBlocks:
    """Blocks in host memory with the layout of the device's; implements `StagingBlocks`."""

    def __init__(
        self,
        transfer: DataTransfer,
        on_device: Mapping[str, Tensor],
        on_host: Mapping[str, Tensor],
        stream: Stream,
        before_move: Callable[[Stream], None],
    ) -> None:
        self.tensors = on_host
        """The host tensors, [num_blocks, …], by the names of the device's."""
        self._transfer = transfer
        self._on_device = on_device
        self._stream = stream
        self._before_move = before_move

    def rows(self) -> dict[str, Any]:
        """Return the bytes of each tensor as a view, uint8 [num_blocks, bytes of a block]."""
        import numpy as np

        return {
            name: tensor.numpy().view(np.uint8).reshape(tensor.shape[0], -1) for name, tensor in self.tensors.items()
        }

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy each of the device's `blocks` to the host block at the same index; done on return."""
        self._move(self._on_device, self.tensors, contiguous_runs(blocks, host_blocks))

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy each of `host_blocks` to the device block at the same index; done on return."""
        self._move(self.tensors, self._on_device, contiguous_runs(host_blocks, blocks))

    def _move(
        self,
        sources: Mapping[str, Tensor],
        destinations: Mapping[str, Tensor],
        runs: Iterable[tuple[int, int, int]],
    ) -> None:
        self._before_move(self._stream)
        copy_blocks(self._transfer, sources, destinations, runs, self._stream)
        self._stream.synchronize()


class MemoryContents:
    """Reads and writes the blocks of one engine's memory; implements `cache.serialization.BlockContents`.

    It is used between two steps only.
    """

    def __init__(self, memory: KVMemory, fingerprint: str) -> None:
        """`fingerprint` is the hash of all that keys and values depend on besides tokens (`kv_offload.fingerprint`)."""
        self._memory = memory
        self._fingerprint = fingerprint

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the model that computes the blocks."""
        return self._fingerprint

    def read(self, blocks: Sequence[int]) -> Mapping[str, BlockTensor]:
        """Return copies of the content of `blocks`: their rows of every tensor, in the order of `blocks`."""
        types = self._memory.block_types
        if not blocks:
            return {name: BlockTensor(dtype, (0, *shape), b"") for name, (dtype, shape) in types.items()}
        return _read(self._memory.alloc_staging_blocks(len(blocks)), types, blocks)

    def write(self, tensors: Mapping[str, BlockTensor], blocks: Sequence[int]) -> None:
        """Write `tensors` to `blocks`; CacheContentError, and no write, if shapes or dtypes are not the memory's."""
        _check_types(tensors, self._memory.block_types, len(blocks))
        if blocks:
            _write(self._memory.alloc_staging_blocks(len(blocks)), tensors, blocks)

    def read_states(self, slot: int, copies: list[tuple[int, int]]) -> Mapping[str, BlockTensor]:
        """Return the recurrent state in a slot, each tensor [1, …], after the pending `copies` of states."""
        self._memory.copy_states(copies)
        return _read(self._memory.alloc_staging_states(1), self._memory.state_types, [slot])

    def write_states(self, tensors: Mapping[str, BlockTensor], slot: int, copies: list[tuple[int, int]]) -> None:
        """Write a recurrent state to a slot, after the pending `copies`; CacheContentError as of `write`."""
        _check_types(tensors, self._memory.state_types, 1)
        self._memory.copy_states(copies)
        _write(self._memory.alloc_staging_states(1), tensors, [slot])


def _read(
    host: StagingBlocks, types: Mapping[str, tuple[str, tuple[int, ...]]], rows: Sequence[int]
) -> dict[str, BlockTensor]:
    host.move_out(rows, range(len(rows)))
    return {
        name: BlockTensor(types[name][0], (len(rows), *types[name][1]), data.tobytes())
        for name, data in host.rows().items()
    }


def _write(host: StagingBlocks, tensors: Mapping[str, BlockTensor], rows: Sequence[int]) -> None:
    for name, data in host.rows().items():
        data[:] = np.frombuffer(tensors[name].data, np.uint8).reshape(data.shape)
    host.move_in(range(len(rows)), rows)


def _check_types(
    tensors: Mapping[str, BlockTensor], types: Mapping[str, tuple[str, tuple[int, ...]]], num_rows: int
) -> None:
    wanted = {name: (dtype, (num_rows, *shape)) for name, (dtype, shape) in types.items()}
    if {name: (tensor.dtype_name, tensor.shape) for name, tensor in tensors.items()} != wanted:
        raise CacheContentError("Stored keys and values have other tensors than this model. Compute them again.")
