"""Many requests at once, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.hashed_prefix_cache import HashedPrefixCache
from aethermind.cache.kv_cache import KVCache
from aethermind.engine.decision import ScheduleDecision, StepBudget
from aethermind.engine.loader import PlannedModel
from aethermind.engine.model_runner import ModelRunner, SampledToken
from aethermind.engine.output import RequestOutput
from aethermind.engine.output_builder import OutputBuilder
from aethermind.engine.preemption import MeasuredCosts, TimedSwapStore
from aethermind.engine.prompt_reader import check_embeddings
from aethermind.engine.request import FinishReason, Request
from aethermind.engine.request_options import RequestOptions
from aethermind.engine.scheduler import Scheduler
from aethermind.engine.waiting_queue import WaitingQueue
from aethermind.errors import ContextLengthError, InvalidArgumentError
from aethermind.sampling.random import derive_seed

if TYPE_CHECKING:
    from aethermind.cache.swap import SwapStore
    from aethermind.model.input_processor import EmbeddingSpan
    from aethermind.sampling.params import SamplingParams
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["Engine"]


class Engine:
    """Continuous batching over one model. Not safe to call from several threads at once."""

    def __init__(
        self,
        planned: PlannedModel,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float] = time.perf_counter,
        swap_store: SwapStore | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load the model that `planned` describes; `swap_store` takes what gives way in a full KV cache."""
        config = planned.config
        self.planned = planned
        self.tokenizer = tokenizer
        self.costs = MeasuredCosts()
        if swap_store is not None:
            swap_store = TimedSwapStore(swap_store, planned.cache_spec.bytes_per_block, self.costs, clock)
        self.cache = _make_cache(planned, swap_store)
        self.runner = ModelRunner(planned, self.cache, on_progress)
        self.scheduler = Scheduler(self.cache, planned.policy, self.costs)
        max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._planned_budget = self.budget = StepBudget(max_num_seqs, config.max_num_batched_tokens)
        self.waiting = WaitingQueue(planned.policy)
        self.running: list[Request] = []
        self._outputs: dict[str, OutputBuilder] = {}
        self._clock = clock
        self._num_added = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.waiting or self.running)

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        embeddings: Sequence[EmbeddingSpan] = (),
        options: RequestOptions | None = None,
    ) -> None:
        """Queue a request; `embeddings` replace those of some of its token ids, `options` are for the scheduler.

        InvalidArgumentError or ContextLengthError when its prompt cannot be served.
        """
        options = self._with_quotas(options or RequestOptions())
        self._check_prompt(request_id, prompt_token_ids, params, options)
        if embeddings:
            check_embeddings(embeddings, len(prompt_token_ids), self.planned.model.config.hidden_size)
            self.runner.prepare_embeddings()
        request = Request(
            request_id,
            prompt_token_ids,
            params,
            self._clock(),
            max_model_len=self.planned.max_model_len,
            options=options,
            seed=derive_seed(self.planned.config.seed, self._num_added),
            eos_token_ids=self.planned.eos_token_ids,
            embeddings=embeddings,
        )
        self._num_added += 1
        self.waiting.add(request, request.arrival)
        self._outputs[request_id] = OutputBuilder(request, prompt, self.tokenizer)

    def adjust(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
    ) -> None:
        """Change the limits of the steps to come; None leaves a limit as it is.

        What runs goes on. InvalidArgumentError for limits beyond those that the engine was opened with, for which its
        memory was planned.
        """
        given = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_prefill_chunk": max_prefill_chunk,
        }
        budget = replace(self.budget, **{name: value for name, value in given.items() if value is not None})
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value, most = getattr(budget, name), getattr(self._planned_budget, name)
            if value > most:
                raise InvalidArgumentError(
                    f"{name} cannot become {value}: this engine was opened for {most}. Open it with more."
                )
        self.budget = budget

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free its blocks; returns what there is of it, None for unknown and finished ids."""
        builder = self._outputs.pop(request_id, None)
        if builder is None or builder.request.is_finished:
            return None
        self.scheduler.finish(builder.request, FinishReason.ABORT, self.waiting, self.running)
        return builder.snapshot(self._clock())

    def step(self) -> list[RequestOutput]:
        """Compute one step and return the requests that grew or ended in it."""
        started = self._clock()
        decision = self.scheduler.schedule(started, self.waiting, self.running, self.budget)
        sampled = self.runner.run(decision) if decision.scheduled else []
        self.scheduler.advance(decision)
        now = self._clock()
        if decision.scheduled and decision.num_decodes == 0:
            self.costs.observe_prefill(decision.num_batched_tokens, now - started)
        return [*(self._append(token, now) for token in sampled), *self._refuse(decision, now)]

    def _append(self, token: SampledToken, now: float) -> RequestOutput:
        request = token.request
        builder = self._outputs[request.request_id]
        reason = builder.add(token.token_id, token.logprobs, request.append_token(token.token_id), now)
        if reason is not None:
            self.scheduler.finish(request, reason, self.waiting, self.running)
            del self._outputs[request.request_id]
        return builder.snapshot(now)

    def _refuse(self, decision: ScheduleDecision, now: float) -> list[RequestOutput]:
        refused = []
        for entry in decision.rejected:
            builder = self._outputs.pop(entry.request.request_id)
            builder.error = (
                f"Request {entry.request.request_id} needs {entry.num_tokens} tokens of KV cache, and the whole cache "
                f"holds {entry.capacity_tokens}. Raise --num-kv-blocks or shorten the prompt."
            )
            self.scheduler.finish(entry.request, FinishReason.ABORT, self.waiting, self.running)
            refused.append(builder.snapshot(now))
        return refused

    def _with_quotas(self, options: RequestOptions) -> RequestOptions:
        """The options with the engine's quota, where it allows less than they do."""
        most = self.planned.config.max_new_tokens
        if most is None or (options.max_new_tokens is not None and options.max_new_tokens <= most):
            return options
        return replace(options, max_new_tokens=most)

    def _check_prompt(
        self, request_id: str, token_ids: Sequence[int], params: SamplingParams, options: RequestOptions
    ) -> None:
        if request_id in self._outputs:
            raise InvalidArgumentError(f"Request id {request_id!r} is in use; give each request an id of its own.")
        if not token_ids:
            raise InvalidArgumentError("The prompt is empty; give it at least one token.")
        limit = self.planned.max_model_len
        if len(token_ids) >= limit:
            raise ContextLengthError(
                f"The prompt has {len(token_ids)} tokens and the context holds {limit}, with at least one for the "
                "answer. Shorten the prompt, or raise --max-model-len if the model allows it."
            )
        quota = options.max_context_tokens
        if quota is not None and len(token_ids) >= quota:
            raise ContextLengthError(
                f"The prompt has {len(token_ids)} tokens and the request's quota is {quota}, with at least one for the "
                "answer. Shorten the prompt, or raise max_context_tokens."
            )
        vocab_size = self.planned.model.config.vocab_size
        for token_id in (*token_ids, *params.stop_token_ids):
            if not 0 <= token_id < vocab_size:
                raise InvalidArgumentError(
                    f"Token id {token_id} is out of range: the vocabulary has {vocab_size} entries, numbered from 0."
                )


def _make_cache(planned: PlannedModel, swap_store: SwapStore | None) -> KVCache:
    pool = BlockPool(planned.num_kv_blocks)
    prefix_cache = None
    if planned.config.enable_prefix_caching:
        salt = repr((str(planned.source.path), planned.dtype.label, planned.config.quantization))
        prefix_cache = HashedPrefixCache(pool, planned.cache_spec.block_size, salt.encode())
    spec, max_model_len = planned.cache_spec, planned.max_model_len
    return KVCache(
        spec, planned.num_kv_blocks, max_model_len, prefix_cache=prefix_cache, swap_store=swap_store, pool=pool
    )
