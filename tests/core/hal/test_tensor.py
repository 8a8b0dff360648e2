"""Tensors are views: bounds, strides, lifetimes, and DLPack with NumPy and torch."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.hal import Buffer, DeviceId, DType, Tensor
from aethermind.hal.builtin_backends import NumpyBackend

NUMPY = DeviceId("numpy")


@pytest.fixture
def buffer() -> Buffer:
    return NumpyBackend().allocator.alloc(96)


def test_a_view_says_where_it_lies(buffer: Buffer) -> None:
    tensor = Tensor.of(buffer, DType.FLOAT32, (2, 3), 8)
    assert (tensor.shape, tensor.strides, tensor.nbytes) == ((2, 3), (3, 1), 24)
    assert tensor.address == buffer.address + 8
    assert tensor.is_contiguous


@pytest.mark.parametrize(
    ("shape", "offset_bytes"), [((25,), 0), ((24,), 4), ((1,), 96), ((1,), -4), ((-1,), 0), ((2, -3), 0)]
)
def test_a_view_beyond_its_buffer_is_refused(buffer: Buffer, shape: tuple[int, ...], offset_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"at byte {offset_bytes} does not fit Buffer\(numpy:0, 96 bytes"):
        Tensor.of(buffer, DType.FLOAT32, shape, offset_bytes)


@pytest.mark.parametrize("shape", [(24,), (0,), (3, 0, 2), ()])
def test_views_up_to_the_end_are_allowed(buffer: Buffer, shape: tuple[int, ...]) -> None:
    array = Tensor.of(buffer, DType.FLOAT32, shape).numpy()
    assert (array.shape, array.dtype) == (shape, np.float32)


@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_numpy_is_the_same_memory(dtype: DType) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    tensor = Tensor.of_numpy(array, NUMPY)
    view = tensor.numpy()
    np.testing.assert_array_equal(view, array)
    view[1, 2] = 0
    assert array[1, 2] == 0
    assert np.shares_memory(view, array)


@pytest.mark.parametrize(
    "index",
    [np.s_[:, ::2], np.s_[::3], np.s_[2:5, 1:3], np.s_[:0], np.s_[1], np.s_[:, 2, None]],
    ids=str,
)
def test_strided_arrays_keep_their_elements(index: object) -> None:
    array = np.arange(48, dtype=np.int32).reshape(8, 6)[index]
    tensor = Tensor.of_numpy(array, NUMPY)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert tensor.is_contiguous == array.flags.c_contiguous
    assert tensor.buffer.nbytes <= 48 * 4


def test_arrays_that_run_backwards_or_between_elements_are_refused() -> None:
    backwards = np.arange(4, dtype=np.int32)[::-1]
    between = np.zeros(4, [("a", np.int32), ("b", np.int16)])["a"]
    for array in (backwards, between):
        with pytest.raises(InvalidArgumentError, match="copy it first"):
            Tensor.of_numpy(array, NUMPY)


def test_a_view_keeps_the_memory_alive(buffer: Buffer) -> None:
    owner = weakref.ref(buffer)
    view = Tensor.of(buffer, DType.INT32, (24,)).numpy()
    part = view[3:5]
    del buffer, view
    gc.collect()
    assert owner() is not None
    part[:] = 7
    del part


def test_an_array_keeps_its_tensor_alive_and_no_longer() -> None:
    buffer = NumpyBackend().allocator.alloc(64)
    alive = weakref.ref(buffer)
    view = Tensor.of(buffer, DType.INT32, (4,)).numpy()
    del buffer
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def test_memory_of_a_device_cannot_be_looked_into() -> None:
    tensor = Tensor.of(Buffer(DeviceId("cuda"), 4096, 64, is_host_accessible=False), DType.FLOAT32, (4,))
    with pytest.raises(DeviceError, match=r"Buffer\(cuda:0, 64 bytes, device\) is not host memory; copy it"):
        tensor.numpy()


def test_dlpack_to_numpy_and_torch_shares_memory() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor.of_numpy(array, NUMPY)
    from_numpy, from_torch = np.from_dlpack(tensor), torch.from_dlpack(tensor)
    np.testing.assert_array_equal(from_numpy, array)
    assert from_torch.tolist() == array.tolist()
    from_torch[0, 0] = 42
    assert array[0, 0] == from_numpy[0, 0] == 42


def test_dlpack_from_torch() -> None:
    source = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    tensor = Tensor.of_numpy(np.from_dlpack(source), NUMPY)
    assert (tensor.dtype, tensor.shape) == (DType.FLOAT32, (2, 3))
    source[1, 1] = -1
    assert tensor.numpy()[1, 1] == -1
