"""Every kernel of the device, compared with the reference of its operator over all samples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from aethermind.dispatch import Kernel
from aethermind.errors import DeviceError, OutOfMemoryError
from aethermind.hal import DType, Stream
from aethermind.ops.operator import OperatorRegistry, Sample
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.kernel_cases import KernelGroup
from aethermind.testing.kernel_invariants import (
    check_batch_invariance,
    check_concurrent_streams,
    check_stateless,
    check_thread_counts,
)
from aethermind.testing.operator_calls import KernelCall, KernelCase, check_kernel

__all__: list[str] = []


def test_kernel(kernel_case: KernelCase, runtime: Runtime, opened: OpenDevice) -> None:
    """Results are those of the float64 reference, within the operator's tolerance."""
    check_kernel(kernel_case, runtime.operators, opened)


def test_kernel_keeps_nothing(kernel_group: KernelGroup, runtime: Runtime, opened: OpenDevice) -> None:
    """A call has the same bits after calls with other shapes."""
    check_stateless(kernel_group.cases, runtime.operators, opened)


def test_kernel_on_two_streams(kernel_group: KernelGroup, runtime: Runtime, opened: OpenDevice) -> None:
    """A call has the same bits while another thread runs the kernel on another stream."""
    check_concurrent_streams(kernel_group.cases[0], runtime.operators, opened)


def test_kernel_with_any_number_of_workers(kernel_group: KernelGroup, runtime: Runtime, opened: OpenDevice) -> None:
    """A call has the same bits with any number of worker threads."""
    check_thread_counts(kernel_group.cases[0], runtime.operators, opened)


def test_kernel_in_any_batch(invariant_group: KernelGroup, runtime: Runtime, opened: OpenDevice) -> None:
    """A row has the same bits whatever the other rows are, for kernels with `is_batch_invariant`."""
    assert sum(check_batch_invariance(case, runtime.operators, opened) for case in invariant_group.cases)


def test_a_kernel_that_fails_is_reported(runtime: Runtime, opened: OpenDevice) -> None:
    """Either the run raises, or synchronising its stream raises DeviceError."""
    stream = opened.backend.streams.create(opened.device.index)
    try:
        failing = _failing_call(runtime.operators, opened, stream)
    except Exception as error:  # a device that runs no Python functions refuses the plan
        assert not isinstance(error, OutOfMemoryError)
        return
    try:
        failing()
    except Exception:
        return
    with pytest.raises(DeviceError):
        stream.synchronize()
    with suppress(DeviceError):  # it may raise again
        stream.destroy()


@pytest.mark.optional
def test_kernel_of_no_operator(unknown_kernel: str) -> None:
    """The operator of a kernel is not defined by an installed package: it is misspelt, or a package is missing."""
    pytest.fail(unknown_kernel)


@pytest.mark.optional
def test_operator_without_a_kernel(operator_without_kernel: str, runtime: Runtime, opened: OpenDevice) -> None:
    """Views need no kernel, and composites are decomposed; other operators need a fallback."""
    operator = runtime.operators[operator_without_kernel]
    if operator.schema.is_view or operator.decompose is not None:
        return
    if opened.backend.capabilities.is_host_accessible:
        pytest.skip("no kernel; the NumPy reference computes it in place where the fallback policy allows that")
    pytest.skip("no kernel, and the host cannot reach the device's memory: models that need it do not run")


def _failing_call(operators: OperatorRegistry, opened: OpenDevice, stream: Stream) -> Callable[[], None]:
    """Return a function that enqueues on `stream` a kernel that raises when it runs."""
    kernel = Kernel("add", opened.backend.name, "failing", frozenset({DType.FLOAT32}), function=_fail)
    array = np.ones((2, 3), np.float32)
    case = KernelCase(operators["add"], kernel, DType.FLOAT32, Sample("failing", (array, array)))
    call = KernelCall(case, operators, opened, (array, array), stream=stream)
    return lambda: call.start((array, array))


def _fail(*_: object) -> None:
    raise RuntimeError("This kernel always fails; the conformance kit checks that the failure is reported.")
