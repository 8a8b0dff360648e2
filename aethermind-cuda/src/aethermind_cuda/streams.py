"""CUDA streams and events."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from aethermind.errors import DeviceError
from aethermind.hal.stream import Event, EventManager, Stream, StreamManager
from aethermind_cuda.devices import Context, CudaDevices
from aethermind_cuda.driver import CudaError, Driver

__all__ = ["CudaEvent", "CudaEvents", "CudaStream", "CudaStreams"]


class CudaStream(Stream):
    """A non-blocking stream of one device."""

    def __init__(self, driver: Driver, devices: CudaDevices, index: int, priority: int) -> None:
        self._handle: int | None = None
        self.device = index
        self.context = devices.context(index)
        self._driver = driver
        self.context.enter()
        lowest, highest = driver.stream_priority_range()
        self._handle = self.context.register("stream", driver.stream_create(min(max(priority, highest), lowest)))

    def __del__(self) -> None:
        """Destroy the stream; the driver completes pending work."""
        with suppress(CudaError):  # the device may be lost
            self._release()

    @property
    def handle(self) -> int:
        """The driver's handle, with its context made current; DeviceError when the stream was destroyed."""
        if self._handle is None:
            raise DeviceError("The stream was destroyed; create another one.")
        self.context.enter()
        return self._handle

    @property
    def native_handle(self) -> int:
        """The CUstream."""
        return self.handle

    def query(self) -> bool:
        return self._driver.stream_query(self.handle)

    def synchronize(self) -> None:
        self._driver.stream_synchronize(self.handle)

    def wait_event(self, event: Event) -> None:
        handle = self.handle
        assert isinstance(event, CudaEvent), "the event is of another backend"
        if event.handle is not None:
            self._driver.stream_wait_event(handle, event.handle)

    def destroy(self) -> None:
        handle = self.handle
        try:
            self._driver.stream_synchronize(handle)
        finally:
            self._release()

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self.context.release("stream", handle, self._driver.stream_destroy)


class CudaStreams(StreamManager):
    """Creates streams on all devices. Default streams are ordinary ones without implicit synchronisation."""

    def __init__(self, driver: Driver, devices: CudaDevices) -> None:
        self._driver = driver
        self._devices = devices
        self._defaults: dict[int, CudaStream] = {}
        self._lock = Lock()

    def create(self, index: int = 0, *, priority: int = 0) -> CudaStream:
        self._devices.check(index)
        return CudaStream(self._driver, self._devices, index, priority)

    def default(self, index: int = 0) -> CudaStream:
        with self._lock:
            if index not in self._defaults:
                self._defaults[index] = self.create(index)
            return self._defaults[index]

    def close(self) -> None:
        """Destroy the default streams."""
        for stream in self._defaults.values():
            stream.destroy()
        self._defaults.clear()


class CudaEvent(Event):
    """An event, created at its first recording in the context of the recording stream."""

    def __init__(self, driver: Driver, *, timing: bool) -> None:
        self.handle: int | None = None
        self._context: Context | None = None
        self._driver = driver
        self._has_timing = timing

    @property
    def native_handle(self) -> int | None:
        """The CUevent; None before the first recording."""
        return self.handle

    def __del__(self) -> None:
        if self._context is not None and self.handle is not None:
            with suppress(CudaError):  # the device may be lost
                self._context.release("event", self.handle, self._driver.event_destroy)

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, CudaStream), "the stream is of another backend"
        stream_handle = stream.handle
        if self.handle is None:
            self._context = stream.context
            self.handle = stream.context.register("event", self._driver.event_create(self._has_timing))
        self._driver.event_record(self.handle, stream_handle)

    def query(self) -> bool:
        handle = self._handle_in_context()
        return handle is None or self._driver.event_query(handle)

    def synchronize(self) -> None:
        handle = self._handle_in_context()
        if handle is not None:
            self._driver.event_synchronize(handle)

    def elapsed_ms(self, end: Event) -> float:
        assert isinstance(end, CudaEvent), "events of different backends cannot be compared"
        if not (self._has_timing and end._has_timing) or self.handle is None or end.handle is None:
            raise DeviceError("Elapsed time needs two events with timing=True that were recorded and reached.")
        self._handle_in_context()
        return self._driver.event_elapsed(self.handle, end.handle)

    def _handle_in_context(self) -> int | None:
        """The handle, with its context made current in any calling thread; None before the first recording."""
        if self._context is not None:
            self._context.enter()
        return self.handle


class CudaEvents(EventManager):
    """Creates events; an event belongs to the device whose stream records it first."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def create(self, *, timing: bool = False) -> CudaEvent:
        return CudaEvent(self._driver, timing=timing)
