"""Puts the keys and values of a step into their slots of a quantised cache: codes, and beside them their scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._index_checks import slots_of_cache
from aethermind.ops.catalog._quantized_rows import coded_caches, codes_and_ties, quantize_rows
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.catalog.kv_cache_write import KV_CACHE_WRITE
from aethermind.ops.cost import Call, Cost
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import CODE_DTYPES, OperatorSchema

__all__ = ["KV_CACHE_WRITE_QUANTIZED", "code_bytes"]


def _reference(
    k: Array, v: Array, slot_mapping: Array, k_cache: Array, v_cache: Array, k_scale: Array, v_scale: Array
) -> tuple[Array, Array, Array, Array]:
    outputs = (k_cache.copy(), v_cache.copy(), k_scale.copy(), v_scale.copy())
    _update((k, v, slot_mapping), outputs)
    return outputs


def _update(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    k, v, slot_mapping = inputs[:3]
    tokens = np.flatnonzero(slot_mapping >= 0)
    blocks, offsets = np.divmod(slot_mapping[tokens], outputs[0].shape[2])
    for cache, scale, values in zip(outputs[:2], outputs[2:], (k, v), strict=True):
        codes, scales = quantize_rows(values[tokens], DType.of_numpy(cache.dtype))
        cache[blocks, :, offsets] = codes
        scale[blocks, :, offsets] = scales


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in KV_CACHE_WRITE.samples(rng):
        k, v, slot_mapping, k_cache, v_cache = sample.inputs
        assert k is not None
        for codes, caches in coded_caches(k_cache, v_cache):
            yield Sample(f"{sample.label}_{codes}", (k, v, slot_mapping, *caches))
            if len(k) > 1:
                with_zero = k * np.where(np.arange(len(k)) == 1, 0, 1)[:, None, None]
                yield Sample(f"{sample.label}_{codes}_zero", (with_zero, v, slot_mapping, *caches))
    for dtype in CODE_DTYPES:
        values = codes_and_ties(dtype)[None, None]
        cache = np.zeros((1, 1, 2, values.shape[-1]), dtype.numpy)
        scales = np.zeros((1, 1, 2))
        yield Sample(f"ties_{dtype}", (values, -values, np.array([1]), cache, cache, scales, scales))


def code_bytes(num_rows: int, head_dim: int) -> int:
    """Bytes that keys and values of so many rows (tokens times kv heads) take: codes and their scales."""
    return 2 * num_rows * (head_dim + 4)


def _cost(call: Call) -> Cost:
    *rows, head_dim = call.shape("k")
    return Cost(call.bytes_in("k", "v", "slot_mapping"), code_bytes(prod(rows), head_dim), 4 * prod(rows) * head_dim)


KV_CACHE_WRITE_QUANTIZED = Operator(
    schema=OperatorSchema.parse(
        """kv_cache_write_quantized(k: F[T, K, C], v: F[T, K, C], slot_mapping: i64[T], k_cache: q8[N, K, P, C],
        v_cache: q8[N, K, P, C], k_scale: f32[N, K, P], v_scale: f32[N, K, P])
        -> (k_out: q8[N, K, P, C] = k_cache, v_out: q8[N, K, P, C] = v_cache,
        k_scale_out: f32[N, K, P] = k_scale, v_scale_out: f32[N, K, P] = v_scale)"""
    ),
    summary=(
        "Token t goes to block slot // P at offset slot % P, each of its heads as codes round(x / scale) with "
        "scale = max |x| / 127 (448 of float8_e4m3fn); a negative slot skips the token."
    ),
    reference=_reference,
    update=_update,
    samples=_samples,
    tolerances=EXACT,
    gathered=frozenset({"k_cache", "v_cache", "k_scale", "v_scale"}),
    cost=_cost,
    check=slots_of_cache,
)
