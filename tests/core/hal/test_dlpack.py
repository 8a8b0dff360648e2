"""DLPack with torch and NumPy as the other side: memory is shared, and released once both have dropped it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from aethermind.errors import InvalidArgumentError
from aethermind.hal import DeviceId, DType, Tensor
from aethermind.hal.dlpack import HOST, ExportedTensor, tensor_from_dlpack

DEVICE = DeviceId("numpy")
DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


def here(device_type: int, index: int) -> DeviceId | None:
    return DEVICE if (device_type, index) == (HOST, 0) else None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (2, 3, 4)], ids=str)
def test_a_tensor_of_torch_is_imported_and_exported_with_its_memory(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = torch.arange(max(int(np.prod(shape)), 1))[: int(np.prod(shape))].reshape(shape).to(dtype)
    tensor = tensor_from_dlpack(source, here)
    assert (str(tensor.dtype), tensor.shape) == (str(dtype).removeprefix("torch."), shape)
    assert tensor.nbytes == 0 or tensor.address == source.data_ptr()
    back = torch.from_dlpack(ExportedTensor(tensor, HOST))
    assert back.dtype == dtype
    assert torch.equal(back, source)
    assert source.numel() == 0 or back.data_ptr() == source.data_ptr()


def test_strides_and_offsets_are_kept() -> None:
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tensor = tensor_from_dlpack(whole[1:, 2:].T, here)
    assert (tensor.shape, tensor.strides) == ((4, 3), (1, 6))
    np.testing.assert_array_equal(tensor.numpy(), whole[1:, 2:].T.numpy())
    np.testing.assert_array_equal(np.from_dlpack(ExportedTensor(tensor, HOST)), whole[1:, 2:].T.numpy())


def test_memory_lives_until_both_sides_have_dropped_it() -> None:
    array = np.arange(8, dtype=np.float32)
    alive = weakref.ref(array)
    exported = torch.from_dlpack(ExportedTensor(Tensor.of_numpy(array, DEVICE), HOST))
    del array
    gc.collect()
    assert alive() is not None
    assert exported.tolist() == list(range(8))
    del exported
    gc.collect()
    assert alive() is None
    other = np.arange(8, dtype=np.float32)
    alive = weakref.ref(other)
    capsule = ExportedTensor(Tensor.of_numpy(other, DEVICE), HOST).__dlpack__()
    del other, capsule  # which no library consumed
    gc.collect()
    assert alive() is None


def test_what_cannot_be_exchanged_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="No device of an installed backend has DLPack's type 1 and index 0"):
        tensor_from_dlpack(torch.zeros(2), lambda *_: None)
    with pytest.raises(InvalidArgumentError, match="no type like that of Tensor"):
        tensor_from_dlpack(torch.zeros(2, dtype=torch.complex64), here)
    codes = Tensor.of_numpy(np.zeros(2, DType.FLOAT8_E4M3FN.numpy), DEVICE)
    with pytest.raises(InvalidArgumentError, match="DLPack has no type for tensors of float8_e4m3fn"):
        ExportedTensor(codes, HOST).__dlpack__()
