"""BlockPool: allocation is all or nothing, references are counted, no double release."""

from __future__ import annotations

import pytest

from aethermind.cache import BlockPool


def test_a_new_pool_allocates_ascending_blocks() -> None:
    pool = BlockPool(5)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(3) == [2, 3, 4]
    assert (pool.num_free, pool.num_used, pool.usage) == (0, 5, 1.0)


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(0) == []


def test_the_last_freed_block_is_reused_first() -> None:
    pool = BlockPool(4)
    pool.allocate(4)
    pool.release(2)
    pool.release(1)
    assert pool.allocate(2) == [1, 2]


def test_a_block_is_free_after_its_last_reference() -> None:
    pool = BlockPool(1)
    assert pool.allocate(1) == [0]
    pool.acquire(0)
    pool.release(0)
    assert (pool.ref_count(0), pool.num_free) == (1, 0)
    pool.release(0)
    assert (pool.ref_count(0), pool.num_free) == (0, 1)


def test_misuse_is_a_programming_error() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="block 0 is already free"):
        pool.release(0)
    with pytest.raises(AssertionError, match="block 0 is free"):
        pool.acquire(0)
    with pytest.raises(AssertionError):
        BlockPool(0)


def test_a_cached_block_is_idle_without_other_references() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    for block in (0, 1):
        pool.keep(block)
        assert not pool.is_idle(block)
        pool.release(block)
    assert (pool.num_idle, pool.eviction_candidate(), pool.num_free) == (2, 0, 1)
    pool.acquire(0)
    assert (pool.num_idle, pool.eviction_candidate(), pool.is_idle(0)) == (1, 1, False)
    pool.release(0)
    assert pool.eviction_candidate() == 1
    pool.drop(1)
    assert (pool.num_idle, pool.num_free, pool.ref_count(1)) == (1, 2, 0)
    pool.acquire(0)
    pool.drop(0)
    assert (pool.num_idle, pool.ref_count(0)) == (0, 1)


def test_a_block_is_cached_at_most_once() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.keep(0)
    with pytest.raises(AssertionError, match="already kept"):
        pool.keep(0)


def test_a_demoted_block_is_evicted_last_until_it_is_promoted() -> None:
    pool = BlockPool(4)
    for block in pool.allocate(4) or ():
        pool.keep(block)
        pool.release(block)
    assert pool.demote(0)
    assert not pool.demote(0)
    assert (pool.num_idle, pool.is_idle(0), pool.eviction_candidate()) == (4, True, 1)
    pool.promote(0)
    pool.promote(3)  # was not passed over
    assert pool.eviction_candidate() == 0
    pool.demote(0)
    for block in (1, 2, 3):
        pool.drop(block)
    assert pool.eviction_candidate() == 0
    pool.acquire(0)
    pool.release(0)
    assert pool.demote(0), "who was used since stands among the others"
    pool.drop(0)
    assert (pool.num_idle, pool.num_free) == (0, 4)
