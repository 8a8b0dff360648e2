"""How projections are launched: by the number of tokens, in tiles of 16 outputs (`common/projection.cuh`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aethermind.hal.dtype import DType
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.launch import Launch

__all__ = ["Projection"]

_WARP = 32
_TILE_OUTPUTS = 16
_CHUNK_INPUTS = 32
_BYTES_PER_CHUNK = 64
"""Of a token's inputs, of 16 bits each."""

_FEW_TOKENS = 8
_MOST_FEW_TOKENS = 32
_MOST_FEW_WARPS = 8
_MANY_TOKENS = 64
_MANY_WARPS = 4
_TILES_PER_WARP = 2
_STAGES = 3


@dataclass(frozen=True, slots=True)
class Projection:
    """The kernels of `csrc/<source>.cu`: x · weightᵀ of one weight, or of both of a SwiGLU.

    A warp takes `group_chunks` times 32 inputs at a time. `few_tokens` are those of the widest of its kernels for few
    tokens, which read a weight once; float32 has but the one for eight.
    """

    source: str
    num_weights: int
    group_chunks: int
    few_tokens: int = _FEW_TOKENS

    def launch(
        self, suffix: str, sizes: tuple[int, int, int], arguments: Sequence[Any], dtype: DType, *, is_invariant: bool
    ) -> Launch:
        """The launch for `sizes` (tokens, outputs, inputs).

        Kernels for few tokens sum in the same order whatever their number; with `is_invariant` there is no other.
        """
        num_tokens, num_outputs, num_inputs = sizes
        tiles = div_up(num_outputs, _TILE_OUTPUTS)
        is_half = dtype is not DType.FLOAT32
        if is_half and num_tokens > _MOST_FEW_TOKENS and not is_invariant:
            kind, tokens, warps = "many", _MANY_TOKENS, _MANY_WARPS
            tiles = div_up(tiles * self.num_weights, _MANY_WARPS * _TILES_PER_WARP)
            shared_bytes = _STAGES * self.group_chunks * tokens * _BYTES_PER_CHUNK
        else:
            tokens = self.few_tokens if is_half and num_tokens > _FEW_TOKENS else _FEW_TOKENS
            kind = f"few{tokens}"
            warps = max(1, min(_MOST_FEW_WARPS, div_up(num_inputs, self.group_chunks * _CHUNK_INPUTS)))
            shared_bytes = warps * self.num_weights * tokens * (_TILE_OUTPUTS + 1) * DType.FLOAT32.itemsize
        grid = div_up(num_tokens, tokens), tiles, 1
        entry = f"{self.source}_{kind}_{suffix}"
        return Launch(self.source, entry, grid, (warps * _WARP, 1, 1), tuple(arguments), shared_bytes)
