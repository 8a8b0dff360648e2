"""Backends with one planted bug each, as a plugin: the `numpy` device, but for that. The kit has to find every one."""

from __future__ import annotations

import atexit
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tests.conformance.format_mutants import format_kernels
from tests.conformance.kernel_mutants import GENERATIONS, Bug

from aethermind.dispatch import Kernel
from aethermind.dispatch.reference import reference_kernels
from aethermind.hal import Buffer, DeviceId, Event, MemoryKind, Stream, Tensor
from aethermind.hal.builtin_backends import NumpyBackend
from aethermind.hal.device import Probe
from aethermind.hal.host_memory import HostAllocator, HostDevices, HostEvents, HostStreams, HostTransfer
from aethermind.hal.memory import MemoryStats
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry
from aethermind.plugins import hookimpl

__all__ = ["GENERATIONS", "MODEL_BUGS", "PART_BUGS"]

Array = Any


class LeakingAllocator(HostAllocator):
    """Keeps the memory of every buffer, whoever frees it."""

    def __init__(self, device: DeviceId) -> None:
        super().__init__(device)
        self._kept: list[Buffer] = []

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        buffer = super().alloc(nbytes, kind)
        self._kept.append(buffer)
        return Buffer(
            buffer.device,
            buffer.address,
            nbytes,
            kind=kind,
            is_host_accessible=True,
            release=lambda: None,
            owner=buffer,
        )


class MisalignedAllocator(HostAllocator):
    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        buffer = super().alloc(nbytes + 32, kind)
        address = buffer.address + 32
        return Buffer(
            buffer.device, address, nbytes, kind=kind, is_host_accessible=True, release=buffer.free, owner=buffer
        )


class ForgetfulAllocator(HostAllocator):
    def stats(self) -> MemoryStats:
        now = super().stats()
        return replace(now, peak_bytes=now.allocated_bytes)


class LateStream(Stream):
    """A device's queue as devices have them: work runs when somebody waits for it, unless a bug says otherwise."""

    def __init__(self, bug: str = "") -> None:
        self.work: list[Callable[[], object]] = []
        self._inner = HostStreams().create()
        self._bug = bug
        self.is_destroyed = False

    def submit(self, work: Callable[[], object]) -> None:
        self._inner.synchronize()
        self.work.append(work)

    def query(self) -> bool:
        return self._inner.query() and not self.work

    def synchronize(self) -> None:
        self._inner.synchronize()
        while self.work and self._bug != "sleeper":
            self.work.pop(0)()

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, LateEvent)
        self.submit(event.mark.wait if self._bug != "deaf" else self.query)

    def destroy(self) -> None:
        self.synchronize()
        self._inner.destroy()
        self.is_destroyed = True


class LateStreams(HostStreams):
    def __init__(self, bug: str) -> None:
        self._bug = bug
        self._only = LateStream(bug)
        self.all = [self._only]

    def create(self, index: int = 0, *, priority: int = 0) -> Stream:
        super().create(index, priority=priority)
        self.all.append(LateStream(self._bug))
        return self.all[-1]

    def default(self, index: int = 0) -> Stream:
        super().create(index)
        return self._only


class LateDevices(HostDevices):
    def __init__(self, devices: HostDevices, streams: LateStreams) -> None:
        super().__init__(devices.properties(0))
        self._streams = streams

    def synchronize(self, index: int) -> None:
        super().synchronize(index)
        for stream in self._streams.all:
            if not stream.is_destroyed:
                stream.synchronize()


class LateMark:
    """Where an event stood when it was recorded; reached once the work before it has run."""

    def __init__(self, stream: LateStream | None) -> None:
        self._stream = stream
        self.is_reached = stream is None

    def wait(self) -> None:
        while not self.is_reached and self._stream is not None and self._stream.work:
            self._stream.work.pop(0)()


class LateEvent(Event):
    def __init__(self, timing: bool) -> None:
        self._inner = HostEvents().create(timing=timing)
        self.mark = LateMark(None)

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, LateStream)
        self.mark = LateMark(stream)
        stream.submit(partial(self._reach, self.mark))

    def _reach(self, mark: LateMark) -> None:
        mark.is_reached = True
        self._inner.record(HostStreams().default())

    def query(self) -> bool:
        return self.mark.is_reached

    def synchronize(self) -> None:
        self.mark.wait()

    def elapsed_ms(self, end: Event) -> float:
        assert isinstance(end, LateEvent)
        return self._inner.elapsed_ms(end._inner)


class LateEvents(HostEvents):
    def create(self, *, timing: bool = False) -> Event:
        return LateEvent(timing)


class LateTransfer(HostTransfer):
    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        from aethermind.hal.transfer import check_copy

        check_copy(destination, source)
        assert isinstance(stream, LateStream)
        stream.submit(partial(self.copy, destination, source))

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        if not isinstance(stream, LateStream) or not 0 <= byte <= 255:
            super().fill(destination, byte)
        else:
            stream.submit(partial(super().fill, destination, byte))


class LooseTransfer(HostTransfer):
    """Trusts its callers."""

    def copy(self, destination: Tensor, source: Tensor) -> None:
        destination.numpy().reshape(-1)[:] = source.numpy().reshape(-1).astype(destination.dtype.numpy)


class OffsetBlindTransfer(HostTransfer):
    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        super().fill(Tensor.of(destination.buffer, destination.dtype, destination.shape), byte, stream)


class CrashingTransfer(HostTransfer):
    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class LateCrashingTransfer(HostTransfer):
    """Does its work, and ruins something that brings the process down at its end."""

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        super().fill(destination, byte, stream)
        atexit.register(os.kill, os.getpid(), signal.SIGSEGV)


class UnorderedTransfer(LateTransfer):
    """Ignores the stream: a copy overtakes the fills before it."""

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        stream.query()
        self.copy(destination, source)


def late(backend: NumpyBackend, bug: str = "") -> None:
    streams = LateStreams(bug)
    backend.streams, backend.events, backend.transfer = streams, LateEvents(), LateTransfer()
    assert isinstance(backend.devices, HostDevices)
    backend.devices = LateDevices(backend.devices, streams)


def _part(name: str, make: Callable[[NumpyBackend], Any]) -> Callable[[NumpyBackend], None]:
    return lambda backend: setattr(backend, name, make(backend))


def _unordered(backend: NumpyBackend) -> None:
    late(backend)
    backend.transfer = UnorderedTransfer()


PART_BUGS: Mapping[str, Callable[[NumpyBackend], None]] = {
    "leak": _part("allocator", lambda backend: LeakingAllocator(DeviceId(backend.name))),
    "alignment": _part("allocator", lambda backend: MisalignedAllocator(DeviceId(backend.name))),
    "peak": _part("allocator", lambda backend: ForgetfulAllocator(DeviceId(backend.name))),
    "loose-copies": _part("transfer", lambda _: LooseTransfer()),
    "offsets": _part("transfer", lambda _: OffsetBlindTransfer()),
    "unsynchronised": partial(late, bug="sleeper"),
    "deaf-streams": partial(late, bug="deaf"),
    "unordered": _unordered,
    "crash": _part("transfer", lambda _: CrashingTransfer()),
    "late-crash": _part("transfer", lambda _: LateCrashingTransfer()),
}


class CopylessTransfer(HostTransfer):
    """Copies of whole blocks within the device, as shared blocks need before they are written, are lost."""

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        if destination.buffer is not source.buffer:
            super().copy_async(destination, source, stream)


MODEL_BUGS: Mapping[str, Callable[[NumpyBackend], None]] = {
    "lost-copies": _part("transfer", lambda _: CopylessTransfer()),
}
"""What no single part and no single kernel shows."""


@hookimpl
def register_devices(registry: Any) -> None:
    def register(name: str, plant: Callable[[NumpyBackend], None]) -> None:
        registry.register(
            name, probe=lambda: Probe(1, "A mutant."), open=partial(_open, name, plant), priority=-9, provider="mutants"
        )

    register("late", late)  # no bug: work that runs late is what devices do
    register("formats", id)
    for number in range(len(GENERATIONS)):
        register(f"generation-{number}", id)
    for name, plant in {**PART_BUGS, **MODEL_BUGS}.items():
        register(f"mutant-{name}", plant)


@hookimpl
def register_kernels(registry: Any) -> None:
    registry.register("formats", partial(format_kernels, "formats"), provider="mutants")
    for number, bugs in enumerate(GENERATIONS):
        name = f"generation-{number}"
        registry.register(name, partial(_kernels, name, bugs), provider="mutants")
    for name in ("late", *(f"mutant-{name}" for name in (*PART_BUGS, *MODEL_BUGS))):
        registry.register(name, partial(_kernels, name, {}), provider="mutants")


def _open(name: str, plant: Callable[[NumpyBackend], object]) -> NumpyBackend:
    backend = NumpyBackend()
    backend.name = name
    backend.allocator = HostAllocator(DeviceId(name))
    plant(backend)
    return backend


def _kernels(name: str, bugs: Mapping[str, Bug]) -> list[Kernel]:
    kernels = reference_kernels(OperatorRegistry(catalog.load()), name)
    return [
        replace(kernel, function=partial(bugs[kernel.operator], kernel.function)) if kernel.operator in bugs else kernel
        for kernel in kernels
    ]
