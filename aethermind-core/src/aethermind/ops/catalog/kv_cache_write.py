"""Puts the keys and values of a step into their slots of the paged cache, in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aethermind.ops.catalog._index_checks import slots_of_cache
from aethermind.ops.catalog._sample_inputs import normal
from aethermind.ops.catalog._tolerances import EXACT
from aethermind.ops.cost import Call, Cost
from aethermind.ops.operator import Array, Operator, Sample
from aethermind.ops.schema import OperatorSchema

__all__ = ["KV_CACHE_WRITE", "random_slots"]


def _reference(k: Array, v: Array, slot_mapping: Array, k_cache: Array, v_cache: Array) -> tuple[Array, Array]:
    outputs = (k_cache.copy(), v_cache.copy())
    _update((k, v, slot_mapping), outputs)
    return outputs


def _update(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    k, v, slot_mapping = inputs[:3]
    tokens = np.flatnonzero(slot_mapping >= 0)
    blocks, offsets = np.divmod(slot_mapping[tokens], outputs[0].shape[2])
    for cache, values in zip(outputs, (k, v), strict=True):
        cache[blocks, :, offsets] = values[tokens]


def random_slots(rng: np.random.Generator, num_tokens: int, num_slots: int, num_skipped: int = 0) -> Array:
    """Distinct slots, of which `num_skipped` are replaced by -1 (int64 [T])."""
    slots = rng.permutation(num_slots)[:num_tokens].astype(np.int64)
    slots[rng.permutation(num_tokens)[:num_skipped]] = -1
    return slots


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
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


def _cost(call: Call) -> Cost:
    return Cost(call.bytes_in("k", "v", "slot_mapping"), call.bytes_in("k", "v"))


KV_CACHE_WRITE = Operator(
    schema=OperatorSchema.parse(
        """kv_cache_write(k: F[T, K, C], v: F[T, K, C], slot_mapping: i64[T], k_cache: F[N, K, P, C],
        v_cache: F[N, K, P, C])
        -> (k_out: F[N, K, P, C] = k_cache, v_out: F[N, K, P, C] = v_cache)"""
    ),
    summary="Token t goes to block slot // P at offset slot % P; a negative slot skips the token.",
    reference=_reference,
    update=_update,
    samples=_samples,
    tolerances=EXACT,
    gathered=frozenset({"k_cache", "v_cache"}),
    cost=_cost,
    check=slots_of_cache,
)
