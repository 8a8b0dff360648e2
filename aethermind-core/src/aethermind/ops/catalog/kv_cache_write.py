"""Writes of keys and values into a paged KV cache, of floats or quantised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from aethermind.hal.dtype import DType
from aethermind.ops.catalog._index_checks import check_slots
from aethermind.ops.catalog._quantized_rows import codes_and_ties, quantize_rows, quantized_caches
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.operator import EXACT, Array, Call, Cost, Operator, Sample
from aethermind.ops.schema import CODE_DTYPES, OperatorSchema

__all__ = [
    "KV_CACHE_WRITE",
    "KV_CACHE_WRITE_QUANTIZED",
    "LATENT_CACHE_WRITE",
    "quantized_bytes",
    "random_slots",
]


def _write_reference(k: Array, v: Array, slot_mapping: Array, k_cache: Array, v_cache: Array) -> tuple[Array, Array]:
    outputs = (k_cache.copy(), v_cache.copy())
    _write_update((k, v, slot_mapping), outputs)
    return outputs


def _write_update(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    *rows, slot_mapping = inputs[: len(outputs) + 1]
    tokens = np.flatnonzero(slot_mapping >= 0)
    blocks, offsets = np.divmod(slot_mapping[tokens], outputs[0].shape[2])
    for cache, values in zip(outputs, rows, strict=True):
        cache[blocks, :, offsets] = values[tokens]


def random_slots(rng: np.random.Generator, num_tokens: int, num_slots: int, num_skipped: int = 0) -> Array:
    """Return distinct slots (int64 [T]), `num_skipped` of which are replaced by -1."""
    slots = rng.permutation(num_slots)[:num_tokens].astype(np.int64)
    slots[rng.permutation(num_tokens)[:num_skipped]] = -1
    return slots


def _write_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for num_tokens, num_blocks, num_kv_heads, block_size, head_dim, num_skipped in (
        (5, 4, 2, 4, 8, 0),
        (1, 3, 1, 16, 64, 0),
        (0, 2, 2, 4, 8, 0),
        (6, 9, 7, 1, 80, 2),
        (20, 2, 2, 16, 128, 3),
        (3, 1, 1, 5, 7, 3),
        (300, 40, 2, 16, 8, 7),
        (130, 300, 1, 1, 8, 0),
    ):
        values = [normal(rng, num_tokens, num_kv_heads, head_dim) for _ in range(2)]
        caches = [normal(rng, num_blocks, num_kv_heads, block_size, head_dim) for _ in range(2)]
        slots = random_slots(rng, num_tokens, num_blocks * block_size, num_skipped)
        label = f"T{num_tokens}_K{num_kv_heads}_P{block_size}_C{head_dim}_skip{num_skipped}"
        yield Sample(label, (*values, slots, *caches))


def _write_cost(call: Call) -> Cost:
    return Cost(call.bytes_in("k", "v", "slot_mapping"), call.bytes_in("k", "v"))


KV_CACHE_WRITE = Operator(
    schema=OperatorSchema.parse(
        """kv_cache_write(k: F[T, K, C], v: F[T, K, C], slot_mapping: i64[T], k_cache: F[N, K, P, C],
        v_cache: F[N, K, P, C])
        -> (k_out: F[N, K, P, C] = k_cache, v_out: F[N, K, P, C] = v_cache)"""
    ),
    summary="Token t is written to block slot // P at offset slot % P; a negative slot skips the token.",
    reference=_write_reference,
    update=_write_update,
    samples=_write_samples,
    tolerances=EXACT,
    gathered=frozenset({"k_cache", "v_cache"}),
    cost=_write_cost,
    check=check_slots,
)
"""Writes the keys and values of a step to their slots of the paged cache, in place."""


def _latent_reference(k: Array, slot_mapping: Array, k_cache: Array) -> Array:
    out = k_cache.copy()
    _write_update((k, slot_mapping), (out,))
    return out


def _latent_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in _write_samples(rng):
        k, _, slot_mapping, k_cache, _ = sample.inputs
        yield Sample(sample.label, (k, slot_mapping, k_cache))


def _latent_cost(call: Call) -> Cost:
    return Cost(call.bytes_in("k", "slot_mapping"), call.bytes_in("k"))


LATENT_CACHE_WRITE = Operator(
    schema=OperatorSchema.parse(
        """latent_cache_write(k: F[T, K, C], slot_mapping: i64[T], k_cache: F[N, K, P, C])
        -> (k_out: F[N, K, P, C] = k_cache)"""
    ),
    summary="Token t is written to block slot // P at offset slot % P; a negative slot skips the token.",
    reference=_latent_reference,
    update=_write_update,
    samples=_latent_samples,
    tolerances=EXACT,
    gathered=frozenset({"k_cache"}),
    cost=_latent_cost,
    check=check_slots,
)
"""Writes the rows of a step to their slots of a cache whose values are parts of its keys, see `mla_attention`."""


def _quantized_reference(
    k: Array, v: Array, slot_mapping: Array, k_cache: Array, v_cache: Array, k_scale: Array, v_scale: Array
) -> tuple[Array, Array, Array, Array]:
    outputs = (k_cache.copy(), v_cache.copy(), k_scale.copy(), v_scale.copy())
    _quantized_update((k, v, slot_mapping), outputs)
    return outputs


def _quantized_update(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    k, v, slot_mapping = inputs[:3]
    tokens = np.flatnonzero(slot_mapping >= 0)
    blocks, offsets = np.divmod(slot_mapping[tokens], outputs[0].shape[2])
    for cache, scale, values in zip(outputs[:2], outputs[2:], (k, v), strict=True):
        codes, scales = quantize_rows(values[tokens], DType.of_numpy(cache.dtype))
        cache[blocks, :, offsets] = codes
        scale[blocks, :, offsets] = scales


def _quantized_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for sample in KV_CACHE_WRITE.samples(rng):
        k, v, slot_mapping, k_cache, v_cache = sample.inputs
        assert k is not None
        for codes, caches in quantized_caches(k_cache, v_cache):
            yield Sample(f"{sample.label}_{codes}", (k, v, slot_mapping, *caches))
            if len(k) > 1:
                with_zero = k * np.where(np.arange(len(k)) == 1, 0, 1)[:, None, None]
                yield Sample(f"{sample.label}_{codes}_zero", (with_zero, v, slot_mapping, *caches))
    for dtype in CODE_DTYPES:
        values = codes_and_ties(dtype)[None, None]
        cache = np.zeros((1, 1, 2, values.shape[-1]), dtype.numpy)
        scales = np.zeros((1, 1, 2))
        yield Sample(f"ties_{dtype}", (values, -values, np.array([1]), cache, cache, scales, scales))


def quantized_bytes(num_rows: int, head_dim: int) -> int:
    """Return the bytes of quantised keys and values with their scales; rows are tokens times kv heads."""
    return 2 * num_rows * (head_dim + 4)


def _quantized_cost(call: Call) -> Cost:
    *rows, head_dim = call.shape("k")
    return Cost(
        call.bytes_in("k", "v", "slot_mapping"), quantized_bytes(prod(rows), head_dim), 4 * prod(rows) * head_dim
    )


KV_CACHE_WRITE_QUANTIZED = Operator(
    schema=OperatorSchema.parse(
        """kv_cache_write_quantized(k: F[T, K, C], v: F[T, K, C], slot_mapping: i64[T], k_cache: q8[N, K, P, C],
        v_cache: q8[N, K, P, C], k_scale: f32[N, K, P], v_scale: f32[N, K, P])
        -> (k_out: q8[N, K, P, C] = k_cache, v_out: q8[N, K, P, C] = v_cache,
        k_scale_out: f32[N, K, P] = k_scale, v_scale_out: f32[N, K, P] = v_scale)"""
    ),
    summary=(
        "Token t is written to block slot // P at offset slot % P, each of its heads as codes round(x / scale) with "
        "scale = max |x| / 127 (448 for float8_e4m3fn); a negative slot skips the token."
    ),
    reference=_quantized_reference,
    update=_quantized_update,
    samples=_quantized_samples,
    tolerances=EXACT,
    gathered=frozenset({"k_cache", "v_cache", "k_scale", "v_scale"}),
    cost=_quantized_cost,
    check=check_slots,
)
"""Quantises the keys and values of a step and writes codes and scales to their slots, in place."""
