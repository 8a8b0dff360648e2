"""Streams and events of the hardware abstraction layer (HAL), implemented by those of torch_npu."""

from __future__ import annotations

import torch

from aethermind.errors import DeviceError
from aethermind.hal.stream import Event, EventManager, Stream, StreamManager
from aethermind_cann.devices import CannDevices

__all__ = ["CannEvent", "CannEvents", "CannStream", "CannStreams"]


class CannStream(Stream):
    """A stream of one NPU; torch's RuntimeErrors become DeviceErrors."""

    def __init__(self, handle: torch.npu.Stream, index: int) -> None:
        self.index = index
        self._handle = handle
        self._is_destroyed = False

    @property
    def handle(self) -> torch.npu.Stream:
        """The torch stream. Raises DeviceError if it was destroyed."""
        if self._is_destroyed:
            raise DeviceError("The stream was destroyed; create another one.")
        return self._handle

    def query(self) -> bool:
        return bool(self.handle.query())

    def synchronize(self) -> None:
        handle = self.handle
        try:
            handle.synchronize()
        except RuntimeError as error:
            raise DeviceError(f"Work on NPU {self.index} failed: {error}") from error

    def wait_event(self, event: Event) -> None:
        assert isinstance(event, CannEvent), "the event is of another backend"
        handle = self.handle
        if event.is_recorded:
            handle.wait_event(event.handle)

    def destroy(self) -> None:
        self.synchronize()
        self._is_destroyed = True


class CannStreams(StreamManager):
    """Streams of all NPUs."""

    def __init__(self, devices: CannDevices) -> None:
        self._devices = devices
        self._defaults = [CannStream(torch.npu.default_stream(index), index) for index in range(devices.count())]

    def create(self, index: int = 0, *, priority: int = 0) -> CannStream:
        self._devices.check(index)
        return CannStream(torch.npu.Stream(index, priority=-1 if priority < 0 else 0), index)

    def default(self, index: int = 0) -> CannStream:
        self._devices.check(index)
        return self._defaults[index]


class CannEvent(Event):
    """An event. Queries and waits are about its last recording."""

    def __init__(self, *, timing: bool) -> None:
        self.handle = torch.npu.Event(enable_timing=timing)
        self.is_recorded = False
        self._has_timing = timing

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, CannStream), "the stream is of another backend"
        self.handle.record(stream.handle)
        self.is_recorded = True

    def query(self) -> bool:
        return not self.is_recorded or bool(self.handle.query())

    def synchronize(self) -> None:
        if self.is_recorded:
            self.handle.synchronize()

    def elapsed_ms(self, end: Event) -> float:
        assert isinstance(end, CannEvent), "events of different backends cannot be compared"
        events = (self, end)
        if not all(event._has_timing and event.is_recorded and event.query() for event in events):
            raise DeviceError("Elapsed time needs two events with timing=True that were recorded and reached.")
        return float(self.handle.elapsed_time(end.handle))


class CannEvents(EventManager):
    """Creates events; an event belongs to the device that records it first."""

    def create(self, *, timing: bool = False) -> CannEvent:
        return CannEvent(timing=timing)
