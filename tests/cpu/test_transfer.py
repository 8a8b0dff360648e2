"""Copies move bytes between tensors of one dtype and shape, and are counted by the kinds of their buffers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from aethermind.errors import InvalidArgumentError
from aethermind.hal import DType, MemoryKind, Tensor
from aethermind_cpu.backend import CpuBackend


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def tensor(backend: CpuBackend, kind: MemoryKind, value: float, shape: tuple[int, ...] = (3, 5)) -> Tensor:
    result = Tensor.of(backend.allocator.alloc(4 * int(np.prod(shape)), kind), DType.FLOAT32, shape)
    result.numpy()[:] = value
    return result


@pytest.mark.parametrize("is_async", [False, True])
def test_a_copy_moves_every_byte_and_counts_its_direction(backend: CpuBackend, is_async: bool) -> None:
    def copy(destination: Tensor, source: Tensor) -> None:
        if is_async:
            backend.transfer.copy_async(destination, source, backend.streams.default())
            backend.streams.default().synchronize()
        else:
            backend.transfer.copy(destination, source)

    host, device, other = (
        tensor(backend, kind, i) for i, kind in enumerate([MemoryKind.PINNED] + [MemoryKind.DEVICE] * 2)
    )
    host.numpy()[:] = np.arange(15).reshape(3, 5)
    copy(device, host)
    copy(other, device)
    back = tensor(backend, MemoryKind.HOST, 0)
    copy(back, other)
    np.testing.assert_array_equal(back.numpy(), host.numpy())
    stats = backend.transfer.stats()
    assert (stats.host_to_device_bytes, stats.device_to_host_bytes) == (60, 60)


def test_a_fill_sets_every_byte(backend: CpuBackend) -> None:
    first, second = tensor(backend, MemoryKind.DEVICE, 1), tensor(backend, MemoryKind.DEVICE, 1)
    backend.transfer.fill(first, 0)
    backend.transfer.fill(second, 255, backend.streams.default())
    backend.streams.default().synchronize()
    assert not first.numpy().any()
    assert (second.numpy().view(np.uint8) == 255).all()


def test_empty_tensors_can_be_copied_and_filled(backend: CpuBackend) -> None:
    first, second = tensor(backend, MemoryKind.DEVICE, 1, (0, 5)), tensor(backend, MemoryKind.DEVICE, 1, (0, 5))
    backend.transfer.copy(first, second)
    backend.transfer.copy_async(first, second, backend.streams.default())
    backend.transfer.fill(first, 1, backend.streams.default())
    backend.streams.default().synchronize()


def test_tensors_that_do_not_match_are_refused(backend: CpuBackend) -> None:
    source = tensor(backend, MemoryKind.DEVICE, 1)
    with pytest.raises(InvalidArgumentError, match=r"shape \(3, 5\)"):
        backend.transfer.copy(tensor(backend, MemoryKind.DEVICE, 1, (5, 3)), source)
    transposed = Tensor(source.buffer, source.dtype, (3, 5), (1, 3))
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        backend.transfer.copy_async(transposed, source, backend.streams.default())
    with pytest.raises(InvalidArgumentError, match="256"):
        backend.transfer.fill(source, 256)
