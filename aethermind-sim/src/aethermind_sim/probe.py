"""Whether the simulation runs here, and the device as the environment wants it."""

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
    """Everywhere that a process can protect its own pages."""
    if sys.platform == "win32":
        return Probe(0, "it needs mmap and mprotect, which Windows does not have.")
    return Probe(NUM_DEVICES, "it is simulated in host memory.")


def open_backend() -> SimBackend:
    """The devices under `AETHERMIND_SIM_SEED` (0), with `AETHERMIND_SIM_FAULTS` (none; see `faults.parse_faults`) and
    with `AETHERMIND_SIM_MEMORY` MiB each (the host's memory).

    InvalidArgumentError when one of them cannot be read.
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
