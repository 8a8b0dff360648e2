"""Launches of products of rows with the weights of their experts (`csrc/common/expert_products.cuh`).

A pair is one token with one of its experts. Few pairs are a GEMV each, which reads the rows of its
expert only. Many are first sorted by expert on the device (vLLM: moe_align_block_size), into tiles of one expert: of 8
pairs for the skinny kernels, or of 64 for the tiled ones. The host knows the number of pairs, not their experts, so
the grid has the most tiles that there can be, and the blocks of the others end at once: nothing is copied to the host,
and graphs can capture the launches.

The heads of `linear_per_head` are experts of every token, so their tiles are known without sorting.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from aethermind.hal.dtype import DType
from aethermind.hal.memory import align_up
from aethermind.ops.weight_format import FP8, MXFP4, WeightFormat
from aethermind_cuda.float8_weights import Float8Layout
from aethermind_cuda.kernels._common import div_up
from aethermind_cuda.kernels._projection import Projection
from aethermind_cuda.launch import DeviceArray, Launch
from aethermind_cuda.quantized_weights import GROUP_CHUNKS, QuantizedLayout

__all__ = [
    "ExpertProduct",
    "MAX_EXPERTS",
    "TokenExpertPairs",
    "codes_of",
    "expert_call",
    "expert_products",
    "gated_activation",
    "head_product",
    "moe_operator",
    "num_output_tiles",
    "pairs_of_few",
    "pairs_per_row",
    "sorted_pairs",
    "sorting_bytes",
]

MAX_EXPERTS = 4096
"""Limit of experts: the sort has a counter for each in shared memory."""

_EXPERTS_PER_UNSORTED_PAIR = 4
"""Up to one pair for every four experts, pairs are not sorted: few share an expert, and reading its weights twice takes
less time than sorting."""
_SKINNY_PAIRS = 8
_TILED_PAIRS = 64
_MIN_TILED_PAIRS_PER_EXPERT = 4
_MIN_TILED_PAIRS_PER_QUANTIZED_EXPERT = 16
"""With more pairs per expert than this, tiles of 64 are faster than tiles of 8 (measured on an H200)."""
_TILE_OUTPUTS = 16
_MAX_SKINNY_TOKENS_OF_HEADS = 32
"""Up to this many tokens, heads are multiplied in tiles of 8: their weights are read by few blocks."""
_SORT_THREADS = 1024
_TILE_BYTES = 12
"""Bytes of an `ExpertTile`."""
_ALIGNMENT = 256

_STEPS_PER_WARP = 3
"""Fewest steps of a warp. Experts may have few inputs; blocks with fewer warps let more blocks run at the same time."""

_DENSE = Projection("moe_linear", num_weights=1, group_chunks=2, steps_per_warp=_STEPS_PER_WARP)
_QUANTIZED = Projection(
    "moe_linear_quantized", num_weights=1, group_chunks=GROUP_CHUNKS, steps_per_warp=_STEPS_PER_WARP
)
_FLOAT8 = Projection("moe_linear_float8", num_weights=1, group_chunks=GROUP_CHUNKS, steps_per_warp=_STEPS_PER_WARP)


class _ExpertProducts(ctypes.Structure):
    """`ExpertProducts` of csrc/common/expert_products.cuh."""

    _fields_ = [
        *((name, ctypes.c_void_p * 2) for name in ("outs", "weights", "biases")),
        *((name, ctypes.c_void_p) for name in ("x", "ids", "order", "tiles")),
        *((name, ctypes.c_int) for name in ("num_pairs", "tile_pairs", "pairs_per_row", "num_experts")),
        *((name, ctypes.c_int) for name in ("num_outputs", "num_inputs", "num_blocks", "log2_chunks", "term")),
    ]


class _GatedActivation(ctypes.Structure):
    """`GatedActivation` of csrc/common/expert_products.cuh."""

    _fields_ = [(name, ctypes.c_float) for name in ("alpha", "limit", "up_offset")]


class ExpertProduct(NamedTuple):
    """out[T, A, N] = rows times the transposed weights of their experts, of a stack [num_experts * N, K], plus bias."""

    out: DeviceArray
    weight: DeviceArray
    bias: DeviceArray | None


def sorting_bytes(num_pairs: int, num_experts: int) -> int:
    """The workspace of `expert_products` for at most this many pairs."""
    max_tiles = _max_tiles(num_pairs, num_experts, _SKINNY_PAIRS)
    return _order_bytes(num_pairs) + align_up(max_tiles * _TILE_BYTES, _ALIGNMENT)


def expert_products(
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    ids: DeviceArray,
    num_experts: int,
    format: WeightFormat | None,
    workspace: int,
    *,
    is_invariant: bool,
) -> Iterator[Launch]:
    """The launches of one or two products of the same inputs, x[T, K] or x[T, A, K], by experts ids[T, A].

    `format` is that of the weights, None for row-major ones of x's dtype. Skinny kernels sum in the same order for any
    number of pairs; with `is_invariant` no other kernel is used.
    """
    num_pairs = ids.size
    if not num_pairs:
        return
    per_expert = _MIN_TILED_PAIRS_PER_QUANTIZED_EXPERT if format else _MIN_TILED_PAIRS_PER_EXPERT
    is_tiled = not is_invariant and x.dtype is not DType.FLOAT32 and num_pairs > num_experts * per_expert
    if is_tiled:
        pairs, *sort = sorted_pairs(ids, num_experts, _TILED_PAIRS, workspace)
    else:
        pairs, *sort = pairs_of_few(ids, num_experts, workspace)
    yield from sort
    yield _launch(products, x, format, pairs, is_tiled, pairs_per_row(x, ids))


def head_product(
    product: ExpertProduct, x: DeviceArray, format: WeightFormat | None, *, is_invariant: bool
) -> Iterator[Launch]:
    """The launch of the product of each head of x[T, H, K] with the rows of the weight [H * N, K] that are its own."""
    num_tokens, num_heads, _ = x.shape
    if not num_tokens:
        return
    is_tiled = not is_invariant and x.dtype is not DType.FLOAT32 and num_tokens > _MAX_SKINNY_TOKENS_OF_HEADS
    num_tiles = num_heads * div_up(num_tokens, _TILED_PAIRS if is_tiled else _SKINNY_PAIRS)
    yield _launch([product], x, format, TokenExpertPairs(num_tokens * num_heads, num_heads, num_tiles), is_tiled)


class TokenExpertPairs(NamedTuple):
    """Token-expert pairs and their tiles. Sorted pairs have an `order` and `tiles`; those of heads have no `ids`."""

    num_pairs: int
    num_experts: int
    num_tiles: int
    ids: DeviceArray | None = None
    order: DeviceArray | None = None
    tiles: DeviceArray | None = None


def _is_few_pairs(ids: DeviceArray, num_experts: int) -> bool:
    """Whether so few pairs share an expert that they are not sorted."""
    return ids.size <= max(ids.shape[1], num_experts // _EXPERTS_PER_UNSORTED_PAIR)


def pairs_of_few(
    ids: DeviceArray, num_experts: int, workspace: int
) -> tuple[TokenExpertPairs] | tuple[TokenExpertPairs, Launch]:
    """Token-expert pairs in tiles of up to eight, with the launch that sorts them unless few share an expert."""
    if _is_few_pairs(ids, num_experts):
        return (TokenExpertPairs(ids.size, num_experts, ids.size, ids),)
    return sorted_pairs(ids, num_experts, _SKINNY_PAIRS, workspace)


def pairs_per_row(x: DeviceArray, ids: DeviceArray) -> int:
    """The pairs that read a row of inputs x[T, K], those of a token, or x[T, A, K], one."""
    return ids.shape[1] if len(x.shape) == 2 else 1


def moe_operator(activation: Mapping[str, Any] | None) -> str:
    """The operator in names of kernels: with an activation, gate and up are multiplied in one launch."""
    return "moe_gate_up_silu" if activation else "moe_linear"


def gated_activation(attributes: Mapping[str, Any] | None) -> ctypes.Structure:
    """The argument of kernels, from the attributes of `moe_gate_up_silu`; None for products without an activation."""
    return _GatedActivation(*(float((attributes or {}).get(field[0], 0.0)) for field in _GatedActivation._fields_))


def sorted_pairs(
    ids: DeviceArray, num_experts: int, tile_pairs: int, workspace: int
) -> tuple[TokenExpertPairs, Launch]:
    """Token-expert pairs sorted by expert, in tiles of up to `tile_pairs`, and the launch that sorts them.

    `workspace` is the address of `sorting_bytes` bytes.
    """
    num_tiles = _max_tiles(ids.size, num_experts, tile_pairs)
    order = DeviceArray(workspace, DType.INT32, (ids.size,))
    tiles = DeviceArray(workspace + _order_bytes(ids.size), DType.INT32, (num_tiles, 3))
    arguments = (order, tiles, ids, ids.size, num_experts, tile_pairs, num_tiles)
    shared_bytes = num_experts * DType.INT32.itemsize
    sort = Launch("sort_experts", "sort_experts", (1, 1, 1), (_SORT_THREADS, 1, 1), arguments, shared_bytes)
    return TokenExpertPairs(ids.size, num_experts, num_tiles, ids, order, tiles), sort


def expert_call(
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    pairs: TokenExpertPairs,
    tile_pairs: int,
    num_pairs_of_row: int,
    layout: QuantizedLayout | None = None,
) -> Any:
    """The argument of kernels; `layout` is that of quantised weights."""
    return _ExpertProducts(
        *(_addresses([product[i] for product in products]) for i in range(3)),
        *(None if array is None else array.address for array in (x, pairs.ids, pairs.order, pairs.tiles)),
        *(pairs.num_pairs, tile_pairs, num_pairs_of_row, pairs.num_experts),
        *(products[0].out.shape[-1], x.shape[-1]),
        *((layout.num_blocks, layout.log2_chunks, layout.affine_term) if layout else (0, 0, 0)),
    )


def _launch(
    products: Sequence[ExpertProduct],
    x: DeviceArray,
    format: WeightFormat | None,
    pairs: TokenExpertPairs,
    is_tiled: bool,
    num_pairs_of_row: int = 1,
) -> Launch:
    num_inputs, num_outputs = x.shape[-1], products[0].out.shape[-1]
    tile_pairs = _TILED_PAIRS if is_tiled else _SKINNY_PAIRS
    layout = None if format is None or format == FP8 else QuantizedLayout(format, (num_outputs, num_inputs))
    call = expert_call(products, x, pairs, tile_pairs, num_pairs_of_row, layout)
    sizes = _TILED_PAIRS if is_tiled else 1, num_output_tiles(num_outputs) * _TILE_OUTPUTS, num_inputs
    projection, suffix, dense = _DENSE, str(x.dtype), [product.weight for product in products]
    if format == FP8:
        projection, stack = _FLOAT8, Float8Layout((pairs.num_experts * num_outputs, num_inputs))
        dense = [stack.codes(weight.address) for weight in dense]
    elif format is not None:
        projection, suffix, dense = _QUANTIZED, f"{codes_of(format)}_{x.dtype}", []
    launch = projection.launch(suffix, sizes, (call,), x.dtype, is_invariant=not is_tiled, dense=dense)
    return replace(launch, grid=(pairs.num_tiles, launch.grid[1], len(products)))


def codes_of(format: WeightFormat) -> str:
    """The name of a format's codes in names of kernels, which are compiled for all kinds of scales and zero points."""
    return format.name if format in (MXFP4, FP8) else f"int{format.bits}"


def num_output_tiles(num_outputs: int) -> int:
    """The most tiles of 16 outputs of a stack that the rows of an expert overlap: they may begin within one."""
    return div_up(num_outputs, _TILE_OUTPUTS) + (num_outputs % _TILE_OUTPUTS != 0)


def _max_tiles(num_pairs: int, num_experts: int, tile_pairs: int) -> int:
    """The most tiles that pairs can make: the last one of each expert may be partial."""
    return num_pairs // tile_pairs + min(num_pairs, num_experts)


def _order_bytes(num_pairs: int) -> int:
    return align_up(num_pairs * DType.INT32.itemsize, _ALIGNMENT)


def _addresses(arrays: Sequence[DeviceArray | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * 2)(*(None if array is None else array.address for array in arrays))
