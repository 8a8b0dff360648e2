"""Availability of the simulator, and its configuration by environment variables."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from aethermind.errors import InvalidArgumentError
from aethermind.hal.device import Probe

if TYPE_CHECKING:
    from aethermind_sim.backend import SimBackend

__all__ = ["NUM_DEVICES", "open_backend", "probe"]

NUM_DEVICES = 2


def probe() -> Probe:
    """Check that the platform has mprotect."""
    if sys.platform == "win32":
        return Probe(0, "it needs mmap and mprotect, which Windows does not have.")
    return Probe(NUM_DEVICES, "it is simulated in host memory.")


def open_backend() -> SimBackend:
    """Open the devices with `AETHERMIND_SIM_SEED` (default 0), `AETHERMIND_SIM_FAULTS` (default none; see
    `faults.parse_faults`) and `AETHERMIND_SIM_MEMORY` MiB each (default the host's memory).

    Raises InvalidArgumentError for a value that cannot be parsed.
    """
    from aethermind_sim.backend import SimBackend
    from aethermind_sim.faults import parse_faults

    seed = os.environ.get("AETHERMIND_SIM_SEED") or "0"
    if not seed.isdecimal():
        raise InvalidArgumentError(f"AETHERMIND_SIM_SEED is {seed!r}; set it to a number such as 7, or unset it.")
    memory = os.environ.get("AETHERMIND_SIM_MEMORY") or "0"
    if not memory.isdecimal():
        raise InvalidArgumentError(f"AETHERMIND_SIM_MEMORY is {memory!r}; set it to MiB such as 64, or unset it.")
    faults = parse_faults(os.environ.get("AETHERMIND_SIM_FAULTS", ""))
    return SimBackend(int(seed), faults, (int(memory) << 20) or None)
