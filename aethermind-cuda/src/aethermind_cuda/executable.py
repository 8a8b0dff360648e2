"""Plans on a GPU: every step's work is bound once for each size that comes up, and then only enqueued."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aethermind.errors import DeviceError
from aethermind.graph.executor import MemoryMap
from aethermind.graph.plan import Operand, Plan, Step
from aethermind.hal.buffer import Buffer
from aethermind.hal.stream import Stream
from aethermind.ops.dims import resolve
from aethermind_cuda.launch import Call, DeviceArray, DeviceFacts, KernelFunction
from aethermind_cuda.library import KernelLibrary
from aethermind_cuda.streams import CudaStream

__all__ = ["CudaExecutable"]

_MOST_SIZES = 32

Enqueue = Callable[[int], None]


class CudaExecutable:
    """The step loop. What is enqueued for the sizes of a run is remembered, of the last 32 that came up."""

    def __init__(
        self,
        plan: Plan,
        memory: MemoryMap,
        device: int,
        facts: DeviceFacts,
        library: KernelLibrary,
        allocate: Callable[[int], Buffer],
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._device = device
        self._facts = facts
        self._library = library
        self._names = tuple(plan.symbols)
        self._bound: OrderedDict[tuple[int, ...], list[list[Enqueue]]] = OrderedDict()
        nbytes = max(
            (_function(step).workspace_bytes(self._call(step, plan.symbols, 0)) for step in plan.steps), default=0
        )
        self._workspace = allocate(nbytes)

    @property
    def num_native_breaks(self) -> int:
        """None: steps are decided before the run, and the device goes from one to the next by itself."""
        return 0

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps."""
        self.run_steps(symbols, 0, len(self._plan.steps), stream)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]`."""
        assert isinstance(stream, CudaStream), "the stream is of another backend"
        if stream.device != self._device:
            raise DeviceError(f"A plan for cuda:{self._device} cannot run on a stream of cuda:{stream.device}.")
        handle = stream.handle
        for work in self._work(symbols)[begin:end]:
            for enqueue in work:
                enqueue(handle)

    def _work(self, symbols: tuple[int, ...]) -> list[list[Enqueue]]:
        """By step, what puts its work on a stream."""
        if symbols in self._bound:
            self._bound.move_to_end(symbols)
            return self._bound[symbols]
        sizes = dict(zip(self._names, symbols, strict=True))
        work = self._bound[symbols] = [list(self._bind(step, sizes)) for step in self._plan.steps]
        if len(self._bound) > _MOST_SIZES:
            self._bound.popitem(last=False)
        return work

    def _bind(self, step: Step, sizes: Mapping[str, int]) -> Iterator[Enqueue]:
        call = self._call(step, sizes, self._workspace.address)
        return (work.bind(self._library) for work in _function(step)(call))

    def _call(self, step: Step, sizes: Mapping[str, int], workspace: int) -> Call:
        inputs = tuple(None if operand is None else self._array(operand, sizes) for operand in step.inputs)
        outputs = tuple(self._array(operand, sizes) for operand in step.outputs)
        return Call(inputs, outputs, step.attributes, self._facts, workspace)

    def _array(self, operand: Operand, sizes: Mapping[str, int]) -> DeviceArray:
        address = self._memory[operand.place, operand.name] + operand.offset_bytes
        return DeviceArray(address, operand.dtype, resolve(operand.shape, sizes))


def _function(step: Step) -> KernelFunction:
    function: Any = step.kernel.function
    if not isinstance(function, KernelFunction):
        raise DeviceError(
            f"Kernel {step.kernel.name} of {step.kernel.operator} is not one that a CUDA device can run: its "
            "function has to be an aethermind_cuda.launch.KernelFunction."
        )
    return function
