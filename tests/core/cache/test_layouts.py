"""One suite for the three layouts: each operation by its outcome, and what a sequence holds after it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.cache.memories import LAYOUTS, Memory

from aethermind.cache import BlockPool, CacheOutcome, CacheState, HashedPrefixCache, HostSwapStore, KVCache, KVCacheSpec
from aethermind.errors import CacheContentError

CONTEXT = 16
PROMPT = list(range(100, 112))


class Rig:
    """A cache with all its parts, and a memory that is moved as it says."""

    def __init__(self, layout: Any, num_sequences: int = 4) -> None:
        self.block_size = {"static": CONTEXT, "cell": 1, "paged": 4}[layout]
        num_blocks = num_sequences * CONTEXT // self.block_size
        pool = BlockPool(num_blocks)
        self.memory = Memory(num_blocks, self.block_size, num_blocks)
        self.store = HostSwapStore(self.memory, num_blocks)
        self.prefixes = HashedPrefixCache(pool, self.block_size)
        self.cache = KVCache(
            KVCacheSpec.uniform(1, 1, 8, "float32", 4),
            num_blocks,
            CONTEXT,
            layout,
            prefix_cache=self.prefixes,
            swap_store=self.store,
            pool=pool,
        )

    def append(self, seq_id: str, tokens: list[int]) -> None:
        result = self.cache.reserve(seq_id, len(tokens))
        assert result.outcome is CacheOutcome.OK
        self.memory.prepare(result.copies, result.shifts)
        first = self.cache.num_tokens(seq_id)
        for index, token in enumerate(tokens, start=first):
            slot = self.cache.slot(seq_id, index)
            self.memory.tokens[slot], self.memory.turned_for[slot] = token, self.cache.position(seq_id, index)
        assert self.cache.commit(seq_id, len(tokens)) is CacheOutcome.OK

    def start(self, seq_id: str, tokens: list[int]) -> int:
        opened = self.cache.open(seq_id, tokens)
        assert opened.outcome is CacheOutcome.OK
        self.append(seq_id, tokens[opened.num_cached_tokens :])
        return opened.num_cached_tokens

    def tokens(self, seq_id: str) -> list[int]:
        indices = range(self.cache.num_tokens(seq_id))
        return [self.memory.tokens[self.cache.slot(seq_id, index)] for index in indices]

    def positions(self, seq_id: str) -> list[int]:
        return [self.cache.position(seq_id, index) for index in range(self.cache.num_tokens(seq_id))]

    def turned_for(self, seq_id: str) -> list[int]:
        indices = range(self.cache.num_tokens(seq_id))
        return [self.memory.turned_for[self.cache.slot(seq_id, index)] for index in indices]


@pytest.fixture(params=LAYOUTS)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


def test_a_sequence_grows_in_steps_of_any_size(rig: Rig) -> None:
    rig.start("a", PROMPT[:5])
    rig.append("a", PROMPT[5:6])
    rig.append("a", PROMPT[6:])
    assert rig.tokens("a") == PROMPT
    assert rig.positions("a") == rig.turned_for("a") == list(range(12))
    assert rig.cache.reserve("a", 5).outcome is CacheOutcome.TOO_LONG


def test_a_full_cache_returns_an_outcome_and_is_unchanged(rig: Rig) -> None:
    for seq_id in "abcd":
        rig.start(seq_id, [*range(CONTEXT)])
    assert rig.cache.open("e").outcome is CacheOutcome.OK
    before = [list(rig.cache.block_table(seq_id)) for seq_id in "abcde"]
    assert rig.cache.reserve("e", 1).outcome is CacheOutcome.NO_FREE_BLOCKS
    assert [list(rig.cache.block_table(seq_id)) for seq_id in "abcde"] == before
    assert (rig.cache.usage, rig.cache.memory_pressure) == (1.0, 0.5)


def test_a_fork_is_independent_of_its_parent(rig: Rig) -> None:
    rig.start("a", PROMPT[:6])
    assert rig.cache.fork("a", "b") is CacheOutcome.OK
    assert rig.cache.block_table("a") == rig.cache.block_table("b")
    rig.append("b", [7, 8])
    rig.append("a", [9])
    assert (rig.tokens("a"), rig.tokens("b")) == ([*PROMPT[:6], 9], [*PROMPT[:6], 7, 8])


def test_sequences_do_not_read_each_others_slots(rig: Rig) -> None:
    for number in range(4):
        rig.start(f"{number}", [number] * 13)
    for number in range(4):
        assert rig.tokens(f"{number}") == [number] * 13


def test_released_blocks_are_reused_as_query_reports(rig: Rig) -> None:
    rig.start("a", PROMPT)
    assert rig.cache.release("a", PROMPT) is CacheOutcome.OK
    expected = {16: 0, 4: 8, 1: 11}[rig.block_size]
    assert rig.cache.query(PROMPT) == expected
    assert rig.start("b", PROMPT) == expected
    assert rig.tokens("b") == PROMPT


def test_published_blocks_of_an_open_sequence_are_reused(rig: Rig) -> None:
    rig.start("a", PROMPT)
    num_free = rig.cache.num_available_blocks
    assert rig.cache.publish("a", PROMPT) is CacheOutcome.OK
    assert rig.cache.num_available_blocks == num_free, "nothing more is held"
    expected = {16: 0, 4: 8, 1: 11}[rig.block_size]
    assert rig.start("b", PROMPT) == expected
    rig.append("a", [1, 2])
    rig.append("b", [3])
    assert rig.cache.truncate("a", 3) is CacheOutcome.OK
    rig.append("a", [4, 5])
    assert (rig.tokens("a"), rig.tokens("b")) == ([*PROMPT[:3], 4, 5], [*PROMPT, 3])
    assert rig.cache.swap_out("a") is CacheOutcome.OK
    assert rig.cache.publish("a", PROMPT) is CacheOutcome.ILLEGAL_STATE


def test_truncation_works_at_any_token(rig: Rig) -> None:
    rig.start("a", PROMPT)
    assert rig.cache.truncate("a", 11) is CacheOutcome.OK
    assert rig.cache.remove("a", 7) is CacheOutcome.OK
    rig.append("a", [1, 2])
    assert rig.tokens("a") == [*PROMPT[:7], 1, 2]
    assert rig.cache.remove("a") is CacheOutcome.OK
    assert (rig.cache.num_tokens("a"), rig.cache.usage) == (0, 0.0)


def test_a_range_of_whole_blocks_is_dropped_and_positions_are_kept(rig: Rig) -> None:
    rig.start("a", PROMPT)
    outcome = rig.cache.remove("a", 4, 8)
    if rig.block_size == CONTEXT:
        assert outcome is CacheOutcome.PARTIAL_BLOCK
        assert rig.tokens("a") == PROMPT
        return
    assert outcome is CacheOutcome.OK
    assert rig.cache.num_free_blocks == rig.cache.pool.num_blocks - 8 // rig.block_size
    rig.append("a", [1])
    assert rig.tokens("a") == [*PROMPT[:4], *PROMPT[8:], 1]
    assert rig.positions("a") == rig.turned_for("a") == [0, 1, 2, 3, 8, 9, 10, 11, 12]


def test_part_of_a_block_can_be_dropped_in_the_cell_layout_only(rig: Rig) -> None:
    rig.start("a", PROMPT)
    is_cells = rig.block_size == 1
    assert rig.cache.remove("a", 5, 7) is (CacheOutcome.OK if is_cells else CacheOutcome.PARTIAL_BLOCK)
    assert rig.tokens("a") == ([*PROMPT[:5], *PROMPT[7:]] if is_cells else PROMPT)


def test_keeping_a_range_keeps_its_positions(rig: Rig) -> None:
    rig.start("a", PROMPT)
    outcome = rig.cache.keep("a", 4, 10)
    if rig.block_size == CONTEXT:
        assert outcome is CacheOutcome.PARTIAL_BLOCK
        assert rig.cache.keep("a", 0, 10) is CacheOutcome.OK
        assert rig.tokens("a") == PROMPT[:10]
        return
    assert outcome is CacheOutcome.OK
    assert (rig.tokens("a"), rig.positions("a")) == (PROMPT[4:10], [4, 5, 6, 7, 8, 9])


def test_a_shift_closes_a_gap_and_keys_are_rotated_at_the_next_step(rig: Rig) -> None:
    """Context shift of a chat in a full context: the oldest turns are dropped, the system prompt is kept."""
    rig.start("a", PROMPT)
    if rig.block_size == CONTEXT:
        assert rig.cache.shift("a", 8, -4) is CacheOutcome.PARTIAL_BLOCK
        assert rig.cache.shift("a", 0, 4) is CacheOutcome.OK
        rig.append("a", [1])
        assert rig.positions("a") == rig.turned_for("a") == list(range(4, 17))
        return
    assert rig.cache.remove("a", 4, 8) is CacheOutcome.OK
    assert rig.cache.shift("a", 8, -5) is CacheOutcome.OUT_OF_ORDER
    assert rig.cache.shift("a", 8, -1) is rig.cache.shift("a", 7, -3) is CacheOutcome.OK
    assert rig.positions("a") == list(range(8))
    assert rig.turned_for("a") == [0, 1, 2, 3, 8, 9, 10, 11], "no key is touched before it is used"
    rig.append("a", [1])
    assert rig.tokens("a") == [*PROMPT[:4], *PROMPT[8:], 1]
    assert rig.positions("a") == rig.turned_for("a") == list(range(9))
    assert rig.cache.reserve("a", 7).shifts == ()


def test_shared_keys_are_copied_before_they_are_rotated(rig: Rig) -> None:
    rig.start("a", PROMPT[:8])
    rig.cache.fork("a", "b")
    assert rig.cache.shift("b", 0, 3) is CacheOutcome.OK
    rig.append("b", [1])
    rig.append("a", [2])
    assert rig.positions("a") == rig.turned_for("a") == list(range(9))
    assert rig.positions("b") == rig.turned_for("b") == list(range(3, 12))
    assert (rig.tokens("a")[:8], rig.tokens("b")[:8]) == (PROMPT[:8], PROMPT[:8])


def test_tokens_computed_after_a_change_are_not_published(rig: Rig) -> None:
    rig.start("a", PROMPT[:8])
    rig.cache.shift("a", 0, 1)
    rig.append("a", PROMPT[8:])
    rig.cache.release("a", PROMPT)
    assert rig.cache.query(PROMPT) == 0
    rig.start("b", PROMPT)
    rig.cache.shift("b", 0, 1)
    rig.cache.truncate("b", 0)
    rig.append("b", PROMPT)
    rig.cache.release("b", PROMPT)
    assert rig.cache.query(PROMPT) == {16: 0, 4: 8, 1: 11}[rig.block_size], "computed anew from the first token on"


def test_a_sequence_is_swapped_out_and_in(rig: Rig) -> None:
    rig.start("a", PROMPT[:9])
    rig.cache.shift("a", 0, 2)
    blocks = list(rig.cache.block_table("a"))
    assert rig.cache.swap_out("a") is CacheOutcome.OK
    assert rig.cache.state("a") is CacheState.SWAPPED
    for block in blocks:
        rig.memory.poison(block)
    assert rig.cache.swap_in("a") is CacheOutcome.OK
    rig.append("a", [1])
    assert rig.tokens("a") == [*PROMPT[:9], 1]
    assert rig.positions("a") == rig.turned_for("a") == list(range(2, 12))


def test_a_parked_sequence_is_swapped_and_a_pinned_one_is_not(rig: Rig) -> None:
    rig.start("a", PROMPT)
    assert rig.cache.park("a") is CacheOutcome.OK
    for call in (rig.cache.remove, rig.cache.park, rig.cache.swap_in):
        assert call("a") is CacheOutcome.ILLEGAL_STATE
    assert rig.cache.keep("a", 0) is rig.cache.shift("a", 0, 1) is CacheOutcome.ILLEGAL_STATE
    assert rig.cache.pin("a") is CacheOutcome.OK
    assert rig.cache.release("a") is rig.cache.swap_out("a") is CacheOutcome.ILLEGAL_STATE
    assert rig.cache.resume("a") is CacheOutcome.OK
    rig.append("a", [1])
    assert rig.cache.pin("a", False) is rig.cache.release("a") is CacheOutcome.OK


def test_saved_and_loaded_by_another_cache(rig: Rig) -> None:
    rig.start("a", PROMPT[:8])
    rig.cache.shift("a", 0, 5)
    saved = rig.cache.save("a", rig.memory, PROMPT)
    assert saved.outcome is CacheOutcome.OK
    layout: Any = {CONTEXT: "static", 1: "cell", 4: "paged"}[rig.block_size]
    other = Rig(layout)
    loaded = other.cache.load("b", saved.data, other.memory, PROMPT)
    assert (loaded.outcome, loaded.num_cached_tokens) == (CacheOutcome.OK, 8)
    other.append("b", [1])
    assert other.tokens("b") == [*PROMPT[:8], 1]
    assert other.positions("b") == other.turned_for("b") == list(range(5, 14))
    assert other.cache.load("b", saved.data, other.memory, PROMPT).outcome is CacheOutcome.ALREADY_OPEN
    with pytest.raises(CacheContentError, match="of 8 tokens are of others than the 12 given"):
        other.cache.load("c", saved.data, other.memory, [0, *PROMPT[1:]])
    assert other.cache.num_sequences == 1


def test_blocks_count_by_state(rig: Rig) -> None:
    rig.start("warm", PROMPT)
    rig.cache.release("warm", PROMPT)
    for seq_id in ("active", "standby", "swapped"):
        rig.start(seq_id, [*range(8)])
    rig.cache.park("standby")
    rig.cache.pin("standby")
    rig.cache.swap_out("swapped")
    num_blocks = -(-8 // rig.block_size)
    num_warm = len(PROMPT) // rig.block_size
    assert rig.cache.count_states() == {
        CacheState.ACTIVE: num_blocks,
        CacheState.STANDBY: num_blocks,
        CacheState.SWAPPED: num_blocks,
        CacheState.WARM: num_warm,
        CacheState.FREE: rig.cache.pool.num_blocks - 2 * num_blocks - num_warm,
    }
    blocks = rig.cache.blocks()
    assert {number for number, block in enumerate(blocks) if block.is_protected} == {*rig.cache.block_table("standby")}
    last = blocks[rig.cache.block_table("active")[-1]]
    assert (last.state, last.holders) == (CacheState.ACTIVE, {"active": (num_blocks - 1) * rig.block_size})


def test_unknown_sequences(rig: Rig) -> None:
    cache, unknown = rig.cache, CacheOutcome.UNKNOWN_SEQUENCE
    for call in (cache.remove, cache.release, cache.park, cache.resume, cache.pin, cache.swap_out, cache.swap_in):
        assert call("x") is unknown
    assert {cache.truncate("x", 0), cache.keep("x", 0), cache.shift("x", 0, 1), cache.fork("x", "y")} == {unknown}
    assert cache.save("x", rig.memory, ()).outcome is cache.reserve("x", 1).outcome is unknown


def test_positions_beyond_32_bits(rig: Rig) -> None:
    far = 2**31 + 5
    rig.start("a", PROMPT)
    assert rig.cache.shift("a", 0, far) is CacheOutcome.OK
    rig.append("a", [1])
    assert rig.positions("a") == rig.turned_for("a") == list(range(far, far + 13))
    assert rig.cache.remove("a", far + 12) is CacheOutcome.OK
    assert rig.tokens("a") == PROMPT
    assert rig.cache.shift("a", far, 2**63) is CacheOutcome.OUT_OF_ORDER
    assert rig.cache.shift("a", far, -far) is CacheOutcome.OK
    rig.append("a", [1])
    assert rig.turned_for("a") == list(range(13))
