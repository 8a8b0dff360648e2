"""A plan bound to memory: consecutive native steps are one submission to a stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from aethermind.errors import PluginError
from aethermind.graph.executor import MemoryMap, array_at
from aethermind.graph.plan import Operand, Plan, Step
from aethermind.hal.stream import Stream
from aethermind.ops.schema import Attribute
from aethermind_cpu import _native
from aethermind_cpu.streams import CpuStream

__all__ = ["CpuExecutable"]


@dataclass(frozen=True, slots=True)
class _NativeSegment:
    """Steps `[begin, end)` of the plan that have native kernels. They begin at step `offset` of the native plan."""

    begin: int
    end: int
    offset: int


@dataclass(frozen=True, slots=True)
class _PythonStep:
    """Step `begin` of the plan, whose kernel is a Python function; `end` is `begin + 1`."""

    begin: int
    end: int
    step: Step


class CpuExecutable:
    """Runs a plan on a stream's thread and the backend's team.

    A Python step synchronizes the stream and calls its function on host arrays.
    """

    def __init__(self, plan: Plan, memory: MemoryMap, team: _native.Team) -> None:
        self._memory = memory
        self._names = tuple(plan.symbols)
        self._num_steps = len(plan.steps)
        self._segments = _segments(plan)
        self._native = _bind(plan, memory, team)
        self._is_native = all(isinstance(segment, _NativeSegment) for segment in self._segments)

    @property
    def num_native_breaks(self) -> int:
        """Number of Python steps, which interrupt native segments."""
        return sum(isinstance(segment, _PythonStep) for segment in self._segments)

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps; `symbols` are the sizes of a run, in the order of `plan.symbols`.

        The call is asynchronous if all steps are native.
        """
        if self._is_native:
            _native_stream(stream).run(self._native, symbols, 0, self._num_steps)
        else:
            self.run_steps(symbols, 0, self._num_steps, stream)

    def run_timed(self, symbols: tuple[int, ...], stream: Stream) -> list[float]:
        """Run all steps and return the seconds of each."""
        seconds: list[float] = []
        for segment in self._segments:
            if isinstance(segment, _NativeSegment):
                last = segment.offset + segment.end - segment.begin
                timestamps_ns = _native_stream(stream).run_timed(self._native, symbols, segment.offset, last)
                seconds += [(after - before) / 1e9 for before, after in pairwise(timestamps_ns)]
            else:
                stream.synchronize()
                started = time.perf_counter()
                self._call(segment.step, dict(zip(self._names, symbols, strict=True)))
                seconds.append(time.perf_counter() - started)
        return seconds

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]` only."""
        for segment in self._segments:
            first, last = max(begin, segment.begin), min(end, segment.end)
            if first >= last:
                continue
            if isinstance(segment, _NativeSegment):
                shift = segment.offset - segment.begin
                _native_stream(stream).run(self._native, symbols, first + shift, last + shift)
            else:
                stream.synchronize()
                self._call(segment.step, dict(zip(self._names, symbols, strict=True)))

    def _call(self, step: Step, sizes: Mapping[str, int]) -> None:
        inputs = [None if operand is None else self._array(operand, sizes) for operand in step.inputs]
        outputs = [self._array(operand, sizes) for operand in step.outputs]
        step.kernel.call(inputs, outputs, step.attributes)

    def _array(self, operand: Operand, sizes: Mapping[str, int]) -> Any:
        return array_at(_address(operand, self._memory), operand, sizes)


def _native_stream(stream: Stream) -> _native.Stream:
    assert isinstance(stream, CpuStream), "a plan runs on a stream of its own backend"
    return stream.native


def _segments(plan: Plan) -> tuple[_NativeSegment | _PythonStep, ...]:
    segments: list[_NativeSegment | _PythonStep] = []
    num_native = 0
    for index, step in enumerate(plan.steps):
        if step.kernel.native is None:
            segments.append(_PythonStep(index, index + 1, step))
            continue
        last = segments[-1] if segments else None
        if isinstance(last, _NativeSegment):
            segments[-1] = _NativeSegment(last.begin, index + 1, last.offset)
        else:
            segments.append(_NativeSegment(index, index + 1, num_native))
        num_native += 1
    return tuple(segments)


def _bind(plan: Plan, memory: MemoryMap, team: _native.Team) -> _native.Plan:
    """Bind the native steps of a plan and reserve their scratch; PluginError names a kernel that does not match."""
    indices = {name: index for index, name in enumerate(plan.symbols)}
    steps = [step for step in plan.steps if step.kernel.native is not None]

    def bind(steps: Sequence[Step]) -> _native.Plan:
        bound = [_bind_step(step, memory, indices) for step in steps]
        native = _native.Plan(list(plan.symbols.values()), bound)
        native.prepare(team)
        return native

    try:
        return bind(steps)
    except ValueError:
        for step in steps:  # one by one, to find the kernel whose package the message names
            try:
                bind([step])
            except ValueError as error:
                raise PluginError(
                    f"Kernel {step.kernel.title} cannot be used on device cpu: {str(error).rstrip('.')}. Update or "
                    "uninstall its package."
                ) from error
        raise


def _bind_step(step: Step, memory: MemoryMap, indices: Mapping[str, int]) -> _native.Step:
    """Bind one step; ValueError where the kernel's `native` is not a capsule of the kernel ABI."""
    return _native.Step(
        step.kernel.native,
        [None if operand is None else _bind_operand(operand, memory, indices) for operand in step.inputs],
        [_bind_operand(operand, memory, indices) for operand in step.outputs],
        [_as_native(value) for value in step.attribute_values()],
    )


def _bind_operand(operand: Operand, memory: MemoryMap, indices: Mapping[str, int]) -> _native.Operand:
    dims = [(-1, dim) if isinstance(dim, int) else (indices[dim.symbol], dim.offset) for dim in operand.shape]
    return _native.Operand(_address(operand, memory), operand.dtype.code, dims)


def _address(operand: Operand, memory: MemoryMap) -> int:
    return memory[operand.place, operand.name] + operand.offset_bytes


def _as_native(value: Attribute) -> int | float | list[int]:
    return list(value) if isinstance(value, tuple) else int(value) if isinstance(value, bool) else value
