"""Plans: graphs with kernels chosen and memory placed, as flat lists of kernel calls, called steps here.

Shapes of a plan have symbolic dims (`ops.SymDim`; PyTorch: SymInt), such as T, the number of tokens, whose sizes differ
between runs. `Plan.symbols` maps the name of each to its largest size. Each run passes their sizes in that order.
"""

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

__all__ = [
    "BATCH_SIZES",
    "Constant",
    "LAYER_PREFIX",
    "Operand",
    "Place",
    "Plan",
    "Step",
    "is_decode_size",
]

LAYER_PREFIX = re.compile(r"^(?:[^/]*?\.)?(\d+)\.")
"""Matches the names of values that belong to a layer; the group is the layer's number."""


class Place(Enum):
    """The memory that an operand is in."""

    ARENA = "arena"
    INPUT = "input"
    STATE = "state"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of a step: `offset_bytes` into the arena, or into the input, state or constant called `name`.

    Dims may be symbolic (see `shape_for`). Tensors are row-major contiguous, except a weight in a kernel's layout,
    which has `packed_bytes` bytes; its type is that of the parameter.
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
        """The dims, which may be symbolic."""
        return self.type.shape

    def shape_for(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the dims in a run. `sizes` maps the names of symbolic dims to their sizes in it."""
        return resolve(self.shape, sizes)

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """Return the size in bytes in a run. `sizes` maps the names of symbolic dims to their sizes in it."""
        return self.type.nbytes(sizes) if self.packed_bytes is None else self.packed_bytes


class Constant(NamedTuple):
    """A parameter in the layout in which steps read it.

    `pack` is the name of a kernel's layout; None if the parameter is row-major, in the operand's dtype.
    `weight_format` is None for a dense weight.
    """

    parameter: str
    pack: str | None = None
    weight_format: WeightFormat | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call with its arguments bound. `names` are those of the values that it computes, one per output."""

    kernel: Kernel
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    attributes: Mapping[str, Attribute]
    names: tuple[str, ...]

    @property
    def source(self) -> str:
        """The name of the step's first output, which says where in the model the step is."""
        return self.names[0]

    def attribute_values(self) -> tuple[Attribute, ...]:
        """Return the attributes in schema order, as the native ABI takes them: a dtype as its number."""
        return tuple(value.code if isinstance(value, DType) else value for value in self.attributes.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled graph: everything that a backend needs to run it.

    `symbols` maps the name of each symbolic dim to its largest size, in the order in which a run passes sizes. The keys
    of `constants` are the names of operands whose place is CONSTANT.
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
        """Return the layouts in which the steps' kernels read weights, by name."""
        return {pack.name: pack for step in self.steps for pack in step.kernel.packs.values()}

    def constant_bytes(self, operand: Operand) -> int:
        """Return how many bytes of a constant a kernel reads: values, scales and zero points, without padding."""
        constant = self.constants[operand.name]
        if constant.pack is None or constant.weight_format is None:
            return operand.type.nbytes({})
        return constant.weight_format.nbytes(resolve(operand.shape, {}))

    def layers(self) -> list[int | None]:
        """Return the number of each step's layer, taken from its name; None outside the layers.

        A step without a layer in its name that lies between two steps of one layer belongs to that layer.
        """
        matches = [LAYER_PREFIX.match(step.source) for step in self.steps]
        layers = [int(match[1]) if match else None for match in matches]
        in_layers = [position for position, layer in enumerate(layers) if layer is not None]
        for before, after in pairwise(in_layers):
            if layers[before] == layers[after]:
                layers[before:after] = [layers[before]] * (after - before)
        return layers

    def operands(self) -> Iterator[Operand]:
        """Yield every operand of every step, inputs before outputs."""
        for step in self.steps:
            yield from (operand for operand in step.inputs if operand is not None)
            yield from step.outputs


BATCH_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, *range(80, 257, 16), *range(288, 513, 32))
"""Batch sizes to which decode steps are padded, so that a backend can capture graphs of them.

At most half of a small batch is padding, and at most an eighth of a large one.
"""


def is_decode_size(sizes: Mapping[str, int], max_sizes: Mapping[str, int]) -> bool:
    """Whether a run has the sizes of a padded decode step, so that a captured graph of it will be used again.

    Such a step has one token and one row of logits for each sequence (T = S = R), their number being in `BATCH_SIZES`
    or the plan's maximum. The width B of its block tables is a power of two or the plan's maximum; other sizes are 0.
    """
    if not {"T", "S", "R", "B"} <= sizes.keys():
        return False
    batch_size, table_width = sizes["T"], sizes["B"]
    is_padded = batch_size in BATCH_SIZES or batch_size == min(max_sizes[name] for name in ("T", "S", "R"))
    has_padded_tables = table_width > 0 and (table_width & (table_width - 1) == 0 or table_width == max_sizes["B"])
    has_other_rows = any(size for name, size in sizes.items() if name not in ("T", "S", "R", "B"))
    return is_padded and has_padded_tables and not has_other_rows and batch_size == sizes["S"] == sizes["R"]
