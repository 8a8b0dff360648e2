"""A profiler of steps: the time of every kernel call by the device's clock, with its bytes and operations; memory use.

profiler = Profiler(compiled.operators, engine.runner.kv_memory, repeat=3)
engine.runner.observer = profiler
...                                 # generate
table = total(profiler.steps, key=lambda call: call.operator)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.observation.roofline import StepShape, Work, add_up, calls_of, work_of
from aethermind.engine.scheduling.decision import ScheduleDecision
from aethermind.graph.executor import PlanExecutor
from aethermind.graph.plan import Step
from aethermind.hal.host_memory import resident_bytes
from aethermind.ops.operator import Call, Cost, OperatorRegistry, cost_of

if TYPE_CHECKING:
    from aethermind.engine.kv_memory.memory import KVMemory
    from aethermind.engine.steps.model_runner import ModelRunner
    from aethermind.hal.backend import MeasuredLimits

__all__ = [
    "CallProfile",
    "MemoryUse",
    "Profiler",
    "StepProfile",
    "Total",
    "chrome_trace",
    "measure_memory",
    "sample_prompt",
    "total",
]

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class CallProfile:
    """One kernel call of a plan: `name` is the name of its first output, `seconds` the median of its times.

    `layer` is None outside of layers. `inputs` are the types of its inputs as text. `cost` counts all bytes and
    operations, `work` those that bound the call's time (see `roofline`).
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
    """One step of the engine: its kernel calls in order, and its median times with and without events between calls.

    The step computes `num_tokens`; `num_context_tokens` is the sum of the lengths of its sequences afterwards.
    `marked_s` is the time with events, `unmarked_s` the time without.
    """

    phase: str
    num_tokens: int
    num_context_tokens: int
    calls: tuple[CallProfile, ...]
    marked_s: float
    unmarked_s: float

    @property
    def seconds(self) -> float:
        """The sum of the calls' medians; on a machine under load it is less than `marked_s`."""
        return sum(call.seconds for call in self.calls)


class Profiler:
    """A step observer of `ModelRunner` that records a profile of every step.

    Each step runs `repeat` times without and `repeat` times with an event after every call, alternately. Repeated runs
    have the same results, because recurrent states in `memory` are restored before each.
    """

    def __init__(self, operators: OperatorRegistry, memory: KVMemory, repeat: int = 3) -> None:
        self.steps: list[StepProfile] = []
        self._operators = operators
        self._memory = memory
        self._repeat = repeat

    def __call__(self, executor: PlanExecutor, symbols: tuple[int, ...], decision: ScheduleDecision) -> None:
        """Run and time one step."""
        unmarked: list[float] = []
        marked: list[list[float]] = []
        slots = executor.host_inputs.get("state_slots", ())
        restore_states = self._memory.save_states([int(slot) for slot in slots[: len(decision.scheduled)]])
        for _ in range(self._repeat):
            restore_states()
            started = time.perf_counter()
            executor.run(symbols)
            executor.synchronize()
            unmarked.append(time.perf_counter() - started)
            restore_states()
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
            sum(length for _, length in shape.sequences),
            tuple(self._profile(*timed_call) for timed_call in timed),
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
    """The sum of several kernel calls."""

    calls: tuple[CallProfile, ...]

    @property
    def seconds(self) -> float:
        """The sum of their times."""
        return sum(call.seconds for call in self.calls)

    @property
    def cost(self) -> Cost:
        """The sum of what they read, write and compute."""
        return sum((call.cost for call in self.calls), Cost())

    def memory_s(self, limits: MeasuredLimits) -> float:
        """Return the seconds at full memory bandwidth."""
        return sum(call.work.memory_s(limits) for call in self.calls)

    def arithmetic_s(self, limits: MeasuredLimits) -> float | None:
        """Return the seconds at the peak rates of their arithmetic; None if one is unknown."""
        return add_up(call.work.arithmetic_s(limits) for call in self.calls)

    def min_s(self, limits: MeasuredLimits) -> float | None:
        """Return a lower bound of their seconds, run one after the other."""
        return add_up(call.work.min_s(limits) for call in self.calls)


def total(steps: Iterable[StepProfile], key: Callable[[CallProfile], Key]) -> dict[Key, Total]:
    """Group the calls of several steps by a key, in the order in which keys occur."""
    groups: dict[Key, list[CallProfile]] = {}
    for step in steps:
        for call in step.calls:
            groups.setdefault(key(call), []).append(call)
    return {name: Total(tuple(calls)) for name, calls in groups.items()}


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of memory in use at one time, called `moment`.

    `weights` are in the checkpoint's layout (mapped, if the device reads them in place), `packed_weights` in the layout
    of kernels. `activations` is the arena of intermediate values, `inputs` are the inputs of steps, `other` everything
    else from the device's allocator. `resident_bytes` is the process's resident memory, None if the system does not
    report it.
    """

    moment: str
    weights: int
    packed_weights: int
    kv_cache: int
    activations: int
    inputs: int
    other: int
    resident_bytes: int | None

    def categories(self) -> dict[str, int]:
        """Return bytes by category, without `resident_bytes`."""
        names = ("weights", "packed_weights", "kv_cache", "activations", "inputs", "other")
        return {name: getattr(self, name) for name in names}


def measure_memory(moment: str, compiled: CompiledModel, runner: ModelRunner | None = None) -> MemoryUse:
    """Measure the memory of a compiled model, or of one loaded by a runner."""
    backend = compiled.open_device.backend
    allocated = backend.allocator.stats().allocated_bytes
    if runner is None:
        return MemoryUse(moment, 0, 0, 0, 0, 0, allocated, resident_bytes())
    packed = runner.constants.packed_bytes
    plain = runner.constants.nbytes - packed
    arena = sum(executor.arena_bytes for executor in runner.executors)
    inputs = sum(executor.input_bytes for executor in runner.executors)
    from_allocator = packed - runner.constants.found_bytes + runner.kv_cache_bytes + arena + inputs
    if not backend.capabilities.is_host_accessible:
        from_allocator += plain
    other = max(allocated - from_allocator, 0)
    return MemoryUse(moment, plain, packed, runner.kv_cache_bytes, arena, inputs, other, resident_bytes())


def sample_prompt(num_tokens: int, vocab_size: int, index: int) -> list[int]:
    """Return tokens from the whole vocabulary; prompts with another `index` begin differently and share no prefix."""
    return [(7919 * (index + position) + 13) % vocab_size for position in range(num_tokens)]


_PID = 1
_STEPS, _KERNELS = 1, 2


def chrome_trace(steps: Sequence[StepProfile], memory: Sequence[tuple[int, MemoryUse]], device: str) -> dict[str, Any]:
    """Return a profile in the trace event format of Chrome and Perfetto.

    Steps and their calls follow each other without the host's time between them. `memory` holds pairs (number of steps
    before it, memory use at that time).
    """
    names = (("process_name", 0, device), ("thread_name", _STEPS, "steps"), ("thread_name", _KERNELS, "kernels"))
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": _PID, "tid": tid, "name": kind, "args": {"name": name}} for kind, tid, name in names
    ]
    starts_us = [0.0]
    for step in steps:
        now = starts_us[-1]
        for call in step.calls:
            events.append(_call_event(call, now))
            now += call.seconds * 1e6
        events.append(_step_event(step, starts_us[-1], now))
        starts_us.append(now)
    events += [
        {"ph": "C", "pid": _PID, "tid": 0, "ts": starts_us[position], "name": "memory", "args": use.categories()}
        for position, use in memory
    ]
    events += [
        {
            "ph": "C",
            "pid": _PID,
            "tid": 0,
            "ts": starts_us[position],
            "name": "resident memory of the process",
            "args": {"bytes": use.resident_bytes},
        }
        for position, use in memory
        if use.resident_bytes is not None
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _call_event(call: CallProfile, start_us: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PID,
        "tid": _KERNELS,
        "ts": start_us,
        "dur": call.seconds * 1e6,
        "name": call.operator,
        "cat": "kernel",
        "args": {
            "value": call.name,
            "kernel": call.kernel,
            "layer": call.layer,
            "inputs": list(call.inputs),
            "bytes_read": call.cost.bytes_read,
            "bytes_written": call.cost.bytes_written,
            "flops": call.cost.flops,
        },
    }


def _step_event(step: StepProfile, start_us: float, end_us: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": _PID,
        "tid": _STEPS,
        "ts": start_us,
        "dur": end_us - start_us,
        "name": step.phase,
        "cat": "step",
        "args": {
            "num_tokens": step.num_tokens,
            "num_context_tokens": step.num_context_tokens,
            "unmarked_us": step.unmarked_s * 1e6,
        },
    }
