"""Statistics over all blocks at one moment: the state of each, and the sequences that hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from aethermind.cache.block_pool import BlockPool
from aethermind.cache.groups import FREED
from aethermind.cache.sequence import CachedSequence, CacheState

__all__ = ["BlockInfo", "count_states", "inspect_blocks"]


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One block. Of a block of one token (a cell) it gives the token's position in each sequence.

    Attributes:
        state: Active if a running sequence holds it, else Standby if an idle one does (a session between turns), else
            Warm if it is kept for reuse, else Free.
        is_protected: whether a pinned sequence holds it.
        holders: by sequence, the position of the block's first token.
    """

    state: CacheState
    is_protected: bool
    holders: Mapping[str, int]


def inspect_blocks(pool: BlockPool, sequences: Mapping[str, CachedSequence], block_size: int) -> list[BlockInfo]:
    """Return all blocks of `pool` by number. Takes time linear in the blocks of all sequences."""
    holders: list[dict[str, int]] = [{} for _ in range(pool.num_blocks)]
    for seq_id, sequence in sequences.items():
        for table in sequence.tables:
            for index, block in enumerate(table):
                if block != FREED:
                    holders[block][seq_id] = sequence.positions.position(index * block_size)
    return [_inspect(pool, block, sequences, by_sequence) for block, by_sequence in enumerate(holders)]


def count_states(blocks: list[BlockInfo], num_swapped: int) -> dict[CacheState, int]:
    """Count blocks by state. Swapped blocks are in the swap store, all others add up to the pool."""
    counts = Counter(block.state for block in blocks)
    return {state: counts[state] for state in CacheState} | {CacheState.SWAPPED: num_swapped}


def _inspect(
    pool: BlockPool, block: int, sequences: Mapping[str, CachedSequence], holders: Mapping[str, int]
) -> BlockInfo:
    states = {sequences[seq_id].state for seq_id in holders}
    if CacheState.ACTIVE in states:
        state = CacheState.ACTIVE
    elif states:
        state = CacheState.STANDBY
    else:
        state = CacheState.WARM if pool.ref_count(block) else CacheState.FREE
    return BlockInfo(state, any(sequences[seq_id].is_pinned for seq_id in holders), holders)
