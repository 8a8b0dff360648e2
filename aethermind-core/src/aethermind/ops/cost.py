"""What one call of an operator cannot avoid: bytes read, bytes written, floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from aethermind.ops.dims import resolve
from aethermind.ops.schema import Attribute, TensorType

if TYPE_CHECKING:
    from aethermind.ops.operator import Operator

__all__ = ["Call", "Cost", "cost_of", "visible_pairs"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes and operations; a multiplication and an addition are two."""

    bytes_read: int = 0
    bytes_written: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written, self.flops + other.flops
        )


@dataclass(frozen=True, slots=True)
class Call:
    """An operator applied once: types without symbols by the schema's names, absent inputs left out.

    `sequences` are the (new tokens, tokens with those before them) of the sequences of the step. `stored_bytes` are
    those of inputs that are not stored as their types say, such as quantised weights.
    """

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    attributes: Mapping[str, Attribute]
    sequences: tuple[tuple[int, int], ...] = ()
    stored_bytes: Mapping[str, int] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        """The dims of an input or output."""
        return resolve((self.inputs if name in self.inputs else self.outputs)[name].shape, {})

    def bytes_in(self, *names: str) -> int:
        """Bytes of these inputs together; absent ones have none."""
        return sum(self.stored_bytes.get(name, self.inputs[name].nbytes({})) for name in names if name in self.inputs)

    def bytes_out(self, *names: str) -> int:
        """Bytes of these outputs together."""
        return sum(self.outputs[name].nbytes({}) for name in names)


def cost_of(operator: Operator, call: Call) -> Cost:
    """By the operator's page, else: inputs and outputs once, two operations a weight and row, else one an output.

    Of inputs that are only gathered from, as much is read as comes out. An output that is an input's memory is free.
    Weights that meet no row are not read.
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
    """Pairs of a query and a key that it sees; the last query stands at the last key."""
    first = num_keys - num_queries + 1
    if window <= 0 or num_keys <= window:
        return num_queries * (first + num_keys) // 2
    return sum(min(position, window) for position in range(first, num_keys + 1))
