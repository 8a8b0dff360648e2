"""BlockPool: all or nothing, counted references, no double release."""

from __future__ import annotations

import pytest

from aethermind.cache import BlockPool


def test_a_fresh_pool_hands_out_ascending_blocks() -> None:
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
