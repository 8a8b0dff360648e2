"""Distillation of layers that read another layer's keys and values, by linear least squares.

SwiftKV (Qiao et al. 2024, arXiv:2410.03960) trains the projections of such layers. Here a text is enough, because two
of them have a closed form:

- Each head's query becomes an affine function of the original one, so that its scores against the other layer's keys
  are nearest to those against its own. Errors are weighted by the head's attention to their tokens, about the mean of
  each row: to second order that is the Kullback-Leibler divergence between the two rows of attention.
- The output projection becomes the one that makes the layer's outputs most alike, given that attention.

A distilled model costs as much as one whose layers share without distillation.

Shapes: T tokens of a text, H heads, K key-value heads, C head_dim, D hidden size. Arrays of the fits are float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aethermind.engine.kv_reuse.sharing import cached_rows, inputs_of, open_rewritten
from aethermind.engine.loading.model_weights import open_weights
from aethermind.engine.text_passes.text_pass import run_whole_text
from aethermind.errors import InvalidArgumentError
from aethermind.graph.ir import Graph, Node, Value
from aethermind.ops.weight_format import QuantizedWeight

if TYPE_CHECKING:
    import numpy as np

    from aethermind.checkpoint.source import TensorSource
    from aethermind.engine.engine import Engine
    from aethermind.graph.executor import PlanExecutor
    from aethermind.ops.operator import OperatorRegistry

    Array = np.ndarray[Any, Any]

__all__ = ["AttentionSample", "distill", "fit_outputs", "fit_queries"]

_RIDGE = 0.1
"""The ridge as a multiple of the mean square of the regressors: directions with little data keep their prior."""


@dataclass(frozen=True, slots=True)
class AttentionSample:
    """A layer's attention over a text, and the keys and values that it is to attend to instead.

    `queries` [T, H, C] and keys [T, K, C] are rotated, by the angles of `cos` and `sin` [T, C/2] in half-split pairs;
    `own_keys` and `own_values` [T, K, C] are the layer's, `keys` and `values` those of the other layer. Scores are
    multiplied by `scale`; `window` is the number of tokens that a query attends to, 0 for all.
    """

    queries: Array
    own_keys: Array
    own_values: Array
    keys: Array
    values: Array
    cos: Array
    sin: Array
    scale: float
    window: int = 0

    def kv_head(self, head: int) -> int:
        """Return the KV head that a head attends to."""
        num_heads, num_kv_heads = int(self.queries.shape[1]), int(self.own_keys.shape[1])
        return head * num_kv_heads // num_heads

    def projected(self, head: int) -> Array:
        """Return a head's queries before their rotation, [T, C]."""
        norm = self.cos**2 + self.sin**2
        return _rotated_back(self.queries[:, head], self.cos / norm, self.sin / norm)

    def seen_keys(self, head: int) -> Array:
        """Return the other layer's keys relative to each query before its rotation, [T queries, T keys, C]."""
        return _rotated_back(self.keys[None, :, self.kv_head(head)], self.cos[:, None], self.sin[:, None])

    def weights(self, scores: Array) -> Array:
        """Return the causal softmax of scores [T, T]."""
        import numpy as np

        distance = np.arange(len(scores))[:, None] - np.arange(len(scores))
        is_seen = (distance >= 0) & ((distance < self.window) | (self.window == 0))
        seen = np.where(is_seen, scores, -np.inf)
        powers = np.exp(seen - seen.max(axis=1, keepdims=True))
        weights: Array = powers / powers.sum(axis=1, keepdims=True)
        return weights

    def own_scores(self, head: int) -> Array:
        """Return a head's scores over the layer's own keys, [T, T]."""
        scores: Array = self.scale * self.queries[:, head] @ self.own_keys[:, self.kv_head(head)].T
        return scores


def fit_queries(texts: Sequence[AttentionSample], head: int, *, has_bias: bool) -> Array:
    """Fit the map [C (+ 1), C] from a head's projected queries (and a 1) to queries for the other layer's keys.

    It minimises, over all rows, the sum of p (s - s')² about its mean, with the scores s, the fitted scores s' and the
    row's attention p over the layer's own keys: KL(p ‖ p') to second order.
    """
    import numpy as np

    gram: Any = 0.0
    moment: Any = 0.0
    for text in texts:
        queries = text.projected(head)
        if has_bias:
            queries = np.hstack([queries, np.ones((len(queries), 1))])
        scores = text.own_scores(head)
        attention = text.weights(scores)
        scores = scores - (attention * scores).sum(axis=1, keepdims=True)
        keys = text.scale * text.seen_keys(head)
        keys = keys - np.einsum("tu,tuc->tc", attention, keys)[:, None]
        weighted = attention[:, :, None] * keys
        spread = np.einsum("tuc,tud->tcd", weighted, keys)
        rows, (width, depth) = len(queries), (queries.shape[1], keys.shape[2])
        outer = np.einsum("ti,tj->tij", queries, queries).reshape(rows, -1)
        gram = gram + (outer.T @ spread.reshape(rows, -1)).reshape(width, width, depth, depth)
        moment = moment + queries.T @ np.einsum("tu,tuc->tc", scores, weighted)
    matrix = gram.transpose(0, 2, 1, 3).reshape(moment.size, moment.size)
    found: Array = _solved(matrix, moment.reshape(-1, 1), np.eye(*moment.shape).reshape(-1, 1)).reshape(moment.shape)
    return found


def fit_outputs(texts: Sequence[AttentionSample], maps: Sequence[Array], o_weight: Array) -> Array:
    """Fit the output projection [D, H·C] for attention with mapped queries to the layer's original outputs."""
    import numpy as np

    gram: Any = 0.0
    moment: Any = 0.0
    for text in texts:
        original, mapped = [], []
        for head, fitted in enumerate(maps):
            kv_head = text.kv_head(head)
            original.append(text.weights(text.own_scores(head)) @ text.own_values[:, kv_head])
            queries = _affine(text.projected(head), fitted)
            scores = text.scale * np.einsum("tc,tuc->tu", queries, text.seen_keys(head))
            mapped.append(text.weights(scores) @ text.values[:, kv_head])
        mixed = np.hstack(mapped)
        gram = gram + mixed.T @ mixed
        moment = moment + mixed.T @ (np.hstack(original) @ o_weight.T)
    return _solved(gram, moment, o_weight.T).T


def _affine(queries: Array, fitted: Array) -> Array:
    depth = queries.shape[1]
    mapped: Array = queries @ fitted[:depth]
    return mapped if len(fitted) == depth else mapped + fitted[depth]


def _rotated_back(x: Array, cos: Array, sin: Array) -> Array:
    """Apply the transpose of the rotation."""
    import numpy as np

    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)


def _solved(gram: Array, moment: Array, prior: Array) -> Array:
    """Solve ridge-regularised least squares with a prior."""
    import numpy as np

    ridge = _RIDGE * np.trace(gram) / len(gram) or 1.0
    found: Array = prior + np.linalg.solve(gram + ridge * np.eye(len(gram)), moment - gram @ prior)
    return found


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's attention in the graph of a step."""

    index: int
    queries: Value
    rope_table: Value
    q_weight: Value
    q_bias: Value | None
    o_weight: Value
    scale: float
    window: int


def distill(engine: Engine, sources: Mapping[int, int], texts: Sequence[Sequence[int]]) -> dict[str, Array]:
    """Fit parameters by name, float32, for a `KVReuse` with the same `sources`: for each layer the earlier one it
    reads.

    `texts` are token ids, each no longer than a step of the engine. Every layer is fitted to what it computes in the
    original model. InvalidArgumentError for layers whose queries are not rotated directly behind their projection.
    """
    layers, executor = _open(engine, sources)
    seen: dict[int, list[AttentionSample]] = {layer.index: [] for layer in layers}
    for token_ids in texts:
        symbols = run_whole_text(engine, token_ids, executor)
        for layer in layers:
            seen[layer.index].append(_look(engine, executor, symbols, layer, sources[layer.index]))
    weights = open_weights(engine.compiled)
    found: dict[str, Array] = {}
    for layer in layers:
        found.update(_fit(layer, seen[layer.index], weights))
    return found


def _fit(layer: _Layer, texts: Sequence[AttentionSample], weights: TensorSource) -> dict[str, Array]:
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


def _open(engine: Engine, sources: Mapping[int, int]) -> tuple[list[_Layer], PlanExecutor]:
    """Return the layers, and an executor with their queries among its outputs."""
    layers: list[_Layer] = []

    def rewrite(graph: Graph) -> Graph:
        layers.extend(_find(graph, engine.compiled.operators, index) for index in sources)
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
        is_plain = attention is not None and not any(
            operators[attention.operator].used_additions(attention.inputs, attention.attributes).values()
        )
        if attention and is_plain and table and q_weight and o_weight:
            scale, window = attention.attributes["scale"], attention.attributes["window"]
            assert isinstance(scale, float), "by the operator's schema"
            assert isinstance(window, int), "by the operator's schema"
            return _Layer(index, node.outputs[0], table, q_weight, inputs["b_q"], o_weight, scale, window)
    raise InvalidArgumentError(
        f"Layer {index} cannot be distilled: its queries are not a projection that is rotated and nothing else, or its "
        "scores are not only scaled."
    )


def _look(
    engine: Engine, executor: PlanExecutor, symbols: tuple[int, ...], layer: _Layer, source: int
) -> AttentionSample:
    import numpy as np

    queries = executor.output(f"queries.{layer.index}", symbols).astype(np.float64)
    table = executor.output("rope_table", symbols).astype(np.float64)
    rows = partial(cached_rows, engine, executor, len(queries))
    own_keys, own_values = rows(f"k_cache.{layer.index}"), rows(f"v_cache.{layer.index}")
    keys, values = rows(f"k_cache.{source}"), rows(f"v_cache.{source}")
    cos, sin = np.split(table, 2, axis=-1)
    return AttentionSample(queries, own_keys, own_values, keys, values, cos, sin, layer.scale, layer.window)


def _dense(weights: TensorSource, parameter: Value) -> Array:
    import numpy as np

    weight = weights.array(parameter.name)
    dense = weight.format.dequantize(weight) if isinstance(weight, QuantizedWeight) else weight
    return np.asarray(dense).astype(np.float64)
