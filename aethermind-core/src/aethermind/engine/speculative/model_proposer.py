"""Drafting with a model, which has weights, a KV cache and steps of its own, on the device of the target model.

The *drafting model* is a draft model or an MTP module (`mtp`). For each request of the target model it has a draft
request with the same tokens. Before it drafts, it drops the tokens that were not accepted, and computes those that the
target model added. A prompt is
computed in chunks, one per call, and there are no drafts until it is complete. A draft is sampled with the request's
parameters and the random number of its position in the output, as the target model does; so the more similar the two
models are, the more often they sample the same token.

A recurrent state is copied before the first draft is computed (`KVCache.checkpoint`). After a wrong draft the next step
starts from the copy, and computes the accepted drafts again before the next token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.kv_cache import KVCache
from aethermind.cache.outcome import CacheOutcome
from aethermind.cache.prefix_cache import HashedPrefixCache
from aethermind.cache.reservations import reserve_chunk
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.requests.request import Request
from aethermind.engine.scheduling.decision import ScheduleDecision, ScheduledRequest
from aethermind.engine.steps.model_runner import ModelRunner
from aethermind.errors import InvalidArgumentError
from aethermind.sampling.params import SamplingParams

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.steps.model_runner import SampledToken

__all__ = ["DraftModel", "DraftRequest", "ModelProposer"]


class DraftRequest(Request):
    """A request in the drafting model: the target request's tokens from index `first_token` on, then drafts.

    The first `num_synced` tokens were those of the target request at the last `sync`.
    """

    __slots__ = ("first_token", "num_synced")

    def __init__(self, request: Request, max_model_len: int, first_token: int = 0) -> None:
        target = request.params
        params = SamplingParams(
            temperature=target.temperature, top_k=target.top_k, top_p=target.top_p, min_p=target.min_p, max_tokens=None
        )
        super().__init__(
            request.request_id,
            request.prompt_token_ids,
            params,
            request.arrival,
            max_model_len=max_model_len,
            seed=request.seed,
        )
        self.first_token = first_token
        self.all_token_ids = request.all_token_ids[first_token:]
        self.num_prompt_tokens -= first_token
        self.num_synced = len(self.all_token_ids)

    def sync(self, request: Request) -> int:
        """Replace the tokens by those of the target request.

        Returns how many leading tokens remain computed: the computed ones that did not change, at most all but the
        last.
        """
        current, token_ids = self.all_token_ids, request.all_token_ids[self.first_token :]
        num_equal, end = self.num_synced, min(len(current), len(token_ids))
        while num_equal < end and current[num_equal] == token_ids[num_equal]:
            num_equal += 1
        current[num_equal:] = token_ids[num_equal:]
        self.output_token_ids = current[self.num_prompt_tokens :]
        self.num_synced = len(token_ids)
        return min(self.num_computed_tokens, num_equal, len(token_ids) - 1)


DraftRequestT = TypeVar("DraftRequestT", bound=DraftRequest)


class ModelProposer(Generic[DraftRequestT]):
    """A proposer that samples drafts from a model; subclasses define the draft requests."""

    _runner: ModelRunner
    """The runner of the drafting model; a subclass creates it."""

    def __init__(self, compiled: CompiledModel) -> None:
        """`compiled` is the drafting model."""
        self._compiled = compiled
        pool, block_size = BlockPool(compiled.num_kv_blocks), compiled.cache_spec.block_size
        windows = compiled.cache_spec.windows
        prefix_cache = (
            HashedPrefixCache(pool, block_size, windows=windows) if compiled.config.enable_prefix_caching else None
        )
        self.cache = KVCache(
            compiled.cache_spec, compiled.num_kv_blocks, compiled.max_model_len, prefix_cache=prefix_cache, pool=pool
        )
        self._draft_requests: dict[str, DraftRequestT] = {}

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[list[int]]:
        """Run one step of the drafting model for each token, for all requests together."""
        drafting = []
        for request, limit in zip(requests, limits, strict=True):
            num_drafts = min(limit, self._compiled.max_model_len - request.num_tokens)
            if num_drafts > 0 and not request.embeddings and (draft_request := self._sync(request)) is not None:
                drafting.append((draft_request, num_drafts))
        wanted = {draft_request.request_id: num_drafts for draft_request, num_drafts in drafting}
        draft_requests = [draft_request for draft_request, _ in drafting]
        while draft_requests:
            sampled = self._step(draft_requests, wanted.keys())
            draft_requests = [
                drafted for drafted in sampled if drafted.num_tokens - drafted.num_synced < wanted[drafted.request_id]
            ]
        return [self._drafts(request.request_id) if request.request_id in wanted else [] for request in requests]

    def forget(self, request_id: str) -> None:
        """Drop the draft request; its blocks remain in the prefix cache."""
        draft_request = self._draft_requests.pop(request_id, None)
        if draft_request is not None:
            self.cache.release(request_id, self._published_tokens(draft_request))

    def _sync(self, request: Request) -> DraftRequestT | None:
        """Return the draft request, which has the request's tokens; None if it cannot draft."""
        raise NotImplementedError

    def _published_tokens(self, draft_request: DraftRequestT) -> Sequence[int]:
        """The tokens whose blocks are published to the prefix cache when a request ends."""
        return draft_request.all_token_ids

    def _num_computable(self, draft_request: DraftRequestT) -> int:
        """Return how many of the draft request's next tokens can be computed now."""
        return draft_request.num_tokens - draft_request.num_computed_tokens

    def _run(self, decision: ScheduleDecision) -> list[SampledToken]:
        """Run a step of the drafting model."""
        return self._runner.run(decision)

    def _step(self, draft_requests: Sequence[DraftRequestT], in_use: Collection[str]) -> list[DraftRequestT]:
        """Compute tokens of draft requests in one step; returns those for which a draft was sampled.

        Requests whose ids are `in_use` keep their blocks.
        """
        decision, chunks = ScheduleDecision(), list[ScheduledRequest]()
        num_left = self._compiled.config.max_num_batched_tokens - len(draft_requests)
        for draft_request in draft_requests:
            num_uncomputed = draft_request.num_tokens - draft_request.num_computed_tokens
            count = min(self._num_computable(draft_request), 1 + num_left)
            if count < num_uncomputed:  # end at a block boundary, where a snapshot of the recurrent state is kept
                end = draft_request.num_computed_tokens + count
                count -= end % self.cache.chunk_alignment if count >= self.cache.chunk_alignment else 0
            count = self._reserve(draft_request, count, in_use)
            if not count:
                continue
            if draft_request.num_computed_tokens == draft_request.num_synced:
                self.cache.checkpoint(draft_request.request_id)
            num_left -= count - 1
            entry = ScheduledRequest(draft_request, count, count == num_uncomputed)
            (decision.scheduled if num_uncomputed == 1 else chunks).append(entry)
        decision.num_decodes = len(decision.scheduled)
        decision.scheduled += chunks
        decision.num_batched_tokens = sum(entry.num_tokens for entry in decision.scheduled)
        if not decision.scheduled:
            return []
        try:
            sampled = self._run(decision)
        except BaseException:
            self._restart(decision)
            raise
        for request, num_tokens, _ in decision.scheduled:
            request.num_computed_tokens += num_tokens
            self.cache.commit(request.request_id, num_tokens)
        for token in sampled:
            token.request.append_token(token.token_id)
        return [self._draft_requests[token.request.request_id] for token in sampled]

    def _restart(self, decision: ScheduleDecision) -> None:
        """Reset the recurrent states of the requests of a failed step, as `Scheduler.discard` does."""
        if self.cache.is_recurrent:
            for request, _, _ in decision.scheduled:
                request.num_computed_tokens = self.cache.restart(request.request_id)

    def _reserve(self, draft_request: DraftRequestT, count: int, in_use: Collection[str]) -> int:
        """Reserve slots for the next `count` tokens or fewer (`reserve_chunk`); returns for how many.

        Draft requests that are not `in_use` are dropped if blocks are short.
        """
        result, num_reserved = reserve_chunk(self.cache, draft_request.request_id, count)
        if result.outcome is not CacheOutcome.OK:
            for request_id in [other for other in self._draft_requests if other not in in_use]:
                self.forget(request_id)
            result, num_reserved = reserve_chunk(self.cache, draft_request.request_id, count)
        return num_reserved if result.outcome is CacheOutcome.OK else 0

    def _drafts(self, request_id: str) -> list[int]:
        draft_request = self._draft_requests[request_id]
        return draft_request.all_token_ids[draft_request.num_synced :]


class DraftModel(ModelProposer[DraftRequest]):
    """A proposer that samples drafts from the draft model."""

    def __init__(self, compiled: CompiledModel) -> None:
        """Read the weights of the draft model. InvalidArgumentError if there is none, or if its vocabulary differs."""
        draft = compiled.draft
        if draft is None:
            raise InvalidArgumentError(
                "The speculative method draft needs a model that drafts: pass it as draft_model."
            )
        _check_same_vocabulary(compiled, draft)
        super().__init__(draft)
        self._runner = ModelRunner(draft, self.cache, KVMemory.of(draft))

    def _sync(self, request: Request) -> DraftRequest:
        draft_request = self._draft_requests.get(request.request_id)
        if draft_request is None:
            draft_request = DraftRequest(request, self._compiled.max_model_len)
            self._draft_requests[request.request_id] = draft_request
            opened = self.cache.open(request.request_id, request.all_token_ids, request.extra_key)
            draft_request.num_computed_tokens = opened.num_cached_tokens
        num_valid = draft_request.sync(request)
        if num_valid < draft_request.num_computed_tokens:
            draft_request.num_computed_tokens = self.cache.truncate_or_reset(request.request_id, num_valid)
        return draft_request


def _check_same_vocabulary(compiled: CompiledModel, draft: CompiledModel) -> None:
    """Raise InvalidArgumentError unless both models have the same tokens, because drafts are token ids."""
    if compiled.source.path == draft.source.path:
        return
    target, drafter = compiled.source.tokenizer(), draft.source.tokenizer()
    num_tokens = max(target.vocab_size, drafter.vocab_size)
    differing = next((i for i in range(num_tokens) if target.id_to_token(i) != drafter.id_to_token(i)), None)
    if differing is not None:
        raise InvalidArgumentError(
            f"The draft model {draft.source.path} has other tokens: {differing} is {drafter.id_to_token(differing)!r} "
            f"there and {target.id_to_token(differing)!r} here. Take a smaller model of the same family."
        )
