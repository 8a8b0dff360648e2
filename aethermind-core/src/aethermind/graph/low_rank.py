"""The graph of a model with adapters: behind each product with a weight that they change, what they add to it.

Models know nothing of it. Whatever holds the product inside is taken apart as far as it must be: what no adapter
touches stays as fused as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aethermind.errors import ConfigError
from aethermind.graph.builder import Names
from aethermind.graph.decomposition import decompose
from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.hal.dtype import DType
from aethermind.ops.dims import SymDim
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

__all__ = ["ADAPTERS", "ROW_ADAPTERS", "adaptable_weights", "part_names", "with_adapters"]

ADAPTERS = "adapters"
"""The input that says which adapter each token has: i32[T], negative for none."""

ROW_ADAPTERS = "row_adapters"
"""The same for the rows that need logits, i32[R]: what comes behind the last layer's attention is computed for these
alone."""

_INPUTS = {SymDim("T"): ADAPTERS, SymDim("R"): ROW_ADAPTERS}

_PRODUCT = "linear"


def part_names(weight: str) -> tuple[str, str, str]:
    """The parameters that adapters of a weight [N, K] have in common: F[L, K] and F[L, N], in which the ranks of all
    lie one after the other, and i32[A + 1], where those of each begin (see `ops.catalog.add_low_rank`).
    """
    return f"{weight}/down", f"{weight}/up", f"{weight}/cu_ranks"


def adaptable_weights(graph: Graph, operators: OperatorRegistry) -> dict[str, TensorType]:
    """The weights of a graph that may have adapters, by name: those that a linear reads, alone or in something larger
    that can be taken apart.
    """
    names = Names({value.name for value in graph.values()})
    nodes = list(graph.nodes)
    found: dict[str, TensorType] = {}
    while nodes:
        node = nodes.pop(0)
        if node.operator == _PRODUCT:
            weight = _weight(node)
            if weight is not None:
                found[weight.name] = weight.type
        elif operators[node.operator].weight_inputs and operators[node.operator].decompose is not None:
            nodes = [*decompose(node, operators, names), *nodes]
    return found


def with_adapters(graph: Graph, operators: OperatorRegistry, ranks: Mapping[str, int], num_adapters: int) -> Graph:
    """The graph with an `add_low_rank` behind each product with one of the weights in `ranks`, which says how many
    ranks all adapters of a weight have together, and with those of the inputs `ADAPTERS` and `ROW_ADAPTERS` that these
    read.

    Values keep their names: that of a product is now the name of the sum, and the bare product is `<name>/linear`.
    ConfigError where a product has other rows, or an operator that reads such a weight cannot be taken apart.
    """
    return _Adapter(graph, operators, ranks, num_adapters).run()


class _Adapter:
    def __init__(self, graph: Graph, operators: OperatorRegistry, ranks: Mapping[str, int], num_adapters: int) -> None:
        self._graph = graph
        self._operators = operators
        self._ranks = ranks
        self._num_adapters = num_adapters
        self._names = Names({value.name for value in graph.values()})
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
        """The nodes that compute what `node` does, with what adapters add."""
        operator = self._operators[node.operator]
        read = [
            value
            for spec, value in zip(operator.schema.inputs, node.inputs, strict=True)
            if value is not None and spec.name in operator.weight_inputs and value.name in self._ranks
        ]
        if not read:
            return [node]
        if node.operator == _PRODUCT:
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
        (name,) = self._names.unique([f"{result.name}/{_PRODUCT}"])
        bare = replace(result, name=name)
        inputs = (bare, x, *self._parts(weight), self._adapters_of(result))
        return [replace(node, outputs=(bare,)), Node("add_low_rank", inputs, (result,), {})]

    def _adapters_of(self, result: Value) -> Value:
        """The input that says which adapter each row of a product has."""
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
    """The parameter that a product reads as its weight."""
    weight = node.inputs[1]
    return weight if weight is not None and weight.kind is ValueKind.PARAMETER else None
