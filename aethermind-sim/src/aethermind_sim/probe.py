"""Availability of the simulator on this platform, and the number of its devices."""

from __future__ import annotations

import sys

from aethermind.hal.device import Probe

__all__ = ["NUM_DEVICES", "probe"]

NUM_DEVICES = 2


def probe() -> Probe:
    """Check that the platform has mprotect."""
    if sys.platform == "win32":
        return Probe(0, "it needs mmap and mprotect, which Windows does not have.")
    return Probe(NUM_DEVICES, "it is simulated in host memory.")
