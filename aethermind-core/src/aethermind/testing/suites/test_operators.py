"""Every kernel of the device against its operator's page, over the page's own samples; and what it leaves to others."""

from __future__ import annotations

import pytest

from aethermind.runtime import OpenDevice, Runtime
from aethermind.testing.operator_calls import KernelCase, check_kernel

__all__: list[str] = []


def test_kernel(kernel_case: KernelCase, runtime: Runtime, opened: OpenDevice) -> None:
    """Equal to the reference in float64, within the tolerance of the operator's page; tails, one row, and none."""
    check_kernel(kernel_case, runtime.operators, opened)


@pytest.mark.optional
def test_operator_without_a_kernel(uncomputed: str, runtime: Runtime, opened: OpenDevice) -> None:
    """Views need no kernel and composites are taken apart; for the rest somebody else has to compute."""
    operator = runtime.operators[uncomputed]
    if operator.schema.is_view or operator.decompose is not None:
        return
    if opened.backend.capabilities.is_host_accessible:
        pytest.skip("no kernel; the NumPy reference computes it in place where the fallback policy allows that")
    pytest.skip("no kernel, and the host cannot reach the device's memory: models that need it do not run")
