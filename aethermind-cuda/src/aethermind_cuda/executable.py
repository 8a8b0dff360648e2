"""Plans on a GPU: every step's work is bound once for the sizes that come up, and then only enqueued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from aethermind.errors import DeviceError
from aethermind.graph.executor import MemoryMap, addresses_in_run
from aethermind.graph.plan import Operand, Plan, Step
from aethermind.graph.repeated_runs import is_decode_size
from aethermind.hal.buffer import Buffer
from aethermind.hal.stream import Stream
from aethermind.ops.dims import resolve
from aethermind_cuda.bound_steps import BoundSteps, Enqueue
from aethermind_cuda.graph_capture import CapturedSteps
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, KernelFunction
from aethermind_cuda.library import KernelLibrary
from aethermind_cuda.nvtx_ranges import find_annotate
from aethermind_cuda.streams import CudaStream

__all__ = ["CudaExecutable"]

Address = Callable[[Operand], int]


class CudaExecutable:
    """Enqueues steps one by one, or, where their sizes are those of padded decodes, as a graph."""

    def __init__(
        self,
        plan: Plan,
        memory: MemoryMap,
        device: int,
        facts: DeviceFacts,
        library: KernelLibrary,
        captured: CapturedSteps,
        allocate: Callable[[int], Buffer],
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._device = device
        self._facts = facts
        self._library = library
        self._names = tuple(plan.symbols)
        self._bound = BoundSteps(plan)
        self._captured = captured
        self._annotate = find_annotate()
        address = addresses_in_run(plan, memory, plan.symbols)
        calls = (self._call(step, plan.symbols, address, workspace=0) for step in plan.steps)
        sizes = (_function(step).workspace_bytes(call) for step, call in zip(plan.steps, calls, strict=True))
        nbytes = max(sizes, default=0)
        self._workspace = allocate(nbytes)

    @property
    def num_native_breaks(self) -> int:
        """None: steps are decided before the run, and the device goes from one to the next by itself."""
        return 0

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps: as one graph where their sizes are those of padded decodes."""
        handle = self._handle(stream)
        if symbols in self._captured or is_decode_size(self._sizes(symbols), self._plan.symbols):
            self._captured.run(symbols, handle, lambda where: self._enqueue(symbols, 0, len(self._plan.steps), where))
        else:
            self._enqueue(symbols, 0, len(self._plan.steps), handle)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]`."""
        self._enqueue(symbols, begin, end, self._handle(stream))

    def _enqueue(self, symbols: tuple[int, ...], begin: int, end: int, stream: int) -> None:
        """What was never bound for these sizes is bound one by one, so that the device has work meanwhile."""
        sizes = self._sizes(symbols)
        address = addresses_in_run(self._plan, self._memory, sizes)
        for position in range(begin, end):
            step = self._plan.steps[position]
            work = self._bound.of_step(position, symbols, partial(self._bind, step, sizes, address))
            with nullcontext() if self._annotate is None else self._annotate(step.source):
                for enqueue in work:
                    enqueue(stream)

    def _bind(self, step: Step, sizes: Mapping[str, int], address: Address) -> list[Enqueue]:
        """What puts the work of a step on a stream."""
        call = self._call(step, sizes, address, self._workspace.address)
        return [work.bind(self._library) for work in _function(step)(call)]

    def _handle(self, stream: Stream) -> int:
        assert isinstance(stream, CudaStream), "the stream is of another backend"
        if stream.device != self._device:
            raise DeviceError(f"A plan for cuda:{self._device} cannot run on a stream of cuda:{stream.device}.")
        return stream.handle

    def _sizes(self, symbols: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self._names, symbols, strict=True))

    def _call(self, step: Step, sizes: Mapping[str, int], address: Address, workspace: int) -> Call:
        def array(operand: Operand) -> DeviceArray:
            return DeviceArray(address(operand), operand.dtype, resolve(operand.shape, sizes))

        inputs = tuple(None if operand is None else array(operand) for operand in step.inputs)
        return Call(inputs, tuple(map(array, step.outputs)), step.attributes, self._facts, workspace)


def _function(step: Step) -> KernelFunction:
    function: Any = step.kernel.function
    if not isinstance(function, KernelFunction):
        raise DeviceError(
            f"Kernel {step.kernel.name} of {step.kernel.operator} is not one that a CUDA device can run: its "
            "function has to be an aethermind_cuda.launch.KernelFunction."
        )
    return function
