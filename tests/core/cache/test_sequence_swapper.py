"""Swapping of parked sequences when the cache fills: the least recently used first, and no others."""

from __future__ import annotations

import pytest
from tests.core.cache.memories import Memory

from aethermind.cache import BlockPool, CacheOutcome, CacheState, HashedPrefixCache, HostSwapStore, KVCache, KVCacheSpec
from aethermind.errors import InvalidArgumentError

SWAPPED, STANDBY, ACTIVE = CacheState.SWAPPED, CacheState.STANDBY, CacheState.ACTIVE


def make_cache(num_blocks: int = 10, threshold: float = 1.0, num_host_blocks: int = 10) -> KVCache:
    """A cache of blocks of 4 tokens."""
    pool = BlockPool(num_blocks)
    memory = Memory(num_blocks, 4, num_host_blocks)
    return KVCache(
        KVCacheSpec.uniform(1, 1, 8, "float32", 4),
        num_blocks,
        100,
        prefix_cache=HashedPrefixCache(pool, 4),
        swap_store=HostSwapStore(memory, num_host_blocks),
        swap_threshold=threshold,
        pool=pool,
    )


def start(cache: KVCache, seq_id: str, num_blocks: int, *, is_parked: bool = True) -> None:
    cache.open(seq_id)
    assert cache.reserve(seq_id, num_blocks * 4).outcome is CacheOutcome.OK
    cache.commit(seq_id, num_blocks * 4)
    if is_parked:
        cache.park(seq_id)


def states(cache: KVCache, names: str) -> list[CacheState]:
    return [cache.state(name) for name in names]


def test_parked_sequences_are_swapped_out_lru_and_as_few_as_needed() -> None:
    cache = make_cache()
    for name in "abc":
        start(cache, name, 3)
    assert cache.resume("a") is cache.park("a") is CacheOutcome.OK
    cache.fork("b", "child of b")
    cache.release("child of b")
    start(cache, "new", 2, is_parked=False)
    assert states(cache, "abc") == [STANDBY, STANDBY, SWAPPED]
    start(cache, "more", 4, is_parked=False)
    assert states(cache, "abc") == [SWAPPED, STANDBY, SWAPPED]


@pytest.mark.parametrize(("threshold", "num_held"), [(0.0, 0), (0.5, 4), (0.6, 6), (1.0, 10)])
def test_the_threshold_holds_when_parking(threshold: float, num_held: int) -> None:
    cache = make_cache(threshold=threshold)
    for name in "abcde":
        start(cache, name, 2)
    assert cache.pool.num_used == num_held
    assert cache.usage <= threshold
    assert cache.memory_pressure == 0.5, "swapped blocks count too"


def test_running_sequences_are_not_swapped_out() -> None:
    cache = make_cache(threshold=0.5)
    start(cache, "runs", 6, is_parked=False)
    start(cache, "parked", 2)
    assert (cache.state("runs"), cache.state("parked")) == (ACTIVE, SWAPPED)
    assert cache.usage == 0.6


def test_pinned_sequences_are_not_swapped_out() -> None:
    cache = make_cache()
    for name in "ab":
        start(cache, name, 4)
    cache.pin("a")
    start(cache, "c", 4, is_parked=False)
    assert states(cache, "ab") == [STANDBY, SWAPPED]
    cache.open("d")
    assert cache.reserve("d", 12).outcome is CacheOutcome.NO_FREE_BLOCKS
    assert cache.pin("a", False) is CacheOutcome.OK
    assert cache.reserve("d", 12).outcome is CacheOutcome.OK
    assert cache.state("a") is SWAPPED


def test_blocks_become_warm_when_their_last_sequence_ends() -> None:
    cache, tokens = make_cache(threshold=0.5), [*range(16)]
    start(cache, "first", 4, is_parked=False)
    cache.release("first", tokens)
    assert cache.open("second", [*tokens, 1]).num_cached_tokens == 16
    cache.park("second")
    assert cache.count_states()[CacheState.WARM] == 0
    start(cache, "third", 5, is_parked=False)
    assert cache.state("second") is SWAPPED
    assert cache.count_states()[CacheState.WARM] == 4
    assert cache.query([*tokens, 1]) == 16


def test_nothing_is_swapped_for_an_allocation_that_cannot_succeed() -> None:
    cache = make_cache()
    start(cache, "runs", 5, is_parked=False)
    start(cache, "parked", 3)
    cache.open("new")
    assert cache.reserve("new", 4 * 6).outcome is CacheOutcome.NO_FREE_BLOCKS
    assert cache.state("parked") is STANDBY
    assert cache.reserve("new", 4 * 5).outcome is CacheOutcome.OK
    assert cache.state("parked") is SWAPPED


def test_a_sequence_that_shares_all_blocks_with_a_running_one_is_not_swapped() -> None:
    cache = make_cache()
    start(cache, "parent", 6, is_parked=False)
    cache.fork("parent", "child")
    cache.park("child")
    start(cache, "parked", 4)
    cache.open("new")
    assert cache.reserve("new", 12).outcome is CacheOutcome.OK
    assert (cache.state("child"), cache.state("parked")) == (STANDBY, SWAPPED)


def test_parked_sequences_that_share_blocks_are_swapped_together() -> None:
    cache = make_cache(num_host_blocks=12)
    start(cache, "parent", 6, is_parked=False)
    cache.fork("parent", "child")
    cache.park("child")
    cache.park("parent")
    start(cache, "new", 10, is_parked=False)
    assert cache.state("child") is cache.state("parent") is SWAPPED


def test_a_full_swap_store_gives_no_free_blocks() -> None:
    cache = make_cache(num_host_blocks=3)
    start(cache, "large", 4)
    start(cache, "small", 3)
    cache.open("new")
    assert cache.reserve("new", 4 * 7).outcome is CacheOutcome.NO_FREE_BLOCKS
    assert (cache.state("large"), cache.state("small")) == (STANDBY, STANDBY)
    assert cache.reserve("new", 4 * 6).outcome is CacheOutcome.OK
    assert (cache.state("large"), cache.state("small")) == (STANDBY, SWAPPED)
    assert cache.resume("small") is CacheOutcome.NO_FREE_BLOCKS
    assert cache.state("small") is SWAPPED


def test_resuming_swaps_in_and_may_swap_another_out() -> None:
    cache = make_cache(num_host_blocks=12)
    start(cache, "a", 6)
    start(cache, "b", 6)
    assert states(cache, "ab") == [SWAPPED, STANDBY]
    assert cache.resume("a") is CacheOutcome.OK
    assert states(cache, "ab") == [ACTIVE, SWAPPED]


def test_a_swapped_sequence_that_ends_leaves_the_store() -> None:
    cache = make_cache(threshold=0.0)
    start(cache, "a", 6)
    assert cache.memory_pressure == 0.3
    assert cache.release("a") is CacheOutcome.OK
    assert cache.memory_pressure == 0.0


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_the_swap_threshold_must_be_a_fraction(threshold: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"swap_threshold is .* but must be a fraction, 0 to 1"):
        make_cache(threshold=threshold)
