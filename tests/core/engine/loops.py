"""The engine's step, reduced to the scheduler, the cache's bookkeeping and a stand-in for the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aethermind.cache import BlockPool, HashedPrefixCache, KVCache, KVCacheSpec
from aethermind.engine.policies import FirstComeFirstServed, SharingPolicy
from aethermind.engine.requests.request import FinishReason, Request, RequestOptions, RequestState
from aethermind.engine.scheduling.decision import ScheduleDecision, StepBudget
from aethermind.engine.scheduling.scheduler import Scheduler, WaitingQueue, publish_prefix
from aethermind.sampling.params import SamplingParams

__all__ = ["MAX_MODEL_LEN", "Loop", "SwapBlocks", "Swaps", "next_token", "shares"]

MAX_MODEL_LEN = 64


def next_token(tokens: list[int]) -> int:
    """A stand-in for a model: the next token depends on all that precede it."""
    return hash(tuple(tokens)) % 1000


class SwapBlocks:
    """A store of `num_blocks` blocks that holds nothing but counts."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.held: dict[str, int] = {}
        self.num_loads = 0

    @property
    def num_used_blocks(self) -> int:
        return sum(self.held.values())

    def save(self, seq_id: str, blocks: Sequence[int]) -> bool:
        assert seq_id not in self.held
        if self.num_used_blocks + len(blocks) > self.num_blocks:
            return False
        self.held[seq_id] = len(blocks)
        return True

    def load(self, seq_id: str, blocks: Sequence[int]) -> None:
        assert self.held.pop(seq_id) == len(blocks)
        self.num_loads += 1

    def drop(self, seq_id: str) -> None:
        del self.held[seq_id]


class Swaps:
    """Costs under which moving is cheaper from `num_tokens` tokens on."""

    def __init__(self, num_tokens: int = 1) -> None:
        self.num_tokens = num_tokens

    def prefers_swap(self, num_tokens: int, num_bytes: int) -> bool:
        assert num_bytes > 0
        return num_tokens >= self.num_tokens


class Loop:
    """Adds, steps and finishes requests; time passes with every add and every step."""

    def __init__(
        self,
        num_blocks: int = 100,
        block_size: int = 4,
        policy: Any = None,
        *,
        is_reusing: bool = False,
        swap_store: SwapBlocks | None = None,
        costs: Swaps | None = None,
        overlaps_swaps_with_steps: bool = False,
        **limits: int,
    ) -> None:
        spec, pool = KVCacheSpec.uniform(1, 1, 8, "float32", block_size), BlockPool(num_blocks)
        prefix_cache = HashedPrefixCache(pool, block_size) if is_reusing else None
        self.cache = KVCache(
            spec, num_blocks, MAX_MODEL_LEN, prefix_cache=prefix_cache, swap_store=swap_store, pool=pool
        )
        self.budget = StepBudget(**limits)
        policy = policy or FirstComeFirstServed()
        self.scheduler = Scheduler(self.cache, policy, costs, overlaps_swaps_with_steps=overlaps_swaps_with_steps)
        self.waiting = WaitingQueue(policy)
        self.running: list[Request] = []
        self.finished: list[Request] = []
        self.now = 0.0
        self.num_requests = 0
        self.is_forcing = False
        """Whether some tokens bring others with them, as a grammar's do."""

    def add(self, num_prompt: int, max_tokens: int = 4, family: int | None = None, **options: Any) -> Request:
        """Queue a request; prompts of one family begin alike."""
        self.num_requests += 1
        self.now += 1.0
        prompt = [(self.num_requests if family is None else -family) * 1000 + index for index in range(num_prompt)]
        params = SamplingParams(max_tokens=max_tokens)
        name = f"r{self.num_requests:04}"
        request_options = RequestOptions(**options)
        request = Request(name, prompt, params, self.now, max_model_len=MAX_MODEL_LEN, options=request_options)
        if isinstance(self.scheduler.policy, SharingPolicy):
            request.virtual_arrival = self.scheduler.policy.virtual_arrival(request, self.waiting, self.running)
        self.waiting.add(request, self.now)
        return request

    def admit_by_hand(self, request: Request) -> Request:
        """Let a request in past the scheduler, to set up an order that admission rarely produces."""
        self.waiting.remove(request)
        self.running.append(request)
        self.cache.open(request.request_id)
        request.state = RequestState.RUNNING
        return request

    def schedule(self) -> ScheduleDecision:
        self.now += 1.0
        return self.scheduler.schedule(self.now, self.waiting, self.running, self.budget)

    def step(self) -> ScheduleDecision:
        decision = self.schedule()
        self.scheduler.advance(decision)
        publish_prefix(self.cache, decision)
        for request, _, needs_logits in decision.scheduled:
            assert needs_logits == (request.num_computed_tokens == request.num_tokens)
            if needs_logits and (reason := self.append(request)):
                self.scheduler.finish(request, reason, self.waiting, self.running)
                self.finished.append(request)
        for rejection in decision.rejected:
            self.scheduler.finish(rejection.request, FinishReason.ABORT, self.waiting, self.running)
        return decision

    def append(self, request: Request) -> FinishReason | None:
        """The next token, and those that it forces."""
        token_id = next_token(request.all_token_ids)
        reason = request.append_token(token_id)
        for _ in range(token_id % 5 if self.is_forcing else 0):
            reason = reason or request.append_token(next_token(request.all_token_ids))
        return reason

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.waiting and not self.running:
                return
            self.step()
        raise AssertionError(f"no end after {max_steps} steps: {self.running} {self.waiting}")


def shares(decision: ScheduleDecision) -> list[tuple[str, int, bool]]:
    return [(request.request_id, count, needs) for request, count, needs in decision.scheduled]
