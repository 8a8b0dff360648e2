"""Stand-ins for device memory in which a slot holds numbers that identify its token and key rotation."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence

from aethermind.cache.positions import BlockShift
from aethermind.cache.serialization import BlockTensor
from aethermind.errors import CacheContentError

__all__ = ["LAYOUTS", "Memory"]

LAYOUTS = ["static", "cell", "paged"]

POISON = -1


class Memory:
    """Two numbers for each slot: the token that was computed there, and the position for which its key is rotated.

    It is all that moves bytes for a cache: a `BlockMover` with host blocks of its own, a `BlockContents`, and the
    copies and shifts before a step.
    """

    fingerprint = "memory of a test"

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.block_size = block_size
        self.tokens = [POISON] * (num_blocks * block_size)
        self.turned_for = [POISON] * (num_blocks * block_size)
        self.host: list[tuple[list[int], list[int]]] = [([], [])] * num_host_blocks

    def slots(self, block: int) -> slice:
        return slice(block * self.block_size, (block + 1) * self.block_size)

    def poison(self, block: int) -> None:
        self.tokens[self.slots(block)] = self.turned_for[self.slots(block)] = [POISON] * self.block_size

    def prepare(self, copies: Iterable[tuple[int, int]], shifts: Iterable[BlockShift]) -> None:
        """What a device does before a step."""
        for source, destination in copies:
            for values in (self.tokens, self.turned_for):
                values[self.slots(destination)] = values[self.slots(source)]
        for block, num_tokens, delta in shifts:
            assert delta != 0
            for slot in range(block * self.block_size, block * self.block_size + num_tokens):
                self.turned_for[slot] += delta

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        for block, host_block in zip(blocks, host_blocks, strict=True):
            self.host[host_block] = (self.tokens[self.slots(block)], self.turned_for[self.slots(block)])

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        for host_block, block in zip(host_blocks, blocks, strict=True):
            self.tokens[self.slots(block)], self.turned_for[self.slots(block)] = self.host[host_block]

    def read(self, blocks: Sequence[int]) -> Mapping[str, BlockTensor]:
        shape = (len(blocks), self.block_size)
        return {
            name: BlockTensor(
                "int64", shape, array("q", [one for block in blocks for one in values[self.slots(block)]])
            )
            for name, values in (("tokens", self.tokens), ("turned_for", self.turned_for))
        }

    def write(self, tensors: Mapping[str, BlockTensor], blocks: Sequence[int]) -> None:
        shape = (len(blocks), self.block_size)
        if any(tensor.shape != shape for tensor in tensors.values()):
            raise CacheContentError("Stored keys and values are of blocks of another size.")
        for name, values in (("tokens", self.tokens), ("turned_for", self.turned_for)):
            stored = array("q", bytes(tensors[name].data))
            for index, block in enumerate(blocks):
                values[self.slots(block)] = stored[self.slots(index)]
