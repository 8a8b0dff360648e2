"""An operator: its schema, reference, samples and tolerances, and what one call costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from aethermind.errors import OperatorError, PluginError
from aethermind.hal.dtype import DType
from aethermind.ops.dims import resolve
from aethermind.ops.schema import Attribute, OperatorSchema, TensorType

__all__ = [
    "Array",
    "BROADCASTING",
    "Call",
    "Cost",
    "Operator",
    "OperatorRegistry",
    "Sample",
    "Tolerance",
    "cost_of",
    "visible_pairs",
]


Array = Any
"""A NumPy array. The alias is `Any`, so that this module does not import NumPy."""

BROADCASTING = "broadcasting"
"""The addition that a call uses whose inputs have different shapes."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The error of a kernel that is allowed, relative to the float64 reference.

    An element passes when |out − ref| ≤ `relative_to_terms` · (sum of magnitudes of its terms) + `relative` · |ref| +
    `absolute`.
    """

    relative_to_terms: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs for one call: arrays, or None for an absent optional input.

    Floats are float64, to be rounded to the dtype under test; integers have the schema's dtype.
    """

    label: str
    inputs: tuple[Array | None, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator: a page of the catalog.

    `reference(*arrays, **attributes)` computes in the float type of its inputs and returns one array or a tuple; it
    never writes to them. `by_row`, where given, is a slower reference that is batch invariant: each row's result has
    the same bits whatever the other rows are. Without it, the reference is batch invariant.

    `samples(rng)` yields inputs of odd sizes, of one row and of none. `term_magnitudes`, where given, returns for each
    output the sum of the magnitudes of its terms, which scales the tolerance; otherwise |reference| does. An infinite
    magnitude marks an element that is undefined, a magnitude of 0 one that is copied bit for bit.
    `decompose(builder, *values, **attributes)` computes the same by smaller operators; values have a `shape`.

    `update(inputs, outputs, **attributes)` is for operators whose outputs are the memory of inputs: the outputs hold
    the inputs' values already, and it writes only what changes. `gathered` names the inputs of which only some elements
    are read: `reference` and `update` get them as they are stored, whatever the float type of the others, because
    converting all of them would cost too much.

    `check(integers, shapes)` raises OperatorError where indices are out of range; kernels do not check them. Both are
    by name: the inputs of integers with the integer attributes, as scalars, and the shapes of all inputs and outputs.
    `eager` calls it; the indices in a plan are written by the engine.

    `additions` are the names of inputs and attributes that the operator gained after its first release: optional ones,
    behind the others, in the order of the schema with inputs first; and `BROADCASTING` if its inputs may have different
    shapes since then. Kernels name those that they compute (`Kernel.additions`), so that kernels from before remain
    usable. `without_additions`, where given, is like `decompose`: it computes a call that uses additions by calls that
    use none, for devices with such kernels only.

    `extension(types)` names what a call has that operators of plugin API 1 did not allow, by the types of its inputs
    (None where absent): such as a rotary table that is narrower than a head. None where nothing. Kernels of packages
    for that version are not chosen for such a call.

    `cost(call)` counts what a call must read, write and compute where the general rule of `cost_of` does not fit.
    """

    schema: OperatorSchema
    summary: str
    samples: Callable[[Any], Iterator[Sample]]
    reference: Callable[..., Any] | None = None
    by_row: Callable[..., Any] | None = None
    update: Callable[..., None] | None = None
    decompose: Callable[..., Any] | None = None
    term_magnitudes: Callable[..., Any] | None = None
    tolerances: Mapping[DType, Tolerance] = field(default_factory=dict)
    gathered: frozenset[str] = frozenset()
    cost: Callable[[Call], Cost] | None = None
    check: Callable[[Mapping[str, Array], Mapping[str, tuple[int, ...]]], None] | None = None
    additions: tuple[str, ...] = ()
    extension: Callable[[Mapping[str, TensorType | None]], str | None] | None = None
    without_additions: Callable[..., Any] | None = None

    @property
    def name(self) -> str:
        """The name of the operator, unique in a registry."""
        return self.schema.name

    def used_additions(self, inputs: Sequence[Any], attributes: Mapping[str, Attribute]) -> dict[str, bool]:
        """Return, for each addition, whether a call with all inputs and attributes of the schema uses it.

        Inputs are anything with a `shape`, or None.
        """
        if not self.additions:
            return {}
        given = {spec.name: value is not None for spec, value in zip(self.schema.inputs, inputs, strict=True)}
        given |= {spec.name: attributes[spec.name] != spec.default for spec in self.schema.attributes}
        if BROADCASTING in self.additions:
            given[BROADCASTING] = len({tuple(value.shape) for value in inputs if value is not None}) > 1
        return {name: given[name] for name in self.additions}

    def used_extension(self, types: Sequence[TensorType | None]) -> str | None:
        """Return the `extension` of a call with inputs of these types, in the order of the schema."""
        if self.extension is None:
            return None
        return self.extension({spec.name: type for spec, type in zip(self.schema.inputs, types, strict=True)})

    @property
    def weight_inputs(self) -> tuple[str, ...]:
        """The inputs that may be quantised: weights that are read whole, not gathered from."""
        return tuple(spec.name for spec in self.schema.inputs if spec.kind == "W" and spec.name not in self.gathered)


class OperatorRegistry:
    """Operators by name; filled at boot, then frozen."""

    def __init__(self, operators: Sequence[Operator] = ()) -> None:
        self._operators = {operator.name: operator for operator in operators}
        self._is_frozen = False

    def register(self, operator: Operator, provider: str = "aethermind-core") -> None:
        """Add an operator; PluginError where its name is taken."""
        assert not self._is_frozen, "registries are frozen after boot"
        if operator.name in self._operators:
            raise PluginError(f"Operator {operator.name!r} of {provider} exists already; give it another name.")
        self._operators[operator.name] = operator

    def freeze(self) -> None:
        """Refuse registrations from now on."""
        self._is_frozen = True

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._operators.values())

    def __contains__(self, name: object) -> bool:
        return name in self._operators

    def __getitem__(self, name: str) -> Operator:
        try:
            return self._operators[name]
        except KeyError:
            raise OperatorError(f"Unknown operator {name!r}. Known: {', '.join(sorted(self._operators))}.") from None


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes moved and floating-point operations; a multiply-add counts as two."""

    bytes_read: int = 0
    bytes_written: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written, self.flops + other.flops
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator: types without symbols by the schema's names, without absent inputs.

    `sequences` are (query tokens, key tokens) of the sequences of the step. `stored_bytes` are the sizes of inputs that
    are not stored as their types say, such as quantised weights.
    """

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    attributes: Mapping[str, Attribute]
    sequences: tuple[tuple[int, int], ...] = ()
    stored_bytes: Mapping[str, int] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the dims of an input or output."""
        return resolve((self.inputs if name in self.inputs else self.outputs)[name].shape, {})

    def bytes_in(self, *names: str) -> int:
        """Return the total bytes of these inputs; absent ones have none."""
        return sum(self.stored_bytes.get(name, self.inputs[name].nbytes({})) for name in names if name in self.inputs)

    def bytes_out(self, *names: str) -> int:
        """Return the total bytes of these outputs."""
        return sum(self.outputs[name].nbytes({}) for name in names)


def cost_of(operator: Operator, call: Call) -> Cost:
    """Return the least that a call reads, writes and computes.

    Without `Operator.cost`, inputs are read and outputs written once, with two operations per weight and row, or one
    per output element where there are no weights. Of gathered inputs, as much is read as is written. An output that is
    an input's memory costs nothing. Weights are not read where there are no rows.
    """
    if operator.cost is not None:
        return operator.cost(call)
    given = [spec for spec in operator.schema.inputs if spec.name in call.inputs]
    written = call.bytes_out(*(spec.name for spec in operator.schema.outputs if spec.alias is None))
    read = call.bytes_in(*(spec.name for spec in given if spec.name not in operator.gathered))
    if any(spec.name in operator.gathered for spec in given):
        return Cost(read + written, written)
    num_weights = sum(prod(call.shape(spec.name)) for spec in given if spec.kind == "W")
    sizes = [call.shape(name) for name in call.outputs]
    if not num_weights:
        return Cost(read, written, sum(map(prod, sizes)))
    num_rows = sizes[0][0]
    return Cost(read, written, 2 * num_rows * num_weights) if num_rows else Cost()


def visible_pairs(num_queries: int, num_keys: int, window: int = 0) -> int:
    """Return the number of pairs of a query and a key visible to it; the last query has the last key's position."""
    first = num_keys - num_queries + 1
    if window <= 0 or num_keys <= window:
        return num_queries * (first + num_keys) // 2
    return sum(min(position, window) for position in range(first, num_keys + 1))
