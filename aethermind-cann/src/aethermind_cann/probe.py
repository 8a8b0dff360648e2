"""Detects Ascend NPUs: device nodes, the CANN toolkit and torch_npu."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from aethermind.errors import DeviceError
from aethermind.hal import Probe

if TYPE_CHECKING:
    from aethermind_cann.backend import CannBackend

__all__ = ["open_backend", "probe"]


def probe() -> Probe:
    """Check for the hardware first, then for its software; opens nothing and imports neither torch nor torch_npu.

    NPUs are `davinci0`, `davinci1`, … in /dev (or in AETHERMIND_CANN_NODES); ASCEND_RT_VISIBLE_DEVICES restricts them.
    """
    nodes = Path(os.environ.get("AETHERMIND_CANN_NODES") or "/dev")
    count = sum(node.name.removeprefix("davinci").isdecimal() for node in nodes.glob("davinci*"))
    if count == 0:
        return Probe(0, f"no Ascend NPU is visible (there is no {nodes}/davinci* device).")
    if "ASCEND_HOME_PATH" not in os.environ:
        return Probe(0, f"{count} NPU(s) found, but the CANN toolkit is not set up; source its set_env.sh.")
    if find_spec("torch_npu") is None:
        return Probe(0, f"{count} NPU(s) found, but torch_npu is not installed.")
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is None:
        return Probe(count, f"{count} NPU(s) found.")
    num_visible = min(count, len([index for index in visible.split(",") if index.strip()]))
    return Probe(num_visible, f"{num_visible} of {count} NPU(s) left visible by ASCEND_RT_VISIBLE_DEVICES.")


def open_backend() -> CannBackend:
    """Open the NPUs of this machine; DeviceError states why they cannot be used."""
    answer = probe()
    if not answer.is_available:
        raise DeviceError(f"Device 'cann' cannot be opened: {answer.reason}")
    from aethermind_cann.backend import CannBackend

    return CannBackend()
