"""Products of 9 to 128 tokens with quantised weights on compute capability 9.0 (`common/quantized_wgmma.cuh`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import WeightFormat
from aethermind_cuda.device_packing import format_family
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._quantized_gemv import staged_group_bytes
from aethermind_cuda.kernels._split_k import split_k_reduce
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch
from aethermind_cuda.quantized_weights import QuantizedLayout

__all__ = [
    "MAX_WGMMA_TOKENS",
    "WgmmaGrid",
    "quantized_wgmma",
    "quantized_wgmma_bytes",
    "takes_quantized_wgmma",
    "wgmma_grid",
]

MAX_WGMMA_TOKENS = 128
"""For more tokens the dense product of dequantised weights is faster."""

_CAPABILITY = 9, 0
_MIN_TOKENS = 9
_BITS = 4, 8
_COLUMNS = 16, 32, 64
"""Tokens of a block."""
_TILE_OUTPUTS = 16
_WARPGROUP_TILES = 4
_WARPGROUP_THREADS = 128
_GROUP_INPUTS = 128
_WORD_BYTES = 4
_MIN_WARPGROUPS = 2
"""Two warpgroups copy the inputs."""
_MAX_WARPGROUPS = 5
_MAX_WARPGROUPS_AT_ONCE = 4
"""More warpgroups have too few registers for products of 64 tokens at once."""
_MAX_SPLITS = 16
_RELATIVE_TIMES = {2: 1.4, 3: 1.15, 4: 1.05, 5: 1.0}
"""Time of a warpgroup's group of inputs by the warpgroups of a block: few do not hide the latency of products."""
_RELATIVE_TIMES_OF_64 = {2: 1.97, 3: 0.96, 4: 0.9, 5: 1.0}
"""The same for 64 tokens, which up to four warpgroups multiply at once and five in halves: 1.5, 1.1, 1.4 and 1.9 us a
group on an H200."""
_START_GROUPS = 2.0
"""Time of a block's start and end, in groups of inputs of five warpgroups."""
_SUMS_OF_SPLIT_GROUP = 2 * 3584 * 64
"""Sums of parts of K that are written and read in the time of such a group by all blocks."""


class WgmmaGrid(NamedTuple):
    """Blocks: tokens and warpgroups of one, tokens' blocks, outputs' blocks, and parts of K."""

    columns: int
    warpgroups: int
    token_blocks: int
    row_blocks: int
    splits: int
    shared_bytes: int

    def launch(self, source: str, format: WeightFormat, dtype: DType, arguments: Sequence[Any]) -> Launch:
        """The launch of the kernel of `csrc/<source>.cu` with this grid."""
        is_wide = self.columns == _COLUMNS[-1] and self.warpgroups > _MAX_WARPGROUPS_AT_ONCE
        entry = f"{source}{self.columns}_{format_family(format)}{'_wide' if is_wide else ''}_{dtype}"
        grid = self.token_blocks, self.row_blocks, self.splits
        block = self.warpgroups * _WARPGROUP_THREADS, 1, 1
        return Launch(source, entry, grid, block, tuple(arguments), self.shared_bytes)


def takes_quantized_wgmma(format: WeightFormat, x: DeviceArray, device: DeviceFacts) -> bool:
    """Whether `quantized_wgmma` multiplies x[T, K], and is the fastest."""
    num_tokens, num_inputs = x.shape
    return (
        device.compute_capability == _CAPABILITY
        and format.bits in _BITS
        and x.dtype is not DType.FLOAT32
        and _MIN_TOKENS <= num_tokens <= MAX_WGMMA_TOKENS
        and num_inputs > 0
        and not (x.address | num_inputs * x.dtype.itemsize) % _WORD_BYTES
    )


def quantized_wgmma(
    format: WeightFormat,
    out: DeviceArray,
    x: DeviceArray,
    weights: Sequence[DeviceArray],
    bias: DeviceArray | None,
    device: DeviceFacts,
    workspace: int,
) -> Iterator[Launch]:
    """out[T, N] = x[T, K] · weight[N, K]ᵀ + bias[N], or SwiGLU of gate and up; `workspace` has
    `quantized_wgmma_bytes`.

    The summation order depends on the number of tokens.
    """
    (num_tokens, num_inputs), num_outputs = x.shape, out.shape[1]
    layout = QuantizedLayout(format, (num_outputs, num_inputs))
    grid = wgmma_grid(num_tokens, [num_outputs * len(weights)], num_inputs, format, device)
    shape = (grid.splits, len(weights), num_tokens, num_outputs)
    partials = DeviceArray(workspace, DType.FLOAT32, shape) if grid.splits > 1 else None
    weight, up = (*weights, None)[:2]
    arguments = (
        *(out, x, weight, up, bias, num_tokens, num_outputs, num_inputs, out.dtype is not x.dtype),
        *(layout.num_blocks, layout.log2_chunks, partials),
    )
    yield grid.launch("quantized_wgmma", format, x.dtype, arguments)
    if partials is not None:
        yield split_k_reduce(out, partials, bias, x.dtype)


def quantized_wgmma_bytes(
    num_tokens: int, widths: Sequence[int], num_inputs: int, format: WeightFormat, dtype: DType, device: DeviceFacts
) -> int:
    """The workspace for up to `num_tokens` and weights of `widths` rows that are multiplied by one launch."""
    if device.compute_capability != _CAPABILITY or format.bits not in _BITS or dtype is DType.FLOAT32:
        return 0
    rows = 0
    for most in (*_COLUMNS, MAX_WGMMA_TOKENS):
        tokens = min(most, num_tokens)
        splits = wgmma_grid(tokens, widths, num_inputs, format, device).splits
        rows = max(rows, splits * tokens if splits > 1 else 0)
    return rows * sum(widths) * DType.FLOAT32.itemsize


def wgmma_grid(
    num_tokens: int, widths: Sequence[int], num_inputs: int, format: WeightFormat, device: DeviceFacts
) -> WgmmaGrid:
    """The grid that is expected to take the shortest time, if each multiprocessor has one block at a time.

    `widths` are the rows of weights that have blocks of their own; gate and up share them.
    """
    columns = next((count for count in _COLUMNS if num_tokens <= count), _COLUMNS[-1])
    token_blocks = max(1, div_up(num_tokens, columns))
    num_groups = max(1, div_up(num_inputs, _GROUP_INPUTS))
    relative_times = _RELATIVE_TIMES_OF_64 if columns == _COLUMNS[-1] else _RELATIVE_TIMES
    grids = []
    for warpgroups in range(_MIN_WARPGROUPS, _max_warpgroups(format, columns) + 1):
        shared_bytes = _shared_bytes(format, columns, warpgroups)
        if shared_bytes > device.shared_bytes:
            break
        row_blocks = sum(div_up(width, warpgroups * _WARPGROUP_TILES * _TILE_OUTPUTS) for width in widths)
        blocks = max(1, token_blocks * row_blocks)
        most = max(1, min(device.num_multiprocessors // blocks, num_groups, _MAX_SPLITS))
        for splits in sorted({div_up(num_groups, div_up(num_groups, count)) for count in range(1, most + 1)}):
            waves = div_up(blocks * splits, device.num_multiprocessors)
            groups = div_up(num_groups, splits) * warpgroups / 5 * relative_times[warpgroups]
            time = waves * (groups + _START_GROUPS)
            if splits > 1:
                time += _START_GROUPS + splits * sum(widths) * num_tokens / _SUMS_OF_SPLIT_GROUP
            grids.append((time, WgmmaGrid(columns, warpgroups, token_blocks, row_blocks, splits, shared_bytes)))
    return min(grids)[1]


def _max_warpgroups(format: WeightFormat, columns: int) -> int:
    """The warpgroups of `AETHER_EACH_QUANTIZED_WGMMA`."""
    is_affine = format.has_zero_point or format.has_offset
    is_small = format.bits == 8 or (is_affine and columns == _COLUMNS[-1])
    return _MAX_WARPGROUPS_AT_ONCE if is_small else _MAX_WARPGROUPS


def _shared_bytes(format: WeightFormat, columns: int, warpgroups: int) -> int:
    """Stages of inputs, codes and scales, then the places of rows."""
    stages = 3 if format.bits == 8 else 4
    weight_bytes = warpgroups * _WARPGROUP_TILES * staged_group_bytes(format)
    return stages * (columns * _GROUP_INPUTS * 2 + weight_bytes) + columns * _WORD_BYTES
