"""The hardware abstraction layer: devices, memory, streams, events, transfers.

Device memory is read by DataTransfer only.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from aethermind.errors import DeviceError, InvalidArgumentError, OutOfMemoryError
from aethermind.hal import Backend, DeviceId, DType, MemoryKind, Tensor
from aethermind.hal.memory import ALIGNMENT
from aethermind.testing.device_arrays import on_device, on_host

__all__: list[str] = []

DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.INT32, DType.INT64, DType.UINT8)


def _is_refused(use: Callable[[], object], kind: type[Exception]) -> bool:
    try:
        use()
    except kind:
        return True
    return False


# Devices


def test_device_zero_has_properties(backend: Backend) -> None:
    assert backend.devices.count() >= 1
    properties = backend.devices.properties(0)
    assert properties.name
    assert properties.num_cores >= 1
    assert properties.total_memory_bytes >= 0


def test_current_device_is_the_one_that_was_opened(backend: Backend, device: DeviceId) -> None:
    assert backend.devices.current() == device.index
    backend.devices.set_current(device.index)
    assert backend.devices.current() == device.index
    backend.devices.synchronize(device.index)


def test_a_device_that_is_not_there_is_refused(backend: Backend) -> None:
    index = backend.devices.count()
    for name, call in (
        ("devices.properties", backend.devices.properties),
        ("devices.set_current", backend.devices.set_current),
        ("devices.synchronize", backend.devices.synchronize),
        ("streams.create", backend.streams.create),
        ("streams.default", backend.streams.default),
        ("streams.current", backend.streams.current),
    ):
        assert _is_refused(partial(call, index), DeviceError), f"{name}({index}) is not refused"


def test_capabilities_name_what_models_need(backend: Backend) -> None:
    assert DType.FLOAT32 in backend.capabilities.dtypes
    assert all(size >= 1 for size in (*backend.capabilities.block_sizes, backend.capabilities.default_block_size))


def test_usage_is_within_the_memory_of_the_device(backend: Backend, device: DeviceId) -> None:
    usage = backend.usage(device.index)
    if usage is not None:
        assert usage.device == str(device)
        assert 0 <= usage.memory_used_bytes <= usage.memory_total_bytes > 0
        assert usage.utilization is None or 0.0 <= usage.utilization <= 1.0


def test_threads_can_be_limited(backend: Backend) -> None:
    assert backend.set_num_threads(1) == 1
    assert backend.set_num_threads(None) >= 1


# Memory


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 4096, 1_000_003])
@pytest.mark.parametrize("kind", list(MemoryKind))
def test_buffers_are_aligned_and_of_the_size_asked_for(
    backend: Backend, device: DeviceId, nbytes: int, kind: MemoryKind
) -> None:
    buffer = backend.allocator.alloc(nbytes, kind)
    assert (buffer.nbytes, buffer.kind, buffer.device) == (nbytes, kind, device)
    assert buffer.address % ALIGNMENT == 0
    assert buffer.is_host_accessible or kind is MemoryKind.DEVICE


def test_an_empty_buffer_is_allowed(backend: Backend) -> None:
    buffer = backend.allocator.alloc(0)
    assert buffer.nbytes == 0
    buffer.free()


def test_a_negative_size_is_refused(backend: Backend) -> None:
    with pytest.raises(InvalidArgumentError):
        backend.allocator.alloc(-1)


def test_stats_count_allocations(backend: Backend) -> None:
    before = backend.allocator.stats()
    first, second = backend.allocator.alloc(1000), backend.allocator.alloc(24)
    both = backend.allocator.stats()
    assert both.allocated_bytes == before.allocated_bytes + 1024
    assert both.num_allocations == before.num_allocations + 2
    assert both.peak_bytes >= both.allocated_bytes
    assert both.reserved_bytes >= both.allocated_bytes
    first.free()
    assert backend.allocator.stats().allocated_bytes == before.allocated_bytes + 24
    del second
    gc.collect()
    after = backend.allocator.stats()
    assert after.allocated_bytes == before.allocated_bytes
    assert (after.peak_bytes, after.num_allocations) == (both.peak_bytes, both.num_allocations)


def test_a_failed_allocation_raises_and_is_not_counted(backend: Backend) -> None:
    before = backend.allocator.stats()
    with pytest.raises(OutOfMemoryError):
        backend.allocator.alloc(1 << 60)
    after = backend.allocator.stats()
    assert (after.allocated_bytes, after.num_allocations) == (before.allocated_bytes, before.num_allocations)


def test_a_buffer_takes_at_least_its_size(backend: Backend) -> None:
    for nbytes in (0, 1, 63, 4096, 1_000_003):
        assert backend.allocator.footprint(nbytes) >= nbytes


def test_discarding_a_part_of_a_buffer_leaves_the_rest(backend: Backend, device: DeviceId) -> None:
    size, begin, nbytes = 1 << 20, 4097, 700_001
    pattern = (np.arange(size) % 251).astype(np.uint8)
    whole = on_device(backend, device, pattern)
    returned = backend.allocator.discard(whole.buffer, begin, nbytes)
    assert 0 <= returned <= nbytes
    kept = on_host(backend, whole)
    np.testing.assert_array_equal(kept[:begin], pattern[:begin])
    np.testing.assert_array_equal(kept[begin + nbytes :], pattern[begin + nbytes :])
    backend.transfer.copy(whole, Tensor.of_numpy(pattern[::-1].copy(), device))
    np.testing.assert_array_equal(on_host(backend, whole), pattern[::-1])


def test_buffers_made_ahead_are_buffers(backend: Backend, device: DeviceId) -> None:
    sizes = (100, 1 << 20, 5)
    buffers = backend.allocator.alloc_ahead(sizes)
    assert [buffer.nbytes for buffer in buffers] in ([], list(sizes))
    for number, buffer in enumerate(buffers):
        assert (buffer.device, buffer.address % ALIGNMENT) == (device, 0)
        backend.transfer.fill(Tensor.of(buffer, DType.UINT8, (buffer.nbytes,)), number)
    for number, buffer in enumerate(buffers):
        assert set(on_host(backend, Tensor.of(buffer, DType.UINT8, (buffer.nbytes,))).tolist()) == {number}


def test_prefaulting_keeps_the_contents(backend: Backend, device: DeviceId) -> None:
    pattern = (np.arange(1 << 20) % 251).astype(np.uint8)
    tensors = [on_device(backend, device, pattern), on_device(backend, device, pattern[::-1].copy())]
    backend.allocator.make_ready([tensor.buffer for tensor in tensors], 300_000)
    np.testing.assert_array_equal(on_host(backend, tensors[0]), pattern)
    np.testing.assert_array_equal(on_host(backend, tensors[1]), pattern[::-1])


def test_devices_that_access_each_other_copy_exactly(backend: Backend, device: DeviceId) -> None:
    assert not backend.can_access_peer(device.index, device.index)
    source = on_device(backend, device, np.arange(1000, dtype=np.int32))
    for other in range(backend.devices.count()):
        if not backend.can_access_peer(device.index, other):
            continue
        backend.devices.set_current(other)
        try:
            copy = Tensor.of(backend.allocator.alloc(4000), DType.INT32, (1000,))
            assert copy.buffer.device.index == other
            backend.transfer.copy(copy, source)
        finally:
            backend.devices.set_current(device.index)
        np.testing.assert_array_equal(on_host(backend, copy), np.arange(1000))


# Streams and events


def test_a_new_stream_is_idle(backend: Backend) -> None:
    stream = backend.streams.create(priority=1)
    stream.synchronize()
    assert stream.query()
    stream.destroy()


def test_the_default_stream_is_always_the_same(backend: Backend) -> None:
    assert backend.streams.default() is backend.streams.default(0)
    backend.streams.default().synchronize()


def test_each_thread_has_a_current_stream(backend: Backend, device: DeviceId) -> None:
    streams, index = backend.streams, device.index
    default, first, second = streams.default(index), streams.create(index), streams.create(index)
    assert streams.current(index) is default
    with streams.use(first, index) as used:
        assert streams.current(index) is used is first
        with streams.use(second, index):
            assert streams.current(index) is second
        assert streams.current(index) is first
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(streams.current, index).result() is default
    assert streams.current(index) is default
    streams.set_current(second, index)
    assert streams.current(index) is second
    streams.set_current(None, index)
    assert streams.current(index) is default


def test_native_handles_identify_streams(backend: Backend, device: DeviceId) -> None:
    streams = [backend.streams.create(device.index) for _ in range(3)]
    handles = [stream.native_handle for stream in streams]
    assert handles == [stream.native_handle for stream in streams]
    assert len(set(handles)) == 3 or handles == [None] * 3
    event = backend.events.create()
    event.record(streams[0])
    assert (event.native_handle is None) == (handles[0] is None)


def test_a_destroyed_stream_is_refused(backend: Backend, device: DeviceId) -> None:
    stream, event = backend.streams.create(), backend.events.create()
    event.record(stream)
    stream.destroy()
    tensor = on_device(backend, device, np.zeros(3, np.float32))
    uses = {
        "query": stream.query,
        "synchronize": stream.synchronize,
        "destroy": stream.destroy,
        "wait_event": lambda: stream.wait_event(event),
        "record": lambda: event.record(stream),
        "copy_async": lambda: backend.transfer.copy_async(tensor, tensor, stream),
        "fill": lambda: backend.transfer.fill(tensor, 0, stream),
    }
    for name, use in uses.items():
        assert _is_refused(use, DeviceError), f"{name} of a stream that was destroyed is not refused"


def test_an_event_that_was_never_recorded_is_complete(backend: Backend) -> None:
    event = backend.events.create()
    assert event.query()
    event.synchronize()
    backend.streams.default().wait_event(event)


def test_an_event_completes_after_the_work_before_it(backend: Backend, device: DeviceId) -> None:
    stream, event = backend.streams.create(), backend.events.create()
    source = Tensor.of_numpy(np.arange(1 << 16, dtype=np.int32), device)
    target = on_device(backend, device, np.zeros(1 << 16, np.int32))
    backend.transfer.copy_async(target, source, stream)
    event.record(stream)
    event.synchronize()
    assert event.query()
    np.testing.assert_array_equal(on_host(backend, target), source.numpy())
    stream.destroy()


def test_a_stream_waits_for_an_event_of_another(backend: Backend, device: DeviceId) -> None:
    producer, consumer = backend.streams.create(), backend.streams.create()
    event = backend.events.create()
    source = Tensor.of_numpy(np.arange(1 << 18, dtype=np.int32), device)
    middle = on_device(backend, device, np.zeros(1 << 18, np.int32))
    target = on_device(backend, device, np.zeros(1 << 18, np.int32))
    backend.transfer.copy_async(middle, source, producer)
    event.record(producer)
    consumer.wait_event(event)
    backend.transfer.copy_async(target, middle, consumer)
    consumer.synchronize()
    np.testing.assert_array_equal(on_host(backend, target), source.numpy())


def test_elapsed_time_runs_forward(backend: Backend) -> None:
    stream = backend.streams.default()
    begin, end = backend.events.create(timing=True), backend.events.create(timing=True)
    begin.record(stream)
    end.record(stream)
    end.synchronize()
    first = begin.elapsed_ms(end)
    assert 0 <= first < 60_000
    end.record(stream)
    end.synchronize()
    assert begin.elapsed_ms(end) >= first


@pytest.mark.parametrize("misuse", ["unrecorded begin", "unrecorded end", "begin untimed", "end untimed"])
def test_elapsed_time_needs_two_recorded_events_with_timing(backend: Backend, misuse: str) -> None:
    begin = backend.events.create(timing=misuse != "begin untimed")
    end = backend.events.create(timing=misuse != "end untimed")
    for event, name in ((begin, "unrecorded begin"), (end, "unrecorded end")):
        if misuse != name:
            event.record(backend.streams.default())
            event.synchronize()
    with pytest.raises(DeviceError):
        begin.elapsed_ms(end)


# Transfers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 7), (0, 4), (2, 3, 33)], ids=str)
def test_a_copy_to_the_device_and_back_is_exact(
    backend: Backend, device: DeviceId, dtype: DType, shape: tuple[int, ...]
) -> None:
    array = np.arange(max(1, int(np.prod(shape))))[: int(np.prod(shape))].reshape(shape).astype(dtype.numpy)
    first = on_device(backend, device, array)
    second = Tensor.of(backend.allocator.alloc(array.nbytes), dtype, shape)
    backend.transfer.copy(second, first)
    np.testing.assert_array_equal(on_host(backend, second), array)


def test_views_at_an_offset_are_copied_alone(backend: Backend, device: DeviceId) -> None:
    whole = on_device(backend, device, np.arange(10, dtype=np.int32))
    part = Tensor.of(whole.buffer, DType.INT32, (3,), 8)
    np.testing.assert_array_equal(on_host(backend, part), [2, 3, 4])
    backend.transfer.copy(part, Tensor.of_numpy(np.array([-1, -2, -3], np.int32), device))
    np.testing.assert_array_equal(on_host(backend, whole), [0, 1, -1, -2, -3, 5, 6, 7, 8, 9])


def test_fill_sets_every_byte_and_no_other(backend: Backend, device: DeviceId) -> None:
    whole = on_device(backend, device, np.zeros(8, np.uint8))
    backend.transfer.fill(Tensor.of(whole.buffer, DType.UINT8, (3,), 2), 0xAB)
    stream = backend.streams.create()
    backend.transfer.fill(Tensor.of(whole.buffer, DType.UINT8, (1,), 7), 0xFF, stream)
    stream.synchronize()
    np.testing.assert_array_equal(on_host(backend, whole), [0, 0, 0xAB, 0xAB, 0xAB, 0, 0, 0xFF])


def test_asynchronous_work_keeps_its_order(backend: Backend, device: DeviceId) -> None:
    stream = backend.streams.create()
    target = on_device(backend, device, np.zeros(1 << 16, np.uint8))
    for byte in range(20):
        backend.transfer.fill(target, byte, stream)
    source = Tensor.of_numpy(np.full(1 << 16, 200, np.uint8), device)
    backend.transfer.copy_async(target, source, stream)
    stream.synchronize()
    assert set(on_host(backend, target).tolist()) == {200}


def test_tensors_that_do_not_match_are_refused(backend: Backend, device: DeviceId) -> None:
    target = on_device(backend, device, np.zeros((2, 3), np.float32))
    others = (np.zeros((3, 2), np.float32), np.zeros((2, 3), np.int32), np.zeros((3, 2), np.float32).T)
    for other in others:
        with pytest.raises(InvalidArgumentError):
            backend.transfer.copy(target, Tensor.of_numpy(other, device))
        with pytest.raises(InvalidArgumentError):
            backend.transfer.copy_async(target, Tensor.of_numpy(other, device), backend.streams.default())


@pytest.mark.parametrize("byte", [-1, 256])
def test_a_fill_that_is_no_byte_is_refused(backend: Backend, device: DeviceId, byte: int) -> None:
    target = on_device(backend, device, np.zeros(3, np.uint8))
    with pytest.raises(InvalidArgumentError):
        backend.transfer.fill(target, byte)


def test_a_fill_with_gaps_is_refused(backend: Backend, device: DeviceId) -> None:
    target = on_device(backend, device, np.zeros(4, np.uint8))
    with pytest.raises(InvalidArgumentError):
        backend.transfer.fill(Tensor(target.buffer, DType.UINT8, (2,), (2,)), 0)


def test_transfer_stats_never_decrease(backend: Backend, device: DeviceId) -> None:
    before = backend.transfer.stats()
    for _ in range(10):
        on_host(backend, on_device(backend, device, np.zeros(100, np.uint8)))
        after = backend.transfer.stats()
        assert after.host_to_device_bytes >= before.host_to_device_bytes >= 0
        assert after.device_to_host_bytes >= before.device_to_host_bytes >= 0
        before = after


# Profiler ranges


def test_profiler_ranges_nest_and_let_errors_through(backend: Backend, device: DeviceId) -> None:
    stream = backend.streams.create()
    try:
        open_range = backend.profiler_ranges()
    except DeviceError as error:  # no profiler is installed: the sentence says what to install
        assert str(error)
        return
    target = on_device(backend, device, np.zeros(100, np.uint8))
    with open_range("outer", stream), open_range("inner", stream):
        backend.transfer.fill(target, 7, stream)
    stream.synchronize()
    assert set(on_host(backend, target).tolist()) == {7}
    with pytest.raises(LookupError), open_range("fails", stream):
        raise LookupError
    with open_range("after a failure", stream):
        backend.transfer.fill(target, 8, stream)
    stream.synchronize()
    assert set(on_host(backend, target).tolist()) == {8}
