"""Every kernel of the device against its operator's page, over the page's own samples; and what it leaves to others."""

from __future__ import annotations

from contextlib import suppress

import pytest

from aethermind.errors import DeviceError, OutOfMemoryError
from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.kernel_cases import KernelGroup
from aethermind.testing.kernel_claims import (
    check_alone_and_in_a_batch,
    check_any_number_of_workers,
    check_beside_another_stream,
    check_nothing_is_kept,
    failing_call,
)
from aethermind.testing.operator_calls import KernelCase, check_kernel

__all__: list[str] = []


def test_kernel(kernel_case: KernelCase, runtime: Runtime, opened: OpenDevice) -> None:
    """Equal to the reference in float64, within the tolerance of the operator's page; tails, one row, and none."""
    check_kernel(kernel_case, runtime.operators, opened)


def test_kernel_keeps_nothing(kernel_group: KernelGroup, runtime: Runtime, opened: OpenDevice) -> None:
    """The same bits of every call after calls of other shapes."""
    check_nothing_is_kept(kernel_group.cases, runtime.operators, opened)


def test_kernel_on_two_streams(kernel_group: KernelGroup, runtime: Runtime, opened: OpenDevice) -> None:
    """The same bits while another thread runs it on another stream."""
    check_beside_another_stream(kernel_group.cases[0], runtime.operators, opened)


def test_kernel_with_any_number_of_workers(kernel_group: KernelGroup, runtime: Runtime, opened: OpenDevice) -> None:
    """The same bits."""
    check_any_number_of_workers(kernel_group.cases[0], runtime.operators, opened)


def test_kernel_in_any_batch(invariant_group: KernelGroup, runtime: Runtime, opened: OpenDevice) -> None:
    """The same bits of a row whatever the others are, of kernels that say `is_batch_invariant`."""
    assert sum(check_alone_and_in_a_batch(case, runtime.operators, opened) for case in invariant_group.cases)


def test_a_kernel_that_fails_is_reported(runtime: Runtime, opened: OpenDevice) -> None:
    """By the run itself, or by who waits for its stream: then as a DeviceError."""
    stream = opened.backend.streams.create(opened.device.index)
    try:
        failing = failing_call(runtime.operators, opened, stream)
    except Exception as error:  # a device that runs no Python functions refuses the plan
        assert not isinstance(error, OutOfMemoryError)
        return
    try:
        failing()
    except Exception:
        return
    with pytest.raises(DeviceError):
        stream.synchronize()
    with suppress(DeviceError):  # it may say so again
        stream.destroy()


@pytest.mark.optional
def test_kernel_of_no_operator(unknown_kernel: str) -> None:
    """A name that no installed package gives an operator: a slip of the pen, or its package is missing."""
    pytest.fail(unknown_kernel)


@pytest.mark.optional
def test_operator_without_a_kernel(uncomputed: str, runtime: Runtime, opened: OpenDevice) -> None:
    """Views need no kernel and composites are taken apart; for the rest somebody else has to compute."""
    operator = runtime.operators[uncomputed]
    if operator.schema.is_view or operator.decompose is not None:
        return
    if opened.backend.capabilities.is_host_accessible:
        pytest.skip("no kernel; the NumPy reference computes it in place where the fallback policy allows that")
    pytest.skip("no kernel, and the host cannot reach the device's memory: models that need it do not run")
