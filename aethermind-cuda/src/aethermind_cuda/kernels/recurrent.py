"""Operators with a state per sequence, updated in place: causal_conv1d, gated_delta_rule and ssd_scan.

The host knows numbers of tokens and sequences only; blocks read from `cu_seqlens_q` which rows are theirs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

from aethermind.dispatch.kernel import Signature
from aethermind_cuda.kernels._common import cuda_kernel, div_up, has_whole_vectors
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = ["KERNELS"]

_VECTOR_BYTES = 16
_CONV_THREADS = 128
_TILE_ROWS = 16
"""Rows that a thread of csrc/causal_conv1d.cu computes one after another."""
_MAX_CONV_BLOCKS = 4096
"""Enough to fill a GPU, whatever the lengths of sequences."""

_SCAN_THREADS = 128
_BLOCK_COLUMNS = 32
"""Columns of a state that a block of csrc/common/recurrent_scan.cuh computes."""
_BATCH_TOKENS = 4
_STEP_BATCHES, _SCAN_BATCHES = 2, 3
"""Batches of tokens in its shared memory: query and key, a block's values, and scalars."""
_COPIED_BYTES = 256
"""Bytes of a `CopiedToken` besides its key and query."""
_GROUP_SCALARS = 16
_HEAD_SCALARS = 8
"""Bytes of `GroupScalars` and `HeadScalars` of csrc/common/recurrent_inputs.cuh."""
_DEPTHS = (128, 256)
"""Rows of states that it is compiled for."""


class _CausalConv1d(ctypes.Structure):
    """`CausalConv1d` of csrc/causal_conv1d.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "state", "x", "w", "bias", "cu_seqlens", "seqlens", "slots")),
        *((name, ctypes.c_int) for name in ("num_channels", "num_before", "silu", "is_wide")),
    ]


class _RecurrentScan(ctypes.Structure):
    """`RecurrentScan` of csrc/common/recurrent_inputs.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "state", "rows", "steps", "gates", "a_log", "dt_bias", "skip")),
        *((name, ctypes.c_void_p) for name in ("cu_seqlens", "seqlens", "slots")),
        *((name, ctypes.c_void_p) for name in ("group_scalars", "head_scalars")),
        *((name, ctypes.c_int) for name in ("num_heads", "num_groups", "depth", "width")),
        *((name, ctypes.c_float) for name in ("scale", "eps", "dt_min", "dt_max")),
    ]


def _address(array: DeviceArray | None) -> int | None:
    return None if array is None else array.address


def _causal_conv1d(call: Call) -> Iterator[Launch]:
    x, w, bias, _, *tables = call.inputs
    out, state = call.outputs
    assert x is not None
    assert tables[-1] is not None
    num_tokens, num_channels = x.shape
    is_wide = all(array is None or has_whole_vectors(array._replace(shape=x.shape)) for array in (x, out, w, bias))
    channels = _CONV_THREADS * (_VECTOR_BYTES // x.dtype.itemsize if is_wide else 1)
    num_blocks, num_sequences = div_up(num_channels, channels), tables[-1].shape[0]
    num_tiles = max(1, min(div_up(num_tokens, _TILE_ROWS), _MAX_CONV_BLOCKS // max(1, num_blocks * num_sequences)))
    pointers = map(_address, (out, state, x, w, bias, *tables))
    sizes = num_channels, state.shape[1], int(call.attributes["silu"]), int(is_wide)
    grid = num_blocks, num_sequences, num_tiles
    parameters = _CausalConv1d(*pointers, *sizes)
    yield Launch("causal_conv1d", f"causal_conv1d_{x.dtype}", grid, (_CONV_THREADS, 1, 1), (parameters,))


def _gated_delta_rule(call: Call) -> Iterator[Launch]:
    qkv, a, b, a_log, dt_bias, _, *tables = call.inputs
    limits = float(call.attributes["scale"]), float(call.attributes["eps"]), 0.0, 0.0
    yield from _scan("gated_delta_rule", call, (qkv, a, b, a_log, dt_bias, None, *tables), limits)


def _ssd_scan(call: Call) -> Iterator[Launch]:
    xbc, dt, a_log, dt_bias, d, _, *tables = call.inputs
    limits = 0.0, 0.0, float(call.attributes["dt_min"]), float(call.attributes["dt_max"])
    yield from _scan("ssd_scan", call, (xbc, dt, None, a_log, dt_bias, d, *tables), limits)


def _scan(source: str, call: Call, inputs: Sequence[DeviceArray | None], limits: tuple[float, ...]) -> Iterator[Launch]:
    """Launch a recurrence; `inputs` are `rows` to `slots` of `_RecurrentScan`, None where it has none.

    With more tokens than sequences, `prepare_scan` computes the scalars of tokens first, into the workspace. The scan
    then does not overlap with it: its few blocks would be placed on the multiprocessors that are free by chance. It
    copies runs of four elements; where they are not aligned, steps of any length take the kernel of single tokens.
    """
    rows, slots = inputs[0], inputs[-1]
    out, state = call.outputs
    assert rows is not None
    assert slots is not None
    num_tokens, num_sequences = rows.shape[0], slots.shape[0]
    _, num_heads, depth, width = state.shape
    num_groups = _num_groups(rows, state)
    is_aligned = rows.address % _VECTOR_BYTES == 0 and not any(size % 4 for size in (depth, width))
    is_prepared = num_tokens > num_sequences and is_aligned
    scalars = (
        (call.workspace, call.workspace + _GROUP_SCALARS * num_tokens * num_groups) if is_prepared else (None, None)
    )
    pointers = *map(_address, (out, state, *inputs)), *scalars
    parameters = _RecurrentScan(*pointers, num_heads, num_groups, depth, width, *limits)
    block = _SCAN_THREADS, 1, 1
    if is_prepared:
        yield Launch(source, f"{source}_prepare_{rows.dtype}", (num_tokens, 1, 1), block, (parameters,))
    compiled = next(max_depth for max_depth in _DEPTHS if depth <= max_depth)
    grid = num_heads * div_up(width, _BLOCK_COLUMNS), num_sequences, 1
    staged_bytes = _BATCH_TOKENS * 4 * (2 * compiled + _BLOCK_COLUMNS + 4)
    if is_prepared:
        copied_bytes = _BATCH_TOKENS * (2 * compiled * rows.dtype.itemsize + _COPIED_BYTES)
        shared_bytes = _SCAN_BATCHES * staged_bytes + copied_bytes
        entry = f"{source}_{compiled}_{rows.dtype}"
    else:
        shared_bytes, entry = _STEP_BATCHES * staged_bytes, f"{source}_step_{compiled}_{rows.dtype}"
    yield Launch(source, entry, grid, block, (parameters,), shared_bytes, is_dependent_launch=not is_prepared)


def _num_groups(rows: DeviceArray, state: DeviceArray) -> int:
    _, num_heads, depth, width = state.shape
    return (rows.shape[1] - num_heads * width) // (2 * depth)


def _scalars_bytes(call: Call) -> int:
    """The size of what `prepare_scan` computes."""
    rows, state = call.inputs[0], call.outputs[1]
    assert rows is not None
    return rows.shape[0] * (_GROUP_SCALARS * _num_groups(rows, state) + _HEAD_SCALARS * state.shape[1])


def _unsupported_depth(signature: Signature) -> str | None:
    state = signature.inputs[5]
    depth = None if state is None else state.shape[2]
    if isinstance(depth, int) and depth <= _DEPTHS[-1]:
        return None
    return f"takes states of up to {_DEPTHS[-1]} rows, not {depth}"


KERNELS = (
    cuda_kernel("causal_conv1d", _causal_conv1d),
    cuda_kernel("gated_delta_rule", _gated_delta_rule, supports=_unsupported_depth, workspace_bytes=_scalars_bytes),
    cuda_kernel("ssd_scan", _ssd_scan, supports=_unsupported_depth, workspace_bytes=_scalars_bytes),
)
