"""The model runner: computes a scheduled step and returns its sampled tokens.

A step runs one of several graphs: most run the plain one, others a variant for adjusted logits, token masks, prompt
embeddings or LoRA adapters (`GraphKey`). A run is given `symbols`, the sizes of the plan's symbolic dims in the order
of `Plan.symbols`: T tokens, S sequences, R logits rows, B columns of the block tables, X, Y and Z entries of the
adjusted sampler's token lists, E embeddings.
"""

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
from aethermind.sampling.rows import AdjustmentSizes, SamplingRows, is_in_tag, needs_adjusted_logits, needs_mask

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from aethermind.engine.requests.request import Request
    from aethermind.hal.stream import Stream

__all__ = ["ModelRunner", "NOT_FINITE", "SampledToken", "StepObserver", "nonfinite_rows", "process_logits"]

_PLAIN = GraphKey()
_WITH_ADAPTERS = GraphKey(has_adapters=True)
_NO_PROFILER_RANGE = nullcontext()

StepObserver = Callable[[PlanExecutor, tuple[int, ...], ScheduleDecision], None]
"""Runs a step in place of `executor.run(symbols)`, for instance to time it.

Each run advances recurrent states, so an observer that runs a step again restores them (`KVMemory.save_states`)."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of a request, or `failure`, the error with which the request ends.

    A request with drafts has one token after each of them. It is valid if the drafts before it are accepted.
    """

    request: Request
    token_id: int
    logprobs: TokenLogprobs | None = None
    failure: AetherMindError | None = None


class _LoadedGraph:
    """A compiled graph with its executor, and the writers of its inputs, which are created on first use."""

    def __init__(self, executor: PlanExecutor, cache: KVCache) -> None:
        self.executor = executor
        self._cache = cache

    @cached_property
    def batch(self) -> BatchWriter:
        """The writer of the batch, for graphs whose inputs are tokens."""
        return BatchWriter(self.executor.host_inputs, self._cache)

    @cached_property
    def rows(self) -> SamplingRows:
        """The writer of sampling parameters, for graphs whose outputs are sampled tokens."""
        return SamplingRows(self.executor.host_inputs)

    @cached_property
    def logits(self) -> np.ndarray[Any, Any] | None:
        """A view of the output logits, float32 [max R, V]; None if the host cannot access them."""
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

    `hooks` receive intermediate values of steps. `observer`, if set, runs the steps for which no hook is active.
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
        self._main_stream = open_step_stream(compiled)
        self._prefill_stream = open_prefill_stream(compiled)
        self.kv_memory = kv_memory
        self.constants = constants or open_constants(compiled)
        self._on_progress = on_progress
        self._ranges = self._backend.profiler_ranges() if compiled.config.profiler_ranges else None
        self._plain = self._load_graph(compiled.step, compiled.key, self._main_stream)
        self._loaded_graphs = {(compiled.key, True, False): self._plain}
        if self._prefill_stream is not None:  # opened at load, so that its memory is counted with the model's
            self._loaded_graph(compiled.key, step_stream=self._prefill_stream)
        self.overlaps_prefill = self._prefill_stream is not None
        """Whether steps that decode and prefill run on two streams; may be set to False and back between steps."""
        if compiled.adapters is not None:  # compiled at load, so that errors are raised then, and memory is counted
            self._loaded_graph(_WITH_ADAPTERS)
        batch_sizes = self._backend.capabilities.batch_sizes
        self._padding = (
            DecodePadding(self.executor.host_inputs, compiled.step.plan.symbols, batch_sizes)
            if batch_sizes and compiled.key == _PLAIN
            else None
        )
        # `partial` instead of a bound method: a reference cycle would keep the weights.
        self.hooks = HookRegistry(partial(_value_names, compiled))
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
        return [loaded.executor for loaded in self._loaded_graphs.values()]

    @property
    def is_observed(self) -> bool:
        """Whether steps have to run one at a time: hooks or an observer are active, or `run` was replaced."""
        is_replaced = getattr(self.run, "__func__", None) is not ModelRunner.run
        return is_replaced or self.hooks.is_active or self.observer is not None

    def run(self, decision: ScheduleDecision) -> list[SampledToken]:
        """Compute a step: the keys and values of its tokens, and a sampled token for each logits row."""
        return self.launch(decision).read()

    def launch(self, decision: ScheduleDecision, previous: InFlightStep | None = None) -> InFlightStep:
        """Enqueue a step. If the tokens of the step `previous` are not read yet, they are copied on the device."""
        # Copies and shifts come first: the cache does not request them again if the step fails.
        self.kv_memory.wait_for_swaps(lambda: self._blocks_of(decision))
        self.kv_memory.copy_blocks(decision.copies)
        self.kv_memory.copy_states(self._cache.state_copies)
        if decision.shifts:
            self.apply_rope_shift(decision.shifts)
        if self._prefill_stream is None or not self.overlaps_prefill or decision.phase != "mixed" or self.is_observed:
            return self._launch(decision, self._main_stream, previous)
        decodes, prefills = decision.split()
        with forked(self._backend, self._main_stream.stream, self._prefill_stream.stream):
            runs = self._launch(decodes, self._main_stream, previous), self._launch(prefills, self._prefill_stream)
        return joined_step(self._backend, self._main_stream.stream, decision, *runs)

    def _launch(
        self, decision: ScheduleDecision, step_stream: StepStream, previous: InFlightStep | None = None
    ) -> InFlightStep:
        required, has_processors = _required_graph(decision, may_adapt=self.compiled.adapters is not None)
        key = required._replace(is_adjusted=False, has_mask=False) if has_processors else required  # sampled afterwards
        hooks = self.hooks
        is_plain = key == _PLAIN and not hooks.is_active and not step_stream.is_for_prefill
        loaded = self._plain if is_plain else self._loaded_graph(key, hooks.fuse, step_stream)
        is_decode = is_plain and decision.num_decodes == len(decision.scheduled)
        if is_decode and self._padding is not None and self.observer is None:
            sampled, symbols = self._write_padded(self._padding, decision)
        else:
            sampled, symbols = self._write(loaded, key, decision)
        device_inputs = device_tokens(decision, previous) if previous is not None else ()
        with _NO_PROFILER_RANGE if self._ranges is None else self._ranges(decision.phase, step_stream.stream):
            failures = self._run(loaded, key, symbols, sampled, decision, device_inputs)
        self._last_run = loaded.executor, symbols
        if step_stream.readback is not None and not has_processors:
            outputs = [loaded.executor.output_tensor(name, symbols) for name in _fetched_outputs(sampled)]
            rows = [rows_of(output, 0, len(sampled)) for output in outputs]
            read_rows = step_stream.readback.enqueue(rows)
            looks_back = any(row.params.looks_back for row in sampled) or (
                key.has_mask and any(map(is_in_tag, sampled))
            )
            return InFlightStep(
                decision,
                sampled,
                lambda: self._tokens(loaded, key, sampled, read_rows(), failures, loaded.logits),
                None if looks_back else rows[0],
            )

        def read() -> list[SampledToken]:
            loaded.executor.synchronize()
            if not sampled:
                return []
            if has_processors:
                logits = loaded.executor.output("logits", symbols)[: len(sampled)]
                return self._sample_processed(required, sampled, logits)
            outputs = [loaded.executor.output(name, symbols)[: len(sampled)] for name in _fetched_outputs(sampled)]
            return self._tokens(loaded, key, sampled, outputs, failures, loaded.logits)

        return InFlightStep(decision, sampled, read)

    def wait(self) -> None:
        """Wait until the device is idle, and ignore its errors."""
        for step_stream in (self._main_stream, self._prefill_stream):
            if step_stream is not None:
                with suppress(DeviceError):
                    step_stream.stream.synchronize()

    def _blocks_of(self, decision: ScheduleDecision) -> set[int]:
        """Return the blocks that a step reads or writes."""
        tables = (self._cache.held_blocks(entry.request.request_id) for entry in decision.scheduled)
        return {source for source, _ in decision.copies}.union(*tables)

    def _write(
        self, loaded: _LoadedGraph, key: GraphKey, decision: ScheduleDecision
    ) -> tuple[list[SampledRow], tuple[int, ...]]:
        """Write a step's inputs; returns the requests of the logits rows, and the sizes of the plan's symbolic dims."""
        sampled, width = loaded.batch.write(decision)
        sizes = self._fill_rows(loaded, key, sampled)
        num_embeddings = loaded.embeddings.fill(decision) if key.has_embeddings else 0
        if key.has_adapters:
            loaded.adapters.fill(decision, sampled)
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

    def executor_of(self, kind: GraphKind, adapter: int = -1) -> PlanExecutor:
        """Return the executor of a graph that computes whole texts or shifts keys.

        All tokens are computed with the adapter of that number, unless it is negative.
        """
        loaded = self._loaded_graph(GraphKey(kind=kind, has_adapters=adapter >= 0))
        if adapter >= 0:
            loaded.adapters.fill_all(adapter)
        return loaded.executor

    def apply_rope_shift(self, shifts: Sequence[BlockShift]) -> None:
        """Rotate cached keys to the current positions of their tokens (K-shift), before a step reads them.

        Keys of a model without position embeddings remain as they are. ConfigError for position embeddings other than
        rotary ones.
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
        """Compile the graph with prompt embeddings; ConfigError if the model does not take them."""
        self._loaded_graph(GraphKey(has_embeddings=True, has_adapters=has_adapters))

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
        """Create the executor of a graph's plan. The constants have to be loaded."""
        tensors = self.kv_memory.tensors
        return PlanExecutor(
            compiled.plan, self._backend, self._device, self.constants, tensors, stream, ranges=self._ranges
        )

    def _load_graph(self, compiled: Compiled, key: GraphKey, step_stream: StepStream) -> _LoadedGraph:
        self.constants.load(compiled.plan, self._on_progress)
        return _LoadedGraph(self.open_executor(compiled, key, step_stream.stream), self._cache)

    def _loaded_graph(self, key: GraphKey, fuse: bool = True, step_stream: StepStream | None = None) -> _LoadedGraph:
        step_stream = self._main_stream if step_stream is None else step_stream
        loaded = self._loaded_graphs.get((key, fuse, step_stream.is_for_prefill))
        if loaded is None:
            is_plain = key == self.compiled.key and fuse
            compiled = self.compiled.step if is_plain else self.compiled.compile(key, fuse=fuse)
            loaded = self._loaded_graphs[key, fuse, step_stream.is_for_prefill] = self._load_graph(
                compiled, key, step_stream
            )
        return loaded

    def _fill_rows(self, loaded: _LoadedGraph, key: GraphKey, sampled: list[SampledRow]) -> AdjustmentSizes:
        loaded.rows.fill(sampled)
        return loaded.rows.fill_adjustments(sampled) if key.is_adjusted else (0, 0, 0)

    def _run(
        self,
        loaded: _LoadedGraph,
        key: GraphKey,
        symbols: tuple[int, ...],
        sampled: list[SampledRow],
        decision: ScheduleDecision,
        device_inputs: Sequence[DeviceInput],
    ) -> dict[int, str]:
        """Run a step, and write token masks while the device computes. Returns the rows that cannot be sampled, with
        reasons.
        """
        hooks, failures = self.hooks, dict[int, str]()
        if key.has_mask and not hooks.is_active and self.observer is None:
            loaded.executor.run_with_late_input(
                symbols, "token_mask", lambda: failures.update(loaded.rows.masks.fill(sampled)), device_inputs
            )
            return failures
        if key.has_mask:
            failures = loaded.rows.masks.fill(sampled)
        if hooks.is_active:
            hooks.run(loaded.executor, symbols, decision.phase, decision.num_batched_tokens)
        elif self.observer is not None:
            self.observer(loaded.executor, symbols, decision)
        else:
            loaded.executor.run(symbols, device_inputs)
        return failures

    def _sample_processed(
        self, required: GraphKey, sampled: list[SampledRow], logits: np.ndarray[Any, Any]
    ) -> list[SampledToken]:
        """Sample from logits after the requests' logits processors have changed them on the host."""
        key = GraphKey(required.is_adjusted, required.has_mask, kind=GraphKind.SAMPLER)
        loaded = self._loaded_graph(key)
        rows = loaded.executor.host_inputs["logits"][: logits.size].reshape(logits.shape)
        rows[:] = logits
        failures = {}
        for row, request in enumerate(sampled):
            if request.constraints is not None and (failure := process_logits(request, rows[row])) is not None:
                failures[row] = failure
        symbols = (0, 0, len(sampled), 0, *self._fill_rows(loaded, key, sampled), 0)
        if key.has_mask:
            failures |= loaded.rows.masks.fill(sampled)
        loaded.executor.run(symbols)
        loaded.executor.synchronize()
        outputs = [loaded.executor.output(name, symbols) for name in _fetched_outputs(sampled)]
        return self._tokens(loaded, key, sampled, outputs, failures, rows)

    def _tokens(
        self,
        loaded: _LoadedGraph,
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
        nan_rows = () if logits is None else nonfinite_rows(logits, token_ids)
        if key in (_PLAIN, _WITH_ADAPTERS) and not nan_rows:
            return [
                SampledToken(request_of(sampled_row), token_id)
                for sampled_row, token_id in zip(sampled, token_ids, strict=True)
            ]
        num_top = [sampled_row.params.logprobs for sampled_row in sampled]
        logprobs = read_logprobs(outputs[1:], num_top) if outputs[1:] else [None] * len(sampled)
        without_logprob = (
            row for row, entry in enumerate(logprobs) if entry is not None and not isfinite(entry.logprob)
        )
        nonfinite = {*nan_rows, *without_logprob} - failures.keys()
        failures = dict.fromkeys(nonfinite, NOT_FINITE) | failures
        if key.has_mask:
            for row, (sampled_row, token_id) in enumerate(zip(sampled, token_ids, strict=True)):
                if row not in failures and not loaded.rows.masks.allows(row, sampled_row, token_id):
                    failures[row] = "its constraints exclude every token"
        errors: dict[int, AetherMindError] = {}
        for row, reason in failures.items():
            error_type = ComputationError if row in nonfinite else AetherMindError
            errors[row] = error_type(f"Request {request_of(sampled[row]).request_id} cannot go on: {reason}.")
        return [
            SampledToken(request_of(sampled_row), token_id, row_logprobs, errors.get(row))
            for row, (sampled_row, token_id, row_logprobs) in enumerate(zip(sampled, token_ids, logprobs, strict=True))
        ]


def _value_names(compiled: CompiledModel, fuse: bool) -> list[str]:
    """Return the names of all values that the graphs of steps compute, which hooks can select."""
    keys = [_PLAIN, GraphKey(True), GraphKey(False, True), *([_WITH_ADAPTERS] if compiled.adapters else [])]
    plans = [compiled.compile(key, fuse=fuse).plan for key in keys]
    return list(dict.fromkeys(name for plan in plans for step in plan.steps for name in step.names))


def _fetched_outputs(sampled: Sequence[SampledRow]) -> tuple[str, ...]:
    """Return the outputs of a step that the host reads."""
    has_logprobs = any(sampled_row.params.logprobs is not None for sampled_row in sampled)
    return ("token_ids", *LOGPROB_OUTPUTS) if has_logprobs else ("token_ids",)


def _required_graph(decision: ScheduleDecision, *, may_adapt: bool) -> tuple[GraphKey, bool]:
    """Return the graph that a step needs, and whether logits processors run; adapters are checked if `may_adapt`."""
    key, has_processors = _PLAIN, False
    # Fast path: in most steps all requests are plain.
    if any(entry.needs_logits and not entry.request.params.is_plain for entry in decision.scheduled):
        requests = [entry.request for entry in decision.scheduled if entry.needs_logits]
        key = GraphKey(any(map(needs_adjusted_logits, requests)), any(map(needs_mask, requests)))
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
