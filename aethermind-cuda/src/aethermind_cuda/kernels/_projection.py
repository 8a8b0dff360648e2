"""How projections are launched: by the number of tokens, in tiles of 16 outputs (`common/projection.cuh`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aethermind.hal.dtype import DType
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.launch import Launch

__all__ = ["projection"]

_WARP = 32
_TILE_OUTPUTS = 16
_MOST_WARPS = 8
_FEW, _SOME, _MANY = 8, 32, 64
"""Tokens of a block."""
_CHUNK_INPUTS = 32
_BYTES_PER_CHUNK = 64
"""Of a token's inputs, of 16 bits each."""
_STAGES = 3
_MANY_WARPS = 4
_TILES_PER_WARP = 2


def projection(
    source: str,
    suffix: str,
    sizes: tuple[int, int, int],
    arguments: Sequence[Any],
    *,
    dtype: DType,
    group_chunks: int,
    num_weights: int,
    is_invariant: bool,
) -> Launch:
    """The launch for `sizes` (tokens, outputs, inputs).

    Few tokens are taken by blocks that read a weight once, whose warps share the inputs by groups; many by blocks of 64
    tokens. With `is_invariant` never by the latter, because the two sum in another order. float32 has the first kind
    only, as it is not for tensor cores.
    """
    num_tokens, num_outputs, num_inputs = sizes
    tiles = div_up(num_outputs, _TILE_OUTPUTS)
    if dtype is DType.FLOAT32 or num_tokens <= _FEW:
        kind, tokens = "few8", _FEW
    elif is_invariant or num_tokens <= _SOME:
        kind, tokens = "few32", _SOME
    else:
        kind, tokens = "many", _MANY
    if kind == "many":
        grid = div_up(num_tokens, tokens), div_up(tiles * num_weights, _MANY_WARPS * _TILES_PER_WARP), 1
        warps = _MANY_WARPS
        shared_bytes = _STAGES * group_chunks * tokens * _BYTES_PER_CHUNK
    else:
        grid = tiles, div_up(num_tokens, tokens), 1
        warps = max(1, min(_MOST_WARPS, div_up(num_inputs, group_chunks * _CHUNK_INPUTS)))
        shared_bytes = warps * num_weights * tokens * (_TILE_OUTPUTS + 1) * DType.FLOAT32.itemsize
    return Launch(source, f"{source}_{kind}_{suffix}", grid, (warps * _WARP, 1, 1), tuple(arguments), shared_bytes)
