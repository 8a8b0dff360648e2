"""The probe reports correctly why no NPU is usable."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from aethermind import LLM
from aethermind.errors import DeviceError
from aethermind_cann import probe as probe_module
from aethermind_cann.probe import open_backend, probe


def absent(nodes: Path) -> str:
    return f"no Ascend NPU is visible (there is no {nodes}/davinci* device)."


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary /dev, on a machine without CANN."""
    monkeypatch.setenv("AETHERMIND_CANN_NODES", str(tmp_path))
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(probe_module, "find_spec", lambda _: None)
    return tmp_path


def test_without_hardware(nodes: Path) -> None:
    (nodes / "davinci_manager").touch()
    assert (probe().count, probe().reason) == (0, absent(nodes))


def test_hardware_without_software(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (nodes / name).touch()
    assert probe().reason == "2 NPU(s) found, but the CANN toolkit is not set up; source its set_env.sh."
    monkeypatch.setenv("ASCEND_HOME_PATH", "/opt/ascend")
    assert probe().reason == "2 NPU(s) found, but torch_npu is not installed."
    monkeypatch.setattr(probe_module, "find_spec", lambda name: ModuleSpec(name, None))
    assert (probe().count, probe().reason) == (2, "2 NPU(s) found.")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    assert (probe().count, probe().reason) == (1, "1 of 2 NPU(s) left visible by ASCEND_RT_VISIBLE_DEVICES.")


def test_requesting_the_device_gives_the_reason_and_a_remedy(nodes: Path) -> None:
    with pytest.raises(DeviceError) as caught:
        LLM("demo", device="cann")
    expected = (
        f"Device 'cann' is not available: {absent(nodes)} Name another one; auto is the best that this machine has."
    )
    assert str(caught.value) == expected
    with pytest.raises(DeviceError, match=r"^Device 'cann' cannot be opened: no Ascend NPU is visible"):
        open_backend()
