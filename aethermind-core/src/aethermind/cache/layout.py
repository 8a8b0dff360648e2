"""How a cache is cut into blocks: the three layouts, which differ in the size of a block and in nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from aethermind.cache.spec import KVCacheSpec
from aethermind.errors import InvalidArgumentError

__all__ = ["CacheLayout", "laid_out"]

CacheLayout = Literal["paged", "cell", "static"]
"""
- paged: blocks of the spec's size, handed out as a sequence grows
- cell: blocks of one token, so that any token can be dropped or moved by itself
- static: blocks of a whole context, one for each sequence
"""


def laid_out(spec: KVCacheSpec, layout: CacheLayout, max_model_len: int) -> KVCacheSpec:
    """The spec with the block size of `layout`. Raises `InvalidArgumentError` for an unknown one."""
    block_sizes = {"paged": spec.block_size, "cell": 1, "static": max_model_len}
    if layout not in block_sizes:
        raise InvalidArgumentError(f"KV cache layout is {layout!r} but must be one of {', '.join(block_sizes)}.")
    return replace(spec, block_size=block_sizes[layout])
