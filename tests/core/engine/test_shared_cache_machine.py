"""Requests and other sequences over one cache: while a scheduler serves requests, some of which are cancelled,
conversations are parked, pinned, forked, shifted, cut, saved and swapped, and every slot is read back as it was
written.

50 runs of 50 steps; `make nightly` makes 5,000 of 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, multiple, rule
from tests.core.cache.memories import Memory
from tests.core.cache.sequence_rules import Held, SequenceRules
from tests.core.engine.loops import MAX_MODEL_LEN, Loop, Swaps
from tests.core.engine.scheduling.test_scheduler_machine import POLICIES, SchedulerMachine
from tests.scale import is_extended, scaled

from aethermind.cache import BlockPool, CacheOutcome, CacheState, HashedPrefixCache, HostSwapStore, KVCache, KVCacheSpec
from aethermind.engine.requests.request import RequestState
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.scheduling.scheduler import Scheduler


class MemoryLoop(Loop):
    """A loop whose steps compute: they do to a memory what was decided, and check all that they read."""

    def __init__(self, cache: KVCache, memory: Memory, policy: Any, **limits: int) -> None:
        super().__init__(1, policy=policy, **limits)
        self.cache = cache
        self.memory = memory
        self.scheduler = Scheduler(cache, policy, Swaps(4))

    def schedule(self) -> ScheduleDecision:
        memory, cache = self.memory, self.cache
        for block in range(cache.pool.num_blocks):
            if cache.pool.ref_count(block) == 0:
                memory.poison(block)
        decision = super().schedule()
        memory.prepare(decision.copies, decision.shifts)
        for request, num_tokens, _ in decision.scheduled:
            start = request.num_computed_tokens
            slots = [cache.slot(request.request_id, index) for index in range(start + num_tokens)]
            assert [memory.tokens[slot] for slot in slots[:start]] == request.all_token_ids[:start]
            positions = [cache.position(request.request_id, index) for index in range(len(slots))]
            assert [memory.turned_for[slot] for slot in slots[:start]] == positions[:start]
            for index in range(start, start + num_tokens):
                assert cache.pool.ref_count(slots[index] // cache.spec.block_size) == 1
                memory.tokens[slots[index]] = request.all_token_ids[index]
                memory.turned_for[slots[index]] = positions[index]
        return decision


class RefusingStore(HostSwapStore):
    """A swap store that can fail to take anything."""

    is_refusing = False

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        return not self.is_refusing and super().save(seq_id, blocks)


class SharedCacheMachine(SequenceRules, SchedulerMachine):
    """The rules of both."""

    store: RefusingStore

    @initialize(
        num_blocks=st.integers(4, 24),
        block_size=st.integers(1, 5),
        num_host_blocks=st.integers(1, 12),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 12),
        policy=st.sampled_from(POLICIES),
        threshold=st.sampled_from([0.0, 0.5, 1.0]),
        is_forcing=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int,
        max_num_seqs: int,
        spare_tokens: int,
        policy: Any,
        threshold: float,
        is_forcing: bool,
    ) -> None:
        self.memory = Memory(num_blocks, block_size, num_host_blocks)
        self.store = RefusingStore(self.memory, num_host_blocks)
        pool = BlockPool(num_blocks)
        self.prefixes = HashedPrefixCache(pool, block_size)
        spec = KVCacheSpec.uniform(1, 1, 8, "float32", block_size)
        options: Any = {"prefix_cache": self.prefixes, "swap_store": self.store, "swap_threshold": threshold}
        self.cache = KVCache(spec, num_blocks, MAX_MODEL_LEN, pool=pool, **options)
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_seqs + spare_tokens}
        self.loop = MemoryLoop(self.cache, self.memory, policy, **limits)
        self.loop.is_forcing = is_forcing
        self.policy = policy
        self.requests = []
        self.was_squeezed = True

    @rule(target=SequenceRules.sequences, choice=st.integers(0, 9))
    def follow(self, choice: int) -> Any:
        """A conversation goes on from what a running request holds."""
        if not self.loop.running:
            return multiple()
        request, name = self.loop.running[choice % len(self.loop.running)], self.new_name()
        assert self.cache.fork(request.request_id, name) is CacheOutcome.OK
        self.held[name] = [
            Held(token, self.cache.position(name, index), self.memory.turned_for[self.cache.slot(name, index)])
            for index, token in enumerate(request.all_token_ids[: request.num_computed_tokens])
        ]
        return name

    @rule(choice=st.integers(0, 9), delta=st.integers(1, 9))
    def move(self, choice: int, delta: int) -> None:
        """All that a running request holds stands somewhere else from now on."""
        if self.loop.running:
            request = self.loop.running[choice % len(self.loop.running)]
            assert self.cache.shift(request.request_id, 0, delta) is CacheOutcome.OK

    @rule(is_refusing=st.booleans())
    def fail(self, is_refusing: bool) -> None:
        """The swap store takes nothing any more, or does so again."""
        self.store.is_refusing = is_refusing

    def open_names(self) -> set[str]:
        requests = {one.request_id for one in self.requests if self.cache.state(one.request_id) is not CacheState.FREE}
        has_session = self.cache.state("session") is not CacheState.FREE
        return {*self.held, *requests} | ({"session"} if has_session else set())

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "requests"):
            return
        loop, cache = self.loop, self.cache
        alive = [request for request in self.requests if not request.is_finished]
        assert len(loop.waiting) + len(loop.running) == len(alive) == len({*loop.waiting, *loop.running})
        assert cache.num_sequences == len(self.open_names())
        for request in loop.running:
            assert (request.state, cache.state(request.request_id)) == (RequestState.RUNNING, CacheState.ACTIVE)
            assert cache.num_tokens(request.request_id) == request.num_computed_tokens < request.num_tokens
        for request in loop.waiting:
            state = cache.state(request.request_id)
            assert state is (CacheState.SWAPPED if request.num_computed_tokens else CacheState.FREE)

    def teardown(self) -> None:
        if hasattr(self, "requests"):
            self.release_all()
            super().teardown()
            self.check_whole()


SharedCacheMachine.TestCase.settings = settings(
    max_examples=scaled(5000), stateful_step_count=100 if is_extended() else 50, deadline=None
)
TestSharedCacheMachine = SharedCacheMachine.TestCase
