"""The importance matrix: how strongly each input channel of a linear layer is activated by a text.

An error *d* of a weight in column *k* causes the error *d · x_k* of the layer's output, if *x_k* is its input. So
squared errors of weights are weighted by the mean of *x_k²* over the tokens of a text. (llama.cpp: `llama-imatrix`.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aethermind.cache.kv_cache import KVCache
from aethermind.engine.kv_memory.memory import KVMemory
from aethermind.engine.loading.model_graph import GraphKey, GraphKind
from aethermind.engine.loading.model_weights import open_constants
from aethermind.engine.requests.prompt_reader import check_token_ids
from aethermind.engine.text_pass import run_text
from aethermind.errors import ComputationError
from aethermind.graph.executor import PlanExecutor
from aethermind.graph.plan import Place, Plan

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel

__all__ = ["activation_importance"]

Array = npt.NDArray[Any]

_LINEAR, _HEAD = "linear", "lm_head"
_ACTIVATIONS, _WEIGHT = 0, 1
"""Indices of the inputs of both operators."""


def activation_importance(
    compiled: CompiledModel,
    windows: Sequence[Sequence[int]],
    on_progress: Callable[[int, int], None] | None = None,
    on_load: Callable[[int, int], None] | None = None,
) -> dict[str, Array]:
    """Run a model over token windows; returns the mean square of each input channel, float32 [K], by the names of
    parameters.

    The model is loaded for this, without fused operators. A window has at most as many tokens as a step of the model.
    `on_progress` is called with tokens (done, total). The experts of a layer are one parameter: they
    get the mean over all tokens, and their down projections the mean over the tokens that are routed to them.

    InvalidArgumentError for unknown token ids. ComputationError if activations are not finite.
    """
    plan = compiled.compile(GraphKey(kind=GraphKind.HIDDEN_STATES), fuse=False).plan
    constants, opened = open_constants(compiled), compiled.open_device
    constants.load(plan, on_load)
    memory = KVMemory.of(compiled)
    cache = KVCache(compiled.cache_spec, compiled.num_kv_blocks, compiled.max_model_len)
    executor = PlanExecutor(plan, opened.backend, opened.device, constants, memory.tensors)
    parameters, inputs = _linear_steps(plan)
    moments = _SecondMoments()

    def run(symbols: tuple[int, ...]) -> None:
        executor.run_reading(symbols, lambda step, values: moments.add(parameters[step], values), inputs)

    heads = {
        node.inputs[1].name
        for node in compiled.step.graph.nodes
        if node.operator == _HEAD and node.inputs[1] is not None
    }
    total, done = sum(map(len, windows)), 0
    for window in windows:
        check_token_ids(compiled, window)
        for _, _, symbols in run_text(executor, memory, cache, window, run=run):
            for name in heads:
                moments.add(name, executor.output("hidden_states", symbols))
        done += len(window)
        if on_progress is not None:
            on_progress(done, total)
    return moments.means()


class _SecondMoments:
    """Sums of squares of input channels by the names of parameters, and the numbers of rows added."""

    def __init__(self) -> None:
        self._sums: dict[str, Array] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, values: Array) -> None:
        """Add activations [..., K]."""
        rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
        self._sums[name] = self._sums.get(name, 0) + np.einsum("tk,tk->k", rows, rows)
        self._counts[name] = self._counts.get(name, 0) + len(rows)

    def means(self) -> dict[str, Array]:
        """The means of squares, float32 [K]; ComputationError if some are not finite."""
        found = {name: (total / self._counts[name]).astype(np.float32) for name, total in self._sums.items()}
        for name, mean in found.items():
            if not np.isfinite(mean).all():
                raise ComputationError(f"The inputs of {name} are not finite. Try dtype='float32'.")
        return found


def _linear_steps(plan: Plan) -> tuple[dict[int, str], dict[int, int]]:
    """Return the kernel calls of a plan that multiply by a parameter.

    The result maps their indices to the parameter's name, and to the index of the input that is the activations.
    """
    parameters = {}
    for number, step in enumerate(plan.steps):
        if step.kernel.operator != _LINEAR:
            continue
        weight = step.inputs[_WEIGHT]
        if weight is not None and weight.place is Place.CONSTANT:
            parameters[number] = plan.constants[weight.name].parameter
    return parameters, dict.fromkeys(parameters, _ACTIVATIONS)
