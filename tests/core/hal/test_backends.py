"""What only the two backends that core ships promise; the contract of all is in the conformance kit."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind.hal import Backend, DeviceId, DType, MemoryKind, Tensor
from aethermind.hal.builtin_backends import NullBackend, NumpyBackend


@pytest.mark.parametrize("backend_class", [NumpyBackend, NullBackend])
def test_host_memory_is_zeroed_and_nothing_crosses_a_bus(backend_class: type[Backend]) -> None:
    backend = backend_class()
    tensor = Tensor.of(backend.allocator.alloc(4096, MemoryKind.DEVICE), DType.UINT8, (4096,))
    assert not tensor.numpy().any()
    backend.transfer.copy(tensor, Tensor.of_numpy(np.ones(4096, np.uint8), DeviceId(backend.name)))
    assert tensor.numpy().all()
    stats = backend.transfer.stats()
    assert (stats.host_to_device_bytes, stats.device_to_host_bytes) == (0, 0)


def test_optional_parts_are_absent() -> None:
    backend = NumpyBackend()
    assert backend.communicator(0, 1) is None
    assert backend.measure_limits([DType.FLOAT32]) is None
    assert backend.compile(None, None) is None


def test_the_null_device_runs_nothing() -> None:
    backend = NullBackend()
    executable = backend.compile(None, None)
    executable.run((1, 2), backend.streams.default())
    executable.run_steps((1, 2), 0, 5, backend.streams.default())
    assert executable.num_native_breaks == 0
