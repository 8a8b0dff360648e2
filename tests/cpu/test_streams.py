"""Streams are asynchronous, run concurrently, and keep the order of their work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cpu.native_kernel import native_kernel, plan, step

from aethermind.errors import DeviceError, InvalidArgumentError
from aethermind.hal import Tensor
from aethermind.hal.device import DeviceId
from aethermind.hal.topology import host_topology
from aethermind_cpu import devices
from aethermind_cpu.backend import CpuBackend
from aethermind_cpu.devices import num_physical_cores
from aethermind_cpu.executable import CpuExecutable

PATIENCE_S = 60


class Gate:
    """A plan of one step that blocks its stream until it is opened."""

    def __init__(self, backend: CpuBackend) -> None:
        self._is_open = threading.Event()
        self.entered = threading.Event()
        self._kernel = native_kernel(self._run, 0, 0)
        self.executable: CpuExecutable = backend.compile(plan(step(self._kernel, [], [])), {})

    def _run(self, *_: Any) -> None:
        self.entered.set()
        assert self._is_open.wait(PATIENCE_S)

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def tensors(*values: float) -> tuple[Tensor, ...]:
    return tuple(Tensor.of_numpy(np.full(4, value, np.float32), DeviceId("cpu")) for value in values)


def test_submitting_returns_before_the_work_is_done(backend: CpuBackend) -> None:
    gate, stream = Gate(backend), backend.streams.create()
    (source, destination) = tensors(1, 0)
    gate.executable.run((), stream)
    backend.transfer.copy_async(destination, source, stream)
    assert gate.entered.wait(PATIENCE_S)
    assert not stream.query()
    assert destination.numpy().tolist() == [0] * 4
    gate.open()
    stream.synchronize()
    assert stream.query()
    assert destination.numpy().tolist() == [1] * 4


def test_work_runs_in_the_order_of_submission(backend: CpuBackend) -> None:
    gate, stream = Gate(backend), backend.streams.create()
    first, second, third = tensors(1, 2, 3)
    gate.executable.run((), stream)
    backend.transfer.copy_async(second, first, stream)
    backend.transfer.copy_async(third, second, stream)
    backend.transfer.fill(first, 0, stream)
    gate.open()
    stream.synchronize()
    assert [tensor.numpy()[0] for tensor in (first, second, third)] == [0, 1, 1]


def test_streams_run_concurrently(backend: CpuBackend) -> None:
    gate, held_up, free = Gate(backend), backend.streams.create(), backend.streams.create()
    source, destination = tensors(1, 0)
    gate.executable.run((), held_up)
    assert gate.entered.wait(PATIENCE_S)
    backend.transfer.copy_async(destination, source, free)
    free.synchronize()
    assert destination.numpy().tolist() == [1] * 4
    assert not held_up.query()
    gate.open()


def test_a_stream_waits_for_an_event_without_blocking_the_host(backend: CpuBackend) -> None:
    gate, producer, consumer = Gate(backend), backend.streams.create(), backend.streams.create()
    source, middle, destination = tensors(1, 0, 0)
    event = backend.events.create()
    gate.executable.run((), producer)
    backend.transfer.copy_async(middle, source, producer)
    event.record(producer)
    consumer.wait_event(event)
    backend.transfer.copy_async(destination, middle, consumer)
    assert not consumer.query()
    gate.open()
    consumer.synchronize()
    assert destination.numpy().tolist() == [1] * 4


def test_submitting_to_a_full_queue_blocks_until_a_task_finishes(backend: CpuBackend) -> None:
    stream = backend.streams.create()
    values = np.zeros(3000, np.uint8)
    for index in range(len(values)):
        row = Tensor.of_numpy(values[index : index + 1], DeviceId("cpu"))
        backend.transfer.fill(row, index % 251, stream)
    stream.synchronize()
    np.testing.assert_array_equal(values, np.arange(len(values)) % 251)


def test_plans_of_two_streams_are_serialised_on_the_team(backend: CpuBackend) -> None:
    active, most = [0], [0]
    lock = threading.Lock()

    def run(*_: Any) -> None:
        with lock:
            active[0] += 1
            most[0] = max(most[0], active[0])
        with lock:
            active[0] -= 1

    backend.set_num_threads(1)
    executable = backend.compile(plan(step(native_kernel(run, 0, 0), [], [])), {})
    streams = [backend.streams.create(), backend.streams.create()]
    for _ in range(50):
        for stream in streams:
            executable.run((), stream)
    for stream in streams:
        stream.synchronize()
    assert most == [1]


def test_destroying_a_stream_finishes_its_work_and_later_use_is_an_error(backend: CpuBackend) -> None:
    stream = backend.streams.create()
    source, destination = tensors(1, 0)
    backend.transfer.copy_async(destination, source, stream)
    stream.destroy()
    assert destination.numpy().tolist() == [1] * 4
    with pytest.raises(DeviceError, match="was destroyed"):
        stream.synchronize()


def test_the_default_stream_is_always_the_same(backend: CpuBackend) -> None:
    assert backend.streams.default() is backend.streams.default()
    assert backend.streams.create() is not backend.streams.default()


def test_a_device_is_synchronized_when_all_its_streams_are(backend: CpuBackend) -> None:
    streams = [backend.streams.create() for _ in range(3)]
    pairs = [tensors(1, 0) for _ in streams]
    for stream, (source, destination) in zip(streams, pairs, strict=True):
        backend.transfer.copy_async(destination, source, stream)
    backend.devices.synchronize(0)
    assert all(destination.numpy()[0] == 1 for _, destination in pairs)


def test_there_is_one_device(backend: CpuBackend) -> None:
    with pytest.raises(DeviceError, match="cpu:1 does not exist"):
        backend.streams.create(1)
    with pytest.raises(DeviceError, match="cpu:1 does not exist"):
        backend.streams.default(1)


def test_workers_are_pinned_with_one_worker_per_core_and_not_otherwise(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, cpu_sets = backend.streams.create(), dict[int, set[int]]()

    def note(*arguments: Any) -> None:
        cpu_sets[arguments[-1].worker] = os.sched_getaffinity(0)

    executable = backend.compile(plan(step(native_kernel(note, 0, 0), [], [])), {})

    def cpu_sets_of(num_threads: int | None) -> list[set[int]]:
        cpu_sets.clear()
        num_workers = backend.set_num_threads(num_threads)
        executable.run((), stream)
        stream.synchronize()
        assert sorted(cpu_sets) == list(range(num_workers))
        return [cpu_sets[worker] for worker in range(num_workers)]

    monkeypatch.delenv("AETHERMIND_NUM_THREADS", raising=False)
    monkeypatch.delenv("AETHERMIND_CPU_AFFINITY", raising=False)
    unlimited = replace(host_topology(), quota=None)  # a container's quota leaves fewer workers than cores
    monkeypatch.setattr(devices, "host_topology", lambda: unlimited)
    everywhere = os.sched_getaffinity(0)
    on_cores = cpu_sets_of(None)
    assert set[int]().union(*on_cores) == everywhere
    assert sum(map(len, on_cores)) == len(everywhere)
    assert cpu_sets_of(num_physical_cores() + 1) == [everywhere] * (num_physical_cores() + 1)
    assert cpu_sets_of(None) == on_cores
    monkeypatch.setenv("AETHERMIND_CPU_AFFINITY", "none")
    assert cpu_sets_of(None) == [everywhere] * num_physical_cores()
    monkeypatch.setenv("AETHERMIND_CPU_AFFINITY", "all")
    with pytest.raises(InvalidArgumentError, match="AETHERMIND_CPU_AFFINITY is 'all'; set it to cores or none"):
        backend.set_num_threads(1)
    assert os.sched_getaffinity(0) == everywhere
