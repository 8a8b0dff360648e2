"""Decomposition of a node into nodes of smaller operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aethermind.graph.builder import UniqueNames, make_node
from aethermind.graph.ir import Node, Value
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import Attribute

__all__ = ["decompose"]


def decompose(
    node: Node, operators: OperatorRegistry, names: UniqueNames, parts: Callable[..., Any] | None = None
) -> list[Node]:
    """Return the nodes of the decomposition that replaces `node`; they compute the same output values.

    It is `parts`, or that of the node's operator, which must have one. Intermediate values are named
    `<value>/<operator>`, made unique by `names`.
    """
    parts = parts or operators[node.operator].decompose
    assert parts is not None, f"{node.operator} has no decomposition"
    recorder = _Recorder(operators, node.outputs[0].name, names)
    results = parts(recorder, *node.inputs, **node.attributes)
    results = results if isinstance(results, tuple) else (results,)
    original = {result.name: output for result, output in zip(results, node.outputs, strict=True)}
    computed = {value.name: value.type for inner in recorder.nodes for value in inner.outputs}
    assert [computed.get(name) for name in original] == [output.type for output in node.outputs], (
        f"the decomposition of {node.operator} should compute each of the outputs that its schema promises"
    )
    return [inner.substitute(lambda value: original.get(value.name, value)) for inner in recorder.nodes]


class _Recorder:
    """The OpBuilder that records the nodes of a decomposition."""

    def __init__(self, operators: OperatorRegistry, prefix: str, names: UniqueNames) -> None:
        self.nodes: list[Node] = []
        self._operators = operators
        self._prefix = prefix
        self._names = names

    def op(self, name: str, *inputs: Value | None, **attributes: Attribute) -> Any:
        """Record a node; return its output, or a tuple where it has several."""
        node = make_node(self._operators, name, inputs, attributes, f"{self._prefix}/{name}", self._names)
        self.nodes.append(node)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs
