"""Events: marks in a stream, with the time at which they were reached."""

from __future__ import annotations

from aethermind.errors import DeviceError
from aethermind.hal.stream import Event, EventManager, Stream
from aethermind_cpu import _native
from aethermind_cpu.streams import CpuStream

__all__ = ["CpuEvent", "CpuEvents"]


class CpuEvent(Event):
    """A mark that the stream's own thread reaches."""

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
    """Makes events."""

    def create(self, *, timing: bool = False) -> CpuEvent:
        return CpuEvent(timing=timing)
