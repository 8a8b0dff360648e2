"""What a plan cannot avoid: the bytes it reads and the operations it does, counted from its own steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from aethermind.graph.plan import Operand, Place, Step
from aethermind.ops.dims import resolve

if TYPE_CHECKING:
    from aethermind.graph.plan import Plan
    from aethermind.ops.operator import OperatorRegistry

__all__ = ["Workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    """The least that one plan must do; numbers are per model, `rows` and `context` are the caller's."""

    plan: Plan
    operators: OperatorRegistry

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that every step reads, each once; tables of which it reads a few rows are left out."""
        read = {
            self.plan.constants[operand.name].parameter: self.plan.constant_bytes(operand)
            for step in self.plan.steps
            for _, operand in self._read_inputs(step, Place.CONSTANT)
        }
        return sum(read.values())

    def kv_bytes(self, context: int) -> int:
        """Bytes of keys and values that one new token reads at a context of so many tokens, itself included."""
        return sum(
            _visible(step, context) * prod(_fixed(operand)[1:]) // _fixed(operand)[2] * operand.dtype.itemsize
            for step in self._attention_steps()
            for operand in step.inputs
            if operand is not None and operand.place is Place.STATE
        )

    def prefill_flops(self, num_tokens: int) -> int:
        """Operations of one prompt: two a weight and row of a matrix product, four a query, key and channel.

        A product runs over as many rows as the plan gives it: the head, for one, sees the last row only.
        """
        sizes = {**dict.fromkeys(self.plan.symbols, 1), "T": num_tokens}
        products = sum(
            2 * resolve(step.outputs[0].shape, sizes)[0] * prod(_fixed(operand))
            for step in self.plan.steps
            for kind, operand in self._read_inputs(step, Place.CONSTANT)
            if kind == "W"
        )
        attention = 0
        for step in self._attention_steps():
            channels = prod(resolve(step.outputs[0].shape, sizes)[1:])
            attention += 4 * channels * sum(_visible(step, position + 1) for position in range(num_tokens))
        return products + attention

    def _read_inputs(self, step: Step, place: Place) -> Iterator[tuple[str, Operand]]:
        """Kind and operand of the inputs of which a step reads everything."""
        operator = self.operators[step.kernel.operator]
        for spec, operand in zip(operator.schema.inputs, step.inputs, strict=True):
            if operand is not None and operand.place is place and spec.name not in operator.gathered:
                yield spec.kind, operand

    def _attention_steps(self) -> Iterator[Step]:
        """Steps that read state without changing it."""
        for step in self.plan.steps:
            is_writer = any(operand.place is Place.STATE for operand in step.outputs)
            if not is_writer and any(operand is not None and operand.place is Place.STATE for operand in step.inputs):
                yield step


def _visible(step: Step, context: int) -> int:
    attributes: Mapping[str, float] = step.attributes
    window = int(attributes.get("window", 0))
    return min(context, window) if window > 0 else context


def _fixed(operand: Operand) -> tuple[int, ...]:
    return resolve(operand.shape, {})
