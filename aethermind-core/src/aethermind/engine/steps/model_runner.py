"""The model runner: computes a scheduled step and returns its sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, cast

from aethermind.cache.kv_cache import KVCache
from aethermind.cache.positions import BlockShift
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.model_graph import (
    LOGPROB_OUTPUTS,
    GraphKey,
    GraphKind,
    apply_rope_shift,
    reads_positions,
)
from aethermind.engine.loading.model_weights import open_constants
from aethermind.engine.requests.output import TokenLogprobs, read_logprobs
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.engine.steps.batch import (
    AdapterRows,
    BatchWriter,
    DecodePadding,
    EmbeddingRows,
    SampledRow,
    needs_adapters,
    needs_embeddings,
    request_of,
)
from aethermind.engine.steps.in_flight_step import InFlightStep, device_tokens, rows_of
from aethermind.engine.steps.prefill_stream import (
    StepStream,
    forked,
    joined_step,
    open_prefill_stream,
    open_step_stream,
)
from aethermind.errors import AetherMindError, ComputationError, ConfigError, DeviceError
from aethermind.graph.compile import Compiled
from aethermind.graph.constants import ConstantStore
from aethermind.graph.executor import DeviceInput, PlanExecutor
from aethermind.graph.hooks import HookRegistry
from aethermind.model.rope import FREQUENCIES
from aethermind.plugins.compatibility import deprecated
from aethermind.sampling.rows import AdjustmentSizes, SamplingRows, needs_adjusted_logits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.requests.request import Request
    from aethermind.hal.stream import Stream

__all__ = ["ModelRunner", "NOT_FINITE", "SampledToken", "StepObserver", "nonfinite_rows", "process_logits"]

_PLAIN = GraphKey()
_ADAPTED = GraphKey(has_adapters=True)
_NO_RANGE = nullcontext()

StepObserver = Callable[[PlanExecutor, tuple[int, ...], ScheduleDecision], None]
"""Runs a step in place of `executor.run(symbols)`, for instance to time it.

Each run advances recurrent states, so an observer that runs a step again restores them (`KVMemory.save_states`)."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of a request, or `failure`, the error with which the request ends.

    A request with drafts has one token behind each of them, which is valid if the drafts before it are accepted.
    """

    request: Request
    token_id: int
    logprobs: TokenLogprobs | None = None
    failure: AetherMindError | None = None


class _Variant:
    """One compiled graph with its memory and the writers of its inputs, which are created on first use."""

    def __init__(self, executor: PlanExecutor, cache: KVCache) -> None:
        self.executor = executor
        self._cache = cache

    @cached_property
    def batch(self) -> BatchWriter:
        """The writer of a batch, for graphs that begin with tokens."""
        return BatchWriter(self.executor.host_inputs, self._cache)

    @cached_property
    def rows(self) -> SamplingRows:
        """The writer of sampling parameters, for graphs that end in sampled tokens."""
        return SamplingRows(self.executor.host_inputs)

    @cached_property
    def logits(self) -> np.ndarray[Any, Any] | None:
        """The logits of the last step, f32 [max rows, V]; None if the host cannot access them."""
        executor = self.executor
        return None if executor.copies_inputs else executor.output("logits", tuple(executor.plan.symbols.values()))

    @cached_property
    def embeddings(self) -> EmbeddingRows:
        """The writer of prompt embeddings, for graphs that have them."""
        values = self.executor.plan.inputs["inputs_embeds"]
        return EmbeddingRows(self.executor.host_inputs, cast(int, values.shape[1]))

    @cached_property
    def adapters(self) -> AdapterRows:
        """The writer of adapter numbers, for graphs that have them."""
        return AdapterRows(self.executor.host_inputs)


class ModelRunner:
    """Owns the weights and executors of one model on one device; `kv_memory` is the memory of the blocks of `cache`.

    `hooks` receive values of steps. `observer`, if set, runs the steps for which no hook is active.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        cache: KVCache,
        kv_memory: KVMemory,
        on_progress: Callable[[int, int], None] | None = None,
        constants: ConstantStore | None = None,
    ) -> None:
        self.compiled = compiled
        self._cache = cache
        self._backend = compiled.open_device.backend
        self._device = compiled.open_device.device
        self._main = open_step_stream(compiled)
        self._prefill = open_prefill_stream(compiled)
        self.kv_memory = kv_memory
        self.constants = constants or open_constants(compiled)
        self._on_progress = on_progress
        self._ranges = self._backend.profiler_ranges() if compiled.config.profiler_ranges else None
        self._plain = self._prepare(compiled.step, compiled.key, self._main)
        self._variants = {(compiled.key, True, False): self._plain}
        if self._prefill is not None:  # opened at load, so that its memory is counted
            self._variant(compiled.key, on=self._prefill)
        self.overlaps_prefill = self._prefill is not None
        """Whether steps that decode and prefill run on two streams; may be set to False and back between steps."""
        if compiled.adapters is not None:  # compiled at load, so that its memory and its errors show before any request
            self._variant(_ADAPTED)
        batch_sizes = self._backend.capabilities.batch_sizes
        self._padding = (
            DecodePadding(self.executor.host_inputs, compiled.step.plan.symbols, batch_sizes)
            if batch_sizes and compiled.key == _PLAIN
            else None
        )
        self.hooks = HookRegistry(partial(_value_names, compiled))  # a method would be a cycle that keeps the weights
        self.observer: StepObserver | None = None
        self._last_run: tuple[PlanExecutor, tuple[int, ...]] | None = None

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of device memory for keys, values and recurrent states."""
        return self.kv_memory.nbytes

    @property
    def executor(self) -> PlanExecutor:
        """The executor of plain steps."""
        return self._plain.executor

    @property
    def executors(self) -> list[PlanExecutor]:
        """The executors of all graphs that were used so far."""
        return [variant.executor for variant in self._variants.values()]

    @property
    def is_observed(self) -> bool:
        """Whether steps are to run one at a time: hooks or an observer are active, or `run` was replaced."""
        is_replaced = getattr(self.run, "__func__", None) is not ModelRunner.run
        return is_replaced or self.hooks.is_active or self.observer is not None

    def run(self, decision: ScheduleDecision) -> list[SampledToken]:
        """Compute a step: the KV of its tokens, and a sampled token for each logits row."""
        return self.launch(decision).read()

    def launch(self, decision: ScheduleDecision, before: InFlightStep | None = None) -> InFlightStep:
        """Enqueue a step. With `before`, a step that is not read yet, it takes that step's tokens on the device."""
        # Copies and shifts come first: the cache does not request them again if the step fails.
        self.kv_memory.wait_for_swaps(lambda: self._blocks_of(decision))
        self.kv_memory.copy_blocks(decision.copies)
        self.kv_memory.copy_states(self._cache.state_copies)
        if decision.shifts:
            self.apply_rope_shift(decision.shifts)
        if self._prefill is None or not self.overlaps_prefill or decision.phase != "mixed" or self.is_observed:
            return self._launch(decision, self._main, before)
        decodes, prefills = decision.split()
        with forked(self._backend, self._main.stream, self._prefill.stream):
            parts = self._launch(decodes, self._main, before), self._launch(prefills, self._prefill)
        return joined_step(self._backend, self._main.stream, decision, *parts)

    def _launch(self, decision: ScheduleDecision, on: StepStream, before: InFlightStep | None = None) -> InFlightStep:
        wanted, has_processors = _required_graph(decision, may_adapt=self.compiled.adapters is not None)
        model = wanted._replace(is_adjusted=False, has_mask=False) if has_processors else wanted
        hooks = self.hooks
        is_plain = model == _PLAIN and not hooks.is_active and not on.is_for_prefill
        variant = self._plain if is_plain else self._variant(model, hooks.fuse, on)
        is_decode = is_plain and decision.num_decodes == len(decision.scheduled)
        if is_decode and self._padding is not None and self.observer is None:
            sampled, symbols = self._write_padded(self._padding, decision)
        else:
            sampled, symbols = self._write(variant, model, decision)
        device_inputs = device_tokens(decision, before) if before is not None else ()
        with _NO_RANGE if self._ranges is None else self._ranges(decision.phase, on.stream):
            failures = self._run(variant, model, symbols, sampled, decision, device_inputs)
        self._last_run = variant.executor, symbols
        if on.readback is not None and not has_processors:
            found = [variant.executor.output_tensor(name, symbols) for name in _fetched_outputs(sampled)]
            rows = [rows_of(output, 0, len(sampled)) for output in found]
            arrived = on.readback.enqueue(rows)
            looks_back = any(sampled_row.params.looks_back for sampled_row in sampled)
            return InFlightStep(
                decision,
                sampled,
                lambda: self._tokens(variant, model, sampled, arrived(), failures, variant.logits),
                None if looks_back else rows[0],
            )

        def read() -> list[SampledToken]:
            variant.executor.synchronize()
            if not sampled:
                return []
            if has_processors:
                logits = variant.executor.output("logits", symbols)[: len(sampled)]
                return self._sample_processed(wanted, sampled, logits)
            outputs = [variant.executor.output(name, symbols)[: len(sampled)] for name in _fetched_outputs(sampled)]
            return self._tokens(variant, model, sampled, outputs, failures, variant.logits)

        return InFlightStep(decision, sampled, read)

    def wait(self) -> None:
        """Wait until the device is idle, and ignore its errors."""
        for one in (self._main, self._prefill):
            if one is not None:
                with suppress(DeviceError):
                    one.stream.synchronize()

    def _blocks_of(self, decision: ScheduleDecision) -> set[int]:
        """Return the blocks that a step reads or writes."""
        tables = (self._cache.held_blocks(entry.request.request_id) for entry in decision.scheduled)
        return {source for source, _ in decision.copies}.union(*tables)

    def _write(
        self, variant: _Variant, key: GraphKey, decision: ScheduleDecision
    ) -> tuple[list[SampledRow], tuple[int, ...]]:
        """Write a step's inputs; returns the requests of the logits rows, and the plan's symbols."""
        sampled, width = variant.batch.write(decision)
        sizes = self._fill_rows(variant, key, sampled)
        num_embeddings = variant.embeddings.fill(decision) if key.has_embeddings else 0
        if key.has_adapters:
            variant.adapters.fill(decision, sampled)
        counts = (decision.num_batched_tokens, len(decision.scheduled), len(sampled))
        return sampled, (*counts, width, *sizes, num_embeddings)

    def _write_padded(
        self, padding: DecodePadding, decision: ScheduleDecision
    ) -> tuple[list[SampledRow], tuple[int, ...]]:
        """Write a step of plain decodes, padded to a batch size that the device has prepared."""
        sampled, width = self._plain.batch.write(decision, padding.width)
        self._plain.rows.fill(sampled)
        padded = padding.rows(len(sampled))
        padding.write(len(sampled), padded, width)
        return sampled, (padded, padded, padded, width, 0, 0, 0, 0)

    def executor_of(self, part: GraphKind, adapter: int = -1) -> PlanExecutor:
        """Return the executor of a graph for whole texts, set to the adapter of that number, if any."""
        variant = self._variant(GraphKey(kind=part, has_adapters=adapter >= 0))
        if adapter >= 0:
            variant.adapters.fill_all(adapter)
        return variant.executor

    def apply_rope_shift(self, shifts: Sequence[BlockShift]) -> None:
        """Rotate cached keys to the current positions of their tokens (K-shift), before a step reads them.

        Keys of a model without positions remain as they are. ConfigError if it has positions of another kind.
        """
        if FREQUENCIES not in self.compiled.computed:
            if not reads_positions(self.compiled.step.graph):
                return
            raise ConfigError("This model's keys have no rotary positions, so its cached tokens cannot be moved.")
        apply_rope_shift(self.executor_of(GraphKind.KEY_SHIFT), shifts)

    def turn_keys(self, shifts: Sequence[BlockShift]) -> None:
        """Deprecated name of `apply_rope_shift`."""
        deprecated("ModelRunner.turn_keys", instead="apply_rope_shift", until="0.3")
        self.apply_rope_shift(shifts)

    def prepare_embeddings(self, *, has_adapters: bool = False) -> None:
        """Compile the graph with prompt embeddings, so that a model that cannot take them fails before a step runs."""
        self._variant(GraphKey(has_embeddings=True, has_adapters=has_adapters))

    def logits(self, num_rows: int) -> np.ndarray[Any, Any]:
        """Return the logits of the last plain, fused step, float32 [num_rows, V]; the next step overwrites them."""
        logits: np.ndarray[Any, Any] = self._plain.executor.output("logits", (0, 0, num_rows, 0, 0, 0, 0, 0))
        return logits

    def hidden_states(self, num_rows: int) -> np.ndarray[Any, Any]:
        """Return the first rows of the output `hidden_states` of the last step, F[num_rows, hidden_size], for a model
        that has it (see `CompiledModel.outputs_hidden_states`); the next step may overwrite them.
        """
        assert self._last_run is not None, "a step has run"
        executor, symbols = self._last_run
        hidden_states: np.ndarray[Any, Any] = executor.output("hidden_states", symbols)[:num_rows]
        return hidden_states

    def open_executor(self, compiled: Compiled, key: GraphKey, stream: Stream) -> PlanExecutor:
        """Create the executor of a graph's plan, whose constants are loaded."""
        tensors = self.kv_memory.tensors
        return PlanExecutor(
            compiled.plan, self._backend, self._device, self.constants, tensors, stream, ranges=self._ranges
        )

    def _prepare(self, compiled: Compiled, key: GraphKey, on: StepStream) -> _Variant:
        self.constants.load(compiled.plan, self._on_progress)
        return _Variant(self.open_executor(compiled, key, on.stream), self._cache)

    def _variant(self, key: GraphKey, fuse: bool = True, on: StepStream | None = None) -> _Variant:
        on = self._main if on is None else on
        variant = self._variants.get((key, fuse, on.is_for_prefill))
        if variant is None:
            is_plain = key == self.compiled.key and fuse
            compiled = self.compiled.step if is_plain else self.compiled.compile(key, fuse=fuse)
            variant = self._variants[key, fuse, on.is_for_prefill] = self._prepare(compiled, key, on)
        return variant

    def _fill_rows(self, variant: _Variant, key: GraphKey, sampled: list[SampledRow]) -> AdjustmentSizes:
        variant.rows.fill(sampled)
        return variant.rows.fill_adjustments(sampled) if key.is_adjusted else (0, 0, 0)

    def _run(
        self,
        variant: _Variant,
        key: GraphKey,
        symbols: tuple[int, ...],
        sampled: list[SampledRow],
        decision: ScheduleDecision,
        device_inputs: Sequence[DeviceInput],
    ) -> dict[int, str]:
        """Run a step, and write token masks while the device computes. Returns by row why an answer cannot go on."""
        hooks, failures = self.hooks, dict[int, str]()
        if key.has_mask and not hooks.is_active and self.observer is None:
            variant.executor.run_with_late_input(
                symbols, "token_mask", lambda: failures.update(variant.rows.masks.fill(sampled)), device_inputs
            )
            return failures
        if key.has_mask:
            failures = variant.rows.masks.fill(sampled)
        if hooks.is_active:
            hooks.run(variant.executor, symbols, decision.phase, decision.num_batched_tokens)
        elif self.observer is not None:
            self.observer(variant.executor, symbols, decision)
        else:
            variant.executor.run(symbols, device_inputs)
        return failures

    def _sample_processed(
        self, wanted: GraphKey, sampled: list[SampledRow], logits: np.ndarray[Any, Any]
    ) -> list[SampledToken]:
        """Sample from logits after the requests' logits processors have changed them on the host."""
        key = GraphKey(wanted.is_adjusted, wanted.has_mask, kind=GraphKind.SAMPLER)
        variant = self._variant(key)
        rows = variant.executor.host_inputs["logits"][: logits.size].reshape(logits.shape)
        rows[:] = logits
        failures = {}
        for row, request in enumerate(sampled):
            if request.constraints is not None and (failure := process_logits(request, rows[row])) is not None:
                failures[row] = failure
        symbols = (0, 0, len(sampled), 0, *self._fill_rows(variant, key, sampled), 0)
        if key.has_mask:
            failures |= variant.rows.masks.fill(sampled)
        variant.executor.run(symbols)
        variant.executor.synchronize()
        outputs = [variant.executor.output(name, symbols) for name in _fetched_outputs(sampled)]
        return self._tokens(variant, key, sampled, outputs, failures, rows)

    def _tokens(
        self,
        variant: _Variant,
        key: GraphKey,
        sampled: list[SampledRow],
        outputs: list[np.ndarray[Any, Any]],
        failures: dict[int, str],
        logits: np.ndarray[Any, Any] | None,
    ) -> list[SampledToken]:
        """Build the sampled tokens from the outputs of `_fetched_outputs`, one row for each of `sampled`.

        `logits` are checked for NaN and infinity if the host can access them.
        """
        token_ids = outputs[0].tolist()
        unfit = () if logits is None else nonfinite_rows(logits, token_ids)
        if key in (_PLAIN, _ADAPTED) and not unfit:
            return [
                SampledToken(request_of(sampled_row), token_id)
                for sampled_row, token_id in zip(sampled, token_ids, strict=True)
            ]
        wanted = [sampled_row.params.logprobs for sampled_row in sampled]
        logprobs = read_logprobs(outputs[1:], wanted) if outputs[1:] else [None] * len(sampled)
        unlikely = (row for row, chosen in enumerate(logprobs) if chosen is not None and not isfinite(chosen.logprob))
        nonfinite = {*unfit, *unlikely} - failures.keys()
        failures = dict.fromkeys(nonfinite, NOT_FINITE) | failures
        if key.has_mask:
            for row, (sampled_row, token_id) in enumerate(zip(sampled, token_ids, strict=True)):
                if row not in failures and not variant.rows.masks.allows(row, sampled_row, token_id):
                    failures[row] = "its constraints exclude every token"
        errors: dict[int, AetherMindError] = {}
        for row, reason in failures.items():
            kind = ComputationError if row in nonfinite else AetherMindError
            errors[row] = kind(f"Request {request_of(sampled[row]).request_id} cannot go on: {reason}.")
        return [
            SampledToken(request_of(sampled_row), token_id, row_logprobs, errors.get(row))
            for row, (sampled_row, token_id, row_logprobs) in enumerate(zip(sampled, token_ids, logprobs, strict=True))
        ]


def _value_names(compiled: CompiledModel, fuse: bool) -> list[str]:
    """Return the names of all values that steps compute, including adjusted and masked steps."""
    keys = [_PLAIN, GraphKey(True), GraphKey(False, True), *([_ADAPTED] if compiled.adapters else [])]
    plans = [compiled.compile(key, fuse=fuse).plan for key in keys]
    return list(dict.fromkeys(name for plan in plans for step in plan.steps for name in step.names))


def _fetched_outputs(sampled: Sequence[SampledRow]) -> tuple[str, ...]:
    """Return the outputs of a step that the host reads."""
    has_logprobs = any(sampled_row.params.logprobs is not None for sampled_row in sampled)
    return ("token_ids", *LOGPROB_OUTPUTS) if has_logprobs else ("token_ids",)


def _required_graph(decision: ScheduleDecision, *, may_adapt: bool) -> tuple[GraphKey, bool]:
    """Return the graph that a step needs, and whether logits processors run; adapters are checked if `may_adapt`."""
    key, has_processors = _PLAIN, False
    # Fast path: mostly all requests are plain.
    if any(entry.needs_logits and not entry.request.params.is_plain for entry in decision.scheduled):
        requests = [entry.request for entry in decision.scheduled if entry.needs_logits]
        is_masked = any(request.params.is_masked for request in requests)
        key = GraphKey(any(map(needs_adjusted_logits, requests)), is_masked)
        has_processors = any(request.params.logits_processors for request in requests)
    if needs_embeddings(decision):
        key = key._replace(has_embeddings=True)
    if may_adapt and needs_adapters(decision):
        key = key._replace(has_adapters=True)
    return key, has_processors


NOT_FINITE = "the model's logits are not finite: try dtype='float32', or fetch the weights again"
"""The reason why a request has no next token, as the end of a sentence."""


def nonfinite_rows(values: np.ndarray[Any, Any], token_ids: Sequence[int]) -> list[int]:
    """Return the rows of `values` [R or more, V] in which the value of the row's token is not finite.

    A NaN or infinity in a hidden state reaches every logit computed from it, so the logit of the chosen token is enough
    to detect it. The check reads one value a row, and only where the host can access the logits. On other devices,
    where the logits would have to be copied in every step, log probabilities show it if a request asks for them.

    Masked tokens have the value -inf, so a chosen token with -inf is an error too, unless the whole row is masked.
    """
    value = values.item
    found = []
    for row, token_id in enumerate(token_ids):
        try:
            is_number = isfinite(value(row, token_id))
        except IndexError:  # a sampler that compares with NaN may return any id
            is_number = False
        if not is_number and values[row].max() != -inf:
            found.append(row)
    return found


def process_logits(request: SampledRow, logits: npt.NDArray[np.float32]) -> str | None:
    """Apply a request's logits processors to its row, float32 [V]; returns the error of one that failed, else None."""
    assert request.constraints is not None, "only requests with constraints have processors"
    for name, processor in zip(request.params.logits_processors, request.constraints.processors, strict=True):
        try:
            processor(request.prompt_token_ids, request.output_token_ids, logits)
        except Exception as error:  # third-party code: only its own request ends
            return f"the logits processor {name} failed with {type(error).__name__}: {error}"
    return None
