"""The engine: it adds requests, and computes them step by step with continuous batching. Start to read here."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from aethermind.cache.stores.kv_store import StoreAddress
from aethermind.engine.kv_memory.memory_pressure import MemoryPressure
from aethermind.engine.kv_offload import KVOffload
from aethermind.engine.open_cache import open_cache, open_sessions
from aethermind.engine.parts import EngineParts
from aethermind.engine.requests.logits_constraints import ConstraintsBuilder
from aethermind.engine.requests.output import RequestOutput
from aethermind.engine.requests.output_delta import OutputBuilder, OutputSource
from aethermind.engine.requests.prompt_reader import PromptReader, check_embeddings, check_prompt, check_text
from aethermind.engine.requests.request import FinishReason, Request, RequestOptions, RequestState
from aethermind.engine.requests.sample_group import SampleGroup, SampleGroups, group_request_ids
from aethermind.engine.requests.sessions import SessionInfo
from aethermind.engine.scheduling.context_shift import ContextShift
from aethermind.engine.scheduling.decision import ScheduleDecision, StepBudget
from aethermind.engine.scheduling.preemption_cost import SwapVsRecomputeCosts
from aethermind.engine.scheduling.scheduler import Scheduler, WaitingQueue
from aethermind.engine.speculative import open_speculator
from aethermind.engine.steps.forced_tokens import forced_prefix, forced_tokens
from aethermind.engine.steps.model_runner import SampledToken
from aethermind.engine.steps.step_pipeline import StepPipeline
from aethermind.engine.text_pass import embed_text, score_prompt
from aethermind.engine.thread_safety import ThreadSafeEngine, synchronized_call
from aethermind.errors import AetherMindError, InvalidArgumentError
from aethermind.hal.backend import Backend
from aethermind.hal.device import UsageSampler
from aethermind.plugins.compatibility import deprecated
from aethermind.sampling.rows import derive_seed

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.executors import Executor
    from aethermind.engine.loading.adapters import AdapterSlots
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.model.input_processor import EmbeddingSpan
    from aethermind.sampling.guidance import Guide
    from aethermind.sampling.params import SamplingParams
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["Engine"]

_request_of = attrgetter("request")


class Engine(ThreadSafeEngine):
    """Continuous batching over one model.

    Threads may share it; a lock serialises their calls. Any thread may call a step, which computes tokens of all
    running requests. Every listener receives its output.
    """

    _close_offload: weakref.finalize[..., Engine] | None = None
    _released_on_close = frozenset(
        {
            "parts",
            "compiled",
            "executor",
            "cache",
            "swap_store",
            "sessions",
            "kv_offload",
            "runner",
            "scheduler",
            "prompts",
            "speculator",
            "waiting",
            "running",
            "pipeline",
            "_outputs",
            "_groups",
            "_pending_prompt_logprobs",
            "_constraints_builder",
            "device_usage",
            "memory_pressure",
        }
    )

    def __init__(
        self,
        parts: EngineParts,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float] = time.perf_counter,
        on_progress: Callable[[int, int], None] | None = None,
        executor: Executor | None = None,
    ) -> None:
        """Load the model and assemble the engine.

        Args:
            clock: returns the time in seconds.
            on_progress: called with (done, total) constants while weights are loaded.
            executor: runs the steps; by default a new one of `parts`.
        """
        self.parts = parts
        self.compiled = compiled = parts.compiled.with_end_tokens_of(tokenizer)
        config = compiled.config
        self.tokenizer = tokenizer
        self.costs = SwapVsRecomputeCosts(clock=clock)
        self.context_shift = ContextShift.of(compiled)
        self.executor = executor or parts.create_executor(compiled)
        super().__init__()
        memory = self.executor.kv_memory
        self.cache, prefix_cache, self.swap_store = open_cache(compiled, memory, self.costs, clock)
        self.sessions = open_sessions(compiled, memory, self.cache, prefix_cache, clock)
        self.kv_offload: KVOffload | None = None
        if prefix_cache is not None and parts.open_kv_store is not None:
            name = str(StoreAddress.parse(config.kv_store or ""))
            self.kv_offload = KVOffload(parts.open_kv_store(), name, self.cache, prefix_cache, memory, self.costs)
        # A finalizer, because `close` may never be called: pending blocks are written to the store in any case.
        self._close_offload = weakref.finalize(self, self.kv_offload.close) if self.kv_offload else None
        self.runner = self.executor.load(self.cache, on_progress)
        self.scheduler = Scheduler(
            self.cache,
            parts.policy,
            self.costs,
            overlaps_swaps_with_steps=memory.overlaps_swaps_with_steps,
            context_shift=self.context_shift,
            sessions=self.sessions,
        )
        self.speculator = open_speculator(self.runner, parts.create_proposer, self.cache, clock)
        max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        if self.cache.is_recurrent:
            max_num_seqs = min(max_num_seqs, compiled.cache_spec.max_sequences)
        self._largest_budget = self.budget = StepBudget(
            max_num_seqs,
            config.max_num_batched_tokens,
            config.max_prefill_chunk,
            max_draft_tokens=compiled.max_draft_tokens,
        )
        self.waiting = WaitingQueue(parts.policy)
        self.running: list[Request] = []
        queues = (self.waiting, self.running)
        self.pipeline = StepPipeline(self.runner, self.scheduler, self.cache, self.costs, queues, clock)
        self._outputs: dict[str, OutputBuilder] = {}
        self._groups = SampleGroups()
        self._pending_prompt_logprobs: Request | None = None
        self._constraints_builder = ConstraintsBuilder(compiled, tokenizer, parts.logits_processors)
        opened, num_ranks = compiled.open_device, config.tensor_parallel_size
        first = opened.device.index
        reports_usage = type(opened.backend).usage is not Backend.usage
        indices = range(first, first + num_ranks)
        self.device_usage = UsageSampler(opened.backend.usage, indices) if reports_usage else None
        self.memory_pressure: MemoryPressure | None = None
        if config.device_memory_threshold is not None:
            self.memory_pressure = MemoryPressure(opened, self.cache, memory, config.device_memory_threshold)
            self.memory_pressure.watch(self)
        self._clock = clock
        self._num_added = 0
        self.num_preemptions = 0
        """How often a request was preempted."""

    @classmethod
    def load(cls, parts: EngineParts, on_progress: Callable[[int, int], None] | None = None) -> Engine:
        """Load a model and its tokenizer. The tokenizer is read while the device allocates memory for the weights."""
        executor = parts.create_executor(parts.compiled)
        return cls(parts, parts.compiled.source.tokenizer(), on_progress=on_progress, executor=executor)

    def __repr__(self) -> str:
        requests = f"{len(self.running)} requests run, {len(self.waiting)} wait"
        return f"<Engine of {self.compiled.architecture} on {self.compiled.open_device.device}: {requests}>"

    @cached_property
    def prompts(self) -> PromptReader:
        """Tokenizes the model's prompts. Any thread may use it."""
        return PromptReader.of(self.compiled, self.tokenizer, self.parts.open_input_processor)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is open: waiting, running, or fetched from a KV store."""
        is_fetching = self.kv_offload is not None and self.kv_offload.num_waiting > 0
        return bool(self.waiting or self.running or is_fetching or self._groups)

    def prepare(self, params: SamplingParams) -> Future[Guide] | None:
        """Start to compile the grammar of a request's structured outputs in a thread; None if it has none.

        Steps are not delayed meanwhile. Any thread may call this.
        """
        return self._constraints_builder.prepare(params)

    @synchronized_call
    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        embeddings: Sequence[EmbeddingSpan] = (),
        options: RequestOptions | None = None,
        guide: Guide | None = None,
        is_chat: bool = False,
    ) -> None:
        """Queue a request.

        Args:
            embeddings: input embeddings that replace those of some of its token ids.
            options: options for the scheduler and the cache.
            guide: the result of `prepare` for its parameters, if that was called.
            is_chat: whether the output is a message of its own; otherwise it continues the prompt's text.

        InvalidArgumentError or ContextLengthError if its prompt cannot be served.
        """
        options = (options or RequestOptions()).within(self.compiled.config.max_new_tokens)
        self._check_id(request_id, params.n)
        if self.context_shift is not None and not embeddings:
            needs_all = params.prompt_logprobs is not None
            prompt_token_ids = self.context_shift.shortened(prompt_token_ids, needs_all=needs_all)
        check_prompt(self.compiled, prompt_token_ids, params, options)
        constraints = self._constraints_builder.build(params, guide)
        adapter = self.compiled.choose_adapter(options.adapter)
        if embeddings:
            check_embeddings(embeddings, len(prompt_token_ids), self.compiled.model.config.hidden_size)
            self.runner.prepare_embeddings(has_adapters=adapter.number >= 0)
            if params.prompt_logprobs is not None:
                raise InvalidArgumentError(
                    "prompt_logprobs cannot be combined with embeddings. Leave one of them out.",
                    param="prompt_logprobs",
                )
        self.sessions.expire()
        self.sessions.load_if_saved(options.session)
        engine_seed = derive_seed(self.compiled.config.seed, self._num_added)
        self._num_added += 1
        seed = engine_seed if params.seed is None else params.seed
        requests: list[Request] = []
        for index, member_id in enumerate(group_request_ids(request_id, params.n)):
            if index and constraints is not None:
                constraints = constraints.fork(self._constraints_builder.processors(params))
            request = Request(
                member_id,
                prompt_token_ids,
                params,
                self._clock(),
                max_model_len=self.compiled.max_model_len,
                options=options,
                seed=seed,
                eos_token_ids=self.compiled.eos_token_ids,
                embeddings=embeddings,
                constraints=constraints,
                adapter=adapter,
                shifts_context=self.context_shift is not None,
            )
            if index:  # the first completion keeps the seed, so that it equals that of n = 1
                request.seed = derive_seed(seed, index)
            requests.append(request)
        self._set_virtual_arrival(requests)
        builders = {
            request.request_id: OutputBuilder(
                request, prompt, self.tokenizer, index, is_chat=is_chat, visible_token_ids=options.visible_token_ids
            )
            for index, request in enumerate(requests)
        }
        for builder in builders.values():
            if builder.request.constraints is not None:
                for token_id in forced_prefix(builder.request):
                    builder.add_forced_token(token_id)
        self._outputs.update(builders)
        if params.n > 1:
            if self.cache.is_recurrent:
                for request in requests:
                    request.fork_at = request.num_prompt_tokens - 1
            self._groups.open(request_id, list(builders.values()))
        first = requests[0]
        first.needs_prompt_logprobs = params.prompt_logprobs is not None
        if first.needs_prompt_logprobs or self.kv_offload is None or not self.kv_offload.fetch(first):
            self.waiting.add(first, first.arrival)

    @synchronized_call
    def adjust(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_prefill_chunk: int | None = None,
    ) -> dict[str, int | None]:
        """Change the limits of later steps, and return all three by name; running requests continue.

        None leaves a limit unchanged. A max_prefill_chunk of max_num_batched_tokens or more has no effect.
        InvalidArgumentError for limits beyond those with which the engine was opened, because its memory is compiled
        for those.
        """
        limits = (max_num_seqs, max_num_batched_tokens, max_prefill_chunk)
        self.budget = budget = self.budget.changed(self._largest_budget, *limits)
        return {
            "max_num_seqs": budget.max_num_seqs,
            "max_num_batched_tokens": budget.max_num_batched_tokens,
            "max_prefill_chunk": budget.max_prefill_chunk,
        }

    @synchronized_call
    def relieve_memory_pressure(self) -> int:
        """Return memory of the KV cache to the system, if the device's memory is short; returns the number of bytes.

        With `device_memory_threshold`, a thread calls this once a second.
        """
        return 0 if self.memory_pressure is None else self.memory_pressure.relieve()

    @synchronized_call
    def load_adapter(self, name: str, path: str) -> list[str]:
        """Load a LoRA adapter between two steps. Later requests can name it. Returns the names of all adapters.

        InvalidArgumentError without `max_loras`, for a name that is in use, and if all slots are in use; ConfigError
        and CheckpointError for an adapter that does not fit the model.
        """
        slots = self._adapter_slots()
        in_use = {builder.request.adapter for builder in self._outputs.values()}
        for parameter, begin, rows, whole in slots.load(name, path, in_use):
            self.runner.constants.update_rows(parameter, begin, rows, whole)
        return list(slots.choices)

    @synchronized_call
    def unload_adapter(self, name: str) -> list[str]:
        """Unload a LoRA adapter, and return the names of those that remain. Open requests keep it until they end.

        InvalidArgumentError without `max_loras`, and for an unknown name.
        """
        slots = self._adapter_slots()
        slots.unload(name)
        return list(slots.choices)

    def _adapter_slots(self) -> AdapterSlots:
        adapters = self.compiled.adapters
        if adapters is None or adapters.slots is None:
            raise InvalidArgumentError(
                "Adapters can be loaded and unloaded only with max_loras, the number of slots for them. Start with "
                "--max-loras 4, for instance.",
                param="max_loras",
            )
        return adapters.slots

    @synchronized_call
    def manage_session(self, action: str, name: str = "") -> list[SessionInfo]:
        """List, save, load, delete or protect sessions (`RequestOptions.session`).

        Returns descriptions of the sessions concerned, empty if there is none.

        Args:
            action: list (all sessions whose names begin with `name`), save, load, delete, protect or unprotect.
        """
        sessions = self.sessions
        actions: dict[str, Callable[[str], list[SessionInfo]]] = {
            "list": sessions.describe,
            "save": sessions.save,
            "load": sessions.load,
            "delete": sessions.delete,
            "protect": lambda name: sessions.protect(name, is_protected=True),
            "unprotect": lambda name: sessions.protect(name, is_protected=False),
        }
        if action not in actions:
            raise InvalidArgumentError(
                f"There is no action {action!r:.80} of sessions; there are {', '.join(actions)}.", param="action"
            )
        return actions[action](name)

    @synchronized_call
    def save_sessions(self, on_saved: Callable[[], object]) -> None:
        """Save the sessions that have changed, as closing does; `on_saved` is called after each."""
        self.sessions.save_all(on_saved)

    def _abort(self, request_id: str) -> OutputSource | None:
        group = self._groups.get(request_id)
        if group is not None and group.request_id != request_id:
            return None  # the id of one request of a group, which is aborted only as a whole
        if group is not None:
            group.include(self._outputs[member.request_id] for member in group.requests if not member.is_finished)
            self._end_group(group)
        else:
            builder = self._outputs.pop(request_id, None)
            if builder is not None and builder.request.is_finished:
                builder = None
            if builder is not None:
                self._finish(builder.request, FinishReason.ABORT)
                builder.end(self._clock())
        if self.pipeline.is_orphaned:
            self.pipeline.drain()
        return builder if group is None else group

    @synchronized_call
    def embed(
        self, token_ids: Sequence[int], pooling: str | None, *, is_normalized: bool, adapter: str = ""
    ) -> npt.NDArray[np.float32]:
        """Compute the embedding of a text between steps: float32 [hidden_size] (see `text_pass.embed_text`).

        If `pooling` is None, the model's own is used. Raises InvalidArgumentError for an invalid text or an unknown
        adapter.
        """
        check_text(self.compiled, token_ids)
        pooling = self.compiled.pooling if pooling is None else pooling
        number = self.compiled.choose_adapter(adapter).number
        return embed_text(self.runner, self.cache, token_ids, pooling, is_normalized=is_normalized, adapter=number)

    @property
    def planned(self) -> CompiledModel:
        """Deprecated name of `compiled`."""
        deprecated("Engine.planned", instead="Engine.compiled", until="0.4")
        return self.compiled

    @synchronized_call
    def step(self) -> list[RequestOutput]:
        """Compute one step and return the cumulative outputs of the requests that have new output.

        Outputs of one request share their lists of tokens (see `CompletionOutput`), so their cost grows with the new
        tokens only.
        """
        return [source.output() for source in self.advance()]

    @synchronized_call
    def advance(self) -> Sequence[OutputSource]:
        """Compute one step and return the requests that have new output; read it with `OutputSource.delta`."""
        if self.kv_offload is not None and self.kv_offload.num_waiting:
            for request in self.kv_offload.arrived(may_wait=not (self.running or self.waiting)):
                self.waiting.add(request, request.arrival)
        updated: list[OutputBuilder] = (
            []
            if self._pending_prompt_logprobs is None
            else [*self._compute_prompt_logprobs(self._pending_prompt_logprobs)]
        )
        if self._groups:
            self._groups.start(self.cache, self._num_slots, self.waiting, self.running, self._clock())
        if self.speculator is not None:
            self.speculator.propose(self.running, self.budget.max_draft_tokens, is_alone=not self.waiting)
        is_next_known = self.speculator is None and not self._groups.has_pending
        step = self.pipeline.step(self.budget, is_next_known=is_next_known)
        sampled, now = step.sampled, step.ended
        if self.speculator is not None:
            sampled = self.speculator.verify(step.decision, sampled)
        updated += [self._append(request, tokens, now) for request, tokens in groupby(sampled, _request_of)]
        self._pending_prompt_logprobs = None
        for decision in step.decisions:
            self._pending_prompt_logprobs = decision.pending_prompt_logprobs
            self.num_preemptions += len(decision.preempted)
            if decision.rejected:
                updated += self._fail_rejected(decision, now)
        if self.pipeline.is_orphaned:
            self.pipeline.drain()
        sources: Sequence[OutputSource] = self._merge_groups(updated) if self._groups else updated
        self._publish(sources)
        return sources

    def _finish_work(self) -> None:
        self.sessions.save_all()
        if self._close_offload is not None:  # write the remaining blocks to the store
            self._close_offload()
        self.executor.close()

    def _append(self, request: Request, tokens: Iterable[SampledToken], now: float) -> OutputBuilder:
        """Append sampled tokens to a request, and tokens that its grammar forces; end the request if it is complete."""
        builder = self._outputs[request.request_id]
        for token in tokens if request.constraints is None else chain(tokens, forced_tokens(request)):
            if token.failure is not None:
                return self._fail(builder, token.failure, now)
            reason = builder.add(token.token_id, token.logprobs, request.append_token(token.token_id), now)
            if reason is not None:
                self._finish(request, reason)
                builder.end(now)
                del self._outputs[request.request_id]
                break
        return builder

    def _fail_rejected(self, decision: ScheduleDecision, now: float) -> list[OutputBuilder]:
        return [
            self._fail(self._outputs[entry.request.request_id], AetherMindError(entry.reason), now)
            for entry in decision.rejected
        ]

    def _fail(self, builder: OutputBuilder, error: AetherMindError, now: float) -> OutputBuilder:
        """Abort a request with an error."""
        del self._outputs[builder.request.request_id]
        self._finish(builder.request, FinishReason.ABORT)
        builder.end(now, error)
        return builder

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if self.kv_offload is not None:
            self.kv_offload.cancel(request)
        group = self._groups.get(request.request_id)
        if group is not None and reason is not FinishReason.ABORT:
            # Pending requests of its group are forked while it still holds the blocks of the prompt.
            num_slots = self._num_slots(request) + 1
            group.start(self.cache, num_slots, self.waiting, self.running, self._clock())
        self.pipeline.retain_blocks(request)
        self.scheduler.finish(request, reason, self.waiting, self.running)
        # An aborted output does not become part of the session: its next turn continues the last completed output.
        if request.session and reason is not FinishReason.ABORT:
            self.sessions.keep(request.session, request.all_token_ids, request.extra_key)
        if self.speculator is not None:
            self.speculator.forget(request.request_id)

    def _num_slots(self, request: Request) -> int:
        return self.scheduler.num_slots(request, self.running, self.budget)

    def _compute_prompt_logprobs(self, request: Request) -> list[OutputBuilder]:
        """Compute the log probabilities of a request's prompt; returns its builder if that failed, otherwise nothing.

        Without effect if too few blocks are available while others run: the scheduler proposes the request again.
        """
        num_blocks = self.cache.spec.num_blocks_for(request.num_prompt_tokens)
        if request.is_finished or (self.running and num_blocks > self.cache.num_available_blocks):
            return []
        builder = self._outputs[request.request_id]
        num_top = request.params.prompt_logprobs
        assert num_top is not None, "called for requests with prompt_logprobs"
        try:
            logprobs = score_prompt(self.runner, self.cache, request, num_top)
        except AetherMindError as error:
            return [self._fail(builder, error, self._clock())]
        builder.set_prompt_logprobs(logprobs)
        request.needs_prompt_logprobs = False
        return []

    def _merge_groups(self, builders: list[OutputBuilder]) -> list[OutputSource]:
        """Replace the builders of each group's requests by the group."""
        ungrouped, grouped = self._groups.partition(builders)
        for group, members in grouped:
            group.include(members)
            if group.is_finished or any(builder.error is not None for builder in members):
                self._end_group(group)
        return [*ungrouped, *(group for group, _ in grouped)]

    def _end_group(self, group: SampleGroup) -> None:
        """Abort the unfinished requests of a group and remove it."""
        self._groups.remove(group)
        group.pending.clear()
        for request in group.requests:
            builder = self._outputs.pop(request.request_id, None)
            if not request.is_finished:
                self._finish(request, FinishReason.ABORT)
                if builder is not None:
                    builder.end(self._clock())
        group.has_ended = True

    def _set_virtual_arrival(self, requests: list[Request]) -> None:
        """Set the virtual arrival of new requests of one prompt, if the policy is a `SharingPolicy`."""
        policy = self.scheduler.sharing
        if policy is not None:
            waiting = (
                builder.request
                for builder in self._outputs.values()
                if builder.request.state is not RequestState.RUNNING
            )
            virtual_arrival = policy.virtual_arrival(requests[0], waiting, self.running)
            for request in requests:
                request.virtual_arrival = virtual_arrival

    def _has(self, request_id: str) -> bool:
        return request_id in self._outputs or self._groups.get(request_id) is not None
