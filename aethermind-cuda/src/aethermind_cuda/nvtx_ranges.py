"""NVTX ranges for NVIDIA's profilers, one for each kernel call of a plan (`pip install nvtx`, and AETHERMIND_NVTX=1).

Ranges are on the enqueuing thread; a captured graph is one launch and shows kernels by their own names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from aethermind.errors import DeviceError

__all__ = ["find_annotate"]


def find_annotate() -> Callable[[str], AbstractContextManager[Any]] | None:
    """The function that opens a named range; None if disabled, DeviceError if enabled without the nvtx package."""
    if os.environ.get("AETHERMIND_NVTX", "0") in ("", "0"):
        return None
    try:
        import nvtx
    except ImportError:
        raise DeviceError("AETHERMIND_NVTX is set and nvtx is not installed: run `pip install nvtx`.") from None
    annotate: Callable[[str], AbstractContextManager[Any]] = nvtx.annotate
    return annotate
