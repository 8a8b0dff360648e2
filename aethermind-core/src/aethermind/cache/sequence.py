"""One sequence as the cache knows it: its blocks, where its tokens stand, and which of its slots it may write."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from aethermind.cache.positions import PLAIN, TokenPositions
from aethermind.cache.states import CacheState

__all__ = ["CachedSequence"]


class CachedSequence:
    """Tokens by index: those below `num_tokens` are computed, those from there up to `num_writable` its alone to write.

    Mutable: the parts of the cache work on it.
    """

    __slots__ = (
        "block_table",
        "extra_key",
        "is_pinned",
        "num_original",
        "num_tokens",
        "num_writable",
        "positions",
        "state",
    )

    def __init__(self, blocks: Iterable[int], num_tokens: int = 0, extra_key: bytes = b"") -> None:
        self.block_table = array("i", blocks)
        """Its blocks, the one with index 0 first. An array, as a step copies the tables of all that it runs."""
        self.extra_key = extra_key
        self.num_tokens = num_tokens
        self.num_writable = num_tokens
        self.num_original = sys.maxsize
        """Leading tokens whose keys and values follow from the tokens before them and nothing else: those computed
        before anything was dropped or shifted. Only they may be reused by others."""
        self.positions: TokenPositions = PLAIN
        self.state = CacheState.ACTIVE
        self.is_pinned = False

    def fork(self) -> CachedSequence:
        """Another on the same blocks and tokens; references are the caller's business."""
        child = CachedSequence(self.block_table, self.num_tokens, self.extra_key)
        child.num_original = self.num_original
        child.positions = self.positions
        return child

    def truncate(self, num_tokens: int) -> None:
        """Forget the tokens from index `num_tokens` on; its blocks stay."""
        self.num_tokens = self.num_writable = num_tokens
        if self.positions is not PLAIN:
            self.positions = self.positions.truncated(num_tokens)
        if num_tokens <= self.num_original:
            self.num_original = sys.maxsize

    def disturb(self, index: int, positions: TokenPositions) -> None:
        """Take other `positions`, which leave the tokens before `index` as they were."""
        self.num_original = min(self.num_original, index)
        self.positions = PLAIN if positions == PLAIN else positions
