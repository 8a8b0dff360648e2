"""Writing a graph: declare what is given, apply operators, name the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.hal.dtype import DType
from aethermind.ops.dims import Shape
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import Attribute, TensorType

if TYPE_CHECKING:
    import numpy as np

__all__ = ["GraphBuilder", "Names", "make_node"]


class GraphBuilder:
    """Collects nodes in order; shapes and dtypes are inferred and checked as they are written.

    `scope("layers.0.mlp")` prefixes the names of what is computed inside, so that values keep the names of the model's
    source. Names must not contain spaces or commas, because graphs are printed and read back.
    """

    def __init__(self, name: str, operators: OperatorRegistry, dtype: DType = DType.FLOAT32) -> None:
        self.name = name
        self.operators = operators
        self.dtype = dtype
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self._given: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._outputs: dict[str, Value] = {}
        self._marks: dict[str, Value] = {}
        self._names = Names()
        self._scope: list[str] = []

    def input(self, name: str, dtype: DType, shape: Shape) -> Value:
        """A tensor that every run provides; its dims may be symbols."""
        return self._declare(name, TensorType(dtype, shape), ValueKind.INPUT)

    def parameter(self, name: str, shape: Shape, dtype: DType | None = None) -> Value:
        """A weight of the checkpoint, by the checkpoint's own name; asked for twice it is the same value."""
        wanted = Value(name, TensorType(dtype or self.dtype, shape), ValueKind.PARAMETER)
        return wanted if self._given.get(name) == wanted else self._declare(name, wanted.type, wanted.kind)

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> Value:
        """A parameter whose numbers are computed from the configuration instead of read from the checkpoint."""
        value = self._declare(name, TensorType(DType.of_numpy(array.dtype), array.shape), ValueKind.PARAMETER)
        self.constants[name] = array
        return value

    def state(self, name: str, dtype: DType, shape: Shape) -> Value:
        """Memory that outlives a run, such as a KV cache."""
        return self._declare(name, TensorType(dtype, shape), ValueKind.STATE)

    def op(self, name: str, *inputs: Value | None, **attributes: Attribute) -> Any:
        """Apply an operator: one output comes bare, several as a tuple.

        Absent inputs at the end may be left out. OperatorError when the inputs do not fit the operator's schema.
        """
        node = make_node(
            self.operators, name, inputs, attributes, ".".join([*self._scope, name]), self._names, self.dtype
        )
        self._nodes.append(node)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    def output(self, name: str, value: Value) -> None:
        """Publish a value under a name of its own."""
        assert name not in self._outputs, f"the graph has an output {name!r} already"
        self._outputs[name] = value

    def mark(self, role: str, value: Value) -> None:
        """Say what a value is, for whoever may want to publish it; the last one of a role counts."""
        self._marks[role] = value

    def marked(self, role: str) -> Value | None:
        """The value that was marked as this, if any."""
        return self._marks.get(role)

    def is_used(self, value: Value) -> bool:
        """Whether some operator has taken the value."""
        return any(value in node.inputs for node in self._nodes)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix names with `name` while inside."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    @property
    def parameter_names(self) -> frozenset[str]:
        """What the graph takes from the checkpoint or has computed, so far."""
        return frozenset(value.name for value in self._given.values() if value.kind is ValueKind.PARAMETER)

    def finish(self) -> Graph:
        """The graph as written so far."""
        by_kind = {kind: tuple(v for v in self._given.values() if v.kind is kind) for kind in ValueKind}
        return Graph(
            self.name,
            by_kind[ValueKind.INPUT],
            by_kind[ValueKind.PARAMETER],
            by_kind[ValueKind.STATE],
            tuple(self._nodes),
            dict(self._outputs),
        )

    def _declare(self, name: str, type: TensorType, kind: ValueKind) -> Value:
        self._names.claim(name)
        self._given[name] = Value(name, type, kind)
        return self._given[name]


class Names:
    """The names that a graph has used, so that no two values share one. Mutable."""

    def __init__(self, used: set[str] | None = None) -> None:
        self._used = used or set()

    def claim(self, name: str) -> None:
        """Take a name as it is; one that is taken is a programmer's mistake (AssertionError)."""
        assert name not in self._used, f"the graph has a value {name!r} already"
        self._used.add(name)

    def unique(self, names: list[str]) -> list[str]:
        """Take names, all with the same `.NUMBER` behind them where one is taken."""
        candidates, number = names, 1
        while not self._used.isdisjoint(candidates):
            candidates, number = [f"{name}.{number}" for name in names], number + 1
        self._used.update(candidates)
        return candidates


def make_node(
    operators: OperatorRegistry,
    name: str,
    inputs: tuple[Value | None, ...],
    attributes: Mapping[str, Attribute],
    prefix: str,
    names: Names,
    default_float: DType | None = None,
) -> Node:
    """A checked node with its inferred outputs, named `prefix`, or `prefix.OUTPUT` where there are several.

    `default_float` is the operator's floating-point type where no input says it.
    """
    schema = operators[name].schema
    padded = inputs + (None,) * (len(schema.inputs) - len(inputs))
    complete = schema.complete(attributes)
    types = [None if value is None else value.type for value in padded]
    is_said = any(type is not None and type.dtype.is_floating for type in types)
    results = schema.infer(types, complete, None if is_said else default_float)
    wanted = [prefix] if len(results) == 1 else [f"{prefix}.{spec.name}" for spec in schema.outputs]
    outputs = tuple(Value(text, type) for text, type in zip(names.unique(wanted), results, strict=True))
    return Node(name, padded, outputs, complete)
