"""Packing a weight in parts, on all cores."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from aethermind.hal.mapped import drop_mapped_pages
from aethermind_cpu import _native
from aethermind_cpu.devices import num_physical_cores

__all__ = ["build_of_packing", "pack_in_parts"]

_ROWS_PER_PART = 64
"""A packing is a sequence of panels of rows whose height divides this, so that parts can be packed in parallel."""
_BYTES_PER_PART = 1 << 20
_BYTES_PER_PIECE = 8 << 20
"""So much of a mapped file is in memory at a time, beside what it is packed into."""


@cache
def build_of_packing() -> str:
    """The build of the code that lays weights out: the native module's file."""
    status = os.stat(_native.__file__)
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def pack_in_parts(source: Any, pack_part: Callable[[int, int], None]) -> None:
    """Call `pack_part(first row, number of rows)` for all rows of an array; large ones in parallel.

    What has been packed out of a mapped file leaves memory again.
    """
    rows = len(source)
    num_parts = max(1, min(source.nbytes // _BYTES_PER_PART, rows // _ROWS_PER_PART))
    if num_parts > 1:
        num_parts = min(num_parts, _num_cores())
    rows_per_part = _round_up(math.ceil(rows / num_parts))
    rows_per_piece = min(rows_per_part, _round_up(math.ceil(rows * _BYTES_PER_PIECE / max(source.nbytes, 1))))

    def pack_from(begin: int) -> None:
        end = min(begin + rows_per_part, rows)
        for first in range(begin, end, rows_per_piece):
            count = min(rows_per_piece, end - first)
            pack_part(first, count)
            drop_mapped_pages(source[first : first + count])

    threads = [threading.Thread(target=pack_from, args=(first,)) for first in range(rows_per_part, rows, rows_per_part)]
    for thread in threads:
        thread.start()
    pack_from(0)
    for thread in threads:
        thread.join()


@cache
def _num_cores() -> int:
    """Counted once: that takes as long as packing a weight."""
    return num_physical_cores()


def _round_up(num_rows: int) -> int:
    return max(1, math.ceil(num_rows / _ROWS_PER_PART)) * _ROWS_PER_PART
