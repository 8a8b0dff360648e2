"""Two devices, copies between them, and fault injection."""

from __future__ import annotations

import numpy as np
import pytest

from aethermind import Runtime
from aethermind.errors import DeviceError, InvalidArgumentError, OutOfMemoryError
from aethermind.hal import DeviceId, DType, MemoryKind, Tensor
from aethermind_sim.backend import SimBackend
from aethermind_sim.faults import parse_faults

X = np.arange(5, dtype=np.float32)


def tensor_on(backend: SimBackend, index: int) -> Tensor:
    backend.devices.set_current(index)
    return Tensor.of(backend.allocator.alloc(X.nbytes), DType.FLOAT32, X.shape)


def on_host(backend: SimBackend, tensor: Tensor) -> list[float]:
    array = np.empty(tensor.shape, np.float32)
    backend.transfer.copy(Tensor.of_numpy(array, DeviceId("sim")), tensor)
    return array.tolist()


def test_automatic_selection_never_selects_it(runtime: Runtime) -> None:
    assert runtime.devices.select("auto").device.type != "sim"


@pytest.mark.parametrize("index", [0, 1])
def test_an_index_opens_that_device(runtime: Runtime, index: int) -> None:
    backend = runtime.open_device(f"sim:{index}").backend
    assert backend.allocator.alloc(8).device == DeviceId("sim", index)


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_from_device_to_device_crosses_no_host(seed: int) -> None:
    backend = SimBackend(seed)
    first, second = (tensor_on(backend, index) for index in (0, 1))
    backend.transfer.copy(first, Tensor.of_numpy(X, DeviceId("sim")))
    before = backend.transfer.stats()
    sender, receiver, event = backend.streams.create(0), backend.streams.create(1), backend.events.create()
    backend.transfer.copy_async(second, first, sender)
    event.record(sender)
    receiver.wait_event(event)
    receiver.synchronize()
    assert event.query()
    assert backend.transfer.stats() == before
    assert on_host(backend, second) == X.tolist()


def test_memory_is_counted_by_device() -> None:
    backend = SimBackend()
    kept = tensor_on(backend, 1)
    assert backend.allocator.stats().allocated_bytes == kept.nbytes
    backend.devices.set_current(0)
    assert backend.allocator.stats().allocated_bytes == 0


def test_an_injected_allocation_fault_fails_once() -> None:
    backend = SimBackend(faults=parse_faults("allocation=2"))
    backend.allocator.alloc(8)
    with pytest.raises(OutOfMemoryError, match="an injected fault"):
        backend.allocator.alloc(8, MemoryKind.PINNED)
    assert backend.allocator.stats().allocated_bytes == 8 - 8
    backend.allocator.alloc(8)


@pytest.mark.parametrize("seed", range(4))
def test_a_failed_copy_raises_at_the_wait_and_skips_later_work(seed: int) -> None:
    backend = SimBackend(seed)
    target, source = tensor_on(backend, 0), Tensor.of_numpy(X, DeviceId("sim"))
    backend.transfer.fill(target, 0)
    stream, other, event = backend.streams.create(), backend.streams.create(), backend.events.create()
    backend.faults.inject("copy")
    backend.transfer.copy_async(target, source, stream)
    backend.transfer.fill(target, 1, stream)
    event.record(stream)
    other.wait_event(event)
    for wait in (event.synchronize, stream.synchronize, other.synchronize):
        with pytest.raises(DeviceError, match="copy of the simulated device failed"):
            wait()
    assert on_host(backend, target) == [0] * len(X)
    backend.transfer.copy_async(target, source, stream)
    stream.synchronize()
    assert on_host(backend, target) == X.tolist()


def test_a_lost_device_stays_lost() -> None:
    backend = SimBackend()
    target, source = tensor_on(backend, 0), Tensor.of_numpy(X, DeviceId("sim"))
    backend.faults.inject("lost", 2)
    backend.transfer.copy(target, source)
    for use in (
        lambda: backend.transfer.copy(target, source),
        lambda: backend.allocator.alloc(1),
        backend.streams.default().synchronize,
    ):
        with pytest.raises(DeviceError, match="was lost"):
            use()
    target.buffer.free()


@pytest.mark.parametrize("text", ["copy", "copy=x", "fire=3", "copy=0"])
def test_invalid_faults_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="allocation, copy, lost"):
        parse_faults(text)


def test_settings_of_the_environment(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERMIND_SIM_SEED", "7")
    monkeypatch.setenv("AETHERMIND_SIM_FAULTS", "allocation=1, copy=3")
    backend = runtime.open_device("sim").backend
    assert backend.devices.properties(0).name.endswith("seed 7")
    with pytest.raises(OutOfMemoryError):
        backend.allocator.alloc(1)
    monkeypatch.setenv("AETHERMIND_SIM_SEED", "seven")
    with pytest.raises(InvalidArgumentError, match="'seven'"):
        runtime.open_device("sim")
