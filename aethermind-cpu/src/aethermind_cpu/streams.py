"""Asynchronous streams, each with a thread of its own, and events."""

from __future__ import annotations

import weakref

from aethermind.errors import DeviceError
from aethermind.hal.stream import Event, EventManager, Stream, StreamManager
from aethermind_cpu import _native

__all__ = ["CpuEvent", "CpuEvents", "CpuStream", "CpuStreams"]


class CpuStream(Stream):
    """An ordered work queue. Thread-safe."""

    def __init__(self, team: _native.Team) -> None:
        self._native: _native.Stream | None = _native.Stream(team)

    @property
    def native(self) -> _native.Stream:
        """The native queue; DeviceError once destroyed."""
        if self._native is None:
            raise DeviceError("The stream was destroyed; create another one.")
        return self._native

    def query(self) -> bool:
        return self.native.query()

    def synchronize(self) -> None:
        try:
            self.native.synchronize()
        except RuntimeError as error:
            raise DeviceError(
                f"Work on a stream of device cpu failed: {error}. Free memory or lower the number of threads."
            ) from error

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, CpuEvent), "a stream waits for events of its own backend"
        event.native.make_wait(self.native)

    def destroy(self) -> None:
        try:
            self.synchronize()
        finally:
            self._native = None


class CpuStreams(StreamManager):
    """Creates streams that share one team of workers: plans are serialised, copies run concurrently with them.

    Priorities have no effect: threads of one process share its priority.
    """

    def __init__(self, team: _native.Team) -> None:
        self._team = team
        self._streams: weakref.WeakSet[CpuStream] = weakref.WeakSet()
        self._default: CpuStream | None = None

    def create(self, index: int = 0, *, priority: int = 0) -> CpuStream:
        if index != 0:
            raise DeviceError(f"Device cpu:{index} does not exist: a host has one CPU device, cpu:0.")
        stream = CpuStream(self._team)
        self._streams.add(stream)
        return stream

    def default(self, index: int = 0) -> CpuStream:
        if self._default is None or index != 0:
            self._default = self.create(index)
        return self._default

    def synchronize_all(self) -> None:
        """Wait for all streams."""
        for stream in self._open_streams():
            stream.synchronize()

    def destroy_all(self) -> None:
        """Synchronize and destroy all streams."""
        for stream in self._open_streams():
            stream.destroy()

    def _open_streams(self) -> list[CpuStream]:
        return [stream for stream in self._streams if stream._native is not None]


class CpuEvent(Event):
    """An event. It completes when the thread of the stream reaches it, and records the time."""

    def __init__(self, *, timing: bool) -> None:
        self._has_timing = timing
        self.native = _native.Event()

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, CpuStream), "an event is recorded on a stream of its own backend"
        self.native.record(stream.native)

    def query(self) -> bool:
        return self.native.query()

    def synchronize(self) -> None:
        self.native.synchronize()

    def elapsed_ms(self, end: Event) -> float:
        assert isinstance(end, CpuEvent), "events of different backends cannot be compared"
        begin_ns, end_ns = self.native.reached_at_ns, end.native.reached_at_ns
        if not (self._has_timing and end._has_timing) or begin_ns is None or end_ns is None:
            raise DeviceError(
                "Elapsed time needs two events created with timing=True, recorded and reached; synchronize them first."
            )
        return (end_ns - begin_ns) / 1e6


class CpuEvents(EventManager):
    """Creates events."""

    def create(self, *, timing: bool = False) -> CpuEvent:
        return CpuEvent(timing=timing)
