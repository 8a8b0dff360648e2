"""Running a plan: its memory, its executable, and the step loop that captures values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import pairwise
from typing import Any, Protocol

from aethermind.graph.constants import ConstantStore
from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.hal.backend import Backend
from aethermind.hal.buffer import MemoryKind
from aethermind.hal.device import DeviceId
from aethermind.hal.dtype import DType
from aethermind.hal.layout import num_elements
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.ops.dims import resolve
from aethermind.ops.schema import TensorType

__all__ = ["CaptureHook", "Executable", "Executor", "MemoryMap", "StepLoop", "array_at"]

MemoryMap = Mapping[tuple[Place, str], int]
"""Fixed device addresses of the arena `(ARENA, "")` and of every input, state and constant of a plan."""

CaptureHook = Callable[[str, Any], None]
"""Called with the name and the array of a value."""
Array = Any


class Executable(Protocol):
    """A plan made ready by a backend. Runs are enqueued on a stream, in order."""

    @property
    def num_native_breaks(self) -> int:
        """Python steps that interrupt runs of native ones."""

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps; `symbols` are in the order of `plan.symbols`."""

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]` only."""


class StepLoop:
    """The executable of devices in host memory that have no better one: Python kernels, one call after another.

    It works in the caller's thread and first waits for what was submitted to the stream before.
    """

    def __init__(self, plan: Plan, memory: MemoryMap) -> None:
        self._plan = plan
        self._memory = memory
        self._names = tuple(plan.symbols)

    @property
    def num_native_breaks(self) -> int:
        """Every step, because none is native."""
        return len(self._plan.steps)

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Run all steps."""
        self.run_steps(symbols, 0, len(self._plan.steps), stream)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Run `steps[begin:end]`."""
        stream.synchronize()
        sizes = dict(zip(self._names, symbols, strict=True))
        for step in self._plan.steps[begin:end]:
            self._run_step(step, sizes)

    def _run_step(self, step: Step, sizes: Mapping[str, int]) -> None:
        assert step.kernel.function is not None, "the step loop runs Python kernels only"
        inputs = [None if operand is None else self._array(operand, sizes) for operand in step.inputs]
        outputs = [self._array(operand, sizes) for operand in step.outputs]
        step.kernel.function(inputs, outputs, step.attributes)

    def _array(self, operand: Operand, sizes: Mapping[str, int]) -> Array:
        return array_at(self._memory[operand.place, operand.name] + operand.offset_bytes, operand, sizes)


def array_at(address: int, operand: Operand, sizes: Mapping[str, int]) -> Array:
    """A NumPy view of an operand in host memory, which the caller keeps alive; of a packed weight its bytes, uint8."""
    import numpy as np

    memory = memoryview((ctypes.c_byte * operand.nbytes(sizes)).from_address(address))
    if operand.packed_bytes is not None:
        return np.ndarray((operand.packed_bytes,), np.uint8, buffer=memory)
    return np.ndarray(resolve(operand.shape, sizes), operand.dtype.numpy, buffer=memory)


class Executor:
    """One plan with its memory: an arena, a buffer for each input, and what it shares with others (states, constants).

    `host_inputs` are flat arrays, as long as the largest run needs: write the inputs of a run to their beginnings.
    Where the host cannot reach the device's memory they are pinned, and `run` copies them over.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        device: DeviceId,
        constants: ConstantStore,
        states: Mapping[str, Tensor],
        stream: Stream | None = None,
    ) -> None:
        self.plan = plan
        self._backend = backend
        self._stream = stream or backend.streams.default(device.index)
        self._is_host_accessible = backend.capabilities.is_host_accessible
        self._inputs = {name: self._input_tensor(type) for name, type in plan.inputs.items()}
        self._staging = {name: self._staging_tensor(tensor) for name, tensor in self._inputs.items()}
        self.host_inputs: dict[str, Array] = {name: tensor.numpy() for name, tensor in self._staging.items()}
        arena = Tensor.of(backend.allocator.alloc(plan.arena_bytes), DType.UINT8, (plan.arena_bytes,))
        self._tensors = {
            (Place.ARENA, ""): arena,
            **{(Place.INPUT, name): tensor for name, tensor in self._inputs.items()},
            **{(Place.STATE, name): states[name] for name in plan.states},
            **{(Place.CONSTANT, key): constants.tensor(key) for key in plan.constants},
        }
        memory = {key: tensor.address for key, tensor in self._tensors.items()}
        self.executable: Executable = backend.compile(plan, memory) or StepLoop(plan, memory)

    @property
    def arena_bytes(self) -> int:
        """Bytes set aside for intermediate values."""
        return self.plan.arena_bytes

    @property
    def input_bytes(self) -> int:
        """Bytes set aside for the inputs of a run, on the device and where it copies them from."""
        distinct = {id(tensor): tensor for tensor in (*self._inputs.values(), *self._staging.values())}
        return sum(tensor.nbytes for tensor in distinct.values())

    def run(self, symbols: tuple[int, ...]) -> None:
        """Enqueue one run over what `host_inputs` hold now; `synchronize` before changing them again."""
        if not self._is_host_accessible:
            self._upload(self._sizes(symbols))
        self.executable.run(symbols, self._stream)

    def run_filling(self, symbols: tuple[int, ...], name: str, fill: Callable[[], None]) -> None:
        """Like `run`, and write the input `name` by `fill()` while the device computes what comes before its use.

        A device that is the host computes nothing better meanwhile: each of its workers that gives way to `fill` keeps
        all others waiting at the next barrier. There `fill` comes first.
        """
        if self._is_host_accessible:
            fill()
            self.run(symbols)
            return
        first = self._first_use(name)
        self._upload(self._sizes(symbols), [other for other in self.plan.inputs if other != name])
        self.executable.run_steps(symbols, 0, first, self._stream)
        try:
            fill()
        finally:
            self._upload(self._sizes(symbols), [name])
            self.executable.run_steps(symbols, first, len(self.plan.steps), self._stream)

    def synchronize(self) -> None:
        """Return when everything enqueued has finished."""
        self._stream.synchronize()

    def run_capturing(self, symbols: tuple[int, ...], hook: CaptureHook, names: Container[str] | None = None) -> None:
        """Run and hand values to `hook(name, array)` as they are computed: those in `names`, or all.

        The array is read-only and valid during the call only. A view that no step computes is not handed over.
        """
        sizes = self._sizes(symbols)
        if not self._is_host_accessible:
            self._upload(sizes)
        begin = 0
        for end, step in enumerate(self.plan.steps, start=1):
            wanted = [pair for pair in zip(step.names, step.outputs, strict=True) if names is None or pair[0] in names]
            if not wanted:
                continue
            self.executable.run_steps(symbols, begin, end, self._stream)
            self.synchronize()
            for name, operand in wanted:
                array = self._fetch(operand, sizes)
                array.flags.writeable = False  # what is changed here would live on in reused keys and values
                hook(name, array)
            begin = end
        self.executable.run_steps(symbols, begin, len(self.plan.steps), self._stream)

    def run_timed(self, symbols: tuple[int, ...]) -> list[float]:
        """Run with a mark behind every step, wait for the end, and return what each step took in seconds."""
        if not self._is_host_accessible:
            self._upload(self._sizes(symbols))
        marks = [self._backend.events.create(timing=True) for _ in range(len(self.plan.steps) + 1)]
        marks[0].record(self._stream)
        for position, mark in enumerate(marks[1:]):
            self.executable.run_steps(symbols, position, position + 1, self._stream)
            mark.record(self._stream)
        self.synchronize()
        return [begin.elapsed_ms(end) / 1e3 for begin, end in pairwise(marks)]

    def output(self, name: str, symbols: tuple[int, ...]) -> Array:
        """An output of the last run, which must have finished; in host memory a view that the next run overwrites."""
        return self._fetch(self.plan.outputs[name], self._sizes(symbols))

    def _sizes(self, symbols: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self.plan.symbols, symbols, strict=True))

    def _fetch(self, operand: Operand, sizes: Mapping[str, int]) -> Array:
        owner = self._tensors[operand.place, operand.name]
        offset_bytes = owner.offset_bytes + operand.offset_bytes
        source = Tensor.of(owner.buffer, operand.dtype, resolve(operand.shape, sizes), offset_bytes)
        if self._is_host_accessible:
            return source.numpy()
        host = Tensor.of(self._backend.allocator.alloc(source.nbytes, MemoryKind.PINNED), source.dtype, source.shape)
        self._backend.transfer.copy(host, source)
        return host.numpy()

    def _first_use(self, name: str) -> int:
        """The first step that reads an input."""
        used = (
            position
            for position, step in enumerate(self.plan.steps)
            for operand in step.inputs
            if operand is not None and operand.place is Place.INPUT and operand.name == name
        )
        return next(used, len(self.plan.steps))

    def _upload(self, sizes: Mapping[str, int], names: Iterable[str] | None = None) -> None:
        for name in self.plan.inputs if names is None else names:
            type = self.plan.inputs[name]
            shape = resolve(type.shape, sizes)
            source = Tensor.of(self._staging[name].buffer, type.dtype, shape)
            destination = Tensor.of(self._inputs[name].buffer, type.dtype, shape)
            self._backend.transfer.copy_async(destination, source, self._stream)

    def _input_tensor(self, type: TensorType) -> Tensor:
        count = num_elements(resolve(type.shape, self.plan.symbols))
        return Tensor.of(self._backend.allocator.alloc(count * type.dtype.itemsize), type.dtype, (count,))

    def _staging_tensor(self, tensor: Tensor) -> Tensor:
        if self._is_host_accessible:
            return tensor
        return Tensor.of(self._backend.allocator.alloc(tensor.nbytes, MemoryKind.PINNED), tensor.dtype, tensor.shape)
