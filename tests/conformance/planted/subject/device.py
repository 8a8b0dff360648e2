"""A device of this process: memory at addresses that the host must not touch, and streams that are threads."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from aethermind.errors import DeviceError
from aethermind.graph.executor import MemoryMap, addresses_in_run, array_at
from aethermind.graph.plan import Operand, Plan, Step
from aethermind.hal import (
    Allocator,
    Backend,
    Buffer,
    Capabilities,
    DataTransfer,
    DeviceId,
    DeviceManager,
    DeviceProperties,
    DType,
    Event,
    EventManager,
    MemoryKind,
    MemoryStats,
    Stream,
    StreamManager,
    Tensor,
    TransferStats,
    check_copy,
    check_fill,
)
from aethermind.hal.host_memory import HostAllocator

NAME = "planted"
TAG = 1 << 60
"""Added to the address of device memory: whoever takes it for a host's dies at once."""


class Memory(Allocator):
    def __init__(self) -> None:
        self._host = HostAllocator(DeviceId(NAME))

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        host = self._host.alloc(nbytes, kind)
        if kind is not MemoryKind.DEVICE:
            return host
        address = host.address + TAG
        return Buffer(host.device, address, nbytes, kind=kind, is_host_accessible=False, release=host.free, owner=host)

    def stats(self) -> MemoryStats:
        return self._host.stats()


def host_address(tensor: Tensor) -> int:
    return tensor.address if tensor.buffer.is_host_accessible else tensor.address - TAG


class WorkStream(Stream):
    def __init__(self) -> None:
        self._work: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._is_destroyed = False
        self._thread = threading.Thread(target=self._work_off, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], object]) -> None:
        self.check()
        with self._changed:
            self._work.append(work)
            self._changed.notify_all()

    def query(self) -> bool:
        self.check()
        return not self._work

    def synchronize(self) -> None:
        self.check()
        with self._changed:
            self._changed.wait_for(lambda: not self._work)
        if self._error is not None:
            raise DeviceError(f"Work on the stream failed: {self._error}") from self._error

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, WorkEvent)
        self.submit(event.mark.wait)

    def destroy(self) -> None:
        try:
            self.synchronize()
        finally:
            self._is_destroyed = True
            with self._changed:
                self._changed.notify_all()

    def check(self) -> None:
        if self._is_destroyed:
            raise DeviceError("The stream was destroyed.")

    def _work_off(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or self._is_destroyed)
                if not self._work:
                    return
                work = self._work[0]
            try:
                work()
            except Exception as error:
                self._error = error
            with self._changed:
                self._work.popleft()
                self._changed.notify_all()


class Streams(StreamManager):
    def __init__(self) -> None:
        self.alive: weakref.WeakSet[WorkStream] = weakref.WeakSet()
        self._default = WorkStream()
        self.alive.add(self._default)

    def create(self, index: int = 0, *, priority: int = 0) -> Stream:
        check_index(index)
        stream = WorkStream()
        self.alive.add(stream)
        return stream

    def default(self, index: int = 0) -> Stream:
        check_index(index)
        return self._default


class Mark:
    def __init__(self) -> None:
        self.at: float | None = None
        self._reached = threading.Event()

    def reach(self) -> None:
        self.at = time.perf_counter()
        self._reached.set()

    def is_reached(self) -> bool:
        return self._reached.is_set()

    def wait(self) -> None:
        self._reached.wait()


class WorkEvent(Event):
    def __init__(self, timing: bool) -> None:
        self._has_timing = timing
        self._is_recorded = False
        self.mark = Mark()
        self.mark.reach()

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, WorkStream)
        stream.check()
        self.mark, self._is_recorded = Mark(), True
        stream.submit(self.mark.reach)

    def query(self) -> bool:
        return self.mark.is_reached()

    def synchronize(self) -> None:
        self.mark.wait()

    def elapsed_ms(self, end: Event) -> float:
        assert isinstance(end, WorkEvent)
        for event in (self, end):
            if not event._has_timing or not event._is_recorded or event.mark.at is None:
                raise DeviceError("Time needs two events with timing that were recorded and reached.")
        assert self.mark.at is not None
        assert end.mark.at is not None
        return (end.mark.at - self.mark.at) * 1000


class Events(EventManager):
    def create(self, *, timing: bool = False) -> Event:
        return WorkEvent(timing)


class Transfer(DataTransfer):
    def __init__(self) -> None:
        self._stats = TransferStats(0, 0)

    def copy(self, destination: Tensor, source: Tensor) -> None:
        check_copy(destination, source)
        self._count(destination, source)
        ctypes.memmove(host_address(destination), host_address(source), source.nbytes)

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        assert isinstance(stream, WorkStream)
        check_copy(destination, source)
        stream.check()
        self._count(destination, source)
        stream.submit(partial(ctypes.memmove, host_address(destination), host_address(source), source.nbytes))

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        check_fill(destination, byte)
        work = partial(ctypes.memset, host_address(destination), byte, destination.nbytes)
        if stream is None:
            work()
        else:
            assert isinstance(stream, WorkStream)
            stream.submit(work)

    def stats(self) -> TransferStats:
        return self._stats

    def _count(self, destination: Tensor, source: Tensor) -> None:
        from_device, to_device = (not one.buffer.is_host_accessible for one in (source, destination))
        self._stats = self._stats.counting(source.nbytes, from_device=from_device, to_device=to_device)


class Devices(DeviceManager):
    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def count(self) -> int:
        return 1

    def properties(self, index: int) -> DeviceProperties:
        check_index(index)
        return DeviceProperties("threads of this process", 0, 1)

    def current(self) -> int:
        return 0

    def set_current(self, index: int) -> None:
        check_index(index)

    def synchronize(self, index: int) -> None:
        check_index(index)
        for stream in list(self._streams.alive):
            if not stream._is_destroyed:
                stream.synchronize()


def check_index(index: int) -> None:
    if index != 0:
        raise DeviceError(f"There is no device {index}: there is one, number 0.")


class Program:
    """A plan, one Python function after another, in the thread of the stream."""

    def __init__(self, plan: Plan, memory: MemoryMap) -> None:
        self._plan = plan
        self._memory = memory

    @property
    def num_native_breaks(self) -> int:
        return len(self._plan.steps)

    def run(self, symbols: tuple[int, ...], stream: Stream) -> None:
        self.run_steps(symbols, 0, len(self._plan.steps), stream)

    def run_steps(self, symbols: tuple[int, ...], begin: int, end: int, stream: Stream) -> None:
        assert isinstance(stream, WorkStream)
        sizes = dict(zip(self._plan.symbols, symbols, strict=True))
        stream.submit(partial(self._run, self._plan.steps[begin:end], sizes))

    def _run(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> None:
        address = addresses_in_run(self._plan, self._memory, sizes)

        def array(operand: Operand) -> Any:
            return array_at(address(operand) - TAG, operand, sizes)

        for step in steps:
            inputs = [None if operand is None else array(operand) for operand in step.inputs]
            outputs = [array(operand) for operand in step.outputs]
            assert step.kernel.function is not None
            step.kernel.function(inputs, outputs, step.attributes)


class ThreadBackend(Backend):
    def __init__(self) -> None:
        self.name = NAME
        self.allocator = Memory()
        self.streams = Streams()
        self.devices = Devices(self.streams)
        self.events = Events()
        self.transfer = Transfer()
        self.capabilities = Capabilities(
            (DType.FLOAT32, DType.BFLOAT16), is_host_accessible=False, is_asynchronous=True
        )

    def compile(self, plan: Plan, memory: MemoryMap) -> Program:
        return Program(plan, memory)

    def close(self) -> None:
        for stream in list(self.streams.alive):
            if not stream._is_destroyed:
                stream.destroy()
