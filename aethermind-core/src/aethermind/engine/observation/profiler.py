"""Where the time of a step goes: every kernel call timed on the device's own clock, beside what it had to do.

profiler = Profiler(planned.operators, repeat=3)
engine.runner.observer = profiler
...                                 # generate
table = total(profiler.steps, key=lambda call: call.operator)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from aethermind.engine.observation.roofline import StepShape, Work, add_up, calls_of, work_of
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.graph.executor import Executor
from aethermind.graph.plan import Step
from aethermind.ops.cost import Call, Cost, cost_of
from aethermind.ops.operator import OperatorRegistry

if TYPE_CHECKING:
    from aethermind.hal.backend import MeasuredLimits

__all__ = ["CallProfile", "Profiler", "StepProfile", "Total", "total"]

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class CallProfile:
    """One kernel call: `name` is that of its first value, `layer` None outside the layers, `seconds` a median.

    `inputs` are their types as text, absent ones left out. `cost` counts everything that is read and written, `work`
    what bounds the call.
    """

    name: str
    operator: str
    kernel: str
    layer: int | None
    inputs: tuple[str, ...]
    seconds: float
    cost: Cost
    work: Work


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
        shape = StepShape.of(symbols, decision)
        plan = executor.plan
        timed = zip(
            plan.steps,
            calls_of(plan, self._operators, shape),
            plan.layers(),
            map(median, zip(*marked, strict=True)),
            strict=True,
        )
        profile = StepProfile(
            decision.phase,
            decision.num_batched_tokens,
            sum(held for _, held in shape.sequences),
            tuple(self._profile(*one) for one in timed),
            median(map(sum, marked)),
            median(unmarked),
        )
        self.steps.append(profile)

    def _profile(self, step: Step, call: Call, layer: int | None, seconds: float) -> CallProfile:
        operator = self._operators[step.kernel.operator]
        return CallProfile(
            step.source,
            operator.name,
            step.kernel.name,
            layer,
            tuple(map(str, call.inputs.values())),
            seconds,
            cost_of(operator, call),
            work_of(operator, step, call),
        )


@dataclass(frozen=True, slots=True)
class Total:
    """Several calls together."""

    calls: tuple[CallProfile, ...]

    @property
    def seconds(self) -> float:
        """Their times added up."""
        return sum(call.seconds for call in self.calls)

    @property
    def cost(self) -> Cost:
        """Everything that they read, write and compute."""
        return sum((call.cost for call in self.calls), Cost())

    def memory_s(self, limits: MeasuredLimits) -> float:
        """Seconds at the full bandwidth."""
        return sum(call.work.memory_s(limits) for call in self.calls)

    def arithmetic_s(self, limits: MeasuredLimits) -> float | None:
        """Seconds at the peak rates of the arithmetic they use; None where one is not known."""
        return add_up(call.work.arithmetic_s(limits) for call in self.calls)

    def least_s(self, limits: MeasuredLimits) -> float | None:
        """Seconds that they take at least, one after the other."""
        return add_up(call.work.least_s(limits) for call in self.calls)


def total(steps: Iterable[StepProfile], key: Callable[[CallProfile], K]) -> dict[K, Total]:
    """The calls of several steps added up by a key, in the order in which the keys come up."""
    found: dict[K, list[CallProfile]] = {}
    for step in steps:
        for call in step.calls:
            found.setdefault(key(call), []).append(call)
    return {one: Total(tuple(calls)) for one, calls in found.items()}
