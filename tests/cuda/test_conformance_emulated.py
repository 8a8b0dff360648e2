"""The conformance kit on emulated GPUs: kernels, packing of arguments, streams and copies, whole models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cuda.emulator.driver import EmulatedDriver
from tests.cuda.emulator.opening import emulated_cuda

from aethermind import Runtime
from aethermind.hal import Backend, DeviceId
from aethermind.runtime import OpenDevice
from aethermind.testing.kernel_cases import kernel_cases
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


RUNTIME = Runtime.boot()
CASES = list(kernel_cases(RUNTIME.operators, load_kernels(), RUNTIME.weight_formats))


# Each launch has an order of its own already; two orders of the same launch are compared by the tests of kernels.
@pytest.mark.parametrize("driver", [0], indirect=True, ids=["seed0"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(case: KernelCase, opened: OpenDevice, runtime: Runtime) -> None:
    check_kernel(case, runtime.operators, opened)
