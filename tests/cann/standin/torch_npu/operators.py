"""torch_npu's own operators by their documentation, computed in float32 on the CPU, with its restrictions enforced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_npu.dispatch import Made, compute

__all__ = ["register"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_HALVES = (torch.float16, torch.bfloat16)
_MASK_SIZE = 2048

_library = torch.library.Library("npu", "DEF")


def _require(is_kept: bool, what: str) -> None:
    if not is_kept:
        raise RuntimeError(f"The documentation rules this out: {what}.")


def register(schemas: dict[str, str], record: Callable[[str, Any, Any], None]) -> None:
    """Define the operators with the wheel's schemas; torch checks calls against them."""
    for name, schema in schemas.items():
        _library.define(schema)
        op = getattr(torch.ops.npu, name).default
        check, made, by = _OPERATORS[name]

        def run(*args: Any, op: Any = op, check: Any = check, made: Any = made, by: Any = by, **kwargs: Any) -> Any:
            record(op.name().removeprefix("npu::"), args, kwargs)
            check(*args, **kwargs)
            result = compute(op, args, kwargs, by, lambda: made(*args, **kwargs))
            return [result] if _returns_list(op) else result

        _library.impl(name, run, "PrivateUse1")


def _returns_list(op: Any) -> bool:
    return isinstance(op._schema.returns[0].type, torch.ListType) if op._schema.returns else False


def _same_dtype(*tensors: torch.Tensor, among: tuple[torch.dtype, ...] = _FLOATS) -> None:
    dtypes = {tensor.dtype for tensor in tensors}
    _require(len(dtypes) == 1 and dtypes <= set(among), f"dtypes {dtypes} should be one of {among}")


def _normed(x: torch.Tensor, gamma: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()
    rstd = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon)
    return wide * rstd * gamma.float(), rstd


def _check_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> None:
    _require(2 <= x.dim() <= 8, f"rms_norm takes 2 to 8 dims, not {x.dim()}")
    _same_dtype(x, gamma)


def _made_rms_norm(x: torch.Tensor, *_: Any) -> list[Made]:
    return [Made.of(x.shape, x.dtype), Made.of((*x.shape[:-1], 1), torch.float32)]


def _rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> Any:
    return _normed(x, gamma, epsilon)


def _check_add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> None:
    _require(x1.shape == x2.shape, "x1 and x2 are of one shape")
    _check_rms_norm(x1, gamma)
    _same_dtype(x1, x2)


def _made_add_rms_norm(x1: torch.Tensor, *_: Any) -> list[Made]:
    return [*_made_rms_norm(x1), Made.of(x1.shape, x1.dtype)]


def _add_rms_norm(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> Any:
    total = (x1.float() + x2.float()).to(x1.dtype)
    return (*_normed(total, gamma, epsilon), total)


def _check_swiglu(x: torch.Tensor, dim: int = -1) -> None:
    _same_dtype(x)
    _require(x.shape[dim] % 2 == 0, "the dim that is split is even")


def _made_swiglu(x: torch.Tensor, dim: int = -1) -> list[Made]:
    shape = list(x.shape)
    shape[dim] //= 2
    return [Made.of(shape, x.dtype)]


def _swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    gate, up = x.float().chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def _check_rotary_mul(
    x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half", rotate: torch.Tensor | None = None
) -> None:
    _same_dtype(x, r1, r2)
    _require(x.dim() == r1.dim() == r2.dim() == 4, "all are of 4 dims")
    _require(rotary_mode in ("half", "interleave") and rotate is None, f"mode {rotary_mode}")
    batch, _, num_heads, head_dim = x.shape
    _require(batch < 1000 and num_heads < 1000 and head_dim < 896 and head_dim % 2 == 0, f"shape {tuple(x.shape)}")
    _require(r1.shape == r2.shape == (1, x.shape[1], 1, head_dim), f"r1 {tuple(r1.shape)} is not 1S1D of BSND")


def _rotary_mul(x: torch.Tensor, r1: torch.Tensor, r2: torch.Tensor, rotary_mode: str = "half") -> torch.Tensor:
    if rotary_mode == "half":
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
    else:
        turned = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    return r1 * x + r2 * turned


def _check_scatter(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    cache_mode: str | None = "PA_NZ",
) -> None:
    _require(cache_mode in (None, "Norm"), "PA_NZ is a layout that this device has no memory in")
    _same_dtype(key, value, key_cache, value_cache, among=(*_FLOATS, torch.int8))
    _require(slot_mapping.dtype in (torch.int32, torch.int64), "slots are int32 or int64")
    _require(key.dim() == 3 and key.shape[:2] == value.shape[:2], "key and value are [tokens, heads, head size]")
    _require(key_cache.dim() == value_cache.dim() == 4, "caches are [blocks, block size, heads, head size]")
    _require(key_cache.shape[2:] == key.shape[1:], "heads of the cache are those of the keys")
    _require(slot_mapping.shape == key.shape[:1], "each token has a slot")
    _require(all(one.is_contiguous() for one in (key, value, key_cache, value_cache)), "inputs are contiguous")


def _scatter(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    cache_mode: str | None = "PA_NZ",
) -> None:
    for rows, cache in ((key, key_cache), (value, value_cache)):
        slots = cache.view(-1, *cache.shape[2:])
        _require(bool(((slot_mapping >= 0) & (slot_mapping < len(slots))).all()), "slots are in the cache")
        slots[slot_mapping] = rows


def _check_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor,
    block_table: torch.Tensor,
    actual_seq_lengths: list[int],
    actual_seq_lengths_kv: list[int],
    num_heads: int,
    num_key_value_heads: int,
    input_layout: str,
    block_size: int,
    scale: float,
    sparse_mode: int,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
) -> None:
    _same_dtype(query, key, value, among=_HALVES)
    _require(all(one.is_contiguous() for one in (query, key, value)), "inputs are contiguous")
    _require(input_layout == "TND" and query.dim() == 3, "queries are [tokens, heads, head dim]")
    _require(key.dim() == 4 and key.shape == value.shape, "caches are [blocks, kv heads, block size, head dim]")
    _require(key.shape[1:] == (num_key_value_heads, block_size, query.shape[2]), "caches fit block size and heads")
    _require(block_size % 128 == 0 and block_size <= 512, f"blocks of {block_size}")
    _require(num_heads == query.shape[1] and num_heads % num_key_value_heads == 0, "heads")
    _require(num_heads // num_key_value_heads <= 64, "up to 64 query heads share keys")
    _require(query.shape[2] % 16 == 0, "head dims are multiples of 16")
    _require(block_table.dtype == torch.int32 and block_table.dim() == 2, "block tables are int32 of two dims")
    _require(len(actual_seq_lengths) == len(actual_seq_lengths_kv) == len(block_table), "lengths of each sequence")
    ends = actual_seq_lengths
    _require(sorted(ends) == list(ends) and ends[-1] == len(query), "ends rise to the number of tokens")
    most = max(-(-length // block_size) for length in actual_seq_lengths_kv)
    _require(block_table.shape[1] >= most, "tables are as wide as the longest sequence needs")
    _require(sparse_mode in (3, 4), "the compressed mask is for modes 2, 3 and 4")
    _require(tuple(atten_mask.shape) == (_MASK_SIZE, _MASK_SIZE) and atten_mask.dtype == torch.bool, "the mask")


def _made_attention(query: torch.Tensor, *_: Any, **__: Any) -> list[Made]:
    return [Made.of(query.shape, query.dtype), Made.of((1,), torch.float32)]


def _fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    block_table: torch.Tensor,
    actual_seq_lengths: list[int],
    actual_seq_lengths_kv: list[int],
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    atten_mask: torch.Tensor,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    **_: Any,
) -> Any:
    _require(bool((atten_mask == torch.ones_like(atten_mask).triu(1)).all()), "True above the diagonal")
    out = torch.zeros(query.shape)
    begins = [0, *actual_seq_lengths[:-1]]
    for begin, end, length, blocks in zip(begins, actual_seq_lengths, actual_seq_lengths_kv, block_table, strict=True):
        used = blocks[: -(-length // key.shape[2])].long()
        k, v = (cache[used].transpose(0, 1).flatten(1, 2)[:, :length].float() for cache in (key, value))
        k, v = (one.repeat_interleave(num_heads // num_key_value_heads, 0) for one in (k, v))
        places = torch.arange(length - (end - begin), length)[:, None]
        keys = torch.arange(length)
        is_visible = (keys <= places) & (keys >= places - pre_tokens)
        scores = query[begin:end].float().transpose(0, 1) @ k.transpose(1, 2) * scale
        weights = torch.where(is_visible, scores, -torch.inf).softmax(-1)
        out[begin:end] = (weights @ v).transpose(0, 1)
    return out, torch.zeros(1)


def _check_grouped_matmul(
    x: list[torch.Tensor], weight: list[torch.Tensor], *, group_list: torch.Tensor, split_item: int, group_type: int
) -> None:
    _require(len(x) == len(weight) == 1 and split_item in (2, 3) and group_type == 0, "one tensor each, rows in groups")
    (rows,), (weights,) = x, weight
    _same_dtype(rows, weights)
    _require(rows.dim() == 2 and weights.dim() == 3, "x is of 2 dims and the weight of 3")
    _require(rows.shape[1] == weights.shape[1] < 65536, "rows fit the weight")
    _require(rows.is_contiguous(), "x is not transposed")
    _require(weights.is_contiguous() or weights.transpose(1, 2).is_contiguous(), "the weight is transposed or not")
    _require(weights.stride(2) != 1 or weights.shape[2] < 65536, "the last dim of the weight is below 65536")
    _require(group_list.dtype == torch.int64 and group_list.shape == weights.shape[:1], "ends are int64, one a group")
    _require(len(group_list) <= 1024, "up to 1024 groups")


def _made_grouped_matmul(x: list[torch.Tensor], weight: list[torch.Tensor], **_: Any) -> list[Made]:
    return [Made.of((len(x[0]), weight[0].shape[2]), x[0].dtype)]


def _grouped_matmul(x: list[torch.Tensor], weight: list[torch.Tensor], *, group_list: torch.Tensor, **_: Any) -> Any:
    ends = group_list.tolist()
    _require(ends[-1] == len(x[0]) and sorted(ends) == ends, "ends do not decrease, to the number of rows")
    parts = x[0].float().tensor_split(ends[:-1])
    return torch.cat([rows @ matrix.float() for rows, matrix in zip(parts, weight[0], strict=True)])


_OPERATORS: dict[str, tuple[Callable[..., None], Callable[..., list[Made]], Callable[..., Any]]] = {
    "npu_rms_norm": (_check_rms_norm, _made_rms_norm, _rms_norm),
    "npu_add_rms_norm": (_check_add_rms_norm, _made_add_rms_norm, _add_rms_norm),
    "npu_swiglu": (_check_swiglu, _made_swiglu, _swiglu),
    "npu_rotary_mul": (_check_rotary_mul, lambda x, *_: [Made.of(x.shape, x.dtype)], _rotary_mul),
    "npu_scatter_pa_kv_cache": (_check_scatter, lambda *_, **__: [], _scatter),
    "npu_grouped_matmul": (_check_grouped_matmul, _made_grouped_matmul, _grouped_matmul),
    "npu_fused_infer_attention_score": (_check_attention, _made_attention, _fused_attention),
}
