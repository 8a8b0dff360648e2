"""Millions of tokens: tables, slots and positions beyond 32 bits."""

from __future__ import annotations

import numpy as np

from aethermind.cache import CacheOutcome, KVCache, KVCacheSpec

TWO_MILLION = 2_000_000
FAR = 2**31 + 5


def make_cache(num_blocks: int, block_size: int, max_model_len: int) -> KVCache:
    return KVCache(KVCacheSpec.uniform(1, 1, 8, "float32", block_size), num_blocks, max_model_len)


def test_a_table_for_two_million_tokens() -> None:
    cache = make_cache(TWO_MILLION // 16 + 10, 16, 2**21)
    cache.open("long")
    cache.open("other")
    cache.reserve("other", 100)
    assert cache.reserve("long", TWO_MILLION).outcome is CacheOutcome.OK
    assert cache.commit("long", TWO_MILLION) is CacheOutcome.OK
    slots = np.zeros(TWO_MILLION, np.int64)
    cache.fill_slots("long", 0, TWO_MILLION, slots)
    assert np.bincount(slots).max() == 1
    assert slots[-1] == cache.slot("long", TWO_MILLION - 1)

    assert cache.remove("long", 16, TWO_MILLION - 32) is CacheOutcome.OK
    assert [cache.position("long", index) for index in (15, 16, 47, 48)] == [
        15,
        TWO_MILLION - 32,
        TWO_MILLION - 1,
        TWO_MILLION,
    ]
    assert cache.num_free_blocks == TWO_MILLION // 16 + 10 - 3 - 7


def test_a_token_at_a_position_beyond_32_bits() -> None:
    """A stream whose oldest tokens are dropped: few tokens are held, at large positions."""
    cache = make_cache(8, 4, 32)
    cache.open("stream")
    for _ in range(3):
        assert cache.reserve("stream", 8).outcome is CacheOutcome.OK
        cache.commit("stream", 8)
    assert cache.shift("stream", 8, FAR - 8) is CacheOutcome.OK
    assert cache.position("stream", 8) == FAR
    shifts = cache.reserve("stream", 1).shifts
    assert [(shift.num_tokens, shift.delta) for shift in shifts] == [(4, FAR - 8)] * 4
    cache.commit("stream", 1)
    assert cache.remove("stream", 0, FAR + 8) is CacheOutcome.OK
    assert [cache.position("stream", index) for index in range(9)] == list(range(FAR + 8, FAR + 17))
    as_read_by_a_device = np.array([cache.position("stream", 8)], np.int64)
    assert as_read_by_a_device[0] == FAR + 16


def test_slots_beyond_32_bits() -> None:
    cache = make_cache(4096, 2**20, 2**33)
    cache.open("long")
    assert cache.reserve("long", FAR + 1).outcome is CacheOutcome.OK
    assert cache.slot("long", FAR) == FAR
    slots = np.zeros(4, np.int64)
    cache.fill_slots("long", FAR - 3, 4, slots)
    assert slots.tolist() == [FAR - 3, FAR - 2, FAR - 1, FAR]
