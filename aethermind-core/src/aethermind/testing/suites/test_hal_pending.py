"""The hardware abstraction layer while work is running: synchronisation, and release of resources.

Synchronous devices pass because their work has finished; asynchronous ones are tested while working.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from aethermind.errors import DeviceError
from aethermind.hal import Backend, DeviceId, DType, Stream, Tensor
from aethermind.hal.host_memory import resident_bytes, trim_heap
from aethermind.testing.device_arrays import LongWork, on_device, on_host, read_without_waiting

__all__: list[str] = []

MIB = 1 << 20
_TIMEOUT_S = 2.0


@pytest.fixture
def stream(backend: Backend, device: DeviceId) -> Iterator[Stream]:
    """A stream other than the default one; idle when a test ends."""
    made = backend.streams.create(device.index)
    yield made
    backend.devices.synchronize(device.index)


def test_a_stream_with_work_left_is_not_idle(backend: Backend, stream: Stream) -> None:
    work = LongWork.on(backend, stream)
    assert not _becomes_true(stream.query) or work.has_run
    stream.synchronize()
    assert work.has_run
    assert stream.query()


def test_an_event_behind_pending_work_completes_after_it(backend: Backend, device: DeviceId, stream: Stream) -> None:
    event = backend.events.create()
    event.record(backend.streams.default(device.index))
    event.synchronize()
    work = LongWork.on(backend, stream)
    event.record(stream)  # records it anew
    assert not _becomes_true(event.query) or work.has_run
    event.synchronize()
    assert work.has_run
    again = LongWork.on(backend, stream)
    event.record(stream)
    event.synchronize()
    assert again.has_run
    assert event.query()


def test_an_incomplete_event_has_no_elapsed_time(backend: Backend, stream: Stream) -> None:
    begin, end = backend.events.create(timing=True), backend.events.create(timing=True)
    begin.record(stream)
    work = LongWork.on(backend, stream)
    end.record(stream)
    try:
        elapsed = begin.elapsed_ms(end)
    except DeviceError:
        end.synchronize()
        elapsed = begin.elapsed_ms(end)
    assert work.has_run
    assert elapsed >= 0


def test_the_device_waits_for_every_stream(backend: Backend, device: DeviceId, stream: Stream) -> None:
    works = [LongWork.on(backend, stream_in_use) for stream_in_use in (stream, backend.streams.create(device.index))]
    backend.devices.synchronize(device.index)
    assert all(work.has_run for work in works)


def test_a_stream_finishes_before_it_is_destroyed(backend: Backend, device: DeviceId) -> None:
    stream = backend.streams.create(device.index)
    work = LongWork.on(backend, stream)
    stream.destroy()
    assert work.has_run


def test_another_stream_waits_for_an_event(backend: Backend, device: DeviceId, stream: Stream) -> None:
    consumer, event = backend.streams.create(device.index), backend.events.create()
    target = on_device(backend, device, np.zeros(64, np.uint8))
    work = LongWork.on(backend, stream)
    event.record(stream)
    consumer.wait_event(event)
    backend.transfer.copy_async(target, work.flag, consumer)
    consumer.synchronize()
    np.testing.assert_array_equal(on_host(backend, target), on_host(backend, work.flag))
    assert work.has_run


def test_a_stream_waits_for_an_event_as_last_recorded(backend: Backend, device: DeviceId, stream: Stream) -> None:
    """Recording an event again, on an idle stream, does not affect earlier waits."""
    consumer, idle = backend.streams.create(device.index), backend.streams.create(device.index)
    event = backend.events.create()
    target = on_device(backend, device, np.zeros(64, np.uint8))
    first = LongWork.on(backend, consumer)  # delays the consumer's wait for the event
    second = LongWork.on(backend, stream)
    work = LongWork.on(backend, stream)
    event.record(stream)
    consumer.wait_event(event)
    backend.transfer.copy_async(target, work.flag, consumer)
    event.record(idle)
    consumer.synchronize()
    assert first.has_run
    assert second.has_run
    assert np.all(on_host(backend, target) != 0), "it did not wait for what the event marked"


def test_a_fill_waits_for_the_copies_before_it(backend: Backend, device: DeviceId, stream: Stream) -> None:
    source = on_device(backend, device, np.full(16 * MIB, 0x11, np.uint8))
    target = on_device(backend, device, np.zeros(16 * MIB, np.uint8))
    for _ in range(8):
        backend.transfer.copy_async(target, source, stream)
    backend.transfer.fill(target, 0x22, stream)
    stream.synchronize()
    assert set(np.unique(on_host(backend, target)).tolist()) == {0x22}


def test_calls_without_a_stream_are_synchronous(backend: Backend, device: DeviceId, stream: Stream) -> None:
    """Also while another stream is busy, for large copies."""
    work = LongWork.on(backend, stream)
    whole = Tensor.of(backend.allocator.alloc(64 * MIB), DType.UINT8, (64 * MIB,))
    end = Tensor.of(whole.buffer, DType.UINT8, (64,), whole.nbytes - 64)
    backend.transfer.fill(whole, 0x5A)
    assert set(read_without_waiting(backend, end).tolist()) == {0x5A}
    backend.transfer.copy(whole, Tensor.of_numpy(np.full(64 * MIB, 0x33, np.uint8), device))
    assert set(read_without_waiting(backend, end).tolist()) == {0x33}
    stream.synchronize()
    assert work.has_run


def test_several_threads_allocate_memory(backend: Backend, device: DeviceId) -> None:
    before = backend.allocator.stats()

    def allocate(byte: int) -> bool:
        backend.devices.set_current(device.index)
        is_own = True
        for nbytes in (64, 1000, 4096, 100_000) * 5:
            tensor = Tensor.of(backend.allocator.alloc(nbytes), DType.UINT8, (nbytes,))
            backend.transfer.fill(tensor, byte)
            is_own &= set(on_host(backend, tensor).tolist()) == {byte}
            tensor.buffer.free()
        return is_own

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(allocate, range(1, 5)))
    after = backend.allocator.stats()
    assert after.allocated_bytes == before.allocated_bytes
    assert after.num_allocations == before.num_allocations + 80


def test_freed_memory_returns_to_the_system(backend: Backend) -> None:
    """Measured by the system or the device, not only by the allocator's statistics."""

    def allocate_and_free(count: int) -> None:
        for byte in range(count):
            tensor = Tensor.of(backend.allocator.alloc(MIB), DType.UINT8, (MIB,))
            backend.transfer.fill(tensor, byte)
            tensor.buffer.free()

    allocate_and_free(20)
    held, free = _held_bytes(), backend.free_memory()
    allocate_and_free(250)
    assert _held_bytes() - held < 80 * MIB
    now = backend.free_memory()
    assert free is None or now is None or free - now < 80 * MIB


def test_destroyed_streams_and_events_are_freed(backend: Backend, device: DeviceId) -> None:
    def use(count: int) -> None:
        for _ in range(count):
            stream, event = backend.streams.create(device.index), backend.events.create()
            event.record(stream)
            event.synchronize()
            stream.destroy()

    use(5)
    threads = _num_threads()
    use(60)
    assert _num_threads() - threads < 20


def _becomes_true(query: Callable[[], bool]) -> bool:
    """Poll until true or timeout; devices may make no progress without a synchronisation."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not (answer := query()) and time.monotonic() < deadline:
        pass
    return answer


def _held_bytes() -> int:
    trim_heap()
    return resident_bytes() or 0


def _num_threads() -> int:
    """Return the number of threads of this process; 0 where unknown."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 0
