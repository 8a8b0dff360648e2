"""Graph construction: the builder that models use, checked nodes with unique value names, decomposition of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aethermind.graph.ir import Graph, Node, Value, ValueKind
from aethermind.hal.dtype import DType
from aethermind.ops.dims import Shape
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import Attribute, TensorType

if TYPE_CHECKING:
    import numpy as np

__all__ = ["GraphBuilder", "UniqueNames", "decompose", "in_dtype", "make_node", "stored_name"]

_IN_DTYPE = "@"


def in_dtype(name: str, dtype: DType) -> str:
    """Return the name of a weight's copy in another dtype."""
    return f"{name}{_IN_DTYPE}{dtype}"


def stored_name(parameter: str) -> str:
    """Return the name in the checkpoint of a parameter, which may be a copy in another dtype."""
    return parameter.partition(_IN_DTYPE)[0]


class GraphBuilder:
    """Builds a graph: declare inputs, parameters and states, apply operators, name outputs.

    Shapes and dtypes are inferred and checked as nodes are added. `scope("layers.0.mlp")` prefixes the names of values
    computed inside, so that they correspond to the model's source. Names must not contain spaces or commas, because
    graphs are printed and parsed.
    """

    def __init__(
        self,
        name: str,
        operators: OperatorRegistry,
        dtype: DType = DType.FLOAT32,
        *,
        embedding_dtype: DType | None = None,
        lm_head_dtype: DType | None = None,
    ) -> None:
        """`dtype` is that of weights and activations; embeddings and the output projection may have others."""
        self.name = name
        self.operators = operators
        self.dtype = dtype
        self.embedding_dtype = embedding_dtype or dtype
        self.lm_head_dtype = lm_head_dtype or dtype
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self._declared: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._outputs: dict[str, Value] = {}
        self._marks: dict[str, Value] = {}
        self._latest: dict[Value, Value] = {}
        self._state_of: dict[Value, Value] = {}
        """Maps each value that results from an in-place write to its state."""
        self._names = UniqueNames()
        self._scope: list[str] = []

    def input(self, name: str, dtype: DType, shape: Shape) -> Value:
        """Declare a tensor that the caller provides for each run; its dims may be symbolic."""
        return self._declare(name, TensorType(dtype, shape), ValueKind.INPUT)

    def parameter(self, name: str, shape: Shape, dtype: DType | None = None) -> Value:
        """Declare a weight by its name in the checkpoint; declaring it twice returns the same value.

        A weight that is read in two dtypes is two parameters: the second has the name of `in_dtype`.
        """
        type = TensorType(dtype or self.dtype, shape)
        other = self._declared.get(name)
        if other is not None and other.type.shape == type.shape and other.type.dtype is not type.dtype:
            name = in_dtype(name, type.dtype)
        wanted = Value(name, type, ValueKind.PARAMETER)
        return wanted if self._declared.get(name) == wanted else self._declare(name, wanted.type, wanted.kind)

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> Value:
        """Declare a parameter whose values are computed from the configuration instead of read from the checkpoint."""
        value = self._declare(name, TensorType(DType.of_numpy(array.dtype), array.shape), ValueKind.PARAMETER)
        self.constants[name] = array
        return value

    def state(self, name: str, dtype: DType, shape: Shape) -> Value:
        """Declare memory that outlives a run, such as a KV cache."""
        return self._declare(name, TensorType(dtype, shape), ValueKind.STATE)

    def op(self, name: str, *inputs: Value | None, **attributes: Attribute) -> Any:
        """Apply an operator; return its output, or a tuple where it has several.

        Trailing absent inputs may be omitted. OperatorError when the inputs do not fit the operator's schema.
        """
        node = make_node(
            self.operators, name, inputs, attributes, ".".join([*self._scope, name]), self._names, self.dtype
        )
        self._nodes.append(node)
        self._record_writes(node)
        return node.outputs[0] if len(node.outputs) == 1 else node.outputs

    def _record_writes(self, node: Node) -> None:
        schema = self.operators[node.operator].schema
        for spec, output in zip(schema.outputs, node.outputs, strict=True):
            if spec.alias is None:
                continue
            written = next(
                value for given, value in zip(schema.inputs, node.inputs, strict=True) if given.name == spec.alias
            )
            state = None if written is None else self._state_of.get(written, written)
            if state is not None and state.kind is ValueKind.STATE:
                self._state_of[output], self._latest[state] = state, output

    def latest(self, state: Value) -> Value:
        """Return the newest version of a state, after the writes of all operators so far.

        Operators that read it run after those writes.
        """
        return self._latest.get(state, state)

    def output(self, name: str, value: Value) -> None:
        """Make a value an output of the graph, under a name."""
        assert name not in self._outputs, f"the graph has an output {name!r} already"
        self._outputs[name] = value

    def mark(self, role: str, value: Value) -> None:
        """Record a value under the name of its role, so that it can be made an output later.

        If the role was recorded before, this value replaces the earlier one.
        """
        self._marks[role] = value

    def marked(self, role: str) -> Value | None:
        """Return the value that was marked with a role, or None."""
        return self._marks.get(role)

    def is_used(self, value: Value) -> bool:
        """Whether an operator reads the value."""
        return any(value in node.inputs for node in self._nodes)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of values that are computed within the `with` block with `name`."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    @property
    def parameter_names(self) -> frozenset[str]:
        """The names of all parameters so far, those with computed values included."""
        return frozenset(value.name for value in self._declared.values() if value.kind is ValueKind.PARAMETER)

    def finish(self) -> Graph:
        """Return the graph."""
        by_kind = {kind: tuple(v for v in self._declared.values() if v.kind is kind) for kind in ValueKind}
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
        self._declared[name] = Value(name, type, kind)
        return self._declared[name]


class UniqueNames:
    """The value names in use in a graph; makes new names unique. Mutable."""

    def __init__(self, used: set[str] | None = None) -> None:
        self._used = used or set()

    def claim(self, name: str) -> None:
        """Reserve a name; AssertionError if it is in use, which is a programming error."""
        assert name not in self._used, f"the graph has a value {name!r} already"
        self._used.add(name)

    def unique(self, names: list[str]) -> list[str]:
        """Reserve names. If one of them is in use, the same `.NUMBER` is appended to all."""
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
    names: UniqueNames,
    default_float: DType | None = None,
) -> Node:
    """Return a checked node with inferred outputs, named `prefix`, or `prefix.OUTPUT` where there are several.

    `default_float` is the floating-point type of the outputs if no input is floating-point.
    """
    schema = operators[name].schema
    all_inputs = inputs + (None,) * (len(schema.inputs) - len(inputs))
    all_attributes = schema.complete(attributes)
    types = [None if value is None else value.type for value in all_inputs]
    has_float_input = any(type is not None and type.dtype.is_floating for type in types)
    output_types = schema.infer(types, all_attributes, None if has_float_input else default_float)
    output_names = [prefix] if len(output_types) == 1 else [f"{prefix}.{spec.name}" for spec in schema.outputs]
    outputs = tuple(
        Value(output_name, type) for output_name, type in zip(names.unique(output_names), output_types, strict=True)
    )
    return Node(name, all_inputs, outputs, all_attributes)


def decompose(
    node: Node, operators: OperatorRegistry, names: UniqueNames, decomposition: Callable[..., Any] | None = None
) -> list[Node]:
    """Return nodes of smaller operators that replace `node` and compute the same output values.

    `decomposition` has the signature of `Operator.decompose`; without it the one of the node's operator is used, which
    must exist. Intermediate values are named `<value>/<operator>`, made unique by `names`.
    """
    decomposition = decomposition or operators[node.operator].decompose
    assert decomposition is not None, f"{node.operator} has no decomposition"
    recorder = _DecompositionRecorder(operators, node.outputs[0].name, names)
    results = decomposition(recorder, *node.inputs, **node.attributes)
    results = results if isinstance(results, tuple) else (results,)
    original = {result.name: output for result, output in zip(results, node.outputs, strict=True)}
    computed = {value.name: value.type for inner in recorder.nodes for value in inner.outputs}
    assert [computed.get(name) for name in original] == [output.type for output in node.outputs], (
        f"the decomposition of {node.operator} should compute each of the outputs that its schema promises"
    )
    return [inner.substitute(lambda value: original.get(value.name, value)) for inner in recorder.nodes]


class _DecompositionRecorder:
    """The `ops.operator.OpBuilder` that records the nodes of a decomposition."""

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
