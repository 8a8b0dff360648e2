"""The prefix cache that remembers nothing."""

from __future__ import annotations

from aethermind.cache import NoPrefixCache


def test_nothing_is_remembered() -> None:
    cache = NoPrefixCache()
    cache.publish([1, 2], [0])
    cache.reclaim(3)
    assert len(cache.match([1, 2])) == cache.num_reclaimable == 0
