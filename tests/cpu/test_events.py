"""Events: marks in a stream that can be queried, awaited, moved and timed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cpu.native_kernel import native_kernel, plan, step

from aethermind.errors import DeviceError
from aethermind_cpu.backend import CpuBackend

PATIENCE_S = 60


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def block(backend: CpuBackend, stream: Any) -> threading.Event:
    """Block a stream until the returned event is set."""
    gate = threading.Event()
    kernel = native_kernel(lambda *_: gate.wait(PATIENCE_S) and None, 0, 0)
    backend.compile(plan(step(kernel, [], [])), {}).run((), stream)
    return gate


def test_an_event_that_was_never_recorded_counts_as_reached(backend: CpuBackend) -> None:
    event = backend.events.create()
    assert event.query()
    event.synchronize()
    stream = backend.streams.create()
    stream.wait_event(event)
    stream.synchronize()


def test_a_mark_is_reached_when_the_work_before_it_is_done(backend: CpuBackend) -> None:
    stream, event = backend.streams.create(), backend.events.create()
    gate = block(backend, stream)
    event.record(stream)
    assert not event.query()
    gate.set()
    event.synchronize()
    assert event.query()


def test_recording_again_moves_the_mark(backend: CpuBackend) -> None:
    stream, event = backend.streams.create(), backend.events.create()
    event.record(stream)
    event.synchronize()
    gate = block(backend, stream)
    event.record(stream)
    assert not event.query()
    gate.set()
    event.synchronize()
    assert event.query()


def test_recording_again_does_not_delay_streams_that_wait_for_the_old_mark(backend: CpuBackend) -> None:
    first, second, waiting = (backend.streams.create() for _ in range(3))
    event = backend.events.create()
    event.record(first)
    waiting.wait_event(event)
    gate = block(backend, second)
    event.record(second)
    waiting.synchronize()
    assert not event.query()
    gate.set()


def test_an_event_outlives_its_stream(backend: CpuBackend) -> None:
    stream, event = backend.streams.create(), backend.events.create()
    event.record(stream)
    stream.destroy()
    assert event.query()
    event.synchronize()


def test_elapsed_time_between_two_events(backend: CpuBackend) -> None:
    stream = backend.streams.create()
    begin, end = backend.events.create(timing=True), backend.events.create(timing=True)
    begin.record(stream)
    block(backend, stream).set()
    end.record(stream)
    stream.synchronize()
    assert begin.elapsed_ms(end) > 0
    assert begin.elapsed_ms(end) == -end.elapsed_ms(begin)


@pytest.mark.parametrize(("begin_timing", "end_timing"), [(False, True), (True, False)])
def test_only_events_with_timing_can_be_measured(backend: CpuBackend, begin_timing: bool, end_timing: bool) -> None:
    stream = backend.streams.create()
    begin, end = backend.events.create(timing=begin_timing), backend.events.create(timing=end_timing)
    begin.record(stream)
    end.record(stream)
    stream.synchronize()
    with pytest.raises(DeviceError, match="timing=True"):
        begin.elapsed_ms(end)


def test_only_reached_events_can_be_measured(backend: CpuBackend) -> None:
    stream = backend.streams.create()
    begin, end = backend.events.create(timing=True), backend.events.create(timing=True)
    begin.record(stream)
    gate = block(backend, stream)
    end.record(stream)
    with pytest.raises(DeviceError, match="reached"):
        begin.elapsed_ms(end)
    gate.set()
