"""mla_attention and linear_per_head: latent attention in its absorbed form, and its products of each head.

Attention on tensor cores (`csrc/common/latent_attention.cuh`) is for latent vectors of 512 elements and rotated keys of
64, those of DeepSeek, in 16 bits. Its blocks take rows of q [T * H, 576]: 64 where a token has as many heads or where
tokens are many, else 16. On compute capability 9.0, blocks of 64 rows use wgmma (`latent_attention_wgmma.cuh`). Where
rows make too few blocks to occupy the GPU, their keys are split, and the combine kernel merges the partial results.
`mla_attention_rows` is for all other sizes and for float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from aethermind.dispatch import Kernel
from aethermind.dispatch.kernel import Signature
from aethermind.hal.dtype import DType
from aethermind.ops.weight_format import WeightFormat
from aethermind_cuda.cublas import WORKSPACE_BYTES, DenseProduct
from aethermind_cuda.float8_weights import weight_pack
from aethermind_cuda.kernels._common import cuda_kernel, div_up
from aethermind_cuda.kernels._cublaslt import CUBLASLT, MIN_CUBLASLT_TOKENS, has_cublaslt
from aethermind_cuda.kernels._expert_products import ExpertProduct, codes_of, head_product
from aethermind_cuda.kernels._heads import THREADS, all_present, last_dim
from aethermind_cuda.kernels._paged_attention import RESERVED_SHARED_BYTES, AttentionCall
from aethermind_cuda.kernels.mixture import EXPERT_FORMATS
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, Launch, Work

__all__ = ["KERNELS"]

_RANK = 512
_KEY_DIM = _RANK + 64
_TILE_KEYS = 32
_MIN_SPLIT_KEYS = 2 * _TILE_KEYS
_THREADS = 256
_SMALL_TILE_ROWS, _LARGE_TILE_ROWS = 16, 64
"""Rows of a block."""
_MAX_BLOCKS = {_SMALL_TILE_ROWS: 2, _LARGE_TILE_ROWS: 1}
"""Resident blocks per multiprocessor, limited by registers."""
_MAX_SPLIT_IMBALANCE = 4
"""Where blocks have different numbers of keys, long ones may have so many times their share of the splits."""
_MAX_STAGES = 4
_WGMMA_CAPABILITY = 9, 0
_WGMMA_SHARED_BYTES = 3 * 64 * 2 * _KEY_DIM
"""64 queries, and two tiles of 64 keys."""
_COMBINED_COLUMNS = 128
_MIN_CUBLASLT_HEADS = 64
"""From so many heads on, cuBLASLt multiplies any number of tokens."""
_PADDING = 8
_ROW_WARPS = 4


def _arguments(call: Call) -> AttentionCall:
    q, k_cache, cu_seqlens_q, seqlens_k, block_tables = all_present(call.inputs)
    (num_tokens, num_heads, key_dim), (num_blocks, num_kv_heads, block_size, _) = q.shape, k_cache.shape
    num_sequences, blocks_per_sequence = block_tables.shape
    return AttentionCall(
        *(array.address for array in (call.outputs[0], q, k_cache)),
        cu_seqlens_q=cu_seqlens_q.address,
        seqlens_k=seqlens_k.address,
        block_tables=block_tables.address,
        decode_partials=call.workspace,
        scale=float(call.attributes["scale"]),
        num_tokens=num_tokens,
        num_sequences=num_sequences,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        group=num_heads // num_kv_heads,
        head_dim=key_dim,
        num_blocks=num_blocks,
        block_size=block_size,
        blocks_per_sequence=blocks_per_sequence,
        max_decode_splits=1,
    )


def _tensor_cores(is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        arguments = _arguments(call)
        num_rows = arguments.num_tokens * arguments.num_heads
        if not num_rows or not arguments.num_sequences:
            return
        rows = _rows_of_block(arguments, call.device, is_invariant)
        num_blocks, max_keys = div_up(num_rows, rows), arguments.blocks_per_sequence * arguments.block_size
        if not is_invariant:
            max_parts = resident = _resident_blocks(rows, call.device)
            if arguments.num_tokens > arguments.num_sequences:
                arguments.max_prefill_splits, max_parts = resident, _MAX_SPLIT_IMBALANCE * resident
            arguments.max_decode_splits = max(1, min(max_parts // num_blocks, div_up(max_keys, _MIN_SPLIT_KEYS)))
        source, suffix, splits = "mla_attention", f"{call.outputs[0].dtype}_{rows}", arguments.max_decode_splits
        grid, block = (num_blocks, splits, 1), (_THREADS, 1, 1)
        if rows == _LARGE_TILE_ROWS and call.device.compute_capability == _WGMMA_CAPABILITY:
            source, suffix = "mla_attention_wgmma", f"{call.outputs[0].dtype}"
            yield Launch(source, f"{source}_{suffix}", grid, block, (arguments,), _WGMMA_SHARED_BYTES)
        else:
            stages = _num_stages(rows, num_blocks * splits, call.device)
            shared_bytes = _shared_bytes(rows, stages)
            yield Launch(source, f"{source}_{suffix}", grid, block, (arguments, stages), shared_bytes)
        if splits > 1:
            grid, block = (num_rows, _RANK // _COMBINED_COLUMNS, 1), (THREADS, 1, 1)
            yield Launch(source, f"{source}_combine_{suffix}", grid, block, (arguments,))

    return launches


def _rows_of_block(arguments: AttentionCall, device: DeviceFacts, is_invariant: bool) -> int:
    """Rows of a block, by the model alone where results must not depend on the batch."""
    if _shared_bytes(_LARGE_TILE_ROWS, 2) > device.shared_bytes:
        return _SMALL_TILE_ROWS
    has_chunks = arguments.num_tokens >= 2 * arguments.num_sequences and not is_invariant
    return _LARGE_TILE_ROWS if has_chunks or arguments.num_heads >= _LARGE_TILE_ROWS else _SMALL_TILE_ROWS


def _shared_bytes(rows: int, num_stages: int) -> int:
    """Dynamic shared memory: `LatentShared` of csrc/common/latent_attention.cuh, and tiles of keys."""
    key_bytes = 2 * (_KEY_DIM + _PADDING)
    scores = 16 if rows == _SMALL_TILE_ROWS else 2 * rows * 4 * (_TILE_KEYS + _PADDING)
    row_bytes = key_bytes + 2 * (_TILE_KEYS + _PADDING) + 4
    return rows * row_bytes + scores + num_stages * _TILE_KEYS * key_bytes


def _num_stages(rows: int, num_blocks: int, device: DeviceFacts) -> int:
    """Two stages where two blocks of a multiprocessor are resident with them, else as many as fit."""
    if num_blocks > device.num_multiprocessors and _blocks_per_multiprocessor(rows, 2, device) > 1:
        return 2
    return max(stages for stages in range(2, _MAX_STAGES + 1) if _shared_bytes(rows, stages) <= device.shared_bytes)


def _blocks_per_multiprocessor(rows: int, num_stages: int, device: DeviceFacts) -> int:
    shared_bytes = _shared_bytes(rows, num_stages) + RESERVED_SHARED_BYTES
    return max(1, min(_MAX_BLOCKS[rows], (device.shared_bytes + RESERVED_SHARED_BYTES) // shared_bytes))


def _resident_blocks(rows: int, device: DeviceFacts) -> int:
    """Blocks that run at the same time: the parts that keys are split into, all rows together."""
    return _blocks_per_multiprocessor(rows, 2, device) * device.num_multiprocessors


def _partials_bytes(call: Call) -> int:
    """Workspace for any number of splits."""
    rows = max(rows * _MAX_SPLIT_IMBALANCE * _resident_blocks(rows, call.device) for rows in _MAX_BLOCKS)
    return rows * (_RANK + 2) * DType.FLOAT32.itemsize


def _by_row(call: Call) -> Iterator[Launch]:
    """A block for each row of q; its shared memory holds the row and a sum for each warp."""
    arguments = _arguments(call)
    if not arguments.num_sequences:
        return
    out = call.outputs[0]
    grid, shared_bytes = (arguments.num_tokens, arguments.num_heads, 1), _row_bytes(arguments.head_dim, out.shape[2])
    name = f"mla_attention_rows_{out.dtype}"
    yield Launch("mla_attention_rows", name, grid, (32 * _ROW_WARPS, 1, 1), (arguments, out.shape[2]), shared_bytes)


def _row_bytes(key_dim: int, value_dim: int) -> int:
    return (key_dim + _ROW_WARPS * value_dim) * DType.FLOAT32.itemsize


def _unsupported_sizes(signature: Signature) -> str | None:
    key_dim, cache, value_dim = last_dim(signature, 0), signature.inputs[1], signature.attributes["value_dim"]
    heads = None if cache is None else cache.shape[1]
    if (key_dim, value_dim, heads) != (_KEY_DIM, _RANK, 1):
        return f"takes one head of {_KEY_DIM} elements, {_RANK} of them values, not {heads} of {key_dim}, {value_dim}"
    return None


def _linear_per_head(format: WeightFormat | None, is_invariant: bool) -> Callable[[Call], Iterator[Launch]]:
    def launches(call: Call) -> Iterator[Launch]:
        x, weight = all_present(call.inputs)
        product = ExpertProduct(call.outputs[0], weight, None)
        yield from head_product(product, x, format, is_invariant=is_invariant)

    return launches


def _product_of_heads(call: Call) -> Iterator[Work]:
    """By cuBLASLt; heads are columns of its matrices."""
    x, weight = all_present(call.inputs)
    (out,), (num_tokens, num_heads, _) = call.outputs, x.shape
    if num_tokens < MIN_CUBLASLT_TOKENS and num_heads < _MIN_CUBLASLT_HEADS:
        yield from _linear_per_head(None, False)(call)
        return
    columns = [array._replace(shape=(num_tokens, num_heads * array.shape[2])) for array in (out, x)]

    def fallback(*_: DeviceArray | None) -> Launch:
        return next(head_product(ExpertProduct(out, weight, None), x, None, is_invariant=False))

    yield DenseProduct(columns[0], columns[1], weight, None, call.workspace, fallback, num_heads=num_heads)


def _linear_kernels(format: WeightFormat | None) -> Iterator[Kernel]:
    shared: dict[str, Any] = {}
    if format is not None:
        shared = {"packs": {"w": weight_pack(format)}, "weight_formats": frozenset({format.name})}
    name = "cuda" if format is None else f"cuda/{codes_of(format)}"
    invariant_name = "cuda/batch_invariant" if format is None else f"{name}_batch_invariant"
    tiled, invariant = _linear_per_head(format, False), _linear_per_head(format, True)
    yield cuda_kernel("linear_per_head", tiled, name=name, is_batch_invariant=False, **shared)
    yield cuda_kernel("linear_per_head", invariant, name=invariant_name, priority=-1, **shared)


_ON_TENSOR_CORES: dict[str, Any] = {
    "dtypes": frozenset({DType.FLOAT16, DType.BFLOAT16}),
    "supports": _unsupported_sizes,
}

KERNELS = (
    cuda_kernel(
        "linear_per_head",
        _product_of_heads,
        name=CUBLASLT,
        priority=1,
        supports=has_cublaslt,
        has_heuristics=True,
        workspace_bytes=lambda _: WORKSPACE_BYTES,
        is_batch_invariant=False,
    ),
    cuda_kernel(
        "mla_attention",
        _tensor_cores(False),
        name="cuda/tensor_cores",
        workspace_bytes=_partials_bytes,
        priority=2,
        is_batch_invariant=False,
        **_ON_TENSOR_CORES,
    ),
    cuda_kernel("mla_attention", _tensor_cores(True), name="cuda/batch_invariant", priority=1, **_ON_TENSOR_CORES),
    cuda_kernel("mla_attention", _by_row, name="cuda/by_row"),
    *(kernel for format in (None, *EXPERT_FORMATS) for kernel in _linear_kernels(format)),
)
