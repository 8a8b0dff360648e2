"""Which snapshots of recurrent states are kept when there are more prefixes than slots."""

from __future__ import annotations

from collections.abc import Sequence

from aethermind.cache import BlockPool, CacheOutcome, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.cache.layers import Paged, Recurrent

BLOCK = 4
LAYERS = (Recurrent((("state", (2,)),)), Paged(1, 8, 8))


def cache_with(num_snapshots: int, num_blocks: int = 400) -> KVCache:
    spec = KVCacheSpec(LAYERS, "float32", BLOCK, num_slots=6 + num_snapshots, num_snapshots=num_snapshots)
    pool = BlockPool(num_blocks)
    return KVCache(spec, num_blocks, 4000, prefix_cache=HashedPrefixCache(pool, BLOCK), pool=pool)


def compute(cache: KVCache, token_ids: Sequence[int]) -> int:
    """Compute and publish a sequence of whole blocks; returns how many of its tokens were reused."""
    reused = cache.open("sequence", token_ids).num_cached_tokens
    assert cache.reserve("sequence", len(token_ids) - reused).outcome is CacheOutcome.OK
    assert cache.commit("sequence", len(token_ids) - reused) is CacheOutcome.OK
    assert cache.release("sequence", token_ids) is CacheOutcome.OK
    cache.state_copies.clear()
    return reused


def test_many_turns_do_not_evict_the_beginning_of_a_conversation() -> None:
    """From which an edited question continues, or one whose template drops the reasoning before it."""
    cache, prompt = cache_with(num_snapshots=4), list(range(200))
    compute(cache, prompt)
    longer = prompt
    for turn in range(20):
        longer = [*longer, *range(1000 * turn, 1000 * turn + 2 * BLOCK)]
        assert compute(cache, longer) == len(longer) - 2 * BLOCK
    assert compute(cache, [*prompt, *range(7000, 7008)]) == len(prompt)


def test_conversations_that_ended_make_way() -> None:
    """However long they were: what is used later has the higher priority at some time."""
    cache = cache_with(num_snapshots=4)
    for number in range(4):
        compute(cache, range(1000 * number, 1000 * number + 60 * BLOCK))
    for number in range(4, 400):
        compute(cache, range(1000 * number, 1000 * number + 2 * BLOCK))
    assert all(
        compute(cache, [*range(1000 * number, 1000 * number + 60 * BLOCK), 1, 2, 3, 4]) == 0 for number in range(4)
    )


def test_a_snapshot_that_is_used_outlives_those_that_are_not() -> None:
    cache, used = cache_with(num_snapshots=3), list(range(10 * BLOCK))
    compute(cache, used)
    for number in range(1, 40):
        compute(cache, range(1000 * number, 1000 * number + 10 * BLOCK))
        assert compute(cache, [*used, *range(1000 * number, 1000 * number + BLOCK)]) == len(used)
