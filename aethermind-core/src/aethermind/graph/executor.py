"""Running a plan: its memory, its executable, and the step loop that captures values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aethermind.graph.constants import ConstantStore
from aethermind.graph.plan import Operand, Place, Plan, Step
from aethermind.hal.backend import Backend
from aethermind.hal.buffer import MemoryKind
from aethermind.hal.device import DeviceId
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.ops.dims import resolve

__all__ = ["Executable", "Executor", "MemoryMap", "StepLoop"]

MemoryMap = Mapping[tuple[Place, str], int]
"""Fixed device addresses of the arena `(ARENA, "")` and of every input, state and constant of a plan."""

CaptureHook = Callable[[str, Any], None]
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
    """The executable of devices in host memory that have no better one: Python kernels, one call after another."""

    def __init__(self, plan: Plan, memory: MemoryMap, device: DeviceId) -> None:
        self._plan = plan
        self._memory = memory
        self._device = device
        self._names = tuple(plan.symbols)

    @property
    def num_native_breaks(self) -> int:
        return len(self._plan.steps)

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        self.run_steps(symbols, 0, len(self._plan.steps), stream)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
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
    """A NumPy view of an operand in host memory."""
    import ctypes

    import numpy as np

    shape = resolve(operand.shape, sizes)
    count = int(np.prod(shape)) * operand.dtype.itemsize
    memory = (ctypes.c_byte * count).from_address(address)
    return np.frombuffer(memory, dtype=operand.dtype.numpy).reshape(shape)


class Executor:
    """One plan with its memory: an arena, a buffer for each input, and what it shares with others (states, constants).

    For a device whose memory the host cannot reach, `host_inputs` are pinned staging arrays that `run` copies over.
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
        self._states = states
        self._constants = constants
        self._arena = backend.allocator.alloc(plan.arena_bytes)
        self._inputs = {name: self._input_tensor(name) for name in plan.inputs}
        self._staging = {name: self._staging_tensor(tensor) for name, tensor in self._inputs.items()}
        self.host_inputs: dict[str, Array] = {name: tensor.numpy() for name, tensor in self._staging.items()}
        self._memory = self._memory_map()
        self.executable: Executable = backend.compile(plan, self._memory) or StepLoop(plan, self._memory, device)

    @property
    def arena_bytes(self) -> int:
        return self.plan.arena_bytes

    def run(self, symbols: tuple[int, ...]) -> None:
        """Enqueue one run over what `host_inputs` hold now; `synchronize` before changing them again."""
        if not self._is_host_accessible:
            self._upload(symbols)
        self.executable.run(symbols, self._stream)

    def synchronize(self) -> None:
        """Return when everything enqueued has finished."""
        self._stream.synchronize()

    def run_capturing(self, symbols: tuple[int, ...], hook: CaptureHook) -> None:
        """Run step by step and hand every computed value to `hook(name, array)`; the array is valid during the call only."""
        if not self._is_host_accessible:
            self._upload(symbols)
        sizes = dict(zip(self.plan.symbols, symbols, strict=True))
        for position, step in enumerate(self.plan.steps):
            self.executable.run_steps(symbols, position, position + 1, self._stream)
            self.synchronize()
            for number, operand in enumerate(step.outputs):
                name = step.source if number == 0 else f"{step.source}[{number}]"
                hook(name, self._fetch(operand, sizes))

    def output(self, name: str, symbols: tuple[int, ...]) -> Array:
        """An output of the last run as a NumPy array; in host memory a view that the next run overwrites."""
        return self._fetch(self.plan.outputs[name], dict(zip(self.plan.symbols, symbols, strict=True)))

    def _fetch(self, operand: Operand, sizes: Mapping[str, int]) -> Array:
        address = self._memory[operand.place, operand.name] + operand.offset_bytes
        if self._is_host_accessible:
            return array_at(address, operand, sizes)
        source = self._tensor_of(operand, sizes)
        host = Tensor.of(self._backend.allocator.alloc(source.nbytes, MemoryKind.PINNED), operand.dtype, source.shape)
        self._backend.transfer.copy(host, source)
        return host.numpy()

    def _tensor_of(self, operand: Operand, sizes: Mapping[str, int]) -> Tensor:
        owner = self._states[operand.name].buffer if operand.place is Place.STATE else self._arena
        return Tensor.of(owner, operand.dtype, resolve(operand.shape, sizes), operand.offset_bytes)

    def _upload(self, symbols: tuple[int, ...]) -> None:
        sizes = dict(zip(self.plan.symbols, symbols, strict=True))
        for name, type in self.plan.inputs.items():
            shape = resolve(type.shape, sizes)
            source = Tensor.of(self._staging[name].buffer, type.dtype, shape)
            destination = Tensor.of(self._inputs[name].buffer, type.dtype, shape)
            self._backend.transfer.copy_async(destination, source, self._stream)

    def _input_tensor(self, name: str) -> Tensor:
        type = self.plan.inputs[name]
        shape = resolve(type.shape, self.plan.symbols)
        nbytes = int(_product(shape)) * type.dtype.itemsize
        return Tensor.of(self._backend.allocator.alloc(nbytes), type.dtype, (int(_product(shape)),))

    def _staging_tensor(self, tensor: Tensor) -> Tensor:
        if self._is_host_accessible:
            return tensor
        return Tensor.of(self._backend.allocator.alloc(tensor.nbytes, MemoryKind.PINNED), tensor.dtype, tensor.shape)

    def _memory_map(self) -> MemoryMap:
        memory = {(Place.ARENA, ""): self._arena.address}
        memory.update({(Place.INPUT, name): tensor.address for name, tensor in self._inputs.items()})
        memory.update({(Place.STATE, name): self._states[name].address for name in self.plan.states})
        memory.update({(Place.CONSTANT, key): self._constants.address(key) for key in self.plan.constants})
        return memory


def _product(shape: tuple[int, ...]) -> int:
    import math

    return math.prod(shape)
