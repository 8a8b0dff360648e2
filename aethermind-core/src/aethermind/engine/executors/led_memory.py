"""The blocks of a KV cache whose heads are divided among ranks, as rank 0 has them.

Whatever is done to rank 0's part of a block is done to the parts of the others. Where the bytes of a block are wanted,
for a KV store or a file, the parts are joined in this process: what is stored holds the heads of all ranks, and does
not say how many there were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from aethermind.engine.kv_memory.memory import KVMemory, WholeBlocks
from aethermind.graph.tensor_parallel import Share
from aethermind.graph.tensor_parallel.share import along

if TYPE_CHECKING:
    from aethermind.cache.host_swap_store import BlockMover
    from aethermind.engine.executors.ranks import Ranks
    from aethermind.engine.loading.planned_model import PlannedModel
    from aethermind.hal.tensor import Tensor

__all__ = ["LedMemory"]

_PIECE_BYTES = 4 * 2**20
"""Of one rank's part of some blocks: what crosses between the processes at a time."""


class LedMemory(KVMemory):
    """Rank 0's part of the memory, with that of the others behind it."""

    def __init__(self, planned: PlannedModel, ranks: Ranks) -> None:
        super().__init__({value.name: value.type for value in planned.compiled.graph.states}, planned.open_device)
        assert planned.parallel is not None, "one of several ranks"
        axes, num_heads = planned.parallel.state_axes, planned.cache_spec.num_key_value_heads
        self._cuts = {
            name: _Cut(tensor, axes.get(name), num_heads, ranks.size) for name, tensor in self.tensors.items()
        }
        self._ranks = ranks
        self._num_rooms = 0
        self._num_at_once = 0

    @property
    def block_kinds(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype of each tensor, and the shape of a block of it, with the heads of all ranks."""
        return {name: (tensor.dtype.label, self._cuts[name].shape) for name, tensor in self.tensors.items()}

    def copy_blocks(self, copies: Iterable[tuple[int, int]]) -> None:
        """Copy blocks, (source, destination) each."""
        pairs = list(copies)
        if pairs:
            self._ranks.move("copy_blocks", [list(pair) for pair in pairs])
            super().copy_blocks(pairs)

    def swap_stream(self, num_blocks: int, on_moved: Callable[[int, float], None]) -> None:
        """None: the other ranks move blocks between steps."""

    def host_blocks(self, num_blocks: int) -> BlockMover:
        """Room to swap `num_blocks` blocks to host memory, each rank its part."""
        self._ranks.tell("host_blocks", num_blocks)
        number, self._num_rooms = self._num_rooms, self._num_rooms + 1
        return _LedHostBlocks(super().whole_blocks(num_blocks), self._ranks, number)

    def whole_blocks(self, num_blocks: int, *, has_own_stream: bool = False) -> WholeBlocks:
        """Room in this process for the bytes of `num_blocks` blocks, which ranks have parts of."""
        if not self._num_at_once:
            block_bytes = sum(tensor.nbytes // tensor.shape[0] for tensor in self.tensors.values())
            self._num_at_once = max(1, _PIECE_BYTES // max(1, block_bytes))
            self._ranks.move("whole_blocks", self._num_at_once)
        own = super().whole_blocks(num_blocks, has_own_stream=has_own_stream)
        return _JoinedBlocks(own, num_blocks, self._cuts, self._ranks, self._num_at_once)


class _Cut:
    """How ranks share a tensor [num_blocks, …]: each has some of the heads along an axis, or all of them."""

    def __init__(self, part: Tensor, axis: int | None, num_heads: int, num_ranks: int) -> None:
        """`part` is rank 0's, `axis` is counted from the last and None where every rank has all."""
        of_block = part.shape[1:]
        self._axis = -len(of_block) if axis is None else axis
        self._heads = [
            (0, of_block[0]) if axis is None else Share(rank, num_ranks).heads(num_heads) for rank in range(num_ranks)
        ]
        shape = list(of_block)
        shape[self._axis] = self._heads[-1][1]
        self.shape = tuple(shape)
        """Of a block with the heads of all ranks."""
        self.bytes_shape = (*shape[:-1], shape[-1] * part.dtype.itemsize)
        """The same of its bytes."""

    @property
    def holders(self) -> list[int]:
        """The ranks that have all heads together: of those that have the same, the first."""
        return [rank for rank, heads in enumerate(self._heads) if not rank or heads != self._heads[rank - 1]]

    def part(self, whole: Any, rank: int) -> Any:
        """What a rank has of blocks, as a view."""
        return along(whole, self._axis, *self._heads[rank])


class _LedHostBlocks:
    """Rank 0's swapped blocks; a `BlockMover`."""

    def __init__(self, own: BlockMover, ranks: Ranks, number: int) -> None:
        self._own = own
        self._ranks = ranks
        self._number = number

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy device `blocks` to `host_blocks`, one by one; done here on return."""
        self._ranks.move("move_out", self._number, list(blocks), list(host_blocks))
        self._own.move_out(blocks, host_blocks)

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy `host_blocks` to device `blocks`, one by one; done here on return."""
        self._ranks.move("move_in", self._number, list(host_blocks), list(blocks))
        self._own.move_in(host_blocks, blocks)


class _JoinedBlocks:
    """Blocks with the heads of all ranks; implements `WholeBlocks`."""

    def __init__(
        self, own: WholeBlocks, num_blocks: int, cuts: dict[str, _Cut], ranks: Ranks, num_at_once: int
    ) -> None:
        """`own` is room for as many blocks of rank 0's part; `num_at_once` are asked of the others at a time."""
        import numpy as np

        self._own = own
        self._cuts = cuts
        self._ranks = ranks
        self._num_at_once = num_at_once
        self._joined = {name: np.zeros((num_blocks, *cut.bytes_shape), np.uint8) for name, cut in cuts.items()}
        self._asked = {rank for cut in cuts.values() for rank in cut.holders if rank}

    def rows(self) -> dict[str, Any]:
        """The bytes of each tensor as a view, uint8 [num_blocks, bytes of a block]."""
        return {name: array.reshape(len(array), -1) for name, array in self._joined.items()}

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        """Copy device `blocks` to `host_blocks`, one by one; done on return."""
        import numpy as np

        self._own.move_out(blocks, host_blocks)
        for name, rows in self._own.rows().items():
            self._put(name, 0, list(host_blocks), rows[list(host_blocks)])
        for some, on_host in self._pieces(blocks, host_blocks):
            for rank, parts in self._ranks.read_blocks(some, self._asked).items():
                for name, data in parts.items():
                    self._put(name, rank, on_host, np.frombuffer(data, np.uint8))

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy `host_blocks` to device `blocks`, one by one; done here on return."""
        for some, on_host in self._pieces(blocks, host_blocks):
            parts = [
                {name: self._part(name, rank, on_host).tobytes() for name in self._cuts}
                for rank in range(1, self._ranks.size)
            ]
            self._ranks.write_blocks(some, parts)
        for name, rows in self._own.rows().items():
            rows[list(host_blocks)] = self._part(name, 0, list(host_blocks)).reshape(len(host_blocks), -1)
        self._own.move_in(host_blocks, blocks)

    def _part(self, name: str, rank: int, host_blocks: list[int]) -> Any:
        return self._cuts[name].part(self._joined[name], rank)[host_blocks]

    def _put(self, name: str, rank: int, host_blocks: list[int], data: Any) -> None:
        part = self._cuts[name].part(self._joined[name], rank)
        part[host_blocks] = data.reshape(len(host_blocks), *part.shape[1:])

    def _pieces(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
        for begin in range(0, len(blocks), self._num_at_once):
            end = begin + self._num_at_once
            yield list(blocks[begin:end]), list(host_blocks[begin:end])
