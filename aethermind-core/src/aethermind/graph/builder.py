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

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Collects nodes in order; shapes and dtypes are inferred and checked as they are written.

    `scope("layers.0.mlp")` prefixes the names of what is computed inside, so that values keep the names of the model's source.
    """

    def __init__(self, name: str, operators: OperatorRegistry, dtype: DType = DType.FLOAT32) -> None:
        self.name = name
        self.operators = operators
        self.dtype = dtype
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self._given: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._outputs: dict[str, Value] = {}
        self._names: set[str] = set()
        self._scope: list[str] = []

    def input(self, name: str, dtype: DType, shape: Shape) -> Value:
        """A tensor that every run provides; its dims may be symbols."""
        return self._declare(name, TensorType(dtype, shape), ValueKind.INPUT)

    def parameter(self, name: str, shape: Shape, dtype: DType | None = None) -> Value:
        """A weight of the checkpoint, by the checkpoint's own name; asked for twice it is the same value."""
        known = self._given.get(name)
        if known is not None and known.kind is ValueKind.PARAMETER and known.type.shape == shape:
            return known
        return self._declare(name, TensorType(dtype or self.dtype, shape), ValueKind.PARAMETER)

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> Value:
        """A parameter whose numbers are computed from the configuration instead of read from the checkpoint."""
        self.constants[name] = array
        return self._declare(name, TensorType(DType.of_numpy(array.dtype), array.shape), ValueKind.PARAMETER)

    def state(self, name: str, dtype: DType, shape: Shape) -> Value:
        """Memory that outlives a run, such as a KV cache."""
        return self._declare(name, TensorType(dtype, shape), ValueKind.STATE)

    def op(self, name: str, *inputs: Value | None, **attributes: Attribute) -> Any:
        """Apply an operator: one output comes bare, several as a tuple. OperatorError when the inputs do not fit its schema."""
        schema = self.operators[name].schema
        padded = inputs + (None,) * (len(schema.inputs) - len(inputs))
        complete = schema.complete(attributes)
        types = schema.infer([value.type if value else None for value in padded], complete, self._float_type(padded))
        prefix = ".".join([*self._scope, name])
        names = [prefix] if len(types) == 1 else [f"{prefix}.{spec.name}" for spec in schema.outputs]
        outputs = tuple(Value(self._unique(text), type) for text, type in zip(names, types, strict=True))
        self._nodes.append(Node(name, padded, outputs, complete))
        return outputs[0] if len(outputs) == 1 else outputs

    def output(self, name: str, value: Value) -> None:
        """Publish a value under a name of its own."""
        self._outputs[name] = value

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix names with `name` while inside."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def finish(self) -> Graph:
        """The graph as written so far."""
        by_kind = {kind: tuple(v for v in self._given.values() if v.kind is kind) for kind in ValueKind}
        outputs: Mapping[str, Value] = dict(self._outputs)
        return Graph(
            self.name,
            by_kind[ValueKind.INPUT],
            by_kind[ValueKind.PARAMETER],
            by_kind[ValueKind.STATE],
            tuple(self._nodes),
            outputs,
        )

    def _declare(self, name: str, type: TensorType, kind: ValueKind) -> Value:
        assert name not in self._names, f"the graph has a value {name!r} already"
        self._names.add(name)
        self._given[name] = Value(name, type, kind)
        return self._given[name]

    def _float_type(self, inputs: tuple[Value | None, ...]) -> DType | None:
        return None if any(value is not None and value.type.dtype.is_floating for value in inputs) else self.dtype

    def _unique(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self._names:
            candidate, number = f"{name}.{number}", number + 1
        self._names.add(candidate)
        return candidate
