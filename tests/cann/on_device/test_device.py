"""Device memory is recognised by torch."""

from __future__ import annotations

import pytest
import torch
import torch_npu  # noqa: F401

from aethermind import Runtime


def test_device_memory_is_not_host_memory() -> None:
    tensor = torch.empty(2, device="npu")
    with pytest.raises(TypeError, match="npu:0"):
        tensor.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        tensor + torch.ones(2)


def test_buffers_are_tensors_of_the_device(runtime: Runtime) -> None:
    backend = runtime.open_device("cann").backend
    buffer = backend.allocator.alloc(100)
    storage, begin = backend.allocator.storage_at(buffer.address)
    assert (storage.device, storage.dtype, begin) == (torch.device("npu", 0), torch.uint8, 0)
