"""Launches of paged attention, over unquantised and quantised caches: which kernel computes which part of a batch.

Decode is for few queries per sequence, prefill for many. With no more tokens than sequences, the decode kernel
computes each token separately; otherwise it computes the sequences of at most `_decode_rows(call)` rows, and
the prefill kernel the others. The host knows only shapes: each kernel finds its sequences in `cu_seqlens_q`. A kernel
that has no sequence for any batch of these shapes is not launched.

Both kernels split the keys of long sequences among blocks, and the combine kernel merges the partial results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Signature
from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind.ops.schema import TensorType
from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._heads import THREADS, code_type, last_dim, supports_head_dim
from aethermind_cuda.launch import Call, DeviceArray, Launch

__all__ = [
    "AttentionCall",
    "RESERVED_SHARED_BYTES",
    "fills_device",
    "paged_attention_kernels",
    "tensor_core_launches",
]

_DECODE_ROWS = 16
_SMALL_DECODE_ROWS = 8
"""Tile rows of the decode kernel; the smaller for tiles of one token."""
_DECODE_WARPS = 8
_PREFILL_ROWS = 128
"""Tile rows of the prefill kernel."""
_WGMMA_CAPABILITY = 9, 0
_WGMMA_HEAD_DIMS = 64, 128
_WGMMA_KEYS = 128
"""Keys per step of the wgmma prefill kernel."""
_WGMMA_THREADS = 256
_WGMMA_STAGES = 3
_WGMMA_STATE_BYTES = 2112
"""`Shared` of csrc/common/paged_attention_wgmma.cuh."""
_MIN_PREFILL_SPLIT_KEYS = 256
_MIN_DECODE_SPLIT_KEYS = 128
_MAX_UNSPLIT_KEYS = 256
"""Up to this many keys, decode is faster in one block than with splits that have to be merged."""
_BLOCKS_PER_MULTIPROCESSOR = 2
"""Resident blocks per multiprocessor, limited by registers; half as many for decode tiles of 16 rows."""
RESERVED_SHARED_BYTES = 1024
"""Shared memory that the driver reserves per block; a multiprocessor has that much more than a block can use."""

_COMBINE_ROWS = 4
"""Prefill rows that a block of the combine kernel merges at a time; it merges decode rows one by one."""

_COMBINE_BLOCKS_PER_MULTIPROCESSOR = 8
"""Limit of combine blocks for prefill rows; they process all rows in a grid-stride loop."""

_ADDITIONS = frozenset({"sinks", "slopes", "softcap"})

_WIDE = 256
"""The widest heads that kernels are compiled for; a warp of the prefill kernel holds half as many rows of them."""

_PADDING = 8
"""Row padding in shared memory, in elements (csrc/common/attention_tile.cuh)."""


class AttentionCall(ctypes.Structure):
    """`AttentionCall` of csrc/common/attention_call.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("out", "q", "k_cache", "v_cache", "k_scale", "v_scale")),
        *((name, ctypes.c_void_p) for name in ("cu_seqlens_q", "seqlens_k", "block_tables", "sinks", "slopes")),
        *((name, ctypes.c_void_p) for name in ("decode_partials", "prefill_partials")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("num_tokens", "num_sequences", "num_heads", "num_kv_heads", "group")),
        *(
            (name, ctypes.c_int)
            for name in ("head_dim", "num_blocks", "block_size", "blocks_per_sequence", "window", "code_type")
        ),
        *(
            (name, ctypes.c_int)
            for name in ("max_decode_splits", "items_are_tokens", "decode_tile_rows", "decode_rows")
        ),
        *((name, ctypes.c_int) for name in ("max_prefill_splits", "combine_decode_blocks")),
    ]


def paged_attention_kernels(operator: str) -> tuple[Kernel, ...]:
    """The kernels of `paged_attention` or `paged_attention_quantized`."""
    tensor_cores = cuda_kernel(
        operator,
        tensor_core_launches,
        name="cuda/tensor_cores",
        dtypes=frozenset({DType.FLOAT16, DType.BFLOAT16}),
        workspace_bytes=_partials_bytes,
        supports=_supports_tensor_cores,
        priority=1,
        is_batch_invariant=False,
        additions=_ADDITIONS,
    )
    by_row = cuda_kernel(operator, _row_launches, name="cuda/by_row", supports=supports_head_dim, additions=_ADDITIONS)
    return tensor_cores, by_row


def _supports_tensor_cores(signature: Signature) -> str | None:
    head_dim, has_codes = last_dim(signature, 0), _has_codes(signature.inputs[1])
    multiple = 16 if has_codes else 8
    max_dim = 128 if has_codes else 256
    if head_dim is None or head_dim > max_dim or head_dim % multiple:
        return f"takes heads of up to {max_dim} elements, a multiple of {multiple}, not {head_dim}"
    # A float16 weight times the scale of its value may be subnormal.
    if has_codes and signature.dtype is DType.FLOAT16 and any(signature.additions.values()):
        return "takes sinks, slopes and soft caps over quantised caches in bfloat16, not in float16"
    return None


class _Tiles(NamedTuple):
    """Upper bounds of the number of tiles per kv head, for each kernel."""

    decode: int
    prefill: int


def fills_device(call: Call) -> bool:
    """Whether prefill has tiles for half of the multiprocessors, if decode computes one token of each sequence. With
    fewer, splitting keys is faster.
    """
    num_tokens, num_sequences = _num_tokens_and_sequences(call)
    tiles = max(0, num_tokens - num_sequences) * _group_size(call) // _PREFILL_ROWS
    return 2 * tiles * _num_kv_heads(call) >= call.device.num_multiprocessors


def tensor_core_launches(call: Call, prefill: Callable[[Call, int], Launch] | None = None) -> Iterator[Launch]:
    """The launches of decode, prefill and combine that the shapes require.

    `prefill`, called with the maximum rows of a decode sequence, replaces the prefill kernel; it does not split keys.
    GPUs without the shared memory for wide heads compute them by rows.
    """
    if _decode_shared(_padded_head_dim(call), _is_quantized(call), _DECODE_ROWS) > call.device.shared_bytes:
        yield from _row_launches(call)
        return
    arguments = _arguments(call)
    num_sequences, num_kv_heads = arguments.num_sequences, arguments.num_kv_heads
    if num_sequences == 0:
        return
    arguments.decode_partials = call.workspace
    arguments.prefill_partials = call.workspace + _decode_partials_bytes(call)
    width, is_quantized = _padded_head_dim(call), _is_quantized(call)
    suffix = f"{call.outputs[0].dtype}_{width}"
    variant = "_quantized" if is_quantized else ""
    tiles = _tiles(call)
    by_wgmma = not prefill and _takes_wgmma(call)
    arguments.items_are_tokens = arguments.num_tokens <= num_sequences
    arguments.decode_tile_rows = _decode_tile_rows(call)
    arguments.decode_rows = _decode_rows(call) if tiles.decode else 0
    arguments.max_decode_splits = _decode_splits(call, tiles.decode * num_kv_heads)
    arguments.max_prefill_splits = 0 if prefill or by_wgmma else _prefill_splits(call, tiles.prefill)
    if arguments.max_decode_splits > 1:
        arguments.combine_decode_blocks = tiles.decode * arguments.decode_tile_rows
    combine_blocks = arguments.combine_decode_blocks
    if arguments.max_prefill_splits:
        combine_blocks += _prefill_combine_blocks(call, tiles.prefill, arguments.max_prefill_splits)
    if tiles.decode:
        source = f"paged_attention_decode{variant}"
        rows, grid = arguments.decode_tile_rows, (tiles.decode, num_kv_heads, arguments.max_decode_splits)
        block, shared = (32 * _DECODE_WARPS, 1, 1), _decode_shared(width, is_quantized, rows)
        yield Launch(source, f"{source}_{suffix}_{rows}", grid, block, (arguments,), shared)
    if tiles.prefill and prefill:
        yield prefill(call, arguments.decode_rows)
    elif tiles.prefill and by_wgmma:
        source, grid = "paged_attention_prefill_wgmma", (tiles.prefill * num_kv_heads, 1, 1)
        block, shared = (_WGMMA_THREADS, 1, 1), _wgmma_shared(width)
        yield Launch(source, f"{source}_{suffix}", grid, block, (arguments,), shared)
    elif tiles.prefill:
        source = f"paged_attention_prefill{variant}"
        grid = (tiles.prefill + arguments.max_prefill_splits, num_kv_heads, 1)
        shared = _prefill_shared(width, is_quantized)
        threads = 2 * THREADS if width == _WIDE else THREADS
        yield Launch(source, f"{source}_{suffix}", grid, (threads, 1, 1), (arguments,), shared)
    if combine_blocks:
        name, grid = f"paged_attention_combine_{suffix}", (combine_blocks, num_kv_heads, 1)
        yield Launch("paged_attention_combine", name, grid, (THREADS, 1, 1), (arguments,))


def _takes_wgmma(call: Call) -> bool:
    """Whether the wgmma kernel computes prefill. It splits no keys, and computes no additions."""
    head_dim, device, attributes = call.outputs[0].shape[-1], call.device, call.attributes
    return (
        device.compute_capability == _WGMMA_CAPABILITY
        and not _is_quantized(call)
        and head_dim in _WGMMA_HEAD_DIMS
        and _wgmma_shared(head_dim) <= device.shared_bytes
        and attributes["scale"] > 0
        and not attributes.get("softcap")
        and not any(call.inputs[6:])
        and fills_device(call)
    )


def _row_launches(call: Call) -> Iterator[Launch]:
    arguments = _arguments(call)
    if arguments.num_sequences == 0:
        return
    variant = "_quantized" if _is_quantized(call) else ""
    name = f"paged_attention_rows{variant}_{call.outputs[0].dtype}"
    grid = (arguments.num_tokens, arguments.num_heads, 1)
    yield Launch("paged_attention_rows", name, grid, (THREADS, 1, 1), (arguments,))


def _is_quantized(call: Call) -> bool:
    return _has_codes(call.inputs[1])


def _has_codes(k_cache: DeviceArray | TensorType | None) -> bool:
    return k_cache is not None and k_cache.dtype.itemsize == 1


def _arguments(call: Call) -> Any:
    q, k_cache, v_cache, cu_seqlens_q, seqlens_k, block_tables, *rest = call.inputs
    assert q is not None
    assert k_cache is not None
    assert block_tables is not None
    k_scale, v_scale = rest[:2] if _is_quantized(call) else (None, None)
    sinks, slopes = rest[2 * _is_quantized(call) :] or (None, None)  # absent in calls of kernels without additions
    operands = (call.outputs[0], q, k_cache, v_cache, k_scale, v_scale, cu_seqlens_q, seqlens_k, block_tables)
    num_sequences, blocks_per_sequence = block_tables.shape
    num_tokens, num_heads, head_dim = q.shape
    num_blocks, num_kv_heads, block_size, _ = k_cache.shape
    return AttentionCall(
        *(_address(array) for array in (*operands, sinks, slopes)),
        *(None, None),
        float(call.attributes["scale"]),
        float(call.attributes.get("softcap", 0.0)),
        *(num_tokens, num_sequences, num_heads, num_kv_heads, _group_size(call)),
        *(head_dim, num_blocks, block_size, blocks_per_sequence),
        int(call.attributes["window"]),
        code_type(k_cache) if _is_quantized(call) else 0,
        max_decode_splits=1,
    )


def _address(array: DeviceArray | None) -> int | None:
    return None if array is None else array.address


def _padded_head_dim(call: Call) -> int:
    """The head_dim that the kernel is compiled for; extra elements are zero."""
    head_dim = call.outputs[0].shape[-1]
    widths = (64, 128) if _is_quantized(call) else (64, 96, 128, _WIDE)
    return next(width for width in widths if head_dim <= width)


def _group_size(call: Call) -> int:
    q, k_cache = call.inputs[0], call.inputs[1]
    assert q is not None
    assert k_cache is not None
    return q.shape[1] // k_cache.shape[1]


def _num_kv_heads(call: Call) -> int:
    k_cache = call.inputs[1]
    assert k_cache is not None
    return k_cache.shape[1]


def _decode_rows(call: Call) -> int:
    """Maximum rows of a sequence that decode computes: the heads of one query, rounded up to whole tiles."""
    return align_up(_group_size(call), _DECODE_ROWS)


def _decode_tile_rows(call: Call) -> int:
    num_tokens, num_sequences = _num_tokens_and_sequences(call)
    is_small = num_tokens <= num_sequences and _group_size(call) <= _SMALL_DECODE_ROWS
    return _SMALL_DECODE_ROWS if is_small else _DECODE_ROWS


def _num_tokens_and_sequences(call: Call) -> tuple[int, int]:
    q, block_tables = call.inputs[0], call.inputs[5]
    assert q is not None
    assert block_tables is not None
    return q.shape[0], block_tables.shape[0]


def _tiles(call: Call) -> _Tiles:
    (num_tokens, num_sequences), group = _num_tokens_and_sequences(call), _group_size(call)
    decode = min(num_tokens, num_sequences) * div_up(group, _DECODE_ROWS)
    if num_tokens <= num_sequences or num_tokens * group <= _decode_rows(call):
        return _Tiles(decode, 0)
    # The prefill kernel computes a single sequence, even if it has few queries and the other tokens are padding.
    return _Tiles(0 if num_sequences == 1 else decode, _max_prefill_tiles(call))


def _max_prefill_tiles(call: Call) -> int:
    """An upper bound that is monotone in every size, so that the workspace for the largest sizes suffices."""
    (num_tokens, num_sequences), group = _num_tokens_and_sequences(call), _group_size(call)
    min_queries = _decode_rows(call) // group + 1
    return num_tokens * group // _PREFILL_ROWS + min(num_sequences, num_tokens // min_queries)


def _max_keys(call: Call) -> int:
    """Maximum keys of a sequence: the slots of a row of the block table."""
    block_tables, k_cache = call.inputs[5], call.inputs[1]
    assert block_tables is not None
    assert k_cache is not None
    return block_tables.shape[1] * k_cache.shape[2]


def _decode_splits(call: Call, num_unsplit_blocks: int) -> int:
    if _max_keys(call) <= _MAX_UNSPLIT_KEYS:
        return 1
    max_splits = _max_decode_blocks(call, _decode_tile_rows(call)) // max(1, num_unsplit_blocks)
    return max(1, min(max_splits, div_up(_max_keys(call), _MIN_DECODE_SPLIT_KEYS)))


def _prefill_splits(call: Call, num_tiles: int) -> int:
    """Splits of all tiles of one kv head; 0 if no batch of these shapes has a tile to split."""
    splits = _max_prefill_split_count(call, num_tiles)
    has_enough_tiles = _num_tokens_and_sequences(call)[1] == 1 and 2 * num_tiles > splits
    return 0 if _max_keys(call) < 2 * _MIN_PREFILL_SPLIT_KEYS or splits < 2 or has_enough_tiles else splits


def _max_prefill_split_count(call: Call, num_tiles: int) -> int:
    k_cache = call.inputs[1]
    assert k_cache is not None
    shared = _prefill_shared(_padded_head_dim(call), _is_quantized(call))
    return min(
        _resident_blocks(call, shared) // k_cache.shape[1], num_tiles * div_up(_max_keys(call), _MIN_PREFILL_SPLIT_KEYS)
    )


def _prefill_combine_blocks(call: Call, num_tiles: int, num_splits: int) -> int:
    """Combine blocks of one kv head: enough for all tiles that may be split, but no more than can be resident."""
    k_cache = call.inputs[1]
    assert k_cache is not None
    max_blocks = _COMBINE_BLOCKS_PER_MULTIPROCESSOR * call.device.num_multiprocessors
    rows = min(num_tiles, num_splits // 2) * _PREFILL_ROWS
    return min(rows // _COMBINE_ROWS, max(1, max_blocks // k_cache.shape[1]))


def _resident_blocks(call: Call, shared_bytes: int, by_registers: int = _BLOCKS_PER_MULTIPROCESSOR) -> int:
    """Thread blocks that can be resident on the GPU: the limit of splits, since more blocks would only queue."""
    by_shared_memory = (call.device.shared_bytes + RESERVED_SHARED_BYTES) // (shared_bytes + RESERVED_SHARED_BYTES)
    return max(1, min(by_registers, by_shared_memory)) * call.device.num_multiprocessors


def _max_decode_blocks(call: Call, rows: int) -> int:
    shared = _decode_shared(_padded_head_dim(call), _is_quantized(call), rows)
    return _resident_blocks(call, shared, _BLOCKS_PER_MULTIPROCESSOR * _SMALL_DECODE_ROWS // rows)


def _decode_partials_bytes(call: Call) -> int:
    """Workspace for any number of splits: at most `_max_decode_blocks` blocks write partial results."""
    return _max_decode_blocks(call, _SMALL_DECODE_ROWS) * _DECODE_ROWS * (_padded_head_dim(call) + 2) * 4


def _partials_bytes(call: Call) -> int:
    k_cache = call.inputs[1]
    assert k_cache is not None
    prefill_partials = _max_prefill_split_count(call, _max_prefill_tiles(call)) * k_cache.shape[1]
    return _decode_partials_bytes(call) + prefill_partials * _PREFILL_ROWS * (_padded_head_dim(call) + 2) * 4


def _decode_shared(width: int, is_quantized: bool, rows: int) -> int:
    """Dynamic shared memory: queries, and per warp `kWarpBytes` of `DecodeShared` (16 keys and values; two stages of
    codes).
    """
    row = 2 * (width + _PADDING)
    warp_bytes = 2 * 2 * 16 * (width + 16) if is_quantized else 2 * 16 * row
    return rows * row + _DECODE_WARPS * warp_bytes


def _wgmma_shared(width: int) -> int:
    """Dynamic shared memory: queries, stages of keys and of values, and the state of the tile of a block."""
    return 2 * width * (_PREFILL_ROWS + 2 * _WGMMA_STAGES * _WGMMA_KEYS) + _WGMMA_STATE_BYTES


def _prefill_shared(width: int, is_quantized: bool) -> int:
    """Dynamic shared memory, `PrefillShared::kBytes`: queries, two stages of 32 keys and values, and for quantised
    caches dequantised keys and values, and scales. Up to width 96 all but the first stage reuse the queries' memory.
    """
    row, keys = 2 * (width + _PADDING), 32
    stage = 2 * keys * width if is_quantized else 2 * keys * row
    dequantized = 2 * keys * row + 4 * keys * 4 if is_quantized else 0
    queries = _PREFILL_ROWS * row
    return stage + (max(queries, stage + dequantized) if width <= 96 else queries + stage + dequantized)
