"""KVCache over HashedPrefixCache: with any reuse and eviction, every slot holds the expected token.

50 runs of 50 steps; `make nightly` makes 5,000 of 100.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from tests.scale import is_extended, scaled

from aethermind.cache import BlockPool, CacheOutcome, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.cache.prefix_cache import chain_hash

MAX_MODEL_LEN = 16
EXTRA_KEYS = (b"", b"an image")


def poor_hash(parent: bytes, content: bytes) -> bytes:
    """Two bits: nearly everything collides."""
    return bytes([chain_hash(parent, content)[0] % 4])


class PrefixCacheMachine(RuleBasedStateMachine):
    """`memory[slot]` is what was written there: a token and, as keys and values do, all that precedes it."""

    sequences: Bundle[str] = Bundle("sequences")
    prompts = st.lists(st.integers(0, 1), max_size=MAX_MODEL_LEN)

    @initialize(block_size=st.integers(1, 4), num_blocks=st.integers(1, 9), is_poor=st.booleans())
    def start(self, block_size: int, num_blocks: int, is_poor: bool) -> None:
        self.pool = BlockPool(num_blocks)
        self.is_poor, hash = is_poor, poor_hash if is_poor else chain_hash
        self.prefixes = HashedPrefixCache(self.pool, block_size, b"salt", hash=hash)
        spec = KVCacheSpec.uniform(1, 1, 8, "float32", block_size)
        self.cache = KVCache(spec, num_blocks, MAX_MODEL_LEN, prefix_cache=self.prefixes, pool=self.pool)
        self.block_size = block_size
        self.memory: list[object] = [None] * (num_blocks * block_size)
        self.tokens: dict[str, list[int]] = {}
        self.keys: dict[str, bytes] = {}
        self.num_names = 0
        self.idle: list[int] = []

    def new_name(self) -> str:
        self.num_names += 1
        return f"seq-{self.num_names}"

    @rule(target=sequences, prompt=prompts, extra_key=st.sampled_from(EXTRA_KEYS))
    def open(self, prompt: list[int], extra_key: bytes) -> str:
        name = self.new_name()
        num_known = self.cache.query(prompt, extra_key)
        opened = self.cache.open(name, prompt, extra_key)
        assert (opened.outcome, opened.num_cached_tokens) == (CacheOutcome.OK, num_known)
        assert num_known % self.block_size == 0
        assert num_known < max(len(prompt), 1)
        self.tokens[name], self.keys[name] = prompt[:num_known], extra_key
        self.write(name, prompt[num_known:])
        return name

    @rule(name=sequences, tokens=st.lists(st.integers(0, 1), max_size=6))
    def write(self, name: str, tokens: list[int]) -> None:
        num_available, num_known = self.cache.num_available_blocks, self.prefixes.num_blocks
        result = self.cache.reserve(name, len(tokens))
        if result.outcome is not CacheOutcome.OK:
            is_too_long = len(self.tokens[name]) + len(tokens) > MAX_MODEL_LEN
            assert result.outcome is (CacheOutcome.TOO_LONG if is_too_long else CacheOutcome.NO_FREE_BLOCKS)
            assert (self.cache.num_available_blocks, self.prefixes.num_blocks) == (num_available, num_known)
            return
        for source, destination in result.copies:
            size = self.block_size
            content = self.memory[source * size : (source + 1) * size]
            self.memory[destination * size : (destination + 1) * size] = content
        for token in tokens:
            position = len(self.tokens[name])
            block = self.cache.block_table(name)[position // self.block_size]
            assert self.pool.ref_count(block) == 1, "a shared block is about to be written"
            self.tokens[name].append(token)
            self.memory[self.cache.slot(name, position)] = (self.keys[name], *self.tokens[name])
        assert self.cache.commit(name, len(tokens)) is CacheOutcome.OK

    @rule(target=sequences, parent=sequences)
    def fork(self, parent: str) -> str:
        name = self.new_name()
        assert self.cache.fork(parent, name) is CacheOutcome.OK
        self.tokens[name], self.keys[name] = list(self.tokens[parent]), self.keys[parent]
        return name

    @rule(name=sequences, fraction=st.floats(0, 1))
    def truncate(self, name: str, fraction: float) -> None:
        num_tokens = int(len(self.tokens[name]) * fraction)
        assert self.cache.truncate(name, num_tokens) is CacheOutcome.OK
        del self.tokens[name][num_tokens:]

    @rule(name=sequences)
    def publish(self, name: str) -> None:
        assert self.cache.publish(name, self.tokens[name]) is CacheOutcome.OK
        if not self.is_poor:
            known = self.prefixes.match(self.tokens[name], self.keys[name])
            assert len(known) == len(self.tokens[name]) // self.block_size

    @rule(name=consumes(sequences), is_published=st.booleans())
    def release(self, name: str, is_published: bool) -> None:
        tokens, extra_key = self.tokens.pop(name), self.keys.pop(name)
        table = list(self.cache.block_table(name))
        assert self.cache.release(name, tokens if is_published else ()) is CacheOutcome.OK
        newly_idle = [block for block in self.pool._idle if block not in self.idle]
        assert newly_idle == [block for block in reversed(table) if block in newly_idle]
        if is_published and not self.is_poor:
            assert len(self.prefixes.match(tokens, extra_key)) == len(tokens) // self.block_size

    @rule(num_blocks=st.integers(0, 3))
    def evict(self, num_blocks: int) -> None:
        oldest = self.idle[:num_blocks]
        num_free = self.pool.num_free
        self.prefixes.evict(num_blocks)
        assert self.pool.num_free == num_free + len(oldest)
        assert [self.pool.ref_count(block) for block in oldest] == [0] * len(oldest)

    @invariant()
    def every_sequence_reads_back_its_tokens_and_their_past(self) -> None:
        for name, tokens in self.tokens.items():
            assert self.cache.num_tokens(name) == len(tokens)
            for position in range(len(tokens)):
                expected = (self.keys[name], *tokens[: position + 1])
                assert self.memory[self.cache.slot(name, position)] == expected

    @invariant()
    def every_block_is_free_or_in_use_or_kept(self) -> None:
        users = Counter(block for name in self.tokens for block in self.cache.block_table(name))
        kept = set(self.prefixes._by_block)
        assert len(kept) == self.prefixes.num_blocks
        for block in range(self.pool.num_blocks):
            assert self.pool.ref_count(block) == users[block] + (block in kept)
        assert self.pool.num_free == self.pool.num_blocks - len(users.keys() | kept)
        assert self.prefixes.num_evictable == len(kept - users.keys())
        assert self.cache.num_available_blocks == self.pool.num_blocks - len(users)

    @invariant()
    def who_becomes_idle_is_given_up_last(self) -> None:
        stayed = [block for block in self.idle if self.pool.is_idle(block)]
        self.idle = list(self.pool._idle)
        assert self.idle[: len(stayed)] == stayed

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for name, tokens in self.tokens.items():
                assert self.cache.release(name, tokens) is CacheOutcome.OK
            assert self.cache.num_available_blocks == self.pool.num_blocks
            self.prefixes.evict(self.pool.num_blocks)
            assert (self.pool.num_free, self.prefixes.num_blocks) == (self.pool.num_blocks, 0)


PrefixCacheMachine.TestCase.settings = settings(
    max_examples=scaled(5000), stateful_step_count=100 if is_extended() else 50, deadline=None
)
TestPrefixCacheMachine = PrefixCacheMachine.TestCase
