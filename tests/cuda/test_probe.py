"""The probe says truthfully why there is no GPU to use."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from aethermind import LLM, Runtime
from aethermind.errors import DeviceError
from aethermind_cuda.probe import open_backend, probe


class FakeDriver:
    """A libcuda that answers `cuInit` with a status and counts some GPUs."""

    def __init__(self, init_status: int = 0, count: int = 0, count_status: int = 0) -> None:
        self._init_status = init_status
        self._count = count
        self._count_status = count_status

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self._init_status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self._count
        return self._count_status


@pytest.fixture
def install_driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes this the driver that is found, or none."""

    def install(driver: FakeDriver | None) -> None:
        def load(name: str) -> FakeDriver:
            assert name == "libcuda.so.1"
            if driver is None:
                raise OSError(f"{name}: cannot open shared object file")
            return driver

        monkeypatch.setattr(ctypes, "CDLL", load)

    return install


CASES = [
    (None, "no NVIDIA driver is installed (libcuda.so.1 was not found)."),
    (FakeDriver(init_status=100), "the NVIDIA driver is installed and sees no GPU."),
    (FakeDriver(count=0), "the NVIDIA driver is installed and sees no GPU."),
    (FakeDriver(init_status=803), "the NVIDIA driver answered with error 803; `nvidia-smi` may tell more."),
    (FakeDriver(count_status=3), "the NVIDIA driver answered with error 3; `nvidia-smi` may tell more."),
    (FakeDriver(count=2), "2 GPU(s) found, but this version of aethermind-cuda has no kernels for them yet."),
]


@pytest.mark.parametrize(("driver", "reason"), CASES)
def test_the_reason_is_the_drivers(install_driver: Any, driver: FakeDriver | None, reason: str) -> None:
    install_driver(driver)
    assert not probe().is_available
    assert probe().reason == reason
    with pytest.raises(DeviceError) as caught:
        open_backend()
    assert str(caught.value) == f"Device 'cuda' cannot be opened: {reason}"


@pytest.mark.parametrize(("driver", "reason"), CASES)
def test_asking_for_the_device_gives_the_reason_and_a_way_out(
    install_driver: Any, driver: FakeDriver | None, reason: str
) -> None:
    install_driver(driver)
    expected = f"Device 'cuda:1' is not available: {reason} Pass --device auto to use what this machine has."
    with pytest.raises(DeviceError) as caught:
        LLM("demo", device="cuda:1")
    assert str(caught.value) == expected


def test_auto_passes_it_over_and_says_so(install_driver: Any) -> None:
    install_driver(None)
    selection = Runtime.boot().devices.select("auto")
    assert selection.device.type == "cpu"
    assert "passed over cuda: no NVIDIA driver is installed (libcuda.so.1 was not found);" in selection.reason
