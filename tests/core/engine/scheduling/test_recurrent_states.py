"""The scheduler over a cache with recurrent states: each step finds in a sequence's slot the state of its tokens.

A state is the list of tokens that it has taken up. Requests share prefixes, are swapped out, recomputed, cancelled and
forked, steps fail after they have changed states, and blocks and snapshots are evicted.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.core.engine.loops import MAX_MODEL_LEN, Loop, SwapBlocks, Swaps

from aethermind.cache import BlockPool, CacheOutcome, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.cache.groups import group_layers
from aethermind.cache.layers import Hybrid, LayerCache, Paged, Recurrent, Window
from aethermind.engine.policies import FirstComeFirstServed
from aethermind.engine.requests.request import FinishReason, Request, RequestState
from aethermind.engine.scheduling.decision import ScheduleDecision, SchedulingStep, StepBudget
from aethermind.engine.scheduling.scheduler import Scheduler, WaitingQueue
from aethermind.sampling.params import SamplingParams

STATE = Recurrent((("state", (2,)),))
PAGED = Paged(1, 8, 8)
LAYERS: dict[str, tuple[LayerCache, ...]] = {
    "hybrid": (STATE, Hybrid(PAGED, STATE), PAGED),
    "recurrent": (STATE, STATE),
}
BLOCK_SIZE = 4


class StateLoop(Loop):
    """A loop whose steps take up tokens in the states of slots, and check what they continue from."""

    def __init__(
        self, kind: str, rng: Random, num_blocks: int, num_seqs: int, num_snapshots: int, num_host_slots: int
    ) -> None:
        super().__init__(1, BLOCK_SIZE, max_num_seqs=num_seqs, max_num_batched_tokens=12)
        num_slots = num_seqs + 2 + num_snapshots
        spec = KVCacheSpec(
            LAYERS[kind],
            "float32",
            BLOCK_SIZE,
            num_slots=num_slots,
            num_snapshots=num_snapshots,
            num_host_slots=num_host_slots,
        )
        pool = BlockPool(num_blocks)
        prefix_cache = HashedPrefixCache(pool, BLOCK_SIZE)
        self.swaps = SwapBlocks(num_blocks)
        self.cache = KVCache(
            spec, num_blocks, MAX_MODEL_LEN, prefix_cache=prefix_cache, swap_store=self.swaps, pool=pool
        )
        self.scheduler = Scheduler(self.cache, self.scheduler.policy, Swaps())
        self.rng = rng
        self.states: list[list[int]] = [[-1] for _ in range(num_slots + num_host_slots)]
        self.num_reused = self.num_failed = self.num_forked = self.num_restarted = 0

    def schedule(self) -> ScheduleDecision:
        decision = super().schedule()
        if decision.scheduled:
            for source, destination in self.cache.state_copies:
                self.states[destination] = list(self.states[source])
            self.cache.state_copies.clear()
        slots = [self.cache.state_slot(request.request_id) for request, _, _ in decision.scheduled]
        assert len({0, *slots}) == len(slots) + 1
        for slot, (request, num_tokens, _) in zip(slots, decision.scheduled, strict=True):
            start = request.num_computed_tokens
            if start == 0:
                self.states[slot] = []
            assert self.states[slot] == request.all_token_ids[:start]
            self.states[slot] = request.all_token_ids[: start + num_tokens]
            self.num_reused += request.num_cached_tokens > 0 and start == request.num_cached_tokens
        return decision

    def fail(self) -> None:
        """A step that fails after it has changed the states of its sequences, some of them beyond recognition."""
        decision = self.schedule()
        for request, _, _ in decision.scheduled[1:]:
            self.states[self.cache.state_slot(request.request_id)] = [-2]
        self.scheduler.discard(decision)
        self.num_failed += bool(decision.scheduled)
        self.num_restarted += any(request.num_computed_tokens for request, _, _ in decision.scheduled)

    def fork(self, parent: Request) -> None:
        """Start a request that continues a running one."""
        num_tokens = parent.num_computed_tokens
        child = self.add(len(parent.all_token_ids[: num_tokens + 1]), max_tokens=self.rng.randint(1, 12))
        self.waiting.remove(child)
        child.prompt_token_ids = parent.all_token_ids[: num_tokens + 1]
        child.all_token_ids = list(child.prompt_token_ids)
        if self.cache.fork(parent.request_id, child.request_id) is CacheOutcome.OK:
            child.num_computed_tokens = num_tokens
            child.state = RequestState.RUNNING
            self.running.append(child)
            self.num_forked += 1

    def act(self) -> None:
        """One step of the engine, or something that happens between two."""
        rng, chance = self.rng, self.rng.random()
        if chance < 0.25 and len(self.waiting) < 6:
            self.add(rng.choice([1, 3, 4, 5, 8, 17, 30]), max_tokens=rng.randint(1, 20), family=rng.randint(1, 3))
        elif chance < 0.3 and (some := [*self.running, *self.waiting]):
            self.scheduler.finish(rng.choice(some), FinishReason.ABORT, self.waiting, self.running)
        elif chance < 0.35 and len(self.running) in range(1, self.budget.max_num_seqs):
            self.fork(rng.choice(self.running))
        elif chance < 0.4:
            self.fail()
        else:
            self.step()


@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize(
    ("num_blocks", "num_snapshots", "num_host_slots"), [(60, 4, 0), (14, 4, 0), (14, 1, 3), (14, 0, 1), (30, 0, 0)]
)
def test_states_are_those_of_their_tokens(kind: str, num_blocks: int, num_snapshots: int, num_host_slots: int) -> None:
    num_reused = num_failed = num_forked = num_finished = num_preempted = num_swapped = num_restarted = 0
    for seed in range(12):
        loop = StateLoop(kind, Random(seed), num_blocks, 4, num_snapshots, num_host_slots)
        for _ in range(250):
            loop.act()
        loop.run()
        assert loop.cache.num_free_slots == 4 + 1
        assert loop.cache.num_available_blocks == num_blocks
        assert loop.swaps.num_used_blocks == 0
        num_swapped += loop.swaps.num_loads
        num_restarted += loop.num_restarted
        num_reused += loop.num_reused
        num_failed += loop.num_failed
        num_forked += loop.num_forked
        num_finished += len(loop.finished)
        num_preempted += sum(request.num_preemptions for request in loop.finished)
    assert min(num_failed, num_forked) > 20
    assert num_finished > 300
    assert (num_preempted > 20) == (num_blocks < 30)
    assert (num_reused > 10) == (num_snapshots > 0)
    assert (num_swapped > 20) == (num_host_slots > 0)
    assert (num_restarted > 10) == (num_snapshots > 0)


@pytest.mark.parametrize(
    ("num_tokens", "num_computed", "chunk"),
    [(40, 0, 40), (300, 0, 288), (300, 288, 12), (600, 0, 496), (600, 496, 96), (250, 3, 247), (288, 0, 288)],
)
def test_only_long_prompts_take_a_step_for_a_snapshot(num_tokens: int, num_computed: int, chunk: int) -> None:
    """A step of 500 tokens, and blocks of 16: a chunk that is not the last ends at a block anyway."""
    params = SamplingParams(max_tokens=4)
    request = Request("a", list(range(num_tokens)), params, 0.0, max_model_len=1000)
    budget = StepBudget(4, 500)
    step = SchedulingStep(0.0, WaitingQueue(FirstComeFirstServed()), [], budget, ScheduleDecision())
    assert step.chunk_of(request, num_computed, 16) == chunk
    assert step.chunk_of(request, num_computed, 1) == min(500, num_tokens - num_computed)


def spec(*layers: LayerCache, num_snapshots: int = 2) -> KVCacheSpec:
    return KVCacheSpec(layers, "float32", BLOCK_SIZE, num_slots=5 + num_snapshots, num_snapshots=num_snapshots)


def open_cache(num_snapshots: int = 2, num_blocks: int = 16) -> KVCache:
    pool = BlockPool(num_blocks)
    prefix_cache = HashedPrefixCache(pool, BLOCK_SIZE)
    layers = spec(STATE, PAGED, num_snapshots=num_snapshots)
    return KVCache(layers, num_blocks, MAX_MODEL_LEN, prefix_cache=prefix_cache, pool=pool)


def compute(kv: KVCache, seq_id: str, tokens: list[int], *ends: int) -> None:
    """Open a sequence and compute its tokens in steps that end there."""
    start = kv.open(seq_id, tokens).num_cached_tokens
    for end in ends:
        assert kv.reserve(seq_id, end - start).outcome is CacheOutcome.OK
        kv.commit(seq_id, end - start)
        start = end


def test_a_prefix_is_reused_up_to_a_snapshot() -> None:
    kv, tokens = open_cache(), list(range(20))
    compute(kv, "a", tokens, 8, 13)
    kv.state_copies.clear()
    kv.release("a", tokens)
    assert kv.query(tokens) == 8
    assert kv.query(tokens[:8]) == 0, "the last token is computed, and the snapshot has it"
    assert kv.open("b", tokens).num_cached_tokens == 8
    assert kv.state_slot("b") != 0
    ((source, destination),) = kv.state_copies
    assert (source >= 5, destination) == (True, kv.state_slot("b"))


def test_without_a_boundary_there_is_no_snapshot() -> None:
    kv, tokens = open_cache(), list(range(20))
    compute(kv, "a", tokens, 7, 13)
    assert kv.state_copies == []
    kv.release("a", tokens)
    assert kv.query(tokens) == 0


def test_a_snapshot_leaves_with_its_block() -> None:
    kv, tokens = open_cache(num_blocks=4), list(range(20))
    compute(kv, "a", tokens, 8)
    kv.release("a", tokens)
    assert kv.query(tokens) == 8
    others = list(range(100, 116))
    compute(kv, "b", others, 16)
    assert kv.query(tokens) == 0
    kv.release("b", others)
    assert kv.query([*others, 1]) == 16


def test_a_new_snapshot_replaces_the_least_recently_used() -> None:
    kv = open_cache()
    texts = [list(range(100 * number, 100 * number + 6)) for number in range(3)]
    for number, text in enumerate(texts[:2]):
        compute(kv, str(number), text, 4)
        kv.release(str(number), text)
    compute(kv, "again", texts[0], 5)
    kv.release("again", texts[0])
    compute(kv, "2", texts[2], 4)
    kv.release("2", texts[2])
    assert [kv.query(text) for text in texts] == [4, 0, 4]


def test_a_sequence_is_taken_back_to_a_snapshot_of_its_own_or_a_published_one() -> None:
    kv, tokens = open_cache(), list(range(20))
    compute(kv, "a", tokens, 8, 11)
    kv.publish("a", tokens[:8])
    assert kv.reserve("a", 7).outcome is CacheOutcome.OK
    kv.commit("a", 5)  # a snapshot of its own, after 16 tokens
    kv.commit("a", 2)
    slot, blocks = kv.state_slot("a"), list(kv.block_table("a"))
    kv.state_copies.clear()
    assert (kv.truncate_or_reset("a", 17), kv.truncate_or_reset("a", 16), kv.restart("a")) == (16, 16, 16)
    assert (kv.truncate_or_reset("a", 15), kv.restart("a")) == (8, 8)
    assert kv.truncate_or_reset("a", 7) == kv.restart("a") == 0
    assert (kv.state_slot("a"), kv.num_tokens("a"), list(kv.block_table("a"))) == (slot, 0, [])
    own, _, published, _ = kv.state_copies
    assert own[1] == published[1] == slot
    assert own[0] != published[0]
    assert len(blocks) == 5
    assert kv.query(tokens) == 8, "the published one remains"


def test_a_sequence_that_is_taken_back_publishes_no_snapshot() -> None:
    kv, tokens = open_cache(num_snapshots=1), list(range(20))
    compute(kv, "a", tokens, 8)
    assert kv.truncate_or_reset("a", 6) == 0
    assert kv.reserve("a", 10).outcome is CacheOutcome.OK
    kv.commit("a", 10)
    kv.release("a", tokens)
    assert kv.query(tokens) == 0
    compute(kv, "b", tokens, 4)
    kv.release("b", tokens)
    assert kv.query(tokens) == 4


def test_a_window_and_a_snapshot_end_a_prefix_together() -> None:
    """The longest prefix with a snapshot of whose end the window's blocks are cached, too."""
    window = Window(1, 8, 8, 160)
    layers = (STATE, PAGED, window, window, window, window)
    groups = group_layers(layers, BLOCK_SIZE, 1024, 64)
    assert len(groups) > 1
    pool = BlockPool(800)
    windows = tuple(group.window for group in groups[1:])
    prefix_cache = HashedPrefixCache(pool, BLOCK_SIZE, windows=windows)
    with_groups = KVCacheSpec(layers, "float32", BLOCK_SIZE, 0, groups, 64, num_slots=8, num_snapshots=4)
    kv = KVCache(with_groups, 800, 1024, prefix_cache=prefix_cache, pool=pool)
    tokens = list(range(1000))
    compute(kv, "a", tokens, *range(64, 513, 64), 700)
    kv.release("a", tokens)
    assert kv.query(tokens) == 700
    kv.open("others")
    seen = []
    for number in range(60):  # blocks are evicted, those of windows among them
        assert kv.reserve("others", 16).outcome is CacheOutcome.OK
        kv.commit("others", 16)
        name = str(number)
        seen.append(kv.query(tokens))
        assert kv.open(name, tokens).num_cached_tokens == seen[-1]
        assert (kv.state_slot(name) != 0) == (seen[-1] > 0)
        kv.release(name)
    assert seen[0] == 700
    assert seen[-1] < 700
