"""KVCache: slots, sharing, copy on write, reuse, swapping; each call by its outcome."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from aethermind.cache import BlockPool, CacheOutcome, CacheState, KVCache, KVCacheSpec, OpenResult, ReserveResult
from aethermind.errors import InvalidArgumentError


def spec(block_size: int = 4) -> KVCacheSpec:
    return KVCacheSpec.uniform(1, 1, 8, "float32", block_size)


def cache(num_blocks: int = 8, max_model_len: int = 32, block_size: int = 4) -> KVCache:
    return KVCache(spec(block_size), num_blocks, max_model_len)


def grow(kv: KVCache, seq_id: str, num_tokens: int) -> ReserveResult:
    result = kv.reserve(seq_id, num_tokens)
    assert result.outcome is CacheOutcome.OK
    assert kv.commit(seq_id, num_tokens) is CacheOutcome.OK
    return result


class TestSlots:
    def test_slots_follow_the_block_table(self) -> None:
        kv = cache()
        kv.open("other")
        grow(kv, "other", 5)
        kv.open("a")
        grow(kv, "a", 10)
        table = kv.block_table("a")
        assert len(table) == 3
        expected = [table[position // 4] * 4 + position % 4 for position in range(10)]
        assert [kv.slot("a", position) for position in range(10)] == expected

    @pytest.mark.parametrize(("start", "count"), [(0, 10), (3, 1), (3, 2), (4, 4), (7, 3), (2, 0)])
    def test_filling_an_array_equals_reading_slots_one_by_one(self, start: int, count: int) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 10)
        out = np.full(16, -1, np.int64)
        as_list = [-1] * 16
        kv.fill_slots("a", start, count, out, 2)
        kv.fill_slots("a", start, count, as_list, 2)
        slots = [kv.slot("a", position) for position in range(start, start + count)]
        assert out.tolist() == as_list == [-1, -1, *slots, *[-1] * (14 - count)]

    def test_unreserved_positions_have_no_slot(self) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 4)
        with pytest.raises(AssertionError, match="tokens 0 to 5 are not reserved"):
            kv.fill_slots("a", 0, 5, [0] * 5)
        with pytest.raises(IndexError):
            kv.slot("a", 4)

    def test_a_static_cache_is_one_block_for_each_sequence(self) -> None:
        kv = KVCache(spec(), 2, 10, "static")
        for seq_id in "ab":
            kv.open(seq_id)
            grow(kv, seq_id, 10)
        assert [kv.slot("b", position) for position in range(10)] == list(range(10, 20))
        assert kv.usage == 1.0
        kv.open("c")
        assert kv.reserve("c", 1).outcome is CacheOutcome.NO_FREE_BLOCKS


class TestOutcomes:
    def test_a_lack_of_free_blocks_is_returned_and_changes_nothing(self) -> None:
        kv = cache(num_blocks=2)
        kv.open("a")
        grow(kv, "a", 5)
        kv.open("b")
        assert kv.reserve("b", 1) == ReserveResult(CacheOutcome.NO_FREE_BLOCKS)
        assert list(kv.block_table("b")) == []
        assert kv.reserve("a", 3).outcome is CacheOutcome.OK
        assert kv.reserve("a", 4).outcome is CacheOutcome.NO_FREE_BLOCKS
        assert kv.num_tokens("a") == 5

    def test_the_context_is_a_limit_of_its_own(self) -> None:
        kv = cache(max_model_len=6)
        assert kv.capacity_tokens == 6
        assert kv.open("long", range(7)).outcome is CacheOutcome.TOO_LONG
        kv.open("a")
        grow(kv, "a", 6)
        assert kv.reserve("a", 1).outcome is CacheOutcome.TOO_LONG

    def test_capacity_is_the_lesser_of_pool_and_context(self) -> None:
        assert cache(num_blocks=2, max_model_len=100).capacity_tokens == 8

    def test_unknown_sequences(self) -> None:
        kv = cache()
        unknown = CacheOutcome.UNKNOWN_SEQUENCE
        assert kv.reserve("x", 1).outcome is unknown
        calls = (kv.release, kv.park, kv.resume, kv.pin, kv.swap_out, kv.swap_in)
        assert {call("x") for call in calls} == {unknown}
        assert {kv.commit("x", 1), kv.truncate("x", 0), kv.fork("x", "y")} == {unknown}
        assert kv.state("x") is CacheState.FREE

    def test_a_sequence_id_is_open_once(self) -> None:
        kv = cache()
        kv.open("a")
        kv.open("b")
        assert kv.open("a") == OpenResult(CacheOutcome.ALREADY_OPEN)
        assert kv.fork("a", "b") is CacheOutcome.ALREADY_OPEN

    def test_committing_what_was_not_reserved_is_a_programming_error(self) -> None:
        kv = cache()
        kv.open("a")
        with pytest.raises(AssertionError, match="1 tokens committed, 0 reserved"):
            kv.commit("a", 1)

    @pytest.mark.parametrize(("num_blocks", "max_model_len"), [(0, 4), (4, 0)])
    def test_a_cache_that_holds_nothing(self, num_blocks: int, max_model_len: int) -> None:
        with pytest.raises(InvalidArgumentError, match=f"{num_blocks} blocks for {max_model_len} tokens"):
            cache(num_blocks, max_model_len)

    def test_unknown_layout(self) -> None:
        with pytest.raises(InvalidArgumentError, match="'ring' but must be one of paged, cell, static"):
            KVCache(spec(), 1, 1, "ring")  # type: ignore[arg-type]


class TestSharing:
    def test_a_fork_shares_blocks_until_one_side_writes(self) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 6)
        kv.fork("a", "b")
        assert kv.block_table("a") == kv.block_table("b")
        assert kv.pool.num_used == 2
        source = kv.block_table("a")[1]
        result = grow(kv, "b", 1)
        assert result.copies == ((source, kv.block_table("b")[1]),)
        assert kv.block_table("a")[0] == kv.block_table("b")[0]
        assert kv.block_table("a")[1] == source != kv.block_table("b")[1]
        assert grow(kv, "a", 1).copies == ()

    def test_full_blocks_are_never_copied(self) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 8)
        kv.fork("a", "b")
        assert grow(kv, "a", 1).copies == grow(kv, "b", 1).copies == ()
        assert kv.pool.num_used == 4

    def test_a_copy_needs_a_free_block(self) -> None:
        kv = cache(num_blocks=2)
        kv.open("a")
        grow(kv, "a", 6)
        kv.fork("a", "b")
        assert kv.reserve("b", 1).outcome is CacheOutcome.NO_FREE_BLOCKS
        kv.release("a")
        assert kv.reserve("b", 1) == ReserveResult(CacheOutcome.OK)

    def test_forking_drops_what_was_only_reserved(self) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 2)
        kv.reserve("a", 20)
        kv.fork("a", "b")
        assert kv.block_table("a") == kv.block_table("b")
        assert kv.pool.num_used == 1
        assert len(kv.reserve("a", 1).copies) == 1

    def test_writing_after_truncating_into_a_shared_block_copies(self) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 8)
        kv.fork("a", "b")
        assert kv.truncate("b", 3) is CacheOutcome.OK
        assert kv.pool.num_used == 2
        assert len(grow(kv, "b", 1).copies) == 1
        assert kv.num_tokens("b") == 4

    def test_truncating_releases_whole_blocks(self) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 13)
        kv.truncate("a", 4)
        assert kv.pool.num_used == 1
        kv.truncate("a", 0)
        assert kv.pool.num_used == 0
        with pytest.raises(AssertionError, match="cannot truncate 0 tokens to 1"):
            kv.truncate("a", 1)


class DictPrefixCache:
    """A reference for the protocol: every published block by the tokens up to its end."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool, self.block_size = pool, block_size
        self.blocks: dict[tuple[int, ...], int] = {}

    @property
    def num_evictable(self) -> int:
        return sum(self.pool.ref_count(block) == 1 for block in self.blocks.values())

    def match(self, token_ids: Sequence[int], extra_key: bytes = b"") -> list[int]:
        tokens = tuple(token_ids)
        found = []
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            if tokens[:end] not in self.blocks:
                break
            found.append(self.blocks[tokens[:end]])
        return found

    def publish(self, token_ids: Sequence[int], blocks: Sequence[int], extra_key: bytes = b"") -> None:
        tokens = tuple(token_ids)
        for index, block in enumerate(blocks):
            key = tokens[: (index + 1) * self.block_size]
            if key not in self.blocks:
                self.pool.acquire(block)
                self.blocks[key] = block

    def evict(self, num_blocks: int) -> None:
        for key in sorted(self.blocks, key=len, reverse=True):
            if num_blocks and self.pool.ref_count(self.blocks[key]) == 1:
                self.pool.release(self.blocks.pop(key))
                num_blocks -= 1


def reusing_cache(num_blocks: int) -> KVCache:
    pool = BlockPool(num_blocks)
    return KVCache(spec(), num_blocks, 64, pool=pool, prefix_cache=DictPrefixCache(pool, 4))


class TestPrefixReuse:
    def test_open_reuses_what_query_reports(self) -> None:
        kv = reusing_cache(8)
        tokens = list(range(11))
        kv.open("a", tokens)
        grow(kv, "a", 11)
        table = list(kv.block_table("a"))
        kv.release("a", tokens)
        for again, num_reused in ((tokens, 8), (tokens[:8], 4), (tokens[:4], 0), ([9, *tokens], 0), ([], 0)):
            assert kv.query(again) == num_reused
            assert kv.open("b", again) == OpenResult(CacheOutcome.OK, num_reused)
            assert list(kv.block_table("b")) == table[: num_reused // 4]
            assert kv.num_tokens("b") == num_reused
            kv.release("b")

    def test_only_committed_tokens_are_published(self) -> None:
        kv = reusing_cache(8)
        kv.open("a")
        grow(kv, "a", 5)
        kv.reserve("a", 7)
        kv.release("a", range(12))
        assert kv.query(range(12)) == 4

    def test_cached_blocks_are_evicted_for_running_sequences(self) -> None:
        kv = reusing_cache(3)
        kv.open("a")
        grow(kv, "a", 12)
        kv.release("a", range(12))
        assert (kv.num_free_blocks, kv.num_available_blocks) == (0, 3)
        assert kv.open("b", range(12)).num_cached_tokens == 8
        assert kv.num_available_blocks == 1
        assert kv.reserve("b", 8).outcome is CacheOutcome.NO_FREE_BLOCKS
        assert kv.num_free_blocks == 0, "a refused reservation must not evict a block"
        assert kv.reserve("b", 4).outcome is CacheOutcome.OK
        assert kv.num_available_blocks == 0


class ListSwapStore:
    """Room for two sequences; remembers which blocks it was shown."""

    num_blocks = 8

    def __init__(self) -> None:
        self.saved: dict[str, list[int]] = {}
        self.loaded: dict[str, list[int]] = {}

    @property
    def num_used_blocks(self) -> int:
        return sum(map(len, self.saved.values()))

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        if len(self.saved) == 2:
            return False
        self.saved[seq_id] = list(blocks)
        return True

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        self.loaded[seq_id] = list(blocks)
        del self.saved[seq_id]

    def drop(self, seq_id: str) -> None:
        del self.saved[seq_id]


class TestRestingAndSwapping:
    def test_a_parked_sequence_keeps_its_tokens_and_cannot_be_written(self) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 2)
        kv.reserve("a", 10)
        assert kv.park("a") is CacheOutcome.OK
        assert (kv.state("a"), kv.pool.num_used) == (CacheState.STANDBY, 1)
        assert kv.reserve("a", 1).outcome is kv.park("a") is kv.truncate("a", 0) is CacheOutcome.ILLEGAL_STATE
        assert kv.fork("a", "b") is CacheOutcome.OK
        assert kv.resume("a") is CacheOutcome.OK
        assert len(grow(kv, "a", 1).copies) == 1

    def test_protected_is_neither_released_nor_swapped(self) -> None:
        kv = KVCache(spec(), 4, 16, swap_store=ListSwapStore())
        kv.open("a")
        kv.pin("a")
        assert kv.release("a") is kv.swap_out("a") is CacheOutcome.ILLEGAL_STATE
        assert kv.park("a") is kv.resume("a") is CacheOutcome.OK
        kv.pin("a", False)
        assert kv.release("a") is CacheOutcome.OK

    def test_swapping_frees_blocks_and_brings_tokens_back(self) -> None:
        store = ListSwapStore()
        kv = KVCache(spec(), 4, 16, swap_store=store)
        kv.open("a")
        grow(kv, "a", 6)
        kv.reserve("a", 8)
        table = list(kv.block_table("a"))
        assert kv.swap_out("a") is CacheOutcome.OK
        assert store.saved["a"] == table[:2]
        assert (kv.num_free_blocks, kv.state("a"), kv.num_tokens("a")) == (4, CacheState.SWAPPED, 6)
        illegal = {kv.fork("a", "b"), kv.pin("a"), kv.swap_out("a"), kv.park("a")}
        assert illegal == {CacheOutcome.ILLEGAL_STATE}
        assert kv.reserve("a", 1).outcome is CacheOutcome.ILLEGAL_STATE
        kv.open("greedy")
        grow(kv, "greedy", 12)
        assert kv.swap_in("a") is kv.resume("a") is CacheOutcome.NO_FREE_BLOCKS
        kv.release("greedy")
        assert kv.resume("a") is CacheOutcome.OK
        assert store.loaded["a"] == list(kv.block_table("a"))
        assert kv.swap_in("a") is CacheOutcome.ILLEGAL_STATE
        assert grow(kv, "a", 1).copies == ()

    def test_swapping_out_without_a_store_fails(self) -> None:
        kv = cache()
        kv.open("a")
        grow(kv, "a", 3)
        assert kv.swap_out("a") is CacheOutcome.NO_FREE_BLOCKS
        assert kv.state("a") is CacheState.ACTIVE

    def test_releasing_a_swapped_sequence_drops_it(self) -> None:
        store = ListSwapStore()
        kv = KVCache(spec(), 4, 16, swap_store=store)
        kv.open("a")
        grow(kv, "a", 3)
        kv.swap_out("a")
        assert kv.release("a") is CacheOutcome.OK
        assert store.saved == {}
        assert (kv.num_sequences, kv.num_free_blocks) == (0, 4)
