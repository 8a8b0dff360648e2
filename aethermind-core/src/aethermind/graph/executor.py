"""Execution of plans: memory allocation, input upload, the executables, and capture of intermediate values.

A step of a plan is one kernel call. `symbols` are the sizes of a run's symbolic dims, in the order of `plan.symbols`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, Protocol, runtime_checkable

from aethermind.errors import DeviceError, PluginError
from aethermind.graph.constants import ConstantStore
from aethermind.graph.plan import Operand, Place, Plan, Step, is_decode_size
from aethermind.graph.run_inputs import CopiedInputs, Inputs, SharedInputs, place_inputs
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId
from aethermind.hal.dtype import DType
from aethermind.hal.memory import MemoryKind
from aethermind.hal.profiler_ranges import ProfilerRanges
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor, num_elements

__all__ = [
    "CaptureHook",
    "DeviceInput",
    "Executable",
    "MemoryMap",
    "PlanExecutor",
    "StepLoop",
    "TimedExecutable",
    "addresses_in_run",
    "array_at",
]

MemoryMap = Mapping[tuple[Place, str], int]
"""Device addresses by (place, name), the same in all runs. The key of the arena is `(ARENA, "")`; those of inputs,
states and constants have their names.

If a backend packs all inputs into one buffer (`packs_inputs`), `(INPUT, "")` is its address: see `addresses_in_run`.
"""

CaptureHook = Callable[[str, Any], None]
"""Called with the name and the array of a value."""
Array = Any


class DeviceInput(NamedTuple):
    """Elements of an input, from index `first` on, that are copied from device memory instead of written by the host.

    `source` is a one-dimensional tensor in device memory.
    """

    name: str
    first: int
    source: Tensor


class _FlatOutput(NamedTuple):
    """An output in host memory: a one-dimensional array of the maximum size; a run writes its first elements."""

    array: Array
    dims: tuple[tuple[int | None, int], ...]
    """Each dim of the output as (index into `symbols`, offset), whose size is `symbols[index] + offset`.

    A dim with a fixed size has no index (None); its size is the offset.
    """


class Executable(Protocol):
    """A plan compiled by a backend. Runs are enqueued on a stream, in order."""

    @property
    def num_native_breaks(self) -> int:
        """The number of Python kernels, each of which interrupts the native execution of the plan."""

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps; `symbols` are in the order of `plan.symbols`."""

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]` only."""


@runtime_checkable
class TimedExecutable(Executable, Protocol):
    """An executable that measures each step with a clock of its own, which costs less than events on a stream."""

    def run_timed(self, symbols: tuple[int, ...], stream: Stream) -> list[float]:
        """Run all steps, wait until they have finished, and return the seconds of each."""


class StepLoop:
    """The default executable for devices whose memory the host can access: calls Python kernels one after another.

    It runs in the caller's thread, after synchronising the stream.
    """

    def __init__(self, plan: Plan, memory: MemoryMap) -> None:
        """Prepare a plan; PluginError for a native kernel, which only a backend that implements `compile` can run."""
        for step in plan.steps:
            if step.kernel.function is None:
                raise PluginError(
                    f"Kernel {step.kernel.title} is native, and device {step.kernel.device_type} calls Python "
                    "functions only. Update or uninstall its package."
                )
        self._plan = plan
        self._memory = memory
        self._symbol_names = tuple(plan.symbols)

    @property
    def num_native_breaks(self) -> int:
        """The number of all steps, none of which is native."""
        return len(self._plan.steps)

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Run all steps."""
        self.run_steps(symbols, 0, len(self._plan.steps), stream)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Run `steps[begin:end]`."""
        stream.synchronize()
        sizes = dict(zip(self._symbol_names, symbols, strict=True))
        address = addresses_in_run(self._plan, self._memory, sizes)
        for step in self._plan.steps[begin:end]:
            self._run_step(step, lambda operand: array_at(address(operand), operand, sizes))

    def _run_step(self, step: Step, array: Callable[[Operand], Array]) -> None:
        inputs = [None if operand is None else array(operand) for operand in step.inputs]
        step.kernel.call(inputs, [array(operand) for operand in step.outputs], step.attributes)


def addresses_in_run(plan: Plan, memory: MemoryMap, sizes: Mapping[str, int]) -> Callable[[Operand], int]:
    """Return a function that maps an operand to its address in a run with these sizes.

    Inputs that share one buffer are placed in it by `place_inputs`, so their addresses depend on the sizes.
    """
    inputs_address = memory.get((Place.INPUT, ""))
    ranges = {} if inputs_address is None else place_inputs(plan.inputs, sizes)

    def address(operand: Operand) -> int:
        if inputs_address is not None and operand.place is Place.INPUT:
            return inputs_address + ranges[operand.name].begin + operand.offset_bytes
        return memory[operand.place, operand.name] + operand.offset_bytes

    return address


def array_at(address: int, operand: Operand, sizes: Mapping[str, int]) -> Array:
    """Return a NumPy view of an operand in host memory, which the caller keeps alive; uint8 for a packed weight."""
    import numpy as np

    memory = memoryview((ctypes.c_byte * operand.nbytes(sizes)).from_address(address))
    if operand.packed_bytes is not None:
        return np.ndarray((operand.packed_bytes,), np.uint8, buffer=memory)
    return np.ndarray(operand.shape_for(sizes), operand.dtype.numpy, buffer=memory)


class PlanExecutor:
    """Runs one plan: it owns the arena and the inputs, and shares states and constants with other executors.

    `host_inputs` are one-dimensional arrays of the maximum sizes; write a run's inputs to their first elements. If the
    host cannot access the device's memory, `run` copies them. With `ranges`, each step is a range of the profiler,
    named by its operator and its first output, such as `linear layers.0.mlp.down`.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        device: DeviceId,
        constants: ConstantStore,
        states: Mapping[str, Tensor],
        stream: Stream | None = None,
        ranges: ProfilerRanges | None = None,
    ) -> None:
        self.plan = plan
        self._ranges = ranges
        self._backend = backend
        self._busy_tracker = constants.activity
        self._stream = stream or backend.streams.default(device.index)
        self._is_host_accessible = backend.capabilities.is_host_accessible
        self._inputs: Inputs = SharedInputs(plan, backend) if self._is_host_accessible else CopiedInputs(plan, backend)
        self.host_inputs = self._inputs.arrays
        arena = Tensor.of(backend.allocator.alloc(plan.arena_bytes), DType.UINT8, (plan.arena_bytes,))
        self._tensors = {
            (Place.ARENA, ""): arena,
            **{(Place.STATE, name): states[name] for name in plan.states},
            **{(Place.CONSTANT, key): constants.tensor(key) for key in plan.constants},
        }
        memory = {
            **{key: tensor.address for key, tensor in self._tensors.items()},
            **{(Place.INPUT, name): address for name, address in self._inputs.addresses().items()},
        }
        executable = backend.compile(plan, memory)
        if executable is None and not self._is_host_accessible:
            raise DeviceError(
                f"Device {device} cannot run a plan: the host cannot access its memory, as its capabilities say "
                "(is_host_accessible=False), so its backend has to implement `compile`. Update its package."
            )
        self.executable: Executable = executable or StepLoop(plan, memory)
        self._host_outputs = self._flat_outputs() if self._is_host_accessible else {}

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena for intermediate values."""
        return self.plan.arena_bytes

    @property
    def input_bytes(self) -> int:
        """The bytes of the buffers for inputs, on the device and on the host."""
        return self._inputs.nbytes

    @property
    def copies_inputs(self) -> bool:
        """Whether `host_inputs` may be written again as soon as a run is enqueued, because it reads a copy."""
        return not self._is_host_accessible

    def run(self, symbols: tuple[int, ...], device_inputs: Sequence[DeviceInput] = ()) -> None:
        """Enqueue one run with the current contents of `host_inputs`, parts of them replaced by `device_inputs`.

        Call `synchronize` before changing `host_inputs` again, unless the executor `copies_inputs`.
        """
        self._inputs.upload(symbols, self._stream)
        self._copy_device_inputs(device_inputs, symbols)
        if self._ranges is not None and not self._is_one_launch(symbols):
            self._run_steps(symbols, 0, len(self.plan.steps))
            return
        with self._busy_tracker:
            self.executable.run(symbols, self._stream)

    def run_with_late_input(
        self, symbols: tuple[int, ...], name: str, fill: Callable[[], None], device_inputs: Sequence[DeviceInput] = ()
    ) -> None:
        """Enqueue a run, and call `fill()`, which writes the input `name`, while the device runs steps before its use.

        If the host can access device memory, `fill` runs before the run: it would compete with worker threads for CPU
        cores, and a worker that is preempted delays all others at the next barrier.
        """
        if self._is_host_accessible:
            fill()
            self.run(symbols, device_inputs)
            return
        first_use = self._first_use(name)
        self._inputs.upload(symbols, self._stream, late=name)
        self._copy_device_inputs(device_inputs, symbols)
        self._run_steps(symbols, 0, first_use)
        try:
            fill()
        finally:
            self._inputs.upload_late(name, symbols, self._stream)
            self._run_steps(symbols, first_use, len(self.plan.steps))

    def synchronize(self) -> None:
        """Wait until everything enqueued has finished."""
        self._stream.synchronize()

    def run_capturing(self, symbols: tuple[int, ...], hook: CaptureHook, names: Container[str] | None = None) -> None:
        """Run the plan, and call `hook(name, array)` for each value in `names` (None: all) when it has been computed.

        The array is read-only and valid during the call only. The hook is not called for views, which no step computes.
        """
        self._inputs.upload(symbols, self._stream)
        begin = 0
        for end, step in enumerate(self.plan.steps, start=1):
            captured = [
                (name, operand)
                for name, operand in zip(step.names, step.outputs, strict=True)
                if names is None or name in names
            ]
            if not captured:
                continue
            self._run_steps(symbols, begin, end)
            self.synchronize()
            for name, operand in captured:
                array = self._fetch(operand, symbols)
                array.flags.writeable = False  # it may be a view of the KV cache
                hook(name, array)
            begin = end
        self._run_steps(symbols, begin, len(self.plan.steps))

    def run_reading(
        self, symbols: tuple[int, ...], read: Callable[[int, Array], None], inputs: Mapping[int, int]
    ) -> None:
        """Run the plan, and call `read(position, array)` with an input of some steps before each of them runs.

        `inputs` maps the position of such a step in the plan to the index of the input. The array is valid during the
        call only.
        """
        self._inputs.upload(symbols, self._stream)
        begin = 0
        for position, index in sorted(inputs.items()):
            operand = self.plan.steps[position].inputs[index]
            assert operand is not None, "an absent input cannot be read"
            self._run_steps(symbols, begin, position)
            self.synchronize()
            read(position, self._fetch(operand, symbols))
            begin = position
        self._run_steps(symbols, begin, len(self.plan.steps))

    def run_timed(self, symbols: tuple[int, ...]) -> list[float]:
        """Run the plan, wait, and return the seconds of each step, measured by events or by the executable."""
        self._inputs.upload(symbols, self._stream)
        if isinstance(self.executable, TimedExecutable):
            with self._busy_tracker:
                return self.executable.run_timed(symbols, self._stream)
        events = [self._backend.events.create(timing=True) for _ in range(len(self.plan.steps) + 1)]
        events[0].record(self._stream)
        for position, event in enumerate(events[1:]):
            self._run_steps(symbols, position, position + 1)
            event.record(self._stream)
        self.synchronize()
        return [begin.elapsed_ms(end) / 1e3 for begin, end in pairwise(events)]

    def output(self, name: str, symbols: tuple[int, ...]) -> Array:
        """Return an output of the last run, which must have finished.

        In host-accessible memory it is a view that the next run overwrites.
        """
        flat_output = self._host_outputs.get(name)
        if flat_output is None:
            return self._fetch(self.plan.outputs[name], symbols)
        array, dims = flat_output
        shape = [offset if index is None else symbols[index] + offset for index, offset in dims]
        return array[: prod(shape)].reshape(shape)

    def output_tensor(self, name: str, symbols: tuple[int, ...]) -> Tensor:
        """Return an output in device memory.

        It is valid after the enqueued work has finished and until the next run.
        """
        return self._tensor(self.plan.outputs[name], symbols)

    def _flat_outputs(self) -> dict[str, _FlatOutput]:
        """Return views of the outputs in host memory, made once because they are read after every step.

        Outputs that are inputs of the plan are excluded: their addresses depend on the run.
        """
        symbol_index = {name: index for index, name in enumerate(self.plan.symbols)}
        flat_outputs = {}
        for name, operand in self.plan.outputs.items():
            if operand.place is Place.INPUT:
                continue
            owner = self._tensors[operand.place, operand.name]
            count = num_elements(operand.shape_for(self.plan.symbols))
            flat = Tensor.of(owner.buffer, operand.dtype, (count,), owner.offset_bytes + operand.offset_bytes)
            dims: list[tuple[int | None, int]] = [
                (None, dim) if isinstance(dim, int) else (symbol_index[dim.symbol], dim.offset) for dim in operand.shape
            ]
            flat_outputs[name] = _FlatOutput(flat.numpy(), tuple(dims))
        return flat_outputs

    def _run_steps(self, symbols: tuple[int, ...], begin: int, end: int) -> None:
        with self._busy_tracker:
            if self._ranges is None:
                self.executable.run_steps(symbols, begin, end, self._stream)
                return
            for position, step in enumerate(self.plan.steps[begin:end], start=begin):
                with self._ranges(f"{step.kernel.operator} {step.source}", self._stream):
                    self.executable.run_steps(symbols, position, position + 1, self._stream)
                    if self._is_host_accessible:  # the host's cores compute, so the range should end with their work
                        self._stream.synchronize()

    def _is_one_launch(self, symbols: tuple[int, ...]) -> bool:
        """Whether the device replays a captured graph of this run, so that the host cannot open ranges for steps."""
        sizes = dict(zip(self.plan.symbols, symbols, strict=True))
        return self._backend.capabilities.supports_graph_capture and is_decode_size(sizes, self.plan.symbols)

    def _copy_device_inputs(self, device_inputs: Sequence[DeviceInput], symbols: tuple[int, ...]) -> None:
        for name, first, source in device_inputs:
            whole = self._inputs.tensor(name, symbols)
            offset_bytes = whole.offset_bytes + first * whole.dtype.itemsize
            destination = Tensor.of(whole.buffer, whole.dtype, source.shape, offset_bytes)
            self._backend.transfer.copy_async(destination, source, self._stream)

    def _tensor(self, operand: Operand, symbols: tuple[int, ...]) -> Tensor:
        is_input = operand.place is Place.INPUT
        owner = self._inputs.tensor(operand.name, symbols) if is_input else self._tensors[operand.place, operand.name]
        shape = operand.shape_for(dict(zip(self.plan.symbols, symbols, strict=True)))
        return Tensor.of(owner.buffer, operand.dtype, shape, owner.offset_bytes + operand.offset_bytes)

    def _fetch(self, operand: Operand, symbols: tuple[int, ...]) -> Array:
        """Return an operand as a host array: a view where the host can access its memory, else a copy."""
        source = self._tensor(operand, symbols)
        if self._is_host_accessible:
            return source.numpy()
        host = Tensor.of(self._backend.allocator.alloc(source.nbytes, MemoryKind.PINNED), source.dtype, source.shape)
        self._backend.transfer.copy_async(host, source, self._stream)
        self._stream.synchronize()
        return host.numpy()

    def _first_use(self, name: str) -> int:
        """Return the index of the first step that reads the input; the number of steps if none does."""
        uses = (
            position
            for position, step in enumerate(self.plan.steps)
            for operand in step.inputs
            if operand is not None and operand.place is Place.INPUT and operand.name == name
        )
        return next(uses, len(self.plan.steps))
