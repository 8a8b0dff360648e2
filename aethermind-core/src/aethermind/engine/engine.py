"""Many requests at once, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.hashed_prefix_cache import HashedPrefixCache
from aethermind.cache.kv_cache import KVCache
from aethermind.engine.loader import PlannedModel
from aethermind.engine.model_runner import ModelRunner, SampledToken
from aethermind.engine.output import RequestOutput
from aethermind.engine.output_builder import OutputBuilder
from aethermind.engine.prompt_reader import check_embeddings
from aethermind.engine.request import FinishReason, Request
from aethermind.engine.scheduler import ScheduleDecision, Scheduler, SchedulerConfig
from aethermind.errors import ContextLengthError, InvalidArgumentError
from aethermind.sampling.random import derive_seed

if TYPE_CHECKING:
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
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        config = planned.config
        self.planned = planned
        self.tokenizer = tokenizer
        self.cache = _make_cache(planned)
        self.runner = ModelRunner(planned, self.cache, on_progress)
        max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self.scheduler = Scheduler(SchedulerConfig(max_num_seqs, config.max_num_batched_tokens), self.cache)
        self.waiting: list[Request] = []
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
    ) -> None:
        """Queue a request; `embeddings` replace those of some of its token ids.

        InvalidArgumentError or ContextLengthError when its prompt cannot be served.
        """
        self._check_prompt(request_id, prompt_token_ids, params)
        if embeddings:
            check_embeddings(embeddings, len(prompt_token_ids), self.planned.model.config.hidden_size)
            self.runner.prepare_embeddings()
        request = Request(
            request_id,
            prompt_token_ids,
            params,
            self._clock(),
            max_model_len=self.planned.max_model_len,
            seed=derive_seed(self.planned.config.seed, self._num_added),
            eos_token_ids=self.planned.eos_token_ids,
            embeddings=embeddings,
        )
        self._num_added += 1
        self.waiting.append(request)
        self._outputs[request_id] = OutputBuilder(request, prompt, self.tokenizer)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and free its blocks; returns what there is of it, None for unknown and finished ids."""
        builder = self._outputs.pop(request_id, None)
        if builder is None or builder.request.is_finished:
            return None
        self.scheduler.finish(builder.request, FinishReason.ABORT, self.waiting, self.running)
        return builder.snapshot(self._clock())

    def step(self) -> list[RequestOutput]:
        """Compute one step and return the requests that grew or ended in it."""
        decision = self.scheduler.schedule(self._clock(), self.waiting, self.running)
        sampled = self.runner.run(decision) if decision.scheduled else []
        self.scheduler.advance(decision)
        now = self._clock()
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

    def _check_prompt(self, request_id: str, token_ids: Sequence[int], params: SamplingParams) -> None:
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
        vocab_size = self.planned.model.config.vocab_size
        for token_id in (*token_ids, *params.stop_token_ids):
            if not 0 <= token_id < vocab_size:
                raise InvalidArgumentError(
                    f"Token id {token_id} is out of range: the vocabulary has {vocab_size} entries, numbered from 0."
                )


def _make_cache(planned: PlannedModel) -> KVCache:
    pool = BlockPool(planned.num_kv_blocks)
    prefix_cache = None
    if planned.config.enable_prefix_caching:
        salt = repr((str(planned.source.path), planned.dtype.label, planned.config.quantization))
        prefix_cache = HashedPrefixCache(pool, planned.cache_spec.block_size, salt.encode())
    spec, max_model_len = planned.cache_spec, planned.max_model_len
    return KVCache(spec, planned.num_kv_blocks, max_model_len, prefix_cache=prefix_cache, pool=pool)
