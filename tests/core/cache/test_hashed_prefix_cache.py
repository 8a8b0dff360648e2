"""HashedPrefixCache: matching, keys, and the order of eviction."""

from __future__ import annotations

from collections.abc import Sequence

from aethermind.cache import BlockPool, HashedPrefixCache
from aethermind.cache.prefix_cache import chain_hash

BLOCK_SIZE = 4


class Prefixes:
    """A pool with a prefix cache; `remember` is a sequence that comes, is published and goes."""

    def __init__(self, num_blocks: int = 8, salt: bytes = b"", hash: object = chain_hash) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = HashedPrefixCache(self.pool, BLOCK_SIZE, salt, hash=hash)  # type: ignore[arg-type]

    def remember(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[int]:
        blocks = self.pool.allocate(len(token_ids) // BLOCK_SIZE)
        assert blocks is not None
        self.cache.publish(token_ids, blocks, extra_key)
        for block in reversed(blocks):
            self.pool.release(block)
        return blocks


def test_the_longest_known_prefix_of_whole_blocks_is_found() -> None:
    prefixes = Prefixes()
    assert prefixes.cache.match(range(12)) == []
    blocks = prefixes.remember(range(12))
    assert prefixes.cache.match(range(12)) == prefixes.cache.match(range(15)) == blocks
    assert prefixes.cache.match(range(11)) == blocks[:2]
    assert prefixes.cache.match([*range(8), 99, *range(9, 12)]) == blocks[:2]
    assert prefixes.cache.match(range(4, 12)) == [], "a block is known by what precedes it, too"
    assert (prefixes.cache.num_blocks, prefixes.cache.num_evictable, prefixes.pool.num_free) == (3, 3, 5)


def test_diverging_conversations_share_their_prefix() -> None:
    prefixes = Prefixes()
    first = prefixes.remember([*range(8), 1, 1, 1, 1])
    second = prefixes.remember([*range(8), 2, 2, 2, 2])
    assert prefixes.cache.match([*range(8), 1, 1, 1, 1])[2] == first[2]
    assert prefixes.cache.match([*range(8), 2, 2, 2, 2])[2] == second[2]
    assert prefixes.cache.num_blocks == 4


def test_blocks_are_shared_within_one_extra_key_only() -> None:
    prefixes = Prefixes()
    plain, pictured = prefixes.remember(range(4)), prefixes.remember(range(4), b"picture 1")
    assert prefixes.cache.match(range(4)) == plain
    assert prefixes.cache.match(range(4), b"picture 1") == pictured
    assert prefixes.cache.match(range(4), b"picture 2") == []


def test_the_salt_is_part_of_every_key() -> None:
    keys = [
        set(prefixes.cache._by_key)
        for prefixes in (Prefixes(salt=b"a"), Prefixes(salt=b"b"))
        if prefixes.remember(range(8))
    ]
    assert keys[0].isdisjoint(keys[1])


def test_a_hash_collision_is_not_a_match() -> None:
    prefixes = Prefixes(hash=lambda parent, content: b"same")
    (block,) = prefixes.remember([1, 1, 1, 1])
    assert prefixes.cache.match([1, 1, 1, 1, 1, 1, 1, 1]) == [block]
    assert prefixes.cache.match([2, 2, 2, 2]) == prefixes.cache.match([1, 1, 1, 1], b"key") == []
    (newer,) = prefixes.remember([2, 2, 2, 2])
    assert prefixes.cache.match([2, 2, 2, 2]) == [newer]
    assert prefixes.cache.match([1, 1, 1, 1]) == []
    assert prefixes.pool.num_free == 7


def test_eviction_is_lru_and_takes_ends_of_prefixes_first() -> None:
    prefixes = Prefixes()
    old, new = prefixes.remember(range(8)), prefixes.remember(range(100, 108))
    for block in old:
        prefixes.pool.acquire(block)
    for block in reversed(old):
        prefixes.pool.release(block)
    prefixes.cache.evict(1)
    assert prefixes.cache.match(range(100, 108)) == new[:1]
    prefixes.cache.evict(2)
    assert prefixes.cache.match(range(100, 108)) == []
    assert prefixes.cache.match(range(8)) == old[:1]
    prefixes.cache.evict(99)
    assert (prefixes.cache.num_blocks, prefixes.pool.num_free) == (0, 8)


def test_blocks_in_use_are_not_evicted() -> None:
    prefixes = Prefixes()
    blocks = prefixes.remember(range(8))
    prefixes.pool.acquire(blocks[0])
    prefixes.cache.evict(2)
    assert prefixes.cache.match(range(8)) == blocks[:1]
    assert prefixes.cache.num_evictable == 0


def test_of_two_copies_the_one_used_last_is_kept() -> None:
    prefixes = Prefixes()
    prefixes.remember(range(8))
    again = prefixes.remember(range(8))
    assert prefixes.cache.match(range(8)) == again
    assert prefixes.pool.num_free == 6
    prefixes.pool.acquire(again[0])
    third = prefixes.remember(range(8))
    assert prefixes.cache.match(range(8)) == [again[0], third[1]]


def test_blocks_behind_an_evicted_block_are_replaced() -> None:
    prefixes = Prefixes()
    first, second = prefixes.remember(range(8))
    prefixes.pool.acquire(second)
    prefixes.cache.evict(1)
    assert prefixes.pool.ref_count(first) == 0
    assert prefixes.cache.match(range(8)) == []
    again = prefixes.remember(range(8))
    assert prefixes.cache.match(range(8)) == again
    assert prefixes.pool.ref_count(second) == 1


class Diary:
    """Tracks the cached blocks from the notifications of a listener."""

    def __init__(self) -> None:
        self.key_of: dict[int, bytes] = {}

    def block_cached(self, key: bytes, block: int) -> None:
        assert block not in self.key_of
        self.key_of[block] = key

    def block_evicted(self, block: int) -> None:
        del self.key_of[block]


def test_a_listener_is_notified_of_cached_and_evicted_blocks() -> None:
    prefixes = Prefixes()
    prefixes.cache.listeners.append(diary := Diary())
    first = prefixes.remember(range(12))
    keys = prefixes.cache.keys([*range(12), 99])
    assert [diary.key_of[block] for block in first] == keys
    assert len(set(keys)) == 3
    again = prefixes.remember(range(12))
    assert [diary.key_of[block] for block in again] == keys, "of two blocks with the same content, the newer idle one"
    assert set(diary.key_of) == set(again)
    prefixes.cache.evict(2)
    assert set(diary.key_of) == {again[0]}


def test_keys_are_those_of_whole_blocks_and_of_what_precedes_them() -> None:
    cache = Prefixes().cache
    keys = cache.keys(range(12))
    assert cache.keys(range(11)) == keys[:2]
    assert cache.keys(range(3)) == []
    assert cache.keys([5, *range(1, 12)])[1:] != keys[1:]
    assert not set(cache.keys(range(12), b"picture")) & set(keys)
    assert not set(Prefixes(salt=b"other model").cache.keys(range(12))) & set(keys)
