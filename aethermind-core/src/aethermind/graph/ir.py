"""The intermediate representation: values, nodes, graphs. Frozen, in SSA form, printed and parsed back by `text`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from aethermind.ops.schema import Attribute, TensorType

__all__ = ["Graph", "Node", "Value", "ValueKind", "without_unused_nodes"]


class ValueKind(Enum):
    """Where a value comes from."""

    INPUT = "input"
    PARAMETER = "param"
    STATE = "state"
    COMPUTED = "computed"

    @property
    def sigil(self) -> str:
        """What stands before a value's name in a graph's text."""
        return {"param": "@", "state": "$"}.get(self.value, "%")


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that exists once: given from outside, or computed by one node. Names are unique in a graph."""

    name: str
    type: TensorType
    kind: ValueKind = ValueKind.COMPUTED

    def __str__(self) -> str:
        return self.kind.sigil + self.name


@dataclass(frozen=True, slots=True)
class Node:
    """One operator applied. Absent optional inputs are None; attributes are complete and in schema order."""

    operator: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Attribute]

    def substitute(self, new: Callable[[Value], Value]) -> Node:
        """The same node over renamed values."""
        inputs = tuple(None if value is None else new(value) for value in self.inputs)
        return replace(self, inputs=inputs, outputs=tuple(new(value) for value in self.outputs))


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run; `outputs` maps public names to values."""

    name: str
    inputs: tuple[Value, ...]
    parameters: tuple[Value, ...]
    states: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, Value]

    def __str__(self) -> str:
        from aethermind.graph.text import format_graph

        return format_graph(self)

    def values(self) -> Iterator[Value]:
        """Every value once, given ones first, then in the order of computation."""
        yield from (*self.inputs, *self.parameters, *self.states)
        for node in self.nodes:
            yield from node.outputs

    def symbols(self) -> tuple[str, ...]:
        """The symbols in the shapes of the inputs, sorted."""
        found = {dim.symbol for value in self.inputs for dim in value.type.shape if not isinstance(dim, int)}
        return tuple(sorted(found))


def without_unused_nodes(graph: Graph) -> Graph:
    """The graph without the nodes that neither an output nor a state depends on."""
    wanted = set(graph.outputs.values())
    states = set(graph.states)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs) or not states.isdisjoint(node.inputs):
            kept.append(node)
            wanted.update(value for value in node.inputs if value is not None)
    return replace(graph, nodes=tuple(reversed(kept)))
