"""How much of its long suites a run of the tests takes.

A test that could go on for ever, with random cases, says how many make a full run. `make nightly` runs as many; any
other run, CI's among them, a hundredth. `TEST_SCALE` is the share.
"""

from __future__ import annotations

import os

__all__ = ["is_extended", "scaled"]

_USUAL = 0.01
_SCALE = float(os.environ.get("TEST_SCALE") or _USUAL)


def scaled(full: int) -> int:
    """So many of `full` cases, and one at least."""
    return max(1, round(full * _SCALE))


def is_extended() -> bool:
    """Whether this run is to find what the usual one, which is the same every time, cannot."""
    return _SCALE > _USUAL
