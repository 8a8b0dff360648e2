"""LoRA in graphs: an `add_low_rank` behind each product with a weight that adapters change.

Models are written without it. Fused operators that contain such a product are decomposed as far as necessary; all
others remain fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aethermind.errors import ConfigError
from aethermind.graph.builder import UniqueNames
from aethermind.graph.decomposition import decompose
from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.hal.dtype import DType
from aethermind.ops.dims import SymDim
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

__all__ = ["ADAPTERS", "ROW_ADAPTERS", "adaptable_weights", "part_names", "with_adapters"]

ADAPTERS = "adapters"
"""The input with the adapter of each token: i32[T], negative for none."""

ROW_ADAPTERS = "row_adapters"
"""The same for the rows that need logits, i32[R]: what follows the last layer's attention is computed for these only.
"""

_INPUTS = {SymDim("T"): ADAPTERS, SymDim("R"): ROW_ADAPTERS}

_LINEAR = "linear"


def part_names(weight: str) -> tuple[str, str, str]:
    """Return the names of the parameters of all adapters of a weight [N, K] (see `ops.catalog.lora`).

    They are `down` [L, K] and `up` [L, N] in the model's dtype, with the ranks of all adapters concatenated (L is their
    sum), and `cu_ranks` int32 [A + 1], the offsets of each of A adapters.
    """
    return f"{weight}/down", f"{weight}/up", f"{weight}/cu_ranks"


def adaptable_weights(graph: Graph, operators: OperatorRegistry) -> dict[str, TensorType]:
    """Return the weights of a graph that may have adapters: those of `linear`, alone or inside a fused operator."""
    names = UniqueNames({value.name for value in graph.values()})
    nodes = list(graph.nodes)
    found: dict[str, TensorType] = {}
    while nodes:
        node = nodes.pop(0)
        if node.operator == _LINEAR:
            weight = _weight(node)
            if weight is not None:
                found[weight.name] = weight.type
        elif operators[node.operator].weight_inputs and operators[node.operator].decompose is not None:
            nodes = [*decompose(node, operators, names), *nodes]
    return found


def with_adapters(graph: Graph, operators: OperatorRegistry, ranks: Mapping[str, int], num_adapters: int) -> Graph:
    """Return the graph with an `add_low_rank` behind each product with one of the weights in `ranks`.

    `ranks` are, by weight, the total ranks of all adapters. The inputs `ADAPTERS` and `ROW_ADAPTERS` are added where
    they are read. Values keep their names: the sum has that of the product, which is now `<name>/linear`. ConfigError
    where the rows of a product are not tokens, or an operator that reads such a weight has no decomposition.
    """
    return _LoraPass(graph, operators, ranks, num_adapters).run()


class _LoraPass:
    def __init__(self, graph: Graph, operators: OperatorRegistry, ranks: Mapping[str, int], num_adapters: int) -> None:
        self._graph = graph
        self._operators = operators
        self._ranks = ranks
        self._num_adapters = num_adapters
        self._names = UniqueNames({value.name for value in graph.values()})
        self._inputs: dict[str, Value] = {}
        self._parameters: dict[str, Value] = {}

    def run(self) -> Graph:
        nodes = [part for node in self._graph.nodes for part in self._adapted(node)]
        return replace(
            self._graph,
            inputs=(*self._graph.inputs, *self._inputs.values()),
            parameters=(*self._graph.parameters, *self._parameters.values()),
            nodes=tuple(nodes),
        )

    def _adapted(self, node: Node) -> list[Node]:
        """Return the nodes that compute what `node` does, with the contribution of adapters."""
        operator = self._operators[node.operator]
        read = [
            value
            for spec, value in zip(operator.schema.inputs, node.inputs, strict=True)
            if value is not None and spec.name in operator.weight_inputs and value.name in self._ranks
        ]
        if not read:
            return [node]
        if node.operator == _LINEAR:
            return self._product(node, read[0])
        if operator.decompose is None:
            raise ConfigError(
                f"{read[0].name} is read by {node.operator}, which an adapter cannot be added to; adapters change "
                "the weights of linear projections only."
            )
        return [part for inner in decompose(node, self._operators, self._names) for part in self._adapted(inner)]

    def _product(self, node: Node, weight: Value) -> list[Node]:
        x, (result,) = node.inputs[0], node.outputs
        assert x is not None
        (name,) = self._names.unique([f"{result.name}/{_LINEAR}"])
        bare = replace(result, name=name)
        inputs = (bare, x, *self._parts(weight), self._adapters_of(result))
        return [replace(node, outputs=(bare,)), Node("add_low_rank", inputs, (result,), {})]

    def _adapters_of(self, result: Value) -> Value:
        """Return the input with the adapter of each row of a product."""
        rows = result.type.shape[0]
        name = _INPUTS.get(rows) if isinstance(rows, SymDim) else None
        if name is None:
            raise ConfigError(f"{result.name} has {rows} rows, which are no tokens, so adapters cannot be added to it.")
        if name not in self._inputs:
            self._names.claim(name)
            self._inputs[name] = Value(name, TensorType(DType.INT32, (rows,)), ValueKind.INPUT)
        return self._inputs[name]

    def _parts(self, weight: Value) -> tuple[Value, ...]:
        num_outputs, num_inputs = weight.type.shape
        total, dtype = self._ranks[weight.name], weight.type.dtype
        types = (
            TensorType(dtype, (total, num_inputs)),
            TensorType(dtype, (total, num_outputs)),
            TensorType(DType.INT32, (self._num_adapters + 1,)),
        )
        return tuple(map(self._parameter, part_names(weight.name), types))

    def _parameter(self, name: str, type: TensorType) -> Value:
        if name not in self._parameters:
            self._names.claim(name)
            self._parameters[name] = Value(name, type, ValueKind.PARAMETER)
        return self._parameters[name]


def _weight(node: Node) -> Value | None:
    """Return the parameter that a product reads as its weight, if it does."""
    weight = node.inputs[1]
    return weight if weight is not None and weight.kind is ValueKind.PARAMETER else None
