"""Names for the steps of a plan in NVIDIA's profilers (`pip install nvtx`, and AETHERMIND_NVTX=1).

They stand on the thread that enqueues; a captured graph is one launch, and shows kernels under their own names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from aethermind.errors import DeviceError

__all__ = ["find_annotate"]


def find_annotate() -> Callable[[str], AbstractContextManager[Any]] | None:
    """What makes a range of a name, or None where nobody asked; DeviceError where it was asked for and is missing."""
    if os.environ.get("AETHERMIND_NVTX", "0") in ("", "0"):
        return None
    try:
        import nvtx
    except ImportError:
        raise DeviceError("AETHERMIND_NVTX is set and nvtx is not installed: run `pip install nvtx`.") from None
    annotate: Callable[[str], AbstractContextManager[Any]] = nvtx.annotate
    return annotate
