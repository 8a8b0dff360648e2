"""LoRA in graphs: a pass that inserts an `add_low_rank` after each `linear` whose weight has adapters.

Architectures write graphs without LoRA. Fused operators that contain such a `linear` are decomposed as far as
necessary; all others remain fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aethermind.errors import ConfigError
from aethermind.graph.builder import UniqueNames, decompose
from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.hal.dtype import DType
from aethermind.ops.dims import SymDim
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

__all__ = ["ADAPTERS", "ROW_ADAPTERS", "adaptable_weights", "lora_parameter_names", "with_adapters"]

ADAPTERS = "adapters"
"""Name of the input with the number of each token's adapter: int32 [T], negative for none."""

ROW_ADAPTERS = "row_adapters"
"""Name of the input with the number of the adapter of each row that needs logits: int32 [R], negative for none.

The operators after the last layer's attention compute these rows only.
"""

_INPUTS = {SymDim("T"): ADAPTERS, SymDim("R"): ROW_ADAPTERS}
"""The input with adapter numbers, by the number of rows of a `linear`."""

_LINEAR = "linear"


def lora_parameter_names(weight: str) -> tuple[str, str, str]:
    """Return the names of the parameters with all adapters of a weight [N, K] (see `add_low_rank`).

    They are `down` [L, K] and `up` [L, N] in the model's dtype, with the ranks of all adapters concatenated (L is their
    sum), and `cu_ranks` int32 [A + 1], the offsets of each of A adapters.
    """
    return f"{weight}/down", f"{weight}/up", f"{weight}/cu_ranks"


def adaptable_weights(graph: Graph, operators: OperatorRegistry) -> dict[str, TensorType]:
    """Return the weights of a graph that may have adapters: those of `linear`, alone or inside a fused operator."""
    names = UniqueNames({value.name for value in graph.values()})
    nodes = list(graph.nodes)
    types: dict[str, TensorType] = {}
    while nodes:
        node = nodes.pop(0)
        if node.operator == _LINEAR:
            weight = _weight(node)
            if weight is not None:
                types[weight.name] = weight.type
        elif operators[node.operator].weight_inputs and operators[node.operator].decompose is not None:
            nodes = [*decompose(node, operators, names), *nodes]
    return types


def with_adapters(graph: Graph, operators: OperatorRegistry, ranks: Mapping[str, int], num_adapters: int) -> Graph:
    """Return the graph with an `add_low_rank` after each `linear` with one of the weights in `ranks`.

    `ranks` maps a weight to the sum of its adapters' ranks. The inputs `ADAPTERS` and `ROW_ADAPTERS` are added if an
    `add_low_rank` reads them. The output of `add_low_rank` has the name that the output of `linear` had, which is now
    `<name>/linear`. ConfigError if the rows of a `linear` are not tokens, or an operator that reads such a weight has
    no decomposition.
    """
    return _LoraPass(graph, operators, ranks, num_adapters).run()


class _LoraPass:
    """The state of `with_adapters`."""

    def __init__(self, graph: Graph, operators: OperatorRegistry, ranks: Mapping[str, int], num_adapters: int) -> None:
        self._graph = graph
        self._operators = operators
        self._ranks = ranks
        self._num_adapters = num_adapters
        self._names = UniqueNames({value.name for value in graph.values()})
        self._inputs: dict[str, Value] = {}
        self._parameters: dict[str, Value] = {}

    def run(self) -> Graph:
        nodes = [adapted for node in self._graph.nodes for adapted in self._adapted(node)]
        return replace(
            self._graph,
            inputs=(*self._graph.inputs, *self._inputs.values()),
            parameters=(*self._graph.parameters, *self._parameters.values()),
            nodes=tuple(nodes),
        )

    def _adapted(self, node: Node) -> list[Node]:
        """Return the nodes that replace `node` and add the contribution of adapters."""
        operator = self._operators[node.operator]
        weights = [
            value
            for spec, value in zip(operator.schema.inputs, node.inputs, strict=True)
            if value is not None and spec.name in operator.weight_inputs and value.name in self._ranks
        ]
        if not weights:
            return [node]
        if node.operator == _LINEAR:
            return self._with_low_rank(node, weights[0])
        if operator.decompose is None:
            raise ConfigError(
                f"{weights[0].name} is read by {node.operator}, which an adapter cannot be added to; adapters change "
                "the weights of linear projections only."
            )
        return [adapted for inner in decompose(node, self._operators, self._names) for adapted in self._adapted(inner)]

    def _with_low_rank(self, node: Node, weight: Value) -> list[Node]:
        """Return a `linear` and the `add_low_rank` that adds the contribution of adapters to its output."""
        x, (output,) = node.inputs[0], node.outputs
        assert x is not None
        (name,) = self._names.unique([f"{output.name}/{_LINEAR}"])
        base_output = replace(output, name=name)
        inputs = (base_output, x, *self._lora_parameters(weight), self._adapter_numbers(output))
        return [replace(node, outputs=(base_output,)), Node("add_low_rank", inputs, (output,), {})]

    def _adapter_numbers(self, output: Value) -> Value:
        """Return the input with the number of the adapter of each row of a `linear`'s output."""
        rows = output.type.shape[0]
        name = _INPUTS.get(rows) if isinstance(rows, SymDim) else None
        if name is None:
            raise ConfigError(f"{output.name} has {rows} rows, which are no tokens, so adapters cannot be added to it.")
        if name not in self._inputs:
            self._names.claim(name)
            self._inputs[name] = Value(name, TensorType(DType.INT32, (rows,)), ValueKind.INPUT)
        return self._inputs[name]

    def _lora_parameters(self, weight: Value) -> tuple[Value, ...]:
        """Return the parameters `down`, `up` and `cu_ranks` of a weight (see `lora_parameter_names`)."""
        num_outputs, num_inputs = weight.type.shape
        sum_of_ranks, dtype = self._ranks[weight.name], weight.type.dtype
        types = (
            TensorType(dtype, (sum_of_ranks, num_inputs)),
            TensorType(dtype, (sum_of_ranks, num_outputs)),
            TensorType(DType.INT32, (self._num_adapters + 1,)),
        )
        return tuple(map(self._parameter, lora_parameter_names(weight.name), types))

    def _parameter(self, name: str, type: TensorType) -> Value:
        if name not in self._parameters:
            self._names.claim(name)
            self._parameters[name] = Value(name, type, ValueKind.PARAMETER)
        return self._parameters[name]


def _weight(node: Node) -> Value | None:
    """Return the weight of a `linear` if it is a parameter, else None."""
    weight = node.inputs[1]
    return weight if weight is not None and weight.kind is ValueKind.PARAMETER else None
