"""Planted bugs that a device in host memory hides and the simulated device exposes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aethermind.dispatch import Dispatcher
from aethermind.dispatch.reference import reference_kernels
from aethermind.errors import DeviceError
from aethermind.graph import GraphBuilder, PlanExecutor, compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.hal import DeviceId, DType, MemoryKind, Tensor
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry
from aethermind_sim.backend import SimBackend

SIM = DeviceId("sim")
SEEDS = range(12)
OPERATORS = OperatorRegistry(catalog.load())
COUNT = 4


def allocate(backend: SimBackend, kind: MemoryKind = MemoryKind.DEVICE) -> Tensor:
    return Tensor.of(backend.allocator.alloc(4 * COUNT, kind), DType.FLOAT32, (COUNT,))


def on_host(backend: SimBackend, tensor: Tensor) -> list[float]:
    array = np.empty(tensor.shape, np.float32)
    backend.transfer.copy(Tensor.of_numpy(array, SIM), tensor)
    return array.tolist()


def executor_of_silu(backend: SimBackend) -> PlanExecutor:
    """A plan that applies silu to `x` three times."""
    builder = GraphBuilder("silu", OPERATORS)
    value = builder.input("x", DType.FLOAT32, (COUNT,))
    for _ in range(3):
        value = builder.op("silu", value)
    builder.output("y", value)
    dispatcher = Dispatcher(reference_kernels(OPERATORS, "sim"))
    compiled = compile_graph(builder.finish(), OPERATORS, dispatcher, "sim", {})
    constants = ConstantStore(backend, SIM, lambda *_: None, {})
    return PlanExecutor(compiled.plan, backend, SIM, constants, {})


def silu_of_silu_of_silu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    for _ in range(3):
        x = x / (1 + np.exp(-x))
    return x


X = np.array([1, 2, 3, -4], np.float32)
Y = silu_of_silu_of_silu(X.astype(np.float64))


def is_right(values: Any) -> bool:
    return bool(np.allclose(values, Y, rtol=1e-5))


def seeds_that_show(program: Callable[[SimBackend], Any]) -> int:
    return sum(not is_right(program(SimBackend(seed))) for seed in SEEDS)


def output_of(executor: PlanExecutor) -> Tensor:
    """The device address of `y`."""
    operand = executor.plan.outputs["y"]
    owner = executor._tensors[operand.place, operand.name]
    return Tensor.of(owner.buffer, DType.FLOAT32, (COUNT,), operand.offset_bytes)


def read_back(backend: SimBackend, *, bug: bool) -> Any:
    executor = executor_of_silu(backend)
    executor.host_inputs["x"][:] = X
    executor.run(())
    if not bug:
        executor.synchronize()
    return on_host(backend, output_of(executor))


def write_what_is_still_to_be_copied(backend: SimBackend, *, bug: bool) -> Any:
    source, target, stream = allocate(backend, MemoryKind.PINNED), allocate(backend), backend.streams.default()
    source.numpy()[:] = Y
    backend.transfer.copy_async(target, source, stream)
    if not bug:
        stream.synchronize()
    source.numpy()[:] = 7
    stream.synchronize()
    return on_host(backend, target)


def pass_on_to_another_stream(backend: SimBackend, *, bug: bool) -> Any:
    executor = executor_of_silu(backend)
    executor.host_inputs["x"][:] = X
    executor.run(())
    done, copies = backend.events.create(), backend.streams.create()
    done.record(backend.streams.default())
    if not bug:
        copies.wait_event(done)
    result = allocate(backend, MemoryKind.PINNED)
    backend.transfer.copy_async(result, output_of(executor), copies)
    copies.synchronize()
    return result.numpy()


def copy_in_front_of_a_kernel(backend: SimBackend, *, bug: bool) -> Any:
    """Uploads on a separate stream, and kernels that must wait for them."""
    uploads, work, event = backend.streams.create(), backend.streams.create(), backend.events.create()
    executor = executor_of_silu(backend)
    source = Tensor.of_numpy(X, SIM)
    backend.transfer.copy_async(executor._inputs.tensor("x", ()), source, uploads)
    event.record(uploads)
    if not bug:
        work.wait_event(event)
    executor.executable.run((), work)
    work.synchronize()
    backend.devices.synchronize(0)
    return executor.output("y", ())


@pytest.mark.parametrize(
    "program",
    [read_back, write_what_is_still_to_be_copied, pass_on_to_another_stream, copy_in_front_of_a_kernel],
)
def test_missing_synchronisation_fails_under_some_seed_and_correct_code_never(program: Callable[..., Any]) -> None:
    assert seeds_that_show(lambda backend: program(backend, bug=True)) >= len(SEEDS) // 4
    assert seeds_that_show(lambda backend: program(backend, bug=False)) == 0


@pytest.mark.parametrize("num_runs", [2, 3, 5])
def test_inputs_of_the_next_run_may_be_written_while_earlier_runs_are_pending(num_runs: int) -> None:
    for seed in SEEDS:
        backend = SimBackend(seed)
        executor, results = executor_of_silu(backend), [allocate(backend, MemoryKind.PINNED) for _ in range(num_runs)]
        for run, result in enumerate(results):
            executor.host_inputs["x"][:] = X * (run + 1)
            executor.run(())
            backend.transfer.copy_async(result, output_of(executor), backend.streams.default())
        executor.host_inputs["x"][:] = np.nan
        executor.synchronize()
        for run, result in enumerate(results):
            expected = silu_of_silu_of_silu(X.astype(np.float64) * (run + 1))
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)


def test_a_seed_repeats_its_order() -> None:
    def orders() -> list[bool]:
        return [is_right(pass_on_to_another_stream(SimBackend(seed), bug=True)) for seed in SEEDS]

    assert orders() == orders()
    assert len(set(orders())) == 2


STRAY = """
import ctypes, numpy as np
from aethermind.hal import DeviceId, DType, Tensor
from aethermind_sim.backend import SimBackend

backend = SimBackend()
buffer = backend.allocator.alloc(64)
backend.transfer.fill(Tensor.of(buffer, DType.UINT8, (64,)), 5)
print("ready", flush=True)
"""


@pytest.mark.parametrize(
    "access",
    [
        "ctypes.string_at(buffer.address, 1)",
        "ctypes.memset(buffer.address, 0, 1)",
        "backend.transfer.fill(Tensor(buffer, DType.UINT8, (65,), (1,)), 0)",
        "address = buffer.address; buffer.free(); ctypes.string_at(address, 1)",
    ],
    ids=["read", "write", "beyond the end", "after free"],
)
def test_stray_access_is_a_segmentation_fault(access: str) -> None:
    done = subprocess.run([sys.executable, "-c", STRAY + access], capture_output=True, text=True, check=False)
    assert done.stdout == "ready\n"
    assert done.returncode == -signal.SIGSEGV


KERNEL_THAT_WRITES_ITS_INPUT = """
import dataclasses
from tests.sim import test_planted_bugs as bugs
real = bugs.reference_kernels

def vandal(inputs, outputs, attributes):
    outputs[0][...] = inputs[0]
    print("ready", flush=True)
    inputs[0][...] = 0

bugs.reference_kernels = lambda *given: [
    dataclasses.replace(kernel, function=vandal) if kernel.operator == "silu" else kernel for kernel in real(*given)
]
bugs.read_back(bugs.SimBackend(), bug=False)
"""


def test_a_kernel_that_writes_to_its_input_is_a_segmentation_fault() -> None:
    command = [sys.executable, "-c", KERNEL_THAT_WRITES_ITS_INPUT]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert (done.stdout, done.returncode) == ("ready\n", -signal.SIGSEGV), done.stderr


def test_freeing_memory_before_its_work_has_run_is_an_error() -> None:
    caught = 0
    for seed in SEEDS:
        backend = SimBackend(seed)
        target, stream = allocate(backend), backend.streams.default()
        backend.transfer.copy_async(target, Tensor.of_numpy(X, SIM), stream)
        try:
            stream.synchronize()
        except DeviceError as error:
            assert "freed before the copy ran" in str(error)
            caught += 1
    assert caught > len(SEEDS) // 2


def test_fresh_memory_is_nan() -> None:
    backend = SimBackend()
    assert np.isnan(on_host(backend, allocate(backend))).all()
