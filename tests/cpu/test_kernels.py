"""Every native kernel that this CPU runs says what its operator's page says, over the page's own samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from aethermind import Runtime
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.weight_format import DENSE
from aethermind.runtime import OpenDevice
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cpu.kernels import kernels

REGISTRY = OperatorRegistry(catalog.load())
CASES = [
    KernelCase(REGISTRY[kernel.operator], kernel, float_type, sample)
    for kernel in kernels()
    if kernel.weight_formats == frozenset({DENSE})
    for float_type in sorted(kernel.dtypes, key=str)
    for sample in REGISTRY[kernel.operator].samples(np.random.default_rng(11))
]


@pytest.fixture(scope="module", params=[1, 3], ids="{}_workers".format)
def cpu(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[OpenDevice]:
    opened = runtime.open_device("cpu", num_threads=request.param)
    yield opened
    opened.backend.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_equals_the_reference_in_float64(case: KernelCase, cpu: OpenDevice) -> None:
    check_kernel(case, REGISTRY, cpu)


@pytest.mark.parametrize("operator", sorted({kernel.operator for kernel in kernels()}))
def test_operator_has_a_kernel_for_every_cpu(operator: str) -> None:
    portable = {
        dtype
        for kernel in kernels()
        if (kernel.operator, kernel.name) == (operator, "cpu/portable")
        for dtype in kernel.dtypes
    }
    everywhere = {dtype for kernel in kernels() if kernel.operator == operator for dtype in kernel.dtypes}
    assert portable == everywhere


VIEWS = {"split_heads", "merge_heads", "split_last", "merge_last"}
COMPOSITES_TAKEN_APART = {"mlp_swiglu", "ffn_relu", "ffn_gelu"}


def test_everything_else_has_a_kernel() -> None:
    missing = {operator.name for operator in REGISTRY} - {kernel.operator for kernel in kernels()}
    assert missing == VIEWS | COMPOSITES_TAKEN_APART
