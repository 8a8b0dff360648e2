"""Late streams on the simulator's timeline, deterministic under a seed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from aethermind.errors import DeviceError
from aethermind_sim.faults import Faults
from aethermind_sim.streams import SimEvent, SimStream
from aethermind_sim.timeline import Timeline
from torch_npu.memory import NUM_DEVICES

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "begin_capture",
    "current_device",
    "current_stream",
    "default_stream",
    "end_capture",
    "is_capturing",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
]

timeline = Timeline(int(os.environ.get("AETHERMIND_SIM_SEED") or 0), Faults())
_of_thread = threading.local()


class Stream:
    """A stream: a queue of one device."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("npu", _index(device))
        self.priority = priority
        self.queue = SimStream(timeline, self.device.index)
        self.captured_by: Any = None

    def submit(self, work: Callable[[], None]) -> None:
        if self.captured_by is None:
            self.queue.submit(work)
        else:
            self.captured_by.record(work)

    def give_back(self) -> Callable[[Callable[[], None]], None]:
        """The function that frees memory allocated now."""
        return self.queue.submit if self.captured_by is None else self.captured_by.keep

    def query(self) -> bool:
        _check_capture(self)
        return self.queue.query()

    def synchronize(self) -> None:
        _check_capture(self)
        _as_torch_says(self.queue.synchronize)

    def wait_event(self, event: Event) -> None:
        _check_capture(self)
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event: the last recorded mark."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._event = SimEvent(timeline, timing=enable_timing)

    def record(self, stream: Stream | None = None) -> None:
        _check_capture(stream or current_stream())
        self._event.record((stream or current_stream()).queue)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).queue.wait_event(self._event)

    def query(self) -> bool:
        return self._event.query()

    def synchronize(self) -> None:
        _check_capture()
        _as_torch_says(self._event.synchronize)

    def elapsed_time(self, end_event: Event) -> float:
        return float(_as_torch_says(lambda: self._event.elapsed_ms(end_event._event)))


class StreamContext:
    """Makes a stream and its device current within a block."""

    def __init__(self, stream_ctx: Stream | None) -> None:
        self._stream = stream_ctx

    def __enter__(self) -> None:
        if self._stream is not None:
            self._before = current_device(), current_stream(self._stream.device)
            set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            device, before = self._before
            set_stream(before)
            set_device(device)


_defaults: dict[int, Stream] = {}


def stream(stream: Stream | None) -> StreamContext:
    return StreamContext(stream)


def set_stream(stream: Stream) -> None:
    _currents()[stream.device.index] = stream
    set_device(stream.device.index)


def current_stream(device: Any = None) -> Stream:
    index = _index(device)
    return _currents().get(index) or default_stream(index)


def default_stream(device: Any = None) -> Stream:
    index = _index(device)
    if index not in _defaults:
        _defaults[index] = Stream(index)
    return _defaults[index]


def current_device() -> int:
    return getattr(_of_thread, "device", 0)


def set_device(device: Any) -> None:
    _of_thread.device = _index(device)


def synchronize(device: Any = None) -> None:
    _check_capture()
    _as_torch_says(lambda: timeline.finish_device(_index(device)))


_capturing: list[tuple[int, bool]] = []


def begin_capture(thread: int, *, anywhere: bool) -> None:
    """Forbid waiting in this thread, or in all threads."""
    _capturing.append((thread, anywhere))


def end_capture() -> None:
    _capturing.clear()


def is_capturing() -> bool:
    return bool(_capturing)


def _check_capture(stream: Stream | None = None) -> None:
    """Raise for a wait or query during a capture in this thread or of this stream."""
    if any(anywhere or thread == threading.get_ident() for thread, anywhere in _capturing):
        raise RuntimeError("Not allow to synchronize captured-stream (error code is 107027)")
    if stream is not None and stream.captured_by is not None:
        raise RuntimeError("stream is captured (error code is 107027)")


def _currents() -> dict[int, Stream]:
    if not hasattr(_of_thread, "streams"):
        _of_thread.streams = {}
    return _of_thread.streams


def _index(device: Any) -> int:
    if device is None:
        return current_device()
    index = device if isinstance(device, int) else torch.device(device).index
    index = current_device() if index is None else index
    if not 0 <= index < NUM_DEVICES:
        raise AssertionError("Invalid device id")
    return index


def _as_torch_says(wait: Callable[[], Any]) -> Any:
    """Convert device errors to torch's RuntimeErrors."""
    try:
        return wait()
    except DeviceError as error:
        raise RuntimeError(str(error)) from error
