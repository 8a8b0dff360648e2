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
_STAGED_TOKENS = 16
"""Tokens in its shared memory: query and key, a block's values, and scalars."""
_DEPTHS = (128, 256)
"""Rows of states that it is compiled for."""


class _CausalConv1d(ctypes.Structure):
    """`CausalConv1d` of csrc/causal_conv1d.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "state", "x", "w", "bias", "cu_seqlens", "seqlens", "slots")),
        *((name, ctypes.c_int) for name in ("num_channels", "num_before", "silu", "is_wide")),
    ]


class _RecurrentScan(ctypes.Structure):
    """`RecurrentScan` of csrc/common/recurrent_scan.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "state", "rows", "steps", "gates", "a_log", "dt_bias", "skip")),
        *((name, ctypes.c_void_p) for name in ("cu_seqlens", "seqlens", "slots")),
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
    yield _scan("gated_delta_rule", call, (qkv, a, b, a_log, dt_bias, None, *tables), limits)


def _ssd_scan(call: Call) -> Iterator[Launch]:
    xbc, dt, a_log, dt_bias, d, _, *tables = call.inputs
    limits = 0.0, 0.0, float(call.attributes["dt_min"]), float(call.attributes["dt_max"])
    yield _scan("ssd_scan", call, (xbc, dt, None, a_log, dt_bias, d, *tables), limits)


def _scan(source: str, call: Call, inputs: Sequence[DeviceArray | None], limits: tuple[float, ...]) -> Launch:
    """The launch of a recurrence; `inputs` are `rows` to `slots` of `_RecurrentScan`, None where it has none."""
    rows, slots = inputs[0], inputs[-1]
    out, state = call.outputs
    assert rows is not None
    assert slots is not None
    _, num_heads, depth, width = state.shape
    num_groups = (rows.shape[1] - num_heads * width) // (2 * depth)
    compiled = next(most for most in _DEPTHS if depth <= most)
    sizes = num_heads, num_groups, depth, width
    parameters = _RecurrentScan(*map(_address, (out, state, *inputs)), *sizes, *limits)
    grid = num_heads * div_up(width, _BLOCK_COLUMNS), slots.shape[0], 1
    shared_bytes = 4 * _STAGED_TOKENS * (2 * compiled + _BLOCK_COLUMNS + 4)
    entry = f"{source}_{compiled}_{rows.dtype}"
    return Launch(source, entry, grid, (_SCAN_THREADS, 1, 1), (parameters,), shared_bytes)


def _unsupported_depth(signature: Signature) -> str | None:
    state = signature.inputs[5]
    depth = None if state is None else state.shape[2]
    if isinstance(depth, int) and depth <= _DEPTHS[-1]:
        return None
    return f"takes states of up to {_DEPTHS[-1]} rows, not {depth}"


KERNELS = (
    cuda_kernel("causal_conv1d", _causal_conv1d),
    cuda_kernel("gated_delta_rule", _gated_delta_rule, supports=_unsupported_depth),
    cuda_kernel("ssd_scan", _ssd_scan, supports=_unsupported_depth),
)
