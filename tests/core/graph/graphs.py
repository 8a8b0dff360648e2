"""Graphs to test with: random ones of real operators, whole small models, and their values by the references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from aethermind import Runtime
from aethermind.cache.spec import KVCacheSpec
from aethermind.dispatch import Dispatcher, Kernel
from aethermind.dispatch.reference import ReferenceRunner, reference_kernels
from aethermind.engine.loading.model_graph import GraphKey, StepGraphs
from aethermind.graph import Graph, GraphBuilder, Value
from aethermind.hal import DType
from aethermind.ops import catalog
from aethermind.ops.dims import SymDim, resolve
from aethermind.ops.operator import OperatorRegistry

__all__ = ["OPERATORS", "dispatcher_of", "given_values", "model_builder", "random_builders", "reference_values"]

OPERATORS = OperatorRegistry(catalog.load())
COMPOSITES = tuple(operator.name for operator in OPERATORS if operator.decompose is not None)
NUM_HEADS, HEAD_DIM = 2, 4
WIDTHS = (NUM_HEADS * HEAD_DIM, 16)
RUNTIME = Runtime.boot()
RUNNER = ReferenceRunner(OPERATORS)


class GraphWriter:
    """Writes a random graph: each step applies an operator to values that are there."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.builder = GraphBuilder("random", OPERATORS)
        self._draw = draw
        tokens = SymDim("T")
        self._values = [self.builder.input(f"x.{width}", DType.FLOAT32, (tokens, width)) for width in WIDTHS]
        self._rows = self.builder.input("rows", DType.INT32, (SymDim("R"),))
        self._slots = self.builder.input("slots", DType.INT64, (tokens,))
        shape = (4, NUM_HEADS, 4, HEAD_DIM)
        self._caches = [self.builder.state(name, DType.FLOAT32, shape) for name in ("k_cache", "v_cache")]
        self._num_parameters = 0

    def write(self) -> GraphBuilder:
        """Apply a few operators and publish some of the values."""
        steps = (self.unary, self.binary, self.linear, self.mlp, self.add_norm, self.heads, self.gather, self.cache)
        for _ in range(self._draw(st.integers(1, 10))):
            with self.builder.scope(self._draw(st.sampled_from(["a", "b.0"]))):
                self._values.extend(self._draw(st.sampled_from(steps))())
        for number in range(self._draw(st.integers(1, 3))):
            self.builder.output(f"out.{number}", self.any_value())
        for name, cache in zip(("k", "v"), self._caches, strict=True):
            self.builder.output(name, cache)
        return self.builder

    def any_value(self, like: Value | None = None) -> Value:
        """A value, of the same shape as another if one is given."""
        fitting = [value for value in self._values if like is None or value.type == like.type]
        chosen: Value = self._draw(st.sampled_from(fitting))
        return chosen

    def parameter(self, *shape: int) -> Value:
        """A new weight."""
        self._num_parameters += 1
        return self.builder.parameter(f"w.{self._num_parameters}", shape)

    def unary(self) -> list[Value]:
        x = self.any_value()
        if self._draw(st.booleans()):
            return [self.builder.op("silu", x)]
        return [self.builder.op("rms_norm", x, self.parameter(x.type.shape[-1]), eps=1e-5)]

    def binary(self) -> list[Value]:
        x = self.any_value()
        return [self.builder.op(self._draw(st.sampled_from(["add", "mul", "silu_mul"])), x, self.any_value(like=x))]

    def linear(self) -> list[Value]:
        x, width = self.any_value(), self._draw(st.sampled_from(WIDTHS))
        bias = self.parameter(width) if self._draw(st.booleans()) else None
        return [self.builder.op("linear", x, self.parameter(width, x.type.shape[-1]), bias)]

    def mlp(self) -> list[Value]:
        x = self.any_value()
        width, inner = x.type.shape[-1], self._draw(st.sampled_from([3, *WIDTHS]))
        weights = [self.parameter(inner, width), self.parameter(inner, width)]
        if inner in WIDTHS and self._draw(st.booleans()):
            return [self.builder.op("gate_up_silu", x, *weights)]
        return [self.builder.op("mlp_swiglu", x, *weights, self.parameter(width, inner))]

    def add_norm(self) -> list[Value]:
        x = self.any_value()
        outputs = self.builder.op("add_rms_norm", x, self.any_value(like=x), self.parameter(x.type.shape[-1]), eps=1e-5)
        return list(outputs)

    def heads(self) -> list[Value]:
        x = self.builder.op("split_heads", self.any_value(), num_heads=NUM_HEADS)
        if self._draw(st.booleans()):
            x = self.builder.op("rms_norm", x, self.parameter(x.type.shape[-1]), eps=1e-5)
        return [self.builder.op("merge_heads", x)]

    def gather(self) -> list[Value]:
        x = self.any_value()
        return [self.builder.op("gather_rows", x, self._rows)] if x.type.shape[0] == SymDim("T") else []

    def cache(self) -> list[Value]:
        fitting = [value for value in self._values if value.type.shape == (SymDim("T"), WIDTHS[0])]
        k, v = (self.builder.op("split_heads", self._draw(st.sampled_from(fitting)), num_heads=2) for _ in range(2))
        self._caches = list(self.builder.op("kv_cache_write", k, v, self._slots, *self._caches))
        return []


@st.composite
def random_builders(draw: Callable[[st.SearchStrategy[Any]], Any]) -> GraphBuilder:
    """Builders of random graphs over T tokens and R rows, with a KV cache as state."""
    return GraphWriter(draw).write()


def model_builder(
    architecture: str = "Qwen2ForCausalLM",
    *,
    is_adjusted: bool = False,
    dtype: DType = DType.FLOAT32,
    num_blocks: int = 6,
    **options: Any,
) -> GraphBuilder:
    """The step graph of a small Qwen model; `options` are fields of its config.json."""
    raw = {
        "hidden_size": 12,
        "intermediate_size": 10,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": 23,
        "max_position_embeddings": 64,
        **options,
    }
    model = RUNTIME.architectures.get(architecture).create(raw)
    config = model.config
    cache = KVCacheSpec.uniform(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, str(dtype), 4)
    graphs = StepGraphs(model, OPERATORS, cache, num_blocks, config.max_position_embeddings, dtype)
    return graphs.build(GraphKey(is_adjusted))


def given_values(builder: GraphBuilder, symbols: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """Random parameters, states and floating inputs; integers as a ragged batch of two sequences has them."""
    graph, rng = builder.finish(), np.random.default_rng(seed)
    values: dict[str, Any] = {}
    for value in (*graph.inputs, *graph.parameters, *graph.states):
        shape = resolve(value.type.shape, symbols)
        array = rng.standard_normal(shape) if value.type.dtype.is_floating else np.zeros(shape)
        values[value.name] = array.astype(value.type.dtype.numpy)
    values.update(builder.constants)
    num_tokens, num_rows = symbols.get("T", 0), symbols.get("R", 0)
    integers = {
        "rows": np.arange(num_rows)[::-1] % max(num_tokens, 1),
        "slots": np.arange(num_tokens) + 1,
        "token_ids": (np.arange(num_tokens) * 7 + 1) % 23,
        "positions": np.concatenate([np.arange(num_tokens - 1), [5]]) if num_tokens else [],
        "slot_mapping": np.concatenate([np.arange(num_tokens - 1), [21]]) if num_tokens else [],
        "cu_seqlens_q": [0, num_tokens - 1, num_tokens],
        "seqlens_k": [num_tokens - 1, 6],
        "block_tables": [[0, 1, 2], [4, 5, -1]],
        "logits_rows": [num_tokens - 2, num_tokens - 1],
        "top_k": [0, 3],
    }
    sampling = {"temperature": [0.0, 0.8], "top_p": [1.0, 0.9], "min_p": [0.0, 0.05], "uniform": [0.1, 0.7]}
    for name, array in {**integers, **sampling}.items():
        if name in values:
            values[name] = np.asarray(array).astype(values[name].dtype).reshape(values[name].shape)
    return values


def reference_values(graph: Graph, given: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of a graph, computed node by node with the operators' references."""
    values = dict(given)
    for node in graph.nodes:
        inputs = [None if value is None else values[value.name] for value in node.inputs]
        results = RUNNER.op(node.operator, *inputs, **node.attributes)
        results = results if isinstance(results, tuple) else (results,)
        values.update({value.name: result for value, result in zip(node.outputs, results, strict=True)})
    return values


def dispatcher_of(
    fused: Sequence[str] = (), *, has_references: bool = True, with_fallbacks: bool = False
) -> Dispatcher:
    """A device `numpy` with kernels for these composites, beside the references of what does not decompose."""
    references = reference_kernels(OPERATORS, "numpy")
    own = [composite_kernel(name) for name in fused]
    return Dispatcher([*own, *(references if has_references else [])], references if with_fallbacks else [])


def composite_kernel(name: str) -> Kernel:
    """A kernel that spoils its outputs before it reads its inputs, except where the schema lets them share memory."""
    operator = OPERATORS[name]

    def run(inputs: Sequence[Any], outputs: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        shared = {spec.name: array for spec, array in zip(operator.schema.inputs, inputs, strict=True)}
        for spec, output in zip(operator.schema.outputs, outputs, strict=True):
            allowed = shared.get(spec.alias or spec.inplace or "")
            assert spec.alias is None or np.shares_memory(output, allowed) or not output.size
            if allowed is None or not np.shares_memory(output, allowed):
                output[...] = np.nan
        results = RUNNER.op(name, *inputs, **attributes)
        for output, result in zip(outputs, results if isinstance(results, tuple) else (results,), strict=True):
            output[...] = result

    dtypes = frozenset({DType.FLOAT32, DType.BFLOAT16})
    return Kernel(name, "numpy", f"fused_{name}", dtypes, priority=5, function=run)
