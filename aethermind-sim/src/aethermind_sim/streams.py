"""Streams and events of the simulated devices, on the timeline's queues."""

from __future__ import annotations

from aethermind.errors import DeviceError
from aethermind.hal.stream import Event, EventManager, Stream, StreamManager
from aethermind_sim.devices import SimDevices
from aethermind_sim.timeline import Marker, Queue, Timeline, Work

__all__ = ["SimEvent", "SimEvents", "SimStream", "SimStreams"]


class SimStream(Stream):
    """A stream: a queue of one device."""

    def __init__(self, timeline: Timeline, device: int) -> None:
        self.device = device
        self._timeline = timeline
        self._queue = Queue(device)
        self._is_destroyed = False

    def submit(self, work: Work) -> None:
        """Queue work, which must not keep buffers alive: the caller has to, and tests detect it if it does not."""
        self._check()
        self._timeline.submit(self._queue, work)

    def marker(self) -> Marker:
        """Submit a marker after everything so far, and return it."""
        self._check()
        marker = Marker(self._queue)
        self._timeline.submit(self._queue, marker)
        return marker

    def query(self) -> bool:
        self._check()
        self._timeline.poll()
        return not self._queue.items

    def synchronize(self) -> None:
        self._check()
        self._timeline.finish(self._queue)

    def wait_event(self, event: Event) -> None:
        self._check()
        assert isinstance(event, SimEvent), "the event is of another backend"
        if event.latest is not None:
            self._timeline.submit(self._queue, event.latest)

    def destroy(self) -> None:
        self.synchronize()
        self._is_destroyed = True

    def _check(self) -> None:
        if self._is_destroyed:
            raise DeviceError("The stream was destroyed; create another one.")


class SimStreams(StreamManager):
    """Creates streams on both devices. Default streams are ordinary ones without implicit synchronisation."""

    def __init__(self, timeline: Timeline, devices: SimDevices) -> None:
        self._timeline = timeline
        self._devices = devices
        self._defaults = [SimStream(timeline, index) for index in range(devices.count())]

    def create(self, index: int = 0, *, priority: int = 0) -> SimStream:
        self._devices.check(index)
        return SimStream(self._timeline, index)

    def default(self, index: int = 0) -> SimStream:
        self._devices.check(index)
        return self._defaults[index]


class SimEvent(Event):
    """An event: its last recorded marker. A wait is for the marker that is the last one when the wait is called."""

    def __init__(self, timeline: Timeline, *, timing: bool) -> None:
        self.latest: Marker | None = None
        self._timeline = timeline
        self._has_timing = timing

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, SimStream), "the stream is of another backend"
        self.latest = stream.marker()

    def query(self) -> bool:
        self._timeline.poll()
        return self.latest is None or self.latest.is_reached

    def synchronize(self) -> None:
        if self.latest is not None:
            self._timeline.run_until(self.latest)

    def elapsed_ms(self, end: Event) -> float:
        assert isinstance(end, SimEvent), "events of different backends cannot be compared"
        begun, ended = (event.latest.reached_at if event.latest else None for event in (self, end))
        if not (self._has_timing and end._has_timing) or begun is None or ended is None:
            raise DeviceError("Elapsed time needs two events with timing=True that were recorded and reached.")
        return (ended - begun) * 1e3


class SimEvents(EventManager):
    """Creates events, which either device may record and wait for."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def create(self, *, timing: bool = False) -> SimEvent:
        return SimEvent(self._timeline, timing=timing)
