"""Operators: schema, reference, samples, tolerances and decomposition, and the bytes and operations of a call."""

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
    "EXACT",
    "ONE_ROUNDING",
    "Operator",
    "OperatorRegistry",
    "Sample",
    "Tolerance",
    "accumulated",
    "cost_of",
    "float32_only",
    "visible_pairs",
]


Array = Any
"""A NumPy array. The alias is `Any`, so that this module does not import NumPy."""

BROADCASTING = "broadcasting"
"""The name among `Operator.additions` for inputs of different shapes."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The error that a kernel may have against the reference in float64.

    An element passes when |out − ref| ≤ `relative_to_terms` · (sum of magnitudes of its terms) + `relative` · |ref| +
    `absolute`. The terms of an element are the summands of which it is the sum, such as the products of a dot product.
    """

    relative_to_terms: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0


_ACCUMULATION = 1e-5
"""Error bound of a float32 sum in any order, relative to the sum of the magnitudes of its terms."""

_UNIT_ROUNDOFF = {DType.BFLOAT16: 2.0**-8, DType.FLOAT16: 2.0**-11}
_SMALLEST = {DType.BFLOAT16: 2.0**-133, DType.FLOAT16: 2.0**-24}
"""The smallest positive (subnormal) value of each dtype: an absolute error bound for results that underflow."""

EXACT: Mapping[DType, Tolerance] = {dtype: Tolerance() for dtype in (DType.FLOAT32, *_UNIT_ROUNDOFF)}
"""Tolerances of operators that only move data."""


def accumulated(*, inner_roundings: int = 0, absolute: float = 0.0) -> Mapping[DType, Tolerance]:
    """Return tolerances of operators that sum in float32 and round the output to F.

    `inner_roundings` are further roundings of intermediate results to F; their errors are relative to the terms.
    """
    tolerances = {DType.FLOAT32: Tolerance(relative_to_terms=_ACCUMULATION, absolute=absolute)}
    for dtype, roundoff in _UNIT_ROUNDOFF.items():
        tolerances[dtype] = Tolerance(
            relative_to_terms=_ACCUMULATION + inner_roundings * roundoff,
            relative=roundoff,
            absolute=max(absolute, _SMALLEST[dtype]),
        )
    return tolerances


ONE_ROUNDING: Mapping[DType, Tolerance] = accumulated()
"""Tolerances of operators that compute in float32 and round once, at the end."""


def float32_only(relative_to_terms: float = _ACCUMULATION) -> Mapping[DType, Tolerance]:
    """Return tolerances of operators whose inputs and outputs are float32 only."""
    return {DType.FLOAT32: Tolerance(relative_to_terms=relative_to_terms)}


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
    """An operator: its schema, and functions that define and test it.

    `reference(*arrays, **attributes)` defines the results. It computes in the float type of its inputs, returns one
    array or a tuple, and never writes to its inputs. `by_row` is a slower reference that is batch invariant: each row's
    result has the same bits whatever the other rows are. If it is None, `reference` is batch invariant.

    `samples(rng)` yields inputs of odd sizes, of one row and of none. `term_magnitudes` has the arguments of
    `reference` and returns for each output the sums of the magnitudes of its terms, which scale the tolerance; None
    stands for |reference|. An infinite magnitude marks an element that is undefined, a magnitude of 0 one that is
    copied bit for bit. `decompose(builder, *values, **attributes)` computes the same by smaller operators; values have
    a `shape`.

    `update(inputs, outputs, **attributes)` is for operators whose outputs are the memory of inputs: the outputs hold
    the inputs' values already, and `update` writes only what changes. `gathered` names the inputs of which only some
    elements are read. `reference` and `update` get these in their stored dtype, whatever the float type of the others,
    because a conversion of all elements would cost too much.

    `check(integers, shapes)` raises OperatorError if indices are out of range, which kernels do not check. `integers`
    are the inputs of integers and, as scalars, the integer attributes; `shapes` are those of all inputs and outputs;
    both are by name. `eager` calls `check`; in a plan the engine writes the indices.

    `additions` are the names of inputs and attributes that the operator gained after its first release. They are
    optional and come last in the schema; inputs are named first here. `BROADCASTING` is one of them if inputs may have
    different shapes since then. A kernel names the additions that it computes (`Kernel.additions`); an older kernel,
    which names none, is used for calls without them. `without_additions` is like `decompose`: it computes a call that
    uses additions by calls that use none, for devices that have only older kernels.

    `extension(types)` describes what a call has that plugin API 1 did not allow, such as a rotary table that is
    narrower than a head; None if there is nothing of that kind. `types` are those of the inputs by name, None for
    absent ones. Kernels of packages for plugin API 1 are not chosen for a call with an extension.

    `cost(call)` counts what a call must read, write and compute, for operators that the rule of `cost_of` does not fit.
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
        """Return, for each addition, whether a call uses it.

        `inputs` and `attributes` are all those of the schema. Inputs are anything with a `shape`, or None.
        """
        if not self.additions:
            return {}
        is_used = {spec.name: value is not None for spec, value in zip(self.schema.inputs, inputs, strict=True)}
        is_used |= {spec.name: attributes[spec.name] != spec.default for spec in self.schema.attributes}
        if BROADCASTING in self.additions:
            is_used[BROADCASTING] = len({tuple(value.shape) for value in inputs if value is not None}) > 1
        return {name: is_used[name] for name in self.additions}

    def used_extension(self, types: Sequence[TensorType | None]) -> str | None:
        """Return the `extension` of a call with inputs of these types, in the order of the schema."""
        if self.extension is None:
            return None
        return self.extension({spec.name: type for spec, type in zip(self.schema.inputs, types, strict=True)})

    @property
    def weight_inputs(self) -> tuple[str, ...]:
        """The names of the inputs that may be quantised: weights of which kernels read all, not only some rows."""
        return tuple(spec.name for spec in self.schema.inputs if spec.kind == "W" and spec.name not in self.gathered)


class OperatorRegistry:
    """Operators by name; filled at boot, then frozen."""

    def __init__(self, operators: Sequence[Operator] = ()) -> None:
        self._operators = {operator.name: operator for operator in operators}
        self._is_frozen = False

    def register(self, operator: Operator, provider: str = "aethermind-core") -> None:
        """Add an operator; PluginError if there is one of this name."""
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
    """One call of an operator, for its cost: types of inputs and outputs by name, without symbolic dims.

    Absent inputs are left out. `sequences` are (query tokens, key tokens) of the sequences of the step. `stored_bytes`
    are the sizes of inputs that are not stored in the dtype of their types, such as quantised weights.
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
        """Return the total bytes of these inputs; an absent one counts 0."""
        return sum(self.stored_bytes.get(name, self.inputs[name].nbytes({})) for name in names if name in self.inputs)

    def bytes_out(self, *names: str) -> int:
        """Return the total bytes of these outputs."""
        return sum(self.outputs[name].nbytes({}) for name in names)


def cost_of(operator: Operator, call: Call) -> Cost:
    """Return the least that a call reads, writes and computes.

    If the operator has no `cost`, each input is read and each output written once. Operations are two for each weight
    and row, or one for each output element if there are no weights. Of gathered inputs, as much is read as is written,
    and nothing is computed. An output that is an input's memory is not written. Weights are not read if there are no
    rows.
    """
    if operator.cost is not None:
        return operator.cost(call)
    present = [spec for spec in operator.schema.inputs if spec.name in call.inputs]
    written = call.bytes_out(*(spec.name for spec in operator.schema.outputs if spec.alias is None))
    read = call.bytes_in(*(spec.name for spec in present if spec.name not in operator.gathered))
    if any(spec.name in operator.gathered for spec in present):
        return Cost(read + written, written)
    num_weights = sum(prod(call.shape(spec.name)) for spec in present if spec.kind == "W")
    output_shapes = [call.shape(name) for name in call.outputs]
    if not num_weights:
        return Cost(read, written, sum(map(prod, output_shapes)))
    num_rows = output_shapes[0][0]
    return Cost(read, written, 2 * num_rows * num_weights) if num_rows else Cost()


def visible_pairs(num_queries: int, num_keys: int, window: int = 0) -> int:
    """Return the number of pairs of a query and a key visible to it; the last query has the last key's position."""
    first = num_keys - num_queries + 1
    if window <= 0 or num_keys <= window:
        return num_queries * (first + num_keys) // 2
    return sum(min(position, window) for position in range(first, num_keys + 1))
