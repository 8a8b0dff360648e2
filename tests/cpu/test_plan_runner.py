"""The plan runner: order of steps, workers, tickets, barriers, scratch, allocations, and errors of kernels."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cpu.native_kernel import ABI_VERSION, memory, native_kernel, new_capsule, plan, share, step, tensor

from aethermind.dispatch import Kernel
from aethermind.errors import KernelError, KernelNotFoundError, PluginError
from aethermind.graph import TimedExecutable
from aethermind.hal import DType
from aethermind.ops.dims import SymDim
from aethermind.runtime import Runtime
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cpu import _native
from aethermind_cpu.backend import CpuBackend

T = SymDim("T")


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend()
    yield backend
    backend.close()


def add(inputs: Any, outputs: Any, _: Any, team: Any) -> None:
    rows = share(outputs[0].shape[0], team)
    outputs[0].array()[rows] = inputs[0].array()[rows] + inputs[1].array()[rows]


def scale(inputs: Any, outputs: Any, attrs: Any, team: Any) -> None:
    """Read rows that another worker wrote: wrong without a barrier between the steps."""
    rows = share(outputs[0].shape[0], team)
    outputs[0].array()[rows] = inputs[0].array()[::-1][rows] * attrs[0].f


ADD = native_kernel(add, 2, 1)
SCALE = native_kernel(scale, 1, 1, 1)


def sum_then_scale(max_rows: int) -> Any:
    a, b, total, out = (tensor(name, T, 3) for name in ("a", "b", "total", "out"))
    return plan(step(ADD, [a, b], [total]), step(SCALE, [total], [out], factor=2.5), T=max_rows)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_steps_run_in_order_on_any_number_of_workers(backend: CpuBackend, num_threads: int) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((9, 3), np.float32) for name in ("a", "b", "total", "out")}
    assert backend.set_num_threads(num_threads) == num_threads
    executable = backend.compile(sum_then_scale(9), memory(**arrays))
    assert executable.num_native_breaks == 0
    stream = backend.streams.default()
    for rows in (9, 1, 0, 4, 5):
        arrays["out"][:] = np.nan
        executable.run((rows,), stream)
        stream.synchronize()
        expected = (arrays["a"][:rows] + arrays["b"][:rows])[::-1] * np.float32(2.5)
        np.testing.assert_array_equal(arrays["out"][:rows], expected)
        assert np.isnan(arrays["out"][rows:]).all()


def test_a_timed_run_computes_and_times_every_step_including_python_steps(backend: CpuBackend) -> None:
    arrays = {name: np.full((9, 3), 2, np.float32) for name in ("a", "b", "total", "halved", "out")}
    a, b, total, halved, out = (tensor(name, T, 3) for name in arrays)

    def halve(inputs: Any, outputs: Any, _: Any) -> None:
        outputs[0][:] = inputs[0] / 2

    in_python = Kernel("halve", "cpu", "cpu/python", frozenset({DType.FLOAT32}), function=halve)
    steps = [step(ADD, [a, b], [total]), step(in_python, [total], [halved]), step(SCALE, [halved], [out], factor=2.5)]
    executable = backend.compile(plan(*steps, T=9), memory(**arrays))
    assert isinstance(executable, TimedExecutable)
    seconds = executable.run_timed((9,), backend.streams.default())
    assert len(seconds) == len(steps)
    assert all(took > 0 for took in seconds)
    assert (arrays["out"] == 5).all()


def test_the_number_of_workers_may_change_between_runs(backend: CpuBackend) -> None:
    seen: list[int] = []
    kernel = native_kernel(lambda *args: seen.append(args[3].num_workers), 0, 0)
    executable = backend.compile(plan(step(kernel, [], [])), {})
    stream = backend.streams.default()
    for num_threads in (1, 3, 2):
        backend.set_num_threads(num_threads)
        executable.run((), stream)
        stream.synchronize()
        assert seen == [num_threads] * num_threads
        seen.clear()


def test_run_steps_runs_only_the_given_steps(backend: CpuBackend) -> None:
    ran: list[int] = []

    def recorder(number: int) -> Kernel:
        return native_kernel(lambda *_: ran.append(number), 0, 0)

    backend.set_num_threads(1)
    executable = backend.compile(plan(*(step(recorder(i), [], []) for i in range(5))), {})
    stream = backend.streams.default()
    executable.run_steps((), 1, 4, stream)
    executable.run_steps((), 2, 2, stream)
    stream.synchronize()
    assert ran == [1, 2, 3]


def test_tickets_are_unique_and_restart_with_every_step(backend: CpuBackend) -> None:
    def count(_: Any, outputs: Any, __: Any, team: Any) -> None:
        counts = outputs[0].array()
        while (ticket := team.claim(team)) < len(counts):
            counts[ticket] += 1

    backend.set_num_threads(3)
    counts = np.zeros(50, np.int64)
    kernel = native_kernel(count, 0, 1)
    steps = [step(kernel, [], [tensor("counts", 50, dtype=DType.INT64)]) for _ in range(4)]
    executable = backend.compile(plan(*steps), memory(counts=counts))
    stream = backend.streams.default()
    executable.run((), stream)
    executable.run((), stream)
    stream.synchronize()
    np.testing.assert_array_equal(counts, 8)


def test_a_kernel_may_use_barriers_between_phases(backend: CpuBackend) -> None:
    def rotate(_: Any, outputs: Any, __: Any, team: Any) -> None:
        first, second = outputs[0].array(), outputs[1].array()
        first[team.worker] = team.worker + 1
        team.barrier(team)
        second[team.worker] = first[(team.worker + 1) % team.num_workers]

    backend.set_num_threads(3)
    first, second = np.zeros(3, np.int64), np.zeros(3, np.int64)
    outputs = [tensor("first", 3, dtype=DType.INT64), tensor("second", 3, dtype=DType.INT64)]
    executable = backend.compile(
        plan(step(native_kernel(rotate, 0, 2), [], outputs)), memory(first=first, second=second)
    )
    executable.run((), backend.streams.default())
    backend.streams.default().synchronize()
    assert second.tolist() == [2, 3, 1]


def test_scratch_is_private_aligned_and_sized_for_the_largest_shapes(backend: CpuBackend) -> None:
    asked: list[tuple[int, int]] = []
    scratch: dict[int, int] = {}

    def scratch_bytes(_: Any, outputs: Any, __: Any, num_workers: int) -> int:
        asked.append((outputs[0].shape[0], num_workers))
        return outputs[0].shape[0] * 100

    def run(_: Any, __: Any, ___: Any, team: Any) -> None:
        scratch[team.worker] = team.scratch

    backend.set_num_threads(2)
    kernel = native_kernel(run, 0, 1, scratch_bytes=scratch_bytes)
    executable = backend.compile(
        plan(step(kernel, [], [tensor("out", SymDim("T", 1))]), T=99), memory(out=np.zeros(100, np.float32))
    )
    executable.run((1,), backend.streams.default())
    backend.streams.default().synchronize()
    assert asked == [(100, 2)]
    assert sorted(scratch) == [0, 1]
    assert abs(scratch[0] - scratch[1]) >= 100 * 100
    assert all(address % 64 == 0 for address in scratch.values())


def test_absent_inputs_and_attributes_reach_the_kernel(backend: CpuBackend) -> None:
    seen: list[Any] = []

    def run(inputs: Any, _: Any, attrs: Any, __: Any) -> None:
        seen.extend([inputs[0].data, inputs[0].ndim, attrs[0].i, attrs[1].f, attrs[2].i])

    backend.set_num_threads(1)
    kernel = native_kernel(run, 1, 0, 3)
    executable = backend.compile(plan(step(kernel, [None], [], window=7, scale=0.5, interleaved=True)), {})
    executable.run((), backend.streams.default())
    backend.streams.default().synchronize()
    assert seen == [None, 0, 7, 0.5, 1]


def test_repeated_runs_allocate_nothing(backend: CpuBackend) -> None:
    backend.set_num_threads(2)
    arrays = {name: np.zeros((9, 3), np.float32) for name in ("a", "b", "total", "out")}
    executable = backend.compile(sum_then_scale(9), memory(**arrays))
    stream = backend.streams.default()
    gc.collect()  # engines of other tests, whose destructors may allocate
    before = _native.allocation_count(), backend.allocator.stats()
    for rows in (1, 2, 9) * 10:
        executable.run((rows,), stream)
        stream.synchronize()
    assert (_native.allocation_count(), backend.allocator.stats()) == before


def test_a_python_step_runs_in_order_between_native_ones(backend: CpuBackend) -> None:
    def negate(inputs: Any, outputs: Any, attributes: Any) -> None:
        outputs[0][:] = -inputs[0] * attributes["factor"]

    python = Kernel("test", "cpu", "cpu/python", frozenset({DType.FLOAT32}), function=negate)
    a, b, total, middle, out = (tensor(name, T, 3) for name in ("a", "b", "total", "middle", "out"))
    mixed = plan(
        step(ADD, [a, b], [total]),
        step(python, [total], [middle], factor=3.0),
        step(SCALE, [middle], [out], factor=2.0),
        T=4,
    )
    arrays = {name: np.ones((4, 3), np.float32) for name in ("a", "b", "total", "middle", "out")}
    executable = backend.compile(mixed, memory(**arrays))
    assert executable.num_native_breaks == 1
    executable.run((3,), backend.streams.default())
    backend.streams.default().synchronize()
    np.testing.assert_array_equal(arrays["out"], [[-12.0] * 3] * 3 + [[1.0] * 3])


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (native_kernel(add, 3, 1), "2 inputs given, 3 expected"),
        (native_kernel(add, 2, 2), "1 outputs given, 2 expected"),
        (native_kernel(add, 2, 1, 1), "0 attributes given, 1 expected"),
        (native_kernel(add, 2, 1, abi_version=ABI_VERSION + 1), "it speaks kernel ABI 2, this runner speaks 1"),
        (native_kernel(None, 2, 1), "its run is NULL"),
        (
            native_kernel(add, 2, 1, scratch_bytes=lambda *_: 2**50),
            "it asks for 1125899906842624 bytes of scratch for each of [0-9]+ workers, which cannot be allocated",
        ),
        (
            native_kernel(add, 2, 1, scratch_bytes=lambda *_: 2**64 - 1),
            "it asks for 18446744073709551615 bytes of scratch",
        ),
    ],
)
def test_a_kernel_with_another_signature_is_an_error_that_names_it(
    backend: CpuBackend, kernel: Kernel, problem: str
) -> None:
    a, b, out = (tensor(name, T, 3) for name in ("a", "b", "out"))
    array = np.zeros((1, 3), np.float32)
    with pytest.raises(PluginError, match=f"kernel test/ctypes: {problem}"):
        backend.compile(plan(step(kernel, [a, b], [out]), T=1), memory(a=array, b=array, out=array))


@pytest.mark.parametrize(
    ("native", "problem"),
    [
        (
            new_capsule(b"aethermind.kernel.v0"),
            "its capsule is named 'aethermind.kernel.v0' instead of 'aethermind.ker",
        ),
        (new_capsule(None), "its capsule is named '' instead of 'aethermind.kernel.v1'"),
        (42, "its `native` is of type int instead of a PyCapsule"),
        (native_kernel(add, 2, 1, name=None).native, "kernel without a name: its name is NULL"),
    ],
)
def test_an_invalid_capsule_is_an_error_that_names_its_package(
    backend: CpuBackend, native: object, problem: str
) -> None:
    """After a valid kernel, in a plan whose error names only the step at which binding stops."""
    kernel = Kernel("add", "cpu", "cpu/odd", frozenset({DType.FLOAT32}), native=native, provider="a-package")
    a, b, total, out = (tensor(name, T, 3) for name in ("a", "b", "total", "out"))
    array = np.zeros((1, 3), np.float32)
    both = plan(step(ADD, [a, b], [total]), step(kernel, [total, b], [out]), T=1)
    with pytest.raises(PluginError) as caught:
        backend.compile(both, memory(a=array, b=array, total=array, out=array))
    assert str(caught.value).startswith(
        f"Kernel 'cpu/odd' for add of a-package cannot be used on device cpu: {problem}"
    )
    assert str(caught.value).endswith(". Update or uninstall its package.")


def test_a_failing_python_step_is_an_error_that_names_its_package(backend: CpuBackend) -> None:
    python = Kernel(
        "neg", "cpu", "cpu/py", frozenset({DType.FLOAT32}), function=lambda *_: 1 // 0, provider="a-package"
    )
    a, out = tensor("a", T, 3), tensor("out", T, 3)
    array = np.zeros((1, 3), np.float32)
    executable = backend.compile(plan(step(python, [a], [out]), T=1), memory(a=array, out=array))
    assert isinstance(executable, TimedExecutable)
    for run in (executable.run, executable.run_timed):
        with pytest.raises(KernelError, match=r"^Kernel 'cpu/py' for neg of a-package raised ZeroDivisionError: "):
            run((1,), backend.streams.default())


def test_a_run_needs_a_value_for_every_symbol(backend: CpuBackend) -> None:
    array = np.zeros((1, 3), np.float32)
    executable = backend.compile(sum_then_scale(1), memory(a=array, b=array, total=array, out=array))
    with pytest.raises(ValueError, match="one number for every symbol"):
        executable.run((), backend.streams.default())


def test_a_kernel_from_before_an_operator_grew_runs_its_plain_calls() -> None:
    def old_rms_norm(inputs: Any, outputs: Any, attrs: Any, team: Any) -> None:
        x, weight, rows = inputs[0].array(), inputs[1].array(), share(len(inputs[0].array()), team)
        outputs[0].array()[rows] = x[rows] / np.sqrt((x[rows] ** 2).mean(-1, keepdims=True) + attrs[0].f) * weight

    runtime = Runtime.boot()
    kernel = replace(native_kernel(old_rms_norm, 2, 1, 1), operator="rms_norm")
    operator = runtime.operators["rms_norm"]
    samples = {sample.label: sample for sample in operator.samples(np.random.default_rng(0))}
    opened = runtime.open_device("cpu")
    check_kernel(KernelCase(operator, kernel, DType.FLOAT32, samples["17x33"]), runtime.operators, opened)
    with pytest.raises(KernelNotFoundError, match="does not compute weight_offset"):
        check_kernel(KernelCase(operator, kernel, DType.FLOAT32, samples["3x7_offset"]), runtime.operators, opened)
