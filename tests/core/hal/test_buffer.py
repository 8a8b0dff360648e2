"""Buffers are freed once, however they end."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from aethermind.errors import DeviceError
from aethermind.hal import Buffer, DeviceId, DType, Tensor
from aethermind.hal.builtin_backends import NumpyBackend

CPU = DeviceId("cpu")


def test_free_releases_once_and_a_second_time_is_an_error() -> None:
    released: list[int] = []
    buffer = Buffer(CPU, 64, 8, is_host_accessible=True, release=lambda: released.append(1))
    buffer.free()
    assert (released, buffer.is_freed, buffer.owner) == ([1], True, None)
    with pytest.raises(DeviceError, match=r"Buffer\(cpu:0, 8 bytes, device, freed\) was freed already"):
        buffer.free()
    del buffer
    gc.collect()
    assert released == [1]


def test_the_last_reference_releases() -> None:
    released: list[int] = []
    buffer = Buffer(CPU, 64, 8, is_host_accessible=True, release=lambda: released.append(1))
    view = Tensor.of(buffer, DType.UINT8, (8,))
    del buffer
    gc.collect()
    assert released == []
    del view
    gc.collect()
    assert released == [1]


def test_borrowed_memory_is_not_freed() -> None:
    array = np.zeros(3, np.float32)
    tensor = Tensor.of_numpy(array, CPU)
    with pytest.raises(DeviceError, match="borrowed"):
        tensor.buffer.free()
    assert not tensor.buffer.is_freed


def test_free_gives_memory_back_while_the_buffer_is_still_referenced() -> None:
    buffer = NumpyBackend().allocator.alloc(100)
    memory = weakref.ref(buffer.owner)
    buffer.free()
    assert memory() is None


def test_a_freed_buffer_cannot_be_looked_into() -> None:
    buffer = NumpyBackend().allocator.alloc(16)
    tensor = Tensor.of(buffer, DType.FLOAT32, (4,))
    buffer.free()
    with pytest.raises(DeviceError, match="freed"):
        tensor.numpy()
    with pytest.raises(DeviceError, match="freed"):
        _ = tensor.address
