"""Drafting with a smaller model: its own weights, KV cache and steps, on the same device.

Each request has a shadow in the draft model with the same tokens, computed as far as needed for drafting. Before it
drafts, the shadow drops the tokens that were not accepted and computes those that were added without it. A prompt is
computed in chunks, one per call, and there are no drafts until it is complete. A draft is sampled with the request's
parameters and the random number of its position in the answer, which the target model uses there too; so the more
similar the two models are, the more often they choose the same token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import CacheOutcome
from aethermind.cache.prefix_cache import HashedPrefixCache
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.decision import ScheduleDecision, ScheduledRequest
from aethermind.engine.steps.model_runner import ModelRunner
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["DraftModel"]


class _Shadow(Request):
    """A request in the draft model; its first `num_known` tokens are those of the request when it was last drafted."""

    __slots__ = ("num_known",)

    def __init__(self, request: Request, max_model_len: int) -> None:
        chosen = request.params
        params = SamplingParams(
            temperature=chosen.temperature, top_k=chosen.top_k, top_p=chosen.top_p, min_p=chosen.min_p, max_tokens=None
        )
        super().__init__(
            request.request_id,
            request.prompt_token_ids,
            params,
            request.arrival,
            max_model_len=max_model_len,
            seed=request.seed,
        )
        self.num_known = 0

    def follow(self, token_ids: Sequence[int]) -> int:
        """Take over the request's tokens; returns how many computed ones are still valid, at most all but one."""
        own, num_equal = self.all_token_ids, self.num_known
        most = min(len(own), len(token_ids))
        while num_equal < most and own[num_equal] == token_ids[num_equal]:
            num_equal += 1
        own[num_equal:] = token_ids[num_equal:]
        self.output_token_ids = own[self.num_prompt_tokens :]
        self.num_known = len(token_ids)
        return min(self.num_computed_tokens, num_equal, len(token_ids) - 1)


class DraftModel:
    """A proposer that samples drafts from the draft model."""

    def __init__(self, compiled: CompiledModel) -> None:
        """Read the draft model's weights. InvalidArgumentError if there is none, or if its tokens differ."""
        draft = compiled.draft
        if draft is None:
            raise InvalidArgumentError(
                "The speculative method draft needs a model that drafts: pass it as draft_model."
            )
        _check_tokens(compiled, draft)
        self._compiled = draft
        pool, block_size = BlockPool(draft.num_kv_blocks), draft.cache_spec.block_size
        prefix_cache = HashedPrefixCache(pool, block_size) if draft.config.enable_prefix_caching else None
        self.cache = KVCache(
            draft.cache_spec, draft.num_kv_blocks, draft.max_model_len, prefix_cache=prefix_cache, pool=pool
        )
        memory = KVMemory.of(draft)
        self._runner = ModelRunner(draft, self.cache, memory)
        self._shadows: dict[str, _Shadow] = {}

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        """Run one step of the draft model for each token, for all requests together."""
        drafting = []
        for request, limit in zip(requests, limits, strict=True):
            most = min(limit, self._compiled.max_model_len - request.num_tokens)
            if most > 0 and not request.embeddings:
                drafting.append((self._follow(request), most))
        wanted = {shadow.request_id: most for shadow, most in drafting}
        shadows = [shadow for shadow, _ in drafting]
        while shadows:
            drafted = self._step(shadows, wanted.keys())
            shadows = [one for one in drafted if one.num_tokens - one.num_known < wanted[one.request_id]]
        return [self._drafts(request.request_id) if request.request_id in wanted else [] for request in requests]

    def forget(self, request_id: str) -> None:
        """Drop the request's shadow; its prefix may be reused for other requests."""
        shadow = self._shadows.pop(request_id, None)
        if shadow is not None:
            self.cache.release(request_id, shadow.all_token_ids)

    def _follow(self, request: Request) -> _Shadow:
        shadow = self._shadows.get(request.request_id)
        if shadow is None:
            shadow = self._shadows[request.request_id] = _Shadow(request, self._compiled.max_model_len)
            opened = self.cache.open(request.request_id, request.all_token_ids, request.extra_key)
            shadow.num_computed_tokens = opened.num_cached_tokens
            shadow.all_token_ids = list(request.all_token_ids)
            shadow.num_known = len(shadow.all_token_ids)
        num_valid = shadow.follow(request.all_token_ids)
        if num_valid < shadow.num_computed_tokens:
            self.cache.truncate(request.request_id, num_valid)
            shadow.num_computed_tokens = num_valid
        return shadow

    def _step(self, shadows: list[_Shadow], busy: Collection[str]) -> list[_Shadow]:
        """Compute missing tokens in one step; returns the shadows that got their next token."""
        decision, chunks = ScheduleDecision(), list[ScheduledRequest]()
        num_left = self._compiled.config.max_num_batched_tokens - len(shadows)
        for shadow in shadows:
            missing = shadow.num_tokens - shadow.num_computed_tokens
            count = 1 + min(missing - 1, num_left)
            if not self._reserve(shadow, count, busy):
                continue
            num_left -= count - 1
            entry = ScheduledRequest(shadow, count, count == missing)
            (decision.scheduled if missing == 1 else chunks).append(entry)
        decision.num_decodes = len(decision.scheduled)
        decision.scheduled += chunks
        decision.num_batched_tokens = sum(entry.num_tokens for entry in decision.scheduled)
        if not decision.scheduled:
            return []
        sampled = self._runner.run(decision)
        for request, num_tokens, _ in decision.scheduled:
            request.num_computed_tokens += num_tokens
            self.cache.commit(request.request_id, num_tokens)
        for token in sampled:
            token.request.append_token(token.token_id)
        return [self._shadows[token.request.request_id] for token in sampled]

    def _reserve(self, shadow: _Shadow, count: int, busy: Collection[str]) -> bool:
        """Reserve slots for the next tokens; shadows that draft nothing now are dropped if blocks are short."""
        if self.cache.reserve(shadow.request_id, count).outcome is CacheOutcome.OK:
            return True
        for request_id in [one for one in self._shadows if one not in busy]:
            self.forget(request_id)
        return self.cache.reserve(shadow.request_id, count).outcome is CacheOutcome.OK

    def _drafts(self, request_id: str) -> list[int]:
        shadow = self._shadows[request_id]
        return shadow.all_token_ids[shadow.num_known :]


def _check_tokens(compiled: CompiledModel, draft: CompiledModel) -> None:
    """Raise InvalidArgumentError unless both models have the same tokens, because drafts are token ids."""
    if compiled.source.path == draft.source.path:
        return
    own, other = compiled.source.tokenizer(), draft.source.tokenizer()
    num_tokens = max(own.vocab_size, other.vocab_size)
    differing = next((i for i in range(num_tokens) if own.id_to_token(i) != other.id_to_token(i)), None)
    if differing is not None:
        raise InvalidArgumentError(
            f"The draft model {draft.source.path} has other tokens: {differing} is {other.id_to_token(differing)!r} "
            f"there and {own.id_to_token(differing)!r} here. Take a smaller model of the same family."
        )
