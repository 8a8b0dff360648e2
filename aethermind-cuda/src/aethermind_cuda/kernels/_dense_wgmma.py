"""Products of 9 to 128 tokens with dense 16-bit weights on compute capability 9.0 (csrc/dense_wgmma.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aethermind.hal.dtype import DType
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.launch import DeviceArray, DeviceFacts, Launch, TensorMap

__all__ = ["dense_wgmma"]

_CAPABILITY = 9, 0
_MIN_TOKENS = 9
_TOKENS = 16, 32, 64, 128
"""Tokens of the kernels."""
_DEPTH = 64
"""Inputs of a step."""
_ROW_BYTES = 128
_GROUP_ROWS, _GROUP_THREADS = 64, 128
_MAX_GROUPS = 5
_ROW_STEP = 16
_WARP = 32
_MAX_STAGES = 16
_SHARED_BYTES = 227 << 10
_BARRIER_BYTES = 16
"""Of a stage, which has two."""
_PITCH = 4
"""Floats behind the sums of a token."""
_VECTOR_BYTES = 16
_OUTPUTS = 4
"""Those that a thread stores at a time."""
_SPLITS = {1: (1, 4), 2: (1,)}
"""Numbers of blocks that may divide the inputs, by the number of weights: gate and up have rows enough."""
_SPLIT_BYTES = 48 << 10
"""What a block could read while the blocks of a cluster add their sums."""


class _Tiling(NamedTuple):
    """Blocks have `rows` rows of weights, and `splits` of them divide the inputs."""

    splits: int
    rows: int
    tiles: int


def dense_wgmma(
    out: DeviceArray,
    x: DeviceArray,
    weights: Sequence[DeviceArray],
    bias: DeviceArray | None,
    device: DeviceFacts,
) -> Launch | None:
    """The launch of x · weightᵀ + bias, or of silu(x · gateᵀ) · (x · upᵀ) for two weights; None if another kernel has
    to compute it.
    """
    if not _is_supported(out, x, weights, bias, device):
        return None
    num_tokens, num_inputs = x.shape
    num_outputs, num_steps = out.shape[1], div_up(num_inputs, _DEPTH)
    tokens = next(count for count in _TOKENS if num_tokens <= count)
    tiling = _tiling(num_outputs, num_steps, tokens, len(weights), x.dtype, device)
    groups, kernel = div_up(tiling.rows, _GROUP_ROWS), _kernel(len(weights), tokens, tiling.splits, x.dtype)
    stage_bytes = (tiling.rows + tokens) * _ROW_BYTES
    # The last group may read beyond the last stage.
    other_bytes = max(_MAX_STAGES * _BARRIER_BYTES, (groups * _GROUP_ROWS - tiling.rows - tokens) * _ROW_BYTES)
    stages = min(_MAX_STAGES, (_SHARED_BYTES - other_bytes) // stage_bytes, div_up(num_steps, tiling.splits))
    stages = max(stages, div_up(tokens * (tiling.rows + _PITCH) * 4, stage_bytes))  # sums take the place of stages
    shared_bytes = stages * stage_bytes + other_bytes
    first, second = (
        TensorMap(weight.address, num_outputs, num_inputs, tiling.rows // 2) for weight in (weights[0], weights[-1])
    )
    arguments = (
        *(first, second, TensorMap(x.address, num_tokens, num_inputs, tokens)),
        *(out, bias, num_tokens, num_outputs, num_steps, tiling.rows, stages, out.dtype is not x.dtype),
    )
    grid = tiling.tiles * tiling.splits, 1, 1
    return Launch("dense_wgmma", kernel, grid, (_threads(groups, tokens), 1, 1), arguments, shared_bytes)


def _kernel(num_weights: int, tokens: int, splits: int, dtype: DType) -> str:
    return f"{'gate_up_silu' if num_weights > 1 else 'linear'}_wgmma{tokens}_{splits}_{dtype}"


def _threads(groups: int, tokens: int) -> int:
    return groups * _GROUP_THREADS + (0 if tokens == _TOKENS[-1] else _WARP)  # the warp that only copies


def _is_supported(
    out: DeviceArray, x: DeviceArray, weights: Sequence[DeviceArray], bias: DeviceArray | None, device: DeviceFacts
) -> bool:
    (num_tokens, num_inputs), num_outputs = x.shape, out.shape[1]
    return (
        device.compute_capability == _CAPABILITY
        and device.shared_bytes >= _SHARED_BYTES
        and _MIN_TOKENS <= num_tokens <= _TOKENS[-1]
        and x.dtype is not DType.FLOAT32
        and (bias is None or bias.dtype is x.dtype)
        and num_inputs > 0
        and num_outputs > 0
        and not num_outputs % _OUTPUTS
        and not num_inputs * x.dtype.itemsize % _VECTOR_BYTES
        and not any(array.address % _VECTOR_BYTES for array in (out, x, *weights, *filter(None, [bias])))
    )


def _places(splits: int, kernel: str, tokens: int, device: DeviceFacts) -> int:
    """How many clusters of `splits` blocks run at once, with a multiprocessor for each block: none where a part of a
    GPU has too few multiprocessors side by side.
    """
    if splits == 1 or device.max_clusters is None:
        return max(1, device.num_multiprocessors // splits)
    block = _threads(_MAX_GROUPS, tokens), 1, 1
    return device.max_clusters(Launch("dense_wgmma", kernel, (splits, 1, 1), block, (), _SHARED_BYTES))


def _tiling(
    num_outputs: int, num_steps: int, tokens: int, num_weights: int, dtype: DType, device: DeviceFacts
) -> _Tiling:
    """As few bytes for the slowest multiprocessor as possible, all of which run a block at a time.

    A block reads its rows and all tokens.
    """
    best, least = None, 0
    for splits in _SPLITS[num_weights]:
        if splits > num_steps:
            continue
        places = _places(splits, _kernel(num_weights, tokens, splits, dtype), tokens, device)
        if not places:
            continue
        rows_of_all = num_outputs * num_weights
        waves = div_up(rows_of_all, places * _MAX_GROUPS * _GROUP_ROWS)
        rows = div_up(div_up(rows_of_all, places * waves), _ROW_STEP) * _ROW_STEP
        cost = waves * ((rows + tokens) * div_up(num_steps, splits) * _ROW_BYTES + (splits > 1) * _SPLIT_BYTES)
        if best is None or cost < least:
            best, least = _Tiling(splits, rows, div_up(num_outputs, rows // num_weights)), cost
    assert best is not None
    return best
