"""Plans on the device: every step is a piece of work of its own, with the memory of its operands open meanwhile."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aethermind.errors import DeviceError
from aethermind.graph.executor import MemoryMap, array_at
from aethermind.graph.plan import Operand, Plan, Step
from aethermind.hal.stream import Stream
from aethermind_sim.memory import Region, Span, opened
from aethermind_sim.streams import SimStream

__all__ = ["SimExecutable"]


@dataclass(frozen=True, slots=True)
class _Bound:
    """An operand, where it is, and the memory that holds it, which the plan's owner keeps."""

    operand: Operand
    address: int
    region: Region
    is_written: bool

    def span(self, sizes: Mapping[str, int]) -> Span:
        """Its bytes."""
        return Span(self.region, self.address, self.operand.nbytes(sizes), self.is_written)

    def array(self, sizes: Mapping[str, int]) -> Any:
        """A view of it, of use only while its span is open."""
        return array_at(self.address, self.operand, sizes)


class _BoundStep:
    """A step with its memory."""

    def __init__(self, step: Step, bind: Callable[[Operand, bool], _Bound]) -> None:
        self._step = step
        self._inputs = [None if operand is None else bind(operand, False) for operand in step.inputs]
        self._outputs = [bind(operand, True) for operand in step.outputs]

    def run(self, sizes: Mapping[str, int], device: int) -> None:
        """Call the kernel; DeviceError when something it needs is on another device."""
        function = self._step.kernel.function
        assert function is not None, "the simulated device runs Python kernels only"
        spans = [bound.span(sizes) for bound in (*self._inputs, *self._outputs) if bound is not None]
        if any(span.region.device != device for span in spans):
            raise DeviceError(
                f"Step {self._step.source} runs on device {device} and has operands elsewhere: copy them there first."
            )
        with opened(spans):
            inputs = [None if bound is None else bound.array(sizes) for bound in self._inputs]
            function(inputs, [bound.array(sizes) for bound in self._outputs], self._step.attributes)


class SimExecutable:
    """Runs a plan's Python kernels, each of which may write to nothing but what holds its outputs."""

    def __init__(self, plan: Plan, memory: MemoryMap, regions: Sequence[Region]) -> None:
        """`regions` are those in use, by address."""
        self._names = tuple(plan.symbols)
        starts = [region.address for region in regions]

        def bind(operand: Operand, is_written: bool) -> _Bound:
            address = memory[operand.place, operand.name]
            region = regions[bisect_right(starts, address) - 1]
            return _Bound(operand, address + operand.offset_bytes, region, is_written)

        self._steps = [_BoundStep(step, bind) for step in plan.steps]

    @property
    def num_native_breaks(self) -> int:
        """Every step, because none is native."""
        return len(self._steps)

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps."""
        self.run_steps(symbols, 0, len(self._steps), stream)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]`."""
        assert isinstance(stream, SimStream), "the stream is of another backend"
        sizes = dict(zip(self._names, symbols, strict=True))
        for step in self._steps[begin:end]:
            stream.submit(partial(step.run, sizes, stream.device))
