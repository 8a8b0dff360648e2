"""Cross-layer KV sharing: the similarity of layers' keys and values on a text, and a model whose layers share them.

Opt-in analysis after SwiftKV (Qiao et al. 2024, arXiv:2410.03960), whose models let later layers read what an earlier
one computed. `distillation` reduces the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aethermind.cache.layers import Paged, Shared
from aethermind.engine.loading.model_weights import open_constants
from aethermind.engine.text_passes.text_pass import run_whole_text, text_logits
from aethermind.errors import InvalidArgumentError
from aethermind.graph.executor import PlanExecutor
from aethermind.graph.ir import Graph, Node, Value

if TYPE_CHECKING:
    import numpy as np

    from aethermind.engine.engine import Engine
    from aethermind.graph.constants import ConstantStore
    from aethermind.ops.operator import OperatorRegistry

__all__ = ["KVReuse", "cached_rows", "inputs_of", "kv_similarity", "open_rewritten", "reuse_layers"]

_CACHES = ("k_cache", "v_cache", "k_scale", "v_scale")


def reuse_layers(graph: Graph, operators: OperatorRegistry, sources: Mapping[int, int]) -> Graph:
    """Rewrite a graph so that layer `reader` attends to the keys and values of `sources[reader]`, an earlier layer.

    The layers still compute their own keys and values. InvalidArgumentError for layers that do not exist or are not in
    this order.
    """
    written: dict[str, Value] = {}
    for node in graph.nodes:
        given = inputs_of(node, operators)
        for spec, output in zip(operators[node.operator].schema.outputs, node.outputs, strict=True):
            state = given.get(spec.alias) if spec.alias in _CACHES else None
            if state is not None and state in graph.states:
                written[state.name] = output
    num_layers = sum(name.startswith("k_cache.") for name in written)
    replaced: dict[Value, Value] = {}
    for reader, source in sources.items():
        if not 0 <= source < reader < num_layers:
            raise InvalidArgumentError(
                f"Layer {reader} cannot reuse the keys and values of layer {source}; "
                f"name an earlier one for a layer from 1 to {num_layers - 1}."
            )
        for cache in _CACHES:
            if f"{cache}.{reader}" in written:
                replaced[written[f"{cache}.{reader}"]] = written[f"{cache}.{source}"]
    nodes = tuple(
        replace(node, inputs=tuple(None if value is None else replaced.get(value, value) for value in node.inputs))
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def inputs_of(node: Node, operators: OperatorRegistry) -> dict[str, Value | None]:
    """Return a node's inputs by the names of its operator."""
    schema = operators[node.operator].schema
    return {spec.name: value for spec, value in zip(schema.inputs, node.inputs, strict=True)}


def open_rewritten(
    engine: Engine, rewrite: Callable[[Graph], Graph], constants: ConstantStore | None = None
) -> PlanExecutor:
    """Create an executor of a step whose graph `rewrite` has changed, over the engine's cache, by default with its
    weights. InvalidArgumentError if layers with a window have block tables of their own.
    """
    _require_one_group(engine)
    compiled, runner = engine.compiled, engine.runner
    constants = constants or runner.constants
    plan = compiled.compile(rewrite=rewrite).plan
    constants.load(plan)
    opened = compiled.open_device
    return PlanExecutor(plan, opened.backend, opened.device, constants, runner.kv_memory.tensors)


class KVReuse:
    """A model whose layers share keys and values, next to the engine whose weights and cache it uses.

    `sources` maps a layer to the earlier one that it reads. `distilled` are parameters that replace the checkpoint's;
    then the model has weights of its own.
    """

    def __init__(
        self, engine: Engine, sources: Mapping[int, int], distilled: Mapping[str, np.ndarray[Any, Any]] | None = None
    ) -> None:
        rewrite = partial(reuse_layers, operators=engine.compiled.operators, sources=sources)
        constants = open_constants(engine.compiled, distilled) if distilled else None
        self._engine = engine
        self._executor = open_rewritten(engine, rewrite, constants)

    def logits(self, token_ids: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the logits behind every token, float32 [len(token_ids), V]; see `text_logits`."""
        return text_logits(self._engine, token_ids, self._executor)


def kv_similarity(engine: Engine, token_ids: Sequence[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return mean cosines between the keys of any two layers on a text, and between their values: float64 [L, L] each.

    The means are over all tokens and heads. Keys are compared as cached; their common rotation does not change cosines.
    InvalidArgumentError as in `cached_rows`, and if layers with a window have block tables of their own.
    """
    import numpy as np

    _require_one_group(engine)
    num_layers, executor = engine.compiled.cache_spec.num_layers, engine.runner.executor
    run_whole_text(engine, token_ids, executor)

    def cosines(cache: str) -> np.ndarray[Any, Any]:
        layers = [cached_rows(engine, executor, len(token_ids), f"{cache}.{layer}") for layer in range(num_layers)]
        rows = np.stack([layer.reshape(-1, layer.shape[-1]) for layer in layers])
        rows /= np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), np.finfo(np.float64).tiny)
        result: np.ndarray[Any, Any] = np.einsum("arc,brc->ab", rows, rows) / rows.shape[1]
        return result

    return cosines("k_cache"), cosines("v_cache")


def _require_one_group(engine: Engine) -> None:
    if not all(isinstance(entry, Paged | Shared) for entry in engine.compiled.cache_spec.layers):
        raise InvalidArgumentError("Layers of this model keep other things than keys and values, which are not shared.")
    if len(engine.compiled.cache_spec.groups) > 1:
        raise InvalidArgumentError(
            "Layers of this model free blocks behind their sliding windows, so their keys and values are not kept side "
            "by side. Pass a max_model_len up to the window."
        )


def cached_rows(engine: Engine, executor: PlanExecutor, count: int, name: str) -> np.ndarray[Any, Any]:
    """Return a layer's cached rows (`k_cache.0`) of the text of `count` tokens that was run last: float64 [count, K,
    C].

    InvalidArgumentError if the host cannot access the cache, or if it is quantised.
    """
    import numpy as np

    compiled, tensors = engine.compiled, engine.runner.kv_memory.tensors
    if not compiled.open_device.backend.capabilities.is_host_accessible or "k_scale.0" in tensors:
        raise InvalidArgumentError(
            "Keys and values are compared in host memory, as they are computed: "
            "pass a device such as cpu, and auto as kv_cache_dtype."
        )
    blocks, offsets = np.divmod(executor.host_inputs["slot_mapping"][:count], compiled.cache_spec.block_size)
    rows: np.ndarray[Any, Any] = tensors[name].numpy()[blocks, :, offsets].astype(np.float64)
    return rows
