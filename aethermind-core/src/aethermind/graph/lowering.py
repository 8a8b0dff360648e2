"""Lowering: replace every operator without a kernel by its decomposition, so that the largest operator a backend computes is used.

This takes the place of pattern matching: a young backend implements a dozen simple operators and runs every model, a mature one adds
fused kernels and gets faster with no model changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aethermind.dispatch.dispatcher import Dispatcher, Fallback, Resolution
from aethermind.dispatch.kernel import Signature
from aethermind.errors import KernelNotFoundError
from aethermind.graph.ir import Graph, Node, Value
from aethermind.ops.operator import Operator, OperatorRegistry
from aethermind.ops.schema import Attribute

__all__ = ["Lowered", "lower"]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph of which every node has a kernel or is a view; `resolutions` runs parallel to its nodes (None for a view)."""

    graph: Graph
    resolutions: tuple[Resolution | None, ...]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Operators that the NumPy reference computes because the device cannot, each once."""
        found = (resolution.signature.operator for resolution in self.resolutions if resolution and resolution.is_fallback)
        return tuple(dict.fromkeys(found))


def lower(
    graph: Graph,
    operators: OperatorRegistry,
    dispatcher: Dispatcher,
    device_type: str,
    *,
    fallback: Fallback = Fallback.WARN,
    fuse: bool = True,
) -> Lowered:
    """Choose kernels, decomposing where there is none; KernelNotFoundError where nothing leads on.

    With `fuse=False` every operator that has a decomposition is taken apart where its parts can be computed, so that each
    intermediate value exists and can be looked at.
    """
    lowering = _Lowering(operators, dispatcher, device_type, fallback, fuse)
    for node in graph.nodes:
        lowering.add(node)
    return Lowered(replace(graph, nodes=tuple(lowering.nodes)), tuple(lowering.resolutions))


@dataclass
class _Lowering:
    operators: OperatorRegistry
    dispatcher: Dispatcher
    device_type: str
    fallback: Fallback
    fuse: bool
    nodes: list[Node] = field(default_factory=list)
    resolutions: list[Resolution | None] = field(default_factory=list)

    def add(self, node: Node) -> None:
        operator = self.operators[node.operator]
        if operator.schema.is_view:
            self._keep(node, None)
            return
        signature = self._signature(node, operator)
        resolution = self.dispatcher.resolve(signature)
        may_keep = self.fuse or operator.decompose is None
        if resolution.chosen and may_keep:
            self._keep(node, resolution)
        elif operator.decompose is not None:
            for part in _decompose(node, operator, self.operators):
                self.add(part)
        else:
            self._keep(node, self._fall_back(signature, resolution))

    def _keep(self, node: Node, resolution: Resolution | None) -> None:
        self.nodes.append(node)
        self.resolutions.append(resolution)

    def _signature(self, node: Node, operator: Operator) -> Signature:
        types = tuple(value.type if value else None for value in node.inputs)
        float_type = operator.schema.float_type(types)
        return Signature(node.operator, self.device_type, float_type, types, node.attributes)

    def _fall_back(self, signature: Signature, own: Resolution) -> Resolution:
        if self.fallback is not Fallback.ERROR:
            reference = self.dispatcher.resolve_fallback(signature)
            if reference.chosen:
                return replace(reference, rejected=own.rejected)
        considered = "; ".join(f"{kernel.name} ({reason})" for kernel, reason in own.rejected) or "none"
        raise KernelNotFoundError(
            f"No kernel for operator {signature.operator} on {self.device_type} ({signature.dtype}). Considered: {considered}. "
            "Choose another --dtype or --device, or install a backend that has it."
        )


def _decompose(node: Node, operator: Operator, operators: OperatorRegistry) -> list[Node]:
    """The nodes of a decomposition, computing exactly the original node's output values."""
    assert operator.decompose is not None
    recorder = _Recorder(node.outputs[0].name, operators)
    results = operator.decompose(recorder, *node.inputs, **node.attributes)
    results = results if isinstance(results, tuple) else (results,)
    original = {result.name: output for result, output in zip(results, node.outputs, strict=True)}
    return [part.substitute(lambda value: original.get(value.name, value)) for part in recorder.nodes]


class _Recorder:
    """The OpBuilder that decompositions write to; inner values are named `<value>/<operator>`."""

    def __init__(self, prefix: str, operators: OperatorRegistry) -> None:
        self.nodes: list[Node] = []
        self._prefix = prefix
        self._operators = operators
        self._used: dict[str, int] = {}

    def op(self, name: str, *inputs: Value | None, **attributes: Attribute) -> Any:
        schema = self._operators[name].schema
        padded = inputs + (None,) * (len(schema.inputs) - len(inputs))
        complete: Mapping[str, Attribute] = schema.complete(attributes)
        types = schema.infer([value.type if value else None for value in padded], complete)
        number = self._used.get(name, 0)
        self._used[name] = number + 1
        base = f"{self._prefix}/{name}" + (f".{number}" if number else "")
        names = [base] if len(types) == 1 else [f"{base}.{spec.name}" for spec in schema.outputs]
        outputs = tuple(Value(text, type) for text, type in zip(names, types, strict=True))
        self.nodes.append(Node(name, padded, outputs, complete))
        return outputs[0] if len(outputs) == 1 else outputs
