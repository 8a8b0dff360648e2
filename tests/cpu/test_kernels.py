"""Every native kernel that this CPU supports equals its operator's reference on the operator's samples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aethermind import Runtime
from aethermind.ops import catalog
from aethermind.ops.operator import OperatorRegistry
from aethermind.runtime import OpenDevice
from aethermind.testing.kernel_cases import kernel_cases
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind_cpu.kernels import kernels

REGISTRY = OperatorRegistry(catalog.load())
CASES = list(kernel_cases(REGISTRY, kernels(), Runtime.boot().weight_formats))
DENSE = [case for case in CASES if case.weight_format is None]
IN_FORMATS = [case for case in CASES if case.weight_format is not None][::3]  # `aethermind conform cpu` runs them all


@pytest.fixture(scope="module", params=[1, 3], ids="{}_workers".format)
def cpu(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[OpenDevice]:
    opened = runtime.open_device("cpu", num_threads=request.param)
    yield opened
    opened.backend.close()


@pytest.fixture(scope="module")
def one_worker(runtime: Runtime) -> Iterator[OpenDevice]:
    opened = runtime.open_device("cpu", num_threads=1)
    yield opened
    opened.backend.close()


@pytest.mark.parametrize("case", DENSE, ids=str)
def test_kernel_equals_the_reference_in_float64(case: KernelCase, cpu: OpenDevice) -> None:
    check_kernel(case, REGISTRY, cpu)


@pytest.mark.parametrize("case", IN_FORMATS, ids=str)
def test_kernel_computes_with_the_values_of_a_weight_format(case: KernelCase, one_worker: OpenDevice) -> None:
    check_kernel(case, REGISTRY, one_worker)


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


VIEWS = {"split_heads", "merge_heads", "split_last", "merge_last", "reshape"}
COMPOSITES_TAKEN_APART = {"mlp_swiglu", "mlp_geglu", "ffn_relu", "ffn_gelu", "moe_swiglu", "argmin"}


def test_every_other_operator_has_a_kernel() -> None:
    missing = {operator.name for operator in REGISTRY} - {kernel.operator for kernel in kernels()}
    assert missing == VIEWS | COMPOSITES_TAKEN_APART
