"""A node as the smaller ones that its operator says compute the same."""

from __future__ import annotations

from typing import Any

from aethermind.graph.builder import Names, make_node
from aethermind.graph.ir import Node, Value
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import Attribute

__all__ = ["decompose"]


def decompose(node: Node, operators: OperatorRegistry, names: Names) -> list[Node]:
    """The nodes of a decomposition, computing exactly the original node's output values.

    The node's operator has one. Inner values get `names` of their own, `<value>/<operator>`.
    """
    operator = operators[node.operator]
    assert operator.decompose is not None, f"{node.operator} has no smaller parts"
    recorder = _Recorder(operators, node.outputs[0].name, names)
    results = operator.decompose(recorder, *node.inputs, **node.attributes)
    results = results if isinstance(results, tuple) else (results,)
    original = {result.name: output for result, output in zip(results, node.outputs, strict=True)}
    computed = {value.name: value.type for part in recorder.nodes for value in part.outputs}
    assert [computed.get(name) for name in original] == [output.type for output in node.outputs], (
        f"the decomposition of {node.operator} should compute each of the outputs that its schema promises"
    )
    return [part.substitute(lambda value: original.get(value.name, value)) for part in recorder.nodes]


class _Recorder:
    """The OpBuilder that decompositions write to."""

    def __init__(self, operators: OperatorRegistry, prefix: str, names: Names) -> None:
        self.nodes: list[Node] = []
        self._operators = operators
        self._prefix = prefix
        self._names = names

    def op(self, name: str, *inputs: Value | None, **attributes: Attribute) -> Any:
        """Record a node; one output comes bare, several as a tuple."""
        node = make_node(self._operators, name, inputs, attributes, f"{self._prefix}/{name}", self._names)
        self.nodes.append(node)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs
