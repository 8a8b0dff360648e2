"""Blocks of all layers between device memory and containers of bytes, a few at a time through host memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aethermind.cache.container import BlockTensor, StoredBlocks, read_blocks, write_blocks
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.errors import CacheContentError

__all__ = ["BlockBytes"]

_STAGING_BYTES = 4 * 2**20


class BlockBytes:
    """Moves up to `max_blocks` blocks at a time. One thread at a time."""

    def __init__(self, memory: KVMemory, bytes_per_block: int, fingerprint: str, *, is_beside_steps: bool) -> None:
        """Make room in host memory. `fingerprint` says what computed the blocks.

        `is_beside_steps` copies while steps run, in any thread, what they do not write; else copies wait for them.
        """
        self.max_blocks = max(1, _STAGING_BYTES // bytes_per_block)
        """Blocks that fit the room in host memory."""
        self._fingerprint = fingerprint
        self._host = memory.whole_blocks(self.max_blocks, has_own_stream=is_beside_steps)
        self._rows = self._host.rows()
        self._shapes = {name: (dtype, (1, *shape)) for name, (dtype, shape) in memory.block_kinds.items()}

    def take(self, blocks: Sequence[int]) -> None:
        """Copy device `blocks` to host memory; done on return."""
        self._host.move_out(blocks, range(len(blocks)))

    def pack(self, index: int, key: bytes, block_size: int) -> bytes:
        """The container of the block that was taken as number `index`."""
        tensors = {name: BlockTensor(*self._shapes[name], memoryview(rows[index])) for name, rows in self._rows.items()}
        return write_blocks(StoredBlocks(self._fingerprint, key.hex(), block_size, tensors))

    def unpack(self, key: bytes, data: bytes) -> StoredBlocks:
        """What a container holds. CacheContentError unless it is a block of this model for this key, unchanged."""
        stored = read_blocks(data, self._fingerprint)
        if stored.token_hash != key.hex():
            raise CacheContentError(f"Stored keys and values are of {stored.token_hash}, not of {key.hex()}.")
        shapes = {name: (tensor.dtype_name, tensor.shape) for name, tensor in stored.tensors.items()}
        if shapes != self._shapes:
            raise CacheContentError("Stored keys and values have other tensors than this model.")
        return stored

    def put(self, contents: Sequence[StoredBlocks], blocks: Sequence[int]) -> None:
        """Copy contents, one each, to device `blocks`; done on return."""
        for begin in range(0, len(blocks), self.max_blocks):
            some = contents[begin : begin + self.max_blocks]
            for index, content in enumerate(some):
                for name, tensor in content.tensors.items():
                    self._rows[name][index] = np.frombuffer(tensor.data, np.uint8)
            self._host.move_in(range(len(some)), blocks[begin : begin + len(some)])
