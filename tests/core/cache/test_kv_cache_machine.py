"""KVCache against a model of memory: whatever is done in any order, every sequence reads back its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from aethermind.cache import CacheState, HostSwapStore, KVCache, KVCacheSpec, Outcome

MAX_MODEL_LEN = 14


class ListMover:
    """Moves blocks between two lists of tokens."""

    def __init__(self, memory: list[int], host: list[int], block_size: int) -> None:
        self.memory, self.host, self.block_size = memory, host, block_size

    def move_out(self, blocks: Sequence[int], host_blocks: Sequence[int]) -> None:
        self.copy(self.memory, blocks, self.host, host_blocks)

    def move_in(self, host_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        self.copy(self.host, host_blocks, self.memory, blocks)

    def copy(self, source: list[int], blocks: Sequence[int], destination: list[int], others: Sequence[int]) -> None:
        size = self.block_size
        for block, other in zip(blocks, others, strict=True):
            destination[other * size : (other + 1) * size] = source[block * size : (block + 1) * size]


class KVCacheMachine(RuleBasedStateMachine):
    """`memory[slot]` is the token last written there, -1 once it was swapped out; `expected[name]` what a sequence was
    given.
    """

    sequences: Bundle[str] = Bundle("sequences")

    @initialize(
        block_size=st.integers(1, 5),
        num_blocks=st.integers(1, 9),
        num_host_blocks=st.integers(1, 9),
        is_static=st.booleans(),
    )
    def start(self, block_size: int, num_blocks: int, num_host_blocks: int, is_static: bool) -> None:
        spec = KVCacheSpec(1, 1, 8, "float32", block_size)
        self.block_size = MAX_MODEL_LEN if is_static else block_size
        self.memory = [-1] * (num_blocks * self.block_size)
        mover = ListMover(self.memory, [-1] * (num_host_blocks * self.block_size), self.block_size)
        self.store = HostSwapStore(mover, num_host_blocks)
        layout: Any = "static" if is_static else "paged"
        self.cache = KVCache(spec, num_blocks, MAX_MODEL_LEN, layout, swap_store=self.store)
        assert self.cache.spec.block_size == self.block_size
        self.expected: dict[str, list[int]] = {}
        self.num_names = self.num_written = 0

    def new_name(self) -> str:
        self.num_names += 1
        return f"seq-{self.num_names}"

    @rule(target=sequences)
    def open(self) -> str:
        name = self.new_name()
        assert self.cache.open(name).outcome is Outcome.OK
        self.expected[name] = []
        return name

    @rule(name=sequences, num_reserved=st.integers(0, 9), num_committed=st.integers(0, 9))
    def write(self, name: str, num_reserved: int, num_committed: int) -> None:
        if self.cache.state(name) is not CacheState.ACTIVE:
            assert self.cache.reserve(name, 1).outcome is Outcome.ILLEGAL_STATE
            return
        before, num_free = list(self.cache.block_table(name)), self.cache.num_free_blocks
        result = self.cache.reserve(name, num_reserved)
        tokens = self.expected[name]
        if result.outcome is not Outcome.OK:
            assert self.cache.block_table(name) == before
            assert self.cache.num_free_blocks == num_free
            is_too_long = len(tokens) + num_reserved > MAX_MODEL_LEN
            assert result.outcome is (Outcome.TOO_LONG if is_too_long else Outcome.NO_ROOM)
            return
        for source, destination in result.copies:
            self.copy(source, destination)
        num_committed = min(num_committed, num_reserved)
        for position in range(len(tokens), len(tokens) + num_reserved):
            block = self.cache.block_table(name)[position // self.block_size]
            assert self.cache.pool.ref_count(block) == 1, "a shared block is about to be written"
            self.num_written += 1
            self.memory[self.cache.slot(name, position)] = self.num_written
            if position < len(self.expected[name]) + num_committed:
                tokens = [*tokens, self.num_written]
        assert self.cache.commit(name, num_committed) is Outcome.OK
        self.expected[name] = tokens

    def copy(self, source: int, destination: int) -> None:
        size = self.block_size
        content = self.memory[source * size : (source + 1) * size]
        self.memory[destination * size : (destination + 1) * size] = content

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: str) -> Any:
        name = self.new_name()
        if self.cache.state(parent) is CacheState.SWAPPED:
            assert self.cache.fork(parent, name) is Outcome.ILLEGAL_STATE
            return multiple()
        assert self.cache.fork(parent, name) is Outcome.OK
        self.expected[name] = list(self.expected[parent])
        return name

    @rule(name=sequences, fraction=st.floats(0, 1))
    def truncate(self, name: str, fraction: float) -> None:
        num_tokens = int(len(self.expected[name]) * fraction)
        if self.cache.state(name) is CacheState.ACTIVE:
            assert self.cache.truncate(name, num_tokens) is Outcome.OK
            del self.expected[name][num_tokens:]

    @rule(name=sequences)
    def park_or_resume(self, name: str) -> None:
        state = self.cache.state(name)
        expected = Outcome.ILLEGAL_STATE if state is CacheState.SWAPPED else Outcome.OK
        assert (self.cache.park if state is CacheState.ACTIVE else self.cache.resume)(name) is expected

    @rule(name=sequences)
    def swap(self, name: str) -> None:
        """Out or in; where there is no room, nothing changes."""
        num_blocks = -(-len(self.expected[name]) // self.block_size)
        before, blocks = self.cache.state(name), list(self.cache.block_table(name))
        if before is CacheState.SWAPPED:
            has_room, after = num_blocks <= self.cache.num_free_blocks, CacheState.ACTIVE
            outcome = self.cache.swap_in(name)
        else:
            has_room, after = num_blocks <= self.store.num_blocks - self.store.num_used_blocks, CacheState.SWAPPED
            outcome = self.cache.swap_out(name)
        assert outcome is (Outcome.OK if has_room else Outcome.NO_ROOM)
        assert self.cache.state(name) is (after if has_room else before)
        if not has_room:
            assert self.cache.block_table(name) == blocks
        for block in blocks:
            if self.cache.pool.ref_count(block) == 0:
                self.memory[block * self.block_size : (block + 1) * self.block_size] = [-1] * self.block_size

    @rule(name=consumes(sequences))
    def release(self, name: str) -> None:
        assert self.cache.release(name) is Outcome.OK
        del self.expected[name]

    @invariant()
    def every_sequence_reads_back_its_tokens(self) -> None:
        for name, tokens in self.expected.items():
            assert self.cache.num_tokens(name) == len(tokens)
            if self.cache.state(name) is CacheState.SWAPPED:
                continue
            assert [self.memory[self.cache.slot(name, position)] for position in range(len(tokens))] == tokens

    @invariant()
    def every_block_is_free_or_counted(self) -> None:
        owners = Counter(block for name in self.expected for block in self.cache.block_table(name))
        pool = self.cache.pool
        assert [pool.ref_count(block) for block in range(pool.num_blocks)] == [
            owners[block] for block in range(pool.num_blocks)
        ]
        assert pool.num_free == pool.num_blocks - len(owners)

    @invariant()
    def the_store_keeps_what_is_swapped_and_no_more(self) -> None:
        swapped = [len(self.expected[name]) for name in self.expected if self.cache.state(name) is CacheState.SWAPPED]
        if hasattr(self, "store"):
            assert self.store.num_used_blocks == sum(-(-num_tokens // self.block_size) for num_tokens in swapped)

    @invariant()
    def slots_collide_only_where_tokens_are_shared(self) -> None:
        owner: dict[int, tuple[int, int]] = {}
        for name, tokens in self.expected.items():
            if self.cache.state(name) is CacheState.SWAPPED:
                continue
            for position, token in enumerate(tokens):
                slot = self.cache.slot(name, position)
                assert owner.setdefault(slot, (position, token)) == (position, token)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for name in self.expected:
                assert self.cache.release(name) is Outcome.OK
            assert self.cache.num_free_blocks == self.cache.pool.num_blocks
            assert self.cache.num_sequences == 0
            assert self.store.num_used_blocks == 0


KVCacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestKVCacheMachine = KVCacheMachine.TestCase
