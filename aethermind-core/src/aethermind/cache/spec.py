"""Sizes of a KV cache: bytes per token and per block, and the block sizes of the three layouts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from aethermind.errors import InvalidArgumentError

__all__ = ["CacheLayout", "KVCacheSpec", "spec_for_layout"]


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The shape of a KV cache, for all layers together.

    `dtype_name` is a dtype's full name (`float32`, `bfloat16`, `float8_e4m3fn`, `int8`, `int4`): the first
    number in it is its width in bits. Raises `InvalidArgumentError` for a size below 1 or a name without a
    width.
    """

    num_layers: int
    num_key_value_heads: int
    head_dim: int
    dtype_name: str
    block_size: int
    """Tokens in a block."""
    scale_bits: int = 0
    """Bits of the scales that a quantised cache stores with each head's key, and with each head's value."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_key_value_heads", "head_dim", "block_size"):
            value = getattr(self, name)
            if value < 1:
                raise InvalidArgumentError(f"{name} of a KV cache is {value} but must be an integer of 1 or more.")
        if re.search(r"\d", self.dtype_name) is None:
            raise InvalidArgumentError(
                f"KV cache dtype {self.dtype_name!r} has no width in its name; name one such as bfloat16."
            )

    @property
    def bits_per_value(self) -> int:
        """Width of one key or value element in bits."""
        return int(re.findall(r"\d+", self.dtype_name)[0])

    @property
    def bytes_per_token(self) -> int:
        """Bytes that keys and values of one token take in all layers."""
        bits_per_head = self.head_dim * self.bits_per_value + self.scale_bits
        return 2 * self.num_layers * -(-self.num_key_value_heads * bits_per_head // 8)

    @property
    def bytes_per_block(self) -> int:
        """Bytes that keys and values of one block take in all layers."""
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
