"""The conformance kit on emulated GPUs: kernels, packing of arguments, streams and copies, whole models."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.emulator.opening import emulated_cuda

from aethermind import Runtime
from aethermind.hal import Backend, DeviceId
from aethermind.ops.weight_format import DENSE
from aethermind.runtime import OpenDevice
from aethermind.testing.operator_calls import KernelCase, check_kernel
from aethermind.testing.suites import test_hal
from aethermind_cuda.kernels import load_kernels

globals().update({name: case for name, case in vars(test_hal).items() if name.startswith("test_")})


@pytest.fixture(scope="module", params=[0, 1], ids=["seed0", "seed1"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedDriver]:
    """One emulated GPU."""
    with emulated_cuda(tmp_path_factory.mktemp("cubins"), request.param) as driver:
        yield driver


@pytest.fixture(scope="module")
def opened(driver: EmulatedDriver) -> Iterator[OpenDevice]:
    """The backend over it."""
    opened = Runtime.boot().open_device("cuda")
    assert opened.backend.devices.properties(0).name == driver.device_name(0)
    yield opened
    opened.backend.close()


@pytest.fixture
def backend(opened: OpenDevice) -> Backend:
    return opened.backend


@pytest.fixture
def device(opened: OpenDevice) -> DeviceId:
    return opened.device


def _cases() -> Iterator[KernelCase]:
    operators = Runtime.boot().operators
    for kernel in load_kernels():
        operator = operators[kernel.operator]
        if kernel.weight_formats is not None and DENSE not in kernel.weight_formats:
            continue
        for float_type in sorted(kernel.dtypes & operator.tolerances.keys(), key=str):
            for sample in operator.samples(np.random.default_rng(11)):
                yield KernelCase(operator, kernel, float_type, sample)


@pytest.mark.parametrize("case", list(_cases()), ids=str)
def test_kernel(case: KernelCase, opened: OpenDevice, runtime: Runtime) -> None:
    check_kernel(case, runtime.operators, opened)
