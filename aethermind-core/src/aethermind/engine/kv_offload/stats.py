"""What became of blocks that were asked of a store or offered to it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KVStoreStats"]


@dataclass(slots=True)
class KVStoreStats:
    """Counts of blocks since the engine was made, except `num_errors`, which counts calls that failed and bad entries.

    `num_hits` were fetched, `num_misses` were not there (or not in time, or not believed) and had to be computed.
    `num_stored` were written, `num_dropped` were not: their place on the device was wanted before their turn came, or
    the store failed.
    """

    num_hits: int = 0
    num_misses: int = 0
    num_stored: int = 0
    num_dropped: int = 0
    num_errors: int = 0
