"""Executables of plans on a GPU. The launches of a step are bound once for its sizes, and then only enqueued."""

from __future__ import annotations

from collections.abc import Callable

from aethermind.errors import DeviceError
from aethermind.graph.executor import MemoryMap
from aethermind.graph.plan import Plan, is_decode_size
from aethermind.hal.memory import Buffer
from aethermind.hal.stream import Stream
from aethermind_cuda.cublas import prompt_buckets
from aethermind_cuda.graph_capture import CudaGraphCache
from aethermind_cuda.launch import DeviceFacts
from aethermind_cuda.launch_cache import LaunchCache
from aethermind_cuda.library import KernelLibrary
from aethermind_cuda.step_binding import StepBinder, workspace_bytes
from aethermind_cuda.streams import CudaStream

__all__ = ["CudaExecutable"]

_MAX_PREPARED_TOKENS = 4096
"""cuBLASLt algorithms are chosen at load time for prompts up to this many tokens; for longer ones the time is
negligible."""


class CudaExecutable:
    """Enqueues steps one by one, or as a CUDA graph for the padded sizes of decode steps."""

    def __init__(
        self,
        plan: Plan,
        memory: MemoryMap,
        device: int,
        facts: DeviceFacts,
        library: KernelLibrary,
        captured: CudaGraphCache,
        allocate: Callable[[int], Buffer],
    ) -> None:
        self._plan = plan
        self._device = device
        self._names = tuple(plan.symbols)
        self._cache = LaunchCache(plan)
        self._captured = captured
        self._workspace = allocate(workspace_bytes(plan, facts))
        self._binder = StepBinder(plan, memory, facts, library, self._workspace.address)
        for bucket in prompt_buckets(1, min(plan.symbols.get("T", 0), _MAX_PREPARED_TOKENS)):
            sizes = {"T": min(bucket, plan.symbols["T"]), "S": 1, "R": 1, "B": 1}
            self._binder.choose_algorithms(tuple(sizes.get(name, 0) for name in plan.symbols))

    @property
    def num_native_breaks(self) -> int:
        """0: no step waits for the host."""
        return 0

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        """Enqueue all steps, as one CUDA graph for the padded sizes of decode steps."""
        handle = self._handle(stream)
        if symbols in self._captured or is_decode_size(self._sizes(symbols), self._plan.symbols):
            self._captured.run(symbols, handle, lambda target: self._enqueue(symbols, 0, len(self._plan.steps), target))
        else:
            self._enqueue(symbols, 0, len(self._plan.steps), handle)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        """Enqueue `steps[begin:end]`."""
        self._enqueue(symbols, begin, end, self._handle(stream))

    def _enqueue(self, symbols: tuple[int, ...], begin: int, end: int, stream: int) -> None:
        """Enqueue steps. Steps that are not bound for these sizes yet are bound one by one, while the device runs the
        earlier ones.
        """
        get, bind = self._cache.get, self._binder.bind
        for position in range(begin, end):
            for enqueue in get(position, symbols, bind):
                enqueue(stream)

    def _handle(self, stream: Stream) -> int:
        assert isinstance(stream, CudaStream), "the stream is of another backend"
        if stream.device != self._device:
            raise DeviceError(f"A plan for cuda:{self._device} cannot run on a stream of cuda:{stream.device}.")
        return stream.handle

    def _sizes(self, symbols: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(self._names, symbols, strict=True))
