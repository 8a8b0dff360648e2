"""Whether there is an Ascend NPU to use: its device nodes, the CANN toolkit, and torch_npu."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from aethermind.errors import DeviceError
from aethermind.hal import Probe

__all__ = ["DEVICE_NODES", "open_backend", "probe"]

DEVICE_NODES = Path("/dev")
"""Where the driver shows each NPU as `davinci0`, `davinci1`, …"""


def probe() -> Probe:
    """Look for the hardware first, then for what drives it; opens nothing."""
    count = sum(node.name.removeprefix("davinci").isdecimal() for node in DEVICE_NODES.glob("davinci*"))
    if count == 0:
        return Probe(0, "no Ascend NPU is visible (there is no /dev/davinci* device).")
    if "ASCEND_HOME_PATH" not in os.environ:
        return Probe(0, f"{count} NPU(s) found, but the CANN toolkit is not set up; source its set_env.sh.")
    if find_spec("torch_npu") is None:
        return Probe(0, f"{count} NPU(s) found, but torch_npu is not installed.")
    return Probe(0, f"{count} NPU(s) found, but this version of aethermind-cann has no kernels for them yet.")


def open_backend() -> NoReturn:
    """There is nothing to open before there are kernels."""
    raise DeviceError(f"Device 'cann' cannot be opened: {probe().reason}")
