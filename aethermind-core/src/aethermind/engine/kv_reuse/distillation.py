"""Layers that read another's keys and values, taught by least squares to do with these what they did with their own.

SwiftKV (Qiao et al. 2024, arXiv:2410.03960) trains the projections of such layers. Here a text is enough, because what
folds into two of them has a closed form:

- Each head's query becomes an affine function of what it was, such that its scores against the other layer's keys are
  nearest to those against its own. Errors count as much as the head attends to their tokens, about the mean of each
  row: to second order that is the Kullback-Leibler divergence between the two rows of attention.
- The output projection becomes the one that makes the layer's outputs most alike, given that attention.

A model that was distilled so costs what one costs whose layers share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aethermind.engine.kv_reuse.attention_fit import SeenAttention, fit_outputs, fit_queries
from aethermind.engine.kv_reuse.sharing import cached_rows, inputs_of, open_rewritten
from aethermind.engine.loading.model_weights import open_weights
from aethermind.engine.text_passes.text_logits import run_whole_text
from aethermind.errors import InvalidArgumentError
from aethermind.graph.ir import Graph, Node, Value
from aethermind.ops.weight_format import QuantizedWeight

if TYPE_CHECKING:
    import numpy as np

    from aethermind.checkpoint.source import TensorSource
    from aethermind.engine.engine import Engine
    from aethermind.graph.executor import Executor
    from aethermind.ops.operator import OperatorRegistry

    Array = np.ndarray[Any, Any]

__all__ = ["distill"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's attention as it is in the graph of a step."""

    index: int
    queries: Value
    rope_table: Value
    q_weight: Value
    q_bias: Value | None
    o_weight: Value
    scale: float
    window: int


def distill(engine: Engine, sources: Mapping[int, int], texts: Sequence[Sequence[int]]) -> dict[str, Array]:
    """Parameters by name, float32, for a `KVReuse` with the same `sources`: layers, and which earlier one each reads.

    `texts` are token ids, each no longer than a step of the engine. Every layer is fitted to what it computes in the
    model as it is. InvalidArgumentError for layers whose queries are not rotated right behind their projection.
    """
    layers, executor = _open(engine, sources)
    seen: dict[int, list[SeenAttention]] = {layer.index: [] for layer in layers}
    for token_ids in texts:
        symbols = run_whole_text(engine, token_ids, executor)
        for layer in layers:
            seen[layer.index].append(_look(engine, executor, symbols, layer, sources[layer.index]))
    weights = open_weights(engine.planned)
    found: dict[str, Array] = {}
    for layer in layers:
        found.update(_fit(layer, seen[layer.index], weights))
    return found


def _fit(layer: _Layer, texts: Sequence[SeenAttention], weights: TensorSource) -> dict[str, Array]:
    import numpy as np

    _, num_heads, head_dim = texts[0].queries.shape
    maps = [fit_queries(texts, head, has_bias=layer.q_bias is not None) for head in range(num_heads)]
    heads = _dense(weights, layer.q_weight).reshape(num_heads, head_dim, -1)
    found = {
        layer.q_weight.name: np.vstack([fitted[:head_dim].T @ head for fitted, head in zip(maps, heads, strict=True)]),
        layer.o_weight.name: fit_outputs(texts, maps, _dense(weights, layer.o_weight)),
    }
    if layer.q_bias is not None:
        pairs = zip(maps, _dense(weights, layer.q_bias).reshape(num_heads, head_dim), strict=True)
        found[layer.q_bias.name] = np.hstack([bias @ fitted[:head_dim] + fitted[head_dim] for fitted, bias in pairs])
    return {name: value.astype(np.float32) for name, value in found.items()}


# -- looking at what layers compute --------------------------------------------------------------------------


def _open(engine: Engine, sources: Mapping[int, int]) -> tuple[list[_Layer], Executor]:
    """The layers, and the model with their queries among its outputs."""
    layers: list[_Layer] = []

    def rewrite(graph: Graph) -> Graph:
        layers.extend(_find(graph, engine.planned.operators, index) for index in sources)
        queries = {f"queries.{layer.index}": layer.queries for layer in layers}
        return replace(graph, outputs={**graph.outputs, **queries, "rope_table": layers[0].rope_table})

    executor = open_rewritten(engine, rewrite)  # which finds the layers
    return layers, executor


def _find(graph: Graph, operators: OperatorRegistry, index: int) -> _Layer:
    def reader(value: Value, operator: str) -> Node | None:
        return next((node for node in graph.nodes if node.operator == operator and node.inputs[0] == value), None)

    for node in graph.nodes:
        inputs = inputs_of(node, operators) if node.operator == "qkv_rope_cache_write" else {}
        cache = inputs.get("k_cache")
        if cache is None or cache.name != f"k_cache.{index}" or inputs["q_norm"] is not None:
            continue
        attention = reader(node.outputs[0], "paged_attention")
        merged = attention and reader(attention.outputs[0], "merge_heads")
        output = merged and reader(merged.outputs[0], "linear")
        table, q_weight = inputs["rope_table"], inputs["w_q"]
        o_weight = output and inputs_of(output, operators)["weight"]
        if attention and table and q_weight and o_weight:
            scale, window = attention.attributes["scale"], attention.attributes["window"]
            assert isinstance(scale, float), "so the schema says"
            assert isinstance(window, int), "so the schema says"
            return _Layer(index, node.outputs[0], table, q_weight, inputs["b_q"], o_weight, scale, window)
    raise InvalidArgumentError(
        f"Layer {index} cannot be distilled: its queries are not a projection that is rotated and nothing else."
    )


def _look(engine: Engine, executor: Executor, symbols: tuple[int, ...], layer: _Layer, source: int) -> SeenAttention:
    import numpy as np

    queries = executor.output(f"queries.{layer.index}", symbols).astype(np.float64)
    table = executor.output("rope_table", symbols).astype(np.float64)
    rows = partial(cached_rows, engine, executor, len(queries))
    own_keys, own_values = rows(f"k_cache.{layer.index}"), rows(f"v_cache.{layer.index}")
    keys, values = rows(f"k_cache.{source}"), rows(f"v_cache.{source}")
    cos, sin = np.split(table, 2, axis=-1)
    return SeenAttention(queries, own_keys, own_values, keys, values, cos, sin, layer.scale, layer.window)


def _dense(weights: TensorSource, parameter: Value) -> Array:
    import numpy as np

    weight = weights.array(parameter.name)
    dense = weight.format.dequantize(weight) if isinstance(weight, QuantizedWeight) else weight
    return np.asarray(dense).astype(np.float64)
