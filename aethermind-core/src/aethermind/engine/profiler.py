"""Where the time of a step goes: every kernel call timed on the device's own clock, beside what it had to do.

profiler = Profiler(planned.operators, repeat=3)
engine.runner.observer = profiler
...                                 # generate
table = total(profiler.steps, key=lambda call: call.operator)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar

from aethermind.engine.decision import ScheduleDecision
from aethermind.graph.executor import Executor
from aethermind.graph.plan import Place, Plan, Step
from aethermind.ops.cost import Call, Cost, cost_of
from aethermind.ops.dims import resolve
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType

__all__ = ["CallProfile", "Profiler", "StepProfile", "Total", "total"]

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class CallProfile:
    """One kernel call: `name` is that of its first value, `layer` None outside the layers, `seconds` a median.

    `inputs` are their types as text, absent ones left out.
    """

    name: str
    operator: str
    kernel: str
    layer: int | None
    inputs: tuple[str, ...]
    seconds: float
    cost: Cost


@dataclass(frozen=True, slots=True)
class StepProfile:
    """One step of the engine: its calls in order, and the median times of all of it with marks and without.

    `num_tokens` are those that it computes, `num_context_tokens` those that its sequences then hold.
    """

    phase: str
    num_tokens: int
    num_context_tokens: int
    calls: tuple[CallProfile, ...]
    marked_s: float
    unmarked_s: float

    @property
    def seconds(self) -> float:
        """The calls' own medians added up; where the machine is shared this is less than `marked_s`."""
        return sum(call.seconds for call in self.calls)


class Profiler:
    """A step observer of `ModelRunner` that keeps a profile of every step.

    Each step is run `repeat` times plainly and `repeat` times with a mark behind every call, in turns; a run of a plan
    leaves the same values behind however often it is repeated.
    """

    def __init__(self, operators: OperatorRegistry, repeat: int = 3) -> None:
        self.steps: list[StepProfile] = []
        self._operators = operators
        self._repeat = repeat

    def __call__(self, executor: Executor, symbols: tuple[int, ...], decision: ScheduleDecision) -> None:
        """Run and time one step."""
        unmarked: list[float] = []
        marked: list[list[float]] = []
        for _ in range(self._repeat):
            started = time.perf_counter()
            executor.run(symbols)
            executor.synchronize()
            unmarked.append(time.perf_counter() - started)
            marked.append(executor.run_timed(symbols))
        sequences = tuple((count, request.num_computed_tokens + count) for request, count, _ in decision.scheduled)
        sizes = dict(zip(executor.plan.symbols, symbols, strict=True))
        timed = zip(executor.plan.steps, executor.plan.layers(), zip(*marked, strict=True), strict=True)
        plan = executor.plan
        calls = tuple(self._profile(plan, step, layer, median(times), sizes, sequences) for step, layer, times in timed)
        profile = StepProfile(
            decision.phase,
            decision.num_batched_tokens,
            sum(held for _, held in sequences),
            calls,
            median(map(sum, marked)),
            median(unmarked),
        )
        self.steps.append(profile)

    def _profile(
        self,
        plan: Plan,
        step: Step,
        layer: int | None,
        seconds: float,
        sizes: dict[str, int],
        sequences: tuple[tuple[int, int], ...],
    ) -> CallProfile:
        operator = self._operators[step.kernel.operator]
        given = {
            spec.name: operand
            for spec, operand in zip(operator.schema.inputs, step.inputs, strict=True)
            if operand is not None
        }
        inputs = {name: _sized(operand.type, sizes) for name, operand in given.items()}
        stored = {
            name: plan.constant_bytes(operand) for name, operand in given.items() if operand.place is Place.CONSTANT
        }
        computed = zip(operator.schema.outputs, step.outputs, strict=True)
        outputs = {spec.name: _sized(operand.type, sizes) for spec, operand in computed}
        cost = cost_of(operator, Call(inputs, outputs, step.attributes, sequences, stored))
        texts = tuple(map(str, inputs.values()))
        return CallProfile(step.source, operator.name, step.kernel.name, layer, texts, seconds, cost)


@dataclass(frozen=True, slots=True)
class Total:
    """Several calls together."""

    num_calls: int = 0
    seconds: float = 0.0
    cost: Cost = field(default_factory=Cost)

    def plus(self, call: CallProfile) -> Total:
        """These and one more."""
        return Total(self.num_calls + 1, self.seconds + call.seconds, self.cost + call.cost)

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes moved per second; None where no time passed."""
        return (self.cost.bytes_read + self.cost.bytes_written) / self.seconds if self.seconds > 0 else None

    @property
    def flops_per_s(self) -> float | None:
        """Operations per second; None where no time passed."""
        return self.cost.flops / self.seconds if self.seconds > 0 else None


def total(steps: Iterable[StepProfile], key: Callable[[CallProfile], K]) -> dict[K, Total]:
    """The calls of several steps added up by a key, in the order in which the keys come up."""
    found: dict[K, Total] = {}
    for step in steps:
        for call in step.calls:
            found[key(call)] = found.get(key(call), Total()).plus(call)
    return found


def _sized(type: TensorType, sizes: dict[str, int]) -> TensorType:
    return TensorType(type.dtype, resolve(type.shape, sizes))
