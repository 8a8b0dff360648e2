"""An operator: one page of the catalog, with everything that anybody needs to know about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aethermind.errors import OperatorError, PluginError
from aethermind.hal.dtype import DType
from aethermind.ops.schema import Attribute, OperatorSchema

if TYPE_CHECKING:
    from aethermind.ops.cost import Call, Cost

__all__ = ["Array", "Operator", "OperatorRegistry", "Sample", "Tolerance"]

Array = Any
"""A NumPy array; a plain alias so that importing a page does not import NumPy."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a kernel may be from the float64 reference.

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
    """A page.

    `reference(*arrays, **attributes)` computes in the float type of its inputs and returns one array or a tuple; it
    never writes to them. `by_row`, where given, is a slower reference of which each row's result has the same bits
    whatever the other rows are; elsewhere the reference itself is like that.

    `samples(rng)` yields inputs with tails, one row, none. `term_magnitudes`, where given, returns for each output the
    sum of the magnitudes of the terms that were added up, which scales the tolerance; elsewhere |reference| does. An
    infinite magnitude marks an element that may hold anything, and a magnitude of 0 one that is copied to the bit.
    `decompose(builder, *values, **attributes)` says the same with smaller operators.

    `update(inputs, outputs, **attributes)` is for operators whose outputs are the memory of inputs: the outputs hold
    the inputs' values already, and it writes only what changes. `gathered` names the inputs of which only a few
    elements are picked: `reference` and `update` get them as they are stored, whatever the float type of the others,
    because converting all of them would cost too much.

    `check(integers, shapes)`, both by input, raises OperatorError where integers point outside of what they point into:
    kernels trust them. `eager` calls it; a plan's are written by the engine.

    `cost(call)` counts what a call must read, write and compute where the general rule of `ops.cost` does not fit.
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

    @property
    def name(self) -> str:
        """The operator's name, unique in a registry."""
        return self.schema.name

    @property
    def weight_inputs(self) -> tuple[str, ...]:
        """The inputs that may come in a weight format: weights that are read whole, not gathered from."""
        return tuple(spec.name for spec in self.schema.inputs if spec.kind == "W" and spec.name not in self.gathered)


class OperatorRegistry:
    """Operators by name; filled at boot, then frozen."""

    def __init__(self, operators: Sequence[Operator] = ()) -> None:
        self._operators = {operator.name: operator for operator in operators}
        self._is_frozen = False

    def register(self, operator: Operator, provider: str = "aethermind-core") -> None:
        """Add a page; a name that is taken is a PluginError."""
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
