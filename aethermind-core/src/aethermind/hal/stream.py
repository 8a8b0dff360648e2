"""Streams and events. A stream is a queue of device work that runs in order, concurrently with other streams.

Several threads may use the streams of a backend at the same time, if each thread uses other streams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from weakref import WeakKeyDictionary

__all__ = ["Event", "EventManager", "Stream", "StreamManager"]


class Stream(ABC):
    """An ordered queue of device work."""

    @property
    def native_handle(self) -> int | None:
        """The stream of the device's own API, such as a CUstream or an aclrtStream; None where there is none.

        Other libraries can use it: `torch.cuda.ExternalStream(stream.native_handle)`. It is valid until `destroy`.
        """
        return None

    @abstractmethod
    def query(self) -> bool:
        """Whether everything submitted so far has finished; never waits."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when everything submitted so far has finished; raises DeviceError if some of it failed.

        Submitting work does not raise its errors. An error is raised once. Whether later work ran, and whether the
        stream can be used afterwards, depends on the device; the engine stops.
        """

    @abstractmethod
    def wait_event(self, event: Event) -> None:
        """Make work that is submitted from now on wait for `event`, without blocking the host.

        The event counts as recorded at this call: recording it again later changes nothing.
        """

    @abstractmethod
    def destroy(self) -> None:
        """Synchronise and release the stream; using it afterwards is a DeviceError."""


class StreamManager(ABC):
    """Creates the streams of one backend. Only events order two streams, the default stream included.

    The engine submits steps, their inputs and the copies of their outputs to the default stream of its device. Further
    streams are for prefill concurrent with decode (`--prefill-stream`), for swaps of KV cache blocks if the host cannot
    access the device's memory, and for copies of blocks to a KV store, which a thread submits.
    """

    @abstractmethod
    def create(self, index: int = 0, *, priority: int = 0) -> Stream:
        """Create a stream on device `index`; a lower number is a higher priority."""

    @abstractmethod
    def default(self, index: int = 0) -> Stream:
        """Return the stream that is used where none is named; it exists as long as the backend."""

    def current(self, index: int = 0) -> Stream:
        """Return the calling thread's current stream of device `index`: the default one until `set_current`.

        Operators that are called eagerly run on it.
        """
        default = self.default(index)  # DeviceError for a device that does not exist
        return _current_streams(self).get(index, default)

    def set_current(self, stream: Stream | None, index: int = 0) -> None:
        """Make a stream of device `index` current in the calling thread; None makes the default one current again."""
        self.default(index)
        streams = _current_streams(self)
        if stream is None:
            streams.pop(index, None)
        else:
            streams[index] = stream

    @contextmanager
    def use(self, stream: Stream, index: int = 0) -> Iterator[Stream]:
        """Make a stream of device `index` current in the calling thread within the block."""
        before = _current_streams(self).get(index)
        self.set_current(stream, index)
        try:
            yield stream
        finally:
            self.set_current(before, index)


class _ThreadStreams(local):
    """The current streams of one thread, by manager and then by device index."""

    def __init__(self) -> None:
        self.by_manager: WeakKeyDictionary[StreamManager, dict[int, Stream]] = WeakKeyDictionary()


_thread = _ThreadStreams()


def _current_streams(manager: StreamManager) -> dict[int, Stream]:
    return _thread.by_manager.setdefault(manager, {})


class Event(ABC):
    """A position in a stream. An event that was never recorded counts as reached."""

    @property
    def native_handle(self) -> int | None:
        """The event of the device's own API, such as a CUevent; None where there is none, or before it is recorded."""
        return None

    @abstractmethod
    def record(self, stream: Stream) -> None:
        """Record the event after everything that was submitted to `stream` so far; recording again moves it."""

    @abstractmethod
    def query(self) -> bool:
        """Whether the event has been reached; never waits."""

    @abstractmethod
    def synchronize(self) -> None:
        """Return when the event was reached; DeviceError, where the device reports it, if work before it failed."""

    @abstractmethod
    def elapsed_ms(self, end: Event) -> float:
        """Return the milliseconds from this event to `end`; DeviceError unless both have timing and were reached."""


class EventManager(ABC):
    """Creates the events of one backend."""

    @abstractmethod
    def create(self, *, timing: bool = False) -> Event:
        """Create an event; `elapsed_ms` needs events with `timing`."""
