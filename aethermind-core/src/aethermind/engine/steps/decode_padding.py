"""Decode steps brought to sizes that the device has prepared: rows behind the last that belong to nobody.

They are what the operators' pages call padding: sequences without queries, tokens whose slot is negative. What comes
out of them is never read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["DecodePadding"]

_EMPTY = {
    "token_ids": 0,
    "positions": 0,
    "slot_mapping": -1,
    "seqlens_k": 0,
    "logits_rows": 0,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "uniform": 0.0,
}


class DecodePadding:
    """Pads the plain step's inputs. `batch_sizes` are those of `Capabilities`."""

    def __init__(self, arrays: Mapping[str, Any], symbols: Mapping[str, int], batch_sizes: Sequence[int]) -> None:
        self._arrays = arrays
        self._most_blocks = symbols["B"]
        most = min(symbols[name] for name in ("T", "S", "R"))
        self._batch_sizes = [*(size for size in batch_sizes if size < most), most]

    def rows(self, num_sequences: int) -> int:
        """How many rows to run with: the next prepared size."""
        return self._batch_sizes[bisect_left(self._batch_sizes, num_sequences)]

    def width(self, num_blocks: int) -> int:
        """How wide a table to run with: the next power of two."""
        return min(1 << (num_blocks - 1).bit_length(), self._most_blocks)

    def write(self, num_sequences: int, padded: int, table_width: int) -> None:
        """Fill the rows from `num_sequences` to `padded`; tables are `table_width` wide."""
        for name, value in _EMPTY.items():
            self._arrays[name][num_sequences:padded] = value
        self._arrays["cu_seqlens_q"][num_sequences + 1 : padded + 1] = num_sequences
        self._arrays["block_tables"][num_sequences * table_width : padded * table_width] = 0
