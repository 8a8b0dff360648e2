"""Collectives between two processes with an NPU each."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch_npu  # noqa: F401
from tests.ports import free_port

RANK = """
import sys
import numpy as np
from aethermind import Runtime
from aethermind.hal import DType, Tensor

rank = int(sys.argv[1])
opened = Runtime.boot().open_device(f"cann:{rank}")
backend, stream = opened.backend, opened.backend.streams.create(rank)

def on_device(array):
    tensor = Tensor.of(backend.allocator.alloc(array.nbytes), DType.of_numpy(array.dtype), array.shape)
    backend.transfer.copy_async(tensor, Tensor.of_numpy(array, opened.device), stream)
    return tensor

def on_host(tensor):
    stream.synchronize()
    array = np.empty(tensor.shape, tensor.dtype.numpy)
    backend.transfer.copy(Tensor.of_numpy(array, opened.device), tensor)
    return array.tolist()

ranks = backend.communicator(rank, 2)
assert (ranks.rank, ranks.size) == (rank, 2)
summed, received = on_device(np.array([1.0, 2.0 + rank], np.float32)), on_device(np.array([rank, 7], np.int64))
joined = on_device(np.zeros((4, 1), np.float32))
part = on_device(np.full((2, 1), rank + 1, np.float32))
ranks.all_reduce(summed, stream)
ranks.broadcast(received, 1, stream)
ranks.all_gather(joined, part, stream)
assert on_host(summed) == [2.0, 5.0], on_host(summed)
assert on_host(received) == [1, 7], on_host(received)
assert on_host(joined) == [[1.0], [1.0], [2.0], [2.0]], on_host(joined)
backend.close()  # before the interpreter ends, which threads of the collectives may not survive
"""


@pytest.mark.skipif(torch.npu.device_count() < 2, reason="a rank each needs two NPUs")
def test_two_ranks() -> None:
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=600)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
