"""Lower bounds of the time of steps: the roofline model of Williams, Waterman and Patterson (CACM, 2009).

A kernel call takes at least the time to read its weights, keys and values from memory, and at least the time of its
operations at the device's peak rate for their dtype. The lower bound of a step is the sum over its calls. Values that
one call passes to the next are not counted, because they may be in caches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.hal.dtype import DType
from aethermind.ops.dims import resolve
from aethermind.ops.operator import Call, Operator, OperatorRegistry, cost_of
from aethermind.ops.schema import TensorType

if TYPE_CHECKING:
    from aethermind.engine.scheduling.decision import ScheduleDecision
    from aethermind.graph.executor import PlanExecutor
    from aethermind.hal.backend import MeasuredLimits

__all__ = ["StepRecorder", "StepShape", "Work", "add_up", "calls_of", "min_seconds", "work_of"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """The size of a step: the sizes of the plan's symbolic dims, in the order of `Plan.symbols`, and its sequences.

    `sequences` are pairs (new tokens, all tokens). `is_decode` means that all sequences decode.
    """

    symbols: tuple[int, ...]
    sequences: tuple[tuple[int, int], ...]
    is_decode: bool

    @classmethod
    def of(cls, symbols: tuple[int, ...], decision: ScheduleDecision) -> StepShape:
        """Return the shape of a step that is about to run."""
        sequences = tuple((count, request.num_computed_tokens + count) for request, count, _ in decision.scheduled)
        return cls(symbols, sequences, decision.phase == "decode")


class StepRecorder:
    """A step observer of `ModelRunner` that runs steps once and records their shapes."""

    def __init__(self) -> None:
        self.shapes: list[StepShape] = []

    def __call__(self, executor: PlanExecutor, symbols: tuple[int, ...], decision: ScheduleDecision) -> None:
        """Run one step."""
        self.shapes.append(StepShape.of(symbols, decision))
        executor.run(symbols)


@dataclass(frozen=True, slots=True)
class Work:
    """What bounds the time of a call: bytes of weights, keys and values, and operations in the dtype `arithmetic`."""

    memory_bytes: int
    flops: int
    arithmetic: DType

    def memory_s(self, limits: MeasuredLimits) -> float:
        """Return the seconds at full memory bandwidth."""
        return self.memory_bytes / limits.memory_bytes_per_s

    def arithmetic_s(self, limits: MeasuredLimits) -> float | None:
        """Return the seconds at the peak rate; None if it is unknown."""
        peak = limits.flops_per_s.get(str(self.arithmetic))
        return self.flops / peak if peak else None

    def min_s(self, limits: MeasuredLimits) -> float | None:
        """Return a lower bound of the call's seconds."""
        arithmetic_s = self.arithmetic_s(limits)
        return None if arithmetic_s is None else max(self.memory_s(limits), arithmetic_s)


def calls_of(plan: Plan, operators: OperatorRegistry, shape: StepShape) -> list[Call]:
    """Return the plan's calls in a step of this shape, in order; constants count with their stored bytes."""
    sizes = dict(zip(plan.symbols, shape.symbols, strict=True))
    calls = []
    for step in plan.steps:
        operator = operators[step.kernel.operator]
        operands = _present_inputs(operator, step)
        computed = zip(operator.schema.outputs, step.outputs, strict=True)
        calls.append(
            Call(
                {name: _resolved(operand.type, sizes) for name, operand in operands.items()},
                {spec.name: _resolved(operand.type, sizes) for spec, operand in computed},
                step.attributes,
                shape.sequences,
                {name: plan.constant_bytes(operand) for name, operand in operands.items() if _is_constant(operand)},
            )
        )
    return calls


def work_of(operator: Operator, step: Step, call: Call) -> Work:
    """Return what bounds the time of a call, which is `step` of the plan."""
    operands = _present_inputs(operator, step)
    cached = dict.fromkeys((name for name, operand in operands.items() if not _is_constant(operand)), 0)
    cost = cost_of(operator, replace(call, stored_bytes={**call.stored_bytes, **cached}))
    memory_bytes = (
        cost.bytes_read if any(value.place in (Place.CONSTANT, Place.STATE) for value in operands.values()) else 0
    )
    dtypes = [
        operands[spec.name].dtype for spec in operator.schema.inputs if spec.kind in "FW" and spec.name in operands
    ]
    return Work(memory_bytes, cost.flops, step.kernel.arithmetic or (dtypes[0] if dtypes else DType.FLOAT32))


def min_seconds(
    plan: Plan, operators: OperatorRegistry, shapes: Iterable[StepShape], limits: MeasuredLimits | None
) -> float | None:
    """Return a lower bound of the seconds of steps of these shapes; None if the device does not report a limit."""
    if limits is None:
        return None
    return add_up(
        work_of(operators[step.kernel.operator], step, call).min_s(limits)
        for shape in shapes
        for step, call in zip(plan.steps, calls_of(plan, operators, shape), strict=True)
    )


def add_up(seconds: Iterable[float | None]) -> float | None:
    """Return the sum; None if one of the terms is unknown."""
    total = 0.0
    for duration in seconds:
        if duration is None:
            return None
        total += duration
    return total


def _present_inputs(operator: Operator, step: Step) -> dict[str, Operand]:
    named = zip(operator.schema.inputs, step.inputs, strict=False)  # the kernel may know fewer inputs
    return {spec.name: operand for spec, operand in named if operand is not None}


def _is_constant(operand: Operand) -> bool:
    return operand.place is Place.CONSTANT


def _resolved(type: TensorType, sizes: dict[str, int]) -> TensorType:
    return TensorType(type.dtype, resolve(type.shape, sizes))
