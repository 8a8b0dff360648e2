"""The prefix cache without entries."""

from __future__ import annotations

from aethermind.cache import NoPrefixCache


def test_no_prefix_cache_caches_nothing() -> None:
    cache = NoPrefixCache()
    cache.publish([1, 2], [0])
    cache.evict(3)
    assert len(cache.match([1, 2])) == cache.num_evictable == 0
