"""Streams with a thread of their own: submitting returns before the work is done."""

from __future__ import annotations

import weakref

from aethermind.errors import DeviceError
from aethermind.hal.stream import Event, Stream, StreamManager
from aethermind_cpu import _native

__all__ = ["CpuStream", "CpuStreams"]


class CpuStream(Stream):
    """An ordered queue. Safe to use from several threads."""

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
        from aethermind_cpu.events import CpuEvent

        assert isinstance(event, CpuEvent), "a stream waits for events of its own backend"
        event.native.hold_up(self.native)

    def destroy(self) -> None:
        try:
            self.synchronize()
        finally:
            self._native = None


class CpuStreams(StreamManager):
    """Makes streams that share one team of workers: they take turns plan by plan, copies run beside it.

    Priorities are accepted and make no difference: threads of one process share its priority.
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
        """Return when every stream that still exists has finished."""
        for stream in self._alive():
            stream.synchronize()

    def destroy_all(self) -> None:
        """Finish and give back every stream."""
        for stream in self._alive():
            stream.destroy()

    def _alive(self) -> list[CpuStream]:
        return [stream for stream in self._streams if stream._native is not None]
