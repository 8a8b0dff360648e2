"""What may be done to sequences in a KV cache, as rules of a state machine with a model of what they hold.

Whatever is done in any order, every sequence reads back its tokens at their positions, and every block is counted. With
several groups of layers it reads back, in each group, those that a query may still see.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule
from tests.core.cache.memories import Memory

from aethermind.cache import BlockPool, CacheOutcome, CacheState, HashedPrefixCache, HostSwapStore, KVCache, groups
from aethermind.cache.groups import FREED
from aethermind.cache.serialization import read_blocks

__all__ = ["FAR", "SequenceRules"]

FAR = 2**31 + 5
PLACES = st.integers(0, 5).map(lambda number: ("block", number)) | st.tuples(
    st.just("position"), st.integers(-1, 20) | st.integers(FAR - 3, FAR + 3)
)
"""The first token of one of a sequence's blocks, because blocks can be dropped; or any position, for what cannot."""


Place = tuple[str, int]


class Held(NamedTuple):
    """A token, where it stands, and the position for which its key is rotated."""

    token: int
    position: int
    turned_for: int


class SequenceRules(RuleBasedStateMachine):
    """`held[name]` is what a sequence was given. Tokens are few, so that prefixes repeat."""

    sequences: Bundle[str] = Bundle("sequences")

    cache: KVCache
    memory: Memory
    prefixes: HashedPrefixCache
    store: HostSwapStore

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, list[Held]] = {}
        self.pinned: set[str] = set()
        self.saved: list[tuple[bytes, list[Held]]] = []
        self.num_names = 0

    @property
    def pool(self) -> BlockPool:
        return self.cache.pool

    @property
    def block_size(self) -> int:
        return self.cache.spec.block_size

    def open_names(self) -> set[str]:
        """Every sequence of the cache, those of others too."""
        return set(self.held)

    def tokens(self, name: str) -> list[int]:
        return [one.token for one in self.held[name]]

    def positions(self, name: str) -> list[int]:
        return [one.position for one in self.held[name]]

    def new_name(self) -> str:
        self.num_names += 1
        return f"seq-{self.num_names}"

    def num_blocks_of(self, name: str) -> int:
        """The blocks of a sequence that hold tokens, even while they are in the swap store."""
        num_blocks = -(-self.cache.num_tokens(name) // self.block_size)
        return self.cache._sequences[name].num_held(num_blocks)

    def num_blocks_after_freeing(self, name: str) -> int:
        """The blocks that a sequence swaps out: those of tokens, but not those that a window hides."""
        num_tokens = self.cache.num_tokens(name)
        num_blocks = -(-num_tokens // self.block_size)
        num_held = num_blocks
        for group, window in enumerate(self.cache.spec.windows, start=1):
            first_seen = self.first_seen(num_tokens - groups._SLACK, window)
            num_held += num_blocks - max(first_seen // self.block_size, self.table(name, group).count(FREED))
        return num_held

    @staticmethod
    def first_seen(num_tokens: int, window: int) -> int:
        """The first key that kernels may read for the token at index `num_tokens`."""
        return max(num_tokens - window + 1, 0) // groups._KEY_BLOCK * groups._KEY_BLOCK

    def table(self, name: str, group: int = 0) -> list[int]:
        return list(self.cache.block_table(name, group))

    def held_blocks(self, name: str) -> list[int]:
        tables = [self.table(name, group) for group in range(self.cache.num_groups)]
        return [block for table in tables for block in table if block != FREED]

    def may_truncate(self, name: str, num_tokens: int) -> bool:
        """Whether the blocks are there that the token at index `num_tokens` will see, if there is one before it."""
        return num_tokens == 0 or all(
            FREED not in self.table(name, group)[self.first_seen(num_tokens, window) // self.block_size :]
            for group, window in enumerate(self.cache.spec.windows, start=1)
        )

    def position(self, name: str, place: Place) -> int:
        if place[0] == "position":
            return place[1]
        index = place[1] * self.block_size
        return self.held[name][index].position if index < len(self.held[name]) else 0

    # -- the life of a sequence

    @rule(target=sequences, prompt=st.lists(st.integers(0, 1), max_size=14))
    def open(self, prompt: list[int]) -> str:
        name = self.new_name()
        num_known = self.cache.query(prompt)
        opened = self.cache.open(name, prompt)
        assert (opened.outcome, opened.num_cached_tokens) == (CacheOutcome.OK, num_known)
        assert num_known < max(len(prompt), 1)
        self.held[name] = [Held(token, index, index) for index, token in enumerate(prompt[:num_known])]
        self.write(name, prompt[num_known:], len(prompt))
        return name

    @rule(name=sequences, new_tokens=st.lists(st.integers(0, 1), max_size=6), num_committed=st.integers(0, 9))
    def write(self, name: str, new_tokens: list[int], num_committed: int) -> None:
        """Reserve for some tokens, compute them, commit as many as a step kept."""
        cache, memory = self.cache, self.memory
        if cache.state(name) is not CacheState.ACTIVE:
            assert cache.reserve(name, 1).outcome is CacheOutcome.ILLEGAL_STATE
            return
        before, states, num_known = list(cache.block_table(name)), self.states(), self.prefixes.num_blocks
        held = self.held_blocks(name)
        result = cache.reserve(name, len(new_tokens))
        self.poison_freed(held)
        tokens, positions = self.tokens(name), self.positions(name)
        if result.outcome is not CacheOutcome.OK:
            assert list(cache.block_table(name)) == before
            assert (self.states(), self.prefixes.num_blocks) == (states, num_known)
            is_too_long = len(tokens) + len(new_tokens) > self.cache.max_model_len
            assert result.outcome is (CacheOutcome.TOO_LONG if is_too_long else CacheOutcome.NO_FREE_BLOCKS)
            return
        memory.prepare(result.copies, result.shifts)
        if new_tokens and cache.num_groups == 1:  # a step reads all that the sequence holds
            slots = [cache.slot(name, index) for index in range(len(tokens))]
            assert [memory.turned_for[slot] for slot in slots] == positions, (
                "a key is not with_keys_shifted for its position"
            )
        num_committed = min(num_committed, len(new_tokens))
        for count, token in enumerate(new_tokens):
            index = len(tokens) + count
            position = cache.position(name, index)
            assert position == (positions[-1] + 1 + count if positions else count)
            for group in range(cache.num_groups):
                block = cache.block_table(name, group)[index // self.block_size]
                assert self.pool.ref_count(block) == 1, "a shared block is about to be written"
                slot = cache.slot(name, index, group)
                memory.tokens[slot], memory.turned_for[slot] = token + 10 * group, position
        assert cache.commit(name, num_committed) is CacheOutcome.OK
        first = positions[-1] + 1 if positions else 0
        if new_tokens:
            self.held[name] = [one._replace(turned_for=one.position) for one in self.held[name]]
        added = enumerate(new_tokens[:num_committed], start=first)
        self.held[name] += [Held(token, position, position) for position, token in added]

    @rule(token=st.integers(0, 1))
    def decode(self, token: int) -> None:
        """A step of all sequences that run, one token each."""
        for name in self.held:
            if self.cache.state(name) is CacheState.ACTIVE:
                self.write(name, [token], 1)

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: str) -> Any:
        name = self.new_name()
        if self.cache.state(parent) is CacheState.SWAPPED:
            assert self.cache.fork(parent, name) is CacheOutcome.ILLEGAL_STATE
            return multiple()
        assert self.cache.fork(parent, name) is CacheOutcome.OK
        self.held[name] = list(self.held[parent])
        return name

    @rule(name=sequences)
    def publish(self, name: str) -> None:
        """Others may reuse what a sequence holds, which goes on."""
        state, blocks = self.cache.state(name), list(self.cache.block_table(name))
        outcome = self.cache.publish(name, self.tokens(name))
        assert outcome is (CacheOutcome.ILLEGAL_STATE if state is CacheState.SWAPPED else CacheOutcome.OK)
        assert (self.cache.state(name), list(self.cache.block_table(name))) == (state, blocks)

    @rule(name=consumes(sequences), is_published=st.booleans())
    def release(self, name: str, is_published: bool) -> None:
        if name in self.pinned:
            assert self.cache.release(name) is CacheOutcome.ILLEGAL_STATE
            self.cache.pin(name, False)
            self.pinned.remove(name)
        blocks = self.held_blocks(name)
        assert self.cache.release(name, self.tokens(name) if is_published else ()) is CacheOutcome.OK
        self.poison_freed(blocks)
        del self.held[name]

    # -- parts of a sequence

    @rule(
        name=sequences,
        operation=st.sampled_from(["truncate", "remove", "keep"]),
        start=PLACES,
        end=st.none() | PLACES,
    )
    def cut(self, name: str, operation: str, start: Place, end: Place | None) -> None:
        first, last = self.position(name, start), None if end is None else self.position(name, end)
        if operation == "truncate":
            num_tokens = len([position for position in self.positions(name) if position < first])
            self.change(name, self.cache.truncate(name, num_tokens), slice(num_tokens, None))
        else:
            (self.remove if operation == "remove" else self.keep)(name, first, last)

    def remove(self, name: str, start: int, end: int | None) -> None:
        inside = [start <= one and (end is None or one < end) for one in self.positions(name)]
        first = inside.index(True) if True in inside else len(inside)
        self.change(name, self.cache.remove(name, start, end), slice(first, first + sum(inside)))

    def keep(self, name: str, start: int, end: int | None) -> None:
        inside = [start <= one and (end is None or one < end) for one in self.positions(name)]
        first = inside.index(True) if True in inside else len(inside)
        last = first + sum(inside)
        outcome = self.cache.keep(name, start, end)
        if self.cache.num_groups > 1 and self.cache.state(name) is CacheState.ACTIVE and first < last and first:
            assert outcome is CacheOutcome.WINDOWS_FREED
            return
        if self.cache.num_groups > 1:  # it keeps the first tokens, or none
            self.change(name, outcome, slice(last if first < last else 0, None))
            return
        if outcome is CacheOutcome.PARTIAL_BLOCK:
            assert first % self.block_size
            assert first < last
            return
        self.change(name, outcome, slice(last, None))
        if outcome is CacheOutcome.OK:
            self.change(name, outcome, slice(0, first))

    def change(self, name: str, outcome: CacheOutcome, dropped: slice) -> None:
        held = self.held[name]
        first, last, _ = dropped.indices(len(held))
        if self.cache.state(name) is not CacheState.ACTIVE:
            assert outcome is CacheOutcome.ILLEGAL_STATE
        elif first < last < len(held) and self.cache.num_groups > 1:
            assert outcome is CacheOutcome.WINDOWS_FREED
        elif first < last < len(held) and (first % self.block_size or last % self.block_size):
            assert outcome is CacheOutcome.PARTIAL_BLOCK
        elif last == len(held) and not self.may_truncate(name, first):
            assert outcome is CacheOutcome.BEHIND_WINDOW
        else:
            assert outcome is CacheOutcome.OK
            del held[dropped]

    @rule(name=sequences, place=PLACES, delta=st.integers(-20, 20) | st.sampled_from([FAR, -FAR]))
    def shift(self, name: str, place: Place, delta: int) -> None:
        start = self.position(name, place)
        held, before = self.held[name], self.positions(name)
        outcome = self.cache.shift(name, start, delta)
        moved = [index for index, position in enumerate(before) if position >= start]
        if self.cache.state(name) is not CacheState.ACTIVE:
            assert outcome is CacheOutcome.ILLEGAL_STATE
        elif not moved or delta == 0:
            assert outcome is CacheOutcome.OK
        elif self.cache.num_groups > 1:
            assert outcome is CacheOutcome.WINDOWS_FREED
        elif moved[0] % self.block_size:
            assert outcome is CacheOutcome.PARTIAL_BLOCK
        elif before[moved[0]] + delta < (before[moved[0] - 1] + 1 if moved[0] else 0):
            assert outcome is CacheOutcome.OUT_OF_ORDER
        else:
            assert outcome is CacheOutcome.OK
            held[moved[0] :] = [one._replace(position=one.position + delta) for one in held[moved[0] :]]

    # -- resting, pinning, swapping

    @rule(name=sequences, operation=st.sampled_from(["park or resume", "pin", "unpin", "swap"]))
    def rest(self, name: str, operation: str) -> None:
        if operation == "park or resume":
            self.park_or_resume(name)
        elif operation == "swap":
            self.swap(name)
        else:
            self.pin(name, operation == "pin")

    def park_or_resume(self, name: str) -> None:
        before = self.cache.state(name)
        if before is CacheState.ACTIVE:
            assert self.cache.park(name) is CacheOutcome.OK
            assert name not in self.pinned or self.cache.state(name) is CacheState.STANDBY
        else:
            assert self.cache.park(name) is CacheOutcome.ILLEGAL_STATE
            outcome = self.cache.resume(name)
            assert outcome is CacheOutcome.OK or (before, outcome) == (CacheState.SWAPPED, CacheOutcome.NO_FREE_BLOCKS)
            assert self.cache.state(name) is (CacheState.ACTIVE if outcome is CacheOutcome.OK else before)

    def pin(self, name: str, is_pinned: bool) -> None:
        is_swapped = self.cache.state(name) is CacheState.SWAPPED
        assert self.cache.pin(name, is_pinned) is (CacheOutcome.ILLEGAL_STATE if is_swapped else CacheOutcome.OK)
        if not is_swapped:
            (self.pinned.add if is_pinned else self.pinned.discard)(name)

    def swap(self, name: str) -> None:
        """Swap out or in; if too few blocks are free, nothing changes."""
        num_blocks, before = self.num_blocks_of(name), self.cache.state(name)
        table, blocks, num_used = self.table(name), self.held_blocks(name), self.store.num_used_blocks
        if before is CacheState.SWAPPED:
            outcome = self.cache.swap_in(name)
            assert outcome is CacheOutcome.OK or (outcome, num_blocks > self.cache.num_available_blocks) == (
                CacheOutcome.NO_FREE_BLOCKS,
                True,
            )
            assert self.cache.state(name) is (CacheState.ACTIVE if outcome is CacheOutcome.OK else before)
            return
        num_blocks = self.num_blocks_after_freeing(name)
        has_room = num_blocks <= self.store.num_blocks - num_used and not getattr(self.store, "is_refusing", False)
        outcome = self.cache.swap_out(name)
        if name in self.pinned:
            assert outcome is CacheOutcome.ILLEGAL_STATE
            return
        assert outcome is (CacheOutcome.OK if has_room else CacheOutcome.NO_FREE_BLOCKS)
        assert self.cache.state(name) is (CacheState.SWAPPED if has_room else before)
        if not has_room:
            assert self.table(name) == table
        self.poison_freed(blocks)

    def poison_freed(self, blocks: list[int]) -> None:
        """Overwrite all slots that no sequence or prefix cache holds, as may happen at any time."""
        for block in blocks:
            if self.pool.ref_count(block) == 0:
                self.memory.poison(block)

    # -- as bytes

    @rule(name=sequences)
    def save(self, name: str) -> None:
        result = self.cache.save(name, self.memory, self.tokens(name))
        if self.cache.state(name) is CacheState.SWAPPED:
            assert result.outcome is CacheOutcome.ILLEGAL_STATE
        else:
            self.saved.append((result.data, list(self.held[name])))

    @rule(target=sequences, choice=st.integers(0, 9))
    def load(self, choice: int) -> Any:
        if not self.saved:
            return multiple()
        name = self.new_name()
        data, held = self.saved[choice % len(self.saved)]
        tokens = [one.token for one in held]
        loaded = self.cache.load(name, data, self.memory, tokens)
        if loaded.outcome is not CacheOutcome.OK:
            assert loaded.outcome is CacheOutcome.NO_FREE_BLOCKS
            assert read_blocks(data).num_blocks > self.cache.num_available_blocks
            return multiple()
        assert loaded.num_cached_tokens == len(tokens)
        self.held[name] = list(held)
        return name

    # -- what always holds

    def states(self) -> dict[str, CacheState]:
        return {name: self.cache.state(name) for name in self.held}

    @invariant()
    def every_sequence_reads_back_its_tokens_at_their_positions(self) -> None:
        for name, held in self.held.items():
            assert self.cache.num_tokens(name) == len(held)
            assert [self.cache.position(name, index) for index in range(len(held))] == self.positions(name)
            if self.cache.state(name) is CacheState.SWAPPED:
                continue
            for group, window in enumerate((0, *self.cache.spec.windows)):
                num_freed = self.table(name, group).count(FREED) * self.block_size
                assert num_freed == 0 or num_freed <= self.first_seen(len(held), window)
                slots = [self.cache.slot(name, index, group) for index in range(num_freed, len(held))]
                found = [(self.memory.tokens[slot], self.memory.turned_for[slot]) for slot in slots]
                assert found == [(one.token + 10 * group, one.turned_for) for one in held[num_freed:]]

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        if not hasattr(self, "cache"):
            return
        tables = Counter(block for name in self.open_names() for block in self.held_blocks(name))
        assert tables == Counter(block for name in self.open_names() for block in self.cache.held_blocks(name))
        assert [self.pool.num_users(block) for block in range(self.pool.num_blocks)] == [
            tables[block] for block in range(self.pool.num_blocks)
        ]
        counts = self.cache.count_states()
        swapped = [name for name in self.open_names() if self.cache.state(name) is CacheState.SWAPPED]
        assert counts.pop(CacheState.SWAPPED) == sum(map(self.num_blocks_of, swapped)) == self.store.num_used_blocks
        assert sum(counts.values()) == self.pool.num_blocks
        assert counts[CacheState.FREE] == self.pool.num_free
        assert counts[CacheState.WARM] == self.prefixes.num_evictable
        assert 0.0 <= self.cache.memory_pressure <= 1.0
        assert not self.pinned.intersection(swapped)

    @invariant()
    def blocks_say_whose_they_are(self) -> None:
        if not hasattr(self, "cache"):
            return
        for number, block in enumerate(self.cache.blocks()):
            names = {name for name in self.open_names() if number in self.held_blocks(name)}
            assert block.holders.keys() == names
            assert block.is_protected == bool(names & self.pinned)
            for name, position in block.holders.items():
                table = next(
                    table for group in range(self.cache.num_groups) if number in (table := self.table(name, group))
                )
                index = table.index(number) * self.block_size
                assert position == self.cache.position(name, index)

    def release_all(self) -> None:
        for name in self.held:
            self.cache.pin(name, False)
            assert self.cache.release(name) is CacheOutcome.OK
        self.held.clear()
        self.pinned.clear()

    def check_whole(self) -> None:
        """After the last release the pool is whole."""
        self.prefixes.evict(self.pool.num_blocks)
        assert self.cache.num_free_blocks == self.pool.num_blocks
        assert self.cache.num_sequences == self.store.num_used_blocks == 0
        assert self.cache.memory_pressure == 0.0
