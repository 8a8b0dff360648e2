"""Costs of lookup and eviction, counted in executed lines: independent of the number of cached blocks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from aethermind.cache import BlockPool, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.cache.prefix_cache import chain_hash

BLOCK_SIZE = 4


def count_lines(call: Callable[[], Any]) -> int:
    """Lines of Python that `call` executes. No call below scans a collection in C: that would not be seen."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    previous = sys.gettrace()
    gc.disable()  # it runs whatever others wanted to be called when something of theirs goes
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
        gc.enable()
    return count


class Rig:
    """A cache that remembers `num_prefixes` prompts of two blocks, the blocks idle."""

    def __init__(self, num_prefixes: int) -> None:
        self.num_hashes = 0
        pool = BlockPool(2 * num_prefixes + 60)
        self.prefixes = HashedPrefixCache(pool, BLOCK_SIZE, hash=self.hash)
        spec = KVCacheSpec.uniform(1, 1, 8, "float32", BLOCK_SIZE)
        self.cache = KVCache(spec, pool.num_blocks, 1000, prefix_cache=self.prefixes, pool=pool)
        for number in range(num_prefixes):
            self.remember([number] * 8)
        assert self.prefixes.num_evictable == 2 * num_prefixes
        self.num_hashes = 0

    def hash(self, parent: bytes, content: bytes) -> bytes:
        self.num_hashes += 1
        return chain_hash(parent, content)

    def remember(self, tokens: list[int]) -> None:
        self.cache.open("one")
        self.cache.reserve("one", len(tokens))
        self.cache.commit("one", len(tokens))
        self.cache.release("one", tokens)


def costs(rig: Rig) -> dict[str, int]:
    found, unknown = [7] * 8 + [0], [-1] * 9
    tables: list[Any] = []
    return {
        "find": count_lines(lambda: tables.append(rig.prefixes.match(found))),
        "miss": count_lines(lambda: tables.append(rig.prefixes.match(unknown))),
        "query": count_lines(lambda: rig.cache.query(found)),
        "remember": count_lines(lambda: rig.remember([-2] * 8)),
        "evict": count_lines(lambda: rig.prefixes.evict(3)),
        "use again": count_lines(lambda: rig.cache.open("user", found)),
    }


def test_costs_do_not_depend_on_the_number_of_cached_blocks() -> None:
    few, many = costs(Rig(10)), costs(Rig(1000))
    assert few == many
    assert all(few.values())


@pytest.mark.parametrize("num_blocks", [0, 1, 5, 40])
def test_a_block_is_hashed_once(num_blocks: int) -> None:
    rig = Rig(3)
    tokens = [9] * (num_blocks * BLOCK_SIZE + 1)
    rig.remember(tokens)
    rig.num_hashes = 0
    assert rig.cache.query(tokens) == num_blocks * BLOCK_SIZE
    assert rig.num_hashes == num_blocks


def test_eviction_hashes_nothing() -> None:
    rig = Rig(20)
    rig.prefixes.evict(40)
    assert (rig.num_hashes, rig.prefixes.num_blocks) == (0, 0)


@pytest.mark.parametrize("num_known", [1, 4])
def test_a_miss_ends_the_search(num_known: int) -> None:
    rig = Rig(3)
    known = [9] * (num_known * BLOCK_SIZE)
    rig.remember(known)
    rig.num_hashes = 0
    assert len(rig.prefixes.match([*known, *[8] * 400])) == num_known
    assert rig.num_hashes == num_known + 1


def test_eviction_demotes_a_pinned_block_once() -> None:
    def lines(num_pinned: int) -> int:
        rig = Rig(num_pinned + 10)
        for number in range(num_pinned):
            rig.prefixes.pin([number] * 8)
        rig.prefixes.evict(20)  # all that are not pinned
        return count_lines(lambda: rig.prefixes.evict(6))

    assert lines(10) == lines(200)
