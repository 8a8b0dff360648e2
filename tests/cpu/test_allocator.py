"""The allocator aligns and counts blocks, frees them once, and explains failures."""

from __future__ import annotations

import mmap
import threading

import pytest

from aethermind.errors import DeviceError, InvalidArgumentError, OutOfMemoryError
from aethermind.hal import DType, MemoryKind, Tensor
from aethermind.hal.device import DeviceId
from aethermind.hal.host_memory import host_memory_bytes
from aethermind_cpu import _native
from aethermind_cpu.allocator import CpuAllocator

HUGE_PAGE = 2 << 20


@pytest.fixture
def allocator() -> CpuAllocator:
    return CpuAllocator(DeviceId("cpu"))


@pytest.mark.parametrize(
    "nbytes", [0, 1, 63, 64, 65, 4096, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 3 * HUGE_PAGE + 77]
)
@pytest.mark.parametrize("kind", list(MemoryKind))
def test_every_byte_of_an_aligned_block_can_be_used(allocator: CpuAllocator, nbytes: int, kind: MemoryKind) -> None:
    buffer = allocator.alloc(nbytes, kind)
    assert buffer.nbytes == nbytes
    assert buffer.kind is kind
    assert buffer.is_host_accessible
    assert buffer.address % (HUGE_PAGE if nbytes >= HUGE_PAGE else 64) == 0
    array = Tensor.of(buffer, DType.UINT8, (nbytes,)).numpy()
    array[:] = 7
    assert int(array.sum()) == 7 * nbytes


def test_blocks_are_counted(allocator: CpuAllocator) -> None:
    first = allocator.alloc(1000)
    second = allocator.alloc(HUGE_PAGE + 1)
    stats = allocator.stats()
    assert stats.allocated_bytes == 1000 + HUGE_PAGE + 1
    assert stats.reserved_bytes == 1024 + HUGE_PAGE + mmap.PAGESIZE
    assert stats.num_allocations == 2
    second.free()
    assert allocator.stats().allocated_bytes == 1000
    assert allocator.stats().reserved_bytes == 1024
    del first
    after = allocator.stats()
    assert (after.allocated_bytes, after.reserved_bytes) == (0, 0)
    assert (after.peak_bytes, after.num_allocations) == (stats.allocated_bytes, 2)


def test_pages_touched_ahead_keep_what_is_written_meanwhile(allocator: CpuAllocator) -> None:
    sizes = [3 * HUGE_PAGE + 77, 1000, 0, 8 * HUGE_PAGE]
    buffers = allocator.alloc_ahead(sizes)
    assert [buffer.nbytes for buffer in buffers] == sizes
    arrays = [Tensor.of(buffer, DType.UINT8, (buffer.nbytes,)).numpy() for buffer in buffers]
    for value, array in enumerate(arrays):
        array[:] = value + 1
    allocator.make_ready(buffers, 2 * HUGE_PAGE)
    _native.touch_pages([(buffer.address, buffer.nbytes) for buffer in buffers])
    assert all((array == value + 1).all() for value, array in enumerate(arrays))


def test_alloc_ahead_allocates_nothing_unless_all_buffers_fit(allocator: CpuAllocator) -> None:
    half = host_memory_bytes() // 2  # other processes may free some at any moment
    assert allocator.alloc_ahead([half, half, half]) == []
    assert allocator.stats().num_allocations == 0


def test_freeing_twice_is_an_error(allocator: CpuAllocator) -> None:
    buffer = allocator.alloc(10)
    buffer.free()
    with pytest.raises(DeviceError, match="freed already"):
        buffer.free()


@pytest.mark.parametrize("nbytes", [1 << 45, 1 << 59, 1 << 62])
def test_an_allocation_beyond_free_memory_says_what_is_free_and_what_to_lower(
    allocator: CpuAllocator, nbytes: int
) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.alloc(nbytes)
    message = str(caught.value)
    assert f"Could not allocate {nbytes / (1 << 30):.2f} GiB on cpu:0" in message
    assert "are free" in message
    assert "Lower --max-model-len" in message
    assert allocator.stats().num_allocations == 0


def test_a_negative_size_is_refused(allocator: CpuAllocator) -> None:
    with pytest.raises(InvalidArgumentError, match="-1 bytes"):
        allocator.alloc(-1)


def test_an_allocator_is_thread_safe(allocator: CpuAllocator) -> None:
    def work() -> None:
        for nbytes in range(200):
            allocator.alloc(nbytes).free()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (allocator.stats().allocated_bytes, allocator.stats().num_allocations) == (0, 800)
