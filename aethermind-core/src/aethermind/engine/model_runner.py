"""A scheduled step in, sampled tokens out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from aethermind.cache.kv_cache import KVCache
from aethermind.engine.batch import BatchWriter
from aethermind.engine.decision import ScheduleDecision
from aethermind.engine.embedding_rows import EmbeddingRows, needs_embeddings
from aethermind.engine.loader import PlannedModel, open_weights
from aethermind.engine.request import Request
from aethermind.graph.compile import Compiled
from aethermind.graph.constants import ConstantStore
from aethermind.graph.executor import Executor
from aethermind.graph.hooks import HookRegistry
from aethermind.hal.tensor import Tensor
from aethermind.ops.dims import resolve
from aethermind.ops.schema import TensorType
from aethermind.sampling.rows import SamplingRows, needs_adjusted_logits

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ModelRunner", "SampledToken", "StepObserver", "TokenLogprobs"]

StepObserver = Callable[[Executor, tuple[int, ...], ScheduleDecision], None]
"""Runs a step in place of `executor.run(symbols)`, to see how it goes."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities of one step, before temperature and penalties: the chosen token's, and the most likely ones
    in order.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of a request."""

    request: Request
    token_id: int
    logprobs: TokenLogprobs | None = None


class _VariantKey(NamedTuple):
    """What some steps need and most do not."""

    is_adjusted: bool = False
    has_embeddings: bool = False
    fuse: bool = True


class _Variant:
    """One compiled graph with its memory and the writers of its inputs."""

    def __init__(self, executor: Executor, cache: KVCache) -> None:
        self.executor = executor
        self.batch = BatchWriter(executor.host_inputs, cache)
        self.rows = SamplingRows(executor.host_inputs)

    @cached_property
    def embeddings(self) -> EmbeddingRows:
        """Of variants that have embeddings only."""
        values = self.executor.plan.inputs["inputs_embeds"]
        return EmbeddingRows(self.executor.host_inputs, cast(int, values.shape[1]))


class ModelRunner:
    """Owns weights, KV memory and the executors of one model on one device.

    `hooks` see values of steps; `observer`, where there is one, runs the steps that no hook wants to see.
    """

    def __init__(
        self, planned: PlannedModel, cache: KVCache, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.planned = planned
        self._cache = cache
        self._backend = planned.open_device.backend
        self._device = planned.open_device.device
        self._states = {value.name: self._state(value.type) for value in planned.compiled.graph.states}
        source = open_weights(planned)
        computed = planned.computed
        self.constants = ConstantStore(
            self._backend,
            self._device,
            lambda name: computed[name] if name in computed else source.array(name),
            planned.parameter_types,
        )
        self._on_progress = on_progress
        self._plain = self._prepare(planned.compiled)
        self._variants = {_VariantKey(): self._plain}
        self.hooks = HookRegistry(self._value_names)
        self.observer: StepObserver | None = None

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of device memory set aside for keys and values."""
        return sum(tensor.nbytes for tensor in self._states.values())

    @property
    def executor(self) -> Executor:
        """The executor of plain steps."""
        return self._plain.executor

    @property
    def executors(self) -> list[Executor]:
        """Those of all kinds of steps that came up so far."""
        return [variant.executor for variant in self._variants.values()]

    def run(self, decision: ScheduleDecision) -> list[SampledToken]:
        """Compute a step: the KV of its tokens, and a sampled token for each row that needs logits."""
        is_adjusted = any(entry.needs_logits and needs_adjusted_logits(entry.request) for entry in decision.scheduled)
        has_embeddings = needs_embeddings(decision)
        hooks = self.hooks
        is_plain = not (is_adjusted or has_embeddings or hooks.is_active)
        variant = self._plain if is_plain else self._variant(_VariantKey(is_adjusted, has_embeddings, hooks.fuse))
        self._copy_blocks(decision.copies)
        sampled, width = variant.batch.write(decision)
        variant.rows.fill(sampled)
        num_seen, num_held_back = variant.rows.fill_adjustments(sampled) if is_adjusted else (0, 0)
        num_embeddings = variant.embeddings.fill(decision) if has_embeddings else 0
        symbols = (
            decision.num_batched_tokens,
            len(decision.scheduled),
            len(sampled),
            width,
            num_seen,
            num_held_back,
            num_embeddings,
        )
        if hooks.is_active:
            hooks.run(variant.executor, symbols, decision.phase, decision.num_batched_tokens)
        elif self.observer is not None:
            self.observer(variant.executor, symbols, decision)
        else:
            variant.executor.run(symbols)
        variant.executor.synchronize()
        if not sampled:
            return []
        token_ids = variant.executor.output("token_ids", symbols).tolist()
        logprobs = self._logprobs(variant, symbols, sampled) if is_adjusted else [None] * len(sampled)
        return [SampledToken(*row) for row in zip(sampled, token_ids, logprobs, strict=True)]

    def prepare_embeddings(self) -> None:
        """Compile the steps that have embeddings, so that a model that cannot take them says so before one runs."""
        self._variant(_VariantKey(has_embeddings=True))

    def logits(self, num_rows: int) -> np.ndarray[Any, Any]:
        """The logits of the last plain, fused step, float32 [num_rows, V]; a view that the next step overwrites."""
        logits: np.ndarray[Any, Any] = self._plain.executor.output("logits", (0, 0, num_rows, 0, 0, 0, 0))
        return logits

    def _prepare(self, compiled: Compiled) -> _Variant:
        self.constants.load(compiled.plan, self._on_progress)
        executor = Executor(compiled.plan, self._backend, self._device, self.constants, self._states)
        return _Variant(executor, self._cache)

    def _variant(self, key: _VariantKey) -> _Variant:
        variant = self._variants.get(key)
        if variant is None:
            variant = self._variants[key] = self._prepare(self.planned.compile(**key._asdict()))
        return variant

    def _value_names(self, fuse: bool) -> list[str]:
        """The values that steps compute, those of adjusted steps among them."""
        plans = [self.planned.compile(is_adjusted=is_adjusted, fuse=fuse).plan for is_adjusted in (False, True)]
        return list(dict.fromkeys(name for plan in plans for step in plan.steps for name in step.names))

    def _state(self, type: TensorType) -> Tensor:
        shape = resolve(type.shape, {})
        return Tensor.of(self._backend.allocator.alloc(type.nbytes({})), type.dtype, shape)

    def _copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy whole KV blocks of all layers, where a shared block is about to be written."""
        for source, destination in copies:
            for state in self._states.values():
                nbytes = state.nbytes // state.shape[0]
                to, from_ = (
                    Tensor.of(state.buffer, state.dtype, state.shape[1:], block * nbytes)
                    for block in (destination, source)
                )
                self._backend.transfer.copy_async(to, from_, self._backend.streams.default(self._device.index))

    def _logprobs(
        self, variant: _Variant, symbols: tuple[int, ...], sampled: list[Request]
    ) -> list[TokenLogprobs | None]:
        if all(request.params.logprobs is None for request in sampled):
            return [None] * len(sampled)
        names = ("logprob", "rank", "top_ids", "top_logprobs")
        columns = [variant.executor.output(name, symbols).tolist() for name in names]
        found: list[TokenLogprobs | None] = []
        for request, logprob, rank, ids, values in zip(sampled, *columns, strict=True):
            wanted = request.params.logprobs
            top = tuple((token, value) for token, value in zip(ids, values, strict=True) if token >= 0)
            found.append(None if wanted is None else TokenLogprobs(logprob, rank, top[:wanted]))
        return found
