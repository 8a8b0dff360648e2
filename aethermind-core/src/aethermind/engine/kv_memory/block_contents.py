"""Blocks of all layers as bytes: what `KVCache.save` reads from, and `KVCache.load` writes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aethermind.cache.container import BlockTensor
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.errors import CacheContentError

__all__ = ["MemoryContents"]


class MemoryContents:
    """The blocks of one engine's memory; implements `cache.saved_sequence.BlockContents`. Between two steps only."""

    def __init__(self, memory: KVMemory, fingerprint: str) -> None:
        """`fingerprint` stands for what keys and values depend on besides tokens (see `kv_offload.fingerprint`)."""
        self._memory = memory
        self._fingerprint = fingerprint

    @property
    def fingerprint(self) -> str:
        """What computed the blocks."""
        return self._fingerprint

    def read(self, blocks: Sequence[int]) -> Mapping[str, BlockTensor]:
        """Return copies of what `blocks` hold, every tensor's rows in their order."""
        kinds = self._memory.block_kinds
        if not blocks:
            return {name: BlockTensor(dtype, (0, *shape), b"") for name, (dtype, shape) in kinds.items()}
        host = self._memory.whole_blocks(len(blocks))
        host.move_out(blocks, range(len(blocks)))
        return {
            name: BlockTensor(kinds[name][0], (len(blocks), *kinds[name][1]), rows.tobytes())
            for name, rows in host.rows().items()
        }

    def write(self, tensors: Mapping[str, BlockTensor], blocks: Sequence[int]) -> None:
        """Make `blocks` hold `tensors`; CacheContentError, and nothing written, where they are not like its own."""
        wanted = {name: (dtype, (len(blocks), *shape)) for name, (dtype, shape) in self._memory.block_kinds.items()}
        if {name: (tensor.dtype_name, tensor.shape) for name, tensor in tensors.items()} != wanted:
            raise CacheContentError("Stored keys and values have other tensors than this model. Compute them again.")
        if not blocks:
            return
        host = self._memory.whole_blocks(len(blocks))
        for name, rows in host.rows().items():
            rows[:] = np.frombuffer(tensors[name].data, np.uint8).reshape(rows.shape)
        host.move_in(range(len(blocks)), blocks)
