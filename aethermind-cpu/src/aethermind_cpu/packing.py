"""Packing a weight in parts, on all cores."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from aethermind_cpu.devices import num_physical_cores

__all__ = ["pack_in_parts"]

_ROWS_PER_PART = 64
"""A packing is a sequence of panels of rows whose height divides this, so that parts can be packed in parallel."""
_BYTES_PER_PART = 1 << 20


def pack_in_parts(rows: int, nbytes: int, pack_part: Callable[[int, int], None]) -> None:
    """Call `pack_part(first row, number of rows)` for all of `rows`, of `nbytes` together; large ones in parallel."""
    num_parts = max(1, min(nbytes // _BYTES_PER_PART, rows // _ROWS_PER_PART))
    if num_parts > 1:  # counting cores takes longer than packing a small weight
        num_parts = min(num_parts, num_physical_cores())
    rows_per_part = max(1, math.ceil(rows / num_parts / _ROWS_PER_PART)) * _ROWS_PER_PART

    def pack_from(first: int) -> None:
        pack_part(first, min(rows_per_part, rows - first))

    threads = [threading.Thread(target=pack_from, args=(first,)) for first in range(rows_per_part, rows, rows_per_part)]
    for thread in threads:
        thread.start()
    pack_from(0)
    for thread in threads:
        thread.join()
