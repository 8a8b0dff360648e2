"""Executables of plans on an NPU: a step is a few asynchronous torch calls; decode steps are captured as graphs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from aethermind.dispatch import Kernel
from aethermind.errors import AetherMindError, DeviceError
from aethermind.graph.executor import MemoryMap
from aethermind.graph.plan import Operand, Place, Plan, is_decode_size
from aethermind.graph.tensor_parallel.collectives import COLLECTIVES
from aethermind.hal.stream import Stream
from aethermind_cann.dtypes import torch_dtype
from aethermind_cann.graph_capture import NpuGraphCache, can_capture
from aethermind_cann.memory import CannAllocator
from aethermind_cann.run_memo import HostQueries, memoised_run
from aethermind_cann.streams import CannStream

__all__ = ["CannExecutable"]

_MAX_CACHED_SIZES = 64
"""Sizes of runs whose bound tensors are cached (LRU); the decode steps of a batch have the same sizes."""


class _Value(NamedTuple):
    """A value of a run: an operand, and the number of earlier writes to its memory (`version`)."""

    operand: Operand
    version: int


class _Call(NamedTuple):
    """A step of the plan with the tensors of its operands."""

    kernel: Kernel
    function: Callable[..., None]
    inputs: list[torch.Tensor | None]
    outputs: list[torch.Tensor]
    attributes: Mapping[str, Any]
    source: str


class _Bound(NamedTuple):
    """All steps with the tensors for certain sizes, and the device values that these steps read on the host."""

    calls: list[_Call]
    queries: HostQueries


class CannExecutable:
    """Runs a plan's kernels, which are functions over tensors."""

    def __init__(self, plan: Plan, memory: MemoryMap, allocator: CannAllocator, device: int) -> None:
        self._names = tuple(plan.symbols)
        self._steps = plan.steps
        self._values = _values_of(plan)
        used = {(operand.place, operand.name) for operand in plan.operands()}
        self._storages = {key: allocator.storage_at(memory[key]) for key in used}
        self._bound: OrderedDict[tuple[int, ...], _Bound] = OrderedDict()
        self._max_symbols = plan.symbols
        has_collectives = any(step.kernel.operator in COLLECTIVES for step in plan.steps)
        self._captured = NpuGraphCache(device) if can_capture() and not has_collectives else None

    @property
    def num_native_breaks(self) -> int:
        """The number of steps: each is called from Python."""
        return len(self._steps)

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps; decode steps of padded sizes as one captured graph."""
        if self._captured is None or not is_decode_size(self._sizes(symbols), self._max_symbols):
            self.run_steps(symbols, 0, len(self._steps), stream)
            return
        assert isinstance(stream, CannStream), "the stream is of another backend"
        bound = self._bind_once(symbols)
        with torch.npu.stream(stream.handle), torch.no_grad():
            self._captured.run(symbols, bound.queries, lambda: _call_all(bound.calls, stream.index))

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]`; a DeviceError names the step that fails."""
        assert isinstance(stream, CannStream), "the stream is of another backend"
        with torch.npu.stream(stream.handle), torch.no_grad(), memoised_run():
            _call_all(self._bind_once(symbols).calls[begin:end], stream.index)

    def _bind_once(self, symbols: tuple[int, ...]) -> _Bound:
        bound = self._bound.get(symbols)
        if bound is None:
            bound = self._bound[symbols] = _Bound(self._bind(self._sizes(symbols)), HostQueries())
            if len(self._bound) > _MAX_CACHED_SIZES:
                self._bound.popitem(last=False)
        self._bound.move_to_end(symbols)
        return bound

    def _sizes(self, symbols: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self._names, symbols, strict=True))

    def _bind(self, sizes: Mapping[str, int]) -> list[_Call]:
        tensors: dict[_Value, torch.Tensor] = {}

        def tensor(value: _Value) -> torch.Tensor:
            if value not in tensors:
                tensors[value] = self._tensor(value.operand, sizes)
            return tensors[value]

        calls = []
        for step, (inputs, outputs) in zip(self._steps, self._values, strict=True):
            function = step.kernel.function
            assert function is not None, "an NPU runs functions over tensors"
            bound_inputs = [None if value is None else tensor(value) for value in inputs]
            calls.append(
                _Call(step.kernel, function, bound_inputs, list(map(tensor, outputs)), step.attributes, step.source)
            )
        return calls

    def _tensor(self, operand: Operand, sizes: Mapping[str, int]) -> torch.Tensor:
        storage, begin = self._storages[operand.place, operand.name]
        begin += operand.offset_bytes
        flat = storage[begin : begin + operand.nbytes(sizes)]
        if operand.packed_bytes is not None:  # a weight in a kernel's layout
            return flat
        return flat.view(torch_dtype(operand.dtype)).view(operand.shape_for(sizes))


def _call_all(calls: list[_Call], index: int) -> None:
    """Call all steps; a DeviceError names the step that fails."""
    for call in calls:
        try:
            call.function(call.inputs, call.outputs, call.attributes)
        except AetherMindError:
            raise
        except RuntimeError as error:
            title = f"Step {call.source}, kernel {call.kernel.title},"
            raise DeviceError(f"{title} failed on NPU {index}: {str(error).rstrip('.')}.") from error
        except Exception as error:
            raise call.kernel.failure(error) from error


def _values_of(plan: Plan) -> list[tuple[list[_Value | None], list[_Value]]]:
    """Return the inputs and outputs of each step as values, in SSA form: a write to reused memory makes a new value."""
    versions: dict[tuple[Place, str, int], int] = {}

    def memory_key(operand: Operand) -> tuple[Place, str, int]:
        return operand.place, operand.name, operand.offset_bytes

    values = []
    for step in plan.steps:
        inputs = [None if value is None else _Value(value, versions.get(memory_key(value), 0)) for value in step.inputs]
        for output in step.outputs:
            versions[memory_key(output)] = versions.get(memory_key(output), 0) + 1
        values.append((inputs, [_Value(value, versions[memory_key(value)]) for value in step.outputs]))
    return values
