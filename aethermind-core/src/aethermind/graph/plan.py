"""A plan: a graph with kernels chosen and memory placed, as a flat list of steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from aethermind.dispatch.kernel import Kernel, Pack
from aethermind.hal.dtype import DType
from aethermind.ops.dims import Shape, resolve
from aethermind.ops.schema import Attribute, TensorType
from aethermind.ops.weight_format import WeightFormat

__all__ = ["Constant", "LAYER_PREFIX", "Operand", "Place", "Plan", "Step"]

LAYER_PREFIX = re.compile(r"^(?:[^/]*?\.)?(\d+)\.")
"""The beginning of the name of a value that belongs to a layer, and the layer's number."""


class Place(Enum):
    """Which memory an operand is in."""

    ARENA = "arena"
    INPUT = "input"
    STATE = "state"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a step: `offset_bytes` into the arena, or into the input, state or constant called `name`.

    Dims may be symbols, `ops.SymDim`; they get their numbers when the plan runs, as `shape_for` says. Everything is
    row-major contiguous, but for a weight in a kernel's own layout: that is `packed_bytes` bytes, whatever its type
    says.
    """

    place: Place
    name: str
    type: TensorType
    offset_bytes: int = 0
    packed_bytes: int | None = None

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        """The dims, symbols among them."""
        return self.type.shape

    def shape_for(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The dims in a run, with these numbers for the symbols: `dict(zip(plan.symbols, symbols))`."""
        return resolve(self.shape, sizes)

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """The bytes that it takes, with these numbers for its symbols."""
        return self.type.nbytes(sizes) if self.packed_bytes is None else self.packed_bytes


class Constant(NamedTuple):
    """A parameter in the form in which steps read it.

    `pack` is the name of a kernel's layout; without one it lies row-major, in the operand's dtype. `weight_format`
    is None for a dense weight.
    """

    parameter: str
    pack: str | None = None
    weight_format: WeightFormat | None = None


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

    `symbols` gives every symbol its greatest value, in the order in which a run passes them. `constants` are by the
    keys that operands name.
    """

    name: str
    steps: tuple[Step, ...]
    symbols: Mapping[str, int]
    arena_bytes: int
    inputs: Mapping[str, TensorType]
    states: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    outputs: Mapping[str, Operand]

    def packs(self) -> dict[str, Pack]:
        """The layouts that the steps' kernels want weights in, by name."""
        return {pack.name: pack for step in self.steps for pack in step.kernel.packs.values()}

    def constant_bytes(self, operand: Operand) -> int:
        """Bytes of values, scales and zero points that a kernel reads of a constant, padding left out."""
        constant = self.constants[operand.name]
        if constant.pack is None or constant.weight_format is None:
            return operand.type.nbytes({})
        return constant.weight_format.nbytes(resolve(operand.shape, {}))

    def layers(self) -> list[int | None]:
        """The layer of each step by its name; a step without a layer's name between two of layer i belongs to i."""
        matches = [LAYER_PREFIX.match(step.source) for step in self.steps]
        layers = [int(match[1]) if match else None for match in matches]
        named = [position for position, layer in enumerate(layers) if layer is not None]
        for before, after in pairwise(named):
            if layers[before] == layers[after]:
                layers[before:after] = [layers[before]] * (after - before)
        return layers

    def operands(self) -> Iterator[Operand]:
        """Every operand of every step, inputs before outputs."""
        for step in self.steps:
            yield from (operand for operand in step.inputs if operand is not None)
            yield from step.outputs
