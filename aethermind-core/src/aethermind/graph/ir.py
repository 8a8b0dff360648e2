"""The intermediate representation (IR): values, nodes and graphs, immutable and in SSA form, and their text form.

graph tiny {
  input %token_ids: int32[T]
  param @embed.weight: float32[64,16]
  %x: float32[T,16] = embedding(%token_ids, @embed.weight)
  output hidden = %x
}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from aethermind.errors import InvalidArgumentError
from aethermind.hal.dtype import DType
from aethermind.ops.dims import Shape, parse_shape
from aethermind.ops.schema import FLOAT_DTYPES, Attribute, TensorType

__all__ = ["Graph", "Node", "Value", "ValueKind", "format_graph", "parse_graph", "without_unused_nodes"]


class ValueKind(Enum):
    """The origin of a value."""

    INPUT = "input"
    PARAMETER = "param"
    STATE = "state"
    COMPUTED = "computed"

    @property
    def sigil(self) -> str:
        """The character before a value's name in the text form."""
        return {"param": "@", "state": "$"}.get(self.value, "%")


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: an input, parameter or state, or computed by one node. Names are unique in a graph."""

    name: str
    type: TensorType
    kind: ValueKind = ValueKind.COMPUTED

    @property
    def shape(self) -> Shape:
        """The dims: integers, or `SymDim` where the length differs between runs."""
        return self.type.shape

    def __str__(self) -> str:
        return self.kind.sigil + self.name


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an operator.

    An absent optional input is None. `attributes` has every attribute of the schema, defaults included, in its order.
    """

    operator: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Attribute]

    def substitute(self, new: Callable[[Value], Value]) -> Node:
        """Return the node with every input and output replaced by `new(value)`."""
        inputs = tuple(None if value is None else new(value) for value in self.inputs)
        return replace(self, inputs=inputs, outputs=tuple(new(value) for value in self.outputs))


@dataclass(frozen=True, slots=True)
class Graph:
    """A model, or a part of it: nodes in topological order. `outputs` maps the names of outputs to values."""

    name: str
    inputs: tuple[Value, ...]
    parameters: tuple[Value, ...]
    states: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, Value]

    def __str__(self) -> str:
        return format_graph(self)

    def values(self) -> Iterator[Value]:
        """Yield every value once: inputs, parameters and states first, then in the order of computation."""
        yield from (*self.inputs, *self.parameters, *self.states)
        for node in self.nodes:
            yield from node.outputs

    def symbols(self) -> tuple[str, ...]:
        """Return the names of the symbolic dims of the inputs, sorted (see `ops.dims`)."""
        names = {dim.symbol for value in self.inputs for dim in value.type.shape if not isinstance(dim, int)}
        return tuple(sorted(names))


def without_unused_nodes(graph: Graph) -> Graph:
    """Return the graph without nodes that no output depends on. Nodes that take a state as an input are kept, with
    what they depend on.
    """
    wanted = set(graph.outputs.values())
    states = set(graph.states)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs) or not states.isdisjoint(node.inputs):
            kept.append(node)
            wanted.update(value for value in node.inputs if value is not None)
    return replace(graph, nodes=tuple(reversed(kept)))


_DECLARATION = re.compile(r"^(input|param|state) [%@$](\S+): (\w+)\[(.*)\]$")
_OUTPUT = re.compile(r"^output (\S+) = [%@$](\S+)$")
_NODE = re.compile(r"^(.*) = (\w+)\((.*?)\)(?: \{(.*)\})?$")
_RESULT = re.compile(r"^%(\S+): (\w+)\[([^\]]*)\]$")


def format_graph(graph: Graph) -> str:
    """Return the text form of a graph, one line per node; `parse_graph` returns an equal graph."""
    lines = [f"graph {graph.name} {{"]
    for value in (*graph.inputs, *graph.parameters, *graph.states):
        lines.append(f"  {value.kind.value} {value}: {value.type}")
    lines.extend(f"  {_format_node(node)}" for node in graph.nodes)
    lines.extend(f"  output {name} = {value}" for name, value in graph.outputs.items())
    return "\n".join([*lines, "}"]) + "\n"


def _format_node(node: Node) -> str:
    results = ", ".join(f"{value}: {value.type}" for value in node.outputs)
    arguments = ", ".join("_" if value is None else str(value) for value in node.inputs)
    attributes = ", ".join(f"{name}={_format_attribute(value)}" for name, value in node.attributes.items())
    return f"{results} = {node.operator}({arguments})" + (f" {{{attributes}}}" if attributes else "")


def _format_attribute(value: Attribute) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value) if isinstance(value, DType) else repr(value)


def parse_graph(text: str) -> Graph:
    """Parse the text form of a graph; InvalidArgumentError names the line that cannot be parsed."""
    lines = [line.strip() for line in text.strip().splitlines()]
    header = re.match(r"^graph (\S+) \{$", lines[0]) if lines else None
    if header is None or lines[-1] != "}":
        raise InvalidArgumentError("A graph's text starts with 'graph NAME {' and ends with '}'.")
    values: dict[str, Value] = {}
    declared: dict[ValueKind, list[Value]] = {kind: [] for kind in ValueKind}
    nodes: list[Node] = []
    outputs: dict[str, Value] = {}
    for number, line in enumerate(lines[1:-1], start=2):
        try:
            if match := _DECLARATION.match(line):
                kind, name, dtype, shape = match.groups()
                value = Value(name, _parse_type(dtype, shape), ValueKind(kind))
                declared[value.kind].append(_define(value, values))
            elif match := _OUTPUT.match(line):
                outputs[match[1]] = values[match[2]]
            else:
                nodes.append(_parse_node(line, values))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"Line {number} of the graph cannot be read: {line!r} ({error}).") from None
    return Graph(
        header[1],
        tuple(declared[ValueKind.INPUT]),
        tuple(declared[ValueKind.PARAMETER]),
        tuple(declared[ValueKind.STATE]),
        tuple(nodes),
        outputs,
    )


def _parse_node(line: str, values: dict[str, Value]) -> Node:
    results, operator, arguments, attributes = _NODE.match(line).groups()  # type: ignore[union-attr]
    inputs = tuple(None if name == "_" else values[name[1:]] for name in arguments.split(", ") if name)
    outputs = tuple(_define(_parse_result(text), values) for text in re.split(", (?=%)", results))
    pairs = (pair.split("=") for pair in (attributes or "").split(", ") if pair)
    return Node(operator, inputs, outputs, {name: _parse_attribute(value) for name, value in pairs})


def _parse_result(text: str) -> Value:
    name, dtype, shape = _RESULT.match(text).groups()  # type: ignore[union-attr]
    return Value(name, _parse_type(dtype, shape))


def _define(value: Value, values: dict[str, Value]) -> Value:
    if value.name in values:
        raise ValueError(f"{value} is defined twice")
    values[value.name] = value
    return value


def _parse_type(dtype: str, shape: str) -> TensorType:
    return TensorType(DType.parse(dtype), parse_shape(shape))


def _parse_attribute(text: str) -> Attribute:
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("["):
        return tuple(int(number) for number in text[1:-1].split(",") if number)
    if any(text == dtype.label for dtype in FLOAT_DTYPES):
        return DType.parse(text)
    try:
        return int(text)
    except ValueError:
        return float(text)
