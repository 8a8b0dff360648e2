"""Launch configuration of the quantised GEMV for small batches (decode) (`common/quantized_gemv.cuh`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import WeightFormat
from aethermind_cuda.device_packing import format_family
from aethermind_cuda.kernels._common import div_up, has_whole_vectors
from aethermind_cuda.launch import DeviceArray, Launch
from aethermind_cuda.quantized_weights import GROUP_CHUNKS

__all__ = ["quantized_gemv", "staged_group_bytes"]

_WARP = 32
_TILE_OUTPUTS = 16
_TOKENS = 8
_GROUP_INPUTS = GROUP_CHUNKS * 32
_MAX_WARPS = 8
_MAX_LIGHT_WARPS = 10
"""Warps of kernels with fewer registers: codes of one and four bits without zero points or offsets."""
_MAX_WARPS_OF_TWO_WEIGHTS = 5
_MAX_WARPS_BY_TILES = ((512, 4), (264, 5))
"""Warps per block from so many blocks on: all are resident, or small ones start and finish independently."""
_STAGES = 3
_STAGES_OF_LONG_GROUPS = 2
_MAX_GROUP_BITS = 8
"""Groups in a warp's ring: `kQuantizedStages` of csrc/common/quantized_gemv.cuh."""
_SCALE_BYTES = _TILE_OUTPUTS * GROUP_CHUNKS * DType.FLOAT16.itemsize
_SUMS_BYTES = _TOKENS * (_TILE_OUTPUTS + 1) * DType.FLOAT32.itemsize


def quantized_gemv(
    source: str,
    format: WeightFormat,
    sizes: tuple[int, int, int],
    arguments: Sequence[Any],
    x: DeviceArray,
    num_weights: int = 1,
) -> Launch | None:
    """The launch of one projection, or of both of a SwiGLU, for `sizes` (tokens, outputs, inputs); None where it does
    not support `x`.

    Results are batch-invariant: the summation order of a token does not depend on the number of tokens.
    """
    num_tokens, num_outputs, num_inputs = sizes
    if x.dtype is DType.FLOAT32 or not has_whole_vectors(x) or not num_inputs:
        return None
    tiles = div_up(num_outputs, _TILE_OUTPUTS)
    num_groups = div_up(num_inputs, _GROUP_INPUTS)
    family = format_family(format)
    max_warps = _MAX_LIGHT_WARPS if family in ("int4", "int1") else _MAX_WARPS
    if num_weights > 1:
        max_warps = _MAX_WARPS_OF_TWO_WEIGHTS
    max_warps = next((warps for least, warps in _MAX_WARPS_BY_TILES if tiles >= least), max_warps)
    warps = div_up(num_groups, div_up(num_groups, max_warps))
    entry = f"{source}_gemv_{family}_{x.dtype}"
    stages = _STAGES if format.bits * num_weights <= _MAX_GROUP_BITS else _STAGES_OF_LONG_GROUPS
    shared_bytes = warps * num_weights * (stages * staged_group_bytes(format) + _SUMS_BYTES)
    grid = div_up(num_tokens, _TOKENS), tiles, 1
    return Launch(source, entry, grid, (warps * _WARP, 1, 1), tuple(arguments), shared_bytes)


def staged_group_bytes(format: WeightFormat) -> int:
    """`StagedGroup`: codes, scales, and zero points (a byte for each scale) or offsets."""
    term_bytes = _SCALE_BYTES if format.has_offset else _SCALE_BYTES // 2 if format.has_zero_point else 0
    return _TILE_OUTPUTS * _GROUP_INPUTS * format.bits // 8 + _SCALE_BYTES + term_bytes
