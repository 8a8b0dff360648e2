"""The probe says truthfully why there is no GPU to use."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from tests.cuda.host_driver import fake_cubins

from aethermind import LLM, Runtime
from aethermind.errors import DeviceError
from aethermind_cuda import library
from aethermind_cuda.probe import open_backend, probe


class FakeDriver:
    """A libcuda that answers `cuInit` with a status and counts some GPUs of one kind."""

    def __init__(
        self,
        init_status: int = 0,
        count: int = 0,
        count_status: int = 0,
        version: int = 13000,
        capability: tuple[int, int] = (8, 0),
    ) -> None:
        self._init_status = init_status
        self._count = count
        self._count_status = count_status
        self._version = version
        self._capability = capability

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self._init_status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self._count
        return self._count_status

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self._version
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        assert device.value < self._count
        value._obj.value = self._capability[attribute - 75]
        return 0


@pytest.fixture
def install_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes this the driver that is found, or none; there are kernels for sm_80."""
    monkeypatch.setattr(library, "CUBINS", fake_cubins(tmp_path, ["rms_norm"]).folder)

    def install(driver: FakeDriver | None) -> None:
        find = ctypes.CDLL

        def load(name: str | None) -> Any:
            if name is None:  # the process itself
                return find(name)
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
    (FakeDriver(init_status=803), "the NVIDIA driver answered with error 803; see `nvidia-smi`."),
    (FakeDriver(count_status=3), "the NVIDIA driver answered with error 3; see `nvidia-smi`."),
    (
        FakeDriver(count=2, version=12080),
        "2 GPU(s) found, but their driver supports CUDA 12.8 and 13.0 is needed: update the NVIDIA driver.",
    ),
    (
        FakeDriver(count=1, capability=(7, 5)),
        "1 GPU(s) found, but aethermind-cuda has kernels for compute capability 80, and none of them runs on 7.5. "
        "Build them from source with --targets 75, or use another device.",
    ),
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
def test_requesting_the_device_gives_the_reason_and_a_remedy(
    install_driver: Any, driver: FakeDriver | None, reason: str
) -> None:
    install_driver(driver)
    expected = f"Device 'cuda:1' is not available: {reason} Name another one; auto is the best that this machine has."
    with pytest.raises(DeviceError) as caught:
        LLM("demo", device="cuda:1")
    assert str(caught.value) == expected


def test_a_supported_gpu_is_available(install_driver: Any) -> None:
    install_driver(FakeDriver(count=2, capability=(8, 6)))
    assert (probe().count, probe().reason) == (2, "2 GPU(s) found by the NVIDIA driver.")


def test_without_compiled_kernels_the_device_is_absent(install_driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(FakeDriver(count=1))
    monkeypatch.setattr(library, "CUBINS", Path("nowhere"))
    assert probe().reason == (
        "1 GPU(s) found, but aethermind-cuda was installed without its compiled kernels. Run `make cuda-kernels` in "
        "the source tree, or install a built wheel."
    )


def test_auto_skips_it_and_reports_that(install_driver: Any) -> None:
    install_driver(None)
    selection = Runtime.boot().devices.select("auto")
    assert selection.device.type == "cpu"
    assert "passed over cuda: no NVIDIA driver is installed (libcuda.so.1 was not found);" in selection.reason
