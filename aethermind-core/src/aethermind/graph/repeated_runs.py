"""Which runs come again, so that a backend may prepare them once: decode steps, which the engine pads to few sizes."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["BATCH_SIZES", "is_decode_size"]

BATCH_SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, *range(80, 257, 16), *range(288, 513, 32))
"""Batches that decode steps are padded to: at most half of a small one is padding, an eighth of a large one."""


def is_decode_size(sizes: Mapping[str, int], most: Mapping[str, int]) -> bool:
    """Whether a run has the sizes of a padded decode step, and so will come again: a token and a row of logits for each
    of as many sequences as `BATCH_SIZES` has (or the plan at most), and nothing else.
    """
    if not {"T", "S", "R", "B"} <= sizes.keys():
        return False
    count, width = sizes["T"], sizes["B"]
    is_padded = count in BATCH_SIZES or count == min(most[name] for name in ("T", "S", "R"))
    is_wide = width > 0 and (width & (width - 1) == 0 or width == most["B"])
    is_plain = not any(size for name, size in sizes.items() if name not in ("T", "S", "R", "B"))
    return is_padded and is_wide and is_plain and count == sizes["S"] == sizes["R"]
