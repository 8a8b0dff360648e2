"""Sizes of a KV cache: bytes per token and per block, and the block sizes of the three layouts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, Self

from aethermind.cache.layers import LayerCache, Paged, source_layer
from aethermind.errors import InvalidArgumentError

__all__ = ["CacheLayout", "KVCacheSpec", "spec_for_layout"]


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """What a KV cache holds, for all layers together.

    `dtype_name` is a dtype's full name (`float32`, `bfloat16`, `float8_e4m3fn`, `int8`, `int4`): the first
    number in it is its width in bits. Raises `InvalidArgumentError` for a cache without layers, a block size below 1,
    or a name without a width.
    """

    layers: tuple[LayerCache, ...]
    dtype_name: str
    block_size: int
    """Tokens in a block."""
    scale_bits: int = 0
    """Bits of the scale that a quantised cache stores with each row: a head's key, or a head's value."""

    def __post_init__(self) -> None:
        if not self.layers or self.block_size < 1:
            raise InvalidArgumentError(
                f"A KV cache of {len(self.layers)} layers in blocks of {self.block_size} tokens holds nothing; "
                "both must be 1 or more."
            )
        if re.search(r"\d", self.dtype_name) is None:
            raise InvalidArgumentError(
                f"KV cache dtype {self.dtype_name!r} has no width in its name; name one such as bfloat16."
            )
        for layer in range(len(self.layers)):
            source_layer(self.layers, layer)

    @classmethod
    def uniform(
        cls, num_layers: int, num_kv_heads: int, head_dim: int, dtype_name: str, block_size: int, scale_bits: int = 0
    ) -> Self:
        """Return the spec of a model whose layers all keep keys and values of one shape."""
        return cls((Paged(num_kv_heads, head_dim, head_dim),) * num_layers, dtype_name, block_size, scale_bits)

    @property
    def num_layers(self) -> int:
        """Layers of the model, those that keep nothing among them."""
        return len(self.layers)

    def num_heads(self, tensor: str) -> int:
        """Return the heads of a cache tensor, such as `k_cache.3` or `v_scale.3`."""
        name, _, layer = tensor.partition(".")
        heads, _ = self.layers[int(layer)].rows[name.replace("_scale", "_cache")]
        return heads

    @property
    def bits_per_value(self) -> int:
        """Width of one stored element in bits."""
        return int(re.findall(r"\d+", self.dtype_name)[0])

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers."""
        rows = [row for layer in self.layers for row in layer.rows.values()]
        return sum(-(-heads * (dim * self.bits_per_value + self.scale_bits) // 8) for heads, dim in rows)

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes in all layers."""
        return self.bytes_per_token * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` of one sequence occupy."""
        return -(-num_tokens // self.block_size)


CacheLayout = Literal["paged", "cell", "static"]
"""
- paged: blocks of the spec's size, handed out as a sequence grows
- cell: blocks of one token, so that any token can be dropped or moved by itself
- static: blocks of a whole context, one for each sequence
"""


def spec_for_layout(spec: KVCacheSpec, layout: CacheLayout, max_model_len: int) -> KVCacheSpec:
    """Return the spec with the block size of `layout`. Raises `InvalidArgumentError` for an unknown layout."""
    block_sizes = {"paged": spec.block_size, "cell": 1, "static": max_model_len}
    if layout not in block_sizes:
        raise InvalidArgumentError(f"KV cache layout is {layout!r} but must be one of {', '.join(block_sizes)}.")
    return replace(spec, block_size=block_sizes[layout])
