"""KV blocks and recurrent states as bytes: the model's fingerprint, and serialisation by a staging area in host memory.

A *container* is the serialised form of one block, or of one state (see `cache.serialization`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Self

import numpy as np

import aethermind
from aethermind.cache.serialization import BlockTensor, StoredBlocks, read_blocks, write_blocks
from aethermind.checkpoint.file_digest import digest_files
from aethermind.engine.kv_memory.memory import KVMemory, StagingBlocks
from aethermind.errors import CacheContentError

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.ops.schema import TensorType

__all__ = ["BlockStager", "fingerprint"]


def fingerprint(compiled: CompiledModel) -> str:
    """Return a hash of all that keys and values depend on besides tokens, as 32 hexadecimal digits.

    Engines with equal fingerprints can use each other's blocks. The hash covers weights by every byte of their files
    (dummy ones by their seed and shapes), configuration, dtypes, quantisation, device and version, because devices and
    versions may round differently. Limits such as the number of blocks are not covered, and the context length only as
    far as rotary frequencies depend on it. The number of ranks changes the order of sums, as another batch does, so it
    is covered only for deterministic engines.
    """
    config, spec = compiled.config, compiled.cache_spec
    if config.load_format == "dummy":
        shapes = {name: str(type) for name, type in sorted(_whole_types(compiled).items())}
        weights = json.dumps(["dummy", config.seed, shapes])
    else:
        weights = digest_files(compiled.source.weights().paths)
    described = {
        "version": aethermind.__version__,
        "weights": weights,
        "architecture": compiled.architecture,
        "config": compiled.source.config(),
        "computed": {name: _digest(value) for name, value in sorted(compiled.computed.items())},
        "dtype": compiled.dtype.label,
        "quantization": config.quantization,
        "device": compiled.open_device.backend.name,
        "deterministic": config.deterministic,
        "ranks": config.tensor_parallel_size if config.deterministic else None,
        "kv": [[repr(layer) for layer in spec.layers], spec.dtype_name, spec.block_size],
    }
    return sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _whole_types(compiled: CompiledModel) -> dict[str, TensorType]:
    """Return the types of the whole model's parameters, also if a tensor-parallel rank has only parts of them."""
    parts = {} if compiled.parallel is None else compiled.parallel.parts
    return {
        part.parameter if (part := parts.get(name)) else name: part.whole if part else type
        for name, type in compiled.parameter_types.items()
    }


def _digest(value: object) -> str:
    array = np.ascontiguousarray(value)
    return sha256(repr((array.shape, str(array.dtype))).encode() + array.tobytes()).hexdigest()


_STAGING_BYTES = 4 * 2**20
"""Size of a staging area, rounded down to whole blocks."""


class BlockStager:
    """Copies blocks, or states of slots, between device memory and containers, by a staging area. Not thread-safe."""

    def __init__(
        self, host: StagingBlocks, types: Mapping[str, tuple[str, tuple[int, ...]]], max_blocks: int, fingerprint: str
    ) -> None:
        """`host` is a staging area for `max_blocks` blocks; `types` has the dtype and shape of a block by tensor.

        `fingerprint` is that of the model that computes the blocks.
        """
        self.max_blocks = max_blocks
        """Number of blocks that fit into the staging area."""
        self._fingerprint = fingerprint
        self._host = host
        self._rows = self._host.rows()
        self._shapes = {name: (dtype, (1, *shape)) for name, (dtype, shape) in types.items()}

    @classmethod
    def of_blocks(cls, memory: KVMemory, bytes_per_block: int, fingerprint: str, *, is_concurrent: bool) -> Self:
        """Create a stager of blocks.

        With `is_concurrent` copies run concurrently with steps, in any thread, for blocks that no step writes;
        otherwise they wait for the steps before them.
        """
        max_blocks = max(1, _STAGING_BYTES // max(1, bytes_per_block))
        host = memory.alloc_staging_blocks(max_blocks, has_own_stream=is_concurrent)
        return cls(host, memory.block_types, max_blocks, fingerprint)

    @classmethod
    def of_states(cls, memory: KVMemory, fingerprint: str, *, is_concurrent: bool) -> Self:
        """Create a stager of the recurrent state of one sequence; `is_concurrent` as for blocks."""
        host = memory.alloc_staging_states(1, has_own_stream=is_concurrent)
        return cls(host, memory.state_types, 1, fingerprint)

    def take(self, blocks: Sequence[int]) -> None:
        """Copy the device's `blocks` to the staging area; done on return."""
        self._host.move_out(blocks, range(len(blocks)))

    def pack(self, index: int, key: bytes, block_size: int) -> bytes:
        """Return the container of the block at `index` of the last `take`."""
        tensors = {name: BlockTensor(*self._shapes[name], memoryview(rows[index])) for name, rows in self._rows.items()}
        return write_blocks(StoredBlocks(self._fingerprint, key.hex(), block_size, tensors))

    def unpack(self, key: bytes, data: bytes) -> StoredBlocks:
        """Read a container. CacheContentError unless it is undamaged, and holds a block of this model with this key."""
        stored = read_blocks(data, self._fingerprint)
        if stored.token_hash != key.hex():
            raise CacheContentError(f"Stored keys and values are of {stored.token_hash}, not of {key.hex()}.")
        shapes = {name: (tensor.dtype_name, tensor.shape) for name, tensor in stored.tensors.items()}
        if shapes != self._shapes:
            raise CacheContentError("Stored keys and values have other tensors than this model.")
        return stored

    def put(self, contents: Sequence[StoredBlocks], blocks: Sequence[int]) -> None:
        """Copy the content of each container to the device block at the same index; done on return."""
        for begin in range(0, len(blocks), self.max_blocks):
            batch = contents[begin : begin + self.max_blocks]
            for index, content in enumerate(batch):
                for name, tensor in content.tensors.items():
                    self._rows[name][index] = np.frombuffer(tensor.data, np.uint8)
            self._host.move_in(range(len(batch)), blocks[begin : begin + len(batch)])
