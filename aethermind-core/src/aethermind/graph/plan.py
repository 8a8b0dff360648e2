"""A plan: a graph with kernels chosen and memory placed, as a flat list of steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from aethermind.dispatch.kernel import Kernel, Pack
from aethermind.hal.dtype import DType
from aethermind.ops.dims import Shape
from aethermind.ops.schema import Attribute, TensorType

__all__ = ["Operand", "Place", "Plan", "Step"]


class Place(Enum):
    """Which memory an operand is in."""

    ARENA = "arena"
    INPUT = "input"
    STATE = "state"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a step: `offset_bytes` into the arena, or into the input, state or constant called `name`.

    Dims may be symbols; they get their numbers when the plan runs. Everything is row-major contiguous.
    """

    place: Place
    name: str
    type: TensorType
    offset_bytes: int = 0

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The dims, symbols among them."""
        return self.type.shape


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call with its arguments bound. `names` are those of the values it computes, one an output."""

    kernel: Kernel
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    attributes: Mapping[str, Attribute]
    names: tuple[str, ...]

    @property
    def source(self) -> str:
        """Where the step comes from in the model: the name of its first value."""
        return self.names[0]

    def attribute_values(self) -> tuple[Attribute, ...]:
        """Attributes in schema order, as the native ABI takes them."""
        return tuple(self.attributes.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a backend needs to run a step without deciding anything.

    `symbols` gives every symbol its greatest value, in the order in which a run passes them. `constants` maps the key
    of a constant to (parameter name, pack name or None for the checkpoint's own layout).
    """

    name: str
    steps: tuple[Step, ...]
    symbols: Mapping[str, int]
    arena_bytes: int
    inputs: Mapping[str, TensorType]
    states: Mapping[str, TensorType]
    constants: Mapping[str, tuple[str, str | None]]
    outputs: Mapping[str, Operand]

    def packs(self) -> dict[str, Pack]:
        """The layouts that the steps' kernels want weights in, by name."""
        return {pack.name: pack for step in self.steps for pack in step.kernel.packs.values()}

    def operands(self) -> Iterator[Operand]:
        """Every operand of every step, inputs before outputs."""
        for step in self.steps:
            yield from (operand for operand in step.inputs if operand is not None)
            yield from step.outputs
