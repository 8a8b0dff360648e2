"""The memory behind a KV cache's blocks, and copies of whole blocks: within it, and to host memory and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, Self

from aethermind.cache.host_swap_store import BlockMover
from aethermind.engine.kv_memory.block_copies import copy_blocks
from aethermind.engine.kv_memory.stretches import stretches
from aethermind.engine.kv_memory.swap_stream import SwapStream
from aethermind.hal.allocator import ALIGNMENT
from aethermind.hal.buffer import MemoryKind
from aethermind.hal.layout import align_up
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer
from aethermind.ops.dims import resolve
from aethermind.ops.schema import TensorType
from aethermind.runtime import OpenDevice

if TYPE_CHECKING:
    from aethermind.engine.loading.planned_model import PlannedModel

__all__ = ["KVMemory", "WholeBlocks"]


class WholeBlocks(BlockMover, Protocol):
    """Blocks of host memory whose bytes can be read and written, between a move out and a move in."""

    def rows(self) -> dict[str, Any]:
        """The bytes of each tensor as a view, uint8 [num_blocks, bytes of a block]."""
        ...


class KVMemory:
    """Keys and values of all layers, and the scales of coded ones, on one device.

    Each tensor is [num_blocks, …]: block *b* of the cache is row *b* of all of them.
    """

    def __init__(self, types: Mapping[str, TensorType], opened: OpenDevice) -> None:
        allocator = opened.backend.allocator
        self.tensors = {
            name: Tensor.of(allocator.alloc(type.nbytes({})), type.dtype, resolve(type.shape, {}))
            for name, type in types.items()
        }
        # What comes first is written first, by a step that somebody waits for.
        first_block = max((tensor.nbytes // max(1, tensor.shape[0]) for tensor in self.tensors.values()), default=0)
        allocator.make_ready([tensor.buffer for tensor in self.tensors.values()], first_block)
        self._opened = opened
        self._swaps: SwapStream | None = None

    @classmethod
    def of(cls, planned: PlannedModel) -> Self:
        """Memory for the blocks of a model that is planned."""
        return cls({value.name: value.type for value in planned.compiled.graph.states}, planned.open_device)

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy blocks, (source, destination) each, in the order of the device's default stream."""
        runs = ((source, destination, 1) for source, destination in copies)
        copy_blocks(self._opened.backend.transfer, self.tensors, self.tensors, runs, self._default_stream)

    @property
    def block_kinds(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype of each tensor, and the shape of a block of it, with the heads of all ranks."""
        return {name: (tensor.dtype.label, tensor.shape[1:]) for name, tensor in self.tensors.items()}

    def host_blocks(self, num_blocks: int) -> BlockMover:
        """Room to swap `num_blocks` blocks to host memory; OutOfMemoryError where there is none."""
        return self.whole_blocks(num_blocks)

    def whole_blocks(self, num_blocks: int, *, has_own_stream: bool = False) -> WholeBlocks:
        """Room in this process for the bytes of `num_blocks` blocks; OutOfMemoryError where there is none.

        Moves wait for the steps before them, unless `has_own_stream`: then they run beside steps, in whatever thread
        asks, and are for blocks that no step writes.
        """
        backend, index = self._opened.backend, self._opened.device.index
        stream = backend.streams.create(index) if has_own_stream else self._default_stream
        return _HostBlocks(backend.transfer, self.tensors, self._on_host(num_blocks), stream, self._hold)

    def swap_stream(self, num_blocks: int, on_moved: Callable[[int, float], None]) -> SwapStream | None:
        """What moves blocks to as much host memory and back beside steps (see `SwapStream`): once, for those that swap.

        None where the device's memory is the host's: there a copy and a step want the same cores and the same bus.
        """
        if self._opened.backend.capabilities.is_host_accessible:
            return None
        self._swaps = SwapStream(self._opened, self.tensors, self._on_host(num_blocks), on_moved)
        return self._swaps

    @property
    def swaps_beside_steps(self) -> bool:
        """Whether there is a `swap_stream`."""
        return self._swaps is not None

    def wait_for_swaps(self, blocks: Callable[[], Set[int]] | None = None) -> None:
        """Let what is put on the default stream next wait for blocks that are on their way: those named, or any."""
        if self._swaps is None or not self._swaps.is_busy:
            return
        self._swaps.settle()
        self._swaps.hold(self._default_stream, None if blocks is None else blocks())

    def _hold(self, stream: Stream) -> None:
        if self._swaps is not None:
            self._swaps.hold(stream)

    def _on_host(self, num_blocks: int) -> dict[str, Tensor]:
        """Host memory laid out like the device's, in one buffer.

        All of it is touched at once: a budget is known to fit, and the first move takes as long as the others.
        """
        sizes = [tensor.nbytes // tensor.shape[0] * num_blocks for tensor in self.tensors.values()]
        starts = list(accumulate((align_up(size, ALIGNMENT) for size in sizes), initial=0))
        backend = self._opened.backend
        buffer = backend.allocator.alloc(starts[-1], MemoryKind.PINNED)
        on_host = {
            name: Tensor.of(buffer, tensor.dtype, (num_blocks, *tensor.shape[1:]), start)
            for (name, tensor), start in zip(self.tensors.items(), starts[:-1], strict=True)
        }
        for tensor in on_host.values():
            backend.transfer.fill(tensor, 0)
        return on_host

    @property
    def _default_stream(self) -> Stream:
        return self._opened.backend.streams.default(self._opened.device.index)


class _HostBlocks:
    """Blocks of host memory laid out like the device's; implements `WholeBlocks`."""

    def __init__(
        self,
        transfer: DataTransfer,
        on_device: Mapping[str, Tensor],
        on_host: Mapping[str, Tensor],
        stream: Stream,
        before_move: Callable[[Stream], None],
    ) -> None:
        self.tensors = on_host
        """By the names of the device's, [num_blocks, …] each."""
        self._transfer = transfer
        self._on_device = on_device
        self._stream = stream
        self._before_move = before_move

    def rows(self) -> dict[str, Any]:
        """The bytes of each tensor as a view, uint8 [num_blocks, bytes of a block]."""
        import numpy as np

        return {
            name: tensor.numpy().view(np.uint8).reshape(tensor.shape[0], -1) for name, tensor in self.tensors.items()
        }

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy device `blocks` to `host_blocks`, one by one; done on return."""
        self._move(self._on_device, self.tensors, stretches(blocks, host_blocks))

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy `host_blocks` to device `blocks`, one by one; done on return."""
        self._move(self.tensors, self._on_device, stretches(host_blocks, blocks))

    def _move(
        self,
        sources: Mapping[str, Tensor],
        destinations: Mapping[str, Tensor],
        runs: Iterable[tuple[int, int, int]],
    ) -> None:
        self._before_move(self._stream)
        copy_blocks(self._transfer, sources, destinations, runs, self._stream)
        self._stream.synchronize()
