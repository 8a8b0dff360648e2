"""Executables of plans: each step is one work item, and the memory of its operands is accessible only during it."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aethermind.errors import DeviceError
from aethermind.graph.executor import MemoryMap, addresses_in_run, array_at
from aethermind.graph.plan import Operand, Plan, Step
from aethermind.hal.stream import Stream
from aethermind_sim.memory import Region, Span, accessible
from aethermind_sim.streams import SimStream

__all__ = ["SimExecutable"]

_MAX_CACHED_SIZES = 16


class _BoundStep:
    """A step with the addresses of its operands for certain sizes. The owner of the plan keeps their memory alive."""

    def __init__(
        self,
        step: Step,
        address: Callable[[Operand], int],
        region_at: Callable[[int], Region],
        sizes: Mapping[str, int],
    ) -> None:
        self._step = step
        self._sizes = sizes
        self._inputs = [None if operand is None else (operand, address(operand)) for operand in step.inputs]
        self._outputs = [(operand, address(operand)) for operand in step.outputs]
        self._spans = [
            Span(region_at(begin), begin, operand.nbytes(sizes), is_written)
            for operands, is_written in ((self._inputs, False), (self._outputs, True))
            for operand, begin in filter(None, operands)
        ]

    def run(self, device: int) -> None:
        """Call the kernel; DeviceError for an operand on another device."""
        if any(span.region.device != device for span in self._spans):
            raise DeviceError(
                f"Step {self._step.source} runs on device {device} and has operands elsewhere: copy them there first."
            )
        with accessible(self._spans):
            inputs = [None if bound is None else self._array(*bound) for bound in self._inputs]
            self._step.kernel.call(inputs, [self._array(*bound) for bound in self._outputs], self._step.attributes)

    def _array(self, operand: Operand, address: int) -> Any:
        """Return an operand as an array, valid only while its memory is accessible."""
        return array_at(address, operand, self._sizes)


class SimExecutable:
    """Runs a plan's Python kernels, each of which can write only to its outputs."""

    def __init__(self, plan: Plan, memory: MemoryMap, regions: Sequence[Region]) -> None:
        """`regions` are the allocated regions by address."""
        self._plan = plan
        self._memory = memory
        starts = [region.address for region in regions]
        used = sorted({bisect_right(starts, address) - 1 for address in memory.values()})
        self._starts = [starts[position] for position in used]
        self._regions = [regions[position] for position in used]
        self._bound: OrderedDict[tuple[int, ...], list[_BoundStep]] = OrderedDict()

    @property
    def num_native_breaks(self) -> int:
        """The number of steps: none is native."""
        return len(self._plan.steps)

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps."""
        self.run_steps(symbols, 0, len(self._plan.steps), stream)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]`."""
        assert isinstance(stream, SimStream), "the stream is of another backend"
        for step in self._steps(symbols)[begin:end]:
            stream.submit(partial(step.run, stream.device))

    def _steps(self, symbols: tuple[int, ...]) -> list[_BoundStep]:
        """Return the steps bound to addresses for these sizes of symbolic dims; those of recent sizes are cached."""
        if symbols not in self._bound:
            sizes = dict(zip(self._plan.symbols, symbols, strict=True))
            address = addresses_in_run(self._plan, self._memory, sizes)
            self._bound[symbols] = [_BoundStep(step, address, self._region_at, sizes) for step in self._plan.steps]
            if len(self._bound) > _MAX_CACHED_SIZES:
                self._bound.popitem(last=False)
        return self._bound[symbols]

    def _region_at(self, address: int) -> Region:
        return self._regions[bisect_right(self._starts, address) - 1]
