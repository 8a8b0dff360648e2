"""Which compiled targets (such as 80 or 90a) run on a GPU, by its compute capability."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["best_target", "runs_on"]

_TARGET = re.compile(r"(\d+)(\d)([af]?)")
_TEGRA = frozenset({(8, 7), (8, 8), (11, 0)})
"""Tegra SoCs: binary compatible with no other architecture (CUDA C++ Programming Guide, 1.4)."""


def runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Whether code for `target` (80, 90a, 100f) runs on a GPU of this compute capability.

    Code runs on later minor versions of the same major version; with suffix `a` on that version only, with `f` on its
    family, which is the major version so far. Tegra SoCs are compatible with none.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        return False
    target_capability = int(match[1]), int(match[2])
    if target_capability == capability:
        return True
    is_exact = match[3] == "a" or target_capability in _TEGRA or capability in _TEGRA
    return not is_exact and target_capability[0] == capability[0] and target_capability[1] <= capability[1]


def best_target(targets: Iterable[str], capability: tuple[int, int]) -> str | None:
    """The newest compatible target, architecture-specific ones first; None if there is none."""
    compatible = [target for target in targets if runs_on(target, capability)]
    return max(compatible, key=_rank, default=None)


def _rank(target: str) -> tuple[int, int, str]:
    match = _TARGET.fullmatch(target)
    assert match is not None
    return int(match[1]), int(match[2]), {"a": "2", "f": "1"}.get(match[3], "0")
